//! `queue soak FILE`: 64 clients for SOAK_SECONDS (600) with queries of 1 to 16 slots on 16 slots, which
//! become 4 and 16 again, and cancels, terminations, errors, savepoints, cursors, prepared statements.
//! While it runs, slots held are never above the total but for what was counted, or held when the total fell;
//! a statement that needs more than all of them runs alone; no statement takes longer than [`LONGEST`],
//! and none fails but as it was made to; at the end nothing is held. Fails otherwise.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::PRIMARY;
use parallel_replicas_tests::queue_server::QueueServer;
use postgres::error::DbError;
use postgres::{Client, NoTls};

use crate::number;

const CLIENTS: u64 = 64;

/// How long a statement may wait. There is no statement_timeout that would end it before.
const PENDING_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a statement may take, its wait included. After a quarter of the timeout no newcomer is preferred
/// to it; then those in front of it have to end.
const LONGEST: Duration = Duration::from_secs(45);

/// Between changes of settings.
const CHANGE_INTERVAL: Duration = Duration::from_secs(5);

/// How many statements a request to cancel can end: PostgreSQL signals the process, and then its group again
/// (signal_child in postmaster.c), and the first statement may have ended in between.
const STATEMENTS_PER_CANCEL: u32 = 2;

/// Strategies and cores, which are taken by turns. At level 1 there is a slot for four cores.
const CHANGES: [(&str, &str); 4] = [("SJF", "64"), ("SJF", "16"), ("SWRR", "16"), ("SWRR", "64")];

/// What the clients of the soak have done.
#[derive(Default)]
struct Done {
    stop: AtomicBool,
    statements: AtomicU64,
    cancelled: AtomicU64,
    terminated: AtomicU64,
    failed: AtomicU64,
    longest_ms: AtomicU64,
    /// What must not happen; one is enough.
    unexpected: Mutex<Vec<String>>,
}

impl Done {
    fn add(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn report(&self, what: String) {
        self.unexpected
            .lock()
            .expect("nobody panics with it")
            .push(what);
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the views have shown.
#[derive(Default)]
struct Seen {
    looks: u64,
    /// Looks at a statement with more slots than there are, which runs alone.
    oversized: u64,
    most_pending: i64,
    most_slots: i64,
    longest_wait_ms: i64,
    /// Slots at the look before.
    total: i64,
    /// What may be held above the total: what was held at the look before, if several held it.
    leftover: i64,
}

impl Seen {
    fn look(&mut self, watcher: &mut Client) {
        let row = watcher
            .query_one(
                "SELECT coalesce(sum(slots) FILTER (WHERE runs), 0)::bigint,
                        count(*) FILTER (WHERE runs),
                        count(*) FILTER (WHERE state = 'PENDING'),
                        coalesce(max(wait_ms), 0)::bigint,
                        (SELECT value::bigint FROM parallel_replicas.query_queue
                          WHERE metric = 'max_slots')
                   FROM (SELECT state = 'RUNNING' AND admitted_by = 'scheduler' AS runs, *
                           FROM parallel_replicas.running_queries) q",
                &[],
            )
            .expect("the views answer");
        let (slots, running, pending, wait_ms, total): (i64, i64, i64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
        // The total may have changed since the last look, or in the middle of this one.
        let most = total.max(self.total).max(self.leftover);
        assert!(
            slots <= most || running == 1,
            "{running} statements hold {slots} slots, and there are {total}, {} before",
            self.total
        );
        self.total = total;
        self.leftover = if running > 1 { slots } else { 0 };
        self.looks += 1;
        self.oversized += u64::from(running == 1 && slots > most);
        self.most_pending = self.most_pending.max(pending);
        self.most_slots = self.most_slots.max(slots);
        self.longest_wait_ms = self.longest_wait_ms.max(wait_ms);
    }
}

pub fn run() -> String {
    let seconds = number("SOAK_SECONDS", 600);
    let timeout = format!("{}s", PENDING_TIMEOUT.as_secs());
    let server = QueueServer::start(&[
        // Need by cost, so that the queries below need 1 to 16 slots; level 1 makes the cap the total.
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        ("parallel_replicas.query_queue_v2_cpu_costs_per_slot", "600"),
        ("parallel_replicas.query_queue_v2_concurrency_level", "1"),
        ("parallel_replicas.query_queue_cores", "64"),
        (
            "parallel_replicas.query_queue_pending_timeout_second",
            &timeout,
        ),
        // Those that were terminated may still be there when the next ones connect.
        ("max_connections", "300"),
    ]);
    println!("{CLIENTS} clients for {seconds} s");
    let done = Done::default();
    let mut config = server.cluster.config(PRIMARY);
    config.user("app");
    let mut seen = Seen::default();
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (config, done) = (&config, &done);
            scope.spawn(move || soak_client(config, number, done));
        }
        // Also if this thread panics, as otherwise the clients would go on for ever.
        let _stop = Stop(&done);
        watch(&server, &done, &mut seen, Duration::from_secs(seconds));
    });
    server.wait_empty();
    let unexpected = done.unexpected.lock().expect("nobody has panicked");
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    assert_eq!(server.gauge("timeouts"), 0, "somebody starved");
    assert_eq!(server.gauge("rejected"), 0, "the queue is long enough");
    let figures = figures(&server, &done, &seen, seconds);
    println!("{figures}nothing is left");
    figures
}

/// Stops the clients when it is dropped.
struct Stop<'a>(&'a Done);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Looks at the views and changes settings, until time is up or something has gone wrong.
fn watch(server: &QueueServer, done: &Done, seen: &mut Seen, time: Duration) {
    let mut watcher = server.cluster.connect(PRIMARY);
    let start = Instant::now();
    let (mut changes, mut next_change) = (0, start + CHANGE_INTERVAL);
    while start.elapsed() < time && !done.is_over() {
        seen.look(&mut watcher);
        if next_change <= Instant::now() {
            next_change = Instant::now() + CHANGE_INTERVAL;
            changes += 1;
            let (strategy, cores) = CHANGES[changes % CHANGES.len()];
            for (name, value) in [("v2_schedule_strategy", strategy), ("cores", cores)] {
                watcher
                    .batch_execute(&format!(
                        "ALTER SYSTEM SET parallel_replicas.query_queue_{name} = '{value}'"
                    ))
                    .expect("the setting is changed");
            }
            server.cluster.reload(PRIMARY);
        }
    }
    // Two turns of four changes at least.
    assert!(
        done.is_over() || changes < 2 * CHANGES.len() || seen.oversized > 0,
        "nothing needed more slots than there are"
    );
}

