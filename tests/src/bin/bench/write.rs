//! What analytics cost those who write.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::confine::Confinement;
use parallel_replicas_tests::{Cluster, PRIMARY, system};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The primary's pgbench throughput and latency while a session runs aggregates without an end, against
/// no analytics at all. Every server has half a CPU of its own. The bar: with replicas and without a
/// local plan, at least 0.97 of the throughput.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 7);
    let seconds: u32 = number("SECONDS", 10);
    let count: u64 = number("ROWS", 3_000_000);
    println!("pgbench for {seconds} s beside aggregates over {count} rows, {rounds} rounds");
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .shared_buffers("512MB")
        .setting("jit", "off")
        .start();
    pgbench(&cluster, &["-i", "-q", "-s", "10"]);
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE facts AS SELECT g % 100 AS grp, g AS v, repeat('x', 50) AS pad
                 FROM generate_series(1, {count}) g"
        ),
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE facts");
    cluster.register_replicas();
    let _confined: Vec<Confinement> = (0..=2)
        .map(|node| {
            let pid = cluster.postmaster_pid(node).expect("the server runs");
            Confinement::new(cluster.name(node), pid, 0.5).expect("servers can be confined")
        })
        .collect();
    let variants = [
        ("analytics, replicas off", "0", "on"),
        ("analytics, replicas on", "2", "on"),
        ("analytics, local_plan off", "2", "off"),
    ];
    let mut alone = Vec::new();
    let mut beside: Vec<Vec<Figures>> = variants.iter().map(|_| Vec::new()).collect();
    let mut queries = [0; 3];
    for _ in 0..rounds {
        alone.push(measure(&cluster, seconds));
        for (index, (_, mode, local_plan)) in variants.iter().enumerate() {
            let (figures, done) = with_analytics(&cluster, seconds, mode, local_plan);
            beside[index].push(figures);
            queries[index] += done;
        }
    }
    let column = |figures: &[Figures], field: fn(&Figures) -> f64| {
        figures.iter().map(field).collect::<Vec<f64>>()
    };
    let mut rows = Vec::new();
    for (index, (name, ..)) in variants.iter().enumerate() {
        println!("{name}: {} analytical queries", queries[index]);
        for (what, unit, field) in [
            (
                "throughput",
                "tps",
                (|f| f.throughput) as fn(&Figures) -> f64,
            ),
            ("latency", "us", |f| f.latency_micros),
        ] {
            rows.push(Row::new(
                format!("{what}, {name}"),
                unit,
                column(&alone, field),
                column(&beside[index], field),
            ));
        }
    }
    rows
}

struct Figures {
    throughput: f64,
    latency_micros: f64,
}

fn with_analytics(cluster: &Cluster, seconds: u32, mode: &str, local_plan: &str) -> (Figures, u64) {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = cluster.connect(PRIMARY);
            client
                .batch_execute(&format!(
                    "SET enable_parallel_replicas = {mode};
                     SET parallel_replicas_local_plan = {local_plan};
                     SET parallel_replicas.connect_timeout = '30s';
                     SET parallel_replicas.replay_wait_timeout = '30s'"
                ))
                .expect("settings");
            while !stop.load(Ordering::Relaxed) {
                client
                    .simple_query("SELECT grp, count(*), sum(v) FROM facts GROUP BY grp")
                    .expect("query");
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let figures = measure(cluster, seconds);
        stop.store(true, Ordering::Relaxed);
        (figures, done.load(Ordering::Relaxed))
    })
}

fn measure(cluster: &Cluster, seconds: u32) -> Figures {
    let time = seconds.to_string();
    let output = pgbench(
        cluster,
        &["-n", "-c", "4", "-j", "1", "-T", &time, "-M", "prepared"],
    );
    Figures {
        throughput: number_after(&output, "tps = "),
        latency_micros: number_after(&output, "latency average = ") * 1000.0,
    }
}

fn pgbench(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = system::installation().client_command("pgbench");
    command
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p"])
        .arg(cluster.port(PRIMARY).to_string())
        .args(arguments)
        .arg("postgres");
    system::output_of(&mut command)
}

fn number_after(output: &str, label: &str) -> f64 {
    output
        .lines()
        .find_map(|line| line.strip_prefix(label)?.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("pgbench prints \"{label}\""))
}
