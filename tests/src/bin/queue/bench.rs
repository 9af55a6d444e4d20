//! `queue bench FILE`: a mixed load of 32 clients with the queue off, version 1, SWRR and SJF. 24 clients take
//! TPC-H's Q1, Q6 and Q18 from one list until it is used up, 8 look an order up every 20 ms meanwhile.
//! The time that the list takes, and each kind's times, as a table, as JSON, and as a plot beside it.
//!
//! The list is the same in each mode, so that its time is a measure of throughput whatever is preferred:
//! queries per second of each kind would only tell which kind got on. The modes run by turns, each first
//! in some round, and the figures are of all rounds.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::pgbench::cpu_of_ended_backends;
use parallel_replicas_tests::queue_server::QueueServer;
use parallel_replicas_tests::tpch::{self, Indexes};
use parallel_replicas_tests::{PRIMARY, SOON, text, wait_until};
use postgres::{Client, SimpleQueryMessage};
use serde_json::json;

use crate::number;
use crate::plot::{self, Bars};

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

/// Kinds of queries, in the order of the table.
const KINDS: [&str; 3] = ["look-up", "Q6", "Q1, Q18"];

/// Kind of a query of the list.
fn kind(number: usize) -> usize {
    if number == 6 { 1 } else { 2 }
}

/// Of each six queries of the list, their TPC-H numbers.
const SHARE: [usize; 6] = [6, 6, 6, 6, 1, 18];

/// Clients that work the list off, and clients that look up.
const WORKERS: usize = 24;
const LOOKERS: usize = 8;
const LOOK_UP_PAUSE: Duration = Duration::from_millis(20);

/// Orders at scale factor 0.1.
const ORDERS: u32 = 150_000;

/// One order with its lines, by its key.
fn look_up() -> String {
    let number = fastrand::u32(0..ORDERS);
    // Of each 32 keys TPC-H uses the first 8.
    let key = number / 8 * 32 + number % 8 + 1;
    format!(
        "SELECT o_totalprice, count(*), sum(l_extendedprice)
           FROM orders JOIN lineitem ON l_orderkey = o_orderkey
          WHERE o_orderkey = {key} GROUP BY o_totalprice"
    )
}

/// What was measured in one mode.
#[derive(Clone, Default)]
struct Measured {
    /// Seconds that the list took, in each round, and CPU seconds of the server meanwhile.
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    /// Milliseconds of each query, by kind.
    taken: [Vec<f64>; KINDS.len()],
}

/// The time that this share of the queries did not exceed.
fn at(taken: &[f64], share: f64) -> f64 {
    let mut sorted = taken.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Runs it, and draws the plot into `picture`.
pub fn run(picture: &Path) -> String {
    // Four slots, of which Q6 needs one and Q1 and Q18 two each, by cost: the largest are two at once.
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "8"),
        ("parallel_replicas.query_queue_v2_concurrency_level", "2"),
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        (
            "parallel_replicas.query_queue_v2_cpu_costs_per_slot",
            "30000",
        ),
        ("parallel_replicas.query_queue_min_cost", "1000"),
        ("work_mem", "64MB"),
        ("shared_buffers", "512MB"),
        ("jit", "off"),
    ]);
    tpch::load(&server.cluster.config(PRIMARY), 0.1, Indexes::All, |_| {});
    server.cluster.psql(
        PRIMARY,
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO app",
    );
    let mut client = server.app();
    for number in [6, 1, 18] {
        println!("Q{number} needs {}", needed_slots(&mut client, number));
    }
    drop(client);
    let rounds = number("BENCH_ROUNDS", 3) as usize;
    let queries = number("BENCH_QUERIES", 180) as usize;
    println!("32 clients, TPC-H scale factor 0.1, {rounds} rounds of {queries} queries a mode");
    let mut measured = vec![Measured::default(); MODES.len()];
    for round in 0..rounds {
        let list = list(queries, round as u64);
        for turn in 0..MODES.len() {
            let mode = (round + turn) % MODES.len();
            apply(&server, MODES[mode].1);
            mixed_load(&server, &list, &mut measured[mode]);
            server.wait_empty();
            let seconds = measured[mode].seconds[round];
            println!("round {round}, {}: {seconds:.1} s", MODES[mode].0);
        }
    }
    let rows = table(&measured);
    let bars: Vec<_> = KINDS
        .iter()
        .enumerate()
        .map(|(kind, name)| {
            let of_modes = |share: f64| {
                let modes = measured.iter();
                modes.map(|mode| at(&mode.taken[kind], share)).collect()
            };
            Bars {
                name,
                medians: of_modes(0.5),
                tails: of_modes(0.99),
            }
        })
        .collect();
    let modes: Vec<_> = MODES.iter().map(|(name, _)| *name).collect();
    plot::draw(picture, &modes, &bars);
    println!("\nplot: {}", picture.display());
    let figures = json!({
        "benchmark": "queue", "rounds": rounds, "queries": queries, "rows": rows,
    });
    format!("{figures:#}\n")
}

