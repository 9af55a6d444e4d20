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
use crate::pg::{executor, ffi};
use pgrx::pg_sys;
use std::ffi::c_void;

/// Before a wait on behalf of `scan`.
///
/// # Safety
/// `root` is a started plan state, and `scan`, which belongs to it, is being asked for its next row.
pub unsafe fn let_go(root: *mut pg_sys::PlanState, scan: *const GranuleScanState) {
    // SAFETY: as the caller says.
    unsafe { in_outer_sides(root, scan.cast_mut().cast()) };
}

/// Drops what the inner sides of the nested loops above `scan` hold.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn in_outer_sides(ps: *mut pg_sys::PlanState, scan: *mut c_void) -> bool {
    if ps.is_null() {
        return false;
    }
    // SAFETY: the walker only visits valid states.
    unsafe {
        if (*ps).type_ == pg_sys::NodeTag::T_NestLoopState && contains((*ps).lefttree, scan) {
            in_inner_side((*ps).righttree, std::ptr::null_mut());
        }
        ffi::guarded::planstate_tree_walker(ps, Some(in_outer_sides), scan)
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn contains(ps: *mut pg_sys::PlanState, scan: *mut c_void) -> bool {
    if ps.is_null() {
        return false;
    }
    // SAFETY: as above.
    unsafe {
        granule_scan::from_plan_state(ps).is_some_and(|found| found.cast() == scan)
            || ffi::guarded::planstate_tree_walker(ps, Some(contains), scan)
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn in_inner_side(
    ps: *mut pg_sys::PlanState,
    context: *mut c_void,
) -> bool {
    use pg_sys::NodeTag::*;
    if ps.is_null() {
        return false;
    }
    // SAFETY: the tag tells the type; a scan that has begun has a descriptor.
    unsafe {
        let slot = || (*ps.cast::<pg_sys::ScanState>()).ss_ScanTupleSlot;
        match (*ps).type_ {
            T_IndexScanState => {
                executor::clear_slot(slot());
                executor::forget_index_position(
                    (*ps.cast::<pg_sys::IndexScanState>()).iss_ScanDesc,
                );
            }
            T_IndexOnlyScanState => {
                executor::clear_slot(slot());
                let state = ps.cast::<pg_sys::IndexOnlyScanState>();
                executor::forget_index_position((*state).ioss_ScanDesc);
            }
            T_MaterialState => return false,
            _ => {}
        }
        ffi::guarded::planstate_tree_walker(ps, Some(in_inner_side), context)
    }
}
