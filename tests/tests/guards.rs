//! Every guard of a replica refuses what it is there for, with its reason, and leaves nothing
//! behind.
//!
//! The coordinator here is a rogue that knows the secret: it starts from a Begin that a real
//! coordinator sent and changes one thing. That the unchanged Begin is executed is tested first, so
//! that a refusal is due to the change. A wrong fragment that were executed could damage the
//! standby for good, so every test ends with the damage check.

use std::time::Duration;

use fastrand::Rng;
use parallel_replicas_core::frame::{
    self, Begin, ExecParameter, MAX_CONTROL_BYTES, ToCoordinator, ToReplica,
};
use parallel_replicas_tests::rogue::{Outcome, Rogue, Said, ServerError, authenticate};
use parallel_replicas_tests::scene::{LINK, ROWS, STANDBY, Scene};
use parallel_replicas_tests::{PRIMARY, SOON, text, wait_until};
use postgres::{Client, NoTls};

#[test]
fn a_snapshot_that_would_damage_the_standby_is_refused() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    scene.refused("snapshot", &begin, |begin| begin.snapshot.incomplete = true);
    scene.refused("snapshot", &begin, |begin| {
        begin.snapshot.own_xid_assigned = true
    });
    scene.refused("snapshot", &begin, |begin| begin.snapshot.xmin = 2);
    scene.refused("snapshot", &begin, |begin| {
        begin.snapshot.xmin = begin.snapshot.xmax + 1;
    });
    scene.refused("snapshot", &begin, |begin| {
        begin.snapshot.in_progress = vec![begin.snapshot.xmax];
    });
    scene.refused("snapshot", &begin, |begin| {
        begin.snapshot.xmin -= 2;
        let xmin = begin.snapshot.xmin;
        begin.snapshot.in_progress = vec![xmin + 1, xmin];
    });
    scene.refused("epoch", &begin, |begin| begin.snapshot.xmax_epoch += 1);

    // E4, E5: a transaction in progress that the snapshot does not list, as if it had ended.
    let mut writer = scene.cluster.connect(PRIMARY);
    writer
        .batch_execute("BEGIN; INSERT INTO t VALUES (-1, 0, 'in progress')")
        .unwrap();
    scene.cluster.psql(PRIMARY, "INSERT INTO other VALUES (2)");
    let begin = scene.proven("SELECT id FROM t", ROWS);
    assert_eq!(begin.snapshot.in_progress.len(), 1, "{:?}", begin.snapshot);
    scene.refused("snapshot", &begin, |begin| {
        begin.snapshot.in_progress.clear()
    });
    scene.refused("snapshot", &begin, |begin| {
        begin.snapshot.in_progress.clear();
        begin.snapshot.xmin = begin.snapshot.xmax;
    });
    writer.batch_execute("COMMIT").unwrap();
    scene.end();
}

#[test]
fn a_replica_that_has_not_replayed_so_far_refuses() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    scene.refused("replay", &begin, |begin| {
        begin.lsn += 1 << 30;
        begin.replay_wait_ms = 50;
    });
    // E3: the rows are on their way. A replica that executed this would hide them for good.
    scene.cluster.pause_replay(STANDBY);
    let mut primary = scene.cluster.connect(PRIMARY);
    primary
        .batch_execute("INSERT INTO t SELECT i, 0, 'late' FROM generate_series(1, 1000) i")
        .unwrap();
    let late = text(
        &mut primary,
        "SELECT (pg_current_wal_insert_lsn() - '0/0')::text",
    );
    let late: u64 = late.parse().unwrap();
    scene.refused("replay", &begin, |begin| {
        begin.snapshot.xmax += 10;
        begin.lsn = late;
        begin.replay_wait_ms = 50;
    });
    // While it waits it holds no snapshot, and ends with its client.
    let mut rogue = scene.rogue();
    let hello = rogue.call().unwrap();
    let waiting = Begin {
        lsn: late,
        replay_wait_ms: 600_000,
        ..begin.clone()
    };
    let body = frame::encode_body(&waiting).unwrap();
    let mac = authenticate(&scene.secret, &hello.nonce, &body);
    rogue.send(&ToReplica::Begin { mac, body });
    let state = format!(
        "SELECT coalesce((SELECT format('%s %s', wait_event, coalesce(backend_xmin::text, 'none'))
             FROM pg_stat_activity WHERE pid = {}), 'gone')",
        rogue.pid
    );
    let observer = &mut scene.observer;
    wait_until(SOON, "the replica waits without a snapshot", || {
        text(observer, &state) == "Extension none"
    });
    drop(rogue);
    wait_until(
        SOON,
        "the replica has noticed that its client is gone",
        || text(observer, &state) == "gone",
    );
    scene.cluster.resume_replay(STANDBY);
    scene.end();
}

