//! Replicas that fall silent: one that works is waited for, one that is frozen is not.
//!
//! Every query is forced to replicas and leaves all scanning to them.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{
    Cluster, Fault, PRIMARY, Proxy, Rows, SOON, damage_check, text, wait_until,
};
use postgres::{Client, Error};

/// Long equal beginnings make each comparison slow: the replicas sort for seconds after they have
/// read everything.
const SORT: &str = "SELECT id FROM t ORDER BY (repeat('x', 2000) || id) COLLATE \"und-x-icu\"";

/// The replicas work for seconds on the inner side before they join the first row.
const JOIN: &str = "SELECT count(*), sum(t.id) FROM t JOIN small ON t.v = small.v
     WHERE length(repeat(small.pad, 100000)) > 0";

/// Servers, replicas and tables.
fn scene(standbys: usize) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.granule_blocks", "8")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t(id int, v int, pad text);
         INSERT INTO t SELECT i, i % 100, repeat('x', 100) FROM generate_series(1, 60000) i;
         CREATE TABLE small AS SELECT v, repeat('x', 100) AS pad FROM generate_series(0, 99) v;
         ANALYZE t; ANALYZE small",
    );
    cluster.wait_all_caught_up();
    cluster
}

/// A session whose queries are executed by replicas alone.
fn forced(cluster: &Cluster, stall_timeout: &str) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(&format!(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.replay_wait_timeout = '20s'; SET work_mem = '256MB';
             SET statement_timeout = '100s'; SET parallel_replicas.stall_timeout = '{stall_timeout}'"
        ))
        .unwrap();
    client
}

struct Running {
    expected: Rows,
    query: JoinHandle<Result<Rows, Error>>,
}

impl Running {
    fn start(cluster: &Cluster, mut client: Client, query: &'static str) -> Self {
        let mut alone = cluster.connect(PRIMARY);
        Running {
            expected: Rows::fetch(&mut alone, query).unwrap(),
            query: thread::spawn(move || Rows::fetch(&mut client, query)),
        }
    }

    #[track_caller]
    fn assert_right(self, ordered: bool) {
        let rows = self.query.join().unwrap().expect("the query succeeds");
        assert_eq!(self.expected.difference(&rows, ordered), None);
    }
}

/// Waits until no task is asked for any more although the query runs.
#[track_caller]
fn wait_all_read(cluster: &Cluster, running: &Running) {
    let (mut last, mut looks) = (0, 0);
    wait_until(SOON, "all tasks are done", || {
        let now = cluster.event(PRIMARY, "HandleRequestMicroseconds");
        looks = if now == last && now > 0 { looks + 1 } else { 0 };
        last = now;
        looks >= 20 || running.query.is_finished()
    });
    assert!(!running.query.is_finished(), "the sort was over too soon");
}

#[test]
fn a_replica_that_freezes_after_its_last_task_costs_the_query_nothing_but_time() {
    let mut cluster = scene(2);
    let running = Running::start(&cluster, forced(&cluster, "2s"), SORT);
    cluster.serving(1);
    wait_all_read(&cluster, &running);
    cluster.sigstop(1);
    running.assert_right(true);
    cluster.sigcont(1);
    assert!(cluster.event(PRIMARY, "LostCount") > 0, "no link was lost");
    assert!(
        cluster.log(PRIMARY).contains("its server does not answer"),
        "it was lost for another reason"
    );
    damage_check(&cluster);
}

#[test]
fn a_process_that_freezes_after_its_last_task_costs_the_query_nothing_but_time() {
    let cluster = scene(1);
    let running = Running::start(&cluster, forced(&cluster, "2s"), SORT);
    let process = cluster.serving(1);
    wait_all_read(&cluster, &running);
    signal(process, Signal::STOP);
    running.assert_right(true);
    signal(process, Signal::CONT);
    assert_eq!(cluster.event(PRIMARY, "LostCount"), 1);
    assert!(
        cluster.log(PRIMARY).contains("its process does not work"),
        "it was lost for another reason"
    );
    damage_check(&cluster);
}

#[test]
fn a_process_that_freezes_before_its_first_row_costs_the_query_nothing_but_time() {
    let cluster = scene(1);
    let running = Running::start(&cluster, forced(&cluster, "2s"), JOIN);
    let process = cluster.serving(1);
    signal(process, Signal::STOP);
    running.assert_right(false);
    signal(process, Signal::CONT);
    assert_eq!(cluster.event(PRIMARY, "LostCount"), 1);
    damage_check(&cluster);
}

