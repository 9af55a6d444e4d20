//! What makes the answer exact and what would damage a standby, each on real servers: snapshots
//! with transactions in progress, WAL positions, conflicts of replay, and replicas that go away.
//!
//! Every query here is forced to replicas and leaves all scanning to them, so that a replica that
//! sees too little or too much shows.

use std::ops::RangeInclusive;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parallel_replicas_tests::{
    Cluster, PRIMARY, Rows, SOON, StopMode, damage_check, damage_on, text, wait_until,
};
use postgres::{Client, Error, NoTls};

/// Rows of table `t`.
const ROWS: i64 = 60_000;

/// Takes seconds on the two cores of CI, nearly all of it in the scan.
const SLOW: &str = "SELECT count(*), sum(length(repeat(pad, 3000))) FROM t";

/// The two numbers that [`SLOW`] finds in the table as [`scene`] makes it.
fn slow_answer() -> Vec<Option<String>> {
    vec![
        Some(ROWS.to_string()),
        Some((ROWS * 100 * 3000).to_string()),
    ]
}

/// Servers, replicas and table `t`.
fn scene(standbys: usize, settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
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
            "CREATE TABLE t(id int, v int, pad text) WITH (fillfactor = 90);
             INSERT INTO t SELECT i, i % 100, repeat('x', 100) FROM generate_series(1, {ROWS}) i;
             CREATE TABLE other(id int);"
        ),
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.wait_all_caught_up();
    cluster
}

/// A session whose queries are executed by replicas alone.
fn forced(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.replay_wait_timeout = '20s'",
        )
        .unwrap();
    client
}

/// The same, but when none of them is left the primary does it.
fn helped(cluster: &Cluster) -> Client {
    let mut client = forced(cluster);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 0; SET parallel_replicas.debug_force = on;
             SET client_min_messages = error",
        )
        .unwrap();
    client
}

/// Fragments that a standby has executed.
fn served(cluster: &Cluster, node: usize) -> u64 {
    cluster.event(node, "ServedCount")
}

/// The count of `t`, found by replicas.
#[track_caller]
fn count_by_replicas(cluster: &Cluster, client: &mut Client) -> i64 {
    let before = cluster.event(PRIMARY, "UsedCount");
    let count = text(client, "SELECT count(*)::text FROM t")
        .parse()
        .unwrap();
    assert!(
        cluster.event(PRIMARY, "UsedCount") > before,
        "no replica was used"
    );
    count
}

/// Starts [`SLOW`] in a session of its own, with more settings.
fn slow_in_background(cluster: &Cluster, settings: &str) -> JoinHandle<Result<Rows, Error>> {
    let mut client = helped(cluster);
    client.batch_execute(settings).unwrap();
    thread::spawn(move || Rows::fetch(&mut client, SLOW))
}

#[track_caller]
fn assert_slow_answer(query: JoinHandle<Result<Rows, Error>>) {
    match query.join().unwrap() {
        Ok(rows) => assert_eq!(rows.rows, [slow_answer()]),
        Err(error) => panic!("the query failed: {error:?}"),
    }
}

#[test]
fn a_shipped_snapshot_sees_what_the_coordinator_sees() {
    // E1, E2.
    let cluster = scene(2, &[]);
    let mut writer = cluster.connect(PRIMARY);
    let mut other = cluster.connect(PRIMARY);
    let insert = |ids: RangeInclusive<i32>| {
        format!(
            "INSERT INTO t SELECT i, 0, 'new' FROM generate_series({}, {}) i",
            -ids.end(),
            -ids.start()
        )
    };
    writer
        .batch_execute(&format!("BEGIN; {}", insert(1..=500)))
        .unwrap();
    other.batch_execute(&insert(1001..=1003)).unwrap();
    let mut reader = forced(&cluster);
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .unwrap();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 3);
    writer.batch_execute("COMMIT").unwrap();
    other.batch_execute(&insert(2001..=2300)).unwrap();
    cluster.wait_all_caught_up();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 3);
    other
        .batch_execute("DELETE FROM t WHERE id BETWEEN 1 AND 300")
        .unwrap();
    other.batch_execute("VACUUM t").unwrap();
    cluster.wait_all_caught_up();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 3);
    reader.batch_execute("COMMIT").unwrap();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 3 + 500);
    damage_check(&cluster);
}

