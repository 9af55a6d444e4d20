//! Memory for rows that come from replicas.
//!
//! libpq takes it from malloc, message by message, and a task's rows are freed when they have been
//! passed on. glibc would give each task's memory back to the kernel and get it anew for the next one,
//! at the price of a page fault for every 4 kB: a quarter of the coordinator's time. So it is told to
//! wait until the fragment has ended.

use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_void;

/// glibc stops here by itself when it adapts its limits to what a program frees (mallopt(3)).
const MAP_FROM_BYTES: i32 = 32 << 20;
const KEEP_BYTES: i32 = 2 * MAP_FROM_BYTES;
/// Fewer bytes of rows are not worth a look at the heap.
const LEAST_BYTES: u64 = 1 << 20;

thread_local! {
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    /// A fragment has begun, and none has given memory back since: it goes on, or an error ended it.
    static OWES: Cell<bool> = const { Cell::new(false) };
}

/// From now on freed memory stays with this process, up to a limit.
pub fn keep() {
    if OWES.replace(true) {
        trim();
    }
    if !KEEPS.replace(true) {
        // SAFETY: sets two numbers of the allocator; the function lives as long as the process.
        unsafe {
            pg_sys::RegisterXactCallback(Some(transaction_event), std::ptr::null_mut());
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAP_FROM_BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_BYTES);
        }
    }
}

/// A fragment has ended that received so many bytes of rows.
pub fn give_back(received: u64) {
    OWES.set(false);
    if received >= LEAST_BYTES {
        trim();
    }
}

/// A fragment that an error has ended, of the transaction or of a subtransaction, has freed what it held by
/// now: a session that is idle then keeps nothing of it.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction_event(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT};
    if matches!(event, XACT_EVENT_ABORT | XACT_EVENT_COMMIT) && OWES.replace(false) {
        trim();
    }
}

fn trim() {
    // SAFETY: touches free memory only.
    unsafe { libc::malloc_trim(0) };
}
