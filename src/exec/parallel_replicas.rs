//! ParallelReplicas: the node that stands where PostgreSQL put a Gather or Gather Merge.
//!
//! At its first execution it decides whether replicas can take part, starts links, then local
//! workers, and from then on passes rows on as they come: from the workers' tuple queues, from
//! links, and from the leader's own execution of the fragment, which happens if no local worker
//! could be started and whenever a lost replica left granules that nobody else will read. Without
//! replicas it is a Gather.
//!
//! Functions that call the executor are unguarded (see `pg::ffi`): nothing with a destructor lives
//! in them. What needs Rust values with destructors is in guarded functions of its own.

#![allow(ffi_unwind_calls)]

use super::state::{LEADER, Next, OwnWrites, SERVICE_INTERVAL, SERVICE_INTERVAL_US, State};
use super::{account, explain, granule_scan, local, merge, pruning, start};
use crate::error::warn;
use crate::log::query;
use crate::pg::wait::{self, now_micros};
use crate::pg::{executor, ffi, proc};
use crate::plan::hook::cannot_use_replicas;
use crate::plan::private::{PARALLEL_REPLICAS_NAME, ParallelReplicasPrivate, Refused, from_list};
use crate::plan::refresh;
use crate::settings;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use std::ffi::{c_int, c_void};

/// State of the node.
#[repr(C)]
pub struct ParallelReplicasState {
    pub css: pg_sys::CustomScanState,
    /// Dropped with the query's memory context.
    pub state: *mut State,
    pub funnel: *mut pg_sys::TupleTableSlot,
}

struct ScanMethods(pg_sys::CustomScanMethods);
struct ExecMethods(pg_sys::CustomExecMethods);

// SAFETY: read only, pointers to static data.
unsafe impl Sync for ScanMethods {}
// SAFETY: as above.
unsafe impl Sync for ExecMethods {}

static SCAN_METHODS: ScanMethods = ScanMethods(pg_sys::CustomScanMethods {
    CustomName: PARALLEL_REPLICAS_NAME.as_ptr(),
    CreateCustomScanState: Some(create_custom_scan_state),
});

static EXEC_METHODS: ExecMethods = ExecMethods(pg_sys::CustomExecMethods {
    CustomName: PARALLEL_REPLICAS_NAME.as_ptr(),
    BeginCustomScan: Some(begin_custom_scan),
    ExecCustomScan: Some(exec_custom_scan),
    EndCustomScan: Some(end_custom_scan),
    ReScanCustomScan: Some(rescan_custom_scan),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: None,
    InitializeDSMCustomScan: None,
    ReInitializeDSMCustomScan: None,
    InitializeWorkerCustomScan: None,
    ShutdownCustomScan: Some(shutdown_custom_scan),
    ExplainCustomScan: Some(explain_custom_scan),
});

/// Tells PostgreSQL the node's name.
pub fn init() {
    // SAFETY: static data; once, from the library's initialisation.
    unsafe { pg_sys::RegisterCustomScanMethods(&SCAN_METHODS.0) };
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn create_custom_scan_state(
    scan: *mut pg_sys::CustomScan,
) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory is a valid state; the tag and methods are what PostgreSQL wants set.
    unsafe {
        let Some(mut private) = from_list::<ParallelReplicasPrivate>((*scan).custom_private) else {
            crate::error::internal("ParallelReplicas has no private data");
        };
        // The plan may be older than the setting.
        private.strict &= settings::mode() == settings::Mode::Force;
        let node =
            pg_sys::palloc0(size_of::<ParallelReplicasState>()).cast::<ParallelReplicasState>();
        (*node).css.ss.ps.type_ = pg_sys::NodeTag::T_CustomScanState;
        (*node).css.methods = &EXEC_METHODS.0;
        (*node).state = Box::into_raw(Box::new(State::new(private)));
        let callback = pg_sys::palloc0(size_of::<pg_sys::MemoryContextCallback>())
            .cast::<pg_sys::MemoryContextCallback>();
        (*callback).func = Some(drop_state);
        (*callback).arg = (*node).state.cast();
        pg_sys::MemoryContextRegisterResetCallback(pg_sys::CurrentMemoryContext, callback);
        node.cast()
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn drop_state(state: *mut c_void) {
    // SAFETY: made by Box::into_raw, and the context calls back once. Temporary files that the rows
    // still refer to belong to PostgreSQL; `State` does not touch them when dropped.
    drop(unsafe { Box::from_raw(state.cast::<State>()) });
}

/// As ExecInitGather: the slot type of what comes out is not fixed, because rows come from tuple
/// queues, links and the leader's own plan.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn begin_custom_scan(
    css: *mut pg_sys::CustomScanState,
    estate: *mut pg_sys::EState,
    eflags: c_int,
) {
    // SAFETY: PostgreSQL's own arguments. nodeCustom.c has built a projection for a scan tuple that
    // this node does not have; it is replaced here.
    unsafe {
        let node = css.cast::<ParallelReplicasState>();
        let ps = &raw mut (*css).ss.ps;
        let fragment = pg_sys::ExecInitNode((*(*ps).plan).lefttree, estate, eflags);
        (*ps).lefttree = fragment;
        let descriptor = pg_sys::ExecGetResultType(fragment);
        (*ps).outeropsset = true;
        (*ps).outeropsfixed = false;
        (*ps).ps_ProjInfo = std::ptr::null_mut();
        pg_sys::ExecConditionalAssignProjectionInfo(ps, descriptor, pg_sys::OUTER_VAR);
        if (*ps).ps_ProjInfo.is_null() {
            (*ps).resultopsset = true;
            (*ps).resultopsfixed = false;
        }
        (*node).funnel =
            pg_sys::ExecInitExtraTupleSlot(estate, descriptor, &pg_sys::TTSOpsMinimalTuple);
        (*ps).ExecProcNode = Some(exec_parallel_replicas);
        let state = &mut *(*node).state;
        state.own_writes = match proc::own_xid() {
            None => OwnWrites::None,
            Some(_) if refresh::is_query_of(estate) => OwnWrites::Refresh,
            Some(_) => OwnWrites::Any,
        };
    }
}

/// Never reached: `begin_custom_scan` sets a function of its own.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn exec_custom_scan(
    css: *mut pg_sys::CustomScanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the state is ours.
    unsafe { exec_parallel_replicas(&raw mut (*css).ss.ps) }
}

