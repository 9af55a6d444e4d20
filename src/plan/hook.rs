//! The planner hook.
//!
//! A statement that cannot profit pays for a few branches: the switch, the kind of statement, the
//! cluster, its keys and the size of its tables are looked at before anything is allocated. A statement
//! that may profit is planned with replicas in mind; if no part of the result can use them, it is
//! planned again as if the extension were not there, so that its plan is PostgreSQL's own.

use super::candidate;
use super::private::Refused;
use super::replace::{self, Replacement};
use super::state::{self, Planning, Start};
use super::whole;
use crate::choice;
use crate::cluster::{self, Replica};
use crate::log::query;
use crate::pg::plan::items;
use crate::pg::{ffi, guc};
use crate::settings::{self, Mode};
use parallel_replicas_core::reason::Reason;
use pgrx::{PgSqlErrorCode, pg_sys};
use std::ffi::{CStr, CString, c_char, c_int};
use std::rc::Rc;

static mut PREVIOUS_PLANNER: pg_sys::planner_hook_type = None;

/// Installs the hook. Once, from the library's initialisation.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS_PLANNER = pg_sys::planner_hook;
        pg_sys::planner_hook = Some(planner);
    }
}

/// The planner that was there before us.
///
/// Unguarded, so that planning errors keep all their fields: no caller may have a value with a
/// destructor alive.
#[allow(ffi_unwind_calls)]
unsafe fn plan_without(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: the arguments are the planner's own.
    unsafe {
        match PREVIOUS_PLANNER {
            Some(previous) => previous(parse, query_string, cursor_options, bound_params),
            None => {
                ffi::standard_planner_unguarded(parse, query_string, cursor_options, bound_params)
            }
        }
    }
}

/// Unguarded for the statements that replicas have nothing to do with.
unsafe extern "C-unwind" fn planner(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: PostgreSQL's own arguments; nothing with a destructor lives in this frame.
    unsafe {
        let mode = settings::mode();
        if mode == Mode::Off {
            state::set_explained(false);
            return plan_without(parse, query_string, cursor_options, bound_params);
        }
        if mode == Mode::On
            && !state::is_explained()
            && !state::is_active()
            && !settings::is_hidden_from_explain()
            && candidate::finds_one_row(parse)
            && !settings::replicas::has_replica_tag()
        {
            return plan_marked(parse, query_string, cursor_options, bound_params);
        }
        plan_with_replicas(parse, query_string, cursor_options, bound_params)
    }
}

