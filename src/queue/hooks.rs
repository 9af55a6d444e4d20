//! The hooks: where statements begin and end.
//!
//! With the queue off each costs a branch, and for a statement that does not queue little more: pgrx's
//! guard stands only before what may fail, and everything else here can neither panic nor raise an
//! error of its own. Calls into the executor are unguarded (see `pg::ffi`): nothing with a destructor
//! lives across them.

#![allow(ffi_unwind_calls)]

use super::frames::{self, Frame, Standing};
use super::holders::{self, What};
use super::need::{self, Need};
use super::{drivers, settings, wait};
use crate::pg::ffi;
use crate::pg::statement;
use parallel_replicas_core::queue::Kind;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

static mut PREVIOUS_PLANNER: pg_sys::planner_hook_type = None;
static mut PREVIOUS_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREVIOUS_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut PREVIOUS_FINISH: pg_sys::ExecutorFinish_hook_type = None;
static mut PREVIOUS_END: pg_sys::ExecutorEnd_hook_type = None;
static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;
static mut PREVIOUS_EXPLAIN: pg_sys::ExplainOneQuery_hook_type = None;

thread_local! {
    /// Slots of the statement that EXPLAIN is showing.
    static EXPLAINED_SLOTS: Cell<Option<u32>> = const { Cell::new(None) };
    /// How long it waited, in milliseconds.
    static EXPLAINED_WAIT: Cell<u64> = const { Cell::new(0) };
    /// Its processes, wanted and granted, if they were cut.
    static EXPLAINED_CUT: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// Installs the hooks. Once, from the library's initialisation, after the planner's own.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS_PLANNER = pg_sys::planner_hook;
        pg_sys::planner_hook = Some(planner);
        PREVIOUS_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(executor_start);
        PREVIOUS_RUN = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(executor_run);
        PREVIOUS_FINISH = pg_sys::ExecutorFinish_hook;
        pg_sys::ExecutorFinish_hook = Some(executor_finish);
        PREVIOUS_END = pg_sys::ExecutorEnd_hook;
        pg_sys::ExecutorEnd_hook = Some(executor_end);
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
        PREVIOUS_EXPLAIN = pg_sys::ExplainOneQuery_hook;
        pg_sys::ExplainOneQuery_hook = Some(explain_one_query);
    }
}

/// The executor works on a query until [`pause`].
///
/// # Safety
/// The query has been started.
unsafe fn resume(query: *const pg_sys::QueryDesc) -> usize {
    // SAFETY: as the caller says.
    unsafe { holders::resume(query) };
    frames::enter(Frame::Executor)
}

fn pause(query: *const pg_sys::QueryDesc, position: usize) {
    holders::pause(query);
    frames::leave(position);
}

/// Does this session queue at all?
fn may_queue() -> bool {
    // SAFETY: plain globals of this process.
    unsafe {
        pg_sys::MyBackendType == pg_sys::BackendType::B_BACKEND
            && !pg_sys::proc_exit_inprogress
            && settings::session_queues()
            && !(settings::bypass_superuser() && pg_sys::superuser())
    }
}

unsafe extern "C-unwind" fn planner(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: PostgreSQL's own arguments; written once, when the server started.
    unsafe {
        let next = PREVIOUS_PLANNER.unwrap_or(ffi::standard_planner_unguarded);
        if !settings::is_on() {
            return next(parse, query_string, cursor_options, bound_params);
        }
        let frame = frames::enter(Frame::Planner);
        let statement = next(parse, query_string, cursor_options, bound_params);
        frames::leave(frame);
        statement
    }
}

unsafe extern "C-unwind" fn executor_start(query: *mut pg_sys::QueryDesc, eflags: c_int) {
    // SAFETY: PostgreSQL's own arguments; written once, when the server started.
    unsafe {
        let next = PREVIOUS_START.unwrap_or(statement::standard_executor_start);
        if !settings::is_on() {
            return next(query, eflags);
        }
        // First, as most of what a server executes is cheap.
        let is_explained_only = eflags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as c_int != 0;
        if is_explained_only || need::cost((*query).plannedstmt) >= settings::min_cost() {
            admit_query(query, is_explained_only);
        }
        // Pruning may execute functions whose queries are part of this one.
        let frame = frames::enter(Frame::Executor);
        next(query, eflags);
        frames::leave(frame);
    }
}

