//! A process on a replica that waits for its coordinator never holds up replay for longer than the
//! standby's own settings allow, and the snapshot that it uses is announced to the whole server.

use parallel_replicas_core::frame::{Begin, ToCoordinator, ToReplica};
use parallel_replicas_tests::rogue::{Outcome, Rogue, Said, authenticate};
use parallel_replicas_tests::scene::{ROWS, STANDBY, Scene};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};

/// What PostgreSQL calls a standby's query that had to give way to replay.
const CONFLICT: &str = "40001";

fn scene() -> Scene {
    Scene::on(Cluster::builder().setting("max_standby_streaming_delay", "100ms"))
}

/// The replica's process holds the snapshot and asks for its first task.
fn begun(scene: &mut Scene, begin: &Begin) -> Rogue {
    let mut rogue = scene.rogue();
    let hello = rogue.call().expect("the replica greets");
    let body = parallel_replicas_core::frame::encode_body(begin).unwrap();
    rogue.send(&ToReplica::Begin {
        mac: authenticate(&scene.secret, &hello.nonce, &body),
        body,
    });
    loop {
        match rogue.said() {
            Said::Frame(ToCoordinator::Request { .. }) => return rogue,
            Said::Frame(ToCoordinator::Announcement(_) | ToCoordinator::Progress) => {}
            other => panic!("a request was expected, this came: {other:?}"),
        }
    }
}

/// Removes rows that the recorded snapshot sees: replay of that conflicts with whoever holds it.
fn remove_rows(scene: &Scene) {
    scene.cluster.psql(PRIMARY, "DELETE FROM t WHERE id > 10");
    scene.cluster.psql(PRIMARY, "VACUUM t");
}

fn backend(scene: &mut Scene, rogue: &Rogue, column: &str) -> String {
    let query = format!(
        "SELECT coalesce((SELECT {column}::text FROM pg_stat_activity WHERE pid = {}), 'none')",
        rogue.pid
    );
    text(&mut scene.observer, &query)
}

#[test]
fn a_process_that_waits_for_a_task_gives_way_to_replay() {
    let mut scene = scene();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let mut rogue = begun(&mut scene, &begin);
    remove_rows(&scene);
    scene.cluster.wait_caught_up(STANDBY);
    match rogue.work(&[]) {
        Outcome::Error(error) => assert_eq!(error.sqlstate, CONFLICT, "{error:?}"),
        other => panic!("the process should have given way, this came: {other:?}"),
    }
    scene.nothing_left(&mut rogue);
    scene.end();
}

#[test]
fn a_process_whose_rows_nobody_takes_gives_way_to_replay() {
    let mut scene = scene();
    // Much more than the sockets between the two can hold.
    scene.cluster.psql(
        PRIMARY,
        "INSERT INTO t SELECT i, i, repeat('x', 1000) FROM generate_series(1, 100000) i",
    );
    scene.cluster.wait_caught_up(STANDBY);
    // Otherwise a task ends early, because its rows are large.
    let client = scene.recorder.client();
    client.batch_execute("SET work_mem = '1GB'").unwrap();
    let begin = scene.proven("SELECT id, name FROM t", ROWS + 100_000);
    let mut rogue = begun(&mut scene, &begin);
    rogue.send(&ToReplica::Task {
        scan: 0,
        id: 0,
        start_block: 0,
        blocks: 100_000,
        cached_blocks: 0,
    });
    wait_until(SOON, "the process cannot send on", || {
        backend(&mut scene, &rogue, "wait_event_type") == "Extension"
    });
    remove_rows(&scene);
    scene.cluster.wait_caught_up(STANDBY);
    match rogue.work(&[]) {
        Outcome::Error(error) => assert_eq!(error.sqlstate, CONFLICT, "{error:?}"),
        other => panic!("the process should have given way, this came: {other:?}"),
    }
    // It may have to end its session, because it cannot send the error either.
    scene.server_lives();
    scene.end();
}

#[test]
fn the_snapshot_in_use_is_announced() {
    let mut scene = scene();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let xmin = begin.snapshot.xmin.to_string();
    // Later transactions, so that an xmin of the replica's own would be another one.
    for _ in 0..3 {
        scene.cluster.psql(PRIMARY, "INSERT INTO other VALUES (2)");
    }
    scene.cluster.wait_caught_up(STANDBY);
    let mut rogue = begun(&mut scene, &begin);
    assert_eq!(backend(&mut scene, &rogue, "backend_xmin"), xmin);
    rogue.send(&ToReplica::Finish { scan: 0 });
    let outcome = rogue.work(&[]);
    assert!(
        matches!(outcome, Outcome::Done { rows: 0, .. }),
        "{outcome:?}"
    );
    scene.nothing_left(&mut rogue);
    scene.end();
}

/// A Gather would start processes that know nothing of the guards.
#[test]
fn a_fragment_with_parallel_workers_of_its_own_is_refused() {
    let mut scene = scene();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let mut changed = begin.clone();
    let plan = String::from_utf8(begin.plan.clone()).unwrap();
    changed.plan = under_gather(&plan).into_bytes();
    let mut rogue = scene.rogue();
    match rogue.attempt(&scene.secret, &changed) {
        Outcome::Refused(refusal) => {
            assert_eq!(refusal.reason, "plan");
            assert!(refusal.detail.contains("Gather"), "{refusal:?}");
        }
        other => panic!("a refusal was expected, this came: {other:?}"),
    }
    scene.nothing_left(&mut rogue);
    scene.end();
}

/// Puts a Gather node over the plan's top node, in PostgreSQL's text form of plans.
fn under_gather(plan: &str) -> String {
    let label = ":planTree {CUSTOMSCAN ";
    let start = plan.find(label).expect("the top node is ours") + ":planTree ".len();
    let mut depth = 0;
    let length = plan[start..]
        .char_indices()
        .find_map(|(place, letter)| {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (depth == 0).then_some(place + 1)
        })
        .expect("the node ends");
    let node = &plan[start..start + length];
    let common = &node["{CUSTOMSCAN ".len()..node.find(" :scanrelid").expect("a scan")];
    let gather = format!(
        "{{GATHER {} :num_workers 1 :rescan_param -1 :single_copy false :invisible false :initParam (b)}}",
        common.replacen(":lefttree <>", &format!(":lefttree {node}"), 1)
    );
    format!("{}{gather}{}", &plan[..start], &plan[start + length..])
}