/// Unguarded; see the module comment.
unsafe extern "C-unwind" fn exec_parallel_replicas(
    ps: *mut pg_sys::PlanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the state is ours.
    unsafe {
        let node = ps.cast::<ParallelReplicasState>();
        ffi::check_for_interrupts();
        if !(*(*node).state).started {
            start::start(node);
        }
        let context = (*ps).ps_ExprContext;
        executor::reset_expr_context(context);
        let slot = if (*(*node).state).is_ordered() {
            merge::next(node)
        } else {
            next_row(node)
        };
        if executor::is_null(slot) {
            return std::ptr::null_mut();
        }
        if (*ps).ps_ProjInfo.is_null() {
            return slot;
        }
        (*context).ecxt_outertuple = slot;
        executor::project((*ps).ps_ProjInfo)
    }
}

/// The next row in any order; null at the end.
///
/// # Safety
/// The state is ours and started.
unsafe fn next_row(node: *mut ParallelReplicasState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        let state = (*node).state;
        loop {
            ffi::check_for_interrupts();
            if (*state).finished {
                return std::ptr::null_mut();
            }
            if (*state).until_service == 0 {
                expect_and_service(node);
                (*state).until_service = SERVICE_INTERVAL;
            }
            let mut tuple = std::ptr::null_mut();
            if (*state).active_readers() > 0 {
                tuple = local::next(state);
                if tuple.is_null() && (*state).active_readers() == 0 {
                    workers_done(node);
                }
            }
            if tuple.is_null() && ((*state).dispatch.is_some() || (*state).private.whole) {
                tuple = next_link_row(node);
            }
            if !tuple.is_null() {
                (*state).until_service -= 1;
                return ffi::exec_store_minimal_tuple(tuple, (*node).funnel, false);
            }
            if service(node) {
                continue;
            }
            match next_step(node) {
                Next::Lead => {
                    let slot = lead(node);
                    if !executor::is_null(slot) {
                        (*state).until_service -= 1;
                        return slot;
                    }
                }
                Next::Wait => wait_for_events(node),
                Next::Finished => finish(node),
            }
        }
    }
}

/// Executes the fragment in the leader for one row. At the end of a round all that the leader held
/// is delivered; it may be called again for another round.
///
/// # Safety
/// The state is ours.
pub unsafe fn lead(node: *mut ParallelReplicasState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        let state = (*node).state;
        let fragment = (*node).css.ss.ps.lefttree;
        let estate = (*node).css.ss.ps.state;
        if !(*state).leading {
            tell_if_left_alone(node);
            if (*state).has_led {
                // As a changed parameter, so that no node hands out again what it has kept.
                mark_changed(node);
            }
            (*state).leading = true;
        }
        (*state).has_led = true;
        (*estate).es_query_dsa = if (*state).pei.is_null() {
            std::ptr::null_mut()
        } else {
            (*(*state).pei).area
        };
        let slot = ffi::exec_proc_node(fragment);
        (*estate).es_query_dsa = std::ptr::null_mut();
        if executor::is_null(slot) {
            (*state).leading = false;
            leader_done(node);
        }
        slot
    }
}

