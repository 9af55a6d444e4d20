//! What replicas cost a query that is too small for them.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::{Cluster, PRIMARY};
use postgres::Client;
use std::time::Instant;

/// Latency of queries over 100 rows and over 1 MB, links being up, against replicas switched off.
/// Bars: under force at most 1.5 ms more; switched on as slow as off, since the planner declines.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 300);
    println!("latency of small queries on warm links, {rounds} pairs");
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("min_parallel_table_scan_size", "0")
        .setting("jit", "off")
        .start();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE rows_100 AS SELECT g AS i, repeat('x', 100) AS pad FROM generate_series(1, 100) g;
         CREATE TABLE mb_1 AS SELECT g AS i, repeat('x', 100) AS pad FROM generate_series(1, 7500) g",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE");
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    let mut rows = Vec::new();
    for (table, size) in [("rows_100", "100 rows"), ("mb_1", "1 MB")] {
        let query = format!("SELECT count(*), sum(i) FROM {table}");
        for (mode, name) in [(2, "force"), (1, "on")] {
            let (mut baseline, mut subject) = (Vec::new(), Vec::new());
            // The first ones connect and fill caches.
            for round in 0..rounds + 5 {
                let pair = [
                    micros(&mut client, &query, 0),
                    micros(&mut client, &query, mode),
                ];
                if round >= 5 {
                    baseline.push(pair[0]);
                    subject.push(pair[1]);
                }
            }
            rows.push(Row::new(format!("{size}, {name}"), "us", baseline, subject));
        }
    }
    for row in &rows {
        println!("{}: {:+.0} us", row.what(), row.difference());
    }
    rows
}

fn micros(client: &mut Client, query: &str, mode: u8) -> f64 {
    client
        .batch_execute(&format!("SET enable_parallel_replicas = {mode}"))
        .expect("setting");
    let start = Instant::now();
    client.simple_query(query).expect("query");
    start.elapsed().as_secs_f64() * 1e6
}