/// # Safety
/// The query is about to start.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn admit_query(query: *mut pg_sys::QueryDesc, is_explained_only: bool) {
    // SAFETY: as the caller says.
    unsafe {
        let statement = (*query).plannedstmt;
        let dest = match (*query).dest.is_null() {
            true => pg_sys::CommandDest::DestNone,
            false => (*(*query).dest).mydest,
        };
        // What functions execute is not measured for EXPLAIN.
        let explained = is_explained_only || (*query).instrument_options != 0;
        let standing = frames::standing(statement, dest, explained);
        let Some(kind) = need::kind(statement, standing) else {
            return;
        };
        if settings::kinds() & kind as u32 == 0 {
            return;
        }
        let explained = matches!(standing, Standing::Through { .. });
        if is_explained_only {
            EXPLAINED_SLOTS.set(Some(need::of(statement).slots()));
            return;
        }
        if !may_queue() {
            return;
        }
        let need = need::of(statement);
        if explained {
            EXPLAINED_SLOTS.set(Some(need.slots()));
        }
        let waited = wait::acquire(What::Query(query), kind, need, statement, query);
        EXPLAINED_WAIT.set(waited);
        if kind == Kind::Select {
            EXPLAINED_CUT.set(drivers::adjust(query));
        }
    }
}

unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    execute_once: bool,
) {
    // SAFETY: PostgreSQL's own arguments; written once, when the server started.
    unsafe {
        let next = PREVIOUS_RUN.unwrap_or(statement::standard_executor_run);
        if !settings::is_on() {
            return next(query, direction, count, execute_once);
        }
        let frame = resume(query);
        next(query, direction, count, execute_once);
        pause(query, frame);
        // A driver's portal may stay until the transaction's end.
        let forward = direction == pg_sys::ScanDirection::ForwardScanDirection;
        if count == 0 && forward && !holders::is_empty() {
            has_run(query);
        }
    }
}

/// Nothing is done after its last row: it has no triggers, and no part that writes beside it.
///
/// # Safety
/// `statement` is a valid planned statement.
unsafe fn only_reads(statement: *const pg_sys::PlannedStmt) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        (*statement).commandType == pg_sys::CmdType::CMD_SELECT && !(*statement).hasModifyingCTE
    }
}

/// The query has been executed to its end.
///
/// # Safety
/// It has been started.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn has_run(query: *mut pg_sys::QueryDesc) {
    // SAFETY: as the caller says.
    let is_over = unsafe {
        let may_go_back =
            (*(*query).estate).es_top_eflags & pg_sys::EXEC_FLAG_BACKWARD as c_int != 0;
        only_reads((*query).plannedstmt) && !may_go_back
    };
    if is_over {
        holders::end(What::Query(query));
    }
}

unsafe extern "C-unwind" fn executor_finish(query: *mut pg_sys::QueryDesc) {
    // SAFETY: PostgreSQL's own argument; written once, when the server started.
    unsafe {
        let next = PREVIOUS_FINISH.unwrap_or(statement::standard_executor_finish);
        let nothing_is_left = holders::is_empty() && only_reads((*query).plannedstmt);
        if nothing_is_left || !settings::is_on() {
            return next(query);
        }
        let frame = resume(query);
        next(query);
        pause(query, frame);
    }
}

unsafe extern "C-unwind" fn executor_end(query: *mut pg_sys::QueryDesc) {
    // What was admitted ends after the queue was switched off, too.
    let next = if !holders::is_empty() {
        executor_end_queued
    } else {
        // SAFETY: written once, when the server started.
        unsafe { PREVIOUS_END }.unwrap_or(statement::standard_executor_end)
    };
    // SAFETY: PostgreSQL's own arguments.
    unsafe { next(query) }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn executor_end_queued(query: *mut pg_sys::QueryDesc) {
    // SAFETY: PostgreSQL's own argument.
    unsafe { holders::resume(query) };
    // SAFETY: as above.
    unsafe { PREVIOUS_END.unwrap_or(statement::standard_executor_end)(query) };
    holders::end(What::Query(query));
}

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
    let next = if settings::is_on() {
        process_utility_queued
    } else {
        // SAFETY: written once, when the server started.
        unsafe { PREVIOUS_UTILITY }.unwrap_or(statement::standard_process_utility)
    };
    // SAFETY: PostgreSQL's own arguments.
    unsafe {
        next(
            planned,
            query_string,
            read_only_tree,
            context,
            params,
            environment,
            dest,
            completion,
        );
    }
}

#[pgrx::pg_guard]
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn process_utility_queued(
    planned: *mut pg_sys::PlannedStmt,
    query_string: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: PostgreSQL's own arguments.
    unsafe {
        let holds = admit_utility(planned);
        let frame = frames::enter(frame((*planned).utilityStmt));
        PREVIOUS_UTILITY.unwrap_or(statement::standard_process_utility)(
            planned,
            query_string,
            read_only_tree,
            context,
            params,
            environment,
            dest,
            completion,
        );
        frames::leave(frame);
        if holds {
            holders::end(What::Utility);
        }
    }
}