/// Replicas were to do all of the work, and none is left: a warning, and under force an error. Who ships
/// for a test's sake is not told.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn tell_if_left_alone(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    let state = unsafe { &mut *(*node).state };
    let Some(about) = state.why_left_alone() else {
        return;
    };
    state.left_alone = true;
    let why = Refused::new(Reason::NoReplicaLeft, about);
    if state.private.strict {
        cannot_use_replicas(&why);
    }
    if settings::is_debug_forced() {
        return;
    }
    warn(
        "query goes on without replicas",
        &format!("Reason {}: {}.", why.reason.code(), why.describe()),
        why.reason.hint(),
    );
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn leader_done(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        let state = &mut *(*node).state;
        for (index, scan) in state.live.scans.iter().enumerate() {
            if !granule_scan::has_ended(*scan) {
                // An empty inner side, a condition that is false for all rows: it ended without the
                // scan's rows, and so does everybody else.
                state.unneeded[index] = true;
            }
        }
        state.whole_done += u32::from(state.private.whole);
        let before = state.unassigned();
        state.deliver_local(LEADER..LEADER + 1);
        if before > 0 && before == state.unassigned_at_last_round {
            crate::error::internal("the leader's execution of the fragment made no progress");
        }
        state.unassigned_at_last_round = before;
    }
}

/// All tuple queues have ended: waits for the workers, and counts what they read.
///
/// # Safety
/// The state is ours.
pub unsafe fn workers_done(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        local::finish((*node).state);
        workers_delivered(node);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn workers_delivered(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        let state = &*(*node).state;
        state.deliver_local(1..1 + state.workers_launched as u16);
    }
}

/// Serves the links. Answers whether anything happened.
///
/// # Safety
/// The state is ours.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn service(node: *mut ParallelReplicasState) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let state = &mut *(*node).state;
        let Some(dispatch) = &mut state.dispatch else {
            return false;
        };
        let progress = dispatch.service();
        state.served_us = now_micros();
        for scan in std::mem::take(&mut dispatch.shared.unneeded) {
            state.unneeded[scan as usize] = true;
        }
        if state.take_whole() {
            // Nothing is under way any more while the rows are passed on, perhaps in portions, between
            // which the session does other things.
            stop_links(node);
        }
        progress
    }
}

/// Serves the links where there are rows from some of them.
///
/// # Safety
/// The state is ours.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn expect_and_service(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(dispatch) = &mut (*(*node).state).dispatch {
            dispatch.expect_all();
            service(node);
        }
    }
}

/// Serves the links where there is something else to do than to wait for them.
///
/// # Safety
/// The state is ours.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn poll_and_service(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(dispatch) = &mut (*(*node).state).dispatch {
            dispatch.poll();
            service(node);
        }
    }
}

/// Called by the leader's granule scans before each task, and between pieces of it.
pub unsafe fn between_pieces(context: *mut c_void, before_task: bool) {
    let node = context.cast::<ParallelReplicasState>();
    // SAFETY: `context` is the node that set this hook.
    unsafe {
        let due = (*(*node).state).served_us + SERVICE_INTERVAL_US;
        if before_task || now_micros() >= due {
            poll_and_service(node);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn next_link_row(
    node: *mut ParallelReplicasState,
) -> *mut pg_sys::MinimalTupleData {
    // SAFETY: the state is ours.
    unsafe {
        let state = &mut *(*node).state;
        if let Some(tuple) = link_row(&mut state.whole_rows) {
            return tuple;
        }
        let Some(dispatch) = &mut state.dispatch else {
            return std::ptr::null_mut();
        };
        for link in &mut dispatch.links {
            if link.ready.is_empty() {
                continue;
            }
            if let Some(tuple) = link_row(&mut link.ready) {
                return tuple;
            }
        }
        std::ptr::null_mut()
    }
}

/// The next of held rows. Rows whose end marker has come are whole, or the replica is broken in a
/// way that it cannot be excluded from any more.
pub fn link_row(rows: &mut super::held_rows::HeldRows) -> Option<*mut pg_sys::MinimalTupleData> {
    match rows.next() {
        Ok(row) => row,
        Err(_) => crate::error::raise(
            pgrx::PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
            "replica sent a damaged row",
            "",
            "Check the replica's hardware and software; leave it out with DROP SERVER.",
        ),
    }
}

#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn next_step(node: *mut ParallelReplicasState) -> Next {
    // SAFETY: the state is ours.
    unsafe {
        let state = &*(*node).state;
        state.next_step(state.active_readers() > 0)
    }
}

/// Waits until a worker, a link or an interrupt has something.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn wait_for_events(node: *mut ParallelReplicasState) {
    const EVENT: u32 = pg_sys::WaitEventIPC::WAIT_EVENT_EXECUTE_GATHER;
    // SAFETY: the state is ours.
    let state = unsafe { &mut *(*node).state };
    let started = now_micros();
    match &mut state.dispatch {
        Some(dispatch) => dispatch.wait(60_000, EVENT),
        None => drop(wait::latch_or_sockets(&[], 60_000, EVENT)),
    }
    state.waited_us += now_micros() - started;
}

/// All rows have been passed on: checks that every granule was counted once, and lets go of links.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn finish(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        let state = &mut *(*node).state;
        test_point!("exec-finishing");
        state.verify();
        state.finished = true;
        stop_links(node);
    }
}

