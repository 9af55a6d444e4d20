//! What a ParallelReplicas node knows while it runs, and the decisions that need no PostgreSQL call.
//!
//! The struct lives on the Rust heap and is dropped with the query's memory context; its destructor
//! frees memory and calls nothing in PostgreSQL.

use super::dispatch::Dispatch;
use super::granule_scan::{self, GranuleScanState};
use super::held_rows::HeldRows;
use super::link::Link;
use super::merge::Merge;
use super::pruning::Live;
use super::tasks::{self, Participants, Spent};
use crate::pg::ffi;
use crate::plan::private::{ParallelReplicasPrivate, Refused};
use crate::settings;
use parallel_replicas_core::link::Fate;
use parallel_replicas_core::task_state::ProcessCounters;
use pgrx::pg_sys;

/// What the main loop has to do when no row is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Next {
    /// Somebody else is working.
    Wait,
    /// The leader executes the fragment itself, for whatever tasks it gets.
    Lead,
    Finished,
}

/// What the transaction had written when the executor started, as far as the query could see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnWrites {
    /// Nothing: the transaction had no id.
    None,
    /// What a REFRESH MATERIALIZED VIEW writes before its query; see `plan::refresh`.
    Refresh,
    Any,
}

pub struct State {
    pub private: ParallelReplicasPrivate,
    pub participants: Participants,
    /// What of the fragment is executed, with its granule scans.
    pub live: Live,
    pub dispatch: Option<Dispatch>,
    /// Why the fragment is executed without replicas.
    pub refused: Option<Refused>,
    pub pei: *mut ffi::ParallelExecutorInfo,
    pub workers_planned: i32,
    pub workers_launched: i32,
    readers: Vec<*mut ffi::TupleQueueReader>,
    next_reader: usize,
    /// The leader is executing the fragment.
    pub leading: bool,
    /// It does what replicas were meant to do without it, and has said so.
    pub left_alone: bool,
    /// It has done so before, and must rescan to do it again.
    pub has_led: bool,
    /// Scans whose rows turned out not to be needed, so that granules of them may stay unread.
    pub unneeded: Vec<bool>,
    /// How often a fragment that is not divided was executed to its end.
    pub whole_done: u32,
    /// Its rows, if a replica has executed it.
    pub whole_rows: HeldRows,
    /// To notice a leader that makes no progress.
    pub unassigned_at_last_round: u32,
    /// What the transaction had written when the executor started.
    pub own_writes: OwnWrites,
    pub started: bool,
    pub finished: bool,
    pub merge: Option<Merge>,
    /// Slots of an earlier merge.
    pub spare_slots: Vec<*mut pg_sys::TupleTableSlot>,
    /// Rows until the links are served although rows are at hand.
    pub until_service: u32,
    /// When they were served last.
    pub served_us: u64,
    pub summary: Option<Summary>,
    /// The summary of this execution was counted and logged.
    pub accounted: bool,
    /// Time spent on waiting for workers and links.
    pub waited_us: u64,
}

/// For EXPLAIN ANALYZE: what each replica did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub local: ProcessCounters,
    pub replicas: Vec<ReplicaSummary>,
    pub selected: u32,
    pub spent: Spent,
}

#[derive(Clone, Debug, Default)]
pub struct ReplicaSummary {
    pub name: String,
    pub links: u32,
    pub links_used: u32,
    pub counters: ProcessCounters,
    pub rows: u64,
    pub bytes: u64,
    pub replay_wait_us: u64,
    /// The longest execution of any of its links.
    pub run_us: u64,
    /// Waits for tasks, summed over its links.
    pub request_wait_us: u64,
    /// Why it did not take part, or was lost.
    pub trouble: Option<String>,
}

/// Process number of the leader.
pub const LEADER: u16 = 0;

/// Rows between two looks at the links.
pub const SERVICE_INTERVAL: u32 = 64;

/// Time between two looks at the links while the leader reads, in microseconds. All that a link has ahead may be
/// a single granule.
pub const SERVICE_INTERVAL_US: u64 = 1000;