#[test]
fn another_history_is_refused() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    scene.refused("timeline", &begin, |begin| begin.timeline += 1);
    let mut rogue = Rogue::connect(scene.cluster.port(PRIMARY), "postgres", LINK);
    let outcome = rogue.attempt(&scene.secret, &begin);
    assert_eq!(outcome.reason(), "not_standby", "{outcome:?}");
    assert_eq!(rogue.execute("SELECT 1"), Ok(()));
    scene.end();
}

#[test]
fn only_who_knows_the_secret_is_heard() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let body = frame::encode_body(&begin).unwrap();
    let secret = scene.secret.clone();
    let before = scene.refusals();

    let mut rogue = scene.rogue();
    let outcome = rogue.attempt_with(&body, |_| [7; 32]);
    assert_eq!(outcome.reason(), "authentication");
    scene.nothing_left(&mut rogue);

    let wrong = vec![0; secret.len()];
    let outcome = rogue.attempt(&wrong, &begin);
    assert_eq!(outcome.reason(), "authentication");

    // What a real coordinator sent in its own session is of no use in another one.
    let recorded = scene.recorder.record("SELECT id FROM t");
    let outcome = rogue.attempt_with(&recorded.body, |_| recorded.mac);
    assert_eq!(outcome.reason(), "authentication");
    scene.nothing_left(&mut rogue);

    // One byte of the plan was changed on the way.
    let at = body
        .windows(4)
        .position(|window| window == b"PLAN")
        .expect("the plan is text");
    let mut tampered = body.clone();
    tampered[at] ^= 1;
    let outcome = rogue.attempt_with(&tampered, |nonce| authenticate(&secret, nonce, &body));
    assert_eq!(outcome.reason(), "authentication");
    scene.nothing_left(&mut rogue);

    // Each was logged, and once.
    assert_eq!(scene.refusals(), before + 4);

    // Who may not call the procedure does not get as far as that.
    let mut stranger = Rogue::connect(scene.cluster.port(STANDBY), "stranger", LINK);
    match stranger.call() {
        Err(Outcome::Error(error)) => assert_eq!(error.sqlstate, "42501", "{error:?}"),
        other => panic!("permission denied was expected, this came: {other:?}"),
    }
    scene.nothing_left(&mut stranger);

    scene.cluster.psql(
        PRIMARY,
        "CREATE TABLE kept AS SELECT secret FROM parallel_replicas.secret;
         DELETE FROM parallel_replicas.secret",
    );
    scene.cluster.wait_caught_up(STANDBY);
    let outcome = rogue.attempt(&secret, &begin);
    assert_eq!(outcome.reason(), "not_installed");
    scene.nothing_left(&mut rogue);
    scene.cluster.psql(
        PRIMARY,
        "INSERT INTO parallel_replicas.secret(secret) SELECT secret FROM kept; DROP TABLE kept",
    );
    scene.end();
}

