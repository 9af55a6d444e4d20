//! The one place where errors of the rooms become PostgreSQL errors with SQLSTATE, detail and hint.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

/// Raises an ERROR.
#[track_caller]
pub fn raise(code: PgSqlErrorCode, message: impl Into<String>, detail: &str, hint: &str) -> ! {
    let mut report = ErrorReport::new(code, message.into(), "parallel_replicas");
    if !detail.is_empty() {
        report = report.set_detail(detail);
    }
    if !hint.is_empty() {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return");
}

/// Sends a WARNING.
#[track_caller]
pub fn warn(message: impl Into<String>, detail: &str, hint: &str) {
    let code = PgSqlErrorCode::ERRCODE_WARNING;
    ErrorReport::new(code, message.into(), "parallel_replicas")
        .set_detail(detail)
        .set_hint(hint)
        .report(PgLogLevel::WARNING);
}

/// Raises an ERROR for a state that a correct program does not reach.
#[track_caller]
pub fn internal(message: impl Into<String>) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
        message,
        "",
        "This is a defect of parallel_replicas. Set enable_parallel_replicas to off to go on \
         without it, and report it.",
    )
}

/// Raises the ERROR of a library that was not preloaded.
pub fn not_preloaded() -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "parallel_replicas must be loaded via shared_preload_libraries",
        "",
        "Add shared_preload_libraries = 'parallel_replicas' to postgresql.conf and restart the \
         server.",
    )
}
