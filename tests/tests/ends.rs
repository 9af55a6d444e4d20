//! Whatever ends a query: within a second no process of it works on a replica, nor holds a lock, a
//! snapshot or a page there, and the session goes on with its connections or without them.

use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::endurance::{self, Plan};
use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};
use postgres::Client;

const AT_MOST: Duration = Duration::from_secs(1);

/// Rows of table `t`.
const ROWS: i64 = 60_000;

/// Takes many seconds, nearly all of it in the scan.
const SLOW: &str = "SELECT count(*), sum(length(repeat(pad, 30000))) FROM t";

/// Works long after it has read everything.
const SORT: &str = "SELECT id FROM t ORDER BY (repeat('x', 2000) || id) COLLATE \"und-x-icu\"";

/// Sends one row after the other for many seconds.
const ROW_BY_ROW: &str = "FROM t WHERE length(repeat(pad, 30000)) > 0";

struct Scene {
    observers: Vec<Client>,
    cluster: Cluster,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::builder()
            .standbys(2)
            .autovacuum(false)
            .setting("jit", "off")
            .setting("parallel_replicas.connect_timeout", "20s")
            .setting("parallel_replicas.granule_blocks", "2")
            .start();
        cluster.register_replicas();
        cluster.psql(
            PRIMARY,
            &format!(
                "CREATE TABLE t AS SELECT i AS id, repeat('x', 100) AS pad
                     FROM generate_series(1, {ROWS}) i;
                 CREATE FUNCTION boom(int) RETURNS int LANGUAGE plpgsql PARALLEL RESTRICTED AS
                     $$BEGIN RAISE EXCEPTION 'above the node'; END$$;
                 CREATE EXTENSION pg_buffercache;
                 ANALYZE t"
            ),
        );
        cluster.wait_all_caught_up();
        let observers = cluster
            .standbys()
            .map(|node| cluster.connect(node))
            .collect();
        Self { observers, cluster }
    }

    /// A session whose queries are executed by replicas alone.
    fn session(&self) -> Client {
        let mut client = self.cluster.connect(PRIMARY);
        client
            .batch_execute(
                "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
                 SET parallel_replicas.replay_wait_timeout = '20s'; SET work_mem = '256MB';
                 SET client_connection_check_interval = '100ms'",
            )
            .unwrap();
        client
    }

    /// A session whose queries go to the replica of their tag as a whole.
    fn tagged_session(&self) -> Client {
        let mut client = self.session();
        client
            .batch_execute(
                "SET enable_parallel_replicas = 1; SET parallel_replicas.setup_cost = 1e9;
                 SET parallel_replicas.replica_tag = 'tag'",
            )
            .unwrap();
        client
    }

    /// Processes on the standbys that work, hold a snapshot, or a lock on the table.
    fn busy(&mut self) -> i64 {
        let query = "SELECT count(*)::text FROM pg_stat_activity a
             WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
               AND application_name LIKE 'parallel_replicas%'
               AND application_name <> 'parallel_replicas monitor'
               AND (state <> 'idle' OR backend_xmin IS NOT NULL
                    OR EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid))";
        let count = |client: &mut Client| -> i64 { text(client, query).parse().unwrap() };
        self.observers.iter_mut().map(count).sum()
    }

    /// Pages of the table that somebody on a standby has pinned.
    fn pinned(&mut self) -> i64 {
        let query = "SELECT count(*)::text FROM pg_buffercache
             WHERE relfilenode = pg_relation_filenode('t') AND pinning_backends > 0";
        let count = |client: &mut Client| -> i64 { text(client, query).parse().unwrap() };
        self.observers.iter_mut().map(count).sum()
    }

    #[track_caller]
    fn wait_busy(&mut self, processes: i64) {
        wait_until(SOON, "replicas work", || self.busy() >= processes);
    }

    /// Nothing works within the time allowed after `ended`.
    #[track_caller]
    fn assert_quiet(&mut self, what: &str, ended: Instant) {
        wait_until(SOON, &format!("replicas stop after {what}"), || {
            self.busy() == 0 && self.pinned() == 0
        });
        let took = ended.elapsed();
        assert!(took <= AT_MOST, "replicas stopped {took:?} after {what}");
    }
}

#[track_caller]
fn assert_usable(client: &mut Client) {
    assert_eq!(
        text(client, "SELECT count(*)::text FROM t"),
        ROWS.to_string()
    );
}

/// What others do to a query while it is executed.
#[test]
fn a_query_that_is_ended_from_outside_ends_on_replicas() {
    let mut scene = Scene::start();
    let mut primary = scene.cluster.connect(PRIMARY);
    for (query, tagged) in [(SLOW, false), (SORT, false), (SLOW, true), (SORT, true)] {
        for how in ["pg_cancel_backend", "pg_terminate_backend"] {
            let mut client = match tagged {
                true => scene.tagged_session(),
                false => scene.session(),
            };
            let explain = format!("EXPLAIN (COSTS OFF) {query}");
            let plan = format!("{:?}", client.simple_query(&explain).unwrap());
            assert_eq!(plan.contains("Whole Query: true"), tagged, "{plan}");
            let pid = text(&mut client, "SELECT pg_backend_pid()::text");
            let running = thread::spawn(move || (client.batch_execute(query), client));
            // A whole query has one process.
            scene.wait_busy(if tagged { 1 } else { 2 });
            let ended = Instant::now();
            text(&mut primary, &format!("SELECT {how}({pid})::text"));
            let (outcome, mut client) = running.join().unwrap();
            outcome.expect_err("it was ended");
            scene.assert_quiet(how, ended);
            if how == "pg_cancel_backend" {
                assert_usable(&mut client);
            }
        }
    }
    damage_check(&scene.cluster);
}

