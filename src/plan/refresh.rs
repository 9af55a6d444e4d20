//! REFRESH MATERIALIZED VIEW: its transaction has an id before its query is planned, because the lock on
//! the view is announced to standbys under one.
//!
//! What a transaction wrote before its query, the query sees here and would not see on a replica. A REFRESH
//! that finds its transaction without an id writes, up to its query, catalog rows about the view and
//! the table that is filled instead of it, none of which the query reads. Only event triggers
//! may do anything in between; where there are any, the query is executed here. That the transaction
//! holds no lock on the query's tables with which one writes is checked besides (`exec::shipment`).

#![allow(ffi_unwind_calls)]

use crate::pg::{proc, statement};
use crate::settings::{self, Mode};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_char;

static mut PREVIOUS: pg_sys::ProcessUtility_hook_type = None;

/// A REFRESH that is being executed, in a transaction that had no id when it began. One that fails
/// leaves this behind; its subtransaction is over then, and has no further query.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Refresh {
    transaction: pg_sys::LocalTransactionId,
    subtransaction: pg_sys::SubTransactionId,
    /// The text that the statement and its query share, and nothing that is executed meanwhile does.
    source: *const c_char,
}

thread_local! {
    static CURRENT: Cell<Option<Refresh>> = const { Cell::new(None) };
}

/// Installs the hook. Once, from the library's initialisation.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

impl Refresh {
    fn now(source: *const c_char) -> Refresh {
        Refresh {
            // SAFETY: this process's own entry.
            transaction: unsafe { (*pg_sys::MyProc).lxid },
            subtransaction: statement::subtransaction(),
            source,
        }
    }
}

/// Is this the query of a REFRESH whose transaction has written nothing that the query reads?
///
/// # Safety
/// `estate` is the state of a query that is being started.
pub unsafe fn is_query_of(estate: *const pg_sys::EState) -> bool {
    // SAFETY: as the caller says; the text is only compared by its address.
    let source = unsafe { (*estate).es_sourceText };
    CURRENT.get() == Some(Refresh::now(source))
}

/// Unguarded: nothing with a destructor lives here.
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn process_utility(
    planned: *mut pg_sys::PlannedStmt,
    query_string: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: PostgreSQL's own arguments; the hook was written once, when the server started.
    unsafe {
        let is_refresh = (*(*planned).utilityStmt).type_ == pg_sys::NodeTag::T_RefreshMatViewStmt
            && settings::mode() != Mode::Off
            && proc::own_xid().is_none()
            && !statement::has_triggers_at_start_of_ddl();
        let outer = CURRENT.get();
        if is_refresh {
            CURRENT.set(Some(Refresh::now(query_string)));
        }
        PREVIOUS.unwrap_or(statement::standard_process_utility)(
            planned,
            query_string,
            read_only_tree,
            context,
            params,
            environment,
            dest,
            completion,
        );
        if is_refresh {
            CURRENT.set(outer);
        }
    }
}
