//! GROUP BY with few and with many groups.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::{Cluster, PRIMARY};
use postgres::Client;
use std::time::Instant;

/// Time of GROUP BY with 100, 10 thousand, 1 million and 5 million groups over two replicas, against
/// PostgreSQL alone. ROWS is the size of the table; more groups than rows are left out.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 5);
    let count: u64 = number("ROWS", 10_000_000);
    println!("{count} rows, two replicas, {rounds} pairs");
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .shared_buffers("1GB")
        .setting("work_mem", "256MB")
        .setting("jit", "off")
        .start();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT (g * 7919) % 5000000 AS k, g % 1000 AS v
                 FROM generate_series(1, {count}::bigint) g"
        ),
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    [100_u64, 10_000, 1_000_000, 5_000_000]
        .into_iter()
        .filter(|groups| *groups <= count)
        .map(|groups| {
            let query = format!(
                "SELECT k % {groups} AS key, count(*), sum(v) FROM t GROUP BY key OFFSET {groups}"
            );
            let (mut baseline, mut subject) = (Vec::new(), Vec::new());
            for round in 0..=rounds {
                let pair = [
                    millis(&mut client, &query, 0),
                    millis(&mut client, &query, 1),
                ];
                if round > 0 {
                    baseline.push(pair[0]);
                    subject.push(pair[1]);
                }
            }
            Row::new(format!("{groups} groups"), "ms", baseline, subject)
        })
        .collect()
}

fn millis(client: &mut Client, query: &str, mode: u8) -> f64 {
    client
        .batch_execute(&format!("SET enable_parallel_replicas = {mode}"))
        .expect("setting");
    let start = Instant::now();
    client.simple_query(query).expect("query");
    start.elapsed().as_secs_f64() * 1000.0
}
