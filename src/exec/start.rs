//! A node's first execution: who takes part, and setting them to work.
//!
//! The order is part of what makes the answer exact; see `shipment`. Unguarded and guarded functions
//! alternate, as `parallel_replicas` explains.

#![allow(ffi_unwind_calls)]

use super::dispatch::Dispatch;
use super::parallel_replicas::{ParallelReplicasState, between_pieces};
use super::state::State;
use super::tasks::{LOCAL_REPLICA, Participants};
use super::{granule_scan, local, pruning, shipment, tasks};
use crate::log::{query, steps};
use crate::pg::plan::items;
use crate::pg::{ffi, plan};
use crate::plan::hook::cannot_use_replicas;
use crate::plan::private::{PlannedReplica, Refused};
use crate::plan::whole;
use crate::settings::{self, Mode};
use crate::shm::events::{self, Event};
use crate::{choice, cluster, queue};
use parallel_replicas_core::frame;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;

/// First execution: decides who takes part, and sets them to work.
///
/// # Safety
/// The state is ours.
pub unsafe fn start(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says. Unguarded calls and guarded functions alternate; nothing with a
    // destructor lives here.
    unsafe {
        let state = (*node).state;
        let ps = &raw mut (*node).css.ss.ps;
        let fragment = (*ps).lefttree;
        let estate = (*ps).state;
        let may_use_replicas = check(node);
        if may_use_replicas {
            // May run the InitPlans, whose errors are the query's, and by whose values partitions are
            // chosen.
            ffi::ExecSetParamPlanMulti(
                plan::bitmapset(&(*state).private.init_params),
                ffi::per_tuple_expr_context(estate),
            );
        }
        if decide(node, may_use_replicas) {
            dispatch(node);
        }
        let workers = (*state).workers_planned;
        let has_work = (*state).private.whole || !(*state).live.scans.is_empty();
        if has_work && workers > 0 && (*estate).es_use_parallel_mode {
            local::launch(state, fragment, workers);
        } else {
            (*state).workers_launched = 0;
        }
        lay_out(node);
        (*state).started = true;
    }
}

/// May replicas take part, as far as this server is concerned?
///
/// # Safety
/// The state is ours.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn check(node: *mut ParallelReplicasState) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let state = &mut *(*node).state;
        let estate = (*node).css.ss.ps.state;
        let scope = query::enter(estate, queue::granted(estate));
        state.participants.scope = scope;
        // Once a parallel context exists, its memory is sized for these participants.
        if state.participants.processes.is_empty() || state.refused.is_none() {
            state.refused = shipment::check(estate, !state.private.whole, state.own_writes)
                .and_then(|()| check_whole(state, estate))
                .err();
        }
        if let Some(why) = &state.refused {
            query::not_used(estate, &scope, why.reason.code(), &why.describe());
            if state.private.strict && why.reason != Reason::SwitchedOff {
                cannot_use_replicas(why);
            }
        }
        state.refused.is_none()
    }
}

/// Fixes the participants. False if this server executes the fragment alone.
///
/// # Safety
/// The state is ours. If replicas may take part, the InitPlans have run.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn decide(
    node: *mut ParallelReplicasState,
    may_use_replicas: bool,
) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let state = &mut *(*node).state;
        let ps = &raw mut (*node).css.ss.ps;
        let estate = (*ps).state;
        state.live = pruning::live((*ps).lefttree, may_use_replicas);
        if state.private.whole {
            for subplan in items::<pg_sys::PlanState>((*estate).es_subplanstates) {
                state.live.add(subplan, may_use_replicas);
            }
        }
        for (index, scan) in state.live.scans.iter().enumerate() {
            (**scan).scan_index = index as u32;
        }
        if may_use_replicas && !state.private.whole && state.live.scans.is_empty() {
            // All partitions are pruned. At the next execution there may be some, and others to help.
            return false;
        }
        if state.participants.processes.is_empty() {
            choose_participants(state, estate);
            // Of all scans: each has its place in the memory of a parallel context.
            for scan in pruning::live((*ps).lefttree, false).scans {
                granule_scan::manage(scan, &state.participants);
            }
        }
        if state.refused.is_none() {
            for scan in &state.live.scans {
                granule_scan::call_between_pieces(*scan, between_pieces, node.cast());
            }
        }
        let scans = &state.live.scans;
        let blocks = scans.iter().map(|scan| granule_scan::blocks(*scan));
        state.participants.blocks = blocks.map(u64::from).sum();
        state.refused.is_none()
    }
}