#[test]
fn a_replica_that_works_in_silence_is_waited_for() {
    for (query, ordered) in [(SORT, true), (JOIN, false)] {
        let cluster = scene(1);
        let running = Running::start(&cluster, forced(&cluster, "300ms"), query);
        cluster.serving(1);
        running.assert_right(ordered);
        assert_eq!(cluster.event(PRIMARY, "LostCount"), 0, "{query}");
        damage_check(&cluster);
    }
}

/// A process that cannot get its row out uses no CPU time, but bytes of it come.
#[test]
fn a_row_that_takes_longer_than_silence_is_tolerated_is_waited_for() {
    let cluster = scene(1);
    let proxy = Proxy::start(cluster.port(1));
    cluster.psql(
        PRIMARY,
        &format!(
            "SELECT parallel_replicas.add_replica('proxy', '127.0.0.1', {}, 'proxied')",
            proxy.port()
        ),
    );
    cluster.wait_all_caught_up();
    let mut client = forced(&cluster, "1s");
    client
        .batch_execute("SET cluster_for_parallel_replicas = 'proxied'")
        .unwrap();
    // Some 3 MB in a second, of 24 MB; what the kernel takes at once is less than half of that.
    proxy.set(Fault::Delay(Duration::from_millis(5)));
    let query = "SELECT repeat(md5(v::text), 750000) FROM t WHERE id = 7";
    let began = Instant::now();
    Running::start(&cluster, client, query).assert_right(false);
    assert!(
        began.elapsed() > Duration::from_secs(4),
        "the row was small"
    );
    assert!(
        proxy.to_client_bytes() > 20_000_000,
        "it came from elsewhere"
    );
    assert_eq!(cluster.event(PRIMARY, "LostCount"), 0);
}

/// The connection that asks is closed between two questions.
#[test]
fn a_probe_that_is_closed_while_idle_is_made_anew() {
    let cluster = scene(1);
    let running = Running::start(&cluster, forced(&cluster, "1s"), SORT);
    let mut observer = cluster.connect(1);
    wait_until(SOON, "an idle probe is closed", || {
        text(
            &mut observer,
            "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity
             WHERE query LIKE 'SELECT parallel_replicas.cpu_time(%' AND state = 'idle'",
        ) != "0"
    });
    assert!(!running.query.is_finished(), "the query was over too soon");
    running.assert_right(true);
    assert_eq!(cluster.event(PRIMARY, "LostCount"), 0);
    damage_check(&cluster);
}

/// There is no room for the connection that would ask.
#[test]
fn a_replica_without_room_for_a_probe_is_waited_for() {
    let cluster = scene(1);
    cluster.psql(
        PRIMARY,
        "CREATE ROLE l LOGIN; GRANT parallel_replicas_link TO l;
         ALTER USER MAPPING FOR postgres SERVER standby1
             OPTIONS (ADD user 'l', ADD password_required 'false')",
    );
    cluster.wait_all_caught_up();
    let running = Running::start(&cluster, forced(&cluster, "1s"), SORT);
    cluster.serving(1);
    cluster.psql(PRIMARY, "ALTER ROLE l CONNECTION LIMIT 0");
    running.assert_right(true);
    assert_eq!(cluster.event(PRIMARY, "LostCount"), 0);
    assert!(
        cluster.log(1).contains("too many connections for role"),
        "no probe was refused"
    );
    damage_check(&cluster);
}

/// Only one's own: others' processes are nobody's business.
#[test]
fn cpu_time_is_told_of_processes_of_the_same_role_only() {
    let cluster = Cluster::builder().standbys(0).start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE ROLE l LOGIN; GRANT parallel_replicas_link TO l; CREATE ROLE other LOGIN",
    );
    let mut first = cluster.connect_as(PRIMARY, "l");
    let mut second = cluster.connect_as(PRIMARY, "l");
    let mut superuser = cluster.connect(PRIMARY);
    let process = text(&mut first, "SELECT pg_backend_pid()::text");
    let own = format!("SELECT (parallel_replicas.cpu_time({process}) > 0)::text");
    assert_eq!(text(&mut second, &own), "true");
    let foreign = text(&mut superuser, "SELECT pg_backend_pid()::text");
    let none =
        |process: &str| format!("SELECT (parallel_replicas.cpu_time({process}) IS NULL)::text");
    assert_eq!(text(&mut second, &none(&foreign)), "true");
    assert_eq!(text(&mut second, &none("1")), "true");
    let denied = cluster.connect_as(PRIMARY, "other").query(&own, &[]);
    let denied = denied.expect_err("no member of the link role");
    assert_eq!(denied.code().map(|code| code.code()), Some("42501"));
}