#[test]
fn a_replica_that_has_not_replayed_is_left_out() {
    // E3.
    let cluster = scene(2, &[]);
    let mut reader = forced(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    cluster.pause_replay(1);
    let before = served(&cluster, 1);
    cluster.psql(
        PRIMARY,
        "INSERT INTO t SELECT -i, 0, 'late' FROM generate_series(1, 1000) i",
    );
    reader
        .batch_execute("SET parallel_replicas.replay_wait_timeout = '1ms'")
        .unwrap();
    for _ in 0..3 {
        assert_eq!(
            text(&mut reader, "SELECT count(*)::text FROM t"),
            (ROWS + 1000).to_string()
        );
    }
    assert_eq!(served(&cluster, 1), before, "a lagging replica took part");
    assert!(
        cluster
            .log(1)
            .contains("refused to execute a fragment: replay"),
        "the lagging replica was not asked"
    );
    cluster.resume_replay(1);
    damage_check(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 1000);
}

/// The lock is replayed on every replica, where the query would wait for it.
#[test]
fn a_transaction_that_locks_the_table_for_itself_reads_alone() {
    let cluster = scene(1, &[]);
    let mut reader = forced(&cluster);
    let mut transaction = reader.transaction().unwrap();
    // The executor starts here, while the transaction has no id.
    let portal = transaction.bind("SELECT count(*) FROM t", &[]).unwrap();
    transaction
        .batch_execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        .unwrap();
    let error = transaction.query_portal(&portal, 0).unwrap_err();
    let error = error.as_db_error().expect("an error of the server");
    let detail = error.detail().unwrap_or_default();
    assert!(detail.starts_with("Reason own_xid: "), "{error:?}");
    transaction.rollback().unwrap();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    damage_check(&cluster);
}

#[test]
fn a_transaction_that_has_written_reads_alone() {
    // E4.
    let cluster = scene(1, &[]);
    let mut reader = forced(&cluster);
    let insert = "INSERT INTO t SELECT -i, 0, 'own' FROM generate_series(1, 1000) i";
    reader.batch_execute("BEGIN").unwrap();
    reader.batch_execute(insert).unwrap();
    // A later transaction, so that the snapshot's xmax lies beyond the own transaction.
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    let error = reader.query("SELECT count(*) FROM t", &[]).unwrap_err();
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.message(), "query cannot use parallel replicas");
    let detail = error.detail().unwrap_or_default();
    assert!(detail.starts_with("Reason own_xid: "), "{detail}");
    reader.batch_execute("ROLLBACK").unwrap();

    reader
        .batch_execute(
            "SET enable_parallel_replicas = 1; SET parallel_setup_cost = 0;
             SET parallel_replicas.setup_cost = 0; SET min_parallel_table_scan_size = 0; BEGIN",
        )
        .unwrap();
    reader.batch_execute(insert).unwrap();
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    let before = cluster.event(PRIMARY, "UsedCount");
    assert_eq!(
        text(&mut reader, "SELECT count(*)::text FROM t"),
        (ROWS + 1000).to_string()
    );
    assert_eq!(cluster.event(PRIMARY, "UsedCount"), before);
    reader
        .batch_execute("COMMIT; SET enable_parallel_replicas = 2")
        .unwrap();
    damage_check(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 1000);
    damage_check(&cluster);
}

