//! The query queue under load.
//!
//! `queue soak FILE`: 64 clients for SOAK_SECONDS (600) with queries of 1 to 16 slots on 16 slots, and
//! cancels, terminations, errors, savepoints, cursors, prepared statements, settings that change.
//! While it runs, slots held are never above the total but for what was counted; nobody waits longer
//! than the timeout; at the end nothing is held. Fails otherwise.
//!
//! `queue bench FILE`: 24 clients with long queries, one after the other, and 8 with short ones, one
//! every 20 ms, which are cheap enough to bypass the queue; with the queue off, version 1, SWRR and SJF:
//! throughput and times of both kinds. Then the cost of an admission with a free slot.
//!
//! The modes run by turns and the figures are of all rounds: on a shared machine only their ratios
//! mean something.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::queue_server::QueueServer;
use parallel_replicas_tests::{PRIMARY, SOON, text, wait_until};
use postgres::{Client, NoTls};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: queue soak|bench FILE");
        std::process::exit(2);
    };
    let figures = match name.as_str() {
        "soak" => soak(),
        "bench" => bench(),
        other => {
            eprintln!("there is no \"{other}\"");
            std::process::exit(2);
        }
    };
    std::fs::write(&file, figures).expect("figures can be written");
    println!("\nfigures: {file}");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// What the clients of the soak have done.
#[derive(Default)]
struct Done {
    statements: AtomicU64,
    cancelled: AtomicU64,
    terminated: AtomicU64,
    failed: AtomicU64,
    longest_ms: AtomicU64,
}

fn soak() -> String {
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

/// A mode of the benchmark: its name and settings.
const MODES: &[(&str, &[(&str, &str)])] = &[
    ("off", &[("enable_query_queue_select", "off")]),
    (
        "v1",
        &[
            ("enable_query_queue_select", "on"),
            ("enable_query_queue_v2", "off"),
            ("query_queue_concurrency_limit", "2"),
        ],
    ),
    (
        "v2 SWRR",
        &[
            ("enable_query_queue_select", "on"),
            ("enable_query_queue_v2", "on"),
            ("query_queue_concurrency_limit", "0"),
            ("query_queue_v2_schedule_strategy", "SWRR"),
        ],
    ),
    (
        "v2 SJF",
        &[
            ("enable_query_queue_select", "on"),
            ("enable_query_queue_v2", "on"),
            ("query_queue_concurrency_limit", "0"),
            ("query_queue_v2_schedule_strategy", "SJF"),
        ],
    ),
];

/// Kinds of queries: name and text.
const SHORT: (&str, &str) = ("short", "SELECT count(*) FROM small WHERE i % 7 = 3");
/// A client with short queries pauses for so long after each.
const PAUSE: Duration = Duration::from_millis(20);
const LONG: (&str, &str) = (
    "long",
    "SELECT g, count(*), sum(v) FROM (SELECT i % 1000 AS g, v FROM large ORDER BY v) x GROUP BY g",
);

fn bench() -> String {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "2"),
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        (
            "parallel_replicas.query_queue_v2_cpu_costs_per_slot",
            "5000",
        ),
        ("parallel_replicas.query_queue_min_cost", "1000"),
        ("work_mem", "64MB"),
        ("shared_buffers", "256MB"),
        ("jit", "off"),
    ]);
    server.cluster.psql(
        PRIMARY,
        "CREATE TABLE small AS SELECT i FROM generate_series(1, 5000) i;
         CREATE TABLE large AS SELECT i, (i::bigint * 7919) % 1000003 AS v
           FROM generate_series(1, 400000) i;
         GRANT SELECT ON small, large TO app;",
    );
    server.cluster.psql(PRIMARY, "VACUUM ANALYZE small, large");
    let rounds = number("BENCH_ROUNDS", 3);
    let seconds = number("BENCH_SECONDS", 10);
    println!(
        "8 clients with short and 24 with long queries, {rounds} rounds of {seconds} s a mode"
    );
    let mut times: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for (mode, (_, settings)) in MODES.iter().enumerate() {
            apply(&server, settings);
            for (kind, mut taken) in mixed_load(&server, Duration::from_secs(seconds)) {
                times.entry((mode, kind)).or_default().append(&mut taken);
            }
            server.wait_empty();
        }
    }
    let mut json = String::from("{\"benchmark\": \"queue\", \"rows\": [\n");
    println!(
        "\n{:>8} {:>6} {:>10} {:>10} {:>10} {:>10}",
        "mode", "kind", "per s", "p50 ms", "p99 ms", "max ms"
    );
    let all_seconds = (rounds * seconds) as f64;
    let last = times.len() - 1;
    for (row, ((mode, kind), mut taken)) in times.into_iter().enumerate() {
        taken.sort_by(f64::total_cmp);
        let at = |share: f64| taken[((taken.len() - 1) as f64 * share) as usize];
        let rate = taken.len() as f64 / all_seconds;
        let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
        let name = MODES[mode].0;
        println!("{name:>8} {kind:>6} {rate:>10.1} {p50:>10.1} {p99:>10.1} {most:>10.1}");
        let comma = if row < last { "," } else { "" };
        let _ = writeln!(
            json,
            "  {{\"mode\": \"{name}\", \"kind\": \"{kind}\", \"per_second\": {rate:.2}, \
             \"p50_ms\": {p50:.2}, \"p99_ms\": {p99:.2}, \"max_ms\": {most:.2}}}{comma}"
        );
    }
    let (off, on) = admission_micros(&server);
    println!("\na point query takes {off:.1} us with the queue off, {on:.1} us with a free slot");
    let _ = writeln!(
        json,
        "], \"point_query_us_off\": {off:.2}, \"point_query_us_admitted\": {on:.2}}}"
    );
    json
}