/// The role of links, which is no superuser and gives a password: that alone is no more of a proof.
#[test]
fn only_who_knows_the_secret_is_heard_as_the_role_of_links() {
    const PASSWORD: &str = "Plugh_xyzzy_24";
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let body = frame::encode_body(&begin).unwrap();
    let secret = scene.secret.clone();
    scene.cluster.psql(
        PRIMARY,
        &format!("CREATE ROLE l LOGIN PASSWORD '{PASSWORD}' IN ROLE parallel_replicas_link"),
    );
    scene.cluster.wait_caught_up(STANDBY);
    let access = scene.cluster.data_dir(STANDBY).join("pg_hba.conf");
    let old = std::fs::read_to_string(&access).unwrap();
    let new = format!("host all l 127.0.0.1/32 scram-sha-256\n{old}");
    std::fs::write(&access, new).unwrap();
    scene.cluster.reload(STANDBY);
    let without_password = scene.cluster.config(STANDBY).user("l").clone();
    wait_until(SOON, "the password is asked for", || {
        without_password.connect(NoTls).is_err()
    });

    let port = scene.cluster.port(STANDBY);
    let mut rogue = Rogue::connect_with_password(port, "l", PASSWORD, LINK);
    let before = scene.refusals();
    let outcome = rogue.attempt_with(&body, |_| [7; 32]);
    assert_eq!(outcome.reason(), "authentication");
    scene.nothing_left(&mut rogue);
    let wrong = vec![0; secret.len()];
    let outcome = rogue.attempt(&wrong, &begin);
    assert_eq!(outcome.reason(), "authentication");
    scene.nothing_left(&mut rogue);
    let recorded = scene.recorder.record("SELECT id FROM t");
    let outcome = rogue.attempt_with(&recorded.body, |_| recorded.mac);
    assert_eq!(outcome.reason(), "authentication");
    scene.nothing_left(&mut rogue);
    assert_eq!(scene.refusals(), before + 3);
    // Nor may it read what the proof is made of.
    let error = rogue
        .execute("SELECT secret FROM parallel_replicas.secret")
        .expect_err("the secret is not for it");
    assert_eq!(error.sqlstate, "42501", "{error:?}");

    // With the secret it is heard.
    match rogue.attempt(&secret, &begin) {
        Outcome::Done { rows, .. } => assert_eq!(rows, ROWS),
        other => panic!("it knows the secret, this came: {other:?}"),
    }
    scene.nothing_left(&mut rogue);
    scene.end();
}

#[test]
fn a_plan_outside_the_allow_list_is_refused() {
    let mut scene = Scene::start();
    let plain = scene.proven("SELECT id FROM t", ROWS);
    let filtered = scene.proven("SELECT id FROM t WHERE abs(v) >= 0", ROWS);
    let both = scene.proven("SELECT id FROM t UNION ALL SELECT id FROM other", ROWS);
    let mut oid = |name: &str| {
        let query = format!("SELECT '{name}(bigint)'::regprocedure::oid::text");
        text(&mut scene.observer, &query)
    };
    let (abs, own_abs) = (oid("abs"), oid("own_abs"));

    // A leading scan that is not split would give each row once per participant.
    scene.refused("plan", &plain, |begin| {
        edit(begin, granule_scan_to_seq_scan)
    });
    // abs(bigint) becomes random(), pg_sleep() and a user's function.
    for function in ["1598", "2626", own_abs.as_str()] {
        scene.refused("plan", &filtered, |begin| {
            edit(begin, |plan| {
                replace(
                    plan,
                    &format!(":funcid {abs} "),
                    &format!(":funcid {function} "),
                )
            });
        });
    }
    scene.refused("plan", &plain, |begin| {
        edit(begin, |plan| {
            replace(plan, ":commandType 1 ", ":commandType 3 ")
        });
    });
    // Partitions are chosen by the coordinator, not by what a plan says of them.
    scene.refused("plan", &both, |begin| {
        edit(begin, |plan| {
            let chosen =
                ":part_prune_info {PARTITIONPRUNEINFO :prune_infos <> :other_subplans (b 0 1)}";
            replace(plan, ":part_prune_info <>", chosen)
        });
    });
    scene.refused("plan", &plain, |begin| begin.relations.clear());
    // Text that is no plan may end in an error of the parser, but in no more than that.
    // (A truncated one is not tried: PostgreSQL's reader trusts its text, which is why the text is
    // authenticated.)
    for text in ["", "(1 2 3)", "{NONSENSE :a 1}", "\0"] {
        let mut rogue = scene.rogue();
        let changed = Begin {
            plan: text.as_bytes().to_vec(),
            ..plain.clone()
        };
        let outcome = rogue.attempt(&scene.secret, &changed);
        assert!(
            matches!(&outcome, Outcome::Refused(refusal) if refusal.reason == "plan")
                || matches!(&outcome, Outcome::Error(error) if error.severity == "ERROR"),
            "{text:?}: {outcome:?}"
        );
        scene.nothing_left(&mut rogue);
    }
    scene.end();
}