fn figures(server: &QueueServer, done: &Done, seen: &Seen, seconds: u64) -> String {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "{{\"soak\": \"queue\", \"seconds\": {seconds}, \"clients\": {CLIENTS}, \
         \"statements\": {}, \"failed\": {}, \"cancels\": {}, \"terminations\": {}, \
         \"longest_ms\": {}, \"longest_wait_ms\": {}, \"looks\": {}, \"oversized\": {}, \
         \"most_pending\": {}, \"most_slots\": {}, \"admitted_in_transaction\": {}, \
         \"admitted_blockers\": {}}}\n",
        load(&done.statements),
        load(&done.failed),
        load(&done.cancelled),
        load(&done.terminated),
        load(&done.longest_ms),
        seen.longest_wait_ms,
        seen.looks,
        seen.oversized,
        seen.most_pending,
        seen.most_slots,
        server.gauge("admitted_in_transaction"),
        server.gauge("admitted_blockers"),
    )
}

fn soak_client(config: &postgres::Config, number: u64, done: &Done) {
    let mut random = fastrand::Rng::with_seed(number);
    let mut session = || -> Result<(), String> {
        let connected = config.connect(NoTls);
        let mut client = connected.map_err(|error| format!("connecting: {error:?}"))?;
        client
            .batch_execute("PREPARE p AS SELECT count(*) FROM t")
            .map_err(|error| format!("preparing: {error:?}"))?;
        let mut cancels = 0;
        while !done.is_over() && soak_step(&mut client, &mut random, &mut cancels, done)? {}
        Ok(())
    };
    while !done.is_over() {
        if let Err(what) = session() {
            done.report(what);
        }
    }
}

/// What a statement is to end with, unless it is cancelled.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Success,
    DivisionByZero,
    /// Of its session.
    Termination,
}