impl State {
    pub fn new(private: ParallelReplicasPrivate) -> Self {
        State {
            private,
            participants: Participants::default(),
            live: Live::default(),
            dispatch: None,
            refused: None,
            pei: std::ptr::null_mut(),
            workers_planned: 0,
            workers_launched: 0,
            readers: Vec::new(),
            next_reader: 0,
            leading: false,
            left_alone: false,
            has_led: false,
            unneeded: Vec::new(),
            whole_done: 0,
            whole_rows: HeldRows::default(),
            unassigned_at_last_round: 0,
            own_writes: OwnWrites::Any,
            started: false,
            finished: false,
            merge: None,
            spare_slots: Vec::new(),
            until_service: 0,
            served_us: 0,
            summary: None,
            accounted: false,
            waited_us: 0,
        }
    }

    /// Do local workers or links take part?
    pub fn has_company(&self) -> bool {
        self.dispatch.is_some() || !self.pei.is_null()
    }

    pub fn is_ordered(&self) -> bool {
        !self.private.merge.is_empty()
    }

    /// Takes over the readers that PostgreSQL has made, one per launched worker.
    ///
    /// # Safety
    /// `pei` is null or set up.
    pub unsafe fn take_readers(&mut self) {
        self.readers.clear();
        self.next_reader = 0;
        if self.pei.is_null() {
            return;
        }
        for index in 0..self.workers_launched.max(0) as usize {
            // SAFETY: ExecParallelCreateReaders made one per launched worker.
            self.readers.push(unsafe { *(*self.pei).reader.add(index) });
        }
    }

    pub fn active_readers(&self) -> usize {
        self.readers.len()
    }

    pub fn readers(&self) -> &[*mut ffi::TupleQueueReader] {
        &self.readers
    }

    pub fn current_reader(&self) -> *mut ffi::TupleQueueReader {
        self.readers[self.next_reader]
    }

    pub fn drop_reader(&mut self) {
        self.readers.remove(self.next_reader);
        if self.next_reader >= self.readers.len() {
            self.next_reader = 0;
        }
    }

    pub fn advance_reader(&mut self) {
        self.next_reader = (self.next_reader + 1) % self.readers.len().max(1);
    }

    pub fn forget_readers(&mut self) {
        self.readers.clear();
        self.next_reader = 0;
    }

    pub fn links(&self) -> &[Link] {
        self.dispatch
            .as_ref()
            .map_or(&[], |dispatch| &dispatch.links)
    }

    /// Scans whose every granule must be read.
    fn needed_scans(&self) -> impl Iterator<Item = &*mut GranuleScanState> {
        self.live
            .scans
            .iter()
            .zip(&self.unneeded)
            .filter(|(_, unneeded)| !**unneeded)
            .map(|(node, _)| node)
    }

    /// Granules that nobody has yet.
    pub fn unassigned(&self) -> u32 {
        self.needed_scans()
            .map(|node| {
                // SAFETY: the scans live as long as this node, and are laid out once it started.
                unsafe {
                    let memory = granule_scan::task_memory(*node);
                    tasks::with(memory, |state| Ok(state.unassigned()))
                }
            })
            .sum()
    }

    /// Decides what to do when no row is at hand and the links have been served. `rows_pending`:
    /// local workers may still produce rows.
    pub fn next_step(&self, rows_pending: bool) -> Next {
        if self.leading {
            return Next::Lead;
        }
        if rows_pending {
            return Next::Wait;
        }
        if self.private.whole {
            return self.next_step_whole();
        }
        let unassigned = self.unassigned();
        let waiting = self
            .links()
            .iter()
            .any(|link| link.is_live() && (unassigned > 0 || link.had_tasks()));
        if waiting {
            Next::Wait
        } else if unassigned > 0 {
            Next::Lead
        } else {
            Next::Finished
        }
    }

    /// The same for a fragment that is not divided: its one link has it until it has delivered, and is
    /// let go then, or has ended otherwise. Then it is for the leader.
    fn next_step_whole(&self) -> Next {
        if self.links().iter().any(Link::is_live) {
            Next::Wait
        } else if self.whole_done > 0 {
            Next::Finished
        } else {
            Next::Lead
        }
    }

    /// Takes the rows over from a link that has executed the whole fragment. Answers whether there is
    /// one.
    pub fn take_whole(&mut self) -> bool {
        if !self.private.whole {
            return false;
        }
        let mut links = self.dispatch.iter_mut().flat_map(|all| &mut all.links);
        let Some(link) = links.find(|link| link.fate() == Fate::Done) else {
            return false;
        };
        self.whole_rows = std::mem::take(&mut link.ready);
        self.whole_done += 1;
        true
    }

