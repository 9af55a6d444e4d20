//! Single steps of a query, for `text_log`.
//!
//! A step at level trace happens per task, so it costs no more than filling in an entry: it is put into
//! words when it is read (`report`).

use super::Scope;
use crate::shm::events::{self, Event};
use crate::shm::logs::{Origin, STEPS, Step, StepEntry};
use parallel_replicas_core::task_state::{Stage, Task};
use pgrx::pg_sys;

/// A process of the query.
#[derive(Clone, Copy)]
pub struct Process<'a> {
    pub number: u16,
    /// Empty for this server.
    pub replica: &'a str,
}

fn keep(entry: &StepEntry) {
    if STEPS.push(entry) {
        events::add(Event::TextLogOverwritten, 1);
    }
}

fn entry(scope: &Scope, step: Step) -> StepEntry {
    // A local worker reports for its leader's query.
    let origin = Origin {
        // SAFETY: plain global of this process.
        pid: unsafe { pg_sys::MyProcPid },
        ..scope.origin
    };
    StepEntry {
        fragment: scope.fragment,
        ..StepEntry::new(origin, step)
    }
}

/// A step of no process in particular.
pub fn note(scope: &Scope, step: Step, replica: &str, detail: &str) {
    if scope.keeps {
        let mut entry = entry(scope, step);
        entry.replica.set(replica);
        entry.detail.set(detail);
        keep(&entry);
    }
}

/// The fragment starts: so many granules, such participants.
pub fn started(scope: &Scope, granules: u64, replicas: usize, workers: i32) {
    if scope.keeps {
        let mut entry = entry(scope, Step::Started);
        entry.count = granules;
        entry.amount = replicas as u64;
        entry.detail.set(&format!("{workers} local workers"));
        keep(&entry);
    }
}

/// What a participant did in all; `replica` is empty for this server.
pub fn summary(scope: &Scope, replica: &str, granules: u64, detail: &str) {
    if scope.keeps {
        let mut entry = entry(scope, Step::Summary);
        entry.count = granules;
        entry.replica.set(replica);
        entry.detail.set(detail);
        keep(&entry);
    }
}

/// A step of one process, with what goes with it; see [`Step`] for the numbers.
pub fn process(scope: &Scope, who: Process<'_>, step: Step, count: u64, amount: u64, detail: &str) {
    let trace = matches!(
        step,
        Step::Connecting | Step::Connected | Step::NothingLeft | Step::Stopped
    );
    if scope.traces || scope.keeps && !trace {
        let mut entry = entry(scope, step);
        entry.trace = trace;
        entry.process = u32::from(who.number);
        entry.count = count;
        entry.amount = amount;
        entry.replica.set(who.replica);
        entry.detail.set(detail);
        keep(&entry);
    }
}

/// An answer to a request.
pub fn given(scope: &Scope, who: Process<'_>, scan: u32, task: &Task) {
    if scope.traces {
        let mut entry = task_entry(scope, who, Step::Given, scan, task);
        entry.stage = match task.stage {
            Stage::Own => 1,
            Stage::StolenByHash => 2,
            Stage::StolenRest => 3,
        };
        keep(&entry);
    }
}

/// The task was worked through, so many microseconds ago.
pub fn done(scope: &Scope, who: Process<'_>, scan: u32, task: &Task, ago_us: u64) {
    if scope.traces {
        let mut entry = task_entry(scope, who, Step::Done, scan, task);
        entry.time = entry.time.saturating_sub_unsigned(ago_us);
        keep(&entry);
    }
}

fn task_entry(scope: &Scope, who: Process<'_>, step: Step, scan: u32, task: &Task) -> StepEntry {
    let mut entry = entry(scope, step);
    entry.trace = true;
    entry.process = u32::from(who.number);
    entry.scan = scan;
    entry.task = task.id;
    entry.first = task.start_granule;
    entry.count = u64::from(task.granules);
    entry.replica.set(who.replica);
    entry
}
