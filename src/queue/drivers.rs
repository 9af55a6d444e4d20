//! Fewer processes for a query that is admitted while many are at work: the driver marks.
//!
//! The plan is copied and its numbers of workers and links lowered, so that a cached plan stays what
//! it is, and EXPLAIN ANALYZE shows what was done.

use super::need::workers;
use super::{settings, shared};
use crate::pg::plan::{children, items};
use crate::plan::private::{ParallelReplicasPrivate, from_list, to_list};
use parallel_replicas_core::queue::State;
use parallel_replicas_core::queue::drivers::processes_per_part;
use pgrx::pg_sys;

/// Counts the query's processes, and lowers them by the marks. Answers how many each Gather would have
/// had and has, this backend included, if that is less.
///
/// # Safety
/// The query is about to start, and its slots are held.
pub unsafe fn adjust(query: *mut pg_sys::QueryDesc) -> Option<(u32, u32)> {
    let marks = settings::marks()?;
    // SAFETY: as the caller says.
    unsafe {
        let parts = parts((*query).plannedstmt);
        let wanted = parts
            .iter()
            .map(|plan| workers(*plan) + 1)
            .max()
            .unwrap_or(1);
        let count = parts.len().max(1) as i64;
        let own = shared::own_index();
        let granted = shared::locked(|view| {
            let current: i64 = view
                .queue
                .entries
                .iter()
                .zip(view.details.iter())
                .enumerate()
                .filter(|(index, (entry, _))| *index != own && entry.state == State::Running)
                .map(|(_, (_, details))| i64::from(details.drivers))
                .sum();
            let granted = processes_per_part(marks, current, count, count, i64::from(wanted), true);
            view.details[own].drivers = (granted * count).clamp(0, i64::from(u32::MAX)) as u32;
            granted as u32
        });
        if granted >= wanted {
            return None;
        }
        let copy = pg_sys::copyObjectImpl((*query).plannedstmt.cast()).cast();
        (*query).plannedstmt = copy;
        for plan in self::parts(copy) {
            limit(plan, granted - 1);
        }
        Some((wanted, granted))
    }
}

/// The nodes that have processes of their own.
///
/// # Safety
/// `statement` is a valid planned statement.
unsafe fn parts(statement: *const pg_sys::PlannedStmt) -> Vec<*mut pg_sys::Plan> {
    /// # Safety
    /// `plan` is null or a valid plan.
    unsafe fn visit(plan: *mut pg_sys::Plan, parts: &mut Vec<*mut pg_sys::Plan>) {
        if plan.is_null() {
            return;
        }
        // SAFETY: as the caller says.
        unsafe {
            if workers(plan) > 0 {
                parts.push(plan);
            }
            for place in children(plan) {
                visit(*place, parts);
            }
        }
    }
    let mut parts = Vec::new();
    // SAFETY: as the caller says.
    unsafe {
        visit((*statement).planTree, &mut parts);
        for plan in items::<pg_sys::Plan>((*statement).subplans) {
            visit(plan, &mut parts);
        }
    }
    parts
}

/// Lowers a node's workers and links to `most` together; at least one link stays.
///
/// # Safety
/// `plan` is one of [`parts`], and nobody else's.
unsafe fn limit(plan: *mut pg_sys::Plan, most: u32) {
    // SAFETY: the tag tells the node's type; a node with workers that is no Gather is ours.
    unsafe {
        match (*plan).type_ {
            pg_sys::NodeTag::T_Gather => {
                let gather = plan.cast::<pg_sys::Gather>();
                (*gather).num_workers = (*gather).num_workers.min(most as i32);
            }
            pg_sys::NodeTag::T_GatherMerge => {
                let gather = plan.cast::<pg_sys::GatherMerge>();
                (*gather).num_workers = (*gather).num_workers.min(most as i32);
            }
            _ => {
                let scan = plan.cast::<pg_sys::CustomScan>();
                if let Some(mut private) =
                    from_list::<ParallelReplicasPrivate>((*scan).custom_private)
                {
                    share(&mut private, most);
                    (*scan).custom_private = to_list(&private);
                }
            }
        }
    }
}

/// Local workers and links keep their proportion.
fn share(private: &mut ParallelReplicasPrivate, most: u32) {
    let local = if private.local_plan {
        private.local_workers.max(0) as u32
    } else {
        0
    };
    let links = private.links_per_replica * private.planned;
    if local + links <= most || links == 0 {
        return;
    }
    let links = (links * most / (local + links)).max(1);
    private.local_workers = most.saturating_sub(links).min(local) as i32;
    private.planned = private.planned.min(links);
    // It may not use more of them at the execution instead.
    private.most = private.planned;
    private.links_per_replica = links / private.planned;
}
