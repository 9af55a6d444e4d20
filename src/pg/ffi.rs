//! Declarations of PostgreSQL 15 symbols that pgrx does not bind, or binds only behind its error
//! guard.
//!
//! pgrx's guard turns a PostgreSQL ERROR into a Rust panic and later back into an ERROR, and on
//! the way drops fields (constraint names, cursor position, internal query). Executor callbacks
//! must pass errors through unchanged, so the calls below are not guarded: **a caller must have no
//! value with a destructor alive on its stack**, because an ERROR jumps over its frame.

#![allow(ffi_unwind_calls)]

use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_uchar, c_void};

/// execParallel.h
#[repr(C)]
pub struct ParallelExecutorInfo {
    pub planstate: *mut pg_sys::PlanState,
    pub pcxt: *mut pg_sys::ParallelContext,
    pub buffer_usage: *mut pg_sys::BufferUsage,
    pub wal_usage: *mut pg_sys::WalUsage,
    pub instrumentation: *mut c_void,
    pub jit_instrumentation: *mut c_void,
    pub area: *mut pg_sys::dsa_area,
    pub param_exec: u64,
    pub finished: bool,
    pub tqueue: *mut *mut pg_sys::shm_mq_handle,
    pub reader: *mut *mut TupleQueueReader,
}

/// tqueue.c keeps its fields private.
#[repr(C)]
pub struct TupleQueueReader {
    _private: [u8; 0],
}

/// libpq.h
#[repr(C)]
pub struct PqCommMethods {
    pub comm_reset: unsafe extern "C-unwind" fn(),
    pub flush: unsafe extern "C-unwind" fn() -> c_int,
    pub flush_if_writable: unsafe extern "C-unwind" fn() -> c_int,
    pub is_send_pending: unsafe extern "C-unwind" fn() -> bool,
    pub putmessage: unsafe extern "C-unwind" fn(c_char, *const c_char, usize) -> c_int,
    pub putmessage_noblock: unsafe extern "C-unwind" fn(c_char, *const c_char, usize),
}

#[allow(non_snake_case, non_upper_case_globals)]
unsafe extern "C-unwind" {
    // execParallel.c, tqueue.c
    pub fn ExecInitParallelPlan(
        planstate: *mut pg_sys::PlanState,
        estate: *mut pg_sys::EState,
        send_params: *mut pg_sys::Bitmapset,
        nworkers: c_int,
        tuples_needed: i64,
    ) -> *mut ParallelExecutorInfo;
    pub fn ExecParallelReinitialize(
        planstate: *mut pg_sys::PlanState,
        pei: *mut ParallelExecutorInfo,
        send_params: *mut pg_sys::Bitmapset,
    );
    pub fn ExecParallelCreateReaders(pei: *mut ParallelExecutorInfo);
    pub fn ExecParallelFinish(pei: *mut ParallelExecutorInfo);
    pub fn ExecParallelCleanup(pei: *mut ParallelExecutorInfo);
    pub fn TupleQueueReaderNext(
        reader: *mut TupleQueueReader,
        nowait: bool,
        done: *mut bool,
    ) -> *mut pg_sys::MinimalTupleData;
    #[link_name = "LaunchParallelWorkers"]
    pub fn launch_parallel_workers(pcxt: *mut pg_sys::ParallelContext);
    // nodeSubplan.c, execUtils.c
    pub fn ExecSetParamPlanMulti(
        params: *const pg_sys::Bitmapset,
        context: *mut pg_sys::ExprContext,
    );
    #[link_name = "MakePerTupleExprContext"]
    fn make_per_tuple_expr_context(estate: *mut pg_sys::EState) -> *mut pg_sys::ExprContext;
    #[link_name = "bms_add_member"]
    pub fn add_member(set: *mut pg_sys::Bitmapset, member: c_int) -> *mut pg_sys::Bitmapset;
    #[link_name = "ExecReScan"]
    pub fn exec_re_scan(node: *mut pg_sys::PlanState);
    #[link_name = "ExecEndNode"]
    pub fn exec_end_node(node: *mut pg_sys::PlanState);
    #[link_name = "ExecFetchSlotMinimalTuple"]
    pub fn exec_fetch_slot_minimal_tuple(
        slot: *mut pg_sys::TupleTableSlot,
        should_free: *mut bool,
    ) -> *mut pg_sys::MinimalTupleData;
    #[link_name = "ExecStoreMinimalTuple"]
    pub fn exec_store_minimal_tuple(
        tuple: *mut pg_sys::MinimalTupleData,
        slot: *mut pg_sys::TupleTableSlot,
        should_free: bool,
    ) -> *mut pg_sys::TupleTableSlot;
    // mcxt.c
    #[link_name = "pfree"]
    pub fn free(pointer: *mut c_void);
    // tuplestore.c
    pub fn tuplestore_puttupleslot(
        store: *mut pg_sys::Tuplestorestate,
        slot: *mut pg_sys::TupleTableSlot,
    );
    // postgres.c
    #[link_name = "ProcessInterrupts"]
    fn process_interrupts();
    // planner.c, explain.c
    #[link_name = "standard_planner"]
    pub fn standard_planner_unguarded(
        parse: *mut pg_sys::Query,
        query_string: *const c_char,
        cursor_options: c_int,
        bound_params: pg_sys::ParamListInfo,
    ) -> *mut pg_sys::PlannedStmt;
    // pqcomm.c
    pub fn pq_startmsgread();
    pub fn pq_endmsgread();
    pub fn pq_getbyte_if_available(byte: *mut c_uchar) -> c_int;
    pub fn pq_getmessage(s: pg_sys::StringInfo, maxlen: c_int) -> c_int;
    pub static PqCommMethods: *const PqCommMethods;
    pub static FeBeWaitSet: *mut pg_sys::WaitEventSet;
}