#[test]
fn an_overflowed_snapshot_is_completed() {
    // E5, E6.
    let cluster = scene(2, &[]);
    let mut reader = forced(&cluster);
    let mut writer = cluster.connect(PRIMARY);
    writer.batch_execute("BEGIN").unwrap();
    for number in 1..=100 {
        writer
            .batch_execute(&format!(
                "SAVEPOINT s; INSERT INTO t VALUES (-{number}, 0, 'sub'); RELEASE s"
            ))
            .unwrap();
    }
    // Rolled back ones leave ids that are neither in progress nor committed.
    writer
        .batch_execute("SAVEPOINT r; INSERT INTO t VALUES (-1000, 0, 'rolled back'); ROLLBACK TO r")
        .unwrap();
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .unwrap();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    writer.batch_execute("COMMIT").unwrap();
    cluster.wait_all_caught_up();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    reader.batch_execute("COMMIT").unwrap();
    damage_check(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 100);
    damage_check(&cluster);
}

#[test]
fn a_subtransaction_that_is_younger_than_the_snapshot_is_no_obstacle() {
    let cluster = scene(1, &[]);
    let mut reader = forced(&cluster);
    let mut writer = cluster.connect(PRIMARY);
    // The top-level id is older than the snapshot's xmax, the subtransaction's is not, and
    // PostgreSQL lists it all the same.
    writer
        .batch_execute("BEGIN; INSERT INTO t VALUES (-1, 0, 'top')")
        .unwrap();
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    writer
        .batch_execute("SAVEPOINT s; INSERT INTO t VALUES (-2, 0, 'sub')")
        .unwrap();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    writer.batch_execute("COMMIT").unwrap();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 2);
    damage_check(&cluster);
}

#[test]
fn a_vacuum_that_waits_to_truncate_is_no_obstacle() {
    // VACUUM takes a transaction id before it asks for the lock to truncate, because the standbys
    // have to know of that lock; it tries for five seconds (VACUUM_TRUNCATE_LOCK_TIMEOUT in
    // vacuumlazy.c). PostgreSQL leaves the id out of all snapshots (GetSnapshotData), while a standby
    // takes it for one in progress like any other.
    let cluster = scene(1, &[]);
    let mut reader = forced(&cluster);
    cluster.psql(
        PRIMARY,
        "CREATE TABLE big AS SELECT i AS id, repeat('x', 500) AS pad FROM generate_series(1, 50000) i;
         DELETE FROM big",
    );
    let mut holder = cluster.connect(PRIMARY);
    holder
        .batch_execute("BEGIN; LOCK TABLE big IN ACCESS SHARE MODE")
        .unwrap();
    let mut vacuum = cluster.connect(PRIMARY);
    let vacuum = thread::spawn(move || vacuum.batch_execute("VACUUM big"));
    let mut observer = cluster.connect(PRIMARY);
    wait_until(SOON, "VACUUM waits for the lock", || {
        text(
            &mut observer,
            "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'VacuumTruncate'",
        ) != "0"
    });
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    assert!(!vacuum.is_finished(), "VACUUM was over too soon");
    vacuum.join().unwrap().unwrap();
    holder.batch_execute("COMMIT").unwrap();
    damage_check(&cluster);
}

#[test]
fn a_commit_that_is_not_flushed_yet_is_seen() {
    let cluster = scene(1, &[("wal_writer_delay", "10s")]);
    let mut reader = forced(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    let mut writer = cluster.connect(PRIMARY);
    writer
        .batch_execute("SET synchronous_commit = off; INSERT INTO t VALUES (-1, 0, 'async')")
        .unwrap();
    let started = Instant::now();
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS + 1);
    // Without a flush it would wait for the WAL writer.
    assert!(started.elapsed() < Duration::from_secs(5));
    damage_check(&cluster);
}

