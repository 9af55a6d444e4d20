//! Work whose errors cost nothing but the work.

use pgrx::PgSqlErrorCode::{ERRCODE_QUERY_CANCELED, ERRCODE_T_R_SERIALIZATION_FAILURE};
use pgrx::PgTryBuilder;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use std::panic::AssertUnwindSafe;

/// Does something in a subtransaction and then undoes whatever that has changed: settings, the user
/// and, if there was an error, what it left behind. A cancel, by the user or by a standby's recovery, and a
/// defect go on to the caller.
///
/// # Errors
/// PostgreSQL's, which has been dealt with.
///
/// # Safety
/// Main thread, in a transaction, outside parallel operations. What is to stay has to be in a memory
/// context that was there before.
pub unsafe fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, Box<ErrorReportWithLevel>> {
    // SAFETY: as the caller says. After an error the subtransaction is the innermost one still, as
    // whatever was begun in it has been ended by who began it or is ended with it.
    let done = unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        let done = PgTryBuilder::new(AssertUnwindSafe(|| Ok(work())))
            .catch_others(|caught| Err(Box::new(caught)))
            .execute();
        pg_sys::CurrentMemoryContext = context;
        pg_sys::RollbackAndReleaseCurrentSubTransaction();
        pg_sys::CurrentMemoryContext = context;
        pg_sys::CurrentResourceOwner = owner;
        done
    };
    done.map_err(|caught| match *caught {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)
            if ![ERRCODE_QUERY_CANCELED, ERRCODE_T_R_SERIALIZATION_FAILURE]
                .contains(&report.sql_error_code()) =>
        {
            Box::new(report)
        }
        other => other.rethrow(),
    })
}
