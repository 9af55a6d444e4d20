//! What this server's backends do for parallel replicas at this moment: one slot per backend.
//!
//! Locking contract: a slot's description is written by its backend under the lock, exclusively, and
//! read by others under it, shared. Its kind, phase and progress are atomics; whoever works for the
//! query adds to them. Giving a slot back is a store to an atomic and nothing else, so that a
//! destructor may do it.

use super::logs::{Origin, Text};
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering};

const NAME: &CStr = c"parallel_replicas_running";

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A query that this server coordinates.
    Query = 1,
    /// A fragment that it executes for another server.
    Fragment = 2,
}

/// How far a fragment has come.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Phase {
    WaitingForReplay,
    /// Its snapshot is taken over, its plan read and checked.
    Starting,
    /// It has announced itself, and works or waits for a task.
    Working,
}

impl Phase {
    fn from_stored(stored: u32) -> Self {
        [Phase::WaitingForReplay, Phase::Starting]
            .into_iter()
            .find(|phase| *phase as u32 == stored)
            .unwrap_or(Phase::Working)
    }

    pub fn name(self) -> &'static str {
        match self {
            Phase::WaitingForReplay => "waiting for replay",
            Phase::Starting => "starting",
            Phase::Working => "working",
        }
    }
}

/// What does not change while a slot is used.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct About {
    pub origin: Origin,
    /// PostgreSQL's microseconds since 2000.
    pub start: i64,
    pub text: Text<1024>,
}

#[repr(C)]
struct Slot {
    kind: AtomicU32,
    /// Of a fragment.
    phase: AtomicU32,
    /// Granules to be read. Signed, because parts of the sums may come in any order.
    selected: AtomicI64,
    done: AtomicI64,
    /// Of a fragment that waits for its coordinator: CPU time that the process had used when it began
    /// to, in nanoseconds; 0: it works.
    waits_since: AtomicI64,
    about: UnsafeCell<About>,
}

#[repr(C)]
struct Header {
    lock: pg_sys::LWLock,
    tranche: i32,
    slots: u32,
}

const HEADER_BYTES: usize = size_of::<Header>().next_multiple_of(8);

static AREA: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());

fn bytes() -> usize {
    HEADER_BYTES + backends() * size_of::<Slot>()
}

fn backends() -> usize {
    // SAFETY: fixed before shared memory is asked for.
    unsafe { pg_sys::MaxBackends }.max(0) as usize
}

pub(super) fn request() {
    // SAFETY: the postmaster is the only process.
    unsafe { pg_sys::RequestAddinShmemSpace(bytes()) };
}

pub(super) fn create() {
    let mut found = false;
    // SAFETY: the postmaster is the only process; zeroed slots are free ones.
    unsafe {
        let area = pg_sys::ShmemInitStruct(NAME.as_ptr(), bytes(), &mut found).cast::<Header>();
        if !found {
            std::ptr::write_bytes(area.cast::<u8>(), 0, bytes());
            (*area).tranche = pg_sys::LWLockNewTrancheId();
            (*area).slots = backends() as u32;
            pg_sys::LWLockInitialize(&raw mut (*area).lock, (*area).tranche);
        }
        pg_sys::LWLockRegisterTranche((*area).tranche, NAME.as_ptr());
        AREA.store(area, Ordering::Relaxed);
    }
}

/// Number of a slot that is in use; it fits into shared memory of other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct SlotId(u32);

impl SlotId {
    /// No slot: what is added to it is forgotten.
    pub const NONE: SlotId = SlotId(0);

    fn slot(self) -> Option<&'static Slot> {
        let area = AREA.load(Ordering::Relaxed);
        if self.0 == 0 || area.is_null() {
            return None;
        }
        // SAFETY: the slots follow the header, and live as long as the process.
        unsafe {
            (self.0 <= (*area).slots).then(|| {
                &*area
                    .cast::<u8>()
                    .add(HEADER_BYTES)
                    .cast::<Slot>()
                    .add(self.0 as usize - 1)
            })
        }
    }

    /// More granules are to be read.
    pub fn add_selected(self, granules: i64) {
        if let Some(slot) = self.slot() {
            slot.selected.fetch_add(granules, Ordering::Relaxed);
        }
    }

    /// More granules have been read; less than 0 if some were lost.
    pub fn add_done(self, granules: i64) {
        if let Some(slot) = self.slot() {
            slot.done.fetch_add(granules, Ordering::Relaxed);
        }
    }

    /// The fragment has come so far.
    pub fn set_phase(self, phase: Phase) {
        if let Some(slot) = self.slot() {
            slot.phase.store(phase as u32, Ordering::Relaxed);
        }
    }

    /// Frees the slot.
    pub fn release(self) {
        if let Some(slot) = self.slot() {
            slot.kind.store(0, Ordering::Release);
        }
    }
}

