//! Tasks that a process was given and has not begun, in order.
//!
//! Called by the rest of `task_state`.

use super::layout::Run;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most tasks ahead of one process.
const AHEAD_MAX: usize = 16;

/// Runs of no granules are at the end.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Ahead {
    runs: [Run; AHEAD_MAX],
}

impl Ahead {
    fn taken(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.iter().filter(|run| run.granules > 0)
    }

    pub(super) fn granules(&self) -> u32 {
        self.taken().map(|run| run.granules).sum()
    }

    pub(super) fn is_full(&self) -> bool {
        self.taken().count() == AHEAD_MAX
    }

    pub(super) fn last(&self) -> Option<Run> {
        self.taken().next_back().copied()
    }

    pub(super) fn find(&self, task: u32) -> Option<Run> {
        self.taken().find(|run| run.id == task).copied()
    }

    /// The caller has seen that it is not full.
    pub(super) fn push(&mut self, run: Run) {
        if let Some(free) = self.runs.iter_mut().find(|run| run.granules == 0) {
            *free = run;
        }
    }

    pub(super) fn take_first(&mut self) -> Run {
        self.take(0)
    }

    pub(super) fn remove(&mut self, task: u32) -> Option<Run> {
        let place = self
            .runs
            .iter()
            .position(|run| run.granules > 0 && run.id == task)?;
        Some(self.take(place))
    }

    fn take(&mut self, place: usize) -> Run {
        self.runs[place..].rotate_left(1);
        std::mem::take(&mut self.runs[AHEAD_MAX - 1])
    }

    /// Leaves the task its first `kept` granules; with 0 it is there no more.
    pub(super) fn shorten(&mut self, task: u32, kept: u32) {
        if kept == 0 {
            self.remove(task);
        } else if let Some(run) = self.runs.iter_mut().find(|run| run.id == task) {
            run.granules = kept;
        }
    }
}
