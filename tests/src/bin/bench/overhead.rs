//! What the extension costs a load that it cannot help.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, StopMode, system, wait_until};
use std::fs;

/// `pgbench -S` with the extension preloaded, switched on and a replica registered, against a
/// server without it: the bar is a ratio of throughput of at least 0.98.
///
/// Two servers of the same content differ by a few percent by themselves, so both sides run over one
/// cluster's data, which is started for each round with or without the library.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 31);
    println!("pgbench -S, 4 clients, {rounds} pairs of rounds of 2 s each");
    let mut cluster = Cluster::builder().autovacuum(false).start();
    pgbench(&cluster, false, &["-i", "-q", "-s", "10"]);
    cluster
        .connect(PRIMARY)
        .batch_execute("CREATE EXTENSION parallel_replicas")
        .expect("extension");
    cluster.register_replica("nobody", 1);
    ["simple", "prepared"]
        .into_iter()
        .flat_map(|protocol| {
            let (mut baseline, mut subject) = (Vec::new(), Vec::new());
            for round in 0..rounds {
                // Either side goes first in half of the pairs.
                for with in [round % 2 == 0, round % 2 != 0] {
                    let figures = measure(&mut cluster, protocol, with);
                    if with { &mut subject } else { &mut baseline }.push(figures);
                }
            }
            let column = |figures: &[Figures], field: fn(&Figures) -> f64| {
                figures.iter().map(field).collect::<Vec<f64>>()
            };
            [
                Row::new(
                    format!("throughput, {protocol} protocol"),
                    "tps",
                    column(&baseline, |figures| figures.throughput),
                    column(&subject, |figures| figures.throughput),
                ),
                Row::new(
                    format!("server's CPU time per query, {protocol} protocol"),
                    "us",
                    column(&baseline, |figures| figures.cpu_micros),
                    column(&subject, |figures| figures.cpu_micros),
                ),
            ]
        })
        .collect()
}

struct Figures {
    throughput: f64,
    cpu_micros: f64,
}

fn measure(cluster: &mut Cluster, protocol: &str, with: bool) -> Figures {
    let library = if with { "parallel_replicas" } else { "" };
    cluster.configure(PRIMARY, "shared_preload_libraries", library);
    cluster.restart(PRIMARY, StopMode::Fast);
    // Fills the cache.
    pgbench(cluster, with, &["-S", "-n", "-t", "100"]);
    let before = cpu_of_ended_backends(cluster);
    let output = pgbench(
        cluster,
        with,
        &["-S", "-n", "-c", "4", "-j", "1", "-T", "2", "-M", protocol],
    );
    let cpu = cpu_of_ended_backends(cluster) - before;
    let transactions = number_after(&output, "number of transactions actually processed: ");
    Figures {
        throughput: number_after(&output, "tps = "),
        cpu_micros: cpu * 1e6 / transactions,
    }
}

fn pgbench(cluster: &Cluster, with: bool, arguments: &[&str]) -> String {
    let mut command = system::installation().client_command("pgbench");
    command
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p"])
        .arg(cluster.port(PRIMARY).to_string())
        .args(arguments)
        .arg("postgres");
    if with {
        command.env("PGOPTIONS", "-c enable_parallel_replicas=1");
    }
    system::output_of(&mut command)
}

fn number_after(output: &str, label: &str) -> f64 {
    output
        .lines()
        .find_map(|line| {
            let number = line.strip_prefix(label)?;
            number.split([' ', '/']).next()?.parse().ok()
        })
        .unwrap_or_else(|| panic!("pgbench prints \"{label}\""))
}

/// Seconds of CPU that the postmaster's ended children used: fields 16 and 17 of /proc/PID/stat, in
/// ticks of 10 ms (proc(5)). Waits until pgbench's backends have ended.
fn cpu_of_ended_backends(cluster: &Cluster) -> f64 {
    let pid = cluster.postmaster_pid(PRIMARY).expect("the server runs");
    wait_until(SOON, "the backends of pgbench have ended", || {
        system::process_tree(pid).iter().all(|child| {
            // Empty as long as the postmaster has not yet taken notice of the end.
            fs::read_to_string(format!("/proc/{child}/cmdline"))
                .is_ok_and(|title| !title.is_empty() && !title.contains("127.0.0.1("))
        })
    });
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    let after_name = &stat[stat.rfind(')').expect("name in parentheses") + 1..];
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    ticks as f64 / 100.0
}
