//! The query queue on a real server: who waits, who does not, and that every slot comes back.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::queue_server::{QueueServer, error, pid, value};
use parallel_replicas_tests::system::{installation, output_of};
use parallel_replicas_tests::{PRIMARY, SOON, text, wait_until};
use postgres::NoTls;

#[test]
fn who_queues_and_who_does_not() {
    let server = QueueServer::start(&[]);
    server.cluster.psql(
        PRIMARY,
        "SET ROLE app;
         CREATE FUNCTION plpgsql_count() RETURNS bigint LANGUAGE plpgsql AS
             'BEGIN RETURN (SELECT count(*) FROM t); END';
         CREATE FUNCTION immutable_count() RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
             'BEGIN RETURN (SELECT count(*) FROM t); END';
         CREATE FUNCTION caught() RETURNS bigint LANGUAGE plpgsql AS
             'DECLARE n bigint; BEGIN
                BEGIN PERFORM 1 / (SELECT count(*) - 1000 FROM t);
                EXCEPTION WHEN division_by_zero THEN NULL; END;
                SELECT count(*) INTO n FROM t; RETURN n; END';
         CREATE PROCEDURE commits() LANGUAGE plpgsql AS
             'BEGIN
                PERFORM count(*) FROM t; COMMIT; PERFORM count(*) FROM t; ROLLBACK;
                PERFORM count(*) FROM t; END';
         CREATE TABLE parent (i int PRIMARY KEY);
         CREATE TABLE child (i int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         CREATE FUNCTION on_insert() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM count(*) FROM t; RETURN NEW; END';
         CREATE TRIGGER tr AFTER INSERT ON parent FOR EACH ROW EXECUTE FUNCTION on_insert();
         CREATE VIEW catalog_view AS SELECT relname FROM pg_class;",
    );
    let holder = server.holder();
    assert_eq!(server.gauge("used_slots"), 1);
    let mut client = server.app();
    // No tables, only the catalog's, or nested in something else.
    for query in [
        "SELECT 1",
        "SELECT generate_series(1, 10)",
        "SELECT count(*) FROM pg_class",
        "SELECT count(*) FROM information_schema.tables",
        "SELECT count(*) FROM catalog_view",
        "SELECT * FROM parallel_replicas.running_queries",
        "SELECT plpgsql_count()",
        "SELECT immutable_count()",
        "SELECT caught(), caught()",
        "CALL commits()",
        "DO 'BEGIN PERFORM count(*) FROM t; END'",
        "EXPLAIN SELECT count(*) FROM t",
        "PREPARE p AS SELECT count(*) FROM t",
        "INSERT INTO parent VALUES (1), (2)",
        "BEGIN; INSERT INTO child VALUES (1); COMMIT",
        "UPDATE parent SET i = i + 10 WHERE i = 2",
        "DELETE FROM child",
        "VACUUM t",
        "CREATE INDEX ON t (i)",
        "SET work_mem = '4MB'",
        "TRUNCATE child",
    ] {
        client
            .simple_query(query)
            .unwrap_or_else(|error| panic!("{query}: {error:?}"));
        assert_eq!(server.gauge("used_slots"), 1, "{query}");
    }
    assert_eq!(
        server.gauge("total"),
        1,
        "only the holder has asked for slots"
    );
    // A superuser, and a session that is switched off.
    let mut superuser = server.cluster.connect(PRIMARY);
    assert_eq!(text(&mut superuser, "SELECT count(*)::text FROM t"), "1000");
    superuser
        .batch_execute("ALTER ROLE app SET enable_query_queue = off")
        .unwrap();
    assert_eq!(
        text(&mut server.app(), "SELECT count(*)::text FROM t"),
        "1000"
    );
    superuser
        .batch_execute("ALTER ROLE app RESET enable_query_queue")
        .unwrap();
    let refused = client.batch_execute("SET enable_query_queue = off");
    assert_eq!(
        error(refused.map(|()| String::new())).code().code(),
        "42501"
    );
    // Everything else waits, whatever way it comes.
    let waiting: Vec<_> = [
        "SELECT count(*) FROM t",
        "SELECT count(*) FROM t, pg_class WHERE i = 1",
        "WITH w AS MATERIALIZED (SELECT * FROM t) SELECT count(*) FROM w",
        "SELECT i FROM t WHERE i = 5 FOR UPDATE",
        "EXPLAIN ANALYZE SELECT count(*) FROM t",
        "PREPARE p AS SELECT count(*) FROM t; EXECUTE p",
        "BEGIN; DECLARE d CURSOR FOR SELECT * FROM t; FETCH 1 FROM d; COMMIT",
        "DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t",
        "INSERT INTO u SELECT i + 1000 FROM t",
        "CREATE TABLE v AS SELECT * FROM t",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM t; REFRESH MATERIALIZED VIEW m",
        "ANALYZE t",
        "ANALYZE",
    ]
    .into_iter()
    .map(|query| (query, server.waiting(server.app(), query)))
    .collect();
    assert_eq!(server.gauge("pending") as usize, waiting.len());
    assert_eq!(server.gauge("used_slots"), 1);
    drop(holder);
    for (query, thread) in waiting {
        thread
            .join()
            .expect("no panic")
            .unwrap_or_else(|error| panic!("{query}: {error:?}"));
    }
    server.wait_empty();
}

#[test]
fn waiting_ends_in_every_way() {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_max_queued_queries", "2"),
        ("parallel_replicas.query_queue_log_min_wait", "0"),
    ]);
    let holder = server.holder();

    // Cancelled.
    let client = server.app();
    let token = client.cancel_token();
    let thread = server.waiting(client, "SELECT count(*) FROM t");
    token.cancel_query(NoTls).unwrap();
    let cancelled = error(thread.join().unwrap());
    assert_eq!(cancelled.code().code(), "57014");
    server.wait_gauge("pending", 0);

    // Its own statement_timeout.
    let mut client = server.app();
    client
        .batch_execute("SET statement_timeout = '200ms'")
        .unwrap();
    let failed = error(
        client
            .batch_execute("SELECT * FROM t")
            .map(|()| String::new()),
    );
    assert_eq!(failed.code().code(), "57014");
    assert!(failed.message().contains("statement timeout"), "{failed}");
    server.wait_gauge("pending", 0);

    // Terminated, and the client gone.
    let mut client = server.app();
    let victim = pid(&mut client);
    let thread = server.waiting(client, "SELECT count(*) FROM t");
    let mut superuser = server.cluster.connect(PRIMARY);
    text(
        &mut superuser,
        &format!("SELECT pg_terminate_backend({victim})::text"),
    );
    assert!(thread.join().unwrap().is_err());
    server.wait_gauge("pending", 0);

    // The view, and the queue full.
    let first = server.waiting(server.app(), "SELECT count(*) FROM t");
    let second = server.waiting(server.app(), "SELECT count(*) FROM u");
    let view = text(
        &mut superuser,
        "SELECT string_agg(concat_ws(' ', usename, state, slots, position, admitted_by,
                                     blocked_reason), ', ' ORDER BY state DESC, position)
           FROM parallel_replicas.running_queries",
    );
    assert_eq!(
        view,
        "app RUNNING 1 scheduler, app PENDING 1 1 slots, app PENDING 1 2 order"
    );
    let event = text(
        &mut superuser,
        "SELECT string_agg(DISTINCT wait_event_type || ' ' || wait_event, ',')
           FROM pg_stat_activity a
           JOIN parallel_replicas.running_queries q USING (pid) WHERE q.state = 'PENDING'",
    );
    assert_eq!(event, "Extension Extension");
    let full = error(
        server
            .app()
            .simple_query("SELECT * FROM t")
            .map(|_| String::new()),
    );
    assert_eq!(full.code().code(), "53400");
    assert_eq!(full.message(), "query queue is full");
    let detail = full.detail().expect("a detail");
    assert!(
        detail.contains("2 statements are waiting already; 1 of 1 slots are held, by process"),
        "{detail}"
    );
    assert!(full.hint().expect("a hint").contains("max_queued_queries"));
    assert_eq!(server.gauge("rejected"), 1);
    assert_eq!(server.gauge("pending"), 2);
    // Whoever has something in hand does not need a place.
    let mut in_hand = server.app();
    in_hand
        .batch_execute("BEGIN; LOCK TABLE u IN SHARE MODE; SELECT count(*) FROM t; ROLLBACK")
        .unwrap();

    // Granted, each by the one before.
    drop(holder);
    assert_eq!(value(first), "1000");
    assert_eq!(value(second), "1000");
    server.wait_empty();
    assert!(
        server
            .cluster
            .log(PRIMARY)
            .contains("ms in the query queue for 1 slots")
    );

    // Waited too long.
    server.set("parallel_replicas.query_queue_pending_timeout_second", "1s");
    let holder = server.holder();
    let start = Instant::now();
    let late = error(
        server
            .app()
            .simple_query("SELECT * FROM t")
            .map(|_| String::new()),
    );
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert_eq!(late.code().code(), "57014");
    assert!(late.message().contains("query queue"), "{late}");
    assert!(
        late.hint()
            .expect("a hint")
            .contains("query_queue_pending_timeout_second")
    );
    assert_eq!(server.gauge("timeouts"), 1);
    drop(holder);
    server.wait_empty();
}

