//! The tasks that a link was given and has not reported, in the order in which it was given them.

use crate::frame::{FragmentReport, TaskReport};
use crate::task_state::Task;
use std::collections::VecDeque;

/// A report that does not fit what was given; it fails the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misreport {
    #[error("replica finished a task that it did not have")]
    NotHeld,
    #[error("replica read less or more than its task")]
    Extent,
    #[error("replica ended with tasks undone")]
    Undone,
    #[error("replica came back to a scan that it had left")]
    LeftScan,
}

#[derive(Clone, Debug, Default)]
pub struct GivenTasks {
    given: VecDeque<(u32, Task)>,
    /// Given, of scans that the link has left since: it turned out not to need them.
    left: Vec<(u32, Task)>,
    total: u32,
}

impl GivenTasks {
    /// Tasks given over the link's life.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Tasks given and not reported, of the scan that the link is in.
    pub fn outstanding(&self) -> usize {
        self.given.len()
    }

    /// A task of scan `scan` is given.
    pub fn give(&mut self, scan: u32, task: Task) {
        self.given.push_back((scan, task));
        self.total = self.total.saturating_add(1);
    }

    /// The link asks for a task of scan `scan`, so it does not go on with any other. Answers what it
    /// was given of those and will not do.
    pub fn turn_to(&mut self, scan: u32) -> Result<&[(u32, Task)], Misreport> {
        if self.left.iter().any(|(left, _)| *left == scan) {
            return Err(Misreport::LeftScan);
        }
        let before = self.left.len();
        for (of, task) in std::mem::take(&mut self.given) {
            match of == scan {
                true => self.given.push_back((of, task)),
                false => self.left.push((of, task)),
            }
        }
        Ok(&self.left[before..])
    }

    /// Is the link at work on this task, or about to be?
    pub fn holds(&self, scan: u32, id: u32) -> bool {
        let mut given = self.given.iter();
        given.any(|(of, task)| *of == scan && task.id == id)
    }

    /// A link works in order, so only its oldest task can be done. Answers the task and how many of
    /// its granules were read: all, or fewer if it ended early.
    pub fn done(
        &mut self,
        report: &TaskReport,
        granule_blocks: u32,
    ) -> Result<(Task, u32), Misreport> {
        let (scan, task) = self.given.pop_front().ok_or(Misreport::NotHeld)?;
        if scan != report.scan || task.id != report.id {
            return Err(Misreport::NotHeld);
        }
        let granules = report.blocks.div_ceil(granule_blocks.max(1));
        match (1..=task.granules).contains(&granules) {
            true => Ok((task, granules)),
            false => Err(Misreport::Extent),
        }
    }

    /// A task that was not begun is given back.
    pub fn take_back(&mut self, scan: u32, id: u32) -> Result<Task, Misreport> {
        let same = |(given, task): &(u32, Task)| *given == scan && task.id == id;
        let position = self.given.iter().position(same);
        let given = position.and_then(|position| self.given.remove(position));
        given.map(|(_, task)| task).ok_or(Misreport::NotHeld)
    }

    /// At the end only tasks of scans that turned out not to be needed may be left.
    pub fn ended(&mut self, report: &FragmentReport) -> Result<(), Misreport> {
        let left = std::mem::take(&mut self.left);
        let mut undone = std::mem::take(&mut self.given).into_iter().chain(left);
        let unneeded = |scan: u32| report.unneeded.contains(&scan);
        match !report.stopped && undone.all(|(scan, _)| unneeded(scan)) {
            true => Ok(()),
            false => Err(Misreport::Undone),
        }
    }

    pub fn clear(&mut self) {
        self.given.clear();
        self.left.clear();
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
            blocks: 80,
            took_us: 0,
            ago_us: 0,
        }
    }

    #[test]
    fn tasks_are_done_in_order() {
        let mut tasks = GivenTasks::default();
        tasks.give(0, task(1));
        tasks.give(0, task(2));
        assert_eq!(tasks.done(&report(0, 1), 8), Ok((task(1), 10)));
        assert_eq!(tasks.outstanding(), 1);
        assert_eq!(
            tasks.clone().done(&report(1, 2), 8),
            Err(Misreport::NotHeld)
        );
        assert_eq!(tasks.done(&report(0, 3), 8), Err(Misreport::NotHeld));
        assert_eq!(tasks.total(), 2);
    }

    #[test]
    fn a_task_may_end_early_at_a_granule() {
        let mut tasks = GivenTasks::default();
        for id in 1..=4 {
            tasks.give(0, task(id));
        }
        let read = |id, blocks| TaskReport {
            blocks,
            ..report(0, id)
        };
        assert_eq!(tasks.done(&read(1, 16), 8), Ok((task(1), 2)));
        // The table's last granule may be short.
        assert_eq!(tasks.done(&read(2, 75), 8), Ok((task(2), 10)));
        assert_eq!(tasks.done(&read(3, 81), 8), Err(Misreport::Extent));
        assert_eq!(tasks.done(&read(4, 0), 8), Err(Misreport::Extent));
    }

    #[test]
    fn what_was_not_begun_can_be_given_back() {
        let mut tasks = GivenTasks::default();
        tasks.give(0, task(1));
        tasks.give(0, task(2));
        assert_eq!(tasks.take_back(1, 2), Err(Misreport::NotHeld));
        assert_eq!(tasks.take_back(0, 2), Ok(task(2)));
        assert_eq!(tasks.take_back(0, 2), Err(Misreport::NotHeld));
        assert_eq!(tasks.done(&report(0, 1), 8), Ok((task(1), 10)));
    }

    #[test]
    fn a_scan_may_be_left_for_good() {
        let mut tasks = GivenTasks::default();
        tasks.give(0, task(1));
        tasks.give(0, task(2));
        assert_eq!(tasks.turn_to(0), Ok(&[][..]));
        assert_eq!(tasks.outstanding(), 2);
        assert_eq!(tasks.turn_to(1), Ok(&[(0, task(1)), (0, task(2))][..]));
        assert_eq!(tasks.outstanding(), 0);
        assert!(!tasks.holds(0, 1));
        tasks.give(1, task(1));
        assert!(tasks.holds(1, 1));
        assert_eq!(
            tasks.clone().done(&report(0, 1), 8),
            Err(Misreport::NotHeld)
        );
        assert_eq!(tasks.clone().turn_to(0), Err(Misreport::LeftScan));
        assert_eq!(tasks.done(&report(1, 1), 8), Ok((task(1), 10)));
        let mut end = FragmentReport::default();
        assert_eq!(tasks.clone().ended(&end), Err(Misreport::Undone));
        end.unneeded = vec![0];
        assert_eq!(tasks.ended(&end), Ok(()));
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
