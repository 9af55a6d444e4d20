//! A fault in each state of the protocol, in both directions, at exactly one message: the answer is
//! right, the query has no error, and what was left half done on the replica ends at once.

use std::time::{Duration, Instant};

use parallel_replicas_tests::frame_proxy::{FrameProxy, Harm};
use parallel_replicas_tests::{Cluster, PRIMARY, Rows, SOON, damage_check, text, wait_until};
use postgres::Client;

use Harm::*;

/// Rows leave with each task.
const STREAMING: &str = "SELECT id, pad FROM t WHERE length(repeat(pad, 200)) > 0";
/// Rows leave at the end.
const PARTIAL: &str = "SELECT v, count(*), sum(length(repeat(pad, 200))) FROM t GROUP BY v";
const SORTED: &str = "SELECT id FROM t WHERE length(repeat(pad, 200)) > 0 ORDER BY pad, id";
/// Stops the replica.
const FEW: &str =
    "SELECT count(*) FROM (SELECT id FROM t WHERE length(repeat(pad, 200)) > 0 LIMIT 3000) s";

const ALL: &[Harm] = &[CutBefore, CutInside, Stall, HalfClose, Garble, Error];
const NOT_BY_THE_SERVER: &[Harm] = &[CutBefore, CutInside, Stall, HalfClose, Garble];
/// For queries whose states differ in what is held.
const SOME: &[Harm] = &[CutInside, Error];

/// A state of the protocol: which message, in which query, which harms.
type State = (&'static str, &'static str, &'static [Harm]);

/// Connecting, calling, greeting.
const BEGINNING: &[State] = &[
    (
        "StartupMessage",
        STREAMING,
        &[CutBefore, CutInside, Stall, HalfClose],
    ),
    ("Authentication", STREAMING, ALL),
    ("CALL", STREAMING, NOT_BY_THE_SERVER),
    ("CopyBothResponse", STREAMING, ALL),
    ("Hello", STREAMING, ALL),
    ("Begin", STREAMING, NOT_BY_THE_SERVER),
];

/// Waiting for replay; working: between tasks, in a task, between the last row and its end marker.
///
/// Not here, because they need two processes that wait for each other: Shrink and GaveBack (`tails`).
const MIDDLE: &[State] = &[
    ("Announcement", STREAMING, ALL),
    ("Request", STREAMING, ALL),
    ("Task", STREAMING, NOT_BY_THE_SERVER),
    ("Task", PARTIAL, SOME),
    ("Rows", STREAMING, ALL),
    ("Rows", SORTED, SOME),
    ("TaskDone", STREAMING, ALL),
    ("TaskDone", PARTIAL, SOME),
];

/// The last rows, stopping, ending.
const END: &[State] = &[
    ("Finish", STREAMING, NOT_BY_THE_SERVER),
    ("Rows", PARTIAL, SOME),
    ("Used", STREAMING, SOME),
    ("FragmentDone", STREAMING, ALL),
    ("FragmentDone", PARTIAL, SOME),
    ("FragmentDone", SORTED, SOME),
    ("Stop", FEW, NOT_BY_THE_SERVER),
    ("CopyDone of the coordinator", STREAMING, NOT_BY_THE_SERVER),
    ("CopyDone of the replica", STREAMING, ALL),
    ("CommandComplete", STREAMING, ALL),
    ("ReadyForQuery", STREAMING, ALL),
];

struct Scene {
    proxy: FrameProxy,
    observer: Client,
    cluster: Cluster,
}

fn scene() -> Scene {
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("jit", "off")
        // It would meet the harm instead of the link.
        .setting("parallel_replicas.monitor_interval", "0")
        .setting("parallel_replicas.granule_blocks", "16")
        .setting("parallel_replicas.links_per_replica", "1")
        .setting("parallel_replicas.connect_timeout", "1s")
        .setting("parallel_replicas.replay_wait_timeout", "1s")
        .setting("parallel_replicas.stall_timeout", "700ms")
        .start();
    cluster.psql(
        PRIMARY,
        "CREATE EXTENSION parallel_replicas;
         CREATE TABLE t AS SELECT i AS id, i % 10 AS v, repeat('x', 100) AS pad
             FROM generate_series(1, 10000) i;
         ANALYZE t",
    );
    let proxy = FrameProxy::start(cluster.port(1));
    cluster.register_replica("standby1", proxy.port());
    cluster.psql(
        PRIMARY,
        "ALTER SERVER standby1 OPTIONS (ADD sslmode 'disable', ADD gssencmode 'disable')",
    );
    cluster.wait_all_caught_up();
    Scene {
        proxy,
        observer: cluster.connect(1),
        cluster,
    }
}

/// A session whose queries are left to the replica as long as it is there.
fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
             SET client_min_messages = error; SET statement_timeout = '60s'",
        )
        .unwrap();
    client
}

#[test]
fn a_fault_at_the_beginning_costs_the_query_nothing_but_time() {
    harm_all(BEGINNING);
}