/// The session that holds the slot goes away while others wait: by an error, termination, or the
/// end of its connection; and a backend that is killed takes the whole queue with it.
#[test]
fn whoever_leaves_gives_its_slots_back() {
    let mut server = QueueServer::start(&[]);
    // Cancelled while it runs.
    let runner = server.app();
    let token = runner.cancel_token();
    let mut client = runner;
    let running = thread::spawn(move || {
        client
            .simple_query("SELECT pg_sleep(60) FROM t")
            .map(|_| String::new())
    });
    server.wait_gauge("used_slots", 1);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    token.cancel_query(NoTls).unwrap();
    assert_eq!(error(running.join().unwrap()).code().code(), "57014");
    assert_eq!(value(waiter), "1000");
    // An error of its own.
    let mut client = server.app();
    assert!(client.simple_query("SELECT 1 / (i - 500) FROM t").is_err());
    server.wait_empty();
    // Terminated.
    let mut holder = server.holder();
    let victim = pid(&mut holder);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    let mut superuser = server.cluster.connect(PRIMARY);
    text(
        &mut superuser,
        &format!("SELECT pg_terminate_backend({victim})::text"),
    );
    assert_eq!(value(waiter), "1000");
    server.wait_empty();
    // Killed: PostgreSQL starts over, with an empty queue.
    let mut holder = server.holder();
    let victim = pid(&mut holder);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    parallel_replicas_tests::system::signal(victim, parallel_replicas_tests::system::Signal::KILL);
    assert!(waiter.join().unwrap().is_err());
    wait_until(SOON, "the server is back", || {
        server.cluster.config(PRIMARY).connect(NoTls).is_ok()
    });
    server.wait_empty();
    assert_eq!(
        text(&mut server.app(), "SELECT count(*)::text FROM t"),
        "1000"
    );
    // And a shutdown does not wait for waiters.
    let holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    server
        .cluster
        .stop(PRIMARY, parallel_replicas_tests::StopMode::Fast);
    assert!(waiter.join().unwrap().is_err());
    drop(holder);
}

