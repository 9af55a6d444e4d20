//! The queue in shared memory: the scheduler's data, and beside each entry what people want to see
//! of it.
//!
//! Locking contract: one LWLock over everything. It is held for a round of the scheduler at most;
//! nothing under it allocates from PostgreSQL, waits or raises. Latches are set under it, so that a
//! process that is woken is still there: it leaves the queue under the same lock before it exits.
//!
//! A backend's entry is the one of its backend id, so there is always one for everybody.

use super::{measure, overload, settings};
use parallel_replicas_core::queue::{Entry, Group, Header, Queue, State, is_later_reading};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Resource groups of all databases together.
pub const GROUPS_MAX: usize = 128;

/// What is shown of an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Details {
    pub pid: i32,
    /// Where in the process array the backend's latch is.
    pub process_number: i32,
    pub user: u32,
    pub database: u32,
    pub query_id: u64,
    /// When the statement arrived, in PostgreSQL's time.
    pub statement_start: i64,
    /// When it was enqueued, in PostgreSQL's time.
    pub enqueued_at: i64,
    pub cost: f64,
    /// Processes that the plan would use at most.
    pub processes: u32,
    /// Processes that count towards the driver marks; 0 while the marks are off.
    pub drivers: u32,
    /// statement_timeout as it was, in milliseconds; 0: none.
    pub statement_timeout_ms: i32,
    /// Its CPU time is counted.
    pub is_counted: bool,
    /// CPU time of its processes, links included, as far as it has been counted.
    pub cpu_us: u64,
}

/// Name and limits of a resource group. A free place has no database.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupDetails {
    pub database: u32,
    pub name: [u8; pg_sys::NAMEDATALEN as usize],
    /// 0: no limit.
    pub max_cpu_cores: f64,
    /// Share of memory; 0: no limit.
    pub mem_used_pct_limit: f64,
    /// Dropped while somebody was using it.
    pub dropped: bool,
    /// Cores that it used at the last measurement.
    pub cpu_cores: f64,
    pub mem_bytes: u64,
    /// CPU time of all its statements, and as it was at the last measurement.
    pub cpu_us: u64,
    pub cpu_us_measured: u64,
}

/// How far a process that works for a statement has been counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUse {
    pub pid: i32,
    pub cpu_us: u64,
}

/// What was measured last, of the whole server.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub measured_ms: u64,
    pub ticks: measure::CpuTicks,
    pub cpu_permille: u32,
    pub memory_used: f64,
}

#[repr(C)]
struct Shared {
    lock: pg_sys::LWLock,
    /// When the process that wrote the limits had read the settings.
    settings_read_at: i64,
    header: Header,
    usage: Usage,
    /// Counts committed changes of definitions.
    groups_version: u64,
    groups: [Group; GROUPS_MAX],
    group_details: [GroupDetails; GROUPS_MAX],
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Asks for the memory. Once, while the postmaster loads the library.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

fn backends() -> usize {
    // SAFETY: fixed before shared memory is asked for.
    unsafe { pg_sys::MaxBackends.max(0) as usize }
}

fn size() -> usize {
    size_of::<Shared>()
        + backends() * (size_of::<Entry>() + size_of::<Details>())
        + processes() * size_of::<ProcessUse>()
}

/// Numbers of processes that can work on a query: backends and background workers come first in the
/// process array, and count towards MaxBackends.
pub fn processes() -> usize {
    backends()
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: the postmaster is the only process; previous hooks go through pgrx's guard.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            #[allow(ffi_unwind_calls)]
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        pg_sys::RequestAddinShmemSpace(size());
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: as above; zeroes are an empty queue.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            #[allow(ffi_unwind_calls)]
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        let mut found = false;
        let area = pg_sys::ShmemInitStruct(c"parallel_replicas_queue".as_ptr(), size(), &mut found);
        let shared = area.cast::<Shared>();
        if !found {
            std::ptr::write_bytes(area.cast::<u8>(), 0, size());
            pg_sys::LWLockInitialize(&raw mut (*shared).lock, pg_sys::LWLockNewTrancheId());
        }
        pg_sys::LWLockRegisterTranche(
            i32::from((*shared).lock.tranche),
            c"parallel_replicas_queue".as_ptr(),
        );
        SHARED.store(shared, Ordering::Relaxed);
    }
    measure::capacity();
}