/// # Safety
/// `node` is a valid utility statement.
unsafe fn frame(node: *mut pg_sys::Node) -> Frame {
    // SAFETY: as the caller says; the tag tells the type.
    unsafe {
        match (*node).type_ {
            pg_sys::NodeTag::T_ExplainStmt => Frame::Through,
            pg_sys::NodeTag::T_ExecuteStmt | pg_sys::NodeTag::T_DeclareCursorStmt => {
                Frame::ThroughPortal
            }
            pg_sys::NodeTag::T_CreateTableAsStmt => Frame::ThroughLoad,
            pg_sys::NodeTag::T_CopyStmt if !(*node.cast::<pg_sys::CopyStmt>()).query.is_null() => {
                Frame::Through
            }
            _ => Frame::Utility,
        }
    }
}

/// Utility statements that queue by themselves, before they take locks. The statement's end gives
/// the slots back: true if it holds any.
///
/// # Safety
/// `planned` is a valid utility statement.
unsafe fn admit_utility(planned: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: as the caller says; the tag tells the type.
    unsafe {
        let node = (*planned).utilityStmt;
        let kind = match (*node).type_ {
            pg_sys::NodeTag::T_CopyStmt if (*node.cast::<pg_sys::CopyStmt>()).is_from => Kind::Load,
            pg_sys::NodeTag::T_RefreshMatViewStmt => Kind::Load,
            pg_sys::NodeTag::T_VacuumStmt if !(*node.cast::<pg_sys::VacuumStmt>()).is_vacuumcmd => {
                Kind::Statistic
            }
            _ => return false,
        };
        if settings::kinds() & kind as u32 == 0
            || frames::standing(planned, pg_sys::CommandDest::DestNone, false) != Standing::Own
            || !may_queue()
        {
            return false;
        }
        // A predecessor that failed where no transaction was open.
        holders::end(What::Utility);
        wait::acquire(
            What::Utility,
            kind,
            Need::UTILITY,
            std::ptr::null(),
            std::ptr::null_mut(),
        );
        true
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn explain_one_query(
    query: *mut pg_sys::Query,
    cursor_options: c_int,
    into: *mut pg_sys::IntoClause,
    es: *mut pg_sys::ExplainState,
    query_string: *const c_char,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
) {
    EXPLAINED_SLOTS.set(None);
    EXPLAINED_CUT.set(None);
    EXPLAINED_WAIT.set(0);
    // SAFETY: PostgreSQL's own arguments. The planner's hook is always there before this one.
    unsafe {
        if let Some(previous) = PREVIOUS_EXPLAIN {
            previous(
                query,
                cursor_options,
                into,
                es,
                query_string,
                params,
                environment,
            );
        }
        let Some(slots) = EXPLAINED_SLOTS.take() else {
            return;
        };
        pg_sys::ExplainOpenGroup(c"Query".as_ptr(), std::ptr::null(), true, es);
        if (*es).format == pg_sys::ExplainFormat::EXPLAIN_FORMAT_TEXT {
            let cut = EXPLAINED_CUT
                .take()
                .map_or_else(String::new, |(wanted, granted)| {
                    format!(", processes {granted} of {wanted}")
                });
            let wait = match EXPLAINED_WAIT.get() {
                0 => String::new(),
                waited => format!(", waited {waited} ms"),
            };
            let text = format!("slots {slots}{cut}{wait}\0");
            pg_sys::ExplainPropertyText(c"Queue".as_ptr(), text.as_ptr().cast(), es);
        } else {
            integer(c"Queue Slots", slots, es);
            integer(c"Queue Wait", EXPLAINED_WAIT.get() as u32, es);
            if let Some((wanted, granted)) = EXPLAINED_CUT.take() {
                integer(c"Queue Processes Wanted", wanted, es);
                integer(c"Queue Processes Granted", granted, es);
            }
        }
        pg_sys::ExplainCloseGroup(c"Query".as_ptr(), std::ptr::null(), true, es);
    }
}

/// # Safety
/// `es` is the state of an EXPLAIN.
unsafe fn integer(name: &CStr, value: u32, es: *mut pg_sys::ExplainState) {
    // SAFETY: as the caller says.
    unsafe {
        pg_sys::ExplainPropertyInteger(name.as_ptr(), std::ptr::null(), i64::from(value), es);
    }
}