#[test]
fn transactions_and_cursors() {
    let server = QueueServer::start(&[]);
    // A slot is held once, however many portals are open, and until the last is closed.
    let mut client = server.app();
    client
        .batch_execute(
            "BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; DECLARE d CURSOR FOR SELECT * FROM u;
             FETCH 1 FROM c; FETCH 1 FROM d; SELECT count(*) FROM t",
        )
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client.batch_execute("CLOSE c").unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client.batch_execute("CLOSE d").unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    // Rolled back to a savepoint that a cursor was opened in.
    client
        .batch_execute(
            "SAVEPOINT s; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c;
             ROLLBACK TO s",
        )
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    // Executed in a savepoint, where it fails: it is dead, although it was opened outside.
    client
        .batch_execute(
            "DECLARE dead CURSOR FOR SELECT 1 / (i - 500) FROM t; SAVEPOINT s; FETCH 1 FROM dead",
        )
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client.batch_execute("ROLLBACK TO s").unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    let failed = client
        .batch_execute("FETCH ALL FROM dead")
        .map(|()| String::new());
    assert_eq!(error(failed).code().code(), "22012");
    client.batch_execute("ROLLBACK TO s").unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    // Released, it is the outer transaction's.
    client
        .batch_execute(
            "SAVEPOINT s; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c; RELEASE s;
             SAVEPOINT r; ROLLBACK TO r",
        )
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    // WITH HOLD: what is left after COMMIT needs nothing.
    client
        .batch_execute("BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t; FETCH 1 FROM h")
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    client.batch_execute("FETCH 5 FROM h; CLOSE h").unwrap();
    // A portal that is executed in portions holds its slot between them, as a driver's fetch size
    // makes it.
    let mut transaction = client.transaction().unwrap();
    let portal = transaction.bind("SELECT * FROM t", &[]).unwrap();
    assert_eq!(transaction.query_portal(&portal, 10).unwrap().len(), 10);
    assert_eq!(server.gauge("used_slots"), 1);
    transaction.commit().unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    // PREPARE TRANSACTION.
    client
        .batch_execute(
            "BEGIN; INSERT INTO t VALUES (0); DECLARE c CURSOR FOR SELECT * FROM t;
             FETCH 1 FROM c; PREPARE TRANSACTION 'p'",
        )
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 0);
    client.batch_execute("ROLLBACK PREPARED 'p'").unwrap();

    // With something in hand nobody waits: an xid, a lock, an advisory lock.
    let holder = server.holder();
    for (number, first) in [
        "INSERT INTO u VALUES (-1)",
        "LOCK TABLE u IN ROW SHARE MODE",
        "SELECT pg_advisory_xact_lock_shared(1)",
    ]
    .into_iter()
    .enumerate()
    {
        client
            .batch_execute(&format!("BEGIN; {first}; SELECT count(*) FROM t; ROLLBACK"))
            .unwrap();
        assert_eq!(server.gauge("admitted_in_transaction"), number as i64 + 1);
    }
    // With nothing in hand it does: drivers open transactions before every statement.
    let waiter = server.waiting(
        server.app(),
        "BEGIN; SELECT count(*) FROM pg_class; SELECT count(*) FROM t",
    );
    // A generic plan of the extended protocol.
    let mut extended = server.app();
    extended
        .batch_execute("SET plan_cache_mode = force_generic_plan")
        .unwrap();
    let generic = thread::spawn(move || {
        let statement = extended
            .prepare("SELECT count(*)::text FROM t WHERE i > $1")
            .unwrap();
        let row = extended.query_one(&statement, &[&0]).unwrap();
        row.get::<_, String>(0)
    });
    server.wait_gauge("pending", 2);
    drop(holder);
    value(waiter);
    assert_eq!(generic.join().unwrap(), "1000");
    server.wait_empty();
    // A function that runs queries, called by a query that holds the only slot.
    client
        .batch_execute(
            "CREATE FUNCTION inner_count(n int) RETURNS bigint LANGUAGE plpgsql AS
                 'BEGIN RETURN (SELECT count(*) FROM u WHERE i <= n); END';
             SELECT sum(inner_count(i)) FROM t WHERE i < 10",
        )
        .unwrap();
    server.wait_empty();
}

