//! A primary and its streaming standbys in a temporary folder.
//!
//! Every method panics when it cannot do what it says: a test has nothing better to do, and the
//! clean-up relies on it. When a [`Cluster`] is dropped its servers are stopped and its folder is
//! removed; if the thread is panicking, the servers' logs stay and their place and last lines are
//! printed. A test should therefore fail by panic, not by returning an error.
//!
//! Node 0 ([`PRIMARY`]) is the first primary, node `n` is `standbyN`. The numbers stay with the
//! servers, also after a promotion.

mod options;
mod server;
mod watchdog;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use postgres::{Client, Config, NoTls};

pub use options::Options;
pub use server::StopMode;
use server::{Server, last_lines};
use watchdog::Watchdog;

use crate::system::installation;
use crate::wait::{SOON, wait_until};

/// The node that was made first, by initdb.
pub const PRIMARY: usize = 0;

/// What a standby's processes are at, a line each.
const ACTIVITY: &str = "SELECT string_agg(concat_ws(' ', pid, backend_type, state, 'xmin', backend_xmin, 'since', xact_start,
                                 wait_event_type, wait_event, left(query, 100)), E'\n')
     FROM pg_stat_activity";

/// A running cluster; see the module's text.
pub struct Cluster {
    base: PathBuf,
    nodes: Vec<Server>,
    watchdog: Watchdog,
    keep: bool,
}

impl Cluster {
    /// Choices for a new cluster.
    pub fn builder() -> Options {
        Options::default()
    }