#[test]
fn waiting_for_replay_does_not_hold_up_replay() {
    // E7: what is on the way removes rows that any snapshot of now would need.
    let cluster = scene(1, &[("max_standby_streaming_delay", "60s")]);
    let mut reader = forced(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    cluster.pause_replay(1);
    cluster.psql(PRIMARY, "DELETE FROM t WHERE id <= 1000");
    cluster.psql(PRIMARY, "VACUUM t");
    let query = thread::spawn(move || text(&mut reader, "SELECT count(*)::text FROM t"));
    let mut standby = cluster.connect(1);
    wait_until(SOON, "the replica waits for replay", || {
        text(
            &mut standby,
            "SELECT count(*)::text FROM pg_stat_activity
             WHERE query LIKE 'fragment of query %' AND state = 'active'
               AND backend_xmin IS NULL",
        ) != "0"
    });
    let started = Instant::now();
    cluster.resume_replay(1);
    assert_eq!(query.join().unwrap(), (ROWS - 1000).to_string());
    assert!(started.elapsed() < Duration::from_secs(15), "it was stuck");
    assert!(!cluster.log(1).contains("conflict with recovery"));
    damage_check(&cluster);
}

#[test]
fn an_insert_position_after_a_page_header_is_no_obstacle() {
    // E8: replay ends before the header, the insert position lies after it.
    let cluster = scene(1, &[]);
    let mut reader = forced(&cluster);
    let mut primary = cluster.connect(PRIMARY);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    reader
        .batch_execute("SET parallel_replicas.replay_wait_timeout = '5s'")
        .unwrap();
    let mut boundaries = 0;
    wait_until(SOON, "a query meets a page boundary", || {
        let left = 8192 - position(&mut primary) % 8192;
        // A record of this message takes 56 bytes more; it should end where the page ends.
        let length = if left > 400 { left - 56 } else { left + 4000 };
        primary
            .batch_execute(&format!(
                "SELECT pg_logical_emit_message(false, 'p', repeat('x', {length}))"
            ))
            .unwrap();
        let before = position(&mut primary);
        if !matches!(before % 8192, 24 | 40) {
            return false;
        }
        let started = Instant::now();
        assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
        let elapsed = started.elapsed();
        // Background processes may write WAL at any time; then it proved nothing.
        if position(&mut primary) == before {
            assert!(elapsed < Duration::from_secs(4), "it waited {elapsed:?}");
            boundaries += 1;
        }
        boundaries >= 2
    });
    damage_check(&cluster);
}

/// The WAL insert position in bytes.
fn position(client: &mut Client) -> u64 {
    let query = "SELECT (pg_current_wal_insert_lsn() - '0/0')::text";
    text(client, query).parse().unwrap()
}

#[test]
fn a_long_query_neither_holds_up_replay_nor_is_cancelled() {
    // E9, and E9b: a query with as old a snapshot as an ordinary one on the standby.
    let cluster = scene(1, &[("max_standby_streaming_delay", "1s")]);
    let query = slow_in_background(&cluster, "");
    cluster.serving(1);
    let mut rounds = 0;
    let mut last_id = 0;
    while !query.is_finished() {
        cluster.psql(
            PRIMARY,
            &format!("DELETE FROM t WHERE id BETWEEN {last_id} AND {last_id} + 9"),
        );
        cluster.psql(PRIMARY, "VACUUM t");
        last_id += 10;
        let started = Instant::now();
        cluster.wait_caught_up(1);
        let delay = started.elapsed();
        if !query.is_finished() {
            assert!(
                delay < Duration::from_millis(900),
                "replay was held up for {delay:?}"
            );
            rounds += 1;
        }
    }
    assert!(rounds >= 2, "only {rounds} rounds of VACUUM met the query");
    assert_slow_answer(query);
    assert!(!cluster.log(1).contains("conflict with recovery"));
    damage_check(&cluster);

    let mut standby = cluster.connect(1);
    let ordinary = thread::spawn(move || {
        Rows::fetch(
            &mut standby,
            "SELECT count(*), (SELECT true FROM pg_sleep(60)) FROM t",
        )
    });
    let mut observer = cluster.connect(1);
    wait_until(SOON, "the ordinary query runs", || {
        text(
            &mut observer,
            "SELECT count(*)::text FROM pg_stat_activity
             WHERE query LIKE '%pg_sleep%' AND wait_event = 'PgSleep'",
        ) != "0"
    });
    cluster.psql(PRIMARY, &format!("DELETE FROM t WHERE id > {ROWS} - 1000"));
    cluster.psql(PRIMARY, "VACUUM t");
    let error = ordinary.join().unwrap().unwrap_err();
    assert_eq!(
        error.code().map(|code| code.code()),
        Some("40001"),
        "{error:?}"
    );
    damage_check(&cluster);
}

#[test]
fn a_cancelled_replica_process_costs_the_query_nothing() {
    // What a recovery conflict, an administrator or a crash of one process does.
    for function in ["pg_cancel_backend", "pg_terminate_backend"] {
        let cluster = scene(2, &[]);
        let query = slow_in_background(&cluster, "");
        cluster.serving(1);
        let mut standby = cluster.connect(1);
        let signalled = text(
            &mut standby,
            &format!(
                "SELECT count({function}(pid))::text FROM pg_stat_activity
                 WHERE query LIKE 'fragment of query %' AND state = 'active'"
            ),
        );
        assert_ne!(signalled, "0", "nothing was left to signal");
        assert_slow_answer(query);
        assert!(
            cluster.event(PRIMARY, "LostCount") > 0,
            "no link was lost by {function}"
        );
        damage_check(&cluster);
    }
}

#[test]
fn a_conflict_of_replay_costs_the_query_nothing() {
    // A page that a replica has pinned for long is to be cleaned: replay cancels it.
    let cluster = scene(1, &[("max_standby_streaming_delay", "100ms")]);
    // Each page takes about a second.
    let mut client = helped(&cluster);
    client
        .batch_execute("SET parallel_replicas.links_per_replica = 1")
        .unwrap();
    let slow = "SELECT count(*) FROM t WHERE id <= 300 AND length(repeat(pad, 500000)) > 0";
    let query = thread::spawn(move || Rows::fetch(&mut client, slow));
    cluster.serving(1);
    // Rows of pages that are scanned now were deleted long ago for everybody but the query: only
    // pruning without a conflict of snapshots needs the pin, so they are updated and pruned as
    // aborted rows.
    let mut writer = cluster.connect(PRIMARY);
    let mut standby = cluster.connect(1);
    wait_until(
        SOON,
        "replay cancels the replica, or the query ends",
        || {
            writer
                .batch_execute("BEGIN; UPDATE t SET v = v + 1 WHERE id <= 300; ROLLBACK")
                .unwrap();
            writer.batch_execute("VACUUM t").unwrap();
            query.is_finished()
                || text(
                    &mut standby,
                    "SELECT confl_bufferpin::text FROM pg_stat_database_conflicts
                 WHERE datname = 'postgres'",
                ) != "0"
        },
    );
    let rows = query.join().unwrap().expect("the query succeeds");
    assert_eq!(rows.rows, [[Some(String::from("300"))]]);
    wait_until(SOON, "the conflict is counted", || {
        text(
            &mut standby,
            "SELECT confl_bufferpin::text FROM pg_stat_database_conflicts
             WHERE datname = 'postgres'",
        ) != "0"
    });
    damage_check(&cluster);
}

#[test]
fn a_replica_that_dies_costs_the_query_nothing() {
    let mut cluster = scene(2, &[]);
    let query = slow_in_background(&cluster, "");
    cluster.serving(1);
    cluster.kill_9(1);
    assert_slow_answer(query);
    assert!(cluster.event(PRIMARY, "LostCount") > 0, "no link was lost");
    cluster.start(1);
    damage_check(&cluster);

    let query = slow_in_background(&cluster, "");
    cluster.serving(2);
    cluster.stop(2, StopMode::Fast);
    assert_slow_answer(query);
    cluster.start(2);
    damage_check(&cluster);
}

#[test]
fn a_replica_that_freezes_costs_the_query_nothing_but_time() {
    let mut cluster = scene(2, &[]);
    let query = slow_in_background(&cluster, "SET parallel_replicas.stall_timeout = '1s'");
    cluster.serving(1);
    cluster.sigstop(1);
    assert_slow_answer(query);
    assert!(cluster.event(PRIMARY, "LostCount") > 0, "no link was lost");
    cluster.sigcont(1);
    damage_check(&cluster);
}

#[test]
fn all_replicas_may_die() {
    let mut cluster = scene(2, &[]);
    let query = slow_in_background(&cluster, "");
    cluster.serving(1);
    cluster.serving(2);
    for node in [1, 2] {
        cluster.kill_9(node);
    }
    assert_slow_answer(query);
    // And nobody is there at the start.
    assert_slow_answer(slow_in_background(&cluster, ""));
    let error = forced(&cluster)
        .simple_query("SELECT count(*) FROM t")
        .expect_err("nobody is left, and this server was not to read itself");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55000");
    let detail = error.detail().unwrap_or_default();
    assert!(detail.starts_with("Reason no_replica"), "{error:?}");
    for node in [1, 2] {
        cluster.start(node);
    }
    damage_check(&cluster);
}

/// Replicas were to do all of the work, and die in the middle of it.
#[test]
fn who_is_left_alone_in_the_middle_is_told() {
    let mut cluster = scene(2, &[]);
    for mode in [1, 2] {
        let (sender, notices) = std::sync::mpsc::channel();
        let mut config = cluster.config(PRIMARY);
        config.notice_callback(move |notice| {
            // Nobody may be interested any more.
            let _ = sender.send(notice);
        });
        let mut client = config.connect(NoTls).unwrap();
        client
            .batch_execute(&format!(
                "SET enable_parallel_replicas = {mode}; SET parallel_replicas_local_plan = off;
                 SET parallel_setup_cost = 0; SET parallel_replicas.setup_cost = 0;
                 SET min_parallel_table_scan_size = 0;
                 SET parallel_replicas.replay_wait_timeout = '20s'"
            ))
            .unwrap();
        let query = thread::spawn(move || Rows::fetch(&mut client, SLOW));
        cluster.serving(1);
        cluster.serving(2);
        for node in [1, 2] {
            cluster.kill_9(node);
        }
        let told = match (query.join().unwrap(), mode) {
            (Ok(rows), 1) => {
                assert_eq!(rows.rows, [slow_answer()]);
                let notice = notices.recv().expect("the session ends after its warning");
                assert_eq!(notice.severity(), "WARNING", "{notice:?}");
                assert_eq!(notice.message(), "query goes on without replicas");
                notice
            }
            (Err(error), 2) => {
                let error = error.as_db_error().expect("an error of the server").clone();
                assert_eq!(error.code().code(), "55000", "{error:?}");
                assert_eq!(error.message(), "query cannot use parallel replicas");
                error
            }
            (outcome, mode) => panic!("mode {mode}: {outcome:?}"),
        };
        let detail = told.detail().expect("a reason");
        assert!(detail.starts_with("Reason no_replica_left: "), "{detail}");
        for standby in ["standby1", "standby2"] {
            let lost = format!("replica \"{standby}\" lost: ");
            assert!(detail.contains(&lost), "{detail}");
        }
        assert!(told.hint().is_some(), "{told:?}");
        assert_eq!(notices.try_iter().count(), 0, "told more than once");
        for node in [1, 2] {
            cluster.start(node);
            cluster.wait_streaming(node);
        }
        cluster.wait_all_caught_up();
    }
    damage_check(&cluster);
}

#[test]
fn a_promoted_replica_takes_no_part() {
    // The monitor would leave it out before the guard is asked.
    let cluster = scene(2, &[("parallel_replicas.monitor_interval", "0")]);
    let query = slow_in_background(&cluster, "");
    cluster.serving(1);
    cluster.promote(1);
    cluster.psql(
        1,
        "INSERT INTO t SELECT -i, 0, 'elsewhere' FROM generate_series(1, 1000) i",
    );
    assert_slow_answer(query);
    let before = served(&cluster, 1);
    let mut reader = forced(&cluster);
    assert_eq!(count_by_replicas(&cluster, &mut reader), ROWS);
    assert_eq!(
        served(&cluster, 1),
        before,
        "a server of another history took part"
    );
    assert!(
        cluster
            .log(1)
            .contains("refused to execute a fragment: not_standby")
    );
    cluster.wait_caught_up(2);
    assert_eq!(damage_on(&cluster, 2), []);
}

#[test]
fn a_table_that_changes_between_planning_and_execution_is_read_as_it_is() {
    let cluster = scene(1, &[]);
    let mut reader = forced(&cluster);
    reader
        .batch_execute(
            "SET plan_cache_mode = force_generic_plan;
             PREPARE q(int) AS SELECT count(*)::text FROM t WHERE v < $1",
        )
        .unwrap();
    let count = |reader: &mut Client| {
        let rows = reader.simple_query("EXECUTE q(50)").unwrap();
        match &rows[0] {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(String::from),
            postgres::SimpleQueryMessage::RowDescription(_) => match &rows[1] {
                postgres::SimpleQueryMessage::Row(row) => row.get(0).map(String::from),
                _ => None,
            },
            _ => None,
        }
        .expect("one row")
    };
    assert_eq!(count(&mut reader), (ROWS / 2).to_string());
    for (change, expected) in [
        ("VACUUM FULL t", ROWS / 2),
        ("ALTER TABLE t ALTER id TYPE bigint", ROWS / 2),
        ("TRUNCATE t", 0),
        (
            "INSERT INTO t SELECT i, 1, 'x' FROM generate_series(1, 10) i",
            10,
        ),
        ("CLUSTER t USING t_v", 10),
        (
            "DROP TABLE t; CREATE TABLE t(v int, pad text); INSERT INTO t VALUES (1, 'x'), (99, 'y')",
            1,
        ),
    ] {
        if change.starts_with("CLUSTER") {
            cluster.psql(PRIMARY, "CREATE INDEX t_v ON t(v)");
        }
        cluster.psql(PRIMARY, change);
        let before = cluster.event(PRIMARY, "QueryCount");
        assert_eq!(count(&mut reader), expected.to_string(), "after {change}");
        assert!(
            expected == 0 || cluster.event(PRIMARY, "QueryCount") > before,
            "replicas were not asked after {change}"
        );
    }

    // An old snapshot and a younger TRUNCATE: empty, as it is without replicas.
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other")
        .unwrap();
    cluster.psql(
        PRIMARY,
        "TRUNCATE t; INSERT INTO t VALUES (1, 'x'), (2, 'y')",
    );
    assert_eq!(text(&mut reader, "SELECT count(*)::text FROM t"), "0");
    reader.batch_execute("COMMIT").unwrap();
    damage_check(&cluster);
}

#[test]
fn a_table_that_grows_under_the_query_is_read_as_it_was() {
    let cluster = scene(2, &[]);
    let query = slow_in_background(&cluster, "");
    cluster.serving(1);
    let mut rounds = 0;
    while !query.is_finished() && rounds < 20 {
        cluster.psql(
            PRIMARY,
            "INSERT INTO t SELECT -i, 0, repeat('x', 100) FROM generate_series(1, 2000) i",
        );
        rounds += 1;
    }
    assert!(rounds >= 2, "the table grew only {rounds} times");
    assert_slow_answer(query);
    damage_check(&cluster);
}