/// # Safety
/// The state is ours.
unsafe fn stop_links(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        let state = &mut *(*node).state;
        let Some(dispatch) = &mut state.dispatch else {
            if state.started && state.summary.is_none() {
                state.summarise();
            }
            account::settle(state, (*node).css.ss.ps.state);
            return;
        };
        dispatch.stop(&state.private.replicas);
        dispatch.count_events(state.private.available);
        let instrumented = (*(*node).css.ss.ps.state).es_instrument != 0;
        state.summarise();
        account::settle(state, (*node).css.ss.ps.state);
        if let Some(dispatch) = state.dispatch.take() {
            for link in &dispatch.links {
                if let Some(report) = &link.report {
                    explain::add_report((*node).css.ss.ps.lefttree, report, instrumented);
                }
            }
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn stop_links_guarded(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        if (*(*node).state).has_company() {
            stop_links(node);
        }
        merge::end(&mut *(*node).state);
    }
}

/// Rows that nobody wants any more.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn forget_whole(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe { (*(*node).state).whole_rows.clear() };
}

/// Stops everybody; called at the end of the query, when it needs no more rows, and after every
/// portion of a query that is executed in portions. The latter is never done in parallel mode: then
/// there is nobody to stop, and the leader's own state must stay.
unsafe extern "C-unwind" fn shutdown_custom_scan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the state is ours; nothing with a destructor lives here.
    unsafe {
        let node = css.cast::<ParallelReplicasState>();
        if (*(*node).state).has_company() {
            let state = (*node).state;
            stop_links_guarded(node);
            local::finish(state);
            forget_shared_tasks(node);
            local::cleanup(state);
        } else {
            summarise(node);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn summarise(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        let state = &mut *(*node).state;
        // What replicas did was summed up when they were let go.
        if state.started && (state.summary.is_none() || state.refused.is_some()) {
            state.summarise();
        }
        account::settle(state, (*node).css.ss.ps.state);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn forget_shared_tasks(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        if !(*(*node).state).pei.is_null() {
            let fragment = (*node).css.ss.ps.lefttree;
            for scan in pruning::live(fragment, false).scans {
                granule_scan::forget_shared_tasks(scan);
            }
        }
    }
}

unsafe extern "C-unwind" fn end_custom_scan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the state is ours; nothing with a destructor lives here.
    unsafe {
        ffi::exec_end_node((*css).ss.ps.lefttree);
        shutdown_custom_scan(css);
        stop_links_guarded(css.cast());
        forget_whole(css.cast());
        ended(css.cast());
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn ended(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    query::ended(unsafe { (*node).css.ss.ps.state });
}

/// Has the fragment executed anew, as a changed parameter would: no node may hand out again what it
/// has kept. The planner gives every Gather such a parameter, on which parallel-aware scans depend.
///
/// # Safety
/// The state is ours.
unsafe fn mark_changed(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        let fragment = (*node).css.ss.ps.lefttree;
        let param = (*(*node).state).private.rescan_param;
        if param >= 0 {
            (*fragment).chgParam = ffi::add_member((*fragment).chgParam, param);
        }
        if (*fragment).chgParam.is_null() {
            ffi::exec_re_scan(fragment);
        }
    }
}

/// As ExecReScanGather: workers and links end, everything starts anew at the next execution.
unsafe extern "C-unwind" fn rescan_custom_scan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the state is ours; nothing with a destructor lives here.
    unsafe {
        let node = css.cast::<ParallelReplicasState>();
        let state = (*node).state;
        stop_links_guarded(node);
        forget_whole(node);
        local::finish(state);
        (*state).started = false;
        (*state).finished = false;
        (*state).leading = false;
        (*state).has_led = false;
        mark_changed(node);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn explain_custom_scan(
    css: *mut pg_sys::CustomScanState,
    ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: PostgreSQL's own arguments.
    unsafe { explain::parallel_replicas(css.cast(), ancestors, es) }
}
