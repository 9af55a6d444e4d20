//! What people see of the queue, copied out under its lock.

use super::shared::{self, Details};
use super::{measure, settings, usage};
use parallel_replicas_core::queue::swrr::{CLASSES, WEIGHTS};
use parallel_replicas_core::queue::{Counters, Entry, Limits, State};

/// One statement that runs or waits.
#[derive(Clone, Copy)]
pub struct Statement {
    pub entry: Entry,
    pub details: Details,
    /// 0 if it is not waiting.
    pub position: u32,
    pub waited_ms: u64,
}

/// All statements that run or wait, the waiting ones by arrival.
pub fn statements() -> Vec<Statement> {
    usage::count_all();
    let most = shared::locked(|view| view.queue.header.running + view.queue.header.pending);
    // Allocated before the lock is taken; what came meanwhile is left out if there are more.
    let mut result = Vec::with_capacity(most as usize + 16);
    shared::locked(|view| {
        let now = measure::now_ms();
        let mut position = 0;
        let running = (0..view.queue.entries.len())
            .filter(|index| view.queue.state(*index) == State::Running);
        for index in running.chain(view.queue.pending()) {
            if result.len() == result.capacity() {
                break;
            }
            let entry = view.queue.entries[index];
            let pending = entry.state == State::Pending;
            position += u32::from(pending);
            result.push(Statement {
                entry,
                details: view.details[index],
                position: if pending { position } else { 0 },
                waited_ms: if pending {
                    now.saturating_sub(entry.arrived_ms)
                } else {
                    entry.admitted_ms.saturating_sub(entry.arrived_ms)
                },
            });
        }
    });
    result
}

/// One size class.
#[derive(Clone, Copy, Default)]
pub struct Class {
    pub weight: i64,
    pub state: i64,
    pub running: u64,
    pub pending: u64,
    pub admitted: u64,
}

/// The queue as a whole.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    pub limits: Limits,
    pub running: u32,
    pub pending: u32,
    pub slots: u64,
    /// Of waiting statements.
    pub slots_required: u64,
    pub slots_required_max: u32,
    pub earliest_wait_ms: u64,
    pub counters: Counters,
    pub cpu_permille: u32,
    pub memory_used: f64,
    pub classes: [Class; CLASSES],
}

pub fn totals() -> Totals {
    measure::look_at_cluster_if_due();
    shared::locked(|view| {
        view.refresh_limits();
        let header = *view.queue.header;
        let mut totals = Totals {
            limits: header.limits,
            running: header.running,
            pending: header.pending,
            slots: header.slots,
            counters: header.counters,
            cpu_permille: view.usage.cpu_permille,
            memory_used: view.usage.memory_used,
            ..Totals::default()
        };
        let states = header.class_states();
        for (class, totals) in totals.classes.iter_mut().enumerate() {
            totals.weight = WEIGHTS[class];
            totals.state = states[class];
            totals.admitted = header.counters.admitted[class];
        }
        for index in 0..view.queue.entries.len() {
            let entry = view.queue.entries[index];
            let class = &mut totals.classes[view.queue.class(index)];
            match entry.state {
                State::Running => class.running += 1,
                State::Pending => {
                    class.pending += 1;
                    totals.slots_required += u64::from(entry.slots);
                    totals.slots_required_max = totals.slots_required_max.max(entry.slots);
                    let waited = measure::now_ms().saturating_sub(entry.arrived_ms);
                    totals.earliest_wait_ms = totals.earliest_wait_ms.max(waited);
                }
                State::Free | State::Expired => {}
            }
        }
        totals
    })
}

/// How long a statement may wait, in seconds; 0: no limit.
pub fn pending_timeout_s() -> u64 {
    settings::pending_timeout_s()
}
