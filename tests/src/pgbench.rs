//! What pgbench prints, and the CPU time of its backends.

use std::fs;

use crate::{Cluster, PRIMARY, SOON, system, wait_until};

/// The number that pgbench prints after a label.
#[track_caller]
pub fn number_after(output: &str, label: &str) -> f64 {
    output
        .lines()
        .find_map(|line| {
            let number = line.strip_prefix(label)?;
            number.split([' ', '/']).next()?.parse().ok()
        })
        .unwrap_or_else(|| panic!("pgbench prints \"{label}\""))
}

/// Seconds of CPU that the postmaster's ended children used: fields 16 and 17 of /proc/PID/stat, in
/// ticks of 10 ms (proc(5)). Waits until pgbench's backends have ended.
pub fn cpu_of_ended_backends(cluster: &Cluster) -> f64 {
    let pid = cluster.postmaster_pid(PRIMARY).expect("the server runs");
    wait_until(SOON, "the backends of pgbench have ended", || {
        system::process_tree(pid).iter().all(|child| {
            // Empty as long as the postmaster has not yet taken notice of the end.
            fs::read_to_string(format!("/proc/{child}/cmdline"))
                .is_ok_and(|title| !title.is_empty() && !title.contains("127.0.0.1("))
        })
    });
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    let after_name = &stat[stat.rfind(')').expect("name in parentheses") + 1..];
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    ticks as f64 / 100.0
}
