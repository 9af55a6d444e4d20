//! Measured speed, and what follows from it: how large a task is, and whether one is worth
//! starting at all.
//!
//! Speeds are in 1/1024 granules per second, integers throughout. Called by `assign` and `shrink`;
//! decides nothing about which granules.
//!
//! Invariant: `header.rate` and each replica's `rate` are the sums of their processes'
//! `counted_rate`; `header.unworked` is the sum of what processes have not worked through.

use super::ahead::Ahead;
use super::layout::{MAX_TASK_GRANULES, ProcessSlot, Run, TaskState};

/// A task is a time, not a count: long enough to hide a round trip, short enough for the end.
const TASK_MICROS: u64 = 50_000;
/// Nothing is known about a process yet, so that a slow one cannot hold much.
const FIRST_TASK_GRANULES: u64 = 1;
/// One stall must not ruin a good measurement, or the process would crawl long after it.
const MAX_SLOWDOWN: u64 = 8;
/// Grace before a process with work in hand counts as overdue.
const OVERDUE_MICROS: u64 = 10_000;
/// Fraction of a granule that speeds are measured in.
pub(super) const UNIT: u64 = 1024;
const SECOND: u64 = 1_000_000;

/// Time that `granules` take at `rate`, in microseconds; a rate of 0 means for ever.
pub(super) fn micros_at(granules: u32, rate: u64) -> u64 {
    (u64::from(granules) * UNIT * SECOND)
        .checked_div(rate)
        .unwrap_or(u64::MAX)
}

impl ProcessSlot {
    /// Its measured speed, 0 before the first measurement.
    pub(super) fn rate(&self) -> u64 {
        // At most 2^40 * 2^20: at once no more is measured than the tasks that a process may hold.
        self.measured_granules
            .saturating_mul(SECOND)
            .checked_div(self.measured_micros)
            .map_or(0, |rate| rate.max(u64::from(self.measured_granules > 0)))
    }

    pub(super) fn unworked(&self) -> u32 {
        self.current.granules + self.ahead.granules()
    }

    /// The task of this number, if it has not worked through it.
    pub(super) fn run(&self, task: u32) -> Option<Run> {
        let current = Some(self.current).filter(|run| run.granules > 0 && run.id == task);
        current.or_else(|| self.ahead.find(task))
    }

    /// Whether its work in hand takes much longer than its speed promises.
    pub(super) fn is_overdue(&self, now_micros: u64) -> bool {
        let elapsed = now_micros.saturating_sub(self.work_start_micros);
        let expected = micros_at(self.unworked(), self.rate());
        elapsed > expected.saturating_mul(4).saturating_add(OVERDUE_MICROS)
    }

    fn measure(&mut self, granules: u32, micros: u64) {
        if granules == 0 {
            return;
        }
        let micros = match self.rate() {
            0 => micros,
            rate => micros.min(micros_at(granules, rate).saturating_mul(MAX_SLOWDOWN)),
        };
        self.measured_granules = self.measured_granules / 2 + u64::from(granules) * UNIT;
        self.measured_micros = self.measured_micros / 2 + micros.max(1);
    }
}

