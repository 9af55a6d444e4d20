//! Taking back what is in flight: nothing is unassigned, but somebody will be long over a task.
//!
//! A local process is stopped by its shared end mark: its task is cut at once, and it learns so
//! from [`TaskState::may_continue`] at its next granule boundary. A link is asked with a Shrink
//! frame ([`TaskState::shrink_candidate`]) and answers with what it kept
//! ([`TaskState::give_back`]); until then the granules stay its own. So no granule is ever read by
//! two processes at once.
//!
//! Called by `assign` (local processes) and by the dispatch loop (links). Linear in the processes,
//! and only when nothing is unassigned.

use super::layout::{Head, ProcessSlot, Run, TaskState};
use super::pace::{UNIT, micros_at};
use super::{Task, TaskError};

/// Below this much time saved, a Shrink frame costs more than it brings.
const LINK_GAIN_MICROS: u64 = 2_000;

/// What to ask of a link: stop task `task` before granule `keep_until`, or at the first granule
/// boundary after that, and give the rest back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrink {
    pub process: u16,
    pub task: u32,
    /// The first granule to give back; the task's first granule if it should not begin at all.
    pub keep_until: u32,
}

/// The part of a task that can be taken from its holder, and how long the holder would need.
struct Surplus {
    run: Run,
    granules: u32,
    rate: u64,
    micros: u64,
}

impl ProcessSlot {
    /// The granule it is reading: known for one that polls, estimated by its speed for a link.
    fn reading(&self, now_micros: u64) -> u32 {
        if self.polls != 0 || self.is_overdue(now_micros) {
            return self.position;
        }
        let elapsed = now_micros.saturating_sub(self.work_start_micros);
        let micros = micros_at(1, self.rate());
        let done = elapsed
            .checked_div(micros)
            .unwrap_or(0)
            .min(u64::from(u32::MAX)) as u32;
        let estimate = self.current.start.saturating_add(done);
        estimate.min(self.current.end() - 1).max(self.position)
    }

    fn surplus(&self, now_micros: u64) -> Option<Surplus> {
        if self.lost != 0 || self.current.granules == 0 {
            return None;
        }
        let reading = self.reading(now_micros);
        let elapsed = now_micros.saturating_sub(self.work_start_micros).max(1);
        // Its speed on this very task, if that is worse than what it did before: it may stall.
        let begun = u64::from(reading - self.current.start) + 1;
        let here = (begun * UNIT * 1_000_000 / elapsed).max(1);
        let rate = match self.rate() {
            0 => here,
            rate => rate.min(here),
        };
        let rest = self.current.end() - reading - 1;
        let micros = micros_at(rest + self.ahead.granules(), rate);
        let (run, granules) = match self.ahead.last() {
            None => (self.current, rest),
            Some(last) => (last, last.granules),
        };
        (granules > 0 && self.shrinking != run.id).then_some(Surplus {
            run,
            granules,
            rate,
            micros,
        })
    }
}