/// At the first execution.
///
/// # Safety
/// The query is executed in `estate`.
unsafe fn choose_participants(state: &mut State, estate: *mut pg_sys::EState) {
    let scope = state.participants.scope;
    if state.refused.is_none() && !choose_replicas(state) {
        let why = Refused::new(Reason::NoReplicaUsable, "");
        if state.private.strict {
            cannot_use_replicas(&why);
        }
        state.refused = Some(why);
    }
    if state.refused.is_some() {
        events::add(Event::LocalFallbackCount, 1);
        // SAFETY: as the caller says.
        state.workers_planned = unsafe { local_workers_without_replicas(state, estate) };
        state.participants = Participants::local(state.workers_planned as usize);
    } else {
        state.workers_planned = if state.private.local_plan {
            state.private.local_workers.min(useful_workers(state))
        } else {
            0
        };
        state.participants = participants(state);
    }
    state.participants.scope = scope;
}

/// A whole query is for the replica of its tag, and not within another.
fn check_whole(state: &State, estate: *mut pg_sys::EState) -> Result<(), Refused> {
    if !state.private.whole {
        return Ok(());
    }
    if !settings::replicas::has_replica_tag() {
        return Err(Refused::new(Reason::NoTag, ""));
    }
    // SAFETY: only compared.
    match unsafe { whole::is_nested(estate) } {
        true => Err(Refused::new(Reason::Nested, "")),
        false => Ok(()),
    }
}

/// Chooses the replicas, of those that the cluster has now. False if there is none.
fn choose_replicas(state: &mut State) -> bool {
    let private = &mut state.private;
    let replicas = cluster::replicas(&private.cluster);
    let force = settings::mode() == Mode::Force;
    private.available = replicas.len() as u32;
    let most = private.most as usize;
    let chosen = choice::choose(&private.cluster, &replicas, most, force, private.local_plan);
    private.local_plan = chosen.local;
    private.local_weight = chosen.local_weight;
    private.replicas = chosen
        .replicas
        .into_iter()
        .map(|position| {
            let replica = &replicas[position];
            PlannedReplica {
                server: replica.server_oid.to_u32(),
                name: replica.name.clone(),
                weight: replica.weight,
                key: choice::key(replica),
            }
        })
        .collect();
    !private.replicas.is_empty()
}

/// Workers for a fragment that replicas were meant to help with: as many as PostgreSQL would take.
/// One that the query queue has admitted without workers may not have all of them.
///
/// # Safety
/// The query is executed in this state.
unsafe fn local_workers_without_replicas(state: &State, estate: *const pg_sys::EState) -> i32 {
    // SAFETY: plain setting.
    let limit = unsafe { pg_sys::max_parallel_workers_per_gather };
    let wanted = state.private.local_workers.min(limit);
    if state.private.local_plan {
        return wanted;
    }
    let links = state.private.links_per_replica * state.private.planned;
    // SAFETY: as the caller says.
    unsafe { queue::workers_without_replicas(estate, wanted, links) }
}

/// A granule is one process's work, and links work anyhow: workers for granules that these have would be started
/// for nothing, which costs a small query more than all the rest. A single granule needs none either.
///
/// Links may fail to come, so that at most as many granules are left to them as there would be workers.
fn useful_workers(state: &State) -> i32 {
    // SAFETY: the fragment's scans, whose relations are open.
    let granules = state
        .live
        .scans
        .iter()
        .map(|scan| u64::from(unsafe { granule_scan::granules(*scan) }));
    let private = &state.private;
    let links = private.replicas.len() as u64 * u64::from(private.links_per_replica);
    let left_to_links = links.min(private.local_workers.max(0).unsigned_abs().into());
    match granules.sum::<u64>().saturating_sub(left_to_links) {
        0 | 1 => 0,
        several => i32::try_from(several).unwrap_or(i32::MAX),
    }
}