/// Takes this backend's slot; [`SlotId::NONE`] if it is in use, by a query around this one.
pub fn take(kind: Kind, about: &About) -> SlotId {
    // SAFETY: plain global; 0 or less outside a backend.
    let id = SlotId(unsafe { pg_sys::MyBackendId }.max(0) as u32);
    let Some(slot) = id.slot() else {
        return SlotId::NONE;
    };
    register_exit_callback();
    // SAFETY: set with the slot.
    let own = unsafe { pg_sys::MyProcPid };
    // SAFETY: the slot is this backend's; readers hold the lock.
    unsafe {
        let lock = &raw mut (*AREA.load(Ordering::Relaxed)).lock;
        let in_use =
            slot.kind.load(Ordering::Relaxed) != 0 && (*slot.about.get()).origin.pid == own;
        if in_use {
            return SlotId::NONE;
        }
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        *slot.about.get() = *about;
        slot.selected.store(0, Ordering::Relaxed);
        slot.done.store(0, Ordering::Relaxed);
        slot.phase
            .store(Phase::WaitingForReplay as u32, Ordering::Relaxed);
        slot.waits_since.store(0, Ordering::Relaxed);
        slot.kind.store(kind as u32, Ordering::Release);
        pg_sys::LWLockRelease(lock);
    }
    id
}

/// This backend waits for its coordinator from now on, with so much CPU time used, in nanoseconds; 0: it
/// works again.
pub fn set_waits_since(cpu_time: i64) {
    // SAFETY: plain global.
    let id = SlotId(unsafe { pg_sys::MyBackendId }.max(0) as u32);
    if let Some(slot) = id.slot() {
        slot.waits_since.store(cpu_time, Ordering::Relaxed);
    }
}

/// CPU time with which that backend began to wait for its coordinator; None if it does not.
pub fn waits_since(backend: i32) -> Option<i64> {
    let slot = SlotId(backend.max(0) as u32).slot()?;
    let since = slot.waits_since.load(Ordering::Relaxed);
    (since != 0).then_some(since)
}

/// A process that ends in the middle leaves nothing behind.
fn register_exit_callback() {
    use std::cell::Cell;
    thread_local! {
        static REGISTERED: Cell<bool> = const { Cell::new(false) };
    }
    if !REGISTERED.replace(true) {
        // SAFETY: the callback lives as long as the process.
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0_usize)) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: std::ffi::c_int, _argument: pg_sys::Datum) {
    // SAFETY: plain global.
    SlotId(unsafe { pg_sys::MyBackendId }.max(0) as u32).release();
}

/// A slot as others see it.
pub struct Seen {
    pub about: About,
    pub phase: Phase,
    pub selected: i64,
    pub done: i64,
}

/// All slots that are used for `kind`.
pub fn all(kind: Kind) -> Vec<Seen> {
    let area = AREA.load(Ordering::Relaxed);
    if area.is_null() {
        return Vec::new();
    }
    // SAFETY: the number of slots never changes, so there is room for all before the lock is taken,
    // and nothing is allocated under it.
    unsafe {
        let count = (*area).slots;
        let mut seen = Vec::with_capacity(count as usize);
        let lock = &raw mut (*area).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        for slot in (1..=count).filter_map(|number| SlotId(number).slot()) {
            if slot.kind.load(Ordering::Acquire) == kind as u32 {
                seen.push(Seen {
                    about: *slot.about.get(),
                    phase: Phase::from_stored(slot.phase.load(Ordering::Relaxed)),
                    selected: slot.selected.load(Ordering::Relaxed),
                    done: slot.done.load(Ordering::Relaxed),
                });
            }
        }
        pg_sys::LWLockRelease(lock);
        seen
    }
}
