//! The monitor: looks at every replica at an interval and publishes what it finds (`shm::monitor`).
//!
//! A launcher samples this server's own load and starts a worker for each database, because
//! definitions of replicas and credentials are kept per database; credentials never leave the
//! worker. A replica that several databases define is looked at by one of their workers. On
//! primaries and standbys alike.
//!
//! The worker reads the definitions in one short transaction and then leaves its database. From
//! then on it holds no snapshot and is no obstacle to DROP DATABASE. When definitions change it ends,
//! and the launcher starts another.
//!
//! Threads: only in workers, only in `prober`, where nothing of PostgreSQL is touched and all
//! signals are blocked. They report over a bounded channel; the main thread does the rest.

mod launcher;
pub mod machine;
mod prober;
mod worker;

pub use launcher::init;

use pgrx::pg_sys;
use std::ffi::{CStr, c_char, c_int};

unsafe extern "C-unwind" {
    // postgres.c, interrupt.c: handlers as PostgreSQL's own, which pgrx's covers are not.
    #[link_name = "die"]
    fn terminate_handler(signal: c_int);
    #[link_name = "SignalHandlerForConfigReload"]
    fn reload_handler(signal: c_int);
}

/// What both kinds of process do first.
fn take_signals() {
    // SAFETY: main thread of a background worker that has just started; signals are still blocked.
    unsafe {
        pg_sys::pqsignal(libc::SIGHUP, Some(reload_handler));
        pg_sys::pqsignal(libc::SIGTERM, Some(terminate_handler));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Serves what signals have asked for. False if the process is to end.
fn serve_signals() -> bool {
    // SAFETY: flags that handlers set on this thread.
    unsafe {
        if std::ptr::read_volatile(&raw const pg_sys::ProcDiePending) != 0 {
            return false;
        }
        pgrx::check_for_interrupts!();
        if std::ptr::read_volatile(&raw const pg_sys::ConfigReloadPending) != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
    true
}

/// Copies a text into a field of a background worker's description.
fn fill(field: &mut [c_char], text: &CStr) {
    for (to, from) in field.iter_mut().zip(text.to_bytes_with_nul()) {
        *to = *from as c_char;
    }
}
