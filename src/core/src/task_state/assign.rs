//! The stages of a request: own, stolen by hash, stolen rest, in flight.
//!
//! Decides which granules a process gets; how many is `pace`'s matter. Every step is constant in
//! the table and at most linear in the replicas; only near the end of a scan also in the processes.
//!
//! Called through [`TaskState::request`] and [`TaskState::request_ahead`].

use super::layout::{Head, Run, TaskState};
use super::pace::micros_at;
use super::queues::End;
use super::{Stage, Task};

impl TaskState<'_> {
    /// The next task of `process`, which has worked through all it got so far. None: nothing for
    /// it now (also for a lost or unknown process); see the module's protocol for when to ask
    /// again. `now_micros` is any monotonic clock.
    pub fn request(&mut self, process: u16, now_micros: u64) -> Option<Task> {
        let slot = self.slot(process).ok()?;
        if slot.lost != 0 {
            return None;
        }
        slot.requests = slot.requests.saturating_add(1);
        self.settle(process, now_micros);
        self.count_rate(process, true);
        let task = self.next_task(process, now_micros);
        self.count_rate(process, task.is_some());
        task
    }

    /// As [`TaskState::request`], for a local process: what it holds can be taken at once, from its next
    /// granule on.
    pub fn request_local(&mut self, process: u16, now_micros: u64) -> Option<Task> {
        self.slot(process).ok()?.polls = 1;
        self.request(process, now_micros)
    }

    /// One task more for a process that still works on its current one, so that the round trip
    /// disappears. None near the end, and while it has enough ahead.
    pub fn request_ahead(&mut self, process: u16, now_micros: u64) -> Option<Task> {
        let slot = self.slot(process).ok()?;
        if slot.current.granules == 0 {
            return self.request(process, now_micros);
        }
        if slot.lost != 0 {
            return None;
        }
        slot.requests = slot.requests.saturating_add(1);
        if self.header.unassigned == 0 || !self.wants_more_ahead(process) {
            return None;
        }
        let (start, granules, stage) = self.choose(process)?;
        self.hand_out(process, start, granules, stage, now_micros)
    }

    fn next_task(&mut self, process: u16, now_micros: u64) -> Option<Task> {
        let (start, granules, stage) = if self.header.unassigned == 0 {
            let (start, granules) = self.take_in_flight(process, now_micros)?;
            (start, granules, Stage::StolenRest)
        } else if self.stands_back(process, now_micros) {
            return None;
        } else {
            self.choose(process)?
        };
        self.hand_out(process, start, granules, stage, now_micros)
    }

    /// Takes granules off the lists for `process`: (first, how many, stage).
    fn choose(&mut self, process: u16) -> Option<(u32, u32, Stage)> {
        // Ids would repeat: stop assigning; the scan then ends as incomplete.
        if self.header.next_task == u32::MAX {
            return None;
        }
        let want = self.task_granules(process);
        let replica = self.processes[usize::from(process)].replica;

        let own = &self.replicas[usize::from(replica)].queue;
        if own.granules > 0 {
            let (start, granules) = self.cut_segment(own.head, want, End::Front);
            return Some((start, granules, Stage::Own));
        }
        if let Some(owner) =
            self.longest(|state, owner| state.buckets[state.bucket_index(replica, owner)].granules)
        {
            let segment = self.buckets[self.bucket_index(replica, owner)].tail;
            let (start, granules) = self.cut_segment(segment, want, End::Back);
            return Some((start, granules, Stage::StolenByHash));
        }
        let (start, granules) = self
            .take_orphans(want)
            .or_else(|| self.take_longest(want))?;
        Some((start, granules, Stage::StolenRest))
    }

    /// The owner that will take longest over its queue, among those with something to `offer`.
    /// Dead owners come first, then those that have not begun: nobody else may ever read theirs.
    fn longest(&self, offer: impl Fn(&Self, u16) -> u32) -> Option<u16> {
        let mut best: Option<((bool, u64, u32), u16)> = None;
        for (owner, replica) in (0u16..).zip(self.replicas.iter()) {
            let queued = replica.queue.granules;
            if queued == 0 || offer(self, owner) == 0 {
                continue;
            }
            let key = (replica.live == 0, micros_at(queued, replica.rate), queued);
            if best.is_none_or(|(other, _)| key > other) {
                best = Some((key, owner));
            }
        }
        best.map(|(_, owner)| owner)
    }

    fn take_orphans(&mut self, want: u32) -> Option<(u32, u32)> {
        let start = self.orphans.first()?;
        let segment_granules = self.header.fixed.segment_granules;
        let segment_end = (start / segment_granules + 1) * segment_granules;
        let limit = segment_end.min(start.saturating_add(want));
        let mut end = start;
        while end < limit && self.orphans.contains(end) {
            self.orphans.remove(end);
            end += 1;
        }
        self.header.unassigned -= end - start;
        Some((start, end - start))
    }

    fn take_longest(&mut self, want: u32) -> Option<(u32, u32)> {
        let owner = self.longest(|_, _| 1)?;
        let replica = &self.replicas[usize::from(owner)];
        // Half at most, so that a live owner keeps going on its own warm cache.
        let want = match replica.live {
            0 => want,
            _ => want.min((replica.queue.granules / 2).max(1)),
        };
        Some(self.cut_segment(replica.queue.tail, want, End::Back))
    }

    fn hand_out(
        &mut self,
        process: u16,
        start: u32,
        granules: u32,
        stage: Stage,
        now_micros: u64,
    ) -> Option<Task> {
        let id = self.header.next_task;
        self.header.next_task += 1;
        self.header.unworked += granules;
        let head = Head {
            id,
            granules,
            delivered: false,
            stage,
            process,
        };
        self.heads[start as usize] = head.pack();

        let slot = &mut self.processes[usize::from(process)];
        slot.tasks = slot.tasks.saturating_add(1);
        slot.by_stage[stage as usize] += granules;
        slot.held += granules;
        slot.ramp = slot.ramp.saturating_mul(2);
        if slot.most > 0 {
            // Rows may become smaller again.
            slot.most = slot.most.saturating_add((slot.most / 8).max(1));
        }
        let run = Run {
            id,
            start,
            granules,
        };
        if slot.current.granules == 0 {
            slot.current = run;
            slot.position = start;
            slot.work_start_micros = now_micros;
        } else {
            slot.ahead.push(run);
        }
        Some(Task {
            id,
            start_granule: start,
            granules,
            stage,
        })
    }
}
