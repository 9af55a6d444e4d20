//! The procedure that a coordinator calls on a replica.

use pgrx::{pg_extern, pg_sys};

/// `CALL parallel_replicas.serve(challenge)`: executes a fragment for a coordinator. Not for people.
#[pg_extern(
    sql = "CREATE PROCEDURE serve(challenge bytea) LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn serve(challenge: &[u8], fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: PostgreSQL's own call information; a procedure's context is a CallContext.
    let atomic = unsafe {
        let context = (*fcinfo).context.cast::<pg_sys::CallContext>();
        context.is_null() || (*context).type_ != pg_sys::NodeTag::T_CallContext || (*context).atomic
    };
    crate::serve::serve(challenge, atomic);
}

/// CPU time in nanoseconds that a backend of the caller's own role has used; null if there is no
/// such backend. A coordinator tells by it a process that works in silence from a frozen one.
#[pg_extern(volatile, strict, parallel_restricted)]
fn cpu_time(process: i32) -> Option<i64> {
    crate::serve::cpu_time(process)
}
