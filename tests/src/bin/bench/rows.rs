//! Rows through a link against rows through PostgreSQL's own tuple queue.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::{Cluster, PRIMARY};
use postgres::Client;
use std::time::Instant;

/// Rows per second from one process to the coordinator: one link of one replica, against one parallel
/// worker below a Gather. The bar is a ratio of at least 1.0 for rows of 100 bytes.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 9);
    let count: u64 = number("ROWS", 1_000_000);
    println!("{count} rows from one link against one parallel worker, {rounds} pairs");
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .shared_buffers("512MB")
        .setting("jit", "off")
        .setting("parallel_leader_participation", "off")
        .setting("parallel_setup_cost", "0")
        .setting("parallel_tuple_cost", "0")
        .setting("min_parallel_table_scan_size", "0")
        .start();
    let widths = [20, 100, 400];
    for bytes in widths {
        // 8 bytes of number, the rest text with its header.
        cluster.psql(
            PRIMARY,
            &format!(
                "CREATE TABLE wide_{bytes} AS SELECT g::bigint AS i, repeat('x', {}) AS pad
                     FROM generate_series(1, {count}) g",
                bytes - 9
            ),
        );
    }
    cluster.psql(PRIMARY, "VACUUM ANALYZE");
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET max_parallel_workers_per_gather = 1; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.links_per_replica = 1; SET parallel_replicas.setup_cost = 0;
             SET parallel_replicas.connect_timeout = '30s'",
        )
        .expect("settings");
    widths
        .into_iter()
        .flat_map(|bytes| {
            let (mut baseline, mut subject) = (Vec::new(), Vec::new());
            for round in 0..=rounds {
                let pair = [
                    rows_per_second(&mut client, bytes, count, 0),
                    rows_per_second(&mut client, bytes, count, 2),
                ];
                if round > 0 {
                    baseline.push(pair[0]);
                    subject.push(pair[1]);
                }
            }
            let megabytes = |figures: &[f64]| {
                let scale = |rows: &f64| rows * f64::from(bytes) / 1e6;
                figures.iter().map(scale).collect::<Vec<f64>>()
            };
            let volume = Row::new(
                format!("rows of {bytes} bytes, volume"),
                "MB/s",
                megabytes(&baseline),
                megabytes(&subject),
            );
            [
                Row::new(format!("rows of {bytes} bytes"), "/s", baseline, subject),
                volume,
            ]
        })
        .collect()
}

fn rows_per_second(client: &mut Client, bytes: u32, rows: u64, mode: u8) -> f64 {
    client
        .batch_execute(&format!("SET enable_parallel_replicas = {mode}"))
        .expect("setting");
    // OFFSET 0 keeps the aggregate above the rows' way.
    let query = format!(
        "SELECT count(pad), sum(i) FROM (SELECT i, pad FROM wide_{bytes} OFFSET 0) AS passed_on"
    );
    let start = Instant::now();
    client.simple_query(&query).expect("query");
    rows as f64 / start.elapsed().as_secs_f64()
}
