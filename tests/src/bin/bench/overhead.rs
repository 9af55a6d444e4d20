//! What the extension costs a load that it cannot help.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::pgbench::{cpu_of_ended_backends, number_after};
use parallel_replicas_tests::{Cluster, PRIMARY, StopMode, system};

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
