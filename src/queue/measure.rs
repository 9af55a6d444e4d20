//! What this server has, and how much of it is in use.

use crate::monitor::machine;
use parallel_replicas_core::machine::load;
use parallel_replicas_core::queue::capacity::Capacity;
use std::fs;
use std::sync::OnceLock;

static CAPACITY: OnceLock<Capacity> = OnceLock::new();

/// Cores and memory that this server may use, by its control group if it is in one. Looked at once,
/// when the postmaster starts.
pub fn capacity() -> Capacity {
    *CAPACITY.get_or_init(|| Capacity {
        servers: 1,
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory: memory().1,
    })
}

/// Milliseconds of a clock that all processes of the machine share and nobody sets.
pub fn now_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place; this clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// CPU time that the machine has spent since it started, in clock ticks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CpuTicks {
    pub busy: u64,
    pub all: u64,
}

/// From /proc/stat.
pub fn cpu_ticks() -> Option<CpuTicks> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user time.
    let all = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Some(CpuTicks {
        busy: u64::saturating_sub(all, idle),
        all,
    })
}

/// Bytes of memory in use, and what they can grow to; 0: not known.
fn memory() -> (u64, u64) {
    let now = machine::sample();
    let load = load(&now, &now);
    (load.memory_used, load.memory_limit)
}

/// Share of memory that is in use, 0 to 1.
pub fn memory_used() -> Option<f64> {
    let (used, limit) = memory();
    (limit > 0).then(|| used as f64 / limit as f64)
}

/// What one process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUse {
    pub cpu_ms: u64,
    /// Resident memory that it does not share.
    pub private_bytes: u64,
}

/// From /proc; None if the process has gone.
pub fn process_use(pid: i32) -> Option<ProcessUse> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; utime and stime are the 12th and 13th words
    // after it (proc(5) counts them 14 and 15).
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?;
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: Vec<u64> = statm
        .split_whitespace()
        .take(3)
        .filter_map(|word| word.parse().ok())
        .collect();
    let [_, resident, shared] = pages[..] else {
        return None;
    };
    // SAFETY: reads constants of the system.
    let (per_second, page_size) = unsafe {
        (
            libc::sysconf(libc::_SC_CLK_TCK),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    Some(ProcessUse {
        cpu_ms: ticks * 1000 / per_second.max(1) as u64,
        private_bytes: resident.saturating_sub(shared) * page_size.max(0) as u64,
    })
}
