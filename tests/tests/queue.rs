//! The query queue on a real server: who waits, who does not, and that every slot comes back.
//!
//! All tests run with one slot. A client that holds it does so with an open cursor, so that nothing
//! here depends on how long a query takes.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};
use postgres::error::DbError;
use postgres::{Client, NoTls};

/// A server whose role `app` queues for the only slot.
struct Server {
    cluster: Cluster,
}

type Answer = Result<String, postgres::Error>;

impl Server {
    #[track_caller]
    fn start(settings: &[(&str, &str)]) -> Self {
        let mut options = Cluster::builder()
            .autovacuum(false)
            .setting("parallel_replicas.enable_query_queue_select", "on")
            .setting("parallel_replicas.enable_query_queue_load", "on")
            .setting("parallel_replicas.enable_query_queue_statistic", "on")
            .setting("parallel_replicas.query_queue_cores", "1")
            .setting("max_parallel_workers_per_gather", "0")
            .setting("deadlock_timeout", "100ms");
        for (name, value) in settings {
            options = options.setting(name, value);
        }
        let cluster = options.start();
        cluster.psql(
            PRIMARY,
            "CREATE EXTENSION parallel_replicas;
             CREATE ROLE app LOGIN;
             GRANT ALL ON SCHEMA public TO app;
             SET ROLE app;
             CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
             CREATE TABLE u AS SELECT generate_series(1, 1000) AS i;
             ALTER TABLE u ADD PRIMARY KEY (i);
             RESET ROLE;
             VACUUM ANALYZE t, u;",
        );
        Server { cluster }
    }

    #[track_caller]
    fn app(&self) -> Client {
        let mut client = self.cluster.connect_as(PRIMARY, "app");
        // Whoever waits although nobody should fails by this.
        client
            .batch_execute("SET statement_timeout = '60s'")
            .unwrap();
        client
    }

    /// A client that holds the slot until it is dropped or ends its transaction.
    #[track_caller]
    fn holder(&self) -> Client {
        let mut client = self.app();
        client
            .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
            .expect("the slot is free");
        client
    }

    /// Starts a query in a thread and returns when it waits in the queue. Its answer is the last
    /// row's first value.
    #[track_caller]
    fn waiting(&self, mut client: Client, query: &str) -> JoinHandle<Answer> {
        let before = self.gauge("pending");
        let query = query.to_owned();
        let thread = thread::spawn(move || {
            let rows = client.simple_query(&query)?;
            Ok(rows
                .iter()
                .filter_map(|message| match message {
                    postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                })
                .next_back()
                .unwrap_or_default())
        });
        wait_until(SOON, "the query waits", || {
            assert!(
                !thread.is_finished() || self.gauge("pending") > before,
                "the query did not wait"
            );
            self.gauge("pending") > before
        });
        thread
    }

    #[track_caller]
    fn gauge(&self, metric: &str) -> i64 {
        let mut client = self.cluster.connect(PRIMARY);
        let query = format!(
            "SELECT value::bigint::text FROM parallel_replicas.query_queue WHERE metric = '{metric}'"
        );
        text(&mut client, &query).parse().expect("a number")
    }

    #[track_caller]
    fn wait_gauge(&self, metric: &str, value: i64) {
        wait_until(SOON, &format!("{metric} is {value}"), || {
            self.gauge(metric) == value
        });
    }

    /// Nothing is left behind.
    #[track_caller]
    fn is_empty(&self) {
        for metric in ["running", "pending", "used_slots"] {
            self.wait_gauge(metric, 0);
        }
        let mut client = self.cluster.connect(PRIMARY);
        let rows = text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.running_queries",
        );
        assert_eq!(rows, "0");
    }

    /// Changes a setting on the running server, and returns when it is in force in new sessions.
    #[track_caller]
    fn set(&self, name: &str, value: &str) {
        self.cluster.configure(PRIMARY, name, value);
        self.cluster.reload(PRIMARY);
        wait_until(SOON, "the setting is in force", || {
            let mut client = self.cluster.connect(PRIMARY);
            text(&mut client, &format!("SHOW {name}")) == value
        });
    }
}

fn pid(client: &mut Client) -> i32 {
    text(client, "SELECT pg_backend_pid()::text")
        .parse()
        .expect("a process id")
}

#[track_caller]
fn error(answer: Answer) -> DbError {
    let error = answer.expect_err("an error");
    error.as_db_error().expect("the server's own error").clone()
}

#[track_caller]
fn value(thread: JoinHandle<Answer>) -> String {
    thread
        .join()
        .expect("no panic")
        .unwrap_or_else(|error| panic!("{error:?}"))
}

#[test]
fn who_queues_and_who_does_not() {
    let server = Server::start(&[]);
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
    server.is_empty();
}