/// A function that decides at the start of a cheap query which partitions it reads: its own query is
/// part of that one, and does not wait in the middle of it.
#[test]
fn queries_of_pruning_do_not_queue() {
    let server = QueueServer::start(&[("parallel_replicas.query_queue_min_cost", "1000")]);
    let mut client = server.app();
    client
        .batch_execute(
            "CREATE TABLE parts (k bigint) PARTITION BY RANGE (k);
             CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (1000000);
             CREATE TABLE part2 PARTITION OF parts FOR VALUES FROM (1000000) TO (2000000);
             CREATE FUNCTION pruner() RETURNS bigint LANGUAGE plpgsql STABLE COST 1 AS
                 'BEGIN RETURN (SELECT count(*) FROM t a, t b); END';",
        )
        .unwrap();
    client
        .batch_execute("EXPLAIN ANALYZE SELECT * FROM parts WHERE k = pruner()")
        .unwrap();
    assert_eq!(server.gauge("total"), 0);
    client
        .batch_execute("SELECT count(*) FROM t a, t b")
        .unwrap();
    assert_eq!(server.gauge("total"), 1);
}

/// In READ COMMITTED a statement sees what was committed while it waited; above that it must not.
#[test]
fn a_statement_that_waited_is_not_stale() {
    let server = QueueServer::start(&[]);
    let mut holder = server.holder();
    let fresh = [
        "SELECT count(*) FROM t",
        "WITH w AS MATERIALIZED (SELECT * FROM t) SELECT count(*) FROM w",
        "PREPARE p AS SELECT count(*) FROM t; EXECUTE p",
        "BEGIN; SELECT count(*) FROM pg_class; DECLARE c CURSOR FOR SELECT count(*) FROM t;
         FETCH c; COMMIT",
        "CREATE TABLE copy_of_t AS SELECT * FROM t",
        "EXPLAIN ANALYZE SELECT * FROM t",
    ];
    let fresh: Vec<_> = fresh
        .into_iter()
        .map(|query| (query, server.waiting(server.app(), query)))
        .collect();
    let old = server.waiting(
        server.app(),
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t",
    );
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute("INSERT INTO t VALUES (1001)")
        .unwrap();
    // And it does not hold up row removal meanwhile, apart from those who must.
    let held = text(
        &mut superuser,
        "SELECT count(*)::text FROM pg_stat_activity a
           JOIN parallel_replicas.running_queries q USING (pid)
          WHERE q.state = 'PENDING' AND backend_xmin IS NOT NULL
            AND query NOT LIKE 'BEGIN%' AND query NOT LIKE 'PREPARE%'
            AND query NOT LIKE 'CREATE%' AND query NOT LIKE 'EXPLAIN%'",
    );
    assert_eq!(held, "0");
    holder.batch_execute("COMMIT").unwrap();
    for (query, thread) in fresh {
        let answer = value(thread);
        if query.starts_with("EXPLAIN") {
            continue;
        }
        if query.starts_with("CREATE") {
            let rows = text(&mut superuser, "SELECT count(*)::text FROM copy_of_t");
            assert_eq!(rows, "1001", "{query}");
        } else {
            assert_eq!(answer, "1001", "{query}");
        }
    }
    assert_eq!(value(old), "1000");
    server.wait_empty();
}