fn apply(server: &QueueServer, settings: &[(&str, &str)]) {
    let mut client = server.cluster.connect(PRIMARY);
    for (name, value) in settings {
        client
            .batch_execute(&format!(
                "ALTER SYSTEM SET parallel_replicas.{name} = '{value}'"
            ))
            .expect("setting");
    }
    server.cluster.reload(PRIMARY);
    for (name, value) in settings {
        wait_until(SOON, "the setting is in force", || {
            let mut client = server.cluster.connect(PRIMARY);
            text(&mut client, &format!("SHOW parallel_replicas.{name}")) == *value
        });
    }
}

/// Milliseconds of each query that ended within the time, by kind.
fn mixed_load(server: &QueueServer, duration: Duration) -> Vec<(&'static str, Vec<f64>)> {
    let end = Instant::now() + duration;
    let threads: Vec<_> = (0..32)
        .map(|number| {
            let (kind, query) = if number % 4 == 0 { SHORT } else { LONG };
            let mut client = server.app();
            thread::spawn(move || {
                let mut taken = Vec::new();
                while Instant::now() < end {
                    let start = Instant::now();
                    client.simple_query(query).expect("query");
                    taken.push(start.elapsed().as_secs_f64() * 1000.0);
                    if kind == SHORT.0 {
                        thread::sleep(PAUSE);
                    }
                }
                (kind, taken)
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect()
}

/// Median microseconds of a prepared point query, off and admitted at once, by turns.
fn admission_micros(server: &QueueServer) -> (f64, f64) {
    const QUERIES: usize = 2000;
    let mut sides = [Vec::new(), Vec::new()];
    apply(server, &[("query_queue_min_cost", "0")]);
    for _ in 0..6 {
        for (side, mode) in [0, 2].into_iter().enumerate() {
            apply(server, MODES[mode].1);
            let mut client = server.app();
            let statement = client
                .prepare("SELECT i FROM u WHERE i = $1")
                .expect("statement");
            for number in 0..QUERIES {
                let start = Instant::now();
                client
                    .query(&statement, &[&(number as i32 % 1000)])
                    .expect("query");
                sides[side].push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    let [off, on] = sides.map(|mut side| {
        side.sort_by(f64::total_cmp);
        side[side.len() / 2]
    });
    (off, on)
}
