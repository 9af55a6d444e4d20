//! The local workers of a ParallelReplicas node, handled as nodeGather.c does.
//!
//! All calls are unguarded (see `pg::ffi`): errors of parallel workers come through them.

#![allow(ffi_unwind_calls)]

use super::state::State;
use crate::pg::{ffi, plan};
use pgrx::pg_sys;

/// Launches the workers, or none. Must run after the node's participants are fixed, because the
/// granule scans size their shared memory by them.
///
/// # Safety
/// `state` belongs to a node of a running query in parallel mode.
pub unsafe fn launch(state: *mut State, fragment: *mut pg_sys::PlanState, workers: i32) {
    // SAFETY: as the caller says. `params` is palloc'd, no destructor lives here.
    unsafe {
        let estate = (*fragment).state;
        let params = plan_params(state);
        if (*state).pei.is_null() {
            (*state).pei = ffi::ExecInitParallelPlan(fragment, estate, params, workers, -1);
        } else {
            ffi::ExecParallelReinitialize(fragment, (*state).pei, params);
        }
        let pcxt = (*(*state).pei).pcxt;
        ffi::launch_parallel_workers(pcxt);
        let launched = (*pcxt).nworkers_launched;
        (*state).workers_launched = launched;
        if launched > 0 {
            ffi::ExecParallelCreateReaders((*state).pei);
        }
    }
}

/// The InitPlan outputs that the fragment reads, as a set.
///
/// # Safety
/// `state` is valid.
unsafe fn plan_params(state: *mut State) -> *mut pg_sys::Bitmapset {
    // SAFETY: as the caller says.
    plan::bitmapset(unsafe { &(*state).private.init_params })
}

/// The next row of any worker, or null: none ready. Drops workers that are done.
///
/// # Safety
/// `state` is valid.
pub unsafe fn next(state: *mut State) -> *mut pg_sys::MinimalTupleData {
    // SAFETY: as the caller says; readers live until ExecParallelFinish.
    unsafe {
        let mut visited = 0;
        while visited < (*state).active_readers() {
            let reader = (*state).current_reader();
            let mut done = false;
            let tuple = ffi::TupleQueueReaderNext(reader, true, &mut done);
            if done {
                (*state).drop_reader();
                continue;
            }
            if !tuple.is_null() {
                return tuple;
            }
            (*state).advance_reader();
            visited += 1;
        }
        std::ptr::null_mut()
    }
}

/// Waits for the workers to exit. Raises the error of one that failed.
///
/// # Safety
/// `state` is valid.
pub unsafe fn finish(state: *mut State) {
    // SAFETY: as the caller says.
    unsafe {
        (*state).forget_readers();
        if !(*state).pei.is_null() {
            ffi::ExecParallelFinish((*state).pei);
        }
    }
}

/// Gives the shared memory back.
///
/// # Safety
/// `state` is valid, the workers have finished.
pub unsafe fn cleanup(state: *mut State) {
    // SAFETY: as the caller says.
    unsafe {
        if !(*state).pei.is_null() {
            ffi::ExecParallelCleanup((*state).pei);
            (*state).pei = std::ptr::null_mut();
        }
    }
}
