//! EXPLAIN tells why a query over an eligible table is executed without replicas.

#![allow(ffi_unwind_calls)]

use super::state;
use crate::pg::wait;
use pgrx::pg_sys;
use std::ffi::{CString, c_char, c_int};

static mut PREVIOUS: pg_sys::ExplainOneQuery_hook_type = None;

/// Installs the hook. Once, from the library's initialisation.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS = pg_sys::ExplainOneQuery_hook;
        pg_sys::ExplainOneQuery_hook = Some(explain_one_query);
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
    state::set_last_refused(None);
    state::set_explained(true);
    // SAFETY: PostgreSQL's own arguments; no destructor lives across the unguarded calls.
    unsafe {
        let refusal = match PREVIOUS {
            Some(previous) => {
                previous(
                    query,
                    cursor_options,
                    into,
                    es,
                    query_string,
                    params,
                    environment,
                );
                Refusal::of_last_query()
            }
            None => plan_and_explain(
                query,
                cursor_options,
                into,
                es,
                query_string,
                params,
                environment,
            ),
        };
        refusal.show(es);
    }
}

/// What PostgreSQL does without a hook (explain.c). Answers why the query was planned without replicas: what
/// is executed may plan others.
///
/// # Safety
/// PostgreSQL's own arguments.
unsafe fn plan_and_explain(
    query: *mut pg_sys::Query,
    cursor_options: c_int,
    into: *mut pg_sys::IntoClause,
    es: *mut pg_sys::ExplainState,
    query_string: *const c_char,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
) -> Refusal {
    // SAFETY: as the caller says. Counters of buffer usage are plain integers, which the struct
    // consists of entirely, apart from two times.
    unsafe {
        let before = pg_sys::pgBufferUsage;
        let start = wait::now_micros();
        let plan = pg_plan_query(query, query_string, cursor_options, params);
        let micros = wait::now_micros() - start;
        let refusal = Refusal::of_last_query();
        let duration = pg_sys::instr_time {
            tv_sec: (micros / 1_000_000) as _,
            tv_nsec: (micros % 1_000_000 * 1000) as _,
        };
        let mut usage = pg_sys::BufferUsage::default();
        let buffers = (*es).buffers;
        if buffers {
            pg_sys::BufferUsageAccumDiff(&mut usage, &raw const pg_sys::pgBufferUsage, &before);
        }
        explain_one_plan(
            plan,
            into,
            es,
            query_string,
            params,
            environment,
            &duration,
            if buffers { &usage } else { std::ptr::null() },
        );
        refusal
    }
}

/// Why a query is executed without replicas, in PostgreSQL's memory; null if it is not.
#[derive(Clone, Copy)]
struct Refusal {
    text: *const c_char,
    code: *const c_char,
}

impl Refusal {
    const NONE: Refusal = Refusal {
        text: std::ptr::null(),
        code: std::ptr::null(),
    };

    fn of_last_query() -> Refusal {
        let Some(refused) = state::take_last_refused() else {
            return Refusal::NONE;
        };
        let text = format!("not used: {}", refused.describe());
        let (Ok(text), Ok(code)) = (CString::new(text), CString::new(refused.reason.code())) else {
            return Refusal::NONE;
        };
        // SAFETY: zero-terminated texts, which are copied.
        unsafe {
            Refusal {
                text: pg_sys::pstrdup(text.as_ptr()),
                code: pg_sys::pstrdup(code.as_ptr()),
            }
        }
    }

    /// # Safety
    /// `es` is the state of an EXPLAIN whose plan has been printed.
    unsafe fn show(self, es: *mut pg_sys::ExplainState) {
        if self.text.is_null() {
            return;
        }
        // SAFETY: as the caller says. In formats other than text this is an object of its own after
        // the plan's, because EXPLAIN has closed that one.
        unsafe {
            pg_sys::ExplainOpenGroup(c"Query".as_ptr(), std::ptr::null(), true, es);
            pg_sys::ExplainPropertyText(c"Parallel Replicas".as_ptr(), self.text, es);
            if (*es).format != pg_sys::ExplainFormat::EXPLAIN_FORMAT_TEXT {
                pg_sys::ExplainPropertyText(c"Parallel Replicas Reason".as_ptr(), self.code, es);
            }
            pg_sys::ExplainCloseGroup(c"Query".as_ptr(), std::ptr::null(), true, es);
        }
    }
}

unsafe extern "C-unwind" {
    fn pg_plan_query(
        query: *mut pg_sys::Query,
        query_string: *const c_char,
        cursor_options: c_int,
        params: pg_sys::ParamListInfo,
    ) -> *mut pg_sys::PlannedStmt;
    #[link_name = "ExplainOnePlan"]
    fn explain_one_plan(
        plan: *mut pg_sys::PlannedStmt,
        into: *mut pg_sys::IntoClause,
        es: *mut pg_sys::ExplainState,
        query_string: *const c_char,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        duration: *const pg_sys::instr_time,
        buffers: *const pg_sys::BufferUsage,
    );
}
