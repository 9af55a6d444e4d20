//! How many links the sessions of this server have, idle ones included, for the cap on them.
//!
//! One number. A session adds to it before a link's socket exists and takes off after it is closed;
//! what a process has when it ends is taken off by its exit callback, and a crash of the server sets
//! everything to 0 with the rest of shared memory.

use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    /// Of this process.
    static OWN: Cell<u32> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

fn total() -> Option<&'static AtomicU32> {
    super::shared().map(|shared| &shared.links)
}

/// Links of all sessions.
pub fn in_use() -> u32 {
    total().map_or(0, |total| total.load(Ordering::Relaxed))
}

/// Leave to have one link.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// None if `most` are in use; 0 means no limit.
    pub fn take(most: u32) -> Option<Permit> {
        register_exit_callback();
        let admit = |links: u32| (most == 0 || links < most).then(|| links + 1);
        if let Some(total) = total() {
            let taken = total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit);
            taken.ok()?;
        }
        OWN.set(OWN.get() + 1);
        Some(Permit(()))
    }
}

impl Drop for Permit {
    /// Nothing but atomics, since an error may be unwinding.
    fn drop(&mut self) {
        // At the process's end the exit callback was first.
        if let Some(left) = OWN.get().checked_sub(1) {
            OWN.set(left);
            give_back(1);
        }
    }
}

fn give_back(links: u32) {
    if let Some(total) = total() {
        total.fetch_sub(links, Ordering::Relaxed);
    }
}

fn register_exit_callback() {
    if !REGISTERED.replace(true) {
        // SAFETY: the callback lives as long as the process.
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0_usize)) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: std::ffi::c_int, _argument: pg_sys::Datum) {
    give_back(OWN.take());
}
