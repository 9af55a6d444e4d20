//! Shared memory of the server: who it is, what it has counted, what it does now and did lately.
//!
//! Made when the postmaster starts: one fixed-size area here, and those of `logs` and `running`, which
//! have locks of their own. Locking contract: the identity is written
//! once, by the postmaster before any other process exists, and then only read; the counters are
//! atomics, each on its own, so that a reader may see one of two related counters move first.

pub mod events;
pub mod links;
pub mod logs;
pub mod monitor;
mod ring;
pub mod running;

use pgrx::pg_sys;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Raised whenever [`Shared`] changes.
const LAYOUT_VERSION: u32 = 3;

/// The area. No pointers, no heap.
#[repr(C)]
pub struct Shared {
    layout_version: u32,
    /// Lock tranche of the task states in dynamic shared memory.
    tranche: i32,
    monitor_tranche: i32,
    /// See [`links`].
    links: AtomicU32,
    /// Random: tells this server from a copy of it.
    instance_id: [u8; 16],
    pub events: events::Events,
    monitor: monitor::Area,
}

const _: () =
    assert!(size_of::<Shared>() == 32 + size_of::<events::Events>() + size_of::<monitor::Area>());

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Asks for the area. Once, while the postmaster loads the library.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: the postmaster is the only process; previous hooks go through pgrx's guard.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            #[allow(ffi_unwind_calls)]
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        pg_sys::RequestAddinShmemSpace(size_of::<Shared>());
        logs::request();
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: as above; the area is zeroed or initialised before anybody else looks.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            #[allow(ffi_unwind_calls)]
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        let mut found = false;
        let area = pg_sys::ShmemInitStruct(
            c"parallel_replicas".as_ptr(),
            size_of::<Shared>(),
            &mut found,
        )
        .cast::<Shared>();
        if !found {
            std::ptr::write_bytes(area, 0, 1);
            (*area).layout_version = LAYOUT_VERSION;
            (*area).tranche = pg_sys::LWLockNewTrancheId();
            (*area).monitor_tranche = pg_sys::LWLockNewTrancheId();
            monitor::init(&raw mut (*area).monitor, (*area).monitor_tranche);
            let id = (&raw mut (*area).instance_id).cast();
            if !pg_sys::pg_strong_random(id, 16) {
                pgrx::error!("could not generate a random instance id");
            }
            (*area).events.start();
        }
        pg_sys::LWLockRegisterTranche((*area).tranche, c"parallel_replicas_tasks".as_ptr());
        pg_sys::LWLockRegisterTranche(
            (*area).monitor_tranche,
            c"parallel_replicas_monitor".as_ptr(),
        );
        SHARED.store(area, Ordering::Relaxed);
        logs::create();
    }
}

/// The area; None unless the library was preloaded.
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: set once, to memory that lives as long as the process.
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }
}

/// Was the library loaded by shared_preload_libraries?
pub fn is_preloaded() -> bool {
    shared().is_some()
}

/// This server's random id; zeroes without preload.
pub fn instance_id() -> [u8; 16] {
    shared().map_or([0; 16], |shared| shared.instance_id)
}

/// Lock tranche of the task states.
pub fn tranche() -> i32 {
    shared().map_or(0, |shared| shared.tranche)
}
