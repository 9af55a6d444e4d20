//! Confines the processes of a server to a share of one CPU, by a control group of its own.
//!
//! Works as root, with the cpu controller of cgroup v2 or v1. The period is short, so that a process
//! that has used up its share does not pause for long.

use crate::system::process_tree;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const PERIOD_MICROS: f64 = 10_000.0;
/// The kernel takes no smaller quota.
const QUOTA_MICROS_MIN: f64 = 1_000.0;

/// A control group; its processes are set free when it is dropped.
pub struct Confinement {
    group: PathBuf,
    parent: PathBuf,
}

/// Where the cpu controller is, and whether it is of version 2.
fn controller() -> io::Result<(PathBuf, bool)> {
    let unified = Path::new("/sys/fs/cgroup");
    let has_cpu = |file: PathBuf| {
        fs::read_to_string(file).is_ok_and(|list| list.split_whitespace().any(|name| name == "cpu"))
    };
    if has_cpu(unified.join("cgroup.controllers")) {
        fs::write(unified.join("cgroup.subtree_control"), "+cpu")?;
        return Ok((unified.to_owned(), true));
    }
    let separate = unified.join("cpu");
    if separate.join("cpu.cfs_quota_us").exists() {
        return Ok((separate, false));
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no cpu controller under /sys/fs/cgroup",
    ))
}

impl Confinement {
    /// In which part of the periods so far the share was used up.
    pub fn throttled(&self) -> Option<f64> {
        let statistics = fs::read_to_string(self.group.join("cpu.stat")).ok()?;
        let number = |name: &str| -> Option<f64> {
            let mut lines = statistics.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        Some(number("nr_throttled ")? / number("nr_periods ")?)
    }

    /// Confines a process and all its descendants, present and future, to `share` of a CPU. The
    /// period is longer for small shares.
    pub fn new(name: &str, root: i32, share: f64) -> io::Result<Self> {
        let (parent, unified) = controller()?;
        let group = parent.join(format!("parallel_replicas_{}_{name}", std::process::id()));
        fs::create_dir(&group)?;
        let confinement = Self { group, parent };
        let period = PERIOD_MICROS.max(QUOTA_MICROS_MIN / share).round();
        let quota = (period * share).round().max(QUOTA_MICROS_MIN);
        let group = &confinement.group;
        if unified {
            fs::write(group.join("cpu.max"), format!("{quota} {period}"))?;
        } else {
            fs::write(group.join("cpu.cfs_period_us"), period.to_string())?;
            fs::write(group.join("cpu.cfs_quota_us"), quota.to_string())?;
        }
        // Until no child escapes that was born meanwhile.
        loop {
            let inside = fs::read_to_string(group.join("cgroup.procs"))?;
            let inside: Vec<i32> = inside.lines().filter_map(|pid| pid.parse().ok()).collect();
            let outside: Vec<i32> = process_tree(root)
                .into_iter()
                .filter(|pid| !inside.contains(pid))
                .collect();
            if outside.is_empty() {
                return Ok(confinement);
            }
            for pid in outside {
                move_to(group, pid);
            }
        }
    }
}

/// A process that has ended cannot be moved, and need not be.
fn move_to(group: &Path, pid: i32) {
    let _ = fs::write(group.join("cgroup.procs"), pid.to_string());
}

impl Drop for Confinement {
    fn drop(&mut self) {
        loop {
            let inside = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
            if inside.is_empty() {
                break;
            }
            for pid in inside.lines().filter_map(|pid| pid.parse().ok()) {
                move_to(&self.parent, pid);
            }
        }
        let _ = fs::remove_dir(&self.group);
    }
}
