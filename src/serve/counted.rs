//! What PostgreSQL counted while it executed the fragment, for EXPLAIN.

#![allow(ffi_unwind_calls)]

use crate::pg::plan::{Walk, every_state};
use pgrx::pg_sys;

/// What the nodes below counted, by plan node id.
///
/// # Safety
/// `root` is a valid plan state.
pub unsafe fn instrumentation(root: *mut pg_sys::PlanState) -> Vec<(i32, Vec<u8>)> {
    let mut found = Vec::new();
    // SAFETY: as the caller says; the walker only visits valid states.
    unsafe {
        every_state(root, &mut |state| {
            let instrument = (*state).instrument;
            if !instrument.is_null() {
                pg_sys::InstrEndLoop(instrument);
                found.push(((*(*state).plan).plan_node_id, bytes_of(&*instrument)));
            }
            Walk::Down
        });
    }
    found
}

/// What JIT compilation cost, if anybody wants to know.
///
/// # Safety
/// `query` has been executed.
pub unsafe fn jit_usage(query: *mut pg_sys::QueryDesc, instrument: i32) -> Vec<u8> {
    // SAFETY: as the caller says.
    unsafe {
        let jit = (*(*query).estate).es_jit;
        if jit.is_null() || instrument == 0 {
            return Vec::new();
        }
        bytes_of(&(*jit).instr)
    }
}

/// As they are.
pub fn bytes_of<T>(value: &T) -> Vec<u8> {
    // SAFETY: the bytes of a C struct; padding is copied as it is and never interpreted.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }.to_vec()
}