    #[track_caller]
    fn start_with(options: Options) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pr-")
            .tempdir()
            .expect("a temporary folder");
        installation().give_to_server_user(folder.path());
        let primary = Server::init_primary(folder.path(), &options);
        let base = folder.keep();
        let watchdog = Watchdog::start(&base);
        let mut cluster = Self {
            base,
            nodes: vec![primary],
            watchdog,
            keep: false,
        };
        cluster.start(PRIMARY);
        cluster.add_standbys(options.standbys);
        cluster
    }

    /// Makes one more standby of the primary, waits until it streams and returns its number.
    #[track_caller]
    pub fn add_standby(&mut self) -> usize {
        self.add_standbys(1);
        self.nodes.len() - 1
    }

    /// Makes standbys, all at the same time, and waits until they stream.
    #[track_caller]
    pub fn add_standbys(&mut self, count: usize) {
        let first = self.nodes.len();
        let (base, primary) = (&self.base, &self.nodes[PRIMARY]);
        let standbys: Vec<Server> = thread::scope(|scope| {
            let copies: Vec<_> = (first..first + count)
                .map(|node| {
                    let name = format!("standby{node}");
                    scope.spawn(move || Server::init_standby(base, &name, primary))
                })
                .collect();
            copies
                .into_iter()
                .map(|copy| copy.join().expect("pg_basebackup succeeds"))
                .collect()
        });
        self.nodes.extend(standbys);
        for node in first..first + count {
            self.start(node);
            self.wait_streaming(node);
        }
    }

    /// Makes a standby anew from the primary, on its old port; it may be down or promoted.
    #[track_caller]
    pub fn remake_standby(&mut self, node: usize) {
        self.nodes[node].remove_data();
        let mut client = self.connect(PRIMARY);
        let slot = format!("slot_name = '{}'", self.name(node));
        wait_until(SOON, "the old replication slot is gone", || {
            let drop = format!(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                 WHERE {slot} AND NOT active"
            );
            let count = format!("SELECT count(*)::text FROM pg_replication_slots WHERE {slot}");
            client.batch_execute(&drop).is_ok() && text(&mut client, &count) == "0"
        });
        self.nodes[node].copy_from(&self.nodes[PRIMARY]);
        self.start(node);
        self.wait_streaming(node);
    }

    /// Numbers of all standbys, also of those that are down or were promoted.
    pub fn standbys(&self) -> impl Iterator<Item = usize> + use<> {
        1..self.nodes.len()
    }

    /// `primary`, `standby1`, `standby2` ...; also the node's application_name and slot name.
    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// The node's TCP port on 127.0.0.1.
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port()
    }

    /// The folder that holds all data folders, logs and sockets.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The node's data folder.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        self.nodes[node].data_dir()
    }

    /// The whole server log of a node.
    pub fn log(&self, node: usize) -> String {
        self.nodes[node].log()
    }

    /// The postmaster's process id; `None` when the server is down.
    pub fn postmaster_pid(&self, node: usize) -> Option<i32> {
        self.nodes[node].postmaster_pid()
    }

    /// Connection parameters of a node; see [`superuser_config`].
    pub fn config(&self, node: usize) -> Config {
        superuser_config(self.port(node))
    }

    /// A connection as superuser to database `postgres`.
    #[track_caller]
    pub fn connect(&self, node: usize) -> Client {
        self.connect_with(node, &self.config(node))
    }

    /// A connection as superuser to another database.
    #[track_caller]
    pub fn connect_db(&self, node: usize, database: &str) -> Client {
        self.connect_with(node, self.config(node).dbname(database))
    }

    /// A connection as another role to database `postgres`.
    #[track_caller]
    pub fn connect_as(&self, node: usize, user: &str) -> Client {
        self.connect_with(node, self.config(node).user(user))
    }

    #[track_caller]
    fn connect_with(&self, node: usize, config: &Config) -> Client {
        match config.connect(NoTls) {
            Ok(client) => client,
            Err(error) => panic!("could not connect to {}: {error}", self.name(node)),
        }
    }

    /// Runs an SQL script through the real psql (unaligned, tuples only, stops at the first error)
    /// and returns what it printed.
    #[track_caller]
    pub fn psql(&self, node: usize, script: &str) -> String {
        let output = self.psql_output(node, &["-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"], script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "psql on {} failed: {errors}",
            self.name(node)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a script through psql with the given options and returns its status and both outputs.
    #[track_caller]
    pub fn psql_output(&self, node: usize, options: &[&str], script: &str) -> Output {
        let mut child = installation()
            .client_command("psql")
            .args(["-X", "-h", "127.0.0.1", "-U", "postgres", "-d", "postgres"])
            .args(["-p", &self.port(node).to_string()])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("psql can be started");
        let mut input = child.stdin.take().expect("stdin is a pipe");
        let script = String::from(script);
        // In a thread, because psql may fill its output pipe before it has read a long script.
        // A psql that left early closes the pipe; its status and stderr say why.
        let writer = thread::spawn(move || {
            let _ = input.write_all(script.as_bytes());
        });
        let output = child.wait_with_output().expect("psql can be waited for");
        writer.join().expect("the writer thread does not panic");
        output
    }

    /// Starts a node and waits until it accepts connections.
    #[track_caller]
    pub fn start(&self, node: usize) {
        self.nodes[node].start();
    }

    /// Starts a node; says why when it does not start.
    pub fn try_start(&self, node: usize) -> Result<(), String> {
        self.nodes[node].try_start(None)
    }

    /// Starts a node whose processes may have so many bytes of address space each.
    #[track_caller]
    pub fn start_with_memory(&self, node: usize, bytes: u64) {
        if let Err(reason) = self.nodes[node].try_start(Some(bytes)) {
            panic!("{} did not start: {reason}", self.name(node));
        }
    }

    /// How often a node has begun to accept connections; see [`Self::wait_ready_again`].
    pub fn times_ready(&self, node: usize) -> usize {
        self.log(node).matches("ready to accept").count()
    }

    /// Waits until a node, one process of which was killed, has restarted by itself. `before` is what
    /// [`Self::times_ready`] said before that.
    #[track_caller]
    pub fn wait_ready_again(&self, node: usize, before: usize) {
        wait_until(SOON, &format!("{} is back", self.name(node)), || {
            self.times_ready(node) > before && self.config(node).connect(NoTls).is_ok()
        });
    }

    /// Stops a node and waits until it is down.
    #[track_caller]
    pub fn stop(&mut self, node: usize, mode: StopMode) {
        self.nodes[node].stop(mode);
    }

    /// Stops and starts a node.
    #[track_caller]
    pub fn restart(&mut self, node: usize, mode: StopMode) {
        self.stop(node, mode);
        self.start(node);
    }

    /// Makes a node read its configuration files again.
    ///
    /// Returns before every process has; use [`wait_until`] on the setting itself.
    #[track_caller]
    pub fn reload(&self, node: usize) {
        self.nodes[node].pg_ctl(&["reload"]);
    }

    /// Adds a line to a node's postgresql.conf; takes effect at reload or restart.
    #[track_caller]
    pub fn configure(&self, node: usize, name: &str, value: &str) {
        self.nodes[node].append_conf(&options::conf_line(name, value));
    }

    /// kill -9 of the postmaster and all its children; returns when they are gone.
    #[track_caller]
    pub fn kill_9(&mut self, node: usize) {
        self.nodes[node].kill_9();
    }

    /// Freezes all processes of a node.
    ///
    /// The kernel still accepts TCP connections for it, so [`Self::connect`] to it hangs.
    #[track_caller]
    pub fn sigstop(&mut self, node: usize) {
        self.nodes[node].sigstop();
    }

    /// Lets a frozen node go on.
    #[track_caller]
    pub fn sigcont(&mut self, node: usize) {
        self.nodes[node].sigcont();
    }

    /// Pauses WAL replay on a standby; returns when it has paused.
    #[track_caller]
    pub fn pause_replay(&self, node: usize) {
        let mut client = self.connect(node);
        client
            .batch_execute("SELECT pg_wal_replay_pause()")
            .expect("replay can be paused");
        wait_until(
            SOON,
            &format!("replay on {} is paused", self.name(node)),
            || text(&mut client, "SELECT pg_get_wal_replay_pause_state()") == "paused",
        );
    }

    /// Resumes WAL replay on a standby.
    #[track_caller]
    pub fn resume_replay(&self, node: usize) {
        let mut client = self.connect(node);
        client
            .batch_execute("SELECT pg_wal_replay_resume()")
            .expect("replay can be resumed");
    }

    /// Makes a standby a primary of its own; returns when it accepts writes.
    #[track_caller]
    pub fn promote(&self, node: usize) {
        self.nodes[node].pg_ctl(&["--wait", "--timeout=60", "promote"]);
        let mut client = self.connect(node);
        wait_until(
            SOON,
            &format!("{} has left recovery", self.name(node)),
            || text(&mut client, "SELECT pg_is_in_recovery()::text") == "false",
        );
    }

    /// Waits until the primary sees the standby stream.
    #[track_caller]
    pub fn wait_streaming(&self, node: usize) {
        let mut client = self.connect(PRIMARY);
        let query = format!(
            "SELECT count(*)::text FROM pg_stat_replication
             WHERE application_name = '{}' AND state = 'streaming'",
            self.name(node)
        );
        wait_until(SOON, &format!("{} streams", self.name(node)), || {
            text(&mut client, &query) == "1"
        });
    }

    /// Waits until a standby has replayed everything that the primary had done at the call.
    ///
    /// Writes one small WAL record first: its synchronous commit flushes everything before it,
    /// also what transactions with synchronous_commit = off have left in the WAL buffers.
    #[track_caller]
    pub fn wait_caught_up(&self, node: usize) {
        let mut primary = self.connect(PRIMARY);
        primary
            .batch_execute(
                "SET synchronous_commit = local;
                 SELECT pg_logical_emit_message(true, 'harness', '')",
            )
            .expect("the primary accepts writes");
        let flushed = text(&mut primary, "SELECT pg_current_wal_flush_lsn()::text");
        let mut standby = self.connect(node);
        let query = format!("SELECT (pg_last_wal_replay_lsn() >= '{flushed}')::text");
        let started = Instant::now();
        let mut told = false;
        wait_until(
            SOON,
            &format!("{} has replayed {flushed}", self.name(node)),
            || {
                let done = text(&mut standby, &query) == "true";
                if !done && !told && started.elapsed() > SOON / 2 {
                    told = true;
                    let activity = text(&mut standby, ACTIVITY);
                    eprintln!("--- {} stands still\n{activity}", self.name(node));
                }
                done
            },
        );
    }

    /// Waits until every standby has caught up.
    #[track_caller]
    pub fn wait_all_caught_up(&self) {
        for node in self.standbys() {
            self.wait_caught_up(node);
        }
    }

    /// The extension's counter `ParallelReplicas{name}` on that server.
    #[track_caller]
    pub fn event(&self, node: usize, name: &str) -> u64 {
        let query = format!(
            "SELECT value::text FROM parallel_replicas.events
             WHERE event = 'ParallelReplicas{name}'"
        );
        let value = text(&mut self.connect(node), &query);
        value.parse().expect("a counter is a number")
    }

    /// Creates the extension and registers every standby as a replica, then waits until the
    /// standbys know it too.
    #[track_caller]
    pub fn register_replicas(&self) {
        self.psql(PRIMARY, "CREATE EXTENSION IF NOT EXISTS parallel_replicas");
        // Otherwise a monitor may look at a standby that has not replayed it yet, and remembers the error.
        self.wait_all_caught_up();
        for node in self.standbys() {
            self.register_replica(self.name(node), self.port(node));
        }
        self.wait_all_caught_up();
    }

    /// A primary and two registered replicas for comparing rows, whatever the machine's load.
    #[track_caller]
    pub fn with_two_replicas() -> Cluster {
        let cluster = Cluster::builder()
            .standbys(2)
            // A vacuumed table has its plans made anew, perhaps while replicas are off.
            .autovacuum(false)
            // So that a slow machine does not turn a replica into one that is left out.
            .setting("parallel_replicas.connect_timeout", "5s")
            .setting("parallel_replicas.replay_wait_timeout", "30s")
            .start();
        cluster.register_replicas();
        cluster
    }

    /// Registers one replica on 127.0.0.1, for example a [`crate::Proxy`] before a standby.
    #[track_caller]
    pub fn register_replica(&self, name: &str, port: u16) {
        self.psql(
            PRIMARY,
            &format!("SELECT parallel_replicas.add_replica('{name}', '127.0.0.1', {port})"),
        );
    }

    /// Waits for a link's process that has announced itself on this standby, and executes its fragment.
    #[track_caller]
    pub fn serving(&self, node: usize) -> i32 {
        let mut observer = self.connect(node);
        let mut process = String::new();
        wait_until(SOON, "a replica executes a fragment", || {
            process = text(
                &mut observer,
                "SELECT coalesce(min(pid), 0)::text FROM parallel_replicas.running_fragments
                 WHERE phase = 'working'",
            );
            process != "0"
        });
        process.parse().expect("a process id")
    }

    /// Leaves the servers running and the folder in place when this process ends.
    pub fn keep(mut self) {
        self.keep = true;
    }
}

impl Cluster {
    /// Removes the data folders, also one that a failed pg_basebackup left, but no log.
    fn remove_data(&self) {
        let Ok(entries) = fs::read_dir(&self.base) else {
            return;
        };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
        {
            // A folder that resists is no reason to hide why the test failed.
            let _ = fs::remove_dir_all(path);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.keep {
            self.watchdog.dismiss();
            return;
        }
        // Standbys first: they would log the loss of the primary.
        for server in self.nodes.iter_mut().rev() {
            server.stop_for_good();
        }
        if thread::panicking() {
            for server in &self.nodes {
                let end = last_lines(&server.log(), 30);
                eprintln!("--- last lines of {}\n{end}", server.log_path().display());
            }
            self.remove_data();
            eprintln!("--- the server logs are kept in {}", self.base.display());
        } else if let Err(error) = fs::remove_dir_all(&self.base) {
            eprintln!("could not remove {}: {error}", self.base.display());
        }
        self.watchdog.dismiss();
    }
}

/// Connection parameters as superuser `postgres`, database `postgres`, for a port of 127.0.0.1 that
/// may be a node's or a [`crate::Proxy`]'s.
pub fn superuser_config(port: u16) -> Config {
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(port)
        .user("postgres")
        .dbname("postgres")
        .connect_timeout(Duration::from_secs(10));
    config
}

/// The single text value of a query.
#[track_caller]
pub fn text(client: &mut Client, query: &str) -> String {
    match client.query_one(query, &[]) {
        Ok(row) => row.get::<_, Option<String>>(0).unwrap_or_default(),
        Err(error) => panic!("query failed: {error:?}\n{query}"),
    }
}
