//! A fault in each state of the protocol, in both directions, at exactly one message: the answer is
//! right, the query has no error, and what was left half done on the replica ends at once.

use std::time::{Duration, Instant};

use parallel_replicas_tests::frame_proxy::{FrameProxy, Harm};
use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{
    Cluster, PRIMARY, Rows, SOON, damage_check, text, wait_for, wait_until,
};
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

/// The only task takes two seconds or so, and one without a word is enough for a sign of life.
const LONG: &str = "SELECT v, count(*), sum(length(repeat(pad, 26000))) FROM wide GROUP BY v";

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
/// Shrink and GaveBack need two processes that wait for each other: `a_fault_while_work_is_taken_back_...`.
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

/// A replica that does not want to, and one that is heard of although it has nothing to say.
const REFUSED: &[State] = &[("Refused", STREAMING, ALL)];
const PROGRESS: &[State] = &[("Progress", LONG, ALL)];

/// Sizes of messages that no replica sends: over the limit of a rows frame, the largest, and a negative one.
const SIZES: &[Harm] = &[
    Claim((1 << 30) + 1024),
    Claim(i32::MAX as u32),
    Claim(u32::MAX),
];
const OVERSIZED: &[State] = &[
    ("Hello", STREAMING, SIZES),
    ("Rows", STREAMING, SIZES),
    ("Rows", PARTIAL, SIZES),
    ("TaskDone", STREAMING, SIZES),
    ("FragmentDone", STREAMING, SIZES),
];

/// Work is taken back from a replica.
const TAKEN_BACK: &[(&str, &[Harm])] = &[("Shrink", NOT_BY_THE_SERVER), ("GaveBack", ALL)];

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
         CREATE TABLE wide AS SELECT i AS id, i % 10 AS v, repeat('x', 1000) AS pad
             FROM generate_series(1, 100) i;
         ANALYZE t; ANALYZE wide",
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

#[test]
fn a_fault_at_a_refusal_costs_the_query_nothing_but_time() {
    let scene = scene();
    scene.cluster.configure(1, "zero_damaged_pages", "on");
    scene.cluster.reload(1);
    wait_until(SOON, "the replica refuses", || {
        text(&mut scene.cluster.connect(1), "SHOW zero_damaged_pages") == "on"
    });
    harm_all_in(scene, REFUSED);
}

#[test]
fn a_fault_at_a_sign_of_life_costs_the_query_nothing_but_time() {
    harm_all(PROGRESS);
}

#[test]
fn a_message_of_more_than_a_gigabyte_costs_the_query_nothing_but_its_replica() {
    let scene = harm_all(OVERSIZED);
    let harms: usize = OVERSIZED.iter().map(|(_, _, harms)| harms.len()).sum();
    let counts = ["UnavailableCount", "LostCount"].map(|name| scene.cluster.event(PRIMARY, name));
    assert_eq!(counts.iter().sum::<u64>(), harms as u64, "{counts:?}");
}

#[track_caller]
fn harm_all(states: &[State]) -> Scene {
    harm_all_in(scene(), states)
}

#[track_caller]
fn harm_all_in(mut scene: Scene, states: &[State]) -> Scene {
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
    scene
}

/// The process of one replica stands still in the middle of a task until the other has done all else, and
/// is then asked for what it has not begun.
#[test]
fn a_fault_while_work_is_taken_back_costs_the_query_nothing_but_time() {
    const LINKS: &str = "FROM pg_stat_activity WHERE application_name LIKE 'parallel_replicas%'";
    const ATTEMPTS: u32 = 10;
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.monitor_interval", "0")
        .setting("parallel_replicas.granule_blocks", "4")
        .setting("parallel_replicas.links_per_replica", "1")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        // Longer than the other replica works.
        .setting("parallel_replicas.stall_timeout", "15s")
        .start();
    cluster.psql(
        PRIMARY,
        "CREATE EXTENSION parallel_replicas;
         CREATE TABLE t AS SELECT i AS id, repeat('x', 100) AS pad FROM generate_series(1, 12000) i;
         ANALYZE t",
    );
    let proxy = FrameProxy::start(cluster.port(1));
    cluster.register_replica("standby1", proxy.port());
    cluster.register_replica("standby2", cluster.port(2));
    cluster.psql(
        PRIMARY,
        "ALTER SERVER standby1 OPTIONS (ADD sslmode 'disable', ADD gssencmode 'disable')",
    );
    cluster.wait_all_caught_up();
    let query = "SELECT id FROM t WHERE length(repeat(pad, 1000)) > 0";
    let expected = Rows::fetch(&mut cluster.connect(PRIMARY), query).unwrap();
    let mut observer = cluster.connect(1);
    for (message, harms) in TAKEN_BACK {
        for harm in *harms {
            let what = format!("{harm:?} at {message}");
            // A process that ends its task before it looks has nothing to give back.
            let harmed = (0..ATTEMPTS).any(|_| {
                let mut client = session(&cluster);
                // Its link stays for the next query.
                let process = wait_for(SOON, "the replica takes part", || {
                    Rows::fetch(&mut client, query).expect("the query succeeds");
                    let process = format!("SELECT coalesce(min(pid), 0)::text {LINKS}");
                    let process: i32 = text(&mut observer, &process).parse().unwrap();
                    (process != 0).then_some(process)
                });
                let before = proxy.hits();
                let hit = |times| {
                    wait_until(SOON, &format!("message {times} is there: {what}"), || {
                        proxy.hits() == before + times
                    });
                };
                proxy.arm("TaskDone", Pause);
                let running = std::thread::spawn(move || Rows::fetch(&mut client, query));
                hit(1);
                let asks = *message == "Shrink";
                proxy.arm("Shrink", if asks { *harm } else { Pause });
                signal(process, Signal::STOP);
                hit(2);
                if !asks {
                    proxy.arm(message, *harm);
                }
                signal(process, Signal::CONT);
                let rows = running
                    .join()
                    .unwrap()
                    .unwrap_or_else(|error| panic!("{what}\n{error:?}"));
                assert_eq!(expected.difference(&rows, false), None, "{what}");
                proxy.reset();
                wait_until(SOON, &format!("nothing is left after {what}"), || {
                    text(&mut observer, &format!("SELECT count(*)::text {LINKS}")) == "0"
                });
                asks || proxy.hits() == before + 3
            });
            assert!(harmed, "never was there {what}");
        }
    }
    damage_check(&cluster);
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