type FetchParameter = unsafe extern "C-unwind" fn(
    pg_sys::ParamListInfo,
    c_int,
    bool,
    *mut pg_sys::ParamExternData,
) -> *mut pg_sys::ParamExternData;

/// A parameter that is computed when it is asked for; without a type where that would fail.
///
/// # Safety
/// `fetch` is the list's own, `number` one of its parameters, from 1.
pub unsafe fn fetch_parameter(
    fetch: FetchParameter,
    parameters: pg_sys::ParamListInfo,
    number: c_int,
    computed: &mut pg_sys::ParamExternData,
) -> *mut pg_sys::ParamExternData {
    // SAFETY: as the caller says.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| fetch(parameters, number, true, computed)) }
}

/// Declares functions and wraps each in pgrx's guard, for callers that have values with destructors.
macro_rules! guarded {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty;)*) => {
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub mod guarded {
            use super::*;

            mod raw {
                use super::*;
                unsafe extern "C-unwind" {
                    $(pub fn $name($($argument: $kind),*) -> $result;)*
                }
            }

            $(
                #[doc = concat!("`", stringify!($name), "` behind pgrx's guard.")]
                pub unsafe fn $name($($argument: $kind),*) -> $result {
                    // SAFETY: as the caller says; the closure holds nothing with a destructor.
                    unsafe {
                        pg_sys::ffi::pg_guard_ffi_boundary(|| raw::$name($($argument),*))
                    }
                }
            )*
        }
    };
}

/// Callback of PostgreSQL's plan state walker.
pub type PlanStateWalker = unsafe extern "C-unwind" fn(*mut pg_sys::PlanState, *mut c_void) -> bool;
/// Callback of PostgreSQL's expression mutator, which its header declares without arguments.
pub type Mutator = unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> *mut pg_sys::Node;

guarded! {
    // datum.c
    fn datumEstimateSpace(
        value: pg_sys::Datum,
        isnull: bool,
        by_value: bool,
        length: c_int,
    ) -> usize;
    fn datumSerialize(
        value: pg_sys::Datum,
        isnull: bool,
        by_value: bool,
        length: c_int,
        start_address: *mut *mut c_char,
    ) -> ();
    fn datumRestore(start_address: *mut *mut c_char, isnull: *mut bool) -> pg_sys::Datum;
    // pg_inherits.c
    fn find_all_inheritors(
        parent: pg_sys::Oid,
        lock_mode: c_int,
        numbers: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;
    // pg_locale.c
    fn get_collation_actual_version(provider: c_char, name: *const c_char) -> *mut c_char;
    // execPartition.c
    fn ExecFindMatchingSubPlans(
        state: *mut pg_sys::PartitionPruneState,
        initial: bool,
    ) -> *mut pg_sys::Bitmapset;
    // nodeFuncs.c
    fn expression_tree_mutator(
        node: *mut pg_sys::Node,
        mutator: Mutator,
        context: *mut c_void,
    ) -> *mut pg_sys::Node;
    fn planstate_tree_walker(
        planstate: *mut pg_sys::PlanState,
        walker: Option<PlanStateWalker>,
        context: *mut c_void,
    ) -> bool;
}

/// `FeBeWaitSetSocketPos` of libpq.h.
pub const FEBE_SOCKET_POSITION: c_int = 0;

/// CHECK_FOR_INTERRUPTS without pgrx's guard: an error of a parallel worker is raised in here and
/// must reach the client whole.
///
/// # Safety
/// No value with a destructor may be alive in any Rust frame up to the next guarded one.
#[inline(always)]
pub unsafe fn check_for_interrupts() {
    // SAFETY: reads a flag that signal handlers set; the caller answers for the jump.
    unsafe {
        if std::ptr::read_volatile(&raw const pg_sys::InterruptPending) != 0 {
            process_interrupts();
        }
    }
}

/// GetPerTupleExprContext of executor.h.
///
/// # Safety
/// `estate` is valid; see the module comment about destructors.
pub unsafe fn per_tuple_expr_context(estate: *mut pg_sys::EState) -> *mut pg_sys::ExprContext {
    // SAFETY: as the caller says.
    unsafe {
        if (*estate).es_per_tuple_exprcontext.is_null() {
            make_per_tuple_expr_context(estate)
        } else {
            (*estate).es_per_tuple_exprcontext
        }
    }
}

/// ExecProcNode of executor.h, unguarded.
///
/// # Safety
/// `node` is an initialised plan state; see the module comment about destructors.
#[inline(always)]
pub unsafe fn exec_proc_node(node: *mut pg_sys::PlanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as the caller says; ExecInitNode set the function.
    unsafe {
        if !(*node).chgParam.is_null() {
            exec_re_scan(node);
        }
        match (*node).ExecProcNode {
            Some(function) => function(node),
            None => std::ptr::null_mut(),
        }
    }
}
