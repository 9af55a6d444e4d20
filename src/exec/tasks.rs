//! The task state of one granule scan where PostgreSQL keeps it: in dynamic shared memory when
//! there are local workers, in private memory otherwise.
//!
//! Locking contract: `lock` guards every word behind the header, and `spent`; everything else of the
//! header is written before other processes can see it and never again. The lock is held for single
//! calls into the core only, which neither allocate, block nor raise; the core's own checks turn damage
//! into errors, which are raised after the lock is released. What a call changes of the shown progress
//! is added to an atomic after that. The core's module says what the lock orders, and its tests explore
//! it with model checkers.

use crate::log::Scope;
use crate::pg::wait::now_micros;
use crate::settings::{self, Assignment};
use crate::shm;
use parallel_replicas_core::task_state::{
    ReplicaSpec, ScanSpec, Stage, Task, TaskError, TaskState, size_words,
};
use pgrx::pg_sys;
use std::time::Instant;

/// Who takes part in a scan; the same for all scans of a fragment.
#[derive(Clone, Debug, Default)]
pub struct Participants {
    /// Name and weight of each replica.
    pub replicas: Vec<(String, u32)>,
    /// The replica that each process works for. Process 0 is the leader, then come the local
    /// workers, then the links.
    pub processes: Vec<u16>,
    /// Blocks of all scans of the fragment.
    pub blocks: u64,
    /// Whom to tell what happens.
    pub scope: Scope,
}

impl Participants {
    /// This server alone, with so many workers.
    pub fn local(workers: usize) -> Self {
        Participants {
            replicas: vec![(LOCAL_REPLICA.to_owned(), 1)],
            processes: vec![0; workers + 1],
            blocks: 0,
            scope: Scope::NONE,
        }
    }

    /// About how many blocks a replica owns: what it reads in every query, and may keep in its buffers.
    /// 0 if it is alone, which PostgreSQL's own rules suit.
    pub fn owned_blocks(&self, replica: u16) -> u64 {
        let Some((_, weight)) = self.replicas.get(usize::from(replica)) else {
            return 0;
        };
        if self.replicas.len() == 1 {
            return 0;
        }
        let all: u64 = self.replicas.iter().map(|(_, of)| u64::from(*of)).sum();
        self.blocks * u64::from(*weight) / all.max(1)
    }

    /// The same of this server.
    fn owned_here(&self) -> u64 {
        match self.replicas.first() {
            Some((name, _)) if name == LOCAL_REPLICA => self.owned_blocks(0),
            _ => 0,
        }
    }
}

/// Do a task's blocks go into this server's buffers to stay, where `owned` is what it reads in every
/// such query, 0 if the task is not of it? Only if all of that fits beside whatever else is in use:
/// otherwise the end of each scan would push out what the next begins with.
pub fn stays_in_buffers(owned: u64) -> bool {
    // SAFETY: fixed at server start.
    let buffers = unsafe { pg_sys::NBuffers }.max(0) as u64;
    owned > 0 && owned <= buffers / 4 * 3
}

/// What a process reads in every query, if this task is of it: segments that the hash gave to its
/// replica to own or to steal.
pub fn cached_blocks(task: &Task, owned: u64) -> u64 {
    match task.stage {
        Stage::Own | Stage::StolenByHash => owned,
        Stage::StolenRest => 0,
    }
}

/// Name of the coordinator's own server in the hash. Not a valid server name, so it cannot clash.
pub const LOCAL_REPLICA: &str = "";

