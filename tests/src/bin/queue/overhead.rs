//! `queue overhead FILE`: what the queue costs statements that it does not keep waiting.
//!
//! The look-ups of `pgbench -S` in one session, with the queue switched off and on in short turns, so that what
//! other processes do meets both alike: for statements below `query_queue_min_cost`, and for such as get a free
//! slot. The bar is a ratio of throughput of at least 0.995 for what bypasses. Before them, turns between which
//! nothing changes that matters show what the measuring itself makes of equals.
//!
//! Then the CPU time of an admission, by turns as well. The bar is 5 us.

use std::fs;
use std::time::{Duration, Instant};

use parallel_replicas_tests::queue_server::{QueueServer, pid};
use parallel_replicas_tests::{PRIMARY, SOON, system, text, wait_until};
use postgres::{Client, Statement};
use serde_json::{Value, json};

use crate::bench::apply;
use crate::number;

/// What the queue does with statements that cost less than so much, and the setting that turns change, with its
/// values.
const MODES: [(&str, &str, Setting); 3] = [
    (
        "off both",
        "100000",
        ("query_queue_max_queued_queries", ["1024", "1025"]),
    ),
    ("bypassing", "100000", (QUEUE, ["off", "on"])),
    ("admitted", "0", (QUEUE, ["off", "on"])),
];

type Setting = (&'static str, [&'static str; 2]);

const QUEUE: &str = "enable_query_queue_select";

/// Look-ups of a turn.
const LOOK_UPS: usize = 500;

/// Rows of pgbench_accounts.
const ACCOUNTS: i32 = 1_000_000;

/// Parts of a run, whose ratios show how much it scatters.
const PARTS: usize = 10;

pub fn run() -> String {
    let seconds = number("BENCH_SECONDS", 60);
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "64"),
        ("parallel_replicas.query_queue_bypass_superuser", "off"),
    ]);
    pgbench(&server, &["-i", "-q", "-s", "10"]);
    println!("\nlook-ups of pgbench -S, 1 client, {seconds} s a line, in turns of {LOOK_UPS}");
    println!(
        "{:>10} {:>10} {:>9} {:>10} {:>10} {:>8} {:>16}",
        "protocol", "queue", "of", "off us", "on us", "ratio", "of each tenth"
    );
    let mut rows = Vec::new();
    for protocol in ["simple", "prepared"] {
        for (mode, least_cost, setting) in MODES {
            apply(
                &server,
                &[(QUEUE, "off"), ("query_queue_min_cost", least_cost)],
            );
            let turns = turns(&server, protocol, setting, seconds);
            rows.push(compare(&turns, protocol, mode));
        }
    }
    apply(&server, &[(QUEUE, "on")]);
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

/// Prints a line for the time of a look-up and one for the CPU time of its backend, which others touch less:
/// medians with the queue off and on, and the median of off / on, which is the ratio of throughput, over turns
/// that follow each other.
fn compare(turns: &[Turn], protocol: &str, mode: &str) -> Value {
    let mut row = json!({ "protocol": protocol, "mode": mode, "turns": turns.len() });
    for (what, of) in [
        ("time", (|turn| turn.us) as fn(&Turn) -> f64),
        ("CPU time", |turn| turn.cpu_us),
    ] {
        let [off, on] = [false, true].map(|queue| {
            let of_kind = turns.iter().filter(|turn| turn.queue == queue);
            median(of_kind.map(of).collect()) / LOOK_UPS as f64
        });
        let ratios: Vec<f64> = turns[1..]
            .chunks_exact(2)
            .map(|pair| match pair[0].queue {
                false => of(&pair[0]) / of(&pair[1]),
                true => of(&pair[1]) / of(&pair[0]),
            })
            .collect();
        let mut parts: Vec<f64> = ratios
            .chunks_exact(ratios.len() / PARTS)
            .map(|part| median(part.to_vec()))
            .collect();
        parts.sort_by(f64::total_cmp);
        let (least, most) = (parts[0], parts[parts.len() - 1]);
        let ratio = median(ratios);
        println!(
            "{protocol:>10} {mode:>10} {what:>9} {off:>10.2} {on:>10.2} {ratio:>8.4} {:>16}",
            format!("{least:.4}..{most:.4}")
        );
        row[what] = json!({
            "off_us": off, "on_us": on, "ratio": ratio, "least_of_a_tenth": least, "most": most,
        });
    }
    row
}

/// Look-ups with the queue off or on, which is the setting's second value: how long they took, and the backend's
/// CPU time.
struct Turn {
    queue: bool,
    us: f64,
    cpu_us: f64,
}

/// Two turns of one kind follow each other, so that each comes after each equally often.
fn turns(
    server: &QueueServer,
    protocol: &str,
    (setting, values): Setting,
    seconds: u64,
) -> Vec<Turn> {
    let mut client = server.cluster.connect(PRIMARY);
    let backend = pid(&mut client);
    let prepared = (protocol == "prepared").then(|| {
        client
            .prepare("SELECT abalance FROM pgbench_accounts WHERE aid = $1")
            .expect("statement")
    });
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut turns = Vec::new();
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        let queue = number % 4 / 2 == 1;
        let value = values[usize::from(queue)];
        apply(server, &[(setting, value)]);
        let shown = format!("SHOW parallel_replicas.{setting}");
        wait_until(SOON, "the session has the setting", || {
            text(&mut client, &shown) == value
        });
        let (started, before) = (Instant::now(), cpu_us(backend));
        look_up(&mut client, prepared.as_ref(), number);
        turns.push(Turn {
            queue,
            us: started.elapsed().as_secs_f64() * 1e6,
            cpu_us: cpu_us(backend) - before,
        });
    }
    turns
}

fn look_up(client: &mut Client, prepared: Option<&Statement>, turn: i32) {
    for number in 0..LOOK_UPS as i32 {
        let aid = 1 + (turn * 7919 + number * 104_729).rem_euclid(ACCOUNTS);
        match prepared {
            Some(statement) => drop(client.query(statement, &[&aid]).expect("a row")),
            None => {
                let query = format!("SELECT abalance FROM pgbench_accounts WHERE aid = {aid};");
                client.simple_query(&query).expect("a row");
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of the backend's CPU time that a query takes longer when it asks for a slot, without and with
/// a resource group.
fn admission_us(server: &QueueServer) -> (f64, f64) {
    let mut client = server.cluster.connect(PRIMARY);
    let without = admissions(&mut client);
    client
        .batch_execute("SELECT parallel_replicas.create_resource_group('g', 100)")
        .expect("group");
    apply(server, &[("enable_group_level_query_queue", "on")]);
    let mut client = server.cluster.connect(PRIMARY);
    client
        .batch_execute("SET parallel_replicas.resource_group = 'g'")
        .expect("setting");
    (without, admissions(&mut client))
}

fn admissions(client: &mut Client) -> f64 {
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