/// A whole query may have more in it, but not more than is known; its subqueries' plans count, too.
#[test]
fn a_whole_query_outside_the_allow_list_is_refused() {
    let mut scene = Scene::start();
    scene
        .recorder
        .client()
        .batch_execute(
            "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'tag';
             SET parallel_replicas.setup_cost = 1e9",
        )
        .unwrap();
    let whole = scene.record(
        "SELECT id, (SELECT max(abs(other.id::bigint)) FROM other WHERE other.id >= t.v) FROM t LIMIT 3",
    );
    assert!(whole.whole);
    let outcome = scene.rogue().attempt(&scene.secret, &whole);
    assert!(
        matches!(outcome, Outcome::Done { rows: 3, .. }),
        "{outcome:?}"
    );
    let mut oid = |name: &str| {
        let query = format!("SELECT '{name}(bigint)'::regprocedure::oid::text");
        text(&mut scene.observer, &query)
    };
    let (abs, own_abs) = (oid("abs"), oid("own_abs"));
    // In a subquery, abs(bigint) becomes random(), pg_sleep() and a user's function.
    for function in ["1598", "2626", own_abs.as_str()] {
        scene.refused("plan", &whole, |begin| {
            edit(begin, |plan| {
                replace(
                    plan,
                    &format!(":funcid {abs} "),
                    &format!(":funcid {function} "),
                )
            });
        });
    }
    // As a share of a divided one, it would give its rows once per participant.
    scene.refused("plan", &whole, |begin| begin.whole = false);
    for (from, to) in [
        (":commandType 1 ", ":commandType 3 "),
        (":rowMarks <>", ":rowMarks (i 1)"),
        (":extParam (b)", ":extParam (b 0)"),
    ] {
        scene.refused("plan", &whole, |begin| {
            edit(begin, |plan| replace(plan, from, to));
        });
    }
    // A relation that only a subquery reads has to be listed, and to be the same.
    let other = text(&mut scene.observer, "SELECT 'other'::regclass::oid::text");
    let other: u32 = other.parse().unwrap();
    scene.refused("plan", &whole, |begin| {
        begin
            .relations
            .retain(|relation| relation.identity.oid != other);
    });
    scene.refused("relation", &whole, |begin| {
        for relation in &mut begin.relations {
            let identity = &mut relation.identity;
            identity.relfilenode += u32::from(identity.oid == other);
        }
    });
    scene.refused("snapshot", &whole, |begin| begin.snapshot.incomplete = true);
    // And no task is asked for: a divided query is not taken for a whole one.
    scene
        .recorder
        .client()
        .batch_execute("SET enable_parallel_replicas = 2; RESET parallel_replicas.replica_tag")
        .unwrap();
    let divided = scene.record("SELECT id FROM t");
    assert!(!divided.whole);
    scene.refused("plan", &divided, |begin| begin.whole = true);
    scene.end();
}

#[test]
fn an_unknown_parameter_is_refused_and_the_executor_is_ended() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    scene.refused("plan", &begin, |begin| {
        begin.exec_parameters = vec![ExecParameter {
            id: 99,
            datum: vec![0; 16],
        }];
    });
    scene.end();
}

#[test]
fn a_relation_that_is_not_the_same_is_refused() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.relfilenode += 1
    });
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.tablespace += 1
    });
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.attributes += 1
    });
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.persistence = b'u'
    });
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.relkind = b'm'
    });
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.access_method += 1
    });
    scene.refused("relation", &begin, |begin| {
        begin.relations[0].identity.oid = 4_000_000_000
    });
    scene.refused("truncated_file", &begin, |begin| {
        begin.relations[0].filled_blocks += 1
    });
    // So is one that is read beside the table that is split, for which it takes several processes.
    let more = "SET parallel_replicas.links_per_replica = 2";
    scene.recorder.client().batch_execute(more).unwrap();
    let join = scene.proven("SELECT count(*) FROM t JOIN other ON other.id = t.v", 1);
    assert_eq!(join.relations.len(), 2);
    for place in 0..2 {
        scene.refused("relation", &join, |begin| {
            begin.relations[place].identity.relfilenode += 1
        });
    }
    // It was rewritten meanwhile, in truth.
    scene.cluster.psql(PRIMARY, "TRUNCATE t");
    scene.cluster.wait_caught_up(STANDBY);
    let mut rogue = scene.rogue();
    let outcome = rogue.attempt(&scene.secret, &begin);
    assert_eq!(outcome.reason(), "relation");
    scene.nothing_left(&mut rogue);
    scene.end();
}

