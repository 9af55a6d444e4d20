//! PostgreSQL's own way to execute a statement, for hooks that stand before it, and what they
//! ask for every statement: a guard would cost more than the look.
//! All unguarded; the rule about destructors in `ffi` holds for every caller.

#![allow(ffi_unwind_calls)]

use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C-unwind" {
    #[link_name = "GetCurrentStatementStartTimestamp"]
    fn get_current_statement_start_timestamp() -> pg_sys::TimestampTz;
    #[link_name = "GetCurrentTransactionNestLevel"]
    fn get_current_transaction_nest_level() -> c_int;
    #[link_name = "GetCurrentSubTransactionId"]
    fn get_current_sub_transaction_id() -> pg_sys::SubTransactionId;
    #[link_name = "RegisterXactCallback"]
    pub fn register_transaction_callback(callback: pg_sys::XactCallback, arg: *mut c_void);
    #[link_name = "RegisterSubXactCallback"]
    pub fn register_subtransaction_callback(callback: pg_sys::SubXactCallback, arg: *mut c_void);
    // relcache.c, lsyscache.c, list.c
    #[link_name = "RelationIdGetRelation"]
    pub fn open_locked_relation(relation: pg_sys::Oid) -> pg_sys::Relation;
    #[link_name = "RelationClose"]
    pub fn close_relation(relation: pg_sys::Relation);
    #[link_name = "RelationGetIndexList"]
    pub fn relation_indexes(relation: pg_sys::Relation) -> *mut pg_sys::List;
    #[link_name = "RelationGetIndexPredicate"]
    pub fn index_predicate(relation: pg_sys::Relation) -> *mut pg_sys::List;
    #[link_name = "get_op_opfamily_strategy"]
    pub fn operator_strategy(operator: pg_sys::Oid, family: pg_sys::Oid) -> c_int;
    #[link_name = "list_free"]
    pub fn free_list(list: *mut pg_sys::List);
    // spi.c
    #[link_name = "SPI_unregister_relation"]
    fn unregister_relation(name: *const c_char) -> c_int;
    // evtcache.c
    #[link_name = "EventCacheLookup"]
    fn event_triggers(event: c_int) -> *mut pg_sys::List;
    // postgres.c and its fellows: the statement itself
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

/// EVT_DDLCommandStart of evtcache.h.
const AT_START_OF_DDL: c_int = 0;

/// Does any event trigger fire before a utility statement does its work?
///
/// # Safety
/// In a transaction; may raise an error.
pub unsafe fn has_triggers_at_start_of_ddl() -> bool {
    // SAFETY: as the caller says.
    unsafe { !event_triggers(AT_START_OF_DDL).is_null() }
}

/// Does a function of this process execute statements?
pub fn is_in_spi() -> bool {
    // SAFETY: the name of a relation that nobody has registered; looks into this process's memory, and at
    // nothing at all where no function is connected.
    unsafe { unregister_relation(c"".as_ptr()) != pg_sys::SPI_ERROR_UNCONNECTED }
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

/// The subtransaction that is going on.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: as above.
    unsafe { get_current_sub_transaction_id() }
}
