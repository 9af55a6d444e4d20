//! PostgreSQL's own way to execute a statement, for hooks that stand before it, and two numbers that
//! they need for every statement: a guard would cost more than the look.
//! All unguarded; the rule about destructors in `ffi` holds for every caller.

#![allow(ffi_unwind_calls)]

use pgrx::pg_sys;
use std::ffi::{c_char, c_int};

unsafe extern "C-unwind" {
    #[link_name = "GetCurrentStatementStartTimestamp"]
    fn get_current_statement_start_timestamp() -> pg_sys::TimestampTz;
    #[link_name = "GetCurrentTransactionNestLevel"]
    fn get_current_transaction_nest_level() -> c_int;
    #[link_name = "standard_ExecutorStart"]
    pub fn standard_executor_start(query: *mut pg_sys::QueryDesc, eflags: c_int);
    #[link_name = "standard_ExecutorRun"]
    pub fn standard_executor_run(
        query: *mut pg_sys::QueryDesc,
        direction: pg_sys::ScanDirection::Type,
        count: u64,
        execute_once: bool,
    );
    #[link_name = "standard_ExecutorFinish"]
    pub fn standard_executor_finish(query: *mut pg_sys::QueryDesc);
    #[link_name = "standard_ExecutorEnd"]
    pub fn standard_executor_end(query: *mut pg_sys::QueryDesc);
    #[link_name = "standard_ProcessUtility"]
    pub fn standard_process_utility(
        statement: *mut pg_sys::PlannedStmt,
        query_string: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        dest: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

/// When the client's message arrived.
pub fn message_start() -> pg_sys::TimestampTz {
    // SAFETY: reads a variable of this process; raises nothing.
    unsafe { get_current_statement_start_timestamp() }
}

/// 1 in a transaction, one more in each subtransaction.
pub fn nest_level() -> i32 {
    // SAFETY: as above.
    unsafe { get_current_transaction_nest_level() }
}
