//! What this server has, and how much of it is in use.

use super::settings;
use crate::choice;
use crate::monitor::machine;
use parallel_replicas_core::machine::load;
use parallel_replicas_core::queue::capacity::Capacity;
use std::cell::Cell;
use std::fs;
use std::sync::OnceLock;

const NOTHING: Capacity = Capacity {
    servers: 0,
    cores: 0,
    memory: 0,
};

thread_local! {
    /// When the monitor's findings were looked at last, and what replicas have.
    static REPLICAS: Cell<(u64, Capacity)> = const { Cell::new((0, NOTHING)) };
}

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

/// Resident memory of a process that it does not share; None if it has gone.
pub fn private_bytes(pid: i32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: Vec<u64> = statm
        .split_whitespace()
        .take(3)
        .filter_map(|word| word.parse().ok())
        .collect();
    let [_, resident, shared] = pages[..] else {
        return None;
    };
    // SAFETY: reads a constant of the system.
    let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(resident.saturating_sub(shared) * page_size.max(0) as u64)
}

/// What the live replicas that the monitor knows have together, as of the last look.
pub fn of_replicas() -> Capacity {
    REPLICAS.get().1
}

/// Looks at what the monitor knows, where that counts; once in a while.
pub fn look_at_cluster_if_due() {
    const INTERVAL_MS: u64 = 1000;
    let now = now_ms();
    let (looked, _) = REPLICAS.get();
    if !settings::is_by_cluster() || (looked > 0 && now < looked + INTERVAL_MS) {
        return;
    }
    let mut sum = NOTHING;
    for state in choice::live_replicas() {
        sum.servers += 1;
        sum.cores = sum.cores.saturating_add(state.cores);
        sum.memory = sum.memory.saturating_add(state.load.memory_limit);
    }
    REPLICAS.set((now, sum));
}
