//! Lets go of pages that a fragment's joins keep pinned while it waits for its coordinator.
//!
//! A pinned page holds up replay, and how long the wait takes is the coordinator's affair. The granule
//! scan has let go of its own page when it asks for a task. A nested loop that needs only one row of
//! its inner side leaves the scan there in the middle, page pinned. It will rescan that side before it
//! looks at it again, for every row of its outer side; so whatever is left there can be dropped.
//!
//! For index scans only, which is what such inner sides nearly always are. Not below nodes that keep rows
//! for a rescan: Material may go on where its scan was left.

#![allow(ffi_unwind_calls)]

use crate::exec::granule_scan::{self, GranuleScanState};
use crate::pg::executor;
use crate::pg::plan::{Walk, every_state};
use pgrx::pg_sys;

/// Before a wait on behalf of `scan`.
///
/// # Safety
/// `root` is a started plan state, and `scan`, which belongs to it, is being asked for its next row.
pub unsafe fn let_go(root: *mut pg_sys::PlanState, scan: *const GranuleScanState) {
    // SAFETY: as the caller says; the walker only visits valid states.
    unsafe {
        every_state(root, &mut |state| {
            let nested_loop = (*state).type_ == pg_sys::NodeTag::T_NestLoopState;
            if nested_loop && contains((*state).lefttree, scan) {
                in_inner_side((*state).righttree);
            }
            Walk::Down
        });
    }
}

/// # Safety
/// `root` is null or a valid plan state.
unsafe fn contains(root: *mut pg_sys::PlanState, scan: *const GranuleScanState) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        !every_state(
            root,
            &mut |state| match granule_scan::from_plan_state(state) {
                Some(found) if std::ptr::eq(found, scan) => Walk::Stop,
                _ => Walk::Down,
            },
        )
    }
}

/// Drops what the inner side of a nested loop above the scan holds.
///
/// # Safety
/// `root` is a started plan state.
unsafe fn in_inner_side(root: *mut pg_sys::PlanState) {
    use pg_sys::NodeTag::*;
    // SAFETY: the tag tells the type; a scan that has begun has a descriptor.
    unsafe {
        every_state(root, &mut |state| {
            let slot = || (*state.cast::<pg_sys::ScanState>()).ss_ScanTupleSlot;
            match (*state).type_ {
                T_IndexScanState => {
                    executor::clear_slot(slot());
                    executor::forget_index_position(
                        (*state.cast::<pg_sys::IndexScanState>()).iss_ScanDesc,
                    );
                }
                T_IndexOnlyScanState => {
                    executor::clear_slot(slot());
                    let state = state.cast::<pg_sys::IndexOnlyScanState>();
                    executor::forget_index_position((*state).ioss_ScanDesc);
                }
                T_MaterialState => return Walk::Skip,
                _ => {}
            }
            Walk::Down
        });
    }
}
