//! How much of the stack is in use.
//!
//! What walks through an expression here takes more of it for each level than PostgreSQL's own code does,
//! because of the guards. An expression that only that would make too deep must not end in an error.

use pgrx::pg_sys;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the postmaster's stack was when it loaded the library. Its children's begin near there, too.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Once, from the library's initialisation.
pub fn init() {
    BASE.store(here(), Ordering::Relaxed);
}

#[inline(never)]
fn here() -> usize {
    let mark = 0_u8;
    (&raw const mark) as usize
}

/// Is a third of what `max_stack_depth` allows in use? The rest is for who works on the same expression later.
pub fn is_deep() -> bool {
    // SAFETY: plain setting, in kilobytes.
    let most = unsafe { pg_sys::max_stack_depth } as usize * 1024;
    BASE.load(Ordering::Relaxed).abs_diff(here()) > most / 3
}
