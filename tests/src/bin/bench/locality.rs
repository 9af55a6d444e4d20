//! Whether a table that fits into the cluster's buffers, but not into one server's, is read from them.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, StopMode, text, wait_until};
use postgres::Client;

const STANDBYS: usize = 2;

/// Blocks of the table that each server has read in a run: from outside its buffers, and from them.
struct Run {
    read: Vec<i64>,
    hit: Vec<i64>,
}

/// The same aggregate twice over a table of 1.5 times one server's shared_buffers on three servers,
/// starting with empty buffers; then the same where owners are drawn anew for each query. Bar: the
/// second run reads at most 5% of what the first one read, as it is.
pub fn run() -> Vec<Row> {
    let buffers: u64 = number("BUFFERS", 256);
    println!(
        "shared_buffers = {buffers} MB on each of {} servers",
        STANDBYS + 1
    );
    let mut cluster = Cluster::builder()
        .standbys(STANDBYS)
        .autovacuum(false)
        .shared_buffers(&format!("{buffers}MB"))
        .setting("parallel_replicas.connect_timeout", "30s")
        .setting("jit", "off")
        .start();
    cluster.register_replicas();
    // About 1 kB per row, seven rows per block.
    let rows = buffers * 128 * 3 / 2 * 7;
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t (id int, pad text);
             ALTER TABLE t ALTER pad SET STORAGE PLAIN;
             INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, {rows}) i;
             VACUUM (FREEZE, ANALYZE) t"
        ),
    );
    cluster.wait_all_caught_up();
    let mut rows = Vec::new();
    for (assignment, what) in [("hash", "owners by hash"), ("random", "owners at random")] {
        for node in 0..=STANDBYS {
            cluster.restart(node, StopMode::Fast);
        }
        for node in cluster.standbys() {
            cluster.wait_streaming(node);
        }
        cluster.wait_all_caught_up();
        let first = run_once(&cluster, assignment);
        let second = run_once(&cluster, assignment);
        println!("\n{what}:  blocks read from outside shared_buffers (and from within)");
        for node in 0..=STANDBYS {
            println!(
                "{:>10}  first run {:6} ({:6})  second run {:6} ({:6})",
                cluster.name(node),
                first.read[node],
                first.hit[node],
                second.read[node],
                second.hit[node],
            );
        }
        let sum = |run: &Run| vec![run.read.iter().sum::<i64>() as f64];
        rows.push(Row::new(what, "blocks", sum(&first), sum(&second)));
    }
    rows
}

/// A session of its own, whose processes tell their counts when they end.
fn run_once(cluster: &Cluster, assignment: &str) -> Run {
    let mut observers: Vec<Client> = (0..=STANDBYS).map(|node| cluster.connect(node)).collect();
    let before = counts(&mut observers);
    let blocks: i64 = text(
        &mut observers[0],
        "SELECT (pg_relation_size('t') / 8192)::text",
    )
    .parse()
    .expect("a number");
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(&format!(
            "SET enable_parallel_replicas = 2; SET max_parallel_workers_per_gather = 2;
             SET parallel_replicas.debug_assignment = '{assignment}'"
        ))
        .expect("settings");
    text(&mut client, "SELECT sum(length(pad))::text FROM t");
    drop(client);
    let mut run = None;
    // Every block is looked at once, by whichever server.
    wait_until(SOON, "all processes have told their counts", || {
        let after = counts(&mut observers);
        let difference = |of: fn(&(i64, i64)) -> i64| -> Vec<i64> {
            let pairs = before.iter().zip(&after);
            pairs
                .map(|(before, after)| of(after) - of(before))
                .collect()
        };
        let (read, hit) = (difference(|counts| counts.0), difference(|counts| counts.1));
        let told: i64 = read.iter().chain(&hit).sum();
        run = Some(Run { read, hit });
        told >= blocks
    });
    run.expect("the counts were looked at")
}

fn counts(observers: &mut [Client]) -> Vec<(i64, i64)> {
    let query =
        "SELECT heap_blks_read, heap_blks_hit FROM pg_statio_user_tables WHERE relname = 't'";
    let counts = observers.iter_mut().map(|observer| {
        let row = observer.query_opt(query, &[]).expect("statistics");
        row.map_or((0, 0), |row| (row.get(0), row.get(1)))
    });
    counts.collect()
}
