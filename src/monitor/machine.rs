//! Reads what Linux tells about this machine and the control groups that this server is in.

use crate::pg::wait::now_micros;
use parallel_replicas_core::machine::{Group, Sample, cpu_used_us, group_folders};
use std::fs::read_to_string;
use std::path::Path;

fn text(folder: &str, file: &str) -> String {
    read_to_string(Path::new(folder).join(file)).unwrap_or_default()
}

/// One look. A file that is not there counts as no limit.
pub fn sample() -> Sample {
    let cgroup = text("/proc/self", "cgroup");
    let mounts = text("/proc/self", "mountinfo");
    let second = group_folders(&cgroup, &mounts, "");
    let cpu = group_folders(&cgroup, &mounts, "cpu");
    let accounts = group_folders(&cgroup, &mounts, "cpuacct");
    let memory = group_folders(&cgroup, &mounts, "memory");
    let second = second.iter().map(|folder| Group {
        cpu_limit: text(folder, "cpu.max"),
        cpu_used_us: cpu_used_us(&text(folder, "cpu.stat")),
        memory_limit: text(folder, "memory.max"),
        memory_used: text(folder, "memory.current"),
        memory_stat: text(folder, "memory.stat"),
    });
    // Version 1 keeps a tree for each controller; a level is one kind of limit then.
    let cpu = cpu.iter().zip(&accounts).map(|(folder, account)| Group {
        cpu_limit: format!(
            "{} {}",
            text(folder, "cpu.cfs_quota_us").trim(),
            text(folder, "cpu.cfs_period_us").trim()
        ),
        cpu_used_us: text(account, "cpuacct.usage")
            .trim()
            .parse::<u64>()
            .ok()
            .map(|nanoseconds| nanoseconds / 1000),
        ..Group::default()
    });
    let memory = memory.iter().map(|folder| Group {
        memory_limit: text(folder, "memory.limit_in_bytes"),
        memory_used: text(folder, "memory.usage_in_bytes"),
        memory_stat: text(folder, "memory.stat"),
        ..Group::default()
    });
    Sample {
        groups: second.chain(cpu).chain(memory).collect(),
        at_us: now_micros(),
        stat: text("/proc", "stat"),
        meminfo: text("/proc", "meminfo"),
    }
}