    /// What became of each replica, if the leader is to work now because none is left. Not if one met
    /// an error that is the query's fault: the leader will raise it. And not if one has done its part:
    /// what is left then is what others were lost with.
    pub fn why_left_alone(&self) -> Option<String> {
        let dispatch = self.dispatch.as_ref()?;
        if self.left_alone
            || settings::local_plan()
            || self.private.whole
            || dispatch
                .links
                .iter()
                .any(|link| link.met_error_of_query || link.fate() == Fate::Done)
        {
            return None;
        }
        let mut whys: Vec<String> = Vec::new();
        for link in &dispatch.links {
            let name = dispatch.shared.replica_name(link.replica);
            let why = link.trouble.as_deref().unwrap_or("has ended");
            let why = format!("replica \"{name}\" {why}");
            if !whys.contains(&why) {
                whys.push(why);
            }
        }
        Some(whys.join("; "))
    }

    /// Marks everything that the local processes and the leader hold as delivered.
    pub fn deliver_local(&self, processes: std::ops::Range<u16>) {
        for node in &self.live.scans {
            for process in processes.clone() {
                // SAFETY: as in `unassigned`.
                unsafe {
                    let memory = granule_scan::task_memory(*node);
                    tasks::with(memory, |state| state.deliver_all(process));
                }
            }
        }
    }

    /// The self-check: every granule of every scan was counted exactly once, and so was a fragment that
    /// is not divided. Raises if not.
    pub fn verify(&self) {
        if self.private.whole && self.whole_done != 1 {
            crate::error::internal("a whole query was not executed exactly once");
        }
        for node in self.needed_scans() {
            // SAFETY: as in `unassigned`.
            unsafe {
                let memory = granule_scan::task_memory(*node);
                tasks::with(memory, |state| state.verify_complete());
            }
        }
    }

    /// Collects the counters, while the task states are still mapped.
    pub fn summarise(&mut self) {
        let mut summary = Summary::default();
        let first_link = 1 + self.workers_planned as u16;
        let mut counters = vec![ProcessCounters::default(); self.participants.processes.len()];
        for node in &self.live.scans {
            // SAFETY: as in `unassigned`.
            unsafe {
                let memory = granule_scan::task_memory(*node);
                if memory.is_null() {
                    return;
                }
                summary.spent.add(&(*memory).spent);
                tasks::with(memory, |state| {
                    summary.selected += state.selected();
                    for (process, total) in counters.iter_mut().enumerate() {
                        add(total, &state.process_counters(process as u16));
                    }
                    Ok(())
                });
            }
        }
        for process in counters.iter().take(usize::from(first_link)) {
            add(&mut summary.local, process);
        }
        for planned in &self.private.replicas {
            summary.replicas.push(ReplicaSummary {
                name: planned.name.clone(),
                ..Default::default()
            });
        }
        let first_replica = u16::from(self.private.local_plan);
        for link in self.links() {
            let index = usize::from(link.replica.saturating_sub(first_replica));
            let Some(replica) = summary.replicas.get_mut(index) else {
                continue;
            };
            replica.links += 1;
            if link.took_part() {
                replica.links_used += 1;
            }
            if let Some(own) = counters.get(usize::from(link.process)) {
                add(&mut replica.counters, own);
            }
            replica.rows += link.rows;
            replica.bytes += link.bytes;
            replica.replay_wait_us = replica.replay_wait_us.max(link.replay_wait_us);
            if link.trouble.is_some() {
                replica.trouble.clone_from(&link.trouble);
            }
            if let Some(report) = &link.report {
                replica.run_us = replica.run_us.max(report.run_us);
                replica.request_wait_us += report.request_wait_us;
            }
        }
        self.summary = Some(summary);
    }
}

fn add(total: &mut ProcessCounters, one: &ProcessCounters) {
    total.requests += one.requests;
    total.tasks += one.tasks;
    total.own += one.own;
    total.by_hash += one.by_hash;
    total.rest += one.rest;
    total.lost += one.lost;
    total.given_back += one.given_back;
}
