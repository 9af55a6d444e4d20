//! What a test may choose about its cluster.

use super::Cluster;

/// Choices for a new cluster; made by [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) standbys: usize,
    pub(super) preload: bool,
    pub(super) checksums: bool,
    pub(super) locale: String,
    pub(super) settings: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            standbys: 0,
            preload: true,
            checksums: false,
            locale: String::from("C.UTF-8"),
            settings: Vec::new(),
        }
    }
}

impl Options {
    /// How many streaming standbys to make; none by default.
    pub fn standbys(mut self, count: usize) -> Self {
        self.standbys = count;
        self
    }

    /// Whether every server loads the extension's library at its start; true by default.
    pub fn preload(mut self, preload: bool) -> Self {
        self.preload = preload;
        self
    }

    /// Whether data pages have checksums; false by default, as in PostgreSQL.
    pub fn checksums(mut self, checksums: bool) -> Self {
        self.checksums = checksums;
        self
    }

    /// Locale of the cluster; `C.UTF-8` by default. The machine must have it.
    pub fn locale(mut self, locale: &str) -> Self {
        self.locale = String::from(locale);
        self
    }

    /// Whether autovacuum runs; true by default, as in PostgreSQL.
    pub fn autovacuum(self, on: bool) -> Self {
        self.setting("autovacuum", if on { "on" } else { "off" })
    }

    /// Size of the buffer cache of each server, such as `1MB` to force evictions; PostgreSQL's
    /// own default otherwise.
    pub fn shared_buffers(self, size: &str) -> Self {
        self.setting("shared_buffers", size)
    }

    /// A line of postgresql.conf for every server; the value is quoted by the harness.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings
            .push((String::from(name), String::from(value)));
        self
    }

    /// Several of them.
    pub fn settings(self, settings: &[(&str, &str)]) -> Self {
        settings
            .iter()
            .fold(self, |options, (name, value)| options.setting(name, value))
    }

    /// Makes the cluster and waits until every standby streams.
    #[track_caller]
    pub fn start(self) -> Cluster {
        Cluster::start_with(self)
    }

    /// The lines that the harness adds to postgresql.conf; later lines win, so a test's own
    /// settings come last.
    pub(super) fn conf_lines(&self) -> String {
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("fsync", "off"),
            ("wal_level", "replica"),
            ("hot_standby", "on"),
            ("max_connections", "100"),
            ("max_wal_senders", "10"),
            ("max_replication_slots", "10"),
            // Base backups may run at the same time, and the checkpoint that each one forces would
            // remove the segment at which another has just begun, before its slot holds it.
            ("wal_keep_size", "512MB"),
            // Parallel workers and whatever background workers the extension starts.
            ("max_worker_processes", "32"),
            ("max_prepared_transactions", "10"),
            // A standby that lost its primary should notice at once that it is back.
            ("wal_retrieve_retry_interval", "100ms"),
            ("wal_receiver_status_interval", "1s"),
            ("log_line_prefix", "%m [%p] %b "),
            // Who holds up replay, should it stand still.
            ("log_recovery_conflict_waits", "on"),
            ("logging_collector", "off"),
        ];
        let preload = self
            .preload
            .then_some(("shared_preload_libraries", "parallel_replicas"));
        let own = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        fixed
            .into_iter()
            .chain(preload)
            .chain(own)
            .map(|(name, value)| conf_line(name, value))
            .collect()
    }
}

/// One line of postgresql.conf.
pub(super) fn conf_line(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\'', "''"))
}
