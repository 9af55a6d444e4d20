//! `queue soak FILE`: 64 clients for SOAK_SECONDS (600) with queries of 1 to 16 slots on 16 slots, and
//! cancels, terminations, errors, savepoints, cursors, prepared statements, settings that change.
//! While it runs, slots held are never above the total but for what was counted; nobody waits longer
//! than the timeout; at the end nothing is held. Fails otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::PRIMARY;
use parallel_replicas_tests::queue_server::QueueServer;
use postgres::{Client, NoTls};

use crate::number;

/// What the clients of the soak have done.
#[derive(Default)]
struct Done {
    statements: AtomicU64,
    cancelled: AtomicU64,
    terminated: AtomicU64,
    failed: AtomicU64,
    longest_ms: AtomicU64,
}

pub fn run() -> String {
    const CLIENTS: usize = 64;
    let seconds = number("SOAK_SECONDS", 600);
    let server = QueueServer::start(&[
        // Need by cost, so that the queries below need 1 to 16 slots; level 1 makes the cap the total.
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        ("parallel_replicas.query_queue_v2_cpu_costs_per_slot", "600"),
        ("parallel_replicas.query_queue_v2_concurrency_level", "1"),
        ("parallel_replicas.query_queue_cores", "64"),
    ]);
    println!("{CLIENTS} clients for {seconds} s");
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(Done::default());
    let config = server.cluster.config(PRIMARY);
    let clients: Vec<_> = (0..CLIENTS as u64)
        .map(|number| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            let mut config = config.clone();
            config.user("app");
            thread::spawn(move || soak_client(&config, number, &stop, &done))
        })
        .collect();
    let mut watcher = server.cluster.connect(PRIMARY);
    let start = Instant::now();
    let (mut looks, mut most_pending, mut most_slots, mut switch) = (0_u64, 0, 0, false);
    let mut next_switch = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        let row = watcher
            .query_one(
                "SELECT coalesce(sum(slots) FILTER (WHERE state = 'RUNNING'
                                                      AND admitted_by = 'scheduler'), 0)::bigint,
                        count(*) FILTER (WHERE state = 'PENDING'),
                        count(*) FILTER (WHERE state = 'RUNNING'),
                        (SELECT value::bigint FROM parallel_replicas.query_queue
                          WHERE metric = 'max_slots')
                   FROM parallel_replicas.running_queries",
                &[],
            )
            .expect("the views answer");
        let (slots, pending, running, total): (i64, i64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        assert!(
            slots <= total || running == 1,
            "{slots} slots are held, and there are {total}"
        );
        looks += 1;
        most_pending = most_pending.max(pending);
        most_slots = most_slots.max(slots);
        if next_switch <= Instant::now() {
            next_switch = Instant::now() + Duration::from_secs(5);
            switch = !switch;
            let strategy = if switch { "SJF" } else { "SWRR" };
            server.cluster.configure(
                PRIMARY,
                "parallel_replicas.query_queue_v2_schedule_strategy",
                strategy,
            );
            server.cluster.reload(PRIMARY);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("a client does not panic");
    }
    drop(watcher);
    server.wait_empty();
    assert_eq!(server.gauge("timeouts"), 0, "somebody starved");
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let text = format!(
        "{{\"soak\": \"queue\", \"seconds\": {seconds}, \"clients\": {CLIENTS}, \
         \"statements\": {}, \"failed\": {}, \"cancels\": {}, \"terminations\": {}, \
         \"longest_ms\": {}, \"looks\": {looks}, \"most_pending\": {most_pending}, \
         \"most_slots\": {most_slots}, \"admitted_in_transaction\": {}, \"admitted_blockers\": {}}}\n",
        load(&done.statements),
        load(&done.failed),
        load(&done.cancelled),
        load(&done.terminated),
        load(&done.longest_ms),
        server.gauge("admitted_in_transaction"),
        server.gauge("admitted_blockers"),
    );
    println!("{text}nothing is left");
    text
}

fn soak_client(config: &postgres::Config, number: u64, stop: &AtomicBool, done: &Done) {
    let mut random = fastrand::Rng::with_seed(number);
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut client) = config.connect(NoTls) else {
            continue;
        };
        if client
            .batch_execute("PREPARE p AS SELECT count(*) FROM t; SET statement_timeout = '200s'")
            .is_err()
        {
            continue;
        }
        while !stop.load(Ordering::Relaxed) && !client.is_closed() {
            soak_step(&mut client, &mut random, done);
        }
    }
}

/// One statement or transaction, which may be cut short.
fn soak_step(client: &mut Client, random: &mut fastrand::Rng, done: &Done) {
    let rows = random.u32(1..20) * 50;
    let query = match random.u8(0..14) {
        0 => "EXECUTE p".to_owned(),
        1 => "BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 10 FROM c; COMMIT".to_owned(),
        2 => "BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c; \
              ROLLBACK TO s; SELECT count(*) FROM t; COMMIT"
            .to_owned(),
        3 => format!("SELECT count(*), sum(1 / (i - {rows})) FROM t"),
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
    let cut = random.u8(0..40);
    let canceller = (cut < 2).then(|| {
        let token = client.cancel_token();
        let after = Duration::from_millis(random.u64(0..30));
        thread::spawn(move || {
            // The moment is the point, not a condition.
            thread::sleep(after);
            let _ = token.cancel_query(NoTls);
        })
    });
    let query = if cut == 2 {
        // In the middle of its own statement, while it may hold a slot.
        done.terminated.fetch_add(1, Ordering::Relaxed);
        "SELECT count(*), pg_terminate_backend(pg_backend_pid()) FROM t".to_owned()
    } else {
        query
    };
    let start = Instant::now();
    let outcome = client.simple_query(&query);
    let millis = start.elapsed().as_millis() as u64;
    done.longest_ms.fetch_max(millis, Ordering::Relaxed);
    done.statements.fetch_add(1, Ordering::Relaxed);
    if let Some(canceller) = canceller {
        done.cancelled.fetch_add(1, Ordering::Relaxed);
        canceller.join().expect("no panic");
    }
    if outcome.is_err() {
        done.failed.fetch_add(1, Ordering::Relaxed);
        let _ = client.batch_execute("ROLLBACK");
    }
}