#[test]
fn other_libraries_are_refused() {
    let mut scene = Scene::start();
    let sorted = scene.proven(
        "SELECT name FROM t ORDER BY name COLLATE \"und-x-icu\"",
        ROWS,
    );
    assert!(!sorted.collations.is_empty(), "the query has no collation");
    scene.refused("collation", &sorted, |begin| {
        let collation = begin.collations.last_mut().unwrap();
        collation.version.push_str(".1");
    });
    scene.refused("plan", &sorted, |begin| begin.collations.clear());

    let dated = scene.proven(
        "SELECT id FROM t WHERE to_timestamp(id)::date > '1960-01-01'",
        ROWS,
    );
    assert!(
        dated.time_zone_fingerprint.is_some(),
        "no time zone is used"
    );
    scene.refused("time_zone", &dated, |begin| {
        begin.time_zone_fingerprint = begin.time_zone_fingerprint.map(|print| print ^ 1);
    });
    scene.end();
}

#[test]
fn settings_that_hide_corruption_are_refused() {
    const HIDING: [&str; 3] = [
        "zero_damaged_pages",
        "ignore_checksum_failure",
        "ignore_system_indexes",
    ];
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    for name in HIDING {
        let options = format!("{LINK} -c {name}=on");
        let mut rogue = Rogue::connect(scene.cluster.port(STANDBY), "postgres", &options);
        let outcome = rogue.attempt(&scene.secret, &begin);
        assert_eq!(outcome.reason(), "dangerous_setting", "{name}");
        scene.nothing_left(&mut rogue);
    }
    scene.end();
}

#[test]
fn settings_that_hide_corruption_cannot_be_shipped() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    for name in ["zero_damaged_pages", "ignore_checksum_failure"] {
        let mut rogue = scene.rogue();
        let mut changed = begin.clone();
        changed
            .settings
            .push((String::from(name), String::from("on")));
        let outcome = rogue.attempt(&scene.secret, &changed);
        assert!(
            matches!(outcome, Outcome::Refused(_) | Outcome::Error(_)),
            "{name} was taken over from the coordinator: {outcome:?}"
        );
        scene.nothing_left(&mut rogue);
    }
    scene.end();
}

#[test]
fn the_shipped_users_rights_count() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let stranger = text(&mut scene.observer, "SELECT 'stranger'::regrole::oid::text");
    for user in [stranger.parse().unwrap(), 4_000_000_000] {
        let mut rogue = scene.rogue();
        let changed = Begin {
            user,
            ..begin.clone()
        };
        match rogue.attempt(&scene.secret, &changed) {
            Outcome::Error(error) => assert_eq!(error.sqlstate, "42501", "{error:?}"),
            other => panic!("permission denied was expected, this came: {other:?}"),
        }
        scene.nothing_left(&mut rogue);
    }
    scene.end();
}

#[test]
fn a_session_that_could_hold_a_snapshot_is_refused() {
    let mut scene = Scene::start();
    let mut rogue = scene.rogue();
    for begin in ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"] {
        rogue.execute(begin).unwrap();
        assert_eq!(sqlstate(rogue.call()), "25000", "{begin}");
        rogue.execute("ROLLBACK").unwrap();
        scene.nothing_left(&mut rogue);
    }
    assert_eq!(sqlstate(call_in_function(&mut rogue)), "25000");
    scene.nothing_left(&mut rogue);
    let mut repeatable = Rogue::connect(
        scene.cluster.port(STANDBY),
        "postgres",
        "-c default_transaction_isolation=repeatable\\ read",
    );
    assert_eq!(sqlstate(repeatable.call()), "25000");
    scene.nothing_left(&mut repeatable);
    scene.end();
}

fn sqlstate<T: std::fmt::Debug>(called: Result<T, Outcome>) -> String {
    match called {
        Err(Outcome::Error(error)) => error.sqlstate,
        other => panic!("an error was expected, this came: {other:?}"),
    }
}

