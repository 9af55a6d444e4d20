//! Benchmarks of what the extension costs where it cannot help.
//!
//! `bench overhead FILE`: pgbench's SELECT-only load, extension preloaded, switched on and with a
//! replica registered, against a server without it.
//! `bench local FILE`: full-table aggregates by local workers alone, through GranuleScan and
//! ParallelReplicas (the one registered replica does not answer), against PostgreSQL's own parallel
//! scan; and with no replica registered.
//!
//! The two sides run by turns in one run, and the figures are medians with the spread beside them:
//! on a shared machine only their ratio means something.

use parallel_replicas_tests::{Cluster, PRIMARY, system};
use postgres::Client;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: bench overhead|local FILE");
        std::process::exit(2);
    };
    let rows = match name.as_str() {
        "overhead" => overhead(),
        "local" => local(),
        other => {
            eprintln!("there is no benchmark \"{other}\"");
            std::process::exit(2);
        }
    };
    print_table(&rows);
    std::fs::write(&file, json(&name, &rows)).expect("figures can be written");
    println!("\nfigures: {file}");
}

/// One comparison. `ratio` is subject / baseline of the medians.
struct Row {
    what: String,
    unit: &'static str,
    baseline: Sample,
    subject: Sample,
}

struct Sample {
    median: f64,
    least: f64,
    most: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.subject.median / self.baseline.median
    }
}

fn sample(mut values: Vec<f64>) -> Sample {
    values.sort_by(f64::total_cmp);
    Sample {
        median: values[values.len() / 2],
        least: values[0],
        most: values[values.len() - 1],
    }
}

/// Throughput of `pgbench -S`: the bar is a ratio of at least 0.98.
fn overhead() -> Vec<Row> {
    println!("pgbench -S, 4 clients, {ROUNDS} rounds of 4 s each, by turns");
    let without = Cluster::builder().preload(false).autovacuum(false).start();
    let with = Cluster::builder().autovacuum(false).start();
    for cluster in [&without, &with] {
        pgbench(cluster, &["-i", "-q", "-s", "10"]);
    }
    with.connect(PRIMARY)
        .batch_execute("CREATE EXTENSION parallel_replicas")
        .expect("extension");
    with.register_replica("nobody", 1);
    ["simple", "prepared"]
        .into_iter()
        .map(|protocol| {
            let arguments = ["-S", "-n", "-c", "4", "-j", "1", "-T", "4", "-M", protocol];
            let (mut baseline, mut subject) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                baseline.push(transactions_per_second(&pgbench(&without, &arguments)));
                subject.push(transactions_per_second(&pgbench(&with, &arguments)));
            }
            Row {
                what: format!("{protocol} protocol"),
                unit: "tps",
                baseline: sample(baseline),
                subject: sample(subject),
            }
        })
        .collect()
}

fn pgbench(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = system::installation().client_command("pgbench");
    command
        .args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-p",
            &cluster.port(PRIMARY).to_string(),
        ])
        .args(arguments)
        .arg("postgres");
    if cluster
        .connect(PRIMARY)
        .query_one("SHOW enable_parallel_replicas", &[])
        .is_ok()
    {
        command.env("PGOPTIONS", "-c enable_parallel_replicas=1");
    }
    system::output_of(&mut command)
}

fn transactions_per_second(output: &str) -> f64 {
    output
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
        .expect("pgbench prints its throughput")
}

/// Time of full-table aggregates: the bar is a ratio of at most 1.03.
fn local() -> Vec<Row> {
    println!("3 million rows, 2 workers, {ROUNDS} runs of each side, by turns");
    let cluster = Cluster::builder()
        .autovacuum(false)
        .shared_buffers("1GB")
        .setting("parallel_leader_participation", "off")
        .setting("max_parallel_workers_per_gather", "2")
        .setting("jit", "off")
        .start();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE EXTENSION parallel_replicas;
             CREATE TABLE t AS SELECT g AS id, g % 100 AS grp, (g::bigint * 7919) % 10007 AS v,
                 repeat('x', 50) AS pad FROM generate_series(1, 3000000) g",
        )
        .expect("table");
    client.batch_execute("VACUUM ANALYZE t").expect("vacuum");
    let queries = [
        "SELECT count(*) FROM t",
        "SELECT sum(v) FROM t",
        "SELECT sum(v), avg(grp), count(*) FROM t WHERE id % 7 < 5",
        "SELECT grp, count(*), sum(v) FROM t GROUP BY grp",
        "SELECT count(*) FROM t WHERE v = 5",
    ];
    let mut rows = Vec::new();
    for query in queries {
        rows.push(compare(&mut client, query, "no replica registered", 1));
    }
    cluster.register_replica("nobody", 1);
    for query in queries {
        rows.push(compare(&mut client, query, "local workers only", 2));
    }
    rows
}

fn compare(client: &mut Client, query: &str, side: &str, mode: u8) -> Row {
    let (mut baseline, mut subject) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        baseline.push(milliseconds(time(client, query, 0)));
        subject.push(milliseconds(time(client, query, mode)));
    }
    Row {
        what: format!("{query} ({side})"),
        unit: "ms",
        baseline: sample(baseline),
        subject: sample(subject),
    }
}

fn time(client: &mut Client, query: &str, mode: u8) -> Duration {
    client
        .batch_execute(&format!("SET enable_parallel_replicas = {mode}"))
        .expect("setting");
    let start = Instant::now();
    client.batch_execute(query).expect("query");
    start.elapsed()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn print_table(rows: &[Row]) {
    println!("\n{:>7}  {:>22}  {:>22}", "ratio", "without", "with");
    for row in rows {
        println!(
            "{:7.3}  {:>22}  {:>22}  {}",
            row.ratio(),
            cell(&row.baseline),
            cell(&row.subject),
            row.what
        );
    }
    if let Some(row) = rows.first() {
        println!(
            "\nmedian (least-most) in {}; ratio is with / without",
            row.unit
        );
    }
}

fn cell(sample: &Sample) -> String {
    format!(
        "{:.0} ({:.0}-{:.0})",
        sample.median, sample.least, sample.most
    )
}

fn json(name: &str, rows: &[Row]) -> String {
    let mut text = format!("{{\"benchmark\": \"{name}\", \"rows\": [\n");
    for (index, row) in rows.iter().enumerate() {
        let comma = if index + 1 < rows.len() { "," } else { "" };
        let (b, s) = (&row.baseline, &row.subject);
        let _ = writeln!(
            text,
            "  {{\"what\": \"{}\", \"unit\": \"{}\", \"ratio\": {:.4}, \
             \"without\": [{:.3}, {:.3}, {:.3}], \"with\": [{:.3}, {:.3}, {:.3}]}}{comma}",
            row.what,
            row.unit,
            row.ratio(),
            b.least,
            b.median,
            b.most,
            s.least,
            s.median,
            s.most
        );
    }
    text.push_str("]}\n");
    text
}