/// DDL waits for a waiter's lock, and so does the holder of the slot: nobody else can see that.
#[test]
fn a_waiter_that_blocks_somebody_runs() {
    let server = QueueServer::start(&[]);
    let mut holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM u");
    // The holder needs what the waiter has: without the watchdog both wait for ever.
    let start = Instant::now();
    holder
        .batch_execute("SET LOCAL statement_timeout = '30s'; ALTER TABLE u ADD COLUMN x int")
        .expect("the waiter is admitted");
    assert!(start.elapsed() < Duration::from_secs(20));
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(value(waiter), "1000");
    assert_eq!(server.gauge("admitted_blockers"), 1);
    server.wait_empty();

    server.set("parallel_replicas.query_queue_blocked_action", "error");
    let mut holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM u");
    holder
        .batch_execute("ALTER TABLE u ADD COLUMN y int; COMMIT")
        .expect("the waiter gives up");
    let failed = error(waiter.join().unwrap());
    assert_eq!(failed.code().code(), "40P01");
    assert!(failed.hint().is_some());
    server.wait_empty();

    server.set("parallel_replicas.query_queue_blocked_action", "ignore");
    let mut holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM u");
    let refused = holder
        .batch_execute("SET LOCAL lock_timeout = '1s'; ALTER TABLE u ADD COLUMN z int; COMMIT");
    assert_eq!(
        error(refused.map(|()| String::new())).code().code(),
        "55P03"
    );
    drop(holder);
    assert_eq!(value(waiter), "1000");
    server.wait_empty();
}