/// CALL inside a DO block inside a transaction block: atomic too.
fn call_in_function(rogue: &mut Rogue) -> Result<(), Outcome> {
    rogue
        .execute("BEGIN; DO $$ BEGIN CALL parallel_replicas.serve(''); END $$; COMMIT")
        .map_err(Outcome::Error)
        .inspect_err(|_| {
            let _ = rogue.execute("ROLLBACK");
        })
}

/// Gives tasks (first block, number of blocks) and compares the number of rows that come.
#[track_caller]
fn check_tasks(scene: &mut Scene, begin: &Begin, tasks: &[(u32, u32)], rows: u64) {
    let body = frame::encode_body(begin).unwrap();
    let mut rogue = scene.rogue();
    let hello = rogue.call().unwrap();
    let mac = authenticate(&scene.secret, &hello.nonce, &body);
    rogue.send(&ToReplica::Begin { mac, body });
    match rogue.work(tasks) {
        Outcome::Done { rows: sent, .. } => assert_eq!(sent, rows, "{tasks:?}"),
        other => panic!("{tasks:?} came to {other:?}"),
    }
    scene.nothing_left(&mut rogue);
}

fn blocks_of_t(scene: &mut Scene) -> u32 {
    let query = "SELECT (pg_relation_size('t') / 8192)::text";
    text(&mut scene.observer, query).parse().unwrap()
}

#[test]
fn tasks_outside_the_table_give_no_row_twice() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let blocks = blocks_of_t(&mut scene);
    // A heap scan that is told to go past the end of its file goes on at the beginning.
    for (tasks, rows) in [
        (&[(0, blocks + 1)][..], ROWS),
        (&[(0, blocks * 3)], ROWS),
        (&[(blocks, 1)], 0),
        (&[(blocks + 7, 1000)], 0),
        (&[(u32::MAX, 1), (0, blocks), (blocks + 7, 9)], ROWS),
        (&[(0, 0)], 0),
        (&[(0, 1), (1, blocks - 1)], ROWS),
    ] {
        check_tasks(&mut scene, &begin, tasks, rows);
    }
    scene.end();
}

#[test]
fn a_task_past_the_last_block_number_does_not_go_on_at_the_first() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let blocks = blocks_of_t(&mut scene);
    check_tasks(&mut scene, &begin, &[(u32::MAX - 1, blocks + 1)], 0);
    scene.end();
}

#[test]
fn garbage_ends_the_exchange_and_nothing_else() {
    let mut scene = Scene::start();
    let begin = scene.proven("SELECT id FROM t", ROWS);
    let body = frame::encode_body(&begin).unwrap();
    let mut rng = Rng::with_seed(8);
    let mut rogue = scene.rogue();
    for round in 0..300 {
        rogue.call().unwrap();
        let mut noise: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
        if round % 2 == 0 {
            // With a right header, so that the decoder has to look at the rest.
            noise.splice(0..0, [frame::CONTROL_TAG, 0, 0, 0, 0, 0, 0, 0, rng.u8(..5)]);
        }
        rogue.put(b'd', &noise);
        assert!(ends_in_order(&mut rogue), "{noise:?}");
    }
    scene.nothing_left(&mut rogue);

    // Noise after a proven Begin: authenticated bytes are decoded, so every prefix and many
    // changes of a real one are tried.
    for round in 0..300 {
        let hello = rogue.call().unwrap();
        let mut noise = body.clone();
        if round % 3 == 0 {
            noise.truncate(rng.usize(..noise.len()));
        } else {
            // Not the plan, whose text is PostgreSQL's to read and trusted by its authentication.
            let end = body.windows(12).position(|w| w == b"{PLANNEDSTMT").unwrap();
            let at = rng.usize(..end);
            noise[at] ^= 1 << rng.u8(..8);
        }
        let mac = authenticate(&scene.secret, &hello.nonce, &noise);
        rogue.send(&ToReplica::Begin { mac, body: noise });
        // Some changes are harmless; whatever happens, the session goes on or ends alone.
        if matches!(rogue.work(&[(0, 1)]), Outcome::Closed) {
            rogue = scene.rogue();
        }
    }
    scene.nothing_left(&mut rogue);

    // Frames out of turn, and a second Begin, while the fragment is executed.
    for frame in [
        ToReplica::Task {
            scan: 9,
            id: 0,
            start_block: 0,
            blocks: 1,
            cached_blocks: 0,
        },
        ToReplica::Finish { scan: 9 },
        ToReplica::Begin {
            mac: [0; 32],
            body: Vec::new(),
        },
    ] {
        let hello = rogue.call().unwrap();
        let mac = authenticate(&scene.secret, &hello.nonce, &body);
        rogue.send(&ToReplica::Begin {
            mac,
            body: body.clone(),
        });
        loop {
            match rogue.said() {
                Said::Frame(ToCoordinator::Request { .. }) => break,
                Said::Frame(_) => {}
                other => panic!("a request was expected, this came: {other:?}"),
            }
        }
        rogue.send(&frame);
        match rogue.work(&[]) {
            Outcome::Error(error) => assert_eq!(error.sqlstate, "08P01", "{frame:?}"),
            other => panic!("{frame:?} came to {other:?}"),
        }
        scene.nothing_left(&mut rogue);
    }
    scene.end();
}