/// Plans without replicas, and so that whatever is planned meanwhile knows that it is part of it.
///
/// # Safety
/// The planner's own arguments; no value with a destructor may be alive.
unsafe fn plan_marked(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    let marker = state::push_marker();
    // SAFETY: as the caller says.
    let statement = unsafe { plan_without(parse, query_string, cursor_options, bound_params) };
    state::pop_marker(marker);
    statement
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn plan_with_replicas(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: PostgreSQL's own arguments; nothing with a destructor lives across the unguarded
    // calls (`Attempt` is plain numbers).
    unsafe {
        if let Some(nested) = begin_nested() {
            let statement = plan_without(parse, query_string, cursor_options, bound_params);
            end_nested(nested);
            return statement;
        }
        if settings::is_hidden_from_explain() && is_for_explain() {
            return plan_marked(parse, query_string, cursor_options, bound_params);
        }
        if !whole::is_wanted(parse) {
            return plan_divided(parse, query_string, cursor_options, bound_params, false)
                .statement;
        }
        let copy = pg_sys::copyObjectImpl(parse.cast()).cast::<pg_sys::Query>();
        let planned = plan_divided(parse, query_string, cursor_options, bound_params, true);
        if planned.outcome == Outcome::Replaced {
            return planned.statement;
        }
        let strict = planned.outcome == Outcome::Forbidden;
        let whole = plan_whole(
            planned.statement,
            copy,
            query_string,
            cursor_options,
            bound_params,
            strict,
        );
        if whole.is_null() {
            if strict {
                cannot_use_replicas_as_told();
            }
            return planned.statement;
        }
        whole
    }
}

/// A plan, and whether replicas have a part in it.
#[derive(Clone, Copy)]
struct Planned {
    statement: *mut pg_sys::PlannedStmt,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Replaced,
    Without,
    /// Without, although the user insists.
    Forbidden,
}

/// Plans a query whose tables may be divided between replicas. With `tagged`, one that cannot be is
/// not the last word.
///
/// # Safety
/// The planner's own arguments.
unsafe fn plan_divided(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
    tagged: bool,
) -> Planned {
    // SAFETY: as the caller says; nothing with a destructor lives across the unguarded calls.
    unsafe {
        if settings::mode() == Mode::On && !state::is_explained() {
            if candidate::is_candidate(parse, cursor_options, false)
                && !(tagged && candidate::finds_one_row(parse))
            {
                return plan_plainly_first(
                    parse,
                    query_string,
                    cursor_options,
                    bound_params,
                    tagged,
                );
            }
            return plan_plainly(parse, query_string, cursor_options, bound_params);
        }
        let Some(attempt) = begin(parse, cursor_options) else {
            return plan_plainly(parse, query_string, cursor_options, bound_params);
        };
        let copy = pg_sys::copyObjectImpl(parse.cast()).cast::<pg_sys::Query>();
        let statement = plan_without(parse, query_string, cursor_options, bound_params);
        let outcome = finish(attempt, statement, tagged);
        if outcome == Outcome::Replaced {
            return Planned { statement, outcome };
        }
        let plain = plan_plainly(copy, query_string, cursor_options, bound_params);
        Planned { outcome, ..plain }
    }
}

/// As [`plan_marked`].
///
/// # Safety
/// As there.
unsafe fn plan_plainly(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
) -> Planned {
    Planned {
        // SAFETY: as the caller says.
        statement: unsafe { plan_marked(parse, query_string, cursor_options, bound_params) },
        outcome: Outcome::Without,
    }
}

/// Has the query's plan sent to a replica whole, if that can be; null if not. `parse` is a copy of the
/// query.
///
/// # Safety
/// `plain` is the query's plan, the rest the planner's own arguments.
unsafe fn plan_whole(
    plain: *mut pg_sys::PlannedStmt,
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
    strict: bool,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: as the caller says; nothing with a destructor lives across the unguarded call.
    unsafe {
        let statement = match whole::send(plain, parse, cursor_options, strict) {
            whole::Verdict::Sent => return plain,
            whole::Verdict::Here => return std::ptr::null_mut(),
            whole::Verdict::PlanSerially => {
                let copy = pg_sys::copyObjectImpl(parse.cast()).cast::<pg_sys::Query>();
                let nest = without_workers();
                let planned = plan_plainly(copy, query_string, cursor_options, bound_params);
                guc::Nest::from_raw(nest).end();
                planned.statement
            }
        };
        match whole::send(statement, parse, cursor_options, strict) {
            whole::Verdict::Sent => statement,
            whole::Verdict::Here | whole::Verdict::PlanSerially => std::ptr::null_mut(),
        }
    }
}

fn without_workers() -> c_int {
    let nest = guc::nest();
    nest.set(c"max_parallel_workers_per_gather", c"0");
    nest.into_raw()
}

/// A plan that costs less than starting on replicas alone cannot be beaten, and most queries that
/// touch a large table are like that: they read a few of its rows. Only dearer ones are planned again
/// with replicas in mind. EXPLAIN does not come here, because it tells the reason.
///
/// # Safety
/// The planner's own arguments.
unsafe fn plan_plainly_first(
    parse: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    bound_params: pg_sys::ParamListInfo,
    tagged: bool,
) -> Planned {
    // SAFETY: as the caller says; nothing with a destructor lives across the unguarded calls.
    unsafe {
        let copy = pg_sys::copyObjectImpl(parse.cast()).cast::<pg_sys::Query>();
        let plain = plan_plainly(parse, query_string, cursor_options, bound_params);
        if (*(*plain.statement).planTree).total_cost
            <= pg_sys::parallel_setup_cost + settings::setup_cost()
        {
            return plain;
        }
        let Some(attempt) = begin(copy, cursor_options) else {
            return plain;
        };
        let statement = plan_without(copy, query_string, cursor_options, bound_params);
        let outcome = finish(attempt, statement, tagged);
        if outcome == Outcome::Replaced {
            return Planned { statement, outcome };
        }
        Planned { outcome, ..plain }
    }
}

/// Plain numbers: an ERROR may jump over it.
#[derive(Clone, Copy)]
struct Attempt {
    position: usize,
    nest: c_int,
}

/// A query that is planned while another one is being planned with replicas in mind, by a function
/// that the planner evaluates: it is planned without, and under the user's own settings.
fn begin_nested() -> Option<Attempt> {
    let saved = state::with_current(|planning| planning.start.saved_settings.clone())?;
    let nest = guc::nest();
    for (name, value) in saved.iter() {
        nest.set(name, value);
    }
    Some(Attempt {
        position: state::push_marker(),
        nest: nest.into_raw(),
    })
}

fn end_nested(nested: Attempt) {
    guc::Nest::from_raw(nested.nest).end();
    state::pop_marker(nested.position);
}

/// Did the user type this query, so that force may answer with an error? Not if it is planned while
/// another statement is planned or executed (by a function, a trigger, a foreign key) or belongs to
/// DDL.
fn is_the_users() -> bool {
    if state::is_planning() {
        return false;
    }
    if state::take_explained() {
        return true;
    }
    // SAFETY: the portal that is being executed, if any, with its statements.
    unsafe {
        let portal = pg_sys::ActivePortal;
        if portal.is_null() {
            return true;
        }
        let mut statements = items::<pg_sys::PlannedStmt>((*portal).stmts);
        statements.next().is_some_and(|statement| {
            let utility = (*statement).utilityStmt;
            !utility.is_null() && (*utility).type_ == pg_sys::NodeTag::T_ExecuteStmt
        })
    }
}

/// Is the plan for EXPLAIN to print?
fn is_for_explain() -> bool {
    if state::take_explained() {
        return true;
    }
    // SAFETY: the portal that is being executed, if any, with its statements. EXPLAIN EXECUTE plans
    // without calling the hook of EXPLAIN.
    unsafe {
        let portal = pg_sys::ActivePortal;
        !portal.is_null()
            && items::<pg_sys::PlannedStmt>((*portal).stmts).any(|statement| {
                let utility = (*statement).utilityStmt;
                !utility.is_null() && (*utility).type_ == pg_sys::NodeTag::T_ExplainStmt
            })
    }
}

/// Decides whether replicas are worth thinking about, and if so prepares for it.
///
/// # Safety
/// `parse` is the query to be planned.
unsafe fn begin(parse: *mut pg_sys::Query, cursor_options: c_int) -> Option<Attempt> {
    state::register_callbacks();
    let force = settings::mode() == Mode::Force;
    let strict = force && is_the_users() && !settings::is_debug_forced();
    state::set_explained(false);
    state::set_last_refused(None);
    // SAFETY: as the caller says.
    if !unsafe { candidate::is_candidate(parse, cursor_options, force) } {
        return None;
    }
    // Under this level PostgreSQL's own choice of scans matters: they take predicate locks.
    if is_serializable() && !strict {
        state::set_last_refused(Some(Refused::new(Reason::Serializable, "")));
        return None;
    }
    let replicas = cluster::replicas(&settings::cluster());
    if replicas.is_empty() && !force {
        return None;
    }
    let usable = choice::count_usable(&replicas);
    if usable == 0 && !force {
        state::set_last_refused(Some(Refused::new(Reason::NoReplicaUsable, "")));
        return None;
    }
    Some(prepare(force, strict, replicas, usable))
}

fn is_serializable() -> bool {
    // SAFETY: a plain global.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int }
}

/// What the planner is made to see differently while replicas are considered.
const CHANGED_SETTINGS: &[&CStr] = &[
    c"enable_parallel_hash",
    c"max_parallel_workers_per_gather",
    c"parallel_setup_cost",
    c"parallel_tuple_cost",
];

fn saved_settings() -> Rc<[(&'static CStr, CString)]> {
    CHANGED_SETTINGS
        .iter()
        .filter_map(|name| Some((*name, CString::new(guc::value(name)?).ok()?)))
        .collect()
}

fn prepare(force: bool, strict: bool, replicas: Rc<[Replica]>, usable: usize) -> Attempt {
    let available = replicas.len();
    // Who insists has all of them tried.
    let usable = if usable == 0 { available } else { usable };
    let links_per_replica = settings::links_per_replica();
    // The hash takes 256 participants, the task state 8192 processes.
    let most = 255.min(4096 / links_per_replica);
    let replicas_most = most.min(settings::max_parallel_replicas());
    let replicas_used = if is_serializable() {
        0
    } else {
        usable.min(replicas_most)
    };
    // SAFETY: a plain setting.
    let local_workers_limit = unsafe { pg_sys::max_parallel_workers_per_gather };
    let position = state::push(Start {
        force,
        strict,
        saved_settings: saved_settings(),
        replicas,
        replicas_used,
        replicas_most,
        links_per_replica,
        local_plan: settings::local_plan(),
        local_share: settings::local_plan()
            && (settings::prefer_local_replica() || usable < replicas_most),
        local_workers_limit,
    });
    if replicas_used == 0 {
        let reason = if available == 0 {
            Reason::NoReplica
        } else if is_serializable() {
            Reason::Serializable
        } else {
            Reason::NoReplicaAllowed
        };
        state::with(position, |planning| {
            planning.refuse(Refused::new(reason, ""))
        });
    }
    let nest = guc::nest();
    // A hash table cannot be shared between servers.
    nest.set(c"enable_parallel_hash", c"off");
    let links = state::with(position, |planning| planning.links()).unwrap_or(0);
    // PostgreSQL caps an Append's workers by this, and plans nothing parallel where it is 0.
    let workers = (local_workers_limit as usize + links).clamp(1, 1024);
    nest.set_number(c"max_parallel_workers_per_gather", workers as f64);
    // SAFETY: plain setting.
    let tuple_cost = unsafe { pg_sys::parallel_tuple_cost };
    if force {
        nest.set(c"parallel_setup_cost", c"0");
        nest.set(c"parallel_tuple_cost", c"0");
    } else {
        nest.set_number(
            c"parallel_tuple_cost",
            tuple_cost.max(settings::tuple_cost()),
        );
    }
    Attempt {
        position,
        nest: nest.into_raw(),
    }
}

/// Puts our nodes into the plan. If there was no place for any, the statement must be planned without
/// us; under force that is an error, unless it is `tagged` and may yet be sent whole.
///
/// # Safety
/// `statement` is the finished plan of the attempt.
unsafe fn finish(attempt: Attempt, statement: *mut pg_sys::PlannedStmt, tagged: bool) -> Outcome {
    guc::Nest::from_raw(attempt.nest).end();
    let Some(mut planning) = state::pop(attempt.position) else {
        return Outcome::Without;
    };
    let context = replacement(&planning);
    // SAFETY: as the caller says.
    let replaced = planning.start.replicas_used > 0
        && unsafe { replace::gathers(statement, &context, &mut planning) } > 0;
    if replaced {
        return Outcome::Replaced;
    }
    let why =
        planning.refused.first().cloned().or_else(|| {
            (planning.eligible_scans > 0).then(|| Refused::new(Reason::PlannerChoice, ""))
        });
    let forbidden = planning.start.strict && planning.eligible_scans > 0 && why.is_some();
    if let (Some(why), false) = (&why, tagged) {
        query::planned_without(why.reason.code(), &why.describe());
        if forbidden {
            cannot_use_replicas(why);
        }
    }
    state::set_last_refused(why);
    match forbidden {
        true => Outcome::Forbidden,
        false => Outcome::Without,
    }
}

fn replacement(planning: &Planning) -> Replacement {
    Replacement {
        links_per_replica: planning.start.links_per_replica as u32,
        local_plan: planning.start.local_plan,
        strict: planning.start.strict,
        local_workers_limit: planning.start.local_workers_limit,
        available: planning.start.replicas.len() as u32,
        cluster: settings::cluster(),
        replicas_used: planning.start.replicas_used,
        replicas_most: planning.start.replicas_most,
    }
}

/// Raises the error of `enable_parallel_replicas = force`, for the reason that was found last.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn cannot_use_replicas_as_told() {
    if let Some(why) = state::take_last_refused() {
        cannot_use_replicas(&why);
    }
}

/// Raises the error of `enable_parallel_replicas = force`.
pub fn cannot_use_replicas(why: &Refused) -> ! {
    let mut report = pgrx::pg_sys::panic::ErrorReport::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "query cannot use parallel replicas",
        "parallel_replicas",
    )
    .set_detail(format!("Reason {}: {}.", why.reason.code(), why.describe()));
    let hint = why.reason.hint();
    let hint = if hint.is_empty() {
        "Set enable_parallel_replicas to on to let such queries run on this server alone."
            .to_owned()
    } else {
        format!(
            "{hint} Set enable_parallel_replicas to on to let such queries run on this server alone."
        )
    };
    report = report.set_hint(hint);
    report.report(pgrx::PgLogLevel::ERROR);
    unreachable!("an ERROR does not return");
}
