//! Run-time partition pruning. Which partitions are read is this server's decision: the shipped copy of
//! a plan has the children that are executed here, and nothing left to choose.
//!
//! A replica would have to open the partitioned tables, and might decide otherwise, for example by
//! settings of its own.

use super::granule_scan::{self, GranuleScanState};
use crate::pg::ffi;
use crate::pg::plan::{self, Walk};
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};

/// What of an initialised plan is executed.
#[derive(Debug, Default)]
pub struct Live {
    /// The granule scans, in the order in which both sides number them.
    pub scans: Vec<*mut GranuleScanState>,
    /// Tables with a scan that ends without an error where their file does.
    pub read_to_end: BTreeSet<u32>,
    /// By the number of a plan node that chooses among its children: the positions of those that are executed.
    children: BTreeMap<i32, Vec<usize>>,
}

/// Finds it. `known`: the parameters by which partitions are chosen have their values; without them, only
/// what was pruned when the plan was initialised is left out.
///
/// # Safety
/// `state` is an initialised plan state.
pub unsafe fn live(state: *mut pg_sys::PlanState, known: bool) -> Live {
    let mut live = Live::default();
    // SAFETY: as the caller says.
    unsafe { live.add(state, known) };
    live
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
            true => {
                let found = ffi::guarded::ExecFindMatchingSubPlans(pruning, false);
                let numbers = plan::members(found);
                pg_sys::bms_free(found);
                numbers
            }
            false => (0..count).collect(),
        };
        numbers
            .into_iter()
            .map(|number| *children.add(number as usize))
            .collect()
    }
}

/// The table of a scan that takes nothing amiss if its file ends too soon. What finds a row by an index does.
///
/// # Safety
/// `state` is an initialised plan state.
unsafe fn table_read_to_end(state: *mut pg_sys::PlanState) -> Option<u32> {
    use pg_sys::NodeTag;
    // SAFETY: as the caller says; the tag tells the type, and all of these begin with a ScanState, whose
    // relation is open.
    unsafe {
        match (*state).type_ {
            NodeTag::T_SeqScanState
            | NodeTag::T_SampleScanState
            | NodeTag::T_BitmapHeapScanState
            | NodeTag::T_TidScanState
            | NodeTag::T_TidRangeScanState => {}
            _ => {
                granule_scan::from_plan_state(state)?;
            }
        }
        let relation = (*state.cast::<pg_sys::ScanState>()).ss_currentRelation;
        (!relation.is_null()).then(|| (*relation).rd_id.to_u32())
    }
}

impl Live {
    /// Adds what of this plan is executed; for a plan that is no part of the one before, a subquery's.
    ///
    /// # Safety
    /// As for [`live`].
    pub unsafe fn add(&mut self, state: *mut pg_sys::PlanState, known: bool) {
        // SAFETY: as the caller says; the walker only visits valid states.
        unsafe {
            plan::every_state(state, &mut |state| {
                if let Some(scan) = granule_scan::from_plan_state(state) {
                    self.scans.push(scan);
                }
                self.read_to_end.extend(table_read_to_end(state));
                let info = plan::prune_info((*state).plan);
                if info.is_null() {
                    return Walk::Down;
                }
                let choose = known && !plan::prune_params(info).is_empty();
                let children = executed_children(state, choose);
                let places = plan::children((*state).plan).into_iter().enumerate();
                let positions = places
                    .filter(|(_, place)| children.iter().any(|child| (**child).plan == **place))
                    .map(|(position, _)| position)
                    .collect();
                self.children
                    .insert((*(*state).plan).plan_node_id, positions);
                for child in children {
                    self.add(child, known);
                }
                Walk::Skip
            });
        }
    }

    /// Leaves the same children in a copy of the plan.
    ///
    /// # Safety
    /// `place` holds null, or a copy of the plan that this was found in, or of one of its subplans, which is
    /// ours to change.
    pub unsafe fn keep(&self, place: *mut *mut pg_sys::Plan) {
        // SAFETY: as the caller says.
        unsafe {
            if (*place).is_null() {
                return;
            }
            if let Some(positions) = self.children.get(&(**place).plan_node_id) {
                plan::keep_children(place, positions);
            }
            for place in plan::children(*place) {
                self.keep(place);
            }
        }
    }
}
