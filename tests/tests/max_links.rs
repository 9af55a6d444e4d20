//! No more links than `parallel_replicas.max_links` admits, nor than the session has descriptors for:
//! a query takes fewer rather than wait, and what ends in whatever way makes room again.

use std::thread::{self, JoinHandle};

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};
use postgres::{Client, SimpleQueryMessage};

const MOST: i64 = 3;
const ROWS: i64 = 60_000;
/// Takes seconds.
const SLOW: &str = "SELECT sum(length(repeat(pad, 3000)))::text FROM t";
/// Takes seconds, most of them after everything has been read.
const SORT: &str = "SELECT i FROM t ORDER BY (repeat('x', 1000) || i) COLLATE \"und-x-icu\"";

fn scene(settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.granule_blocks", "8")
        .settings(settings)
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, {ROWS}) i;
             ANALYZE t"
        ),
    );
    cluster.wait_all_caught_up();
    cluster
}

/// A session that uses replicas wherever possible, and says nothing where it cannot.
fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.links_per_replica = 4",
        )
        .unwrap();
    client
}

/// Backends of links on both standbys, and how many of them work.
fn links(cluster: &Cluster) -> (i64, i64) {
    let mut sum = (0, 0);
    for node in cluster.standbys() {
        let mut client = cluster.connect(node);
        let row = client
            .query_one(
                "SELECT count(*), count(*) FILTER (WHERE state = 'active') FROM pg_stat_activity
                 WHERE application_name LIKE 'parallel_replicas%'
                   AND application_name <> 'parallel_replicas monitor'
                   AND backend_type = 'client backend'",
                &[],
            )
            .unwrap();
        sum = (sum.0 + row.get::<_, i64>(0), sum.1 + row.get::<_, i64>(1));
    }
    sum
}

/// Connections that ask about a silent process.
fn probes(cluster: &Cluster) -> i64 {
    let count = |node| -> i64 {
        let query = "SELECT count(*)::text FROM pg_stat_activity
             WHERE query LIKE 'SELECT parallel_replicas.cpu_time(%'";
        text(&mut cluster.connect(node), query).parse().unwrap()
    };
    cluster.standbys().map(count).sum()
}

/// Process of a link that executes a fragment on this standby.
fn working(cluster: &Cluster, node: usize) -> i32 {
    let query = "SELECT min(pid)::text FROM pg_stat_activity
         WHERE query LIKE 'fragment of query %' AND state = 'active'";
    text(&mut cluster.connect(node), query).parse().unwrap()
}

fn pid(client: &mut Client) -> i32 {
    text(client, "SELECT pg_backend_pid()::text")
        .parse()
        .unwrap()
}

/// Executes [`SLOW`] until all links that are admitted work.
#[track_caller]
fn fill(
    cluster: &Cluster,
    mut client: Client,
) -> JoinHandle<(Client, Result<(), postgres::Error>)> {
    let running = thread::spawn(move || {
        let outcome = client.batch_execute(SLOW);
        (client, outcome)
    });
    wait_until(SOON, "all admitted links work", || {
        // One that was closed may not have gone there yet.
        let (_, working) = links(cluster);
        assert!(working <= MOST, "{working} links");
        assert!(!running.is_finished(), "{:?}", running.thread().id());
        working == MOST
    });
    running
}