/// The client of a query goes away without a word.
#[test]
fn a_query_whose_client_is_gone_ends_on_replicas() {
    let mut scene = Scene::start();
    let primary = scene.cluster.port(PRIMARY).to_string();
    let mut psql = std::process::Command::new("psql")
        .args([
            "-X",
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-p",
            &primary,
            "-c",
        ])
        .arg(format!(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET client_connection_check_interval = '100ms'; {SLOW}"
        ))
        .spawn()
        .expect("psql can be started");
    scene.wait_busy(2);
    let ended = Instant::now();
    signal(psql.id() as i32, Signal::KILL);
    psql.wait().unwrap();
    scene.assert_quiet("its client's end", ended);
    damage_check(&scene.cluster);
}

/// What a query does to itself.
#[test]
fn a_query_that_needs_no_more_rows_ends_on_replicas() {
    let mut scene = Scene::start();
    let mut client = scene.session();
    for (what, script, succeeds) in [
        (
            "statement_timeout",
            format!("SET statement_timeout = '700ms'; {SLOW}"),
            false,
        ),
        ("LIMIT", format!("SELECT id {ROW_BY_ROW} LIMIT 1"), true),
        (
            "an error above the node",
            format!("SELECT boom(id) {ROW_BY_ROW}"),
            false,
        ),
        (
            "an error in a row",
            // In each granule, and this server reads, too: it meets one while replicas still work.
            format!("SET parallel_replicas_local_plan = on; SELECT 1 / (id % 50) {ROW_BY_ROW}"),
            false,
        ),
        (
            "the end of a subtransaction",
            format!(
                "DO $$BEGIN
                     BEGIN
                         EXECUTE 'SELECT boom(id) {ROW_BY_ROW}';
                     EXCEPTION WHEN raise_exception THEN
                         RAISE NOTICE 'it goes on';
                     END;
                 END$$"
            ),
            true,
        ),
    ] {
        let before = served(&mut scene);
        let outcome = client.batch_execute(&script);
        let ended = Instant::now();
        assert_eq!(outcome.is_ok(), succeeds, "{what}: {outcome:?}");
        scene.assert_quiet(what, ended);
        assert!(served(&mut scene) > before, "{what}: no replica was asked");
        client.batch_execute("SET statement_timeout = 0").unwrap();
        assert_usable(&mut client);
    }
    damage_check(&scene.cluster);
}

/// A client that takes rows by and by. Its query is executed without replicas, or by one as a whole,
/// which has done with it before the first row is passed on.
#[test]
fn nothing_waits_on_replicas_for_a_portal() {
    let mut scene = Scene::start();
    let mut client = scene.session();
    let query = "SELECT id FROM t WHERE length(repeat(pad, 300)) > 0";
    for (settings, on_replicas) in [
        ("SET enable_parallel_replicas = 1", false),
        (
            "SET enable_parallel_replicas = 1; SET parallel_replicas.setup_cost = 1e9;
             SET parallel_replicas.replica_tag = 'tag'",
            true,
        ),
    ] {
        client.batch_execute(settings).unwrap();
        let before = served(&mut scene);
        // An SQL cursor.
        client
            .batch_execute(&format!("BEGIN; DECLARE c CURSOR FOR {query}"))
            .unwrap();
        assert_eq!(client.query("FETCH 3 FROM c", &[]).unwrap().len(), 3);
        scene.assert_quiet("the first rows of a cursor", Instant::now());
        client.batch_execute("CLOSE c; COMMIT").unwrap();
        scene.assert_quiet("the end of a cursor", Instant::now());
        // A portal of the protocol.
        let mut transaction = client.transaction().unwrap();
        let portal = transaction.bind(query, &[]).unwrap();
        assert_eq!(transaction.query_portal(&portal, 3).unwrap().len(), 3);
        scene.assert_quiet("the first rows of a portal", Instant::now());
        drop(portal);
        transaction.rollback().unwrap();
        scene.assert_quiet("the end of a portal", Instant::now());
        assert_eq!(served(&mut scene) > before, on_replicas, "{settings}");
        assert_usable(&mut client);
    }
    damage_check(&scene.cluster);
}

/// Fragments that were begun on the standbys, whatever became of them.
fn served(scene: &mut Scene) -> i64 {
    let query = "SELECT sum(value)::text FROM parallel_replicas.events
                 WHERE event = 'ParallelReplicasQueryCount'";
    text(&mut scene.cluster.connect(PRIMARY), query)
        .parse()
        .unwrap()
}

/// The whole primary restarts.
#[test]
fn a_query_whose_server_crashes_ends_on_replicas() {
    let mut scene = Scene::start();
    let mut client = scene.session();
    let pid: i32 = text(&mut client, "SELECT pg_backend_pid()::text")
        .parse()
        .unwrap();
    let running = thread::spawn(move || client.batch_execute(SLOW));
    scene.wait_busy(2);
    let before = scene.cluster.times_ready(PRIMARY);
    let ended = Instant::now();
    signal(pid, Signal::KILL);
    running.join().unwrap().expect_err("it was killed");
    scene.assert_quiet("the crash", ended);
    scene.cluster.wait_ready_again(PRIMARY, before);
    assert_usable(&mut scene.session());
    damage_check(&scene.cluster);
}

/// The short form of `make soak`.
#[test]
fn sessions_do_not_grow() {
    let report = endurance::run(Plan {
        seed: 4,
        queries: 400,
        sessions: 10,
        growth: true,
    });
    assert_eq!(report.wrong, Vec::<String>::new(), "{report:#?}");
}
