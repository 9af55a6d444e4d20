//! The ends of tasks: worked through, delivered, lost; and the proof at the end of the scan.
//!
//! Called by whoever passes rows on: a local process for itself, the dispatch loop for a link.
//! Every argument is checked, since some of them come from the other end of a link.

use super::ahead::Ahead;
use super::layout::{Head, Run, TaskState};
use super::queues::End;
use super::{ProcessCounters, Stage, Task, TaskError, Totals};

impl TaskState<'_> {
    /// A link has worked through its task `task` (its rows may still be held), and so, since a
    /// link works in order, through what it got before that. `ended_micros`: when, as far as is known;
    /// `took_micros`: how long, by its own clock, since reports may have waited on their way. Errors:
    /// unknown or lost process, a task that is not in work.
    pub fn worked(
        &mut self,
        process: u16,
        task: u32,
        ended_micros: u64,
        took_micros: u64,
    ) -> Result<(), TaskError> {
        let slot = self.slot(process)?;
        if slot.lost != 0 {
            return Err(TaskError::LostProcess { process });
        }
        if slot.run(task).is_none() {
            return Err(TaskError::NotHeld { process, task });
        }
        self.settle_until(process, task, ended_micros, took_micros);
        self.count_rate(process, true);
        Ok(())
    }

    /// The rows of `task` have been passed on. `task.granules` is what was really read: it must be
    /// what the task has after any shrink.
    pub fn deliver(&mut self, process: u16, task: Task) -> Result<(), TaskError> {
        let mut head = self.head_of(process, task.id, task.start_granule)?;
        if head.granules != task.granules {
            let (held, reported) = (head.granules, task.granules);
            return Err(TaskError::WrongExtent {
                process,
                task: task.id,
                held,
                reported,
            });
        }
        head.delivered = true;
        self.heads[task.start_granule as usize] = head.pack();
        self.header.delivered += head.granules;
        let slot = self.slot(process)?;
        slot.held -= head.granules;
        if slot.current.id == task.id {
            // Nothing of it can be taken back any more. It stays until its time is measured.
            slot.position = slot.current.end().saturating_sub(1);
        } else {
            let unworked = slot.ahead.remove(task.id).map_or(0, |run| run.granules);
            self.header.unworked -= unworked;
        }
        Ok(())
    }

    /// `process` has passed on the rows of everything it holds: its blocking fragment ended. It
    /// may request again. One step, however much it holds.
    pub fn deliver_all(&mut self, process: u16) -> Result<(), TaskError> {
        let next_task = self.header.next_task;
        let slot = self.slot(process)?;
        if slot.lost != 0 {
            return Err(TaskError::LostProcess { process });
        }
        let (held, unworked) = (std::mem::take(&mut slot.held), slot.unworked());
        slot.delivered_before = next_task;
        slot.current = Run::default();
        slot.ahead = Ahead::default();
        slot.shrinking = 0;
        self.header.delivered += held;
        self.header.unworked -= unworked;
        self.count_rate(process, false);
        Ok(())
    }

    /// Everything that `process` holds and has not delivered becomes an orphan; it gets no more
    /// until [`TaskState::revive`]. Returns how many granules. Losing it again does nothing.
    pub fn lose(&mut self, process: u16) -> Result<u32, TaskError> {
        let slot = self.slot(process)?;
        if slot.lost != 0 {
            return Ok(0);
        }
        slot.lost = 1;
        let (held, unworked) = (std::mem::take(&mut slot.held), slot.unworked());
        let delivered_before = slot.delivered_before;
        slot.current = Run::default();
        slot.ahead = Ahead::default();
        slot.shrinking = 0;
        slot.lost_granules = slot.lost_granules.saturating_add(held);
        self.header.unworked -= unworked;
        self.header.live_processes -= 1;
        self.count_rate(process, false);
        if held == 0 {
            return Ok(0);
        }
        let mut granule = 0;
        while let Some(word) = self.heads.get(granule as usize) {
            let Some(head) = Head::unpack(*word) else {
                granule += 1;
                continue;
            };
            if head.process == process && !head.delivered && head.id >= delivered_before {
                self.heads[granule as usize] = 0;
                self.slot(process)?.by_stage[head.stage as usize] -= head.granules;
                self.orphan(granule, head.granules);
            }
            granule += head.granules;
        }
        Ok(held)
    }

    /// Lets a lost process take part again, with nothing in hand (its link was made anew).
    pub fn revive(&mut self, process: u16) -> Result<(), TaskError> {
        let slot = self.slot(process)?;
        if std::mem::take(&mut slot.lost) != 0 {
            self.header.live_processes += 1;
        }
        Ok(())
    }

    /// A dead replica's queue is open to everybody, before that of any live one. What its
    /// processes hold is not touched: that is [`TaskState::lose`]. Unknown replicas are ignored.
    pub fn set_replica_live(&mut self, replica: u16, live: bool) {
        if let Some(slot) = self.replicas.get_mut(usize::from(replica)) {
            slot.live = u32::from(live);
        }
    }

    /// LIMIT over a streaming fragment: tasks of each process start at one granule and double.
    pub fn set_ramp(&mut self, on: bool) {
        self.header.ramp = u32::from(on);
    }

    /// For tests of [`TaskState::verify_complete`] in a whole server: nobody gets the last granule.
    pub fn withhold_last_granule(&mut self) {
        if let Some(segment) = self.header.fixed.segments.checked_sub(1) {
            self.cut_segment(segment, 1, End::Back);
        }
    }

    /// What `process` did so far; all zero for a process that does not exist.
    pub fn process_counters(&self, process: u16) -> ProcessCounters {
        let Some(slot) = self.processes.get(usize::from(process)) else {
            return ProcessCounters::default();
        };
        let [own, by_hash, rest] = slot.by_stage;
        ProcessCounters {
            requests: slot.requests,
            tasks: slot.tasks,
            own,
            by_hash,
            rest,
            lost: slot.lost_granules,
            given_back: slot.given_back,
        }
    }

    /// Proves that every selected granule was delivered exactly once and that the counters of the
    /// processes add up to the same. One pass over the table.
    pub fn verify_complete(&self) -> Result<Totals, TaskError> {
        let selected = self.selected();
        let mut totals = Totals {
            selected,
            ..Totals::default()
        };
        let mut granule = 0;
        while granule < selected {
            let head = Head::unpack(self.heads[granule as usize])
                .ok_or(TaskError::Undelivered { granule })?;
            let slot = self.processes.get(usize::from(head.process));
            let slot = slot.ok_or(TaskError::Damaged("process of a granule"))?;
            if !head.delivered && head.id >= slot.delivered_before {
                return Err(TaskError::Undelivered { granule });
            }
            let run = self
                .heads
                .get(granule as usize..(granule + head.granules) as usize);
            let run = run.ok_or(TaskError::Damaged("task beyond the table"))?;
            if run[1..].iter().any(|word| *word != 0) {
                return Err(TaskError::Damaged("tasks overlap"));
            }
            match head.stage {
                Stage::Own => totals.own += head.granules,
                Stage::StolenByHash => totals.by_hash += head.granules,
                Stage::StolenRest => totals.rest += head.granules,
            }
            granule += head.granules;
        }
        let mut by_stage = [0u64; 3];
        for slot in self.processes.iter() {
            for (sum, granules) in by_stage.iter_mut().zip(slot.by_stage) {
                *sum += u64::from(granules);
            }
        }
        let counted = by_stage.iter().sum();
        let stages_agree = by_stage == [totals.own, totals.by_hash, totals.rest].map(u64::from);
        let complete = self.header.delivered == selected && self.header.unassigned == 0;
        if counted != u64::from(selected) || !stages_agree || !complete {
            return Err(TaskError::WrongTotal { counted, selected });
        }
        Ok(totals)
    }

    /// The head of a task that `process` holds.
    pub(super) fn head_of(&self, process: u16, task: u32, start: u32) -> Result<Head, TaskError> {
        let slot = self.processes.get(usize::from(process));
        let slot = slot.ok_or(TaskError::UnknownProcess(process))?;
        let word = self.heads.get(start as usize).copied().unwrap_or(0);
        match Head::unpack(word) {
            Some(head) if head.process == process && head.id == task => {
                if head.delivered || head.id < slot.delivered_before {
                    return Err(TaskError::AlreadyDelivered { process, task });
                }
                Ok(head)
            }
            _ => Err(TaskError::NotHeld { process, task }),
        }
    }

    /// Granules that somebody held are anybody's again.
    pub(super) fn orphan(&mut self, start: u32, granules: u32) {
        for granule in start..start + granules {
            self.orphans.insert(granule);
        }
        self.header.unassigned += granules;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_state::{ReplicaSpec, ScanSpec, size_words};

    const SCAN: ScanSpec = ScanSpec {
        database: 5,
        relfilenode: 16_400,
        blocks: 8,
        granule_blocks: 1,
        segment_granules: 4,
    };

    /// What the check says of a whole scan of two processes, after `spoil`.
    fn verified(spoil: impl FnOnce(&mut TaskState<'_>)) -> Result<Totals, TaskError> {
        let replicas = ["", "standby"].map(|name| ReplicaSpec { name, weight: 1 });
        let mut words = vec![0; size_words(&SCAN, 2, 2).unwrap()];
        let mut state = TaskState::init(&mut words, &SCAN, &replicas, &[0, 1]).unwrap();
        for now in 0.. {
            let process = (now % 2) as u16;
            match state.request(process, now * 1000) {
                Some(task) => state.deliver(process, task).unwrap(),
                None if state.undelivered() == 0 => break,
                None => {}
            }
        }
        spoil(&mut state);
        state.verify_complete()
    }

    fn spoil_head(state: &mut TaskState<'_>, change: impl FnOnce(&mut Head)) {
        let mut head = Head::unpack(state.heads[0]).unwrap();
        change(&mut head);
        state.heads[0] = head.pack();
    }

    #[test]
    fn the_check_finds_every_kind_of_miscount() {
        let totals = verified(|_| {}).expect("nothing is wrong");
        assert_eq!(totals.own + totals.by_hash + totals.rest, 8);
        let undelivered = Err(TaskError::Undelivered { granule: 0 });
        assert_eq!(verified(|state| state.heads[0] = 0), undelivered);
        let not_passed_on =
            |state: &mut TaskState<'_>| spoil_head(state, |head| head.delivered = false);
        assert_eq!(verified(not_passed_on), undelivered);
        let longer = |state: &mut TaskState<'_>| spoil_head(state, |head| head.granules += 1);
        assert_eq!(verified(longer), Err(TaskError::Damaged("tasks overlap")));
        let nobody = |state: &mut TaskState<'_>| spoil_head(state, |head| head.process = 9);
        assert_eq!(
            verified(nobody),
            Err(TaskError::Damaged("process of a granule"))
        );
        let wrong = |counted| {
            Err(TaskError::WrongTotal {
                counted,
                selected: 8,
            })
        };
        assert_eq!(
            verified(|state| state.processes[1].by_stage[0] += 1),
            wrong(9)
        );
        let other_stage = |state: &mut TaskState<'_>| {
            let stages = &mut state.processes[1].by_stage;
            let from = stages.iter().position(|granules| *granules > 0).unwrap();
            stages[from] -= 1;
            stages[(from + 1) % 3] += 1;
        };
        assert_eq!(verified(other_stage), wrong(8));
        assert_eq!(verified(|state| state.header.delivered -= 1), wrong(8));
        assert_eq!(verified(|state| state.header.unassigned += 1), wrong(8));
    }
}