/// Prints a line for each mode and kind. Throughput is that of the list, as a ratio to the first mode: the
/// median of the rounds' own ratios, since what else the machine does hits all modes of a round.
fn table(measured: &[Measured]) -> Vec<serde_json::Value> {
    println!(
        "\n{:>8} {:>10} {:>11} {:>6} {:>8} {:>6} {:>10} {:>10} {:>10}",
        "mode", "list s", "throughput", "cores", "kind", "n", "p50 ms", "p99 ms", "max ms"
    );
    let mut rows = Vec::new();
    for (mode, (name, _)) in MODES.iter().enumerate() {
        let seconds = &measured[mode].seconds;
        let ratios: Vec<_> = measured[0]
            .seconds
            .iter()
            .zip(seconds)
            .map(|(off, on)| off / on)
            .collect();
        let (median, ratio) = (at(seconds, 0.5), at(&ratios, 0.5));
        let cores = mode_cores(&measured[mode]);
        for (kind, taken) in measured[mode].taken.iter().enumerate() {
            let (p50, p99, most) = (at(taken, 0.5), at(taken, 0.99), at(taken, 1.0));
            println!(
                "{name:>8} {median:>10.1} {ratio:>11.3} {cores:>6.2} {:>8} {:>6} {p50:>10.1} {p99:>10.1} {most:>10.1}",
                KINDS[kind],
                taken.len()
            );
            rows.push(json!({
                "mode": name, "kind": KINDS[kind], "list_seconds": seconds,
                "throughput_ratio": ratio, "cores_used": cores, "queries": taken.len(),
                "p50_ms": p50, "p99_ms": p99, "max_ms": most,
            }));
        }
    }
    rows
}

/// Cores that the server used while it worked a list off. Fewer than there are: the queue let some idle, or
/// somebody else had them.
fn mode_cores(measured: &Measured) -> f64 {
    measured.cpu_seconds.iter().sum::<f64>() / measured.seconds.iter().sum::<f64>()
}

/// As EXPLAIN shows it.
fn needed_slots(client: &mut Client, number: usize) -> String {
    let plan = client
        .simple_query(&format!("EXPLAIN {}", tpch::query(number)))
        .expect("a plan");
    plan.iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .find_map(|line| line.strip_prefix("Queue: "))
        .expect("it would queue")
        .to_owned()
}

/// The list of a round, in an order that looks random and is the same each time.
fn list(queries: usize, round: u64) -> Vec<usize> {
    let mut list: Vec<_> = SHARE.iter().copied().cycle().take(queries).collect();
    fastrand::Rng::with_seed(round).shuffle(&mut list);
    list
}

pub fn apply(server: &QueueServer, settings: &[(&str, &str)]) {
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

/// Works the list off, while others look up.
fn mixed_load(server: &QueueServer, list: &[usize], measured: &mut Measured) {
    let session = || {
        let mut client = server.app();
        // Many times Q18 behind each other take longer than a test's timeout.
        client
            .batch_execute("SET statement_timeout = 0")
            .expect("setting");
        client
    };
    let cpu_before = cpu_of_ended_backends(&server.cluster);
    let timed = |client: &mut Client, sql: &str| {
        let start = Instant::now();
        client.simple_query(sql).expect("query");
        start.elapsed().as_secs_f64() * 1000.0
    };
    let (next, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let all_are_there = Barrier::new(WORKERS + LOOKERS + 1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = session();
                    let mut taken = Vec::new();
                    all_are_there.wait();
                    while let Some(number) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let millis = timed(&mut client, tpch::query(*number));
                        taken.push((kind(*number), millis));
                    }
                    taken
                })
            })
            .collect();
        let lookers: Vec<_> = (0..LOOKERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = session();
                    let mut taken = Vec::new();
                    all_are_there.wait();
                    while !done.load(Ordering::Relaxed) {
                        taken.push((0, timed(&mut client, &look_up())));
                        thread::sleep(LOOK_UP_PAUSE);
                    }
                    taken
                })
            })
            .collect();
        all_are_there.wait();
        let start = Instant::now();
        let mut all: Vec<_> = workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("no panic"))
            .collect();
        measured.seconds.push(start.elapsed().as_secs_f64());
        done.store(true, Ordering::Relaxed);
        all.extend(
            lookers
                .into_iter()
                .flat_map(|looker| looker.join().expect("no panic")),
        );
        for (kind, millis) in all {
            measured.taken[kind].push(millis);
        }
    });
    let cpu = cpu_of_ended_backends(&server.cluster) - cpu_before;
    measured.cpu_seconds.push(cpu);
}
