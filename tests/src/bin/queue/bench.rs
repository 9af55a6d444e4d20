//! `queue bench FILE`: 32 clients: 8 with point queries, one every 20 ms, 12 with TPC-H's Q6 and 12 with
//! Q1 and Q18, one after the other; with the queue off, version 1, SWRR and SJF. Throughput and times of
//! each kind, as a table, as JSON, and as a plot beside it. Then the cost of an admission with a free slot.
//!
//! The modes run by turns and the figures are of all rounds: on a shared machine only their ratios
//! mean something.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::queue_server::QueueServer;
use parallel_replicas_tests::tpch::{self, Indexes};
use parallel_replicas_tests::{PRIMARY, SOON, text, wait_until};
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

/// What a client asks, one query after the other.
struct Kind {
    name: &'static str,
    clients: usize,
    queries: &'static [Text],
    pause: Duration,
}

#[derive(Clone, Copy)]
enum Text {
    Tpch(usize),
    /// One order with its lines, by its key.
    Point,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "point",
        clients: 8,
        queries: &[Text::Point],
        pause: Duration::from_millis(20),
    },
    Kind {
        name: "Q6",
        clients: 12,
        queries: &[Text::Tpch(6)],
        pause: Duration::ZERO,
    },
    Kind {
        name: "Q1, Q18",
        clients: 12,
        queries: &[Text::Tpch(1), Text::Tpch(18)],
        pause: Duration::ZERO,
    },
];

/// Orders at scale factor 0.1.
const ORDERS: u32 = 150_000;

impl Text {
    fn sql(self) -> String {
        match self {
            Text::Tpch(number) => tpch::query(number).to_owned(),
            Text::Point => {
                // Of each 32 keys TPC-H uses the first 8.
                let number = fastrand::u32(0..ORDERS);
                let key = number / 8 * 32 + number % 8 + 1;
                format!(
                    "SELECT o_totalprice, count(*), sum(l_extendedprice)
                       FROM orders JOIN lineitem ON l_orderkey = o_orderkey
                      WHERE o_orderkey = {key} GROUP BY o_totalprice"
                )
            }
        }
    }
}

/// What was measured of one kind of queries in one mode.
#[derive(Clone, Default)]
struct Times {
    /// Milliseconds of each query that began within the time.
    taken: Vec<f64>,
    /// Queries that ended within the time.
    ended: usize,
}

impl Times {
    /// The time that this share of the queries did not exceed.
    fn at(&self, share: f64) -> f64 {
        let mut sorted = self.taken.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * share) as usize]
    }
}

/// Runs it, and draws the plot into `picture`.
pub fn run(picture: &Path) -> String {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "2"),
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        (
            "parallel_replicas.query_queue_v2_cpu_costs_per_slot",
            "20000",
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
    let rounds = number("BENCH_ROUNDS", 3);
    let seconds = number("BENCH_SECONDS", 20);
    println!("32 clients, TPC-H scale factor 0.1, {rounds} rounds of {seconds} s a mode");
    let mut times = vec![vec![Times::default(); KINDS.len()]; MODES.len()];
    for _ in 0..rounds {
        for (mode, (_, settings)) in MODES.iter().enumerate() {
            apply(&server, settings);
            let taken = mixed_load(&server, Duration::from_secs(seconds));
            for (kind, mut of_client) in taken {
                times[mode][kind].taken.append(&mut of_client.taken);
                times[mode][kind].ended += of_client.ended;
            }
            server.wait_empty();
        }
    }
    println!(
        "\n{:>8} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "mode", "kind", "per s", "p50 ms", "p99 ms", "max ms"
    );
    let mut rows = Vec::new();
    let mut bars = Vec::new();
    for (kind, of_kind) in KINDS.iter().enumerate() {
        let mut medians = Vec::new();
        let mut tails = Vec::new();
        for (mode, (name, _)) in MODES.iter().enumerate() {
            let taken = &times[mode][kind];
            let rate = taken.ended as f64 / (rounds * seconds) as f64;
            let (p50, p99, most) = (taken.at(0.5), taken.at(0.99), taken.at(1.0));
            println!(
                "{name:>8} {:>8} {rate:>10.2} {p50:>10.1} {p99:>10.1} {most:>10.1}",
                of_kind.name
            );
            rows.push(json!({
                "mode": name, "kind": of_kind.name, "per_second": rate,
                "p50_ms": p50, "p99_ms": p99, "max_ms": most,
            }));
            medians.push(p50);
            tails.push(p99);
        }
        bars.push(Bars {
            name: of_kind.name,
            medians,
            tails,
        });
    }
    let modes: Vec<_> = MODES.iter().map(|(name, _)| *name).collect();
    plot::draw(picture, &modes, &bars);
    println!("\nplot: {}", picture.display());
    let (off, on) = admission_micros(&server);
    println!("a point query takes {off:.1} us with the queue off, {on:.1} us with a free slot");
    let figures = json!({
        "benchmark": "queue", "rows": rows,
        "point_query_us_off": off, "point_query_us_admitted": on,
    });
    format!("{figures:#}\n")
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

/// What each client measured, with the number of its kind.
fn mixed_load(server: &QueueServer, duration: Duration) -> Vec<(usize, Times)> {
    let end = Instant::now() + duration;
    let client = |number: usize, kind: &'static Kind| {
        let mut client = server.app();
        // Twelve times Q18 behind each other take longer than a test's timeout.
        client
            .batch_execute("SET statement_timeout = 0")
            .expect("setting");
        thread::spawn(move || {
            let mut times = Times::default();
            let turns = kind.queries.iter().cycle().skip(number);
            for query in turns {
                if Instant::now() >= end {
                    break;
                }
                let sql = query.sql();
                let start = Instant::now();
                client.simple_query(&sql).expect("query");
                times.taken.push(start.elapsed().as_secs_f64() * 1000.0);
                times.ended += usize::from(Instant::now() <= end);
                thread::sleep(kind.pause);
            }
            times
        })
    };
    let threads: Vec<_> = KINDS
        .iter()
        .enumerate()
        .flat_map(|(index, kind)| (0..kind.clients).map(move |number| (index, number, kind)))
        .map(|(index, number, kind)| (index, client(number, kind)))
        .collect();
    threads
        .into_iter()
        .map(|(kind, thread)| (kind, thread.join().expect("no panic")))
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
