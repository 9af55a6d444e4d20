//! `make fuzz-queries`: random queries with replicas and without, on a primary with two replicas.
//!
//! Environment: `SEED`, a number, the clock's when it is not set; `QUERIES`, how many, 20000 when it
//! is not set; `ROUND` runs one round of a seed only, as a failure tells. Ends with the exit status
//! 1 if anything differed, and compares the standbys with the primary at the end.

use std::env;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parallel_replicas_tests::fuzz::{self, Plan};
use parallel_replicas_tests::{Cluster, damage_check};

/// Queries of one round.
const QUERIES: usize = 100;

fn main() -> ExitCode {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |time| time.as_secs());
    let seed = number("SEED").unwrap_or(clock);
    let rounds = match number("ROUND") {
        Some(round) => (round, round + 1),
        None => (
            0,
            number("QUERIES").unwrap_or(20_000).div_ceil(QUERIES as u64),
        ),
    };
    let cluster = Cluster::builder()
        .standbys(2)
        .setting("shared_buffers", "64MB")
        .setting("max_wal_size", "4GB")
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .setting("parallel_replicas.stall_timeout", "60s")
        .start();
    cluster.register_replicas();
    println!("SEED={seed}");
    let start = Instant::now();
    let plan = Plan {
        seed,
        rounds,
        queries: QUERIES,
    };
    let mut shown = 0;
    let report = fuzz::run(&cluster, plan, |round, report| {
        for failure in &report.wrong[shown..] {
            println!("\n{failure}\n");
        }
        shown = report.wrong.len();
        println!(
            "round {round}: {} equal, {} of them with replicas, {} with the same error, {} too \
             long, {} wrong, {} s",
            report.equal,
            report.with_replicas,
            report.same_error,
            report.too_long,
            report.wrong.len(),
            start.elapsed().as_secs()
        );
    });
    damage_check(&cluster);
    println!("no standby is damaged");
    ExitCode::from(u8::from(!report.wrong.is_empty()))
}

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {value}")),
    )
}
