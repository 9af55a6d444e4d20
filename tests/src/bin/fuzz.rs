//! `make fuzz-queries`: random queries with replicas and without, on a primary with two replicas.
//!
//! Environment: `SEED`, a number, the clock's when it is not set; `QUERIES`, how many, 20000 when it
//! is not set; `ROUND` runs one round of a seed only, as a failure tells; `SQLSMITH`, how many
//! statements sqlsmith adds on the tables of the last round, 50000 when it is not set: those are not
//! compared, but no server may crash. Ends with the exit status 1 if anything differed or too little
//! was compared, and compares the standbys with the primary at the end.

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parallel_replicas_tests::fuzz::{self, Plan};
use parallel_replicas_tests::{Cluster, PRIMARY, damage_check};

/// Queries of one round.
const QUERIES: usize = 100;

/// sqlsmith has been stuck if it takes longer.
const SQLSMITH_SECONDS: u32 = 4 * 3600;

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
    let whole_run = number("ROUND").is_none();
    let count = number("SQLSMITH").unwrap_or(if whole_run { 50_000 } else { 0 });
    if count > 0 {
        sqlsmith(&cluster, seed, count);
    }
    damage_check(&cluster);
    println!("no standby is damaged");
    let shortcoming = report.shortcoming().filter(|_| whole_run);
    if let Some(shortcoming) = &shortcoming {
        println!("{shortcoming}");
    }
    ExitCode::from(u8::from(!report.wrong.is_empty() || shortcoming.is_some()))
}

/// Runs sqlsmith with everything shipped that can be.
fn sqlsmith(cluster: &Cluster, seed: u64, count: u64) {
    let target = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres options='-c search_path=fuzz -c \
         statement_timeout=2s -c parallel_replicas.debug_force=on -c \
         parallel_replicas_local_plan=off -c parallel_replicas.granule_blocks=1'",
        cluster.port(PRIMARY)
    );
    // It calls every function there is, and would count from 0 again and again.
    cluster.psql(
        PRIMARY,
        "ALTER EXTENSION parallel_replicas DROP FUNCTION parallel_replicas.reset_events();
         DROP FUNCTION parallel_replicas.reset_events()",
    );
    let before = [PRIMARY].into_iter().chain(cluster.standbys());
    let before: Vec<Option<i32>> = before.map(|node| cluster.postmaster_pid(node)).collect();
    let used_before = fuzz::used(&mut cluster.connect(PRIMARY));
    let output = Command::new("timeout")
        .args([&SQLSMITH_SECONDS.to_string(), "sqlsmith"])
        .args(["--verbose", "--exclude-catalog"])
        .arg(format!("--max-queries={count}"))
        .arg(format!("--seed={seed}"))
        .arg(format!("--target={target}"))
        .stdin(Stdio::null())
        .output()
        .expect("sqlsmith is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    let last = told.lines().rev().take(40).collect::<Vec<_>>();
    let last: Vec<&str> = last.into_iter().rev().collect();
    println!("{}", last.join("\n"));
    assert!(output.status.success(), "{}", output.status);
    for (node, pid) in [PRIMARY].into_iter().chain(cluster.standbys()).zip(before) {
        assert_eq!(cluster.postmaster_pid(node), pid, "{}", cluster.name(node));
        for line in cluster.log(node).lines() {
            assert!(
                !line.contains("was terminated by signal")
                    && !line.contains("PANIC")
                    && !line.contains("reference leak")
                    && !line.contains("This is a defect of parallel_replicas"),
                "{}: {line}",
                cluster.name(node)
            );
        }
    }
    let used = fuzz::used(&mut cluster.connect(PRIMARY)) - used_before;
    assert!(used > 0, "replicas took no part");
    println!("{count} statements of sqlsmith; replicas contributed to fragments {used} times");
}

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {value}")),
    )
}
