//! The query queue on a real server: statements that are no plain queries, and what the views show.

use std::io::{Read, Write};
use std::thread;

use parallel_replicas_tests::queue_server::{QueueServer, value};
use parallel_replicas_tests::{PRIMARY, SOON, text, wait_until};

/// COPY FROM, REFRESH and ANALYZE wait before they lock anything: whoever needs their table has it at once.
/// COPY (query) TO waits as a query does.
#[test]
fn utility_statements_wait_without_locks() {
    let server = QueueServer::start(&[]);
    server.cluster.psql(
        PRIMARY,
        "SET ROLE app; CREATE MATERIALIZED VIEW m AS SELECT * FROM u",
    );
    let before = server.gauge("total");
    let holder = server.holder();
    let (mut into, mut out) = (server.app(), server.app());
    let copy_in = thread::spawn(move || {
        let mut writer = into.copy_in("COPY u FROM STDIN")?;
        writer.write_all(b"1001\n1002\n").expect("rows");
        writer.finish()
    });
    server.wait_gauge("pending", 1);
    let copy_out = thread::spawn(move || {
        let mut rows = String::new();
        let mut reader = out.copy_out("COPY (SELECT * FROM t WHERE i <= 10) TO STDOUT")?;
        reader.read_to_string(&mut rows).expect("rows");
        Ok::<_, postgres::Error>(rows.lines().count())
    });
    server.wait_gauge("pending", 2);
    let analyze = server.waiting(server.app(), "ANALYZE u");
    let refresh = server.waiting(server.app(), "REFRESH MATERIALIZED VIEW m");
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute("BEGIN; LOCK TABLE u IN ACCESS EXCLUSIVE MODE NOWAIT; ROLLBACK")
        .expect("nobody has locked the table");
    let locks = "SELECT count(*)::text FROM pg_locks WHERE relation = 'm'::regclass";
    assert_eq!(text(&mut superuser, locks), "0");
    drop(holder);
    assert_eq!(copy_in.join().expect("no panic").expect("loaded"), 2);
    let rows = copy_out.join().expect("no panic").expect("copied");
    assert_eq!(rows, 10);
    value(analyze);
    value(refresh);
    server.wait_empty();
    assert_eq!(server.gauge("total"), before + 5, "the holder and four");
    // A plain COPY of a table, as pg_dump does, never queues.
    let holder = server.holder();
    let mut client = server.app();
    let mut rows = String::new();
    client
        .copy_out("COPY u TO STDOUT")
        .expect("it does not queue")
        .read_to_string(&mut rows)
        .expect("rows");
    assert_eq!(rows.lines().count(), 1002);
    drop(holder);
    server.wait_empty();
}

/// ANALYZE of several tables commits after each one, and keeps its slot to the end of the statement. CALL and DO
/// that commit run without slots, also in the middle.
#[test]
fn commits_inside_a_statement() {
    let server = QueueServer::start(&[]);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute("BEGIN; LOCK TABLE u IN ACCESS EXCLUSIVE MODE")
        .expect("lock");
    let mut client = server.app();
    let analyze = thread::spawn(move || client.batch_execute("ANALYZE t, u"));
    let waits_for_lock = || {
        text(
            &mut server.cluster.connect(PRIMARY),
            "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND relation = 'u'::regclass",
        ) == "1"
    };
    // By then it has committed what it did to the first.
    wait_until(SOON, "it has come to the second", waits_for_lock);
    assert_eq!(server.gauge("used_slots"), 1);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    superuser.batch_execute("COMMIT").expect("commit");
    analyze.join().expect("no panic").expect("analysed");
    assert_eq!(value(waiter), "1000");
    server.wait_empty();

    let holder = server.holder();
    let mut client = server.app();
    client
        .batch_execute(
            "CREATE PROCEDURE commits() LANGUAGE plpgsql AS
                'BEGIN
                    FOR n IN 1..3 LOOP PERFORM count(*) FROM t; COMMIT; END LOOP;
                    PERFORM count(*) FROM t; ROLLBACK; PERFORM count(*) FROM u; END'",
        )
        .expect("procedure");
    let before = server.gauge("total");
    for statement in [
        "CALL commits()",
        "DO 'BEGIN PERFORM count(*) FROM t; COMMIT; PERFORM count(*) FROM t; END'",
        "DO 'BEGIN CALL commits(); END'",
    ] {
        client.batch_execute(statement).expect(statement);
    }
    assert_eq!(server.gauge("total"), before, "nothing asked for slots");
    drop(holder);
    server.wait_empty();
}

/// What an operator sees of one statement that runs and two that wait.
#[test]
fn views_show_who_runs_and_who_waits() {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "4"),
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        ("parallel_replicas.query_queue_v2_cpu_costs_per_slot", "10"),
        ("parallel_replicas.query_queue_v2_concurrency_level", "4"),
        ("parallel_replicas.query_queue_concurrency_limit", "1"),
        (
            "parallel_replicas.query_queue_pending_timeout_second",
            "100s",
        ),
        ("compute_query_id", "on"),
    ]);
    let holder = server.holder();
    let first = server.waiting(server.app(), "SELECT count(*) FROM t");
    let second = server.waiting(server.app(), "SELECT count(*) FROM u");
    for (metric, expected) in [
        ("running", 1),
        ("pending", 2),
        ("max_slots", 4),
        ("used_slots", 1),
        ("remaining_slots", 3),
        ("required_slots", 2),
        ("max_required_slots", 1),
        ("concurrency_limit", 1),
        ("max_queued", 1024),
        ("total", 3),
        ("timeouts", 0),
        ("rejected", 0),
    ] {
        assert_eq!(server.gauge(metric), expected, "{metric}");
    }
    wait_until(SOON, "the wait is shown", || {
        server.gauge("earliest_wait_ms") > 0
    });
    let mut superuser = server.cluster.connect(PRIMARY);
    assert_eq!(
        text(
            &mut superuser,
            "SELECT concat_ws(' ', sum(weight), sum(pending), sum(running), sum(admitted))
               FROM parallel_replicas.query_queue_classes",
        ),
        "779 2 1 1"
    );
    // Everything is filled in where it has a meaning.
    assert_eq!(
        text(
            &mut superuser,
            "SELECT string_agg(concat_ws(' ', state, datname, usename, position, processes,
                        query_id IS NOT NULL, pid > 0, wait_ms >= 0, estimated_cost > 0,
                        cpu_ms >= 0, blocked_reason, admitted_by,
                        pending_timeout - start_time BETWEEN interval '100 s' AND interval '110 s',
                        query_timeout - start_time), ', ' ORDER BY state DESC, position)
               FROM parallel_replicas.running_queries",
        ),
        "RUNNING postgres app 1 t t t t scheduler t 00:01:00, \
         PENDING postgres app 1 1 t t t t concurrency_limit t 00:01:00, \
         PENDING postgres app 2 1 t t t t order t 00:01:00"
    );
    drop(holder);
    value(first);
    value(second);
    server.wait_empty();
}