fn explain(client: &mut Client, query: &str) -> String {
    let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {query}");
    let messages = client.simple_query(&explain).expect("the query succeeds");
    let lines = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn links_are_bounded_and_released_by_whatever_ends_a_query() {
    let cluster = scene(&[("parallel_replicas.max_links", &MOST.to_string())]);
    let mut other = session(&cluster);
    let mut observer = cluster.connect(PRIMARY);
    let query = "SELECT count(*)::text FROM t";

    // While one query has all of them, another does without.
    let running = fill(&cluster, session(&cluster));
    let plan = explain(&mut other, query);
    assert!(
        plan.contains("all 3 links that parallel_replicas.max_links admits are in use"),
        "{plan}"
    );
    assert_eq!(text(&mut other, query), ROWS.to_string());
    let (first, outcome) = running.join().unwrap();
    outcome.expect("the slow query succeeds");

    // Of those that are kept idle, some room is left for others.
    let plan = explain(&mut other, query);
    assert!(plan.contains("links=1"), "{plan}");
    drop(first);

    // A cancel, and the end of the session.
    for how in ["pg_cancel_backend", "pg_terminate_backend"] {
        let mut client = session(&cluster);
        let process = pid(&mut client);
        let running = fill(&cluster, client);
        text(&mut observer, &format!("SELECT {how}({process})::text"));
        let (client, outcome) = running.join().unwrap();
        outcome.expect_err("it was ended");
        drop(client);
        wait_until(SOON, "its links are gone", || links(&cluster).0 <= 1);
    }

    // A crash of the server.
    let mut client = session(&cluster);
    let process = pid(&mut client);
    let running = fill(&cluster, client);
    let before = cluster.times_ready(PRIMARY);
    signal(process, Signal::KILL);
    running.join().unwrap().1.expect_err("it was killed");
    cluster.wait_ready_again(PRIMARY, before);
    wait_until(SOON, "its links are gone", || links(&cluster).0 == 0);
    let (_, outcome) = fill(&cluster, session(&cluster)).join().unwrap();
    outcome.expect("the slow query succeeds");
    damage_check(&cluster);
}

/// A silent replica is asked over a connection of its own, which the cap does not count: with all
/// links in use, a process that works in silence is still told from one that is frozen.
#[test]
fn silent_replicas_are_asked_while_all_links_are_in_use() {
    let cluster = scene(&[
        ("parallel_replicas.max_links", &MOST.to_string()),
        ("parallel_replicas.stall_timeout", "1s"),
    ]);
    let lost = || cluster.event(PRIMARY, "LostCount");

    // All work in silence: they sort.
    let mut client = session(&cluster);
    let running = thread::spawn(move || {
        client.batch_execute("SET work_mem = '256MB'").unwrap();
        client.simple_query(SORT).map(|rows| (rows.len(), client))
    });
    let (mut most, mut asked) = (0, 0);
    wait_until(SOON * 2, "the sort ends", || {
        most = most.max(links(&cluster).0);
        asked = asked.max(probes(&cluster));
        running.is_finished()
    });
    let (rows, client) = running.join().unwrap().expect("the sort succeeds");
    assert!(rows as i64 >= ROWS, "{rows} rows");
    assert_eq!(lost(), 0, "a link was lost that worked");
    assert!(asked > 0, "nobody was asked");
    assert!(most <= 2 * MOST, "{most} connections");
    // None of the connections that asked is kept beside the links that count.
    wait_until(SOON, "what is not kept is closed", || {
        links(&cluster).0 <= MOST / 2
    });
    drop(client);

    // One is frozen. Nobody else gets a link meanwhile, nor does its query need one.
    let running = fill(&cluster, session(&cluster));
    let frozen = working(&cluster, 1);
    signal(frozen, Signal::STOP);
    let plan = explain(&mut session(&cluster), "SELECT count(*) FROM t");
    assert!(
        plan.contains("all 3 links that parallel_replicas.max_links admits are in use"),
        "{plan}"
    );
    let (client, outcome) = running.join().unwrap();
    outcome.expect("the query succeeds");
    signal(frozen, Signal::CONT);
    assert_eq!(lost(), 1);
    assert!(
        cluster.log(PRIMARY).contains("its process does not work"),
        "it was lost for another reason"
    );
    drop(client);
    wait_until(SOON, "all links are gone", || links(&cluster).0 == 0);

    // Its place was given back, and no other.
    let (_, outcome) = fill(&cluster, session(&cluster)).join().unwrap();
    outcome.expect("the slow query succeeds");
    damage_check(&cluster);
}

/// Every link takes a descriptor that PostgreSQL counts.
#[test]
fn a_session_without_descriptors_takes_fewer_links() {
    let cluster = scene(&[("max_files_per_process", "64")]);
    let mut client = session(&cluster);
    client
        .batch_execute("SET parallel_replicas.links_per_replica = 40")
        .unwrap();
    let query = "SELECT count(*)::text FROM t";
    let plan = explain(&mut client, query);
    assert!(plan.contains("could not establish connection"), "{plan}");
    for _ in 0..20 {
        assert_eq!(text(&mut client, query), ROWS.to_string());
    }
    damage_check(&cluster);
}
