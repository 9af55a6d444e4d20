//! A standby, and a coordinator that is a rogue: it knows the secret, starts from a Begin that a real
//! coordinator sent, and then does as it likes.

use parallel_replicas_core::frame::Begin;
use postgres::Client;

use crate::cluster::{Cluster, Options, PRIMARY, text};
use crate::damage::damage_check;
use crate::rogue::{Outcome, Rogue};
use crate::rogue_recorder::Recorder;
use crate::wait::{SOON, wait_until};

/// The only standby of these tests.
pub const STANDBY: usize = 1;

/// What a connection of a coordinator asks for, as far as it matters here.
pub const LINK: &str = "-c default_transaction_isolation=read\\ committed";

pub const ROWS: u64 = 20_000;

/// A cluster with a standby, a real coordinator's session that is recorded, and the secret.
pub struct Scene {
    pub recorder: Recorder,
    pub observer: Client,
    pub secret: Vec<u8>,
    postmaster: i32,
    pub cluster: Cluster,
}

impl Scene {
    /// On a cluster with default settings.
    pub fn start() -> Self {
        Self::on(Cluster::builder())
    }

    /// On such a cluster.
    pub fn on(options: Options) -> Self {
        // Nobody holds a recorded snapshot, so nothing may remove rows that it sees.
        let cluster = options.standbys(1).autovacuum(false).start();
        cluster.psql(
            PRIMARY,
            &format!(
                "CREATE EXTENSION parallel_replicas;
                 CREATE TABLE t(id int, v bigint, name text);
                 INSERT INTO t SELECT i, i % 100, 'name' || i % 10 FROM generate_series(1, {ROWS}) i;
                 CREATE TABLE other(id int); INSERT INTO other VALUES (1);
                 CREATE FUNCTION own_abs(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
                     AS 'SELECT abs($1)';
                 CREATE ROLE stranger LOGIN; ANALYZE"
            ),
        );
        let mut recorder = Recorder::start(&cluster, STANDBY);
        recorder.warm_up("t");
        let secret = cluster
            .connect(PRIMARY)
            .query_one("SELECT secret FROM parallel_replicas.secret", &[])
            .expect("the secret is there")
            .get(0);
        Self {
            recorder,
            observer: cluster.connect(STANDBY),
            secret,
            postmaster: cluster.postmaster_pid(STANDBY).expect("it runs"),
            cluster,
        }
    }

    pub fn rogue(&self) -> Rogue {
        Rogue::connect(self.cluster.port(STANDBY), "postgres", LINK)
    }

    pub fn record(&mut self, query: &str) -> Begin {
        self.recorder.record(query).begin()
    }

    /// A Begin for all rows of `t`, which a new rogue has executed to the end.
    pub fn proven(&mut self, query: &str, rows: u64) -> Begin {
        let begin = self.record(query);
        let outcome = self.rogue().attempt(&self.secret, &begin);
        match outcome {
            Outcome::Done { rows: sent, .. } => assert_eq!(sent, rows, "{query}"),
            other => panic!("a real Begin must be executed, this came: {other:?}\n{query}"),
        }
        begin
    }

    /// The changed Begin is refused for this reason, and the session is as before.
    #[track_caller]
    pub fn refused(&mut self, reason: &str, begin: &Begin, change: impl FnOnce(&mut Begin)) {
        self.refused_in(self.rogue(), reason, begin, change);
    }

    #[track_caller]
    pub fn refused_in(
        &mut self,
        mut rogue: Rogue,
        reason: &str,
        begin: &Begin,
        change: impl FnOnce(&mut Begin),
    ) {
        let mut changed = begin.clone();
        change(&mut changed);
        assert_ne!(&changed, begin, "nothing was changed");
        let before = self.refusals();
        let outcome = rogue.attempt(&self.secret, &changed);
        assert_eq!(outcome.reason(), reason, "{outcome:?}");
        self.nothing_left(&mut rogue);
        assert_eq!(self.refusals(), before + 1, "lines in the standby's log");
    }

    /// Refusals that the standby has logged.
    pub fn refusals(&self) -> usize {
        let log = self.cluster.log(STANDBY);
        log.matches("refused to execute a fragment: ").count()
    }

    /// The session takes statements, and neither lock nor snapshot is left in it.
    #[track_caller]
    pub fn nothing_left(&mut self, rogue: &mut Rogue) {
        assert_eq!(rogue.execute("SELECT 1"), Ok(()));
        let query = format!(
            "SELECT format('%s, %s locks, xmin %s', state,
                 (SELECT count(*) FROM pg_locks WHERE pid = a.pid), coalesce(backend_xmin::text, 'none'))
             FROM pg_stat_activity a WHERE pid = {}",
            rogue.pid
        );
        let observer = &mut self.observer;
        let mut last = String::new();
        wait_until(SOON, "the session has let go of everything", || {
            last = text(observer, &query);
            last == "idle, 0 locks, xmin none"
        });
        self.server_lives();
    }

    /// The server has not restarted, and another session has not noticed anything.
    #[track_caller]
    pub fn server_lives(&mut self) {
        assert_eq!(self.cluster.postmaster_pid(STANDBY), Some(self.postmaster));
        assert_eq!(text(&mut self.observer, "SELECT 'alive'"), "alive");
    }

    /// No standby was damaged, and nothing was left to PostgreSQL's end of transaction to find.
    #[track_caller]
    pub fn end(self) {
        let log = self.cluster.log(STANDBY);
        let leak = log.lines().find(|line| line.contains(" leak"));
        assert_eq!(leak, None, "a resource was left behind");
        damage_check(&self.cluster);
    }
}
