//! What our nodes cost where only local workers take part.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::{Cluster, PRIMARY};
use postgres::Client;
use std::time::{Duration, Instant};

/// Full-table aggregates by local workers alone, through GranuleScan and ParallelReplicas (the one
/// registered replica does not answer), against PostgreSQL's own parallel scan; and with no replica
/// registered. The bar is a ratio of at most 1.03.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 15);
    println!("3 million rows, 2 workers, {rounds} runs of each side, by turns");
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
        rows.push(compare(
            &mut client,
            query,
            "no replica registered",
            1,
            rounds,
        ));
    }
    cluster.register_replica("nobody", 1);
    for query in queries {
        rows.push(compare(&mut client, query, "local workers only", 2, rounds));
    }
    rows
}

fn compare(client: &mut Client, query: &str, side: &str, mode: u8, rounds: usize) -> Row {
    let (mut baseline, mut subject) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        baseline.push(milliseconds(time(client, query, 0)));
        subject.push(milliseconds(time(client, query, mode)));
    }
    Row::new(format!("{query} ({side})"), "ms", baseline, subject)
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
