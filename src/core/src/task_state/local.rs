//! The way of a local process through its tasks, one granule after the other.
//!
//! What it decides alone is here; whatever it must ask goes through the lock, which the caller takes:
//! the granule scan takes PostgreSQL's, the tests in `tests/shared.rs` those of model checkers. Plain
//! data: all zero is a process that has not begun.

use super::{Task, TaskState};

/// Where a local process is.
#[derive(Clone, Copy, Debug)]
pub struct LocalWork {
    task: Task,
    next: u32,
    active: bool,
}

impl Default for LocalWork {
    fn default() -> Self {
        Self {
            task: Task {
                id: 0,
                start_granule: 0,
                granules: 0,
                stage: super::Stage::Own,
            },
            next: 0,
            active: false,
        }
    }
}

impl LocalWork {
    /// Whether it has a granule of its task left to ask for. If so it asks [`LocalWork::go_on`] under
    /// the lock; otherwise, and when that says no, it needs a task.
    pub fn has_more(&self) -> bool {
        self.active && self.next < self.task.end_granule()
    }

    /// The next granule of its task, unless others have taken it. Under the lock.
    pub fn go_on(&mut self, state: &mut TaskState<'_>, process: u16) -> Option<u32> {
        self.active = state.may_continue(process, &self.task, self.next);
        self.active.then(|| self.step())
    }

    /// The first granule of a task that it has been given, which is its own without asking.
    pub fn begin(&mut self, task: Task) -> u32 {
        (self.task, self.next, self.active) = (task, task.start_granule, true);
        self.step()
    }

    fn step(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }
}
