//! `queue overhead FILE`: what the queue costs statements that it does not keep waiting.
//!
//! The look-ups of `pgbench -S` in one session, with the queue off, and on in short turns, so that what other
//! processes do meets both alike: for statements below `query_queue_min_cost`, and for such as get a free slot.
//! The bar is a ratio of throughput of at least 0.995 for what bypasses.
//!
//! Then the CPU time of an admission, by turns as well. The bar is 5 us.

use std::fs;

use parallel_replicas_tests::pgbench::number_after;
use parallel_replicas_tests::queue_server::{QueueServer, pid};
use parallel_replicas_tests::{PRIMARY, system};
use postgres::Client;
use serde_json::{Value, json};

use crate::bench::apply;
use crate::number;

/// What the queue does with statements that cost less than so much.
const MODES: [(&str, &str); 2] = [("bypassing", "100000"), ("admitted", "0")];

/// Look-ups of a turn.
const LOOK_UPS: usize = 100;

/// Parts of a run, whose ratios show how much it scatters.
const PARTS: usize = 10;

pub fn run() -> String {
    let seconds = number("BENCH_SECONDS", 60);
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "64"),
        ("parallel_replicas.query_queue_bypass_superuser", "off"),
    ]);
    pgbench(&server, &["-i", "-q", "-s", "10"]);
    println!("\npgbench -S, 1 client, {seconds} s a line, in turns of {LOOK_UPS} look-ups");
    println!(
        "{:>10} {:>10} {:>8} {:>12} {:>12} {:>8} {:>16}",
        "protocol", "queue", "turns", "off us", "on us", "ratio", "of each tenth"
    );
    let mut rows = Vec::new();
    for protocol in ["simple", "prepared"] {
        for (mode, least_cost) in MODES {
            apply(
                &server,
                &[
                    ("enable_query_queue_select", "on"),
                    ("query_queue_min_cost", least_cost),
                ],
            );
            rows.push(compare(&server, protocol, mode, seconds));
        }
    }
    let (admission, in_group) = admission_us(&server);
    println!(
        "\nadmission with a free slot: {admission:.2} us of CPU; in a group: {in_group:.2} us"
    );
    let figures = json!({
        "benchmark": "queue overhead", "seconds": seconds, "rows": rows,
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

/// Prints a line: the medians of a turn's time with the queue off and on, and the ratio of throughput.
fn compare(server: &QueueServer, protocol: &str, mode: &str, seconds: u64) -> Value {
    let times = turns_us(server, protocol, seconds);
    let medians = |part: &[(usize, f64)]| {
        [0, 1].map(|script| {
            let of_script = part.iter().filter(|turn| turn.0 == script);
            median(of_script.map(|turn| turn.1).collect()) / LOOK_UPS as f64
        })
    };
    let ratio = |[off, on]: [f64; 2]| off / on;
    let mut parts: Vec<f64> = times
        .chunks_exact(times.len() / PARTS)
        .map(|part| ratio(medians(part)))
        .collect();
    parts.sort_by(f64::total_cmp);
    let (least, most) = (parts[0], parts[parts.len() - 1]);
    let [off, on] = medians(&times);
    let ratio = ratio([off, on]);
    println!(
        "{protocol:>10} {mode:>10} {:>8} {off:>12.2} {on:>12.2} {ratio:>8.4} {:>16}",
        times.len(),
        format!("{least:.4}..{most:.4}")
    );
    json!({
        "protocol": protocol, "mode": mode, "turns": times.len(), "off_us": off, "on_us": on,
        "throughput_ratio": ratio, "least_ratio_of_a_tenth": least, "most": most,
    })
}

/// Of each turn, which pgbench throws dice for: 0 for off or 1 for on, and how long it took.
fn turns_us(server: &QueueServer, protocol: &str, seconds: u64) -> Vec<(usize, f64)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let look_up = "\\set aid random(1, 1000000)\n\
                   SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n";
    let mut arguments: Vec<String> = ["-n", "-c", "1", "-l", "-M", protocol]
        .map(str::to_owned)
        .into();
    arguments.extend(["-T".to_owned(), seconds.to_string()]);
    for queue in ["off", "on "] {
        let path = folder.path().join(queue.trim());
        let set = format!("SET enable_query_queue = {queue};\n");
        fs::write(&path, set + &look_up.repeat(LOOK_UPS)).expect("a script");
        arguments.extend(["-f".to_owned(), path.display().to_string()]);
    }
    let log = folder.path().join("turns");
    arguments.push(format!("--log-prefix={}", log.display()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = pgbench(server, &arguments);
    let mut times = Vec::new();
    for entry in fs::read_dir(folder.path()).expect("the folder") {
        let path = entry.expect("a file").path();
        if path.extension().is_none() {
            continue;
        }
        // Client, transaction, microseconds, script, and when.
        for line in fs::read_to_string(path).expect("pgbench's log").lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let script = fields[3].parse().expect("a number");
            times.push((script, fields[2].parse().expect("a number")));
        }
    }
    let turns = number_after(&output, "number of transactions actually processed: ");
    assert_eq!(times.len(), turns as usize, "{output}");
    times
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
