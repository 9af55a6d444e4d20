//! The query queue on a real server: statements that are no plain queries, and what the views show.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::queue_server::{QueueServer, pid, value};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};
use postgres::Client;

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

/// A session opens this cursor, which it keeps, in a thread.
fn opens_cursor(
    server: &QueueServer,
    table: &str,
) -> thread::JoinHandle<Result<Client, postgres::Error>> {
    let mut client = server.app();
    let query = format!("BEGIN; DECLARE c CURSOR FOR SELECT * FROM {table}; FETCH 1 FROM c");
    let before = server.gauge("pending");
    let thread = thread::spawn(move || client.batch_execute(&query).map(|()| client));
    server.wait_gauge("pending", before + 1);
    thread
}

/// Who is admitted above the limits is shown with the reason for as long as it runs.
#[test]
fn views_show_why_somebody_was_admitted_above_the_limits() {
    let server = QueueServer::start(&[]);
    let mut superuser = server.cluster.connect(PRIMARY);
    let mut admitted_by = |client: &mut Client| {
        let pid = pid(client);
        text(
            &mut superuser,
            &format!(
                "SELECT string_agg(state || ' ' || admitted_by, ', ')
                   FROM parallel_replicas.running_queries WHERE pid = {pid}"
            ),
        )
    };
    let mut holder = server.holder();
    assert_eq!(admitted_by(&mut holder), "RUNNING scheduler");
    // It has a lock in hand that others may wait for.
    let mut in_hand = server.app();
    in_hand
        .batch_execute(
            "BEGIN; LOCK TABLE u IN SHARE MODE; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c",
        )
        .expect("it does not wait");
    assert_eq!(admitted_by(&mut in_hand), "RUNNING in_transaction");
    in_hand.batch_execute("COMMIT").expect("commit");
    assert_eq!(server.gauge("admitted_in_transaction"), 1);
    // Its own lock is waited for.
    let waiter = opens_cursor(&server, "u");
    let mut other = server.app();
    let alters = thread::spawn(move || other.batch_execute("ALTER TABLE u ADD COLUMN x int"));
    let mut blocker = waiter.join().expect("no panic").expect("admitted");
    assert_eq!(admitted_by(&mut blocker), "RUNNING blocker");
    assert_eq!(server.gauge("admitted_blockers"), 1);
    assert_eq!(server.gauge("used_slots"), 2);
    blocker.batch_execute("COMMIT").expect("commit");
    alters.join().expect("no panic").expect("altered");
    // Nobody queues any more.
    let waiter = opens_cursor(&server, "u");
    server.set("parallel_replicas.enable_query_queue_select", "off");
    let mut switched_off = waiter.join().expect("no panic").expect("admitted");
    assert_eq!(admitted_by(&mut switched_off), "RUNNING switched_off");
    assert_eq!(admitted_by(&mut holder), "RUNNING scheduler");
    drop(switched_off);
    drop(holder);
    server.wait_empty();
}

/// The shortest wait that is measured.
const KEPT: Duration = Duration::from_millis(300);

/// What a query answers that has to wait for the only slot, and the least and the most milliseconds that it
/// can have waited.
fn kept_waiting(cluster: &Cluster, mut client: Client, query: &str) -> (Client, String, [u64; 2]) {
    let mut holder = cluster.connect(PRIMARY);
    holder
        .batch_execute(
            "SET enable_parallel_replicas = 0; SET max_parallel_workers_per_gather = 0;
             BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c",
        )
        .expect("the slot is free");
    let mut superuser = cluster.connect(PRIMARY);
    let mut waits = |condition: &str| {
        text(
            &mut superuser,
            &format!(
                "SELECT count(*)::text FROM parallel_replicas.running_queries
                  WHERE state = 'PENDING' AND {condition}"
            ),
        ) == "1"
    };
    let start = Instant::now();
    let query = query.to_owned();
    let waiter = thread::spawn(move || {
        let messages = client.simple_query(&query).expect("it is admitted");
        let taken = start.elapsed();
        let rows = messages.iter().filter_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let answer = rows.collect::<Vec<_>>().join("\n");
        (client, answer, taken)
    });
    wait_until(SOON, "the query waits", || waits("true"));
    let seen = Instant::now();
    wait_until(SOON, "the query has waited", || {
        seen.elapsed() >= KEPT && waits(&format!("wait_ms >= {}", KEPT.as_millis()))
    });
    let kept = seen.elapsed();
    holder.batch_execute("COMMIT").expect("commit");
    let (client, answer, taken) = waiter.join().expect("no panic");
    // Its clock counts whole milliseconds.
    let bounds = [kept.as_millis() as u64 - 1, taken.as_millis() as u64 + 1];
    (client, answer, bounds)
}

