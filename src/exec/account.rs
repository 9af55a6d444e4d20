//! What one execution of a fragment came to: counted for `events`, and told to the logs.

use super::state::{ReplicaSummary, State, Summary};
use crate::log::{query, steps};
use crate::shm::events::{self, Event};
use crate::shm::logs::Totals;
use parallel_replicas_core::task_state::ProcessCounters;
use pgrx::pg_sys;

/// Records the execution that has just been summarised, once. `estate` is only a name here.
pub fn settle(state: &mut State, estate: *mut pg_sys::EState) {
    let Some(summary) = &state.summary else {
        return;
    };
    if !state.started || state.accounted {
        return;
    }
    if state.refused.is_none() {
        count(summary);
    }
    tell(state, summary, estate);
    state.accounted = true;
}

fn count(summary: &Summary) {
    for counters in everybody(summary) {
        events::add(Event::NumRequests, u64::from(counters.requests));
        events::add(Event::ReadAssignedMarks, u64::from(counters.own));
        events::add(
            Event::ReadAssignedForStealingMarks,
            u64::from(counters.by_hash),
        );
        events::add(Event::ReadUnassignedMarks, u64::from(counters.rest));
        events::add(Event::GivenBackMarks, u64::from(counters.given_back));
    }
    let by_replicas = summary.replicas.iter().map(|replica| {
        let counters = &replica.counters;
        u64::from(counters.own) + u64::from(counters.by_hash) + u64::from(counters.rest)
    });
    events::add(Event::ReadByReplicasMarks, by_replicas.sum());
    let spent = &summary.spent;
    for (event, nanoseconds) in [
        (Event::CollectingOwnedSegmentsMicroseconds, spent.own),
        (Event::StealingByHashMicroseconds, spent.by_hash),
        (Event::StealingLeftoversMicroseconds, spent.rest),
        (Event::ProcessingPartsMicroseconds, spent.laying_out),
    ] {
        events::add(event, nanoseconds / 1000);
    }
}

fn everybody(summary: &Summary) -> impl Iterator<Item = &ProcessCounters> {
    let replicas = summary.replicas.iter().map(|replica| &replica.counters);
    replicas.chain([&summary.local])
}

fn tell(state: &State, summary: &Summary, estate: *mut pg_sys::EState) {
    let sum = |part: fn(&ProcessCounters) -> u32| everybody(summary).map(part).map(u64::from).sum();
    let replicas = &summary.replicas;
    let used = replicas.iter().filter(|replica| replica.links_used > 0);
    query::add(
        estate,
        &Totals {
            replicas_planned: state.private.replicas.len() as u32,
            replicas_used: used.count() as u32,
            workers_launched: state.workers_launched.max(0) as u32,
            selected: u64::from(summary.selected),
            own: sum(|counters| counters.own),
            by_hash: sum(|counters| counters.by_hash),
            rest: sum(|counters| counters.rest),
            lost: sum(|counters| counters.lost),
            rows: replicas.iter().map(|replica| replica.rows).sum(),
            bytes: replicas.iter().map(|replica| replica.bytes).sum(),
            replay_wait_us: replicas
                .iter()
                .map(|replica| replica.replay_wait_us)
                .max()
                .unwrap_or(0),
            wait_us: state.waited_us,
        },
    );
    let local = ReplicaSummary {
        counters: summary.local,
        ..ReplicaSummary::default()
    };
    for participant in replicas.iter().chain([&local]) {
        let counters = &participant.counters;
        steps::summary(
            &state.participants.scope,
            &participant.name,
            u64::from(counters.own + counters.by_hash + counters.rest),
            &format!(
                "own {}, stolen by hash {}, stolen rest {}, lost {}, given back {}; {} requests",
                counters.own,
                counters.by_hash,
                counters.rest,
                counters.lost,
                counters.given_back,
                counters.requests
            ),
        );
    }
}
