//! Whole queries: under a tag, a plan that has no granule scan goes to the tag's replica as it is.
//!
//! One ParallelReplicas node is put over the whole plan. Its first execution sends the plan, with the
//! plans of its subqueries, to one replica; if that comes to nothing, this server executes it. Tags
//! are about where a query is executed, not what it costs, so costs are not compared.
//!
//! Invariant: what is refused here is planned and executed as if there were no tag.

use super::extensions::Extensions;
use super::private::{ParallelReplicasPrivate, Refused};
use super::replace::custom_scan;
use super::shippable::{self, FIRST_NORMAL_OBJECT_ID, Findings, Side};
use super::state;
use crate::log::query;
use crate::pg::plan::{children, items};
use crate::pg::proc;
use crate::settings::{self, Mode};
use crate::{choice, cluster};
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use std::ffi::c_int;

/// May the query be sent whole?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Verdict {
    /// It is executed here; state knows why, if there is a reason to tell.
    Here,
    /// The plan is now one that is sent whole.
    Sent,
    /// PostgreSQL would execute it with workers of its own, which a replica has no use for: plan it
    /// without them, and ask again.
    PlanSerially,
}

/// Is there a tag, and is it a query that might be sent? Those of functions that a query calls, perhaps
/// for each row, are executed where that query is.
///
/// # Safety
/// `parse` is the query to be planned.
pub unsafe fn is_wanted(parse: *const pg_sys::Query) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        (*parse).commandType == pg_sys::CmdType::CMD_SELECT
            && !state::is_disabled()
            && !proc::is_parallel_worker()
            && !state::is_planning()
            && settings::replicas::has_replica_tag()
            && !is_nested(std::ptr::null_mut())
    }
}

/// Is another query being executed, one of whose functions asks? `estate` is the state of the query in
/// question, null before it has one.
///
/// # Safety
/// `estate` is not looked into.
pub unsafe fn is_nested(estate: *mut pg_sys::EState) -> bool {
    // SAFETY: the portal that is being executed, if any, with its statements. Utility statements, such as
    // EXPLAIN, COPY, DO and CALL, are no queries.
    unsafe {
        let portal = pg_sys::ActivePortal;
        if portal.is_null() {
            return false;
        }
        let own = !estate.is_null()
            && !(*portal).queryDesc.is_null()
            && std::ptr::eq((*(*portal).queryDesc).estate, estate);
        let mut statements = items::<pg_sys::PlannedStmt>((*portal).stmts);
        !own && statements
            .next()
            .is_some_and(|statement| (*statement).utilityStmt.is_null())
    }
}

/// Puts the plan under a ParallelReplicas, if it can be sent whole.
///
/// `parse` is a copy of the query as it was before it was planned; `strict`: the user insists.
///
/// # Safety
/// `statement` is the finished plan of the query, which nobody else refers to yet.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn send(
    statement: *mut pg_sys::PlannedStmt,
    parse: *mut pg_sys::Query,
    cursor_options: c_int,
    strict: bool,
) -> Verdict {
    // SAFETY: as the caller says.
    unsafe {
        if !reads_tables(statement) {
            return Verdict::Here;
        }
        let available = cluster::replicas(&settings::cluster());
        let findings = match obstacle(statement, parse, cursor_options, &available) {
            Some(reason) => Err(Refused::new(reason, "")),
            None if (*statement).parallelModeNeeded => match obstacle_to_execution() {
                Some(reason) => Err(Refused::new(reason, "")),
                None => return Verdict::PlanSerially,
            },
            None => shippable::whole(
                Side::Coordinator,
                (*statement).planTree,
                (*statement).subplans,
                (*statement).rtable,
                Extensions::default(),
            ),
        };
        match findings {
            Ok(findings) => {
                put_over(statement, private(&findings, available.len(), strict));
                state::set_last_refused(None);
                Verdict::Sent
            }
            Err(why) => {
                query::planned_without(why.reason.code(), &why.describe());
                state::set_last_refused(Some(why));
                Verdict::Here
            }
        }
    }
}

/// Does it read any table that is not the catalog's? Views are in the list, too.
///
/// # Safety
/// `statement` is valid.
unsafe fn reads_tables(statement: *const pg_sys::PlannedStmt) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        items::<pg_sys::RangeTblEntry>((*statement).rtable).any(|entry| {
            (*entry).rtekind == pg_sys::RTEKind::RTE_RELATION
                && (*entry).relid.to_u32() >= FIRST_NORMAL_OBJECT_ID
                && (*entry).relkind as u8 != pg_sys::RELKIND_VIEW
        })
    }
}

