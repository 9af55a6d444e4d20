//! The tasks that a link was given and has not reported, in the order in which it was given them.

use crate::frame::{FragmentReport, TaskReport};
use crate::task_state::Task;
use std::collections::VecDeque;

/// A report that does not fit what was given; it fails the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misreport {
    #[error("replica finished a task that it did not have")]
    NotHeld,
    #[error("replica ended with tasks undone")]
    Undone,
}

#[derive(Clone, Debug, Default)]
pub struct GivenTasks {
    given: VecDeque<(u32, Task)>,
    total: u32,
}

impl GivenTasks {
    /// Tasks given over the link's life.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Tasks given and not reported.
    pub fn outstanding(&self) -> usize {
        self.given.len()
    }

    /// A task of scan `scan` is given.
    pub fn give(&mut self, scan: u32, task: Task) {
        self.given.push_back((scan, task));
        self.total = self.total.saturating_add(1);
    }

    /// A link works in order, so only its oldest task can be done.
    pub fn done(&mut self, report: &TaskReport) -> Result<Task, Misreport> {
        match self.given.pop_front() {
            Some((scan, task)) if scan == report.scan && task.id == report.id => Ok(task),
            _ => Err(Misreport::NotHeld),
        }
    }

    /// At the end only tasks of scans that turned out not to be needed may be left.
    pub fn ended(&mut self, report: &FragmentReport) -> Result<(), Misreport> {
        let left = std::mem::take(&mut self.given);
        let unneeded = |scan| report.unneeded.contains(scan);
        match !report.stopped && left.iter().all(|(scan, _)| unneeded(scan)) {
            true => Ok(()),
            false => Err(Misreport::Undone),
        }
    }

    pub fn clear(&mut self) {
        self.given.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_state::Stage;

    fn task(id: u32) -> Task {
        Task {
            id,
            start_granule: id * 10,
            granules: 10,
            stage: Stage::Own,
        }
    }

    fn report(scan: u32, id: u32) -> TaskReport {
        TaskReport {
            scan,
            id,
            ..TaskReport::default()
        }
    }

    #[test]
    fn tasks_are_done_in_order() {
        let mut tasks = GivenTasks::default();
        tasks.give(0, task(1));
        tasks.give(0, task(2));
        assert_eq!(tasks.done(&report(0, 1)), Ok(task(1)));
        assert_eq!(tasks.outstanding(), 1);
        assert_eq!(tasks.done(&report(1, 2)), Err(Misreport::NotHeld));
        assert_eq!(tasks.done(&report(0, 3)), Err(Misreport::NotHeld));
        assert_eq!(tasks.total(), 2);
    }

    #[test]
    fn nothing_needed_is_left_undone() {
        let mut end = FragmentReport::default();
        let mut tasks = GivenTasks::default();
        tasks.give(1, task(1));
        assert_eq!(tasks.clone().ended(&end), Err(Misreport::Undone));
        end.unneeded = vec![1];
        assert_eq!(tasks.clone().ended(&end), Ok(()));
        end.stopped = true;
        assert_eq!(tasks.ended(&end), Err(Misreport::Undone));
    }
}