/// How long a statement waited is in EXPLAIN ANALYZE, as text and as JSON, and in the log of queries.
#[test]
fn waits_are_explained_and_logged() {
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "1")
        .setting("parallel_replicas.connect_timeout", "20s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 50000) i",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET statement_timeout = '60s'",
        )
        .expect("settings");
    let is_within = |waited: u64, [least, most]: [u64; 2]| (least..=most).contains(&waited);

    let query = "EXPLAIN (ANALYZE) SELECT count(*) FROM t";
    let (client, plan, bounds) = kept_waiting(&cluster, client, query);
    let (_, rest) = plan
        .split_once("\nQueue: slots 1, waited ")
        .unwrap_or_else(|| panic!("no wait in\n{plan}"));
    let (waited, _) = rest.split_once(" ms").expect("milliseconds");
    let waited = waited.parse().expect("a number");
    assert!(is_within(waited, bounds), "{waited} of {bounds:?}: {plan}");

    let query = "EXPLAIN (ANALYZE, FORMAT JSON) SELECT count(*) FROM t";
    let (client, plan, bounds) = kept_waiting(&cluster, client, query);
    let json: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
    let find = |name: &str| {
        let mut found = Vec::new();
        numbers(&json, name, &mut found);
        assert_eq!(found.len(), 1, "{name}: {plan}");
        found[0]
    };
    assert_eq!(find("Queue Slots"), 1);
    let waited = find("Queue Wait");
    assert!(is_within(waited, bounds), "{waited} of {bounds:?}: {plan}");

    let query = "SELECT count(*) FROM t";
    let (mut client, answer, bounds) = kept_waiting(&cluster, client, query);
    assert_eq!(answer, "50000");
    let logged = text(
        &mut client,
        "SELECT concat_ws(' ', (extract(epoch FROM pending) * 1000)::bigint, slots, replicas_used)
           FROM parallel_replicas.query_log ORDER BY started DESC LIMIT 1",
    );
    let (waited, rest) = logged.split_once(' ').expect("three values");
    assert_eq!(rest, "1 1", "{logged}");
    let waited = waited.parse().expect("a number");
    assert!(is_within(waited, bounds), "{waited} of {bounds:?}");

    // Who did not wait is not said to have.
    let query = "EXPLAIN (ANALYZE) SELECT count(*) FROM t";
    let rows = client.query(query, &[]).expect("plan");
    let plan: String = rows
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    assert!(plan.contains("\nQueue: slots 1\n"), "{plan}");
}

/// All numbers with this name, however deep they are.
fn numbers(json: &serde_json::Value, name: &str, found: &mut Vec<u64>) {
    match json {
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| numbers(value, name, found));
        }
        serde_json::Value::Object(fields) => {
            for (field, value) in fields {
                if field == name {
                    found.extend(value.as_u64());
                }
                numbers(value, name, found);
            }
        }
        _ => {}
    }
}

