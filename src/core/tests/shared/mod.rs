//! What the leader and local workers share, under model checkers: the words of the task state behind
//! one lock, and granules that only their holder reads, without any lock.
//!
//! `shared_loom` goes through every order of a few steps, `shared_shuttle` through many orders of
//! larger scans, with links that are lost and give back. Both run the code that the granule scan runs
//! ([`LocalWork`]); only the lock is theirs.

use parallel_replicas_core::task_state::{LocalWork, ReplicaSpec, ScanSpec, TaskState, size_words};

/// The lock and the granules, as a model checker provides them.
pub trait Memory {
    /// Runs `f` under the lock; time passes with every call.
    fn with<T>(&self, f: impl FnOnce(&mut TaskState<'_>, u64) -> T) -> T;

    /// Reads a granule without the lock; fails if anybody else does at the same time.
    fn read(&self, granule: u32);
}

/// Microseconds that a step takes: a granule's worth.
pub const STEP_MICROS: u64 = 1000;

/// The words of a scan; `processes` names the replica of each.
pub fn words(granules: u32, segment_granules: u32, processes: &[u16]) -> Vec<u64> {
    let scan = ScanSpec {
        database: 5,
        relfilenode: 16_400,
        blocks: granules,
        granule_blocks: 1,
        segment_granules,
    };
    let names = ["", "standby1", "standby2"];
    let count = 1 + usize::from(processes.iter().copied().max().unwrap_or(0));
    let replicas: Vec<ReplicaSpec<'_>> = names[..count]
        .iter()
        .map(|name| ReplicaSpec { name, weight: 1 })
        .collect();
    let mut words = vec![0; size_words(&scan, replicas.len(), processes.len()).unwrap()];
    TaskState::init(&mut words, &scan, &replicas, processes).unwrap();
    words
}

/// One step of a local process, as the granule scan takes it: the granule that it may read now.
pub fn next_granule(memory: &impl Memory, process: u16, work: &mut LocalWork) -> Option<u32> {
    if work.has_more()
        && let Some(granule) = memory.with(|state, _| work.go_on(state, process))
    {
        return Some(granule);
    }
    let task = memory.with(|state, now| state.request_local(process, now))?;
    Some(work.begin(task))
}

/// A local process until nothing is left for it; what it has read.
pub fn work(memory: &impl Memory, process: u16) -> Vec<u32> {
    let mut read = Vec::new();
    let mut work = LocalWork::default();
    while let Some(granule) = next_granule(memory, process, &mut work) {
        memory.read(granule);
        read.push(granule);
    }
    read
}

/// Fails unless the rows of every granule were passed on once, and the state agrees.
pub fn check(state: &TaskState<'_>, mut passed_on: Vec<u32>) {
    passed_on.sort_unstable();
    let all: Vec<u32> = (0..state.selected()).collect();
    assert_eq!(passed_on, all, "granules whose rows were passed on");
    let totals = state.verify_complete().expect("the scan is complete");
    assert_eq!(totals.own + totals.by_hash + totals.rest, totals.selected);
}