/// A statement or transaction.
fn soak_query(random: &mut fastrand::Rng) -> (String, End) {
    let rows = random.u32(1..20) * 50;
    let query = match random.u8(0..14) {
        0 => "EXECUTE p".to_owned(),
        1 => "BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 10 FROM c; COMMIT".to_owned(),
        2 => "BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c; \
              ROLLBACK TO s; SELECT count(*) FROM t; COMMIT"
            .to_owned(),
        3 => {
            let query = format!("SELECT count(*), sum(1 / (i - {rows})) FROM t");
            return (query, End::DivisionByZero);
        }
        4 => "BEGIN; CREATE TEMP TABLE x (i int) ON COMMIT DROP; \
              INSERT INTO x SELECT i FROM t; COMMIT"
            .to_owned(),
        5 => "BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t; COMMIT; CLOSE h".to_owned(),
        6 => "ANALYZE t".to_owned(),
        7 => "DO 'BEGIN BEGIN PERFORM 1 / count(*) FROM t WHERE false; \
              EXCEPTION WHEN division_by_zero THEN NULL; END; END'"
            .to_owned(),
        _ => format!("SELECT count(*) FROM t, (SELECT * FROM u LIMIT {rows}) v WHERE t.i < v.i"),
    };
    (query, End::Success)
}

/// One statement or transaction, which may be cut short. False if the session is over; an error is
/// something that must not happen. `cancels`: how many statements may still be ended by this session's own.
fn soak_step(
    client: &mut Client,
    random: &mut fastrand::Rng,
    cancels: &mut u32,
    done: &Done,
) -> Result<bool, String> {
    let (mut query, mut end) = soak_query(random);
    let cut = random.u8(0..40);
    let canceller = (cut < 2).then(|| {
        let token = client.cancel_token();
        let after = Duration::from_millis(random.u64(0..30));
        *cancels += STATEMENTS_PER_CANCEL;
        done.add(&done.cancelled);
        thread::spawn(move || {
            // The moment is the point, not a condition.
            thread::sleep(after);
            token.cancel_query(NoTls)
        })
    });
    if cut == 2 {
        // In the middle of its own statement, while it may hold a slot.
        done.add(&done.terminated);
        "SELECT count(*), pg_terminate_backend(pg_backend_pid()) FROM t".clone_into(&mut query);
        end = End::Termination;
    }
    let start = Instant::now();
    let outcome = client.simple_query(&query);
    let taken = start.elapsed();
    done.longest_ms
        .fetch_max(taken.as_millis() as u64, Ordering::Relaxed);
    done.add(&done.statements);
    if let Some(canceller) = canceller {
        let sent = canceller.join().expect("no panic");
        sent.map_err(|error| format!("cancelling: {error:?}"))?;
    }
    if taken > LONGEST {
        return Err(format!("{taken:?} were too long: {query}"));
    }
    let failed = outcome.err();
    done.failed
        .fetch_add(u64::from(failed.is_some()), Ordering::Relaxed);
    check(failed.as_ref(), end, cancels).map_err(|what| format!("{what}: {query}"))?;
    if end == End::Termination {
        return Ok(false);
    }
    if failed.is_some() {
        clean_up(client, cancels)?;
    }
    Ok(true)
}

/// Is that how the statement was to end?
fn check(failed: Option<&postgres::Error>, end: End, cancels: &mut u32) -> Result<(), String> {
    let code = failed
        .and_then(postgres::Error::as_db_error)
        .map(|error| error.code().code());
    let is_as_meant = match end {
        End::Success => failed.is_none(),
        End::DivisionByZero => code == Some("22012"),
        // The client forgets the error if the end of the connection comes with it, and an answer may be faster.
        End::Termination => match failed {
            Some(error) => code == Some("57P01") || error.is_closed(),
            None => true,
        },
    };
    if is_as_meant || is_cancel(failed.and_then(postgres::Error::as_db_error), cancels) {
        return Ok(());
    }
    Err(match failed {
        Some(error) => format!("{error:?}"),
        None => "no error".to_owned(),
    })
}

/// Is it one of this session's own cancels, which may come late?
fn is_cancel(failed: Option<&DbError>, cancels: &mut u32) -> bool {
    let is_own = *cancels > 0
        && failed.is_some_and(|error| {
            error.code().code() == "57014"
                && error.message() == "canceling statement due to user request"
        });
    *cancels -= u32::from(is_own);
    is_own
}

/// Ends what a statement that failed may have left in its session.
fn clean_up(client: &mut Client, cancels: &mut u32) -> Result<(), String> {
    while let Err(failed) = client.batch_execute("ROLLBACK; CLOSE ALL") {
        if !is_cancel(failed.as_db_error(), cancels) {
            return Err(format!("cleaning up: {failed:?}"));
        }
    }
    Ok(())
}