/// However long the queue is, DDL that a waiter blocks goes on after two deadlock timeouts at most: one
/// until the waiter looks, and some time for its statement.
#[test]
fn a_waiter_blocks_nobody_for_two_deadlock_timeouts() {
    const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(3);
    let timeout = format!("{}s", DEADLOCK_TIMEOUT.as_secs());
    let server = QueueServer::start(&[("deadlock_timeout", &timeout)]);
    let holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM u");
    let mut other = server.app();
    let start = Instant::now();
    other
        .batch_execute("ALTER TABLE u ADD COLUMN x int")
        .expect("the waiter is admitted");
    let taken = start.elapsed();
    assert!(taken < 2 * DEADLOCK_TIMEOUT, "{taken:?}");
    assert_eq!(value(waiter), "1000");
    // It was the queue that let it go: the slot is still held.
    assert_eq!(server.gauge("admitted_blockers"), 1);
    assert_eq!(server.gauge("used_slots"), 1);
    drop(holder);
    server.wait_empty();
}

/// What operators need goes through while the queue is full, even if superusers queue.
#[test]
fn tools_pass_a_full_queue() {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_bypass_superuser", "off"),
        ("parallel_replicas.query_queue_max_queued_queries", "1"),
        ("autovacuum", "on"),
        ("autovacuum_naptime", "1s"),
        ("wal_level", "logical"),
    ]);
    let holder = server.holder();
    let mut superuser = server.cluster.connect(PRIMARY);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    let program = |name: &str| {
        let mut command = installation().client_command(name);
        command
            .args(["-h", "127.0.0.1", "-U", "postgres"])
            .args(["-p", &server.cluster.port(PRIMARY).to_string()]);
        command
    };
    let dump = output_of(program("pg_dump").arg("postgres"));
    assert!(dump.contains("COPY public.t "), "no data in the dump");
    assert!(dump.contains("COPY parallel_replicas.resource_group "));
    let folder = tempfile::tempdir().expect("a temporary folder");
    output_of(
        program("pg_basebackup")
            .args(["--checkpoint=fast", "--wal-method=stream", "-D"])
            .arg(folder.path().join("backup")),
    );
    // What psql asks for \\d.
    output_of(program("psql").args(["-X", "-d", "postgres", "-c", "\\d+ t"]));
    output_of(program("vacuumdb").args(["postgres"]));
    // Somebody who comes to see what is wrong logs in, looks and ends it.
    let mut rescuer = server.cluster.connect(PRIMARY);
    let holders = text(
        &mut rescuer,
        "SELECT string_agg(usename, ',') FROM parallel_replicas.running_queries
          WHERE state = 'RUNNING'",
    );
    assert_eq!(holders, "app");
    completes(&server);
    replicates(&server);
    // Logical decoding, and autovacuum.
    superuser
        .batch_execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        .unwrap();
    superuser
        .batch_execute(
            "CREATE TABLE churn AS SELECT generate_series(1, 10000) AS i; DELETE FROM churn",
        )
        .unwrap();
    let changes = text(
        &mut superuser,
        "SELECT (count(*) > 10000)::text FROM pg_logical_slot_get_changes('s', NULL, NULL)",
    );
    assert_eq!(changes, "true");
    wait_until(SOON, "autovacuum comes", || {
        text(
            &mut superuser,
            "SELECT (coalesce(autovacuum_count, 0) > 0 AND coalesce(autoanalyze_count, 0) > 0)::text
               FROM pg_stat_all_tables WHERE relname = 'churn'",
        ) == "true"
    });
    assert_eq!(server.gauge("pending"), 1);
    drop(holder);
    assert_eq!(value(waiter), "1000");
    server.wait_empty();
}