/// What stands against it, apart from the plan itself.
///
/// # Safety
/// As for [`send`].
unsafe fn obstacle(
    statement: *const pg_sys::PlannedStmt,
    parse: *mut pg_sys::Query,
    cursor_options: c_int,
    available: &[cluster::Replica],
) -> Option<Reason> {
    let options = cursor_options as u32;
    // SAFETY: as the caller says; plain globals.
    unsafe {
        if !(*statement).rowMarks.is_null() || (*parse).hasModifyingCTE {
            return Some(Reason::NotParallelSafe);
        }
        // Cursors, which may be read backwards, and whose place an UPDATE may refer to.
        if options & pg_sys::CURSOR_OPT_PARALLEL_OK == 0 || options & pg_sys::CURSOR_OPT_SCROLL != 0
        {
            return Some(Reason::NotParallelMode);
        }
        if pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int {
            return Some(Reason::Serializable);
        }
        if pg_sys::RecoveryInProgress() {
            return Some(Reason::InRecovery);
        }
        if available.is_empty() {
            return Some(Reason::NoReplica);
        }
        if settings::max_parallel_replicas() == 0 {
            return Some(Reason::NoReplicaAllowed);
        }
        let insists = settings::mode() == Mode::Force;
        (!insists && choice::count_usable(available) == 0).then_some(Reason::NoReplicaUsable)
    }
}

/// What would keep the query here if it were executed now. It may be gone when a cached plan is executed,
/// but is reason enough not to give up a plan with workers.
fn obstacle_to_execution() -> Option<Reason> {
    // SAFETY: plain globals.
    unsafe {
        if proc::own_xid().is_some() {
            return Some(Reason::OwnXid);
        }
        (pg_sys::old_snapshot_threshold >= 0).then_some(Reason::OldSnapshotThreshold)
    }
}

fn private(findings: &Findings, available: usize, strict: bool) -> ParallelReplicasPrivate {
    ParallelReplicasPrivate {
        local_workers: 0,
        links_per_replica: 1,
        cluster: settings::cluster(),
        planned: 1,
        most: 1,
        available: available as u32,
        replicas: Vec::new(),
        local_plan: false,
        whole: true,
        local_weight: 0,
        strict,
        streaming: false,
        ramp: false,
        merge: Vec::new(),
        init_params: Vec::new(),
        rescan_param: -1,
        relations: findings
            .relations
            .iter()
            .map(|(index, oid)| (*index, *oid))
            .collect(),
        collations: findings.collations.iter().copied().collect(),
        extensions: findings.extensions.for_plan(),
        time_zone: findings.time_zone,
        fold: findings.fold,
    }
}

/// As standard_planner puts a single-copy Gather over a plan. Its InitPlans stay below, because they
/// are executed with it. Parallel mode is not needed: whether the rows come from a replica or from
/// here, all of the query is executed in one place, in portions if the caller likes.
///
/// # Safety
/// `statement` is a finished plan that nobody else refers to.
unsafe fn put_over(statement: *mut pg_sys::PlannedStmt, private: ParallelReplicasPrivate) {
    // SAFETY: as the caller says; the new nodes are allocated with the plan.
    unsafe {
        let below = (*statement).planTree;
        let above = pgrx::PgBox::<pg_sys::Plan>::alloc_node(pg_sys::NodeTag::T_Plan).into_pg();
        (*above).startup_cost = (*below).startup_cost;
        (*above).total_cost = (*below).total_cost;
        (*above).plan_rows = (*below).plan_rows;
        (*above).plan_width = (*below).plan_width;
        (*above).plan_node_id = 1 + last_node_id(statement);
        (*above).targetlist = output_of(below);
        (*above).lefttree = below;
        (*above).allParam = pg_sys::bms_copy((*below).allParam);
        (*statement).planTree = custom_scan(above, &private);
    }
}

/// A target list that passes on what the plan gives.
///
/// # Safety
/// `below` is a valid plan.
unsafe fn output_of(below: *mut pg_sys::Plan) -> *mut pg_sys::List {
    let mut list = std::ptr::null_mut();
    // SAFETY: as the caller says; the copies are ours.
    unsafe {
        for entry in items::<pg_sys::TargetEntry>((*below).targetlist) {
            let copy = pg_sys::flatCopyTargetEntry(entry);
            (*copy).expr = pg_sys::makeVarFromTargetEntry(pg_sys::OUTER_VAR, entry).cast();
            list = pg_sys::lappend(list, copy.cast());
        }
    }
    list
}

/// # Safety
/// `statement` is a finished plan.
unsafe fn last_node_id(statement: *const pg_sys::PlannedStmt) -> c_int {
    // SAFETY: as the caller says; a subplan that nothing refers to is null.
    unsafe {
        let mut last = 0;
        let mut plans = vec![(*statement).planTree];
        plans.extend(items::<pg_sys::Plan>((*statement).subplans).filter(|plan| !plan.is_null()));
        while let Some(plan) = plans.pop() {
            last = last.max((*plan).plan_node_id);
            plans.extend(children(plan).into_iter().map(|place| *place));
        }
        last
    }
}