fn participants(state: &State) -> Participants {
    let private = &state.private;
    let mut participants = Participants::default();
    if private.local_plan {
        let weight = private.local_weight;
        participants
            .replicas
            .push((LOCAL_REPLICA.to_owned(), weight));
    }
    let first_replica = participants.replicas.len() as u16;
    // Leader and local workers. Without a local plan only the leader, for what nobody else does.
    participants.processes = vec![0; 1 + state.workers_planned as usize];
    for (index, planned) in private.replicas.iter().enumerate() {
        participants
            .replicas
            .push((planned.name.clone(), planned.weight));
        for _ in 0..private.links_per_replica {
            participants.processes.push(first_replica + index as u16);
        }
    }
    participants
}

/// Opens the links.
///
/// # Safety
/// The state is ours, and may use replicas.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn dispatch(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        let state = &mut *(*node).state;
        let ps = &raw mut (*node).css.ss.ps;
        let estate = (*ps).state;
        let scope = state.participants.scope;
        let fragment = (*(*ps).plan).lefttree;
        let id = scope.origin.query_id;
        let begun = shipment::begin(state, fragment, estate, id).and_then(|begin| {
            let body = frame::encode_body(&begin).ok();
            body.filter(|body| body.len() <= shipment::MAX_BODY_BYTES)
                .ok_or_else(|| {
                    Refused::new(Reason::Expression, "more than 48 MB of plan and values")
                })
        });
        let body = match begun {
            Ok(body) => body,
            Err(why) => {
                query::not_used(estate, &scope, why.reason.code(), &why.describe());
                if state.private.strict {
                    cannot_use_replicas(&why);
                }
                events::add(Event::LocalFallbackCount, 1);
                state.refused = Some(why);
                return;
            }
        };
        events::add(Event::QueryCount, 1);
        test_point!("exec-begin-made");
        state.dispatch = Some(Dispatch::start(
            &state.private.replicas,
            state.private.links_per_replica as usize,
            u16::from(state.private.local_plan),
            1 + state.workers_planned as u16,
            body,
            state.live.scans.clone(),
            state.private.streaming,
            (*estate).es_query_cxt,
            &state.participants,
        ));
    }
}

/// Lays out tasks where no shared memory holds them, and decides about the leader.
///
/// # Safety
/// The state is ours.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn lay_out(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        let state = &mut *(*node).state;
        if state.refused.is_some() && state.workers_launched > 0 {
            // The InitPlans have run for the workers.
            state.live = pruning::live((*node).css.ss.ps.lefttree, true);
        }
        if state.pei.is_null() {
            for scan in &state.live.scans {
                granule_scan::init_private_tasks(*scan);
            }
        }
        if state.private.ramp {
            for scan in &state.live.scans {
                granule_scan::start_small(*scan);
            }
        }
        let granules = state.live.scans.iter().map(|scan| {
            let memory = granule_scan::task_memory(*scan);
            u64::from(tasks::with(memory, |state| Ok(state.selected())))
        });
        steps::started(
            &state.participants.scope,
            granules.sum(),
            state
                .dispatch
                .as_ref()
                .map_or(0, |_| state.private.replicas.len()),
            state.workers_launched,
        );
        state.take_readers();
        state.leading =
            state.workers_launched == 0 && (state.dispatch.is_none() || state.private.local_plan);
        state.until_service = 0;
        state.summary = None;
        state.accounted = false;
        state.waited_us = 0;
        state.unneeded = vec![false; state.live.scans.len()];
        state.whole_done = 0;
        state.unassigned_at_last_round = 0;
    }
}