/// Reads to the end of the exchange: an error or a refusal, and the session is ready again.
fn ends_in_order(rogue: &mut Rogue) -> bool {
    loop {
        match rogue.said() {
            Said::Frame(ToCoordinator::Refused(_)) => rogue.put(b'c', &[]),
            Said::Error(ServerError { severity, .. }) => {
                return severity == "ERROR" && rogue.until_ready();
            }
            Said::Ready => return true,
            Said::Closed => return false,
            _ => {}
        }
    }
}

#[test]
fn a_message_of_impossible_length_ends_its_own_session_only() {
    let mut scene = Scene::start();
    let impossible = [
        MAX_CONTROL_BYTES as u32 + 5,
        i32::MAX as u32,
        u32::MAX,
        0,
        3,
    ];
    for length in impossible {
        let mut rogue = scene.rogue();
        rogue.call().unwrap();
        rogue.raw(b"d");
        rogue.raw(&length.to_be_bytes());
        rogue.raw(&[0; 64]);
        assert!(
            !rogue.until_ready(),
            "a session went on after length {length}"
        );
        gone(&mut scene.observer, rogue.pid);
        scene.server_lives();
    }
    let log = scene.cluster.log(STANDBY);
    let logged = log.matches("invalid message length").count();
    assert_eq!(logged, impossible.len(), "each is logged once");
    // Half a message, and then silence: the session waits, alone, and goes with its client.
    let mut rogue = scene.rogue();
    rogue.call().unwrap();
    rogue.raw(&[b'd', 0, 0, 1, 0, 1, 2, 3]);
    let pid = rogue.pid;
    drop(rogue);
    gone(&mut scene.observer, pid);
    scene.server_lives();
    // The other kinds of messages.
    for kind in [b'Q', b'X', b'P', b'S', 0, 255] {
        let mut rogue = scene.rogue();
        rogue.call().unwrap();
        rogue.put(kind, b"SELECT 1\0");
        if ends_in_order(&mut rogue) {
            scene.nothing_left(&mut rogue);
        } else {
            gone(&mut scene.observer, rogue.pid);
        }
        scene.server_lives();
    }
    scene.end();
}

#[track_caller]
fn gone(observer: &mut Client, pid: i32) {
    let query = format!("SELECT count(*)::text FROM pg_stat_activity WHERE pid = {pid}");
    wait_until(Duration::from_secs(10), "the session has ended", || {
        text(observer, &query) == "0"
    });
}

fn edit(begin: &mut Begin, change: impl FnOnce(&str) -> String) {
    let plan = std::str::from_utf8(&begin.plan).expect("a plan is text");
    begin.plan = change(plan).into_bytes();
}

#[track_caller]
fn replace(plan: &str, from: &str, to: &str) -> String {
    assert!(plan.contains(from), "the plan has no {from}: {plan}");
    plan.replace(from, to)
}

/// In `nodeToString`'s text a SeqScan is what a CustomScan is before its own fields.
fn granule_scan_to_seq_scan(plan: &str) -> String {
    let plan = replace(plan, "{CUSTOMSCAN ", "{SEQSCAN ");
    let (head, rest) = plan.split_once(" :flags ").expect("a CustomScan has flags");
    let (_, tail) = rest.split_once(" :methods ").expect("and methods");
    let (_, tail) = tail.split_once('}').expect("which end it");
    format!("{head}}}{tail}")
}