/// Everything, seen under the lock.
pub struct View<'a> {
    pub queue: Queue<'a>,
    pub details: &'a mut [Details],
    pub group_details: &'a mut [GroupDetails],
    pub usage: &'a mut Usage,
    pub groups_version: &'a mut u64,
    pub processes: &'a mut [ProcessUse],
    settings_read_at: &'a mut i64,
}

/// Is there a queue? Only if the library was preloaded.
pub fn exists() -> bool {
    !SHARED.load(Ordering::Relaxed).is_null()
}

/// Does something with the queue under its lock. `work` must not raise, allocate from PostgreSQL or
/// wait. Not to be called without preload.
pub fn locked<R>(work: impl FnOnce(&mut View<'_>) -> R) -> R {
    let shared = SHARED.load(Ordering::Relaxed);
    // SAFETY: made at start for so many backends; the lock makes the view the only one.
    unsafe {
        let lock = &raw mut (*shared).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let entries = shared.add(1).cast::<Entry>();
        let details = entries.add(backends()).cast::<Details>();
        let process_uses = details.add(backends()).cast::<ProcessUse>();
        let mut view = View {
            queue: Queue {
                header: &mut (*shared).header,
                entries: std::slice::from_raw_parts_mut(entries, backends()),
                groups: &mut (*shared).groups,
            },
            details: std::slice::from_raw_parts_mut(details, backends()),
            group_details: &mut (*shared).group_details,
            usage: &mut (*shared).usage,
            groups_version: &mut (*shared).groups_version,
            processes: std::slice::from_raw_parts_mut(process_uses, processes()),
            settings_read_at: &mut (*shared).settings_read_at,
        };
        let result = work(&mut view);
        pg_sys::LWLockRelease(lock);
        result
    }
}

const _: () = assert!(align_of::<Shared>() >= align_of::<Entry>());
const _: () = assert!(align_of::<Entry>() >= align_of::<Details>());
const _: () = assert!(align_of::<Details>() >= align_of::<ProcessUse>());

/// This backend's entry.
pub fn own_index() -> usize {
    // SAFETY: set once, before a backend executes anything.
    let id = unsafe { pg_sys::MyBackendId };
    (id - 1).max(0) as usize
}

impl View<'_> {
    /// Applies the settings as this process knows them, unless somebody has read them later. They
    /// may be read at any time, and a process that is in the middle of a long statement has old
    /// ones.
    pub fn refresh_limits(&mut self) {
        // SAFETY: plain global; a reading of the clock.
        let (read_at, now) = unsafe { (pg_sys::PgReloadTime, pg_sys::GetCurrentTimestamp()) };
        // What the cluster has changes without them.
        let is_same = read_at == *self.settings_read_at && settings::is_by_cluster();
        if is_same || is_later_reading(read_at, *self.settings_read_at, now) {
            *self.settings_read_at = read_at;
            let mut limits = settings::limits();
            limits.overloaded = self.queue.header.limits.overloaded && overload::is_on();
            self.queue.set_limits(limits);
        }
    }

    /// Grants to whoever can run and wakes them, except this backend.
    pub fn schedule(&mut self) {
        let own = own_index();
        let details = &*self.details;
        self.queue.schedule(measure::now_ms(), &mut |index| {
            if index != own {
                wake(&details[index]);
            }
        });
    }

    /// Frees this backend's entry and lets others have what it held.
    pub fn release_own(&mut self) -> State {
        self.count_own();
        let state = self.queue.release(own_index());
        self.details[own_index()] = Details::default();
        self.schedule();
        state
    }
}

/// Sets a waiting backend's latch.
fn wake(details: &Details) {
    // SAFETY: an entry in use names a process of the array, which is there for good; the latch is
    // that of the process, which leaves the queue before it exits.
    unsafe {
        let process = (*pg_sys::ProcGlobal)
            .allProcs
            .add(details.process_number as usize);
        pg_sys::SetLatch(&raw mut (*process).procLatch);
    }
}
