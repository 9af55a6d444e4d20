//! Run-time partition pruning. Which partitions are read is this server's decision: the shipped copy of
//! a plan has the children that are executed here, and nothing left to choose.
//!
//! A replica would have to open the partitioned tables, and might decide otherwise, for example by
//! settings of its own.

use super::granule_scan::{self, GranuleScanState};
use crate::pg::{ffi, plan};
use pgrx::pg_sys;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// What of an initialised plan is executed.
#[derive(Debug, Default)]
pub struct Live {
    /// The granule scans, in the order in which both sides number them.
    pub scans: Vec<*mut GranuleScanState>,
    /// By the number of a plan node that chooses among its children: the positions of those that are executed.
    children: BTreeMap<i32, Vec<usize>>,
}

/// Finds it. `known`: the parameters that the plan depends on have their values; without them, only what
/// was pruned when the plan was initialised is left out.
///
/// # Safety
/// `state` is an initialised plan state.
pub unsafe fn live(state: *mut pg_sys::PlanState, known: bool) -> Live {
    let mut walk = Walk {
        live: Live::default(),
        known,
    };
    // SAFETY: as the caller says.
    unsafe { visit(state, (&raw mut walk).cast()) };
    walk.live
}

struct Walk {
    live: Live,
    known: bool,
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn visit(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
    // SAFETY: `context` is a `Walk`, of which nothing is borrowed across the calls; the walker only visits
    // valid states, and null.
    unsafe {
        if state.is_null() {
            return false;
        }
        let walk = context.cast::<Walk>();
        if let Some(scan) = granule_scan::from_plan_state(state) {
            (*walk).live.scans.push(scan);
        }
        let info = plan::prune_info((*state).plan);
        if info.is_null() {
            return ffi::guarded::planstate_tree_walker(state, Some(visit), context);
        }
        let children =
            executed_children(state, (*walk).known && !plan::prune_params(info).is_empty());
        let positions = plan::children((*state).plan)
            .into_iter()
            .enumerate()
            .filter(|(_, place)| children.iter().any(|child| (**child).plan == **place))
            .map(|(position, _)| position);
        let positions = positions.collect();
        (*walk)
            .live
            .children
            .insert((*(*state).plan).plan_node_id, positions);
        children.into_iter().any(|child| visit(child, context))
    }
}

/// # Safety
/// `state` is that of an Append or MergeAppend. `choose`: it chooses by parameters, which have their values.
unsafe fn executed_children(
    state: *mut pg_sys::PlanState,
    choose: bool,
) -> Vec<*mut pg_sys::PlanState> {
    // SAFETY: as the caller says; the tag tells the type. Children that were pruned when the plan was
    // initialised have no state, and the others are numbered without them.
    unsafe {
        let (children, count, pruning) = if (*state).type_ == pg_sys::NodeTag::T_AppendState {
            let append = state.cast::<pg_sys::AppendState>();
            (
                (*append).appendplans,
                (*append).as_nplans,
                (*append).as_prune_state,
            )
        } else {
            let append = state.cast::<pg_sys::MergeAppendState>();
            (
                (*append).mergeplans,
                (*append).ms_nplans,
                (*append).ms_prune_state,
            )
        };
        let numbers = match choose && count > 0 {
            true => plan::members(ffi::guarded::ExecFindMatchingSubPlans(pruning, false)),
            false => (0..count).collect(),
        };
        numbers
            .into_iter()
            .map(|number| *children.add(number as usize))
            .collect()
    }
}

impl Live {
    /// Leaves the same children in a copy of the plan.
    ///
    /// # Safety
    /// `copy` is null or a copy of the plan that this was found in, or of one of its subplans, and ours to change.
    pub unsafe fn keep(&self, copy: *mut pg_sys::Plan) {
        // SAFETY: as the caller says.
        unsafe {
            if copy.is_null() {
                return;
            }
            if let Some(positions) = self.children.get(&(*copy).plan_node_id) {
                plan::keep_children(copy, positions);
            }
            for place in plan::children(copy) {
                self.keep(*place);
            }
        }
    }
}
