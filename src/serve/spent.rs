//! Tells the coordinator how much CPU time this process has used for the fragment, for whoever counts it
//! there.

use super::copy_both;
use crate::pg::proc;
use parallel_replicas_core::frame::ToCoordinator;
use std::cell::Cell;

/// Less than so many microseconds are told at the fragment's end only.
pub const WORTH_TELLING_US: u64 = 100_000;

thread_local! {
    /// This process's CPU time when it was told last.
    static TOLD_US: Cell<u64> = const { Cell::new(0) };
}

fn now_us() -> u64 {
    proc::cpu_clock(0).map_or(0, |time| time.max(0) as u64 / 1000)
}

/// A fragment begins.
pub fn begin() {
    TOLD_US.set(now_us());
}

/// Tells what has been used since, if it is so much.
pub fn tell(least_us: u64) {
    let now = now_us();
    let cpu_us = now.saturating_sub(TOLD_US.get());
    if cpu_us >= least_us {
        TOLD_US.set(now);
        copy_both::send(&ToCoordinator::Used { cpu_us });
    }
}
