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