/// What a driver with autocommit off sends, each statement a message of its own. Until the transaction has
/// something in hand its statements queue as any others do, and none keeps the slot for the next.
#[test]
fn statements_of_a_driver_without_autocommit() {
    let server = QueueServer::start(&[]);
    let mut client = server.app();
    client.batch_execute("BEGIN").expect("begin");
    for (table, extended) in [("t", false), ("t", true), ("u", false)] {
        let holder = server.holder();
        let waiter = thread::spawn(move || {
            let answer = rows_of(&mut client, table, extended);
            (client, answer)
        });
        server.wait_gauge("pending", 1);
        assert_eq!(server.gauge("used_slots"), 1);
        drop(holder);
        let (back, answer) = waiter.join().expect("no panic");
        client = back;
        assert_eq!(answer, "1000");
        server.wait_empty();
    }
    // An INSERT of values reads no tables.
    let holder = server.holder();
    let before = server.gauge("total");
    client
        .batch_execute("INSERT INTO u VALUES (1001)")
        .expect("insert");
    assert_eq!(server.gauge("total"), before);
    assert_eq!(server.gauge("admitted_in_transaction"), 0);
    // Now others may wait for its row.
    assert_eq!(rows_of(&mut client, "u", false), "1001");
    assert_eq!(server.gauge("total"), before + 1);
    assert_eq!(server.gauge("admitted_in_transaction"), 1);
    assert_eq!(server.gauge("used_slots"), 1, "the holder's");
    client.batch_execute("COMMIT").expect("commit");
    assert_eq!(server.gauge("pending"), 0);
    // The next transaction has nothing in hand again.
    client.batch_execute("BEGIN").expect("begin");
    let waiter = server.waiting(client, "SELECT count(*) FROM u");
    drop(holder);
    assert_eq!(value(waiter), "1001");
    server.wait_empty();
}

/// How many rows a table has, by one message or by those of the extended protocol, whose portal stays until
/// the next statement or the transaction's end.
fn rows_of(client: &mut Client, table: &str, extended: bool) -> String {
    let query = format!("SELECT count(*)::text FROM {table}");
    if extended {
        return client
            .query_one(&query, &[])
            .expect("it is admitted")
            .get(0);
    }
    let messages = client.simple_query(&query).expect("it is admitted");
    let rows = messages.iter().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    rows.expect("a row")
}

/// What arguments of EXECUTE execute is part of it: that does not queue, and leaves the statement's snapshot
/// where it is.
#[test]
fn arguments_of_execute_do_not_queue() {
    let server = QueueServer::start(&[]);
    server.cluster.psql(
        PRIMARY,
        "SET ROLE app;
         CREATE FUNCTION catches() RETURNS int STABLE LANGUAGE plpgsql AS $$
             BEGIN
                 BEGIN
                     PERFORM count(*) FROM t;
                     RAISE 'x';
                 EXCEPTION WHEN others THEN
                 END;
                 RETURN 7;
             END $$;
         CREATE FUNCTION calls() RETURNS int LANGUAGE plpgsql AS $$
             DECLARE n int; BEGIN n := catches(); RETURN n; END $$;
         CREATE FUNCTION loops() RETURNS int STABLE LANGUAGE plpgsql AS $$
             DECLARE n int; BEGIN FOR n IN SELECT i FROM t ORDER BY i OFFSET 6 LOOP RETURN n; END LOOP; END $$;
         CREATE FUNCTION counts() RETURNS int STABLE LANGUAGE sql AS
             'SELECT count(*) FROM t; SELECT count(*)::int FROM t WHERE i <= 7'",
    );
    for function in ["catches()", "calls()", "loops()", "counts()"] {
        for statement in ["", "EXPLAIN ANALYZE", "CREATE TABLE made AS"] {
            let mut client = server.app();
            client
                .batch_execute("PREPARE p(int) AS SELECT i FROM t WHERE i = $1")
                .expect("prepared");
            let before = server.gauge("total");
            let holder = server.holder();
            let statement = format!("{statement} EXECUTE p({function})");
            let waiter = server.waiting(client, &statement);
            drop(holder);
            let answer = value(waiter);
            server.wait_empty();
            assert_eq!(server.gauge("total"), before + 2, "{statement}");
            let found = match answer.as_str() {
                "" => text(
                    &mut server.cluster.connect(PRIMARY),
                    "WITH gone AS (DELETE FROM made RETURNING i) SELECT i::text FROM gone",
                ),
                other => other.to_owned(),
            };
            assert!(found == "7" || found.contains("Execution Time"), "{found}");
            server.cluster.psql(PRIMARY, "DROP TABLE IF EXISTS made");
        }
    }
}
