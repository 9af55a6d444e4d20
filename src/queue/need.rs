//! Whether a statement queues, and what it would use.

use super::frames::Standing;
use super::{measure, settings};
use crate::pg::plan::{children, items};
use crate::plan::private::{PARALLEL_REPLICAS_NAME, ParallelReplicasPrivate, from_list};
use parallel_replicas_core::queue::Kind;
use pgrx::pg_sys;
use std::ffi::CStr;

/// What a statement would use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Need {
    /// Processes at once, this backend included. Links count where the cores of the servers that
    /// their processes are on are in the capacity.
    pub processes: u32,
    /// Memory of all of them.
    pub bytes: f64,
    /// The planner's total cost.
    pub cost: f64,
}

impl Need {
    /// Of a statement that has no plan.
    pub const UTILITY: Need = Need {
        processes: 1,
        bytes: 0.0,
        cost: 0.0,
    };

    pub fn slots(&self) -> u32 {
        settings::slots(self.processes, self.bytes, self.cost)
    }
}

/// What kind of work a planned statement is; None if it never queues: because it is nested in
/// another one, touches no tables but the catalog's, or is not one of the kinds.
///
/// # Safety
/// `statement` is a valid planned statement.
pub unsafe fn kind(statement: *const pg_sys::PlannedStmt, standing: Standing) -> Option<Kind> {
    // SAFETY: as the caller says.
    unsafe {
        match (standing, (*statement).commandType) {
            (Standing::Nested, _) => None,
            (Standing::Through { load: true }, _) => {
                reads_tables(statement, false).then_some(Kind::Load)
            }
            (_, pg_sys::CmdType::CMD_SELECT) => {
                reads_tables(statement, false).then_some(Kind::Select)
            }
            (_, pg_sys::CmdType::CMD_INSERT) => reads_tables(statement, true).then_some(Kind::Load),
            _ => None,
        }
    }
}

/// Is any table read that is not the catalog's? The target of an INSERT is not read.
///
/// # Safety
/// As for [`kind`].
unsafe fn reads_tables(statement: *const pg_sys::PlannedStmt, skip_targets: bool) -> bool {
    // SAFETY: as the caller says; result relations are numbers of range table entries.
    unsafe {
        items::<pg_sys::RangeTblEntry>((*statement).rtable)
            .enumerate()
            .any(|(index, rte)| {
                (*rte).rtekind == pg_sys::RTEKind::RTE_RELATION
                    && (*rte).relid.to_u32() >= pg_sys::FirstNormalObjectId
                    && matches!(
                        (*rte).relkind as u8,
                        pg_sys::RELKIND_RELATION
                            | pg_sys::RELKIND_MATVIEW
                            | pg_sys::RELKIND_PARTITIONED_TABLE
                            | pg_sys::RELKIND_FOREIGN_TABLE
                    )
                    && !(skip_targets
                        && pg_sys::list_member_int((*statement).resultRelations, index as i32 + 1))
            })
    }
}

/// # Safety
/// `statement` is a valid planned statement.
pub unsafe fn cost(statement: *const pg_sys::PlannedStmt) -> f64 {
    // SAFETY: as the caller says; utility statements, which have no plan, do not come here.
    unsafe { (*(*statement).planTree).total_cost }
}

/// # Safety
/// `statement` is a valid planned statement.
pub unsafe fn of(statement: *const pg_sys::PlannedStmt) -> Need {
    // SAFETY: as the caller says.
    unsafe { sum(statement, false) }
}

/// What it would use if this server executed alone what it was to leave to replicas.
///
/// # Safety
/// `statement` is a valid planned statement.
pub unsafe fn without_replicas(statement: *const pg_sys::PlannedStmt) -> Need {
    // SAFETY: as the caller says.
    unsafe { sum(statement, true) }
}

/// # Safety
/// `statement` is a valid planned statement.
unsafe fn sum(statement: *const pg_sys::PlannedStmt, alone: bool) -> Need {
    measure::look_at_cluster_if_due();
    // SAFETY: as the caller says.
    unsafe {
        let mut walk = Walk {
            workers: 0,
            bytes: 0.0,
            alone,
        };
        walk.visit((*statement).planTree, 1);
        for plan in items::<pg_sys::Plan>((*statement).subplans) {
            walk.visit(plan, 1);
        }
        Need {
            processes: 1 + walk.workers,
            bytes: walk.bytes,
            cost: cost(statement),
        }
    }
}