impl TaskState<'_> {
    /// For a local process, before each granule of `task` but the first: whether granule
    /// `next_granule` is still its own. If not, the task has ended before it, and it is delivered
    /// with `granules = next_granule - start_granule`.
    pub fn may_continue(&mut self, process: u16, task: &Task, next_granule: u32) -> bool {
        let Ok(slot) = self.slot(process) else {
            return false;
        };
        let run = slot.current;
        slot.polls = 1;
        let inside = (run.start..run.end()).contains(&next_granule);
        if slot.lost != 0 || run.id != task.id || !inside {
            return false;
        }
        slot.position = slot.position.max(next_granule);
        true
    }

    /// A link reports that it is about to read `next_granule` of `task`. Reports that are late or
    /// make no sense are ignored: they only sharpen an estimate.
    pub fn progress(&mut self, process: u16, task: u32, next_granule: u32) {
        if let Ok(slot) = self.slot(process)
            && slot.current.id == task
            && (slot.current.start..slot.current.end()).contains(&next_granule)
        {
            slot.position = slot.position.max(next_granule);
        }
    }

    /// The link that should be asked to give something back for the idle process `asker`, if any.
    /// Each task is asked for once; the answer goes to [`TaskState::give_back`].
    pub fn shrink_candidate(&mut self, asker: u16, now_micros: u64) -> Option<Shrink> {
        if self.header.unassigned != 0 {
            return None;
        }
        let (process, surplus, keep) = self.longest_holder(asker, now_micros, false)?;
        let slot = &mut self.processes[usize::from(process)];
        slot.shrinking = surplus.run.id;
        Some(Shrink {
            process,
            task: surplus.run.id,
            keep_until: surplus.run.end() - keep,
        })
    }

    /// The answer of `process` to a Shrink: of task `task` it keeps the first `kept` granules (0:
    /// it never began). The rest becomes orphans; returns how many. A task that it has meanwhile
    /// worked through gives nothing back: the frames crossed. Delivery is then of `kept` granules.
    pub fn give_back(&mut self, process: u16, task: u32, kept: u32) -> Result<u32, TaskError> {
        let slot = self.slot(process)?;
        if slot.lost != 0 {
            return Err(TaskError::LostProcess { process });
        }
        let Some(run) = slot.run(task) else {
            return Ok(0);
        };
        if kept > run.granules {
            let (held, reported) = (run.granules, kept);
            return Err(TaskError::WrongExtent {
                process,
                task,
                held,
                reported,
            });
        }
        let head = self.head_of(process, task, run.start)?;
        let returned = run.granules - kept;
        self.cut_task(process, run, head, kept);
        self.orphan(run.start + kept, returned);
        Ok(returned)
    }

    /// Cuts a local process's task for `asker`, at once: (first granule, how many).
    pub(super) fn take_in_flight(&mut self, asker: u16, now_micros: u64) -> Option<(u32, u32)> {
        if self.header.next_task == u32::MAX {
            return None;
        }
        let (process, surplus, taken) = self.longest_holder(asker, now_micros, true)?;
        let run = surplus.run;
        let head = self.head_of(process, run.id, run.start).ok()?;
        self.cut_task(process, run, head, run.granules - taken);
        Some((run.end() - taken, taken))
    }

    /// Who will be longest over what it has, and how much of that `asker` should take, provided
    /// that `asker` would be through with it sooner.
    fn longest_holder(
        &self,
        asker: u16,
        now_micros: u64,
        local: bool,
    ) -> Option<(u16, Surplus, u32)> {
        let (process, surplus) = (0u16..)
            .zip(self.processes.iter())
            .filter(|(process, slot)| *process != asker && (slot.polls != 0) == local)
            .filter_map(|(process, slot)| Some((process, slot.surplus(now_micros)?)))
            .max_by_key(|(process, surplus)| (surplus.micros, u16::MAX - process))?;
        let own_rate = match self.processes.get(usize::from(asker))?.rate() {
            0 => surplus.rate,
            rate => rate,
        };
        let taken = if surplus.run.granules == surplus.granules {
            // Not begun: all of it or nothing.
            surplus.granules
        } else {
            let (granules, both) = (u128::from(surplus.granules), u128::from(own_rate));
            (granules * both / (both + u128::from(surplus.rate))).max(1) as u32
        };
        let cost =
            micros_at(taken, own_rate).saturating_add(if local { 0 } else { LINK_GAIN_MICROS });
        (cost < surplus.micros).then_some((process, surplus, taken))
    }

    /// Leaves `process` the first `kept` granules of `run`; the caller takes the rest.
    fn cut_task(&mut self, process: u16, run: Run, head: Head, kept: u32) {
        let returned = run.granules - kept;
        self.heads[run.start as usize] = match kept {
            0 => 0,
            _ => Head {
                granules: kept,
                ..head
            }
            .pack(),
        };
        self.header.unworked -= returned;
        let slot = &mut self.processes[usize::from(process)];
        slot.held -= returned;
        slot.by_stage[head.stage as usize] -= returned;
        slot.given_back = slot.given_back.saturating_add(returned);
        if slot.current.id != run.id {
            slot.ahead.shorten(run.id, kept);
        } else if kept > 0 {
            slot.current.granules = kept;
        } else {
            let began = slot.work_start_micros;
            slot.advance(began);
        }
        slot.shrinking = 0;
    }
}