/// Header of the memory; the words of the task state follow.
#[repr(C)]
pub struct SharedTasks {
    lock: pg_sys::LWLock,
    words: u64,
    pub granule_blocks: u32,
    pub blocks: u32,
    /// Other processes see this memory.
    shared: bool,
    /// Whom to tell what happens.
    pub scope: Scope,
    /// Number of the scan in its fragment.
    pub scan: u32,
    /// Blocks of all scans that this server owns.
    pub owned_blocks: u64,
    /// Time spent on answering requests, by the answer's stage, and on laying out.
    pub spent: Spent,
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Spent {
    pub own: u64,
    pub by_hash: u64,
    /// Also of requests that were answered with nothing.
    pub rest: u64,
    pub laying_out: u64,
}

impl Spent {
    pub fn add(&mut self, other: &Spent) {
        self.own += other.own;
        self.by_hash += other.by_hash;
        self.rest += other.rest;
        self.laying_out += other.laying_out;
    }
}

const HEADER_BYTES: usize = size_of::<SharedTasks>().next_multiple_of(8);

/// Bytes that the task state of `scan` needs.
pub fn size_bytes(scan: &ScanSpec, participants: &Participants) -> Result<usize, TaskError> {
    let words = size_words(
        scan,
        participants.replicas.len(),
        participants.processes.len(),
    )?;
    Ok(HEADER_BYTES + words * 8)
}

/// Lays out a fresh task state.
///
/// # Safety
/// `memory` has [`size_bytes`] bytes, eight-byte aligned, and nobody else uses it yet.
pub unsafe fn init(
    memory: *mut SharedTasks,
    scan: &ScanSpec,
    participants: &Participants,
    shared: bool,
) -> Result<(), TaskError> {
    let started = Instant::now();
    let words = (size_bytes(scan, participants)? - HEADER_BYTES) / 8;
    let replicas: Vec<ReplicaSpec<'_>> = participants
        .replicas
        .iter()
        .map(|(name, weight)| ReplicaSpec {
            name,
            weight: *weight,
        })
        .collect();
    // SAFETY: as the caller says; LWLockInitialize only writes the lock.
    unsafe {
        pg_sys::LWLockInitialize(&raw mut (*memory).lock, shm::tranche());
        (*memory).words = words as u64;
        (*memory).granule_blocks = scan.granule_blocks;
        (*memory).blocks = scan.blocks;
        (*memory).shared = shared;
        (*memory).scope = participants.scope;
        (*memory).scan = 0;
        (*memory).owned_blocks = participants.owned_here();
        (*memory).spent = Spent::default();
        let words = std::slice::from_raw_parts_mut(data(memory), words);
        let mut state = TaskState::init(words, scan, &replicas, &participants.processes)?;
        // Only where somebody checks that all is done.
        let is_shared = participants
            .replicas
            .iter()
            .any(|(name, _)| name != LOCAL_REPLICA);
        if is_shared && settings::assignment() == Assignment::Incomplete {
            state.withhold_last_granule();
        }
        let selected = i64::from(state.selected());
        participants.scope.slot.add_selected(selected);
        (*memory).spent.laying_out = started.elapsed().as_nanos() as u64;
    }
    Ok(())
}

/// # Safety
/// `memory` was laid out by [`init`].
unsafe fn data(memory: *mut SharedTasks) -> *mut u64 {
    // SAFETY: the words follow the header.
    unsafe { memory.cast::<u8>().add(HEADER_BYTES).cast() }
}

/// Runs `f` on the task state under its lock.
///
/// # Safety
/// `memory` was laid out by [`init`] and is still mapped.
pub unsafe fn with<T>(
    memory: *mut SharedTasks,
    f: impl FnOnce(&mut TaskState<'_>) -> Result<T, TaskError>,
) -> T {
    // SAFETY: as the caller says; the lock makes the words ours.
    let result = unsafe {
        let lock = &raw mut (*memory).lock;
        let shared = (*memory).shared;
        if shared {
            pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        }
        let words = std::slice::from_raw_parts_mut(data(memory), (*memory).words as usize);
        let result = TaskState::attach(words).and_then(|mut state| {
            let result = f(&mut state)?;
            Ok((result, state.take_progress()))
        });
        if shared {
            pg_sys::LWLockRelease(lock);
        }
        result
    };
    match result {
        Ok((value, more)) => {
            if more != 0 {
                // SAFETY: as above; fixed since the memory was laid out.
                unsafe { (*memory).scope }.slot.add_done(more);
            }
            value
        }
        Err(error) => crate::error::internal(format!("task state: {error}")),
    }
}

/// The next task of a local process that has finished its last one.
///
/// # Safety
/// As for [`with`].
pub unsafe fn request_local(memory: *mut SharedTasks, process: u16) -> Option<Task> {
    let now = now_micros();
    // SAFETY: as the caller says.
    unsafe { timed(memory, |state| state.request_local(process, now)) }
}

/// The next task of a link that has finished its last one.
///
/// # Safety
/// As for [`with`].
pub unsafe fn request(memory: *mut SharedTasks, process: u16) -> Option<Task> {
    let now = now_micros();
    // SAFETY: as the caller says.
    unsafe { timed(memory, |state| state.request(process, now)) }
}

/// One task more for a process that still works on its last one.
///
/// # Safety
/// As for [`with`].
pub unsafe fn request_ahead(memory: *mut SharedTasks, process: u16) -> Option<Task> {
    let now = now_micros();
    // SAFETY: as the caller says.
    unsafe { timed(memory, |state| state.request_ahead(process, now)) }
}

/// Counts the time under the stage of the answer.
///
/// # Safety
/// As for [`with`].
unsafe fn timed(
    memory: *mut SharedTasks,
    f: impl FnOnce(&mut TaskState<'_>) -> Option<Task>,
) -> Option<Task> {
    // SAFETY: as the caller says; the closure runs under the lock, which makes the times ours.
    unsafe {
        with(memory, |state| {
            let started = Instant::now();
            let task = f(state);
            let spent = &mut (*memory).spent;
            let counter = match task.map(|task| task.stage) {
                Some(Stage::Own) => &mut spent.own,
                Some(Stage::StolenByHash) => &mut spent.by_hash,
                Some(Stage::StolenRest) | None => &mut spent.rest,
            };
            *counter += started.elapsed().as_nanos() as u64;
            Ok(task)
        })
    }
}
