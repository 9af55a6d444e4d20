//! `make chaos`: queries while replicas die, freeze, lag, are promoted and lie. Environment: `SEED`, a
//! number, the clock's when it is not set; `EVENTS`, how many faults, 1000 when it is not set;
//! `SESSIONS`, 2 when it is not set; `MINUTES`, 60 when it is not set, after which no new fault comes.
//!
//! `make soak`: queries that end early. Environment: `SEED`; `QUERIES`, 10000 when it is not set;
//! `SESSIONS`, 100 when it is not set; `GROWTH=0`: sessions may grow.
//!
//! Prints what happened; exit status 1 if anything was wrong.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parallel_replicas_tests::chaos::{self, Plan};
use parallel_replicas_tests::endurance;

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("soak") => soak(),
        _ => chaos(),
    }
}

fn seed() -> u64 {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |time| time.as_secs());
    let seed = number("SEED").unwrap_or(clock);
    println!("SEED={seed}");
    seed
}

fn soak() -> ExitCode {
    let plan = endurance::Plan {
        seed: seed(),
        queries: number("QUERIES").unwrap_or(10_000) as usize,
        sessions: number("SESSIONS").unwrap_or(100) as usize,
        growth: number("GROWTH") != Some(0),
    };
    let start = Instant::now();
    let report = endurance::run(plan);
    println!("\n| what | |\n|---|---|");
    println!("| executions that succeeded | {} |", report.ended);
    println!(
        "| executions with the error that was expected | {} |",
        report.failed
    );
    println!(
        "| granules that the replica read | {} of {} |",
        report.by_replicas, report.granules
    );
    println!("| seconds | {} |", start.elapsed().as_secs());
    println!("\n| session | after a tenth | at the end |\n|---|---|---|");
    for (name, before, after) in &report.footprints {
        println!("| {name} | {before} | {after} |");
    }
    for text in &report.wrong {
        println!("\n{text}");
    }
    ExitCode::from(u8::from(!report.wrong.is_empty()))
}

fn chaos() -> ExitCode {
    let plan = Plan {
        seed: seed(),
        events: number("EVENTS").unwrap_or(1000) as usize,
        at_most: Duration::from_secs(60 * number("MINUTES").unwrap_or(60)),
        sessions: number("SESSIONS").unwrap_or(2) as usize,
    };
    let start = Instant::now();
    let report = chaos::run(plan, |events, _| {
        if events % 50 == 0 {
            println!("{events} faults, {} s", start.elapsed().as_secs());
        }
    });
    println!("\n| fault | times |\n|---|---|");
    for (name, count) in &report.events {
        println!("| {name} | {count} |");
    }
    println!("| all | {} |", report.total());
    println!("\n| what | |\n|---|---|");
    println!("| queries compared | {} |", report.tally.queries);
    println!("| executions ended early | {} |", report.tally.early_ends);
    println!("| transactions of writers | {} |", report.transactions);
    for (name, value) in &report.counters {
        println!("| {name} | {value} |");
    }
    println!("| wrong answers | {} |", report.tally.wrong.len());
    println!("| failed queries | {} |", report.tally.failed.len());
    println!("| left behind | {} |", report.leaks.len());
    println!("| seconds | {} |", start.elapsed().as_secs());
    for text in report
        .tally
        .wrong
        .iter()
        .chain(&report.tally.failed)
        .chain(&report.leaks)
        .chain(&report.unproven)
    {
        println!("\n{text}");
    }
    ExitCode::from(u8::from(!report.is_clean()))
}

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}