/// psql completes a table's name when TAB is pressed, which it asks the server for. psql only does so on
/// a terminal, which script(1) provides.
fn completes(server: &QueueServer) {
    server
        .cluster
        .psql(PRIMARY, "CREATE TABLE completed_by_psql (i int)");
    let installation = installation();
    let psql = format!(
        "{} -X -h 127.0.0.1 -U postgres -p {} postgres",
        installation.client_command("psql").get_program().display(),
        server.cluster.port(PRIMARY)
    );
    let mut terminal = Command::new("timeout")
        .args(["--foreground", "60", "script"])
        .args(["--quiet", "--flush", "--command", &psql, "/dev/null"])
        .env("TERM", "dumb")
        .env("PAGER", "cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script, of the package bsdutils, is there");
    let mut input = terminal.stdin.take().expect("a pipe");
    let mut output = terminal.stdout.take().expect("a pipe");
    let mut seen = Vec::new();
    let mut read_until = |wanted: &str| {
        let mut byte = [0];
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let read = output.read(&mut byte).expect("psql runs");
            let text = String::from_utf8_lossy(&seen);
            assert!(read == 1, "psql has ended before \"{wanted}\": {text}");
            seen.push(byte[0]);
        }
    };
    read_until("postgres=# ");
    input.write_all(b"TABLE completed_b\t").expect("psql runs");
    read_until("completed_by_psql");
    input.write_all(b";\n\\q\n").expect("psql runs");
    drop(input);
    terminal.wait().expect("psql ends");
}

/// A subscription copies a table and follows it: table synchronisation, walsender and apply worker.
fn replicates(server: &QueueServer) {
    let mut publisher = server.cluster.connect(PRIMARY);
    publisher
        .batch_execute(
            "CREATE TABLE published (i int PRIMARY KEY);
             INSERT INTO published SELECT generate_series(1, 100);
             CREATE PUBLICATION publication FOR TABLE published",
        )
        .expect("publication");
    publisher
        .batch_execute("CREATE DATABASE subscriber")
        .expect("database");
    // Both are one server, where CREATE SUBSCRIPTION cannot make the slot itself.
    publisher
        .batch_execute("SELECT pg_create_logical_replication_slot('subscription', 'pgoutput')")
        .expect("slot");
    let mut subscriber = server.cluster.connect_db(PRIMARY, "subscriber");
    subscriber
        .batch_execute(&format!(
            "CREATE TABLE published (i int PRIMARY KEY);
             CREATE SUBSCRIPTION subscription
                 CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=postgres'
                 PUBLICATION publication WITH (create_slot = false)",
            server.cluster.port(PRIMARY)
        ))
        .expect("subscription");
    publisher
        .batch_execute("INSERT INTO published VALUES (1000)")
        .expect("insert");
    // Of the catalog, so that it does not queue: this superuser would.
    wait_until(SOON, "the rows have been copied and followed", || {
        text(
            &mut subscriber,
            "SELECT coalesce(sum(n_tup_ins), 0)::text FROM pg_stat_all_tables
              WHERE relname = 'published'",
        ) == "101"
    });
    subscriber
        .batch_execute("DROP SUBSCRIPTION subscription")
        .expect("drop");
}

/// Nobody wonders why nothing happens.
#[test]
fn a_client_that_waits_is_told() {
    let server = QueueServer::start(&[]);
    let holder = server.holder();
    let (sender, notices) = std::sync::mpsc::channel();
    let mut config = server.cluster.config(PRIMARY);
    config.user("app").notice_callback(move |notice| {
        let _ = sender.send(notice);
    });
    let mut client = config.connect(NoTls).unwrap();
    let thread = thread::spawn(move || client.simple_query("SELECT count(*) FROM t").map(|_| ()));
    let notice = notices.recv_timeout(SOON).expect("a notice");
    assert_eq!(notice.severity(), "NOTICE");
    assert_eq!(notice.message(), "statement is waiting in the query queue");
    let detail = notice.detail().expect("a detail");
    assert!(
        detail.starts_with("It waits for 1 slots at position 1; 1 of 1 slots are held, by process"),
        "{detail}"
    );
    drop(holder);
    thread.join().unwrap().unwrap();
    server.wait_empty();
}