#[test]
fn a_fault_in_the_middle_costs_the_query_nothing_but_time() {
    harm_all(MIDDLE);
}

#[test]
fn a_fault_at_the_end_costs_the_query_nothing_but_time() {
    harm_all(END);
}

#[track_caller]
fn harm_all(states: &[State]) {
    let mut scene = scene();
    let mut alone = scene.cluster.connect(PRIMARY);
    alone
        .batch_execute("SET enable_parallel_replicas = off")
        .unwrap();
    for (message, query, harms) in states {
        let expected = Rows::fetch(&mut alone, query).unwrap();
        for harm in *harms {
            let what = format!("{harm:?} at {message}\n{query}");
            let before = scene.proxy.hits();
            // Of its own, so that it has not learned to leave the replica alone.
            let mut client = session(&scene.cluster);
            scene.proxy.arm(message, *harm);
            let started = Instant::now();
            let rows =
                Rows::fetch(&mut client, query).unwrap_or_else(|error| panic!("{what}\n{error:?}"));
            let took = started.elapsed();
            assert_eq!(expected.difference(&rows, false), None, "{what}");
            // The query need not have waited for a last message to arrive.
            wait_until(SOON, &format!("something is hit: {what}"), || {
                scene.proxy.hits() == before + 1
            });
            assert!(took < Duration::from_secs(10), "{took:?}: {what}");
            // The session goes on.
            let rows = Rows::fetch(&mut client, query)
                .unwrap_or_else(|error| panic!("after {what}\n{error:?}"));
            assert_eq!(expected.difference(&rows, false), None, "after {what}");
            drop(client);
            scene.proxy.reset();
            wait_until(SOON, &format!("nothing is left after {what}"), || {
                text(
                    &mut scene.observer,
                    "SELECT count(*)::text FROM pg_stat_activity
                         WHERE application_name LIKE 'parallel_replicas%'",
                ) == "0"
            });
        }
    }
    let log = scene.cluster.log(PRIMARY) + &scene.cluster.log(1);
    for sign in ["PANIC", "terminated by signal", " leak"] {
        assert!(!log.contains(sign), "{sign}");
    }
    damage_check(&scene.cluster);
}

/// A task never arrives, because a network has swallowed it. The process that waits for it goes on waking
/// up, and uses CPU time for that: here for logging its memory contexts. That is no work.
#[test]
fn a_process_that_only_wakes_up_does_not_pass_for_one_that_works() {
    let mut scene = scene();
    let mut alone = scene.cluster.connect(PRIMARY);
    let expected = Rows::fetch(&mut alone, STREAMING).unwrap();
    let mut client = session(&scene.cluster);
    scene.proxy.arm("Task", Stall);
    let started = Instant::now();
    let running = std::thread::spawn(move || Rows::fetch(&mut client, STREAMING));
    let mut woken = 0;
    wait_until(SOON, "the query goes on without the replica", || {
        let wake = "SELECT count(pg_log_backend_memory_contexts(pid))::text FROM pg_stat_activity
             WHERE query LIKE 'fragment of query %'";
        woken += text(&mut scene.observer, wake).parse::<u32>().unwrap();
        running.is_finished()
    });
    let rows = running.join().unwrap().expect("the query succeeds");
    assert_eq!(expected.difference(&rows, false), None);
    assert_eq!(scene.proxy.hits(), 1, "nothing was hit");
    assert!(woken > 10, "woken {woken} times");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    assert!(
        scene
            .cluster
            .log(PRIMARY)
            .contains("its process does not work"),
        "it was lost for another reason"
    );
    scene.proxy.reset();
    damage_check(&scene.cluster);
}

/// The answer about a silent process comes in two pieces: it is an answer nevertheless.
#[test]
fn an_answer_in_pieces_is_an_answer() {
    // The replica works on the inner side for a second or more before it joins the first row.
    const SILENT: &str = "SELECT count(*), sum(t.id) FROM t JOIN small ON t.v = small.v
         WHERE length(repeat(small.pad, 100000)) > 0";
    let scene = scene();
    scene.cluster.psql(
        PRIMARY,
        "CREATE TABLE small AS SELECT i % 10 AS v, repeat('x', 100) AS pad
             FROM generate_series(1, 60) i;
         ANALYZE small",
    );
    scene.cluster.wait_all_caught_up();
    let mut alone = scene.cluster.connect(PRIMARY);
    let expected = Rows::fetch(&mut alone, SILENT).unwrap();
    let mut client = session(&scene.cluster);
    scene.proxy.arm("CommandComplete of a question", Pause);
    let rows = Rows::fetch(&mut client, SILENT).expect("the query succeeds");
    assert_eq!(expected.difference(&rows, false), None);
    assert_eq!(scene.proxy.hits(), 1, "nobody was asked");
    assert_eq!(scene.cluster.event(PRIMARY, "LostCount"), 0);
    damage_check(&scene.cluster);
}
