//! `queue overhead FILE`: what the queue costs statements that it does not keep waiting.
//!
//! `pgbench -S` with the queue off, on with the statements below `query_queue_min_cost`, and on with a free slot
//! for each: throughput, and the server's CPU time per query, which noise of other processes hardly
//! touches. The bar is a ratio of throughput of at least 0.995 for what bypasses.
//!
//! Then the CPU time of an admission: one session, which is switched to and fro in short turns, so that
//! all else is the same. The bar is 5 us.

use std::fs;

use parallel_replicas_tests::pgbench::{cpu_of_ended_backends, number_after};
use parallel_replicas_tests::queue_server::{QueueServer, pid};
use parallel_replicas_tests::{PRIMARY, system};
use postgres::Client;
use serde_json::{Value, json};

use crate::bench::apply;
use crate::number;

/// Modes of pgbench: name and settings. The first is what the others are compared with.
const MODES: [(&str, &[(&str, &str)]); 3] = [
    ("off", &[("enable_query_queue_select", "off")]),
    (
        "bypassing",
        &[
            ("enable_query_queue_select", "on"),
            ("query_queue_min_cost", "100000"),
        ],
    ),
    (
        "admitted",
        &[
            ("enable_query_queue_select", "on"),
            ("query_queue_min_cost", "0"),
        ],
    ),
];

/// Of one mode, by rounds.
#[derive(Clone, Default)]
struct Figures {
    per_second: Vec<f64>,
    cpu_us: Vec<f64>,
}

pub fn run() -> String {
    let rounds = number("BENCH_ROUNDS", 25) as usize;
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "64"),
        ("parallel_replicas.query_queue_bypass_superuser", "off"),
    ]);
    pgbench(&server, &["-i", "-q", "-s", "10"]);
    let mut rows = Vec::new();
    for protocol in ["simple", "prepared"] {
        println!("\npgbench -S, {protocol} protocol, 4 clients, {rounds} rounds of 2 s a mode");
        let mut figures = vec![Figures::default(); MODES.len()];
        for round in 0..rounds {
            for turn in 0..MODES.len() {
                // Each mode comes first, second and last equally often.
                let mode = (round + turn) % MODES.len();
                apply(&server, MODES[mode].1);
                measure(&server, protocol, &mut figures[mode]);
            }
        }
        rows.extend(compare(protocol, &figures));
    }
    apply(&server, MODES[2].1);
    let (admission, in_group) = admission_us(&server);
    println!(
        "\nadmission with a free slot: {admission:.2} us of CPU; in a group: {in_group:.2} us"
    );
    let figures = json!({
        "benchmark": "queue overhead", "rounds": rounds, "rows": rows,
        "admission_cpu_us": admission, "admission_in_group_cpu_us": in_group,
    });
    format!("{figures:#}\n")
}

fn pgbench(server: &QueueServer, arguments: &[&str]) -> String {
    let mut command = system::installation().client_command("pgbench");
    command
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p"])
        .arg(server.cluster.port(PRIMARY).to_string())
        .args(arguments)
        .arg("postgres");
    system::output_of(&mut command)
}

fn measure(server: &QueueServer, protocol: &str, figures: &mut Figures) {
    let before = cpu_of_ended_backends(&server.cluster);
    let options = ["-S", "-n", "-c", "4", "-j", "1", "-T", "2", "-M", protocol];
    let output = pgbench(server, &options);
    let cpu = cpu_of_ended_backends(&server.cluster) - before;
    let queries = number_after(&output, "number of transactions actually processed: ");
    figures.per_second.push(number_after(&output, "tps = "));
    figures.cpu_us.push(cpu * 1e6 / queries);
}

/// Prints a line for each mode. Ratios are the medians of the rounds' own.
fn compare(protocol: &str, figures: &[Figures]) -> Vec<Value> {
    println!(
        "{:>10} {:>10} {:>8} {:>12} {:>8}",
        "mode", "queries/s", "ratio", "CPU us/query", "ratio"
    );
    let ratio =
        |of: &[f64], to: &[f64]| median(of.iter().zip(to).map(|(of, to)| of / to).collect());
    let mut rows = Vec::new();
    for ((name, _), mode) in MODES.iter().zip(figures) {
        let row = json!({
            "protocol": protocol, "mode": name,
            "per_second": median(mode.per_second.clone()),
            "per_second_ratio": ratio(&mode.per_second, &figures[0].per_second),
            "cpu_us": median(mode.cpu_us.clone()),
            "cpu_ratio": ratio(&mode.cpu_us, &figures[0].cpu_us),
        });
        println!(
            "{name:>10} {:>10.0} {:>8.4} {:>12.2} {:>8.4}",
            row["per_second"].as_f64().unwrap_or_default(),
            row["per_second_ratio"].as_f64().unwrap_or_default(),
            row["cpu_us"].as_f64().unwrap_or_default(),
            row["cpu_ratio"].as_f64().unwrap_or_default(),
        );
        rows.push(row);
    }
    rows
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of the backend's CPU time that a query takes longer when it asks for a slot, without and with
/// a resource group.
fn admission_us(server: &QueueServer) -> (f64, f64) {
    let mut client = server.cluster.connect(PRIMARY);
    let without = turns(&mut client);
    client
        .batch_execute("SELECT parallel_replicas.create_resource_group('g', 100)")
        .expect("group");
    apply(server, &[("enable_group_level_query_queue", "on")]);
    let mut client = server.cluster.connect(PRIMARY);
    client
        .batch_execute("SET parallel_replicas.resource_group = 'g'")
        .expect("setting");
    (without, turns(&mut client))
}

fn turns(client: &mut Client) -> f64 {
    const QUERIES: i32 = 500;
    const TURNS: usize = 60;
    let backend = pid(client);
    let statement = client
        .prepare("SELECT i FROM u WHERE i = $1")
        .expect("statement");
    let mut turn = |queue: &str| {
        client
            .batch_execute(&format!("SET enable_query_queue = {queue}"))
            .expect("setting");
        let before = cpu_us(backend);
        for number in 0..QUERIES {
            client.query(&statement, &[&number]).expect("query");
        }
        (cpu_us(backend) - before) / f64::from(QUERIES)
    };
    let differences = (0..TURNS).map(|_| {
        let off = turn("off");
        turn("on") - off
    });
    median(differences.collect())
}

/// CPU time of a process: the first field of /proc/PID/schedstat, nanoseconds.
fn cpu_us(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("the backend lives");
    let word = text.split_whitespace().next().expect("a first word");
    word.parse::<f64>().expect("a number") / 1e3
}