struct Walk {
    /// Of the widest Gather.
    workers: u32,
    bytes: f64,
    /// Nothing is left to replicas.
    alone: bool,
}

impl Walk {
    /// # Safety
    /// `plan` is null or a valid plan, which `processes` processes execute.
    unsafe fn visit(&mut self, plan: *mut pg_sys::Plan, processes: u32) {
        if plan.is_null() {
            return;
        }
        // SAFETY: as the caller says.
        unsafe {
            let mut workers = local_workers(plan, self.alone);
            if settings::is_by_cluster() && !self.alone {
                workers += links(plan);
            }
            self.workers = self.workers.max(workers);
            self.bytes += memory(plan) * f64::from(processes);
            let below = if workers > 0 { workers + 1 } else { processes };
            for place in children(plan) {
                self.visit(*place, below);
            }
        }
    }
}

/// Processes that a node adds to the one that executes it, here and on replicas.
///
/// # Safety
/// `plan` is a valid plan.
pub unsafe fn workers(plan: *mut pg_sys::Plan) -> u32 {
    // SAFETY: as the caller says.
    unsafe { local_workers(plan, false) + links(plan) }
}

/// # Safety
/// `plan` is a valid plan.
unsafe fn local_workers(plan: *mut pg_sys::Plan, alone: bool) -> u32 {
    // SAFETY: the tag tells the node's type.
    unsafe {
        match (*plan).type_ {
            pg_sys::NodeTag::T_Gather => (*plan.cast::<pg_sys::Gather>()).num_workers.max(0) as u32,
            pg_sys::NodeTag::T_GatherMerge => {
                (*plan.cast::<pg_sys::GatherMerge>()).num_workers.max(0) as u32
            }
            _ => parallel_replicas(plan)
                .filter(|private| private.local_plan || alone)
                .map_or(0, |private| private.local_workers.max(0) as u32),
        }
    }
}

/// # Safety
/// `plan` is a valid plan.
unsafe fn links(plan: *mut pg_sys::Plan) -> u32 {
    // SAFETY: as the caller says.
    unsafe {
        parallel_replicas(plan).map_or(0, |private| private.links_per_replica * private.planned)
    }
}

/// What the plan says if it is a ParallelReplicas.
///
/// # Safety
/// `plan` is a valid plan.
unsafe fn parallel_replicas(plan: *mut pg_sys::Plan) -> Option<ParallelReplicasPrivate> {
    // SAFETY: the tag tells the node's type; every CustomScan has methods, and those a name.
    unsafe {
        if (*plan).type_ != pg_sys::NodeTag::T_CustomScan {
            return None;
        }
        let scan = plan.cast::<pg_sys::CustomScan>();
        if CStr::from_ptr((*(*scan).methods).CustomName) != PARALLEL_REPLICAS_NAME {
            return None;
        }
        from_list((*scan).custom_private)
    }
}

/// Bytes that a node may hold in memory: what it is estimated to need, at most what it may have.
///
/// # Safety
/// `plan` is a valid plan.
unsafe fn memory(plan: *mut pg_sys::Plan) -> f64 {
    use pg_sys::NodeTag;
    // SAFETY: the tag tells the node's type; a Hash has a child.
    unsafe {
        let work_mem = f64::from(pg_sys::work_mem) * 1024.0;
        let hash_mem = pg_sys::get_hash_memory_limit() as f64;
        let width = f64::from((*plan).plan_width.max(1));
        let result = (*plan).plan_rows * width;
        match (*plan).type_ {
            NodeTag::T_Sort
            | NodeTag::T_IncrementalSort
            | NodeTag::T_Material
            | NodeTag::T_WindowAgg
            | NodeTag::T_CteScan
            | NodeTag::T_FunctionScan
            | NodeTag::T_RecursiveUnion => result.min(work_mem),
            NodeTag::T_Hash | NodeTag::T_Memoize => result.min(hash_mem),
            NodeTag::T_Agg => {
                let strategy = (*plan.cast::<pg_sys::Agg>()).aggstrategy;
                if strategy == pg_sys::AggStrategy::AGG_HASHED
                    || strategy == pg_sys::AggStrategy::AGG_MIXED
                {
                    result.min(hash_mem)
                } else {
                    0.0
                }
            }
            NodeTag::T_SetOp
                if (*plan.cast::<pg_sys::SetOp>()).strategy
                    == pg_sys::SetOpStrategy::SETOP_HASHED =>
            {
                result.min(hash_mem)
            }
            _ => 0.0,
        }
    }
}