#[test]
fn waiting_ends_in_every_way() {
    let server = Server::start(&[
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
    server.is_empty();
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
    server.is_empty();
}

/// The session that holds the slot goes away while others wait: by an error, termination, or the
/// end of its connection; and a backend that is killed takes the whole queue with it.
#[test]
fn whoever_leaves_gives_its_slots_back() {
    let mut server = Server::start(&[]);
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
    server.is_empty();
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
    server.is_empty();
    // Killed: PostgreSQL starts over, with an empty queue.
    let mut holder = server.holder();
    let victim = pid(&mut holder);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    parallel_replicas_tests::system::signal(victim, parallel_replicas_tests::system::Signal::KILL);
    assert!(waiter.join().unwrap().is_err());
    wait_until(SOON, "the server is back", || {
        server.cluster.config(PRIMARY).connect(NoTls).is_ok()
    });
    server.is_empty();
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
    let server = Server::start(&[]);
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
    server.is_empty();
    // A function that runs queries, called by a query that holds the only slot.
    client
        .batch_execute(
            "CREATE FUNCTION inner_count(n int) RETURNS bigint LANGUAGE plpgsql AS
                 'BEGIN RETURN (SELECT count(*) FROM u WHERE i <= n); END';
             SELECT sum(inner_count(i)) FROM t WHERE i < 10",
        )
        .unwrap();
    server.is_empty();
}

/// In READ COMMITTED a statement sees what was committed while it waited; above that it must not.
#[test]
fn a_statement_that_waited_is_not_stale() {
    let server = Server::start(&[]);
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
    server.is_empty();
}

/// DDL waits for a waiter's lock, and so does the holder of the slot: nobody else can see that.
#[test]
fn a_waiter_that_blocks_somebody_runs() {
    let server = Server::start(&[]);
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
    server.is_empty();

    server.set("parallel_replicas.query_queue_blocked_action", "error");
    let mut holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM u");
    holder
        .batch_execute("ALTER TABLE u ADD COLUMN y int; COMMIT")
        .expect("the waiter gives up");
    let failed = error(waiter.join().unwrap());
    assert_eq!(failed.code().code(), "40P01");
    assert!(failed.hint().is_some());
    server.is_empty();

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
    server.is_empty();
}

#[test]
fn settings_apply_to_those_who_wait() {
    let server = Server::start(&[]);
    let holder = server.holder();
    let waiters: Vec<_> = (0..4)
        .map(|_| server.waiting(server.app(), "SELECT pg_sleep(0.01) FROM t LIMIT 1"))
        .collect();
    // More slots: two more may run.
    server.set("parallel_replicas.query_queue_v2_schedule_strategy", "SJF");
    server.set("parallel_replicas.query_queue_cores", "2");
    for waiter in waiters {
        value(waiter);
    }
    server.set("parallel_replicas.query_queue_cores", "1");
    // Switched off: everybody is admitted.
    let waiters: Vec<_> = (0..4)
        .map(|_| server.waiting(server.app(), "SELECT count(*) FROM t"))
        .collect();
    server.set("parallel_replicas.enable_query_queue_select", "off");
    for waiter in waiters {
        assert_eq!(value(waiter), "1000");
    }
    drop(holder);
    server.is_empty();
    // Cheap statements pass, and slots by cost.
    server.set("parallel_replicas.enable_query_queue_select", "on");
    server.set("parallel_replicas.query_queue_min_cost", "1000");
    let mut client = server.app();
    let before = server.gauge("total");
    client.batch_execute("SELECT * FROM t WHERE i = 1").unwrap();
    assert_eq!(server.gauge("total"), before);
    client
        .batch_execute("SELECT count(*) FROM t a, t b")
        .unwrap();
    assert_eq!(server.gauge("total"), before + 1);
    server.set("parallel_replicas.query_queue_min_cost", "0");
    // The transaction keeps the slot, if that is wanted.
    server.set("parallel_replicas.query_queue_scope", "transaction");
    let mut client = server.app();
    client
        .batch_execute("BEGIN; SELECT count(*) FROM t")
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client
        .batch_execute("SELECT count(*) FROM t; COMMIT")
        .unwrap();
    server.is_empty();
}

#[test]
fn explain_shows_the_slots() {
    let server = Server::start(&[
        ("parallel_replicas.query_queue_cores", "8"),
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        ("parallel_replicas.query_queue_v2_cpu_costs_per_slot", "10"),
        ("parallel_replicas.query_queue_v2_concurrency_level", "2"),
    ]);
    let mut client = server.app();
    let plan = |client: &mut Client, query: &str| -> String {
        client
            .query(query, &[])
            .unwrap()
            .iter()
            .map(|row| row.get::<_, String>(0) + "\n")
            .collect()
    };
    // 8 cores at level 2 are 4 slots, of which one statement gets half.
    let cheap = plan(&mut client, "EXPLAIN SELECT * FROM u WHERE i = 1");
    assert!(cheap.contains("\nQueue: slots 1\n"), "{cheap}");
    let dear = plan(&mut client, "EXPLAIN ANALYZE SELECT count(*) FROM t, u");
    assert!(dear.contains("\nQueue: slots 2\n"), "{dear}");
    let none = plan(&mut client, "EXPLAIN SELECT 1");
    assert!(!none.contains("Queue"), "{none}");
    server.is_empty();
}

#[test]
fn resource_groups() {
    let mut server = Server::start(&[
        ("parallel_replicas.query_queue_cores", "16"),
        ("parallel_replicas.enable_group_level_query_queue", "on"),
        ("parallel_replicas.report_resource_usage_interval_ms", "100"),
    ]);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute(
            "SELECT parallel_replicas.create_resource_group('one', 1);
             SELECT parallel_replicas.create_resource_group('two', 2);
             CREATE ROLE app2 LOGIN IN ROLE app;
             ALTER ROLE app SET parallel_replicas.resource_group = 'one'",
        )
        .unwrap();
    let state = |superuser: &mut Client| {
        text(
            superuser,
            "SELECT string_agg(concat_ws(' ', name, concurrency_limit, running, pending), ', '
                               ORDER BY name)
               FROM parallel_replicas.resource_groups",
        )
    };
    // The group holds its own up, and nobody else.
    let holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    assert_eq!(state(&mut superuser), "one 1 1 1, two 2 0 0");
    let reason = text(
        &mut superuser,
        "SELECT resource_group || ' ' || blocked_reason
           FROM parallel_replicas.running_queries WHERE state = 'PENDING'",
    );
    assert_eq!(reason, "one group_limit");
    let mut other = server.cluster.connect_as(PRIMARY, "app2");
    assert_eq!(text(&mut other, "SELECT count(*)::text FROM t"), "1000");
    // Rolled back, a change is none; committed, it is for those who wait too.
    superuser
        .batch_execute(
            "BEGIN; SELECT parallel_replicas.alter_resource_group('one', 5); ROLLBACK;
             BEGIN; SAVEPOINT s; SELECT parallel_replicas.drop_resource_group('one');
             ROLLBACK TO s; COMMIT",
        )
        .unwrap();
    assert_eq!(server.gauge("pending"), 1);
    superuser
        .batch_execute("SELECT parallel_replicas.alter_resource_group('one', 2)")
        .unwrap();
    assert_eq!(value(waiter), "1000");
    superuser
        .batch_execute("SELECT parallel_replicas.alter_resource_group('one', 1)")
        .unwrap();
    // Dropped while somebody waits.
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    superuser
        .batch_execute("SELECT parallel_replicas.drop_resource_group('one')")
        .unwrap();
    assert_eq!(value(waiter), "1000");
    drop(holder);
    server.is_empty();
    // A name that no group has limits nobody; a group made later does.
    let holder = server.holder();
    assert_eq!(
        text(&mut server.app(), "SELECT count(*)::text FROM t"),
        "1000"
    );
    drop(holder);
    superuser
        .batch_execute("SELECT parallel_replicas.create_resource_group('one', 0, 0.2)")
        .unwrap();
    // CPU: while one of the group computes, another one waits.
    let mut busy = server.app();
    let token = busy.cancel_token();
    let computing = thread::spawn(move || {
        busy.simple_query("SELECT count(*) FROM t a, t b, t c, t d")
            .map(|_| String::new())
    });
    server.wait_gauge("running", 1);
    let waits = |superuser: &mut Client| {
        text(
            superuser,
            "SELECT coalesce(max(cpu_cores), 0)::text FROM parallel_replicas.resource_groups",
        )
        .parse::<f64>()
        .expect("a number")
    };
    wait_until(SOON, "the group is seen to compute", || {
        let mut client = server.app();
        client
            .batch_execute("SET statement_timeout = '1s'")
            .unwrap();
        client.simple_query("SELECT count(*) FROM t").is_err() && waits(&mut superuser) >= 0.2
    });
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    token.cancel_query(NoTls).unwrap();
    assert_eq!(error(computing.join().unwrap()).code().code(), "57014");
    assert_eq!(value(waiter), "1000");
    server.is_empty();
    // Errors.
    let mut refuse = |query: &str| {
        let failed = superuser.batch_execute(query).map(|()| String::new());
        error(failed).code().code().to_owned()
    };
    let long = format!(
        "SELECT parallel_replicas.create_resource_group('{}')",
        "x".repeat(64)
    );
    assert_eq!(refuse(&long), "42602");
    assert_eq!(
        refuse("SELECT parallel_replicas.create_resource_group('two')"),
        "42710"
    );
    assert_eq!(
        refuse("SELECT parallel_replicas.alter_resource_group('three')"),
        "42704"
    );
    assert_eq!(
        refuse("SELECT parallel_replicas.drop_resource_group('three')"),
        "42704"
    );
    assert_eq!(
        refuse("SELECT parallel_replicas.create_resource_group('four', -1)"),
        "23514"
    );
    let denied = server
        .app()
        .batch_execute("SELECT parallel_replicas.drop_resource_group('two')")
        .map(|()| String::new());
    assert_eq!(error(denied).code().code(), "42501");
    // Definitions outlive a restart.
    drop(superuser);
    drop(other);
    server
        .cluster
        .restart(PRIMARY, parallel_replicas_tests::StopMode::Fast);
    let holder = server.holder();
    let mut superuser = server.cluster.connect(PRIMARY);
    assert_eq!(state(&mut superuser), "one 0 1 0, two 2 0 0");
    drop(holder);
}
