//! What pg_stat_statements makes of `CALL parallel_replicas.serve(challenge)`.
//!
//! Each call's text is another one, because of the challenge, and statements like CALL are told apart
//! by their text: every fragment would be an entry of its own, and would push a useful one out. So all
//! calls get one identifier.

#![allow(ffi_unwind_calls)]

use pgrx::pg_sys;
use std::ffi::CStr;

static mut PREVIOUS: pg_sys::post_parse_analyze_hook_type = None;

/// Identifier of all calls: the first eight bytes of the SHA-256 of their common text would do as
/// well; any number that is not 0 does.
const CALL_IDENTIFIER: u64 = 0x7072_5f73_6572_7665;

/// Installs the hook. Once, from the library's initialisation.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS = pg_sys::post_parse_analyze_hook;
        pg_sys::post_parse_analyze_hook = Some(post_parse_analyze);
    }
}

/// Unguarded for all statements but CALL.
unsafe extern "C-unwind" fn post_parse_analyze(
    state: *mut pg_sys::ParseState,
    query: *mut pg_sys::Query,
    jumble: *mut pg_sys::JumbleState,
) {
    // SAFETY: PostgreSQL's own arguments; nothing with a destructor lives across the unguarded calls.
    unsafe {
        let utility = (*query).utilityStmt;
        if (*query).queryId != 0
            && !utility.is_null()
            && (*utility).type_ == pg_sys::NodeTag::T_CallStmt
            && calls_serve(utility.cast())
        {
            (*query).queryId = CALL_IDENTIFIER;
        }
        if let Some(previous) = PREVIOUS {
            previous(state, query, jumble);
        }
    }
}

/// # Safety
/// `statement` is a valid CALL, whose procedure analysis has found.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn calls_serve(statement: *mut pg_sys::CallStmt) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let call = (*statement).funcexpr;
        if call.is_null() {
            return false;
        }
        let name = pg_sys::get_func_name((*call).funcid);
        let schema = pg_sys::get_namespace_name(pg_sys::get_func_namespace((*call).funcid));
        !name.is_null()
            && !schema.is_null()
            && CStr::from_ptr(name) == c"serve"
            && CStr::from_ptr(schema) == c"parallel_replicas"
    }
}
