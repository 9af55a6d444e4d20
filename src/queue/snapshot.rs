//! A statement that waits puts its snapshot down: results are as of when it runs, and nobody's row
//! removal is held up meanwhile.
//!
//! Only in READ COMMITTED, where every statement has a snapshot of its own; in other levels the
//! transaction's stays.

use pgrx::pg_sys;

/// What was put down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutDown {
    /// Nothing: the level forbids it, or the snapshot is not where it is expected.
    Nothing,
    /// A query's, which is about to start.
    Query(*mut pg_sys::QueryDesc),
    /// A utility statement's.
    Utility,
}

/// Puts down the snapshot of a query, or of a utility statement if there is none.
///
/// # Safety
/// `query` is null or about to be started by the executor; nothing has used its snapshot.
pub unsafe fn put_down(query: *mut pg_sys::QueryDesc) -> PutDown {
    // SAFETY: as the caller says. CreateQueryDesc registered the snapshot that was pushed last; both
    // references go, and portals in that state have no other (pquery.c, explain.c, createas.c). A
    // utility statement's is its portal's, which ForgetPortalSnapshots is for.
    unsafe {
        if pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32
            || !pg_sys::ActiveSnapshotSet()
        {
            return PutDown::Nothing;
        }
        let active = pg_sys::GetActiveSnapshot();
        if query.is_null() {
            let portal = pg_sys::ActivePortal;
            if portal.is_null() || (*portal).portalSnapshot != active {
                return PutDown::Nothing;
            }
            pg_sys::ForgetPortalSnapshots();
            pg_sys::InvalidateCatalogSnapshot();
            return PutDown::Utility;
        }
        if (*query).snapshot != active {
            return PutDown::Nothing;
        }
        pg_sys::UnregisterSnapshot((*query).snapshot);
        (*query).snapshot = std::ptr::null_mut();
        pg_sys::PopActiveSnapshot();
        pg_sys::InvalidateCatalogSnapshot();
        PutDown::Query(query)
    }
}

/// Takes a new one.
///
/// # Safety
/// What was put down is still there.
pub unsafe fn take_up(what: PutDown) {
    // SAFETY: as the caller says.
    unsafe {
        match what {
            PutDown::Nothing => {}
            PutDown::Query(query) => {
                pg_sys::PushCopiedSnapshot(pg_sys::GetTransactionSnapshot());
                (*query).snapshot = pg_sys::RegisterSnapshot(pg_sys::GetActiveSnapshot());
            }
            PutDown::Utility => pg_sys::EnsurePortalSnapshotExists(),
        }
    }
}
