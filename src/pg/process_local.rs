//! A variable of the process, for hooks that every statement passes: in a shared library each look at a
//! thread-local one is a call.

use std::cell::Cell;

/// Belongs to the thread that executes statements. Other threads of the library (the monitor's probes)
/// have no business here.
pub struct ProcessLocal<T>(Cell<T>);

// SAFETY: only code that PostgreSQL calls uses it, and that runs on the process's main thread.
unsafe impl<T: Copy> Sync for ProcessLocal<T> {}

impl<T: Copy> ProcessLocal<T> {
    pub const fn new(value: T) -> Self {
        Self(Cell::new(value))
    }

    #[inline]
    pub fn get(&self) -> T {
        self.0.get()
    }

    #[inline]
    pub fn set(&self, value: T) {
        self.0.set(value);
    }
}