impl TaskState<'_> {
    /// `process` has worked through everything it had.
    pub(super) fn settle(&mut self, process: u16, now_micros: u64) {
        let slot = &mut self.processes[usize::from(process)];
        let granules = slot.unworked();
        let elapsed = now_micros.saturating_sub(slot.work_start_micros);
        slot.measure(granules, elapsed);
        slot.current = Run::default();
        slot.ahead = Ahead::default();
        slot.shrinking = 0;
        self.header.unworked -= granules;
    }

    /// `process` has worked through its tasks up to this one, which it has, and goes on with the next, if
    /// any. The last one took so long.
    pub(super) fn settle_until(&mut self, process: u16, task: u32, ended: u64, took: u64) {
        let slot = &mut self.processes[usize::from(process)];
        let mut granules = 0;
        loop {
            let run = slot.current;
            granules += run.granules;
            slot.advance(ended);
            if run.id == task || run.granules == 0 {
                slot.measure(run.granules, took);
                break;
            }
        }
        self.header.unworked -= granules;
    }

    /// Brings the sums up to date: its speed counts while it takes part.
    pub(super) fn count_rate(&mut self, process: u16, takes_part: bool) {
        let slot = &mut self.processes[usize::from(process)];
        let rate = if takes_part { slot.rate() } else { 0 };
        let before = std::mem::replace(&mut slot.counted_rate, rate);
        let replica = &mut self.replicas[usize::from(slot.replica)];
        replica.rate = (replica.rate - before).saturating_add(rate);
        self.header.rate = (self.header.rate - before).saturating_add(rate);
    }

    /// Granules of the next task by time alone, and what the end of the scan allows.
    fn size_limits(&self, process: u16) -> (u32, u32) {
        let slot = &self.processes[usize::from(process)];
        let rate = slot.rate();
        let by_time = match rate {
            0 => FIRST_TASK_GRANULES,
            rate => {
                TASK_MICROS
                    .saturating_mul(rate)
                    .saturating_add(UNIT * SECOND / 2)
                    / (UNIT * SECOND)
            }
        };
        let unassigned = u64::from(self.header.unassigned);
        let mut by_end = unassigned / (2 * u64::from(self.header.live_processes.max(1)));
        let all = (self.header.rate - slot.counted_rate).saturating_add(rate);
        if rate > 0 {
            // A slow process takes a share of the end by its speed, not by its head.
            let by_share = u128::from(unassigned) * u128::from(rate) / (2 * u128::from(all));
            by_end = by_end.min(by_share as u64);
        }
        (
            by_time.clamp(1, u64::from(MAX_TASK_GRANULES)) as u32,
            by_end.min(u64::from(u32::MAX)) as u32,
        )
    }

    /// Granules that the next task of `process` should have, at least one.
    pub(super) fn task_granules(&self, process: u16) -> u32 {
        let (by_time, by_end) = self.size_limits(process);
        let most = match self.processes[usize::from(process)].most {
            0 => u32::MAX,
            most => most,
        };
        let largest = self.header.fixed.segment_granules;
        let size = by_time.min(largest).min(by_end).min(most).max(1);
        match self.header.ramp {
            0 => size,
            _ => size.min(self.processes[usize::from(process)].ramp.max(1)),
        }
    }

    /// A task of `process` ended early after so many granules, because its rows took as much memory
    /// as they may: the next one is not larger, and those after that hardly.
    pub fn limit_tasks(&mut self, process: u16, granules: u32) {
        if let Ok(slot) = self.slot(process) {
            slot.most = granules.max(1);
        }
    }

    /// Whether `process` should have one task more ahead: one in any case, and more while all of them are
    /// shorter than the time of one, so that a round trip brings many where segments are small. None where
    /// so little is left that it would only sit and wait; no second with [`TaskState::set_ramp`], nor where rows
    /// limit the size of tasks, which each of them may find to be too large.
    pub(super) fn wants_more_ahead(&self, process: u16) -> bool {
        let (by_time, by_end) = self.size_limits(process);
        let slot = &self.processes[usize::from(process)];
        let has = slot.ahead.granules();
        if by_end < by_time.min(self.header.fixed.segment_granules) || slot.ahead.is_full() {
            return false;
        }
        let one_only = self.header.ramp != 0 || (1..by_time).contains(&slot.most);
        has == 0 || !one_only && has < by_time && slot.unworked() < by_end
    }

    /// Whether others would be through with all that is left before `process` could finish one
    /// granule. Then it is better off idle: a process ten times slower that takes one of the last
    /// granules makes everybody wait for it.
    ///
    /// It cannot leave work lying: the others that are counted have work in hand, are not overdue,
    /// and are faster, so they will ask again; of all that take part the fastest never stands back.
    pub(super) fn stands_back(&self, process: u16, now_micros: u64) -> bool {
        let slot = &self.processes[usize::from(process)];
        let (rate, others) = (slot.rate(), self.header.rate - slot.counted_rate);
        let left = self.header.unassigned.saturating_add(self.header.unworked);
        if rate == 0 || micros_at(1, rate) <= micros_at(left, others) {
            return false;
        }
        // Only near the end: the sum over those that really are at work, one step per process.
        let (mut busy, mut others) = (0u32, 0u64);
        for other in self.processes.iter() {
            if other.lost == 0 && other.unworked() > 0 && !other.is_overdue(now_micros) {
                busy += 1;
                others = others.saturating_add(other.counted_rate);
            }
        }
        if others == 0 {
            return false;
        }
        let finish = micros_at(left, others);
        let granule = micros_at(busy, others);
        micros_at(1, rate) > finish + finish / 4 + 2 * granule
    }
}

impl ProcessSlot {
    /// The first task ahead becomes the current one.
    pub(super) fn advance(&mut self, now_micros: u64) {
        if self.shrinking == self.current.id {
            self.shrinking = 0;
        }
        self.current = self.ahead.take_first();
        self.position = self.current.start;
        self.work_start_micros = now_micros;
    }
}
