//! Puts ParallelReplicas where PostgreSQL put a Gather or Gather Merge over a shippable fragment.

use super::extensions::Extensions;
use super::private::{
    GRANULE_SCAN_NAME, GranuleScanPrivate, MergeKey, PARALLEL_REPLICAS_NAME,
    ParallelReplicasPrivate, Refused, from_list, is_granule_scan, scan_methods, to_list,
};
use super::relations;
use super::shippable::{self, Findings, Side};
use super::state::{Planning, replicas_for};
use crate::pg::plan::{cells, children, items, members};
use crate::pg::stack;
use crate::settings;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;

/// What every ParallelReplicas of a statement has in common.
pub struct Replacement {
    pub links_per_replica: u32,
    pub local_plan: bool,
    pub strict: bool,
    pub local_workers_limit: i32,
    pub available: u32,
    pub cluster: String,
    /// Replicas that can be counted on, as far as the limits admit them.
    pub replicas_used: usize,
    /// The limits alone.
    pub replicas_most: usize,
}

/// Replaces what can be replaced, everywhere in the statement, and returns how many nodes it were.
/// A Gather that has to stay gets the worker count back that it would have had without us.
///
/// # Safety
/// `statement` is a finished plan that nobody else refers to yet.
pub unsafe fn gathers(
    statement: *mut pg_sys::PlannedStmt,
    replacement: &Replacement,
    planning: &mut Planning,
) -> usize {
    let mut replaced = 0;
    // SAFETY: as the caller says.
    unsafe {
        let mut places = vec![(&raw mut (*statement).planTree, false)];
        places.extend(cells::<pg_sys::Plan>((*statement).subplans).map(|place| (place, false)));
        while let Some((place, limited)) = places.pop() {
            let plan = *place;
            if plan.is_null() {
                continue;
            }
            let tag = (*plan).type_;
            if tag == pg_sys::NodeTag::T_Gather || tag == pg_sys::NodeTag::T_GatherMerge {
                match replace_one(place, statement, replacement, limited) {
                    Ok(()) => {
                        replaced += 1;
                        continue;
                    }
                    Err(why) => {
                        planning.refuse(why);
                        restore_workers(plan, replacement.local_workers_limit);
                    }
                }
            }
            let limits = tag == pg_sys::NodeTag::T_Limit
                || limited
                    && matches!(
                        tag,
                        pg_sys::NodeTag::T_Result | pg_sys::NodeTag::T_ProjectSet
                    );
            places.extend(children(plan).into_iter().map(|place| (place, limits)));
        }
    }
    replaced
}

/// # Safety
/// `place` holds a Gather or Gather Merge of `statement`.
unsafe fn replace_one(
    place: *mut *mut pg_sys::Plan,
    statement: *mut pg_sys::PlannedStmt,
    replacement: &Replacement,
    limited: bool,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        let plan = *place;
        let mut merge = Vec::new();
        let (init_params, rescan_param) = if (*plan).type_ == pg_sys::NodeTag::T_Gather {
            let gather = plan.cast::<pg_sys::Gather>();
            if (*gather).single_copy {
                return Err(Refused::new(Reason::PlanNode, "single-copy Gather"));
            }
            ((*gather).initParam, (*gather).rescan_param)
        } else {
            let gather = plan.cast::<pg_sys::GatherMerge>();
            for index in 0..(*gather).numCols as usize {
                merge.push(MergeKey {
                    column: *(*gather).sortColIdx.add(index),
                    operator: (*(*gather).sortOperators.add(index)).to_u32(),
                    collation: (*(*gather).collations.add(index)).to_u32(),
                    nulls_first: *(*gather).nullsFirst.add(index),
                });
            }
            ((*gather).initParam, (*gather).rescan_param)
        };
        let init_params = members(init_params);
        let fragment = (*plan).lefttree;
        divide_other_scans(fragment, (*statement).rtable, rescan_param);
        let findings = shippable::fragment(
            Side::Coordinator,
            fragment,
            (*statement).rtable,
            &init_params,
            rescan_param,
            Extensions::default(),
        )?;
        if replicas_for(findings.rows, replacement.replicas_used) == 0 {
            return Err(Refused::new(Reason::NoReplicaAllowed, ""));
        }
        let mut private = private(
            replacement,
            &findings,
            fragment,
            merge,
            init_params,
            rescan_param,
        );
        visit_whole_appends(fragment);
        private.ramp = limited && private.streaming;
        *place = custom_scan(plan, &private);
        (*statement).parallelModeNeeded = true;
    }
    Ok(())
}

/// An Append of granule scans may have PostgreSQL's own scans beside them, of small or empty tables
/// for which costs make no difference. They become granule scans, so that the fragment is one that any
/// number of processes can share.
///
/// # Safety
/// `plan` is the leading path of a fragment of a statement with range table `rtable`.
unsafe fn divide_other_scans(
    plan: *mut pg_sys::Plan,
    rtable: *mut pg_sys::List,
    rescan_param: i32,
) {
    // SAFETY: as the caller says; tags tell types.
    unsafe {
        if plan.is_null() || stack::is_deep() {
            return;
        }
        if (*plan).type_ == pg_sys::NodeTag::T_SubqueryScan {
            let scan = plan.cast::<pg_sys::SubqueryScan>();
            return divide_other_scans((*scan).subplan, rtable, rescan_param);
        }
        if (*plan).type_ != pg_sys::NodeTag::T_Append {
            return divide_other_scans((*plan).lefttree, rtable, rescan_param);
        }
        if granule_scan_workers(plan).is_none() {
            return;
        }
        let append = plan.cast::<pg_sys::Append>();
        let whole = (*append).first_partial_plan.max(0) as usize;
        let mut divided = true;
        for (index, place) in cells::<pg_sys::Plan>((*append).appendplans).enumerate() {
            if can_be_divided(*place, rtable) {
                *place = granule_scan((*place).cast(), rescan_param);
            } else if index < whole {
                divided = false;
            } else {
                divide_other_scans(*place, rtable, rescan_param);
            }
        }
        if divided {
            (*append).first_partial_plan = 0;
        }
    }
}

/// # Safety
/// `plan` is a valid plan of a statement with range table `rtable`.
unsafe fn can_be_divided(plan: *mut pg_sys::Plan, rtable: *mut pg_sys::List) -> bool {
    // SAFETY: as the caller says; the tag tells the type.
    unsafe {
        if (*plan).type_ != pg_sys::NodeTag::T_SeqScan {
            return false;
        }
        let relation = (*plan.cast::<pg_sys::Scan>()).scanrelid as usize;
        items::<pg_sys::RangeTblEntry>(rtable)
            .nth(relation - 1)
            .is_some_and(|entry| relations::relation_reason((*entry).relid).is_none())
    }
}

/// A GranuleScan in the place of a sequential scan: same target list, same conditions, same costs.
///
/// # Safety
/// `scan` is a SeqScan, whose parts are taken over.
unsafe fn granule_scan(scan: *mut pg_sys::Scan, rescan_param: i32) -> *mut pg_sys::Plan {
    // SAFETY: as the caller says; Plan is the first field of every plan node.
    unsafe {
        let custom =
            pgrx::PgBox::<pg_sys::CustomScan>::alloc_node(pg_sys::NodeTag::T_CustomScan).into_pg();
        (*custom).scan = std::ptr::read(scan);
        let plan = &raw mut (*custom).scan.plan;
        (*plan).type_ = pg_sys::NodeTag::T_CustomScan;
        (*plan).parallel_aware = true;
        if rescan_param >= 0 {
            // Rescans reach a parallel-aware node through this parameter (subselect.c).
            for set in [&raw mut (*plan).extParam, &raw mut (*plan).allParam] {
                *set = pg_sys::bms_add_member(pg_sys::bms_copy(*set), rescan_param);
            }
        }
        (*custom).custom_relids = pg_sys::bms_make_singleton((*scan).scanrelid as i32);
        (*custom).custom_private = to_list(&GranuleScanPrivate {
            local_workers: 0,
            granule_blocks: settings::granule_blocks(),
            rows: (*plan).plan_rows,
        });
        (*custom).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        (*custom).methods = scan_methods(GRANULE_SCAN_NAME);
        plan.cast()
    }
}

/// Makes the Appends above granule scans plain ones: the scans divide the work, and every process
/// visits every child. A Parallel Append would let local workers mark a child as finished for all,
/// while a lost replica's granules of it may still come back.
///
/// # Safety
/// `plan` is a fragment that was found shippable.
unsafe fn visit_whole_appends(plan: *mut pg_sys::Plan) {
    // SAFETY: as the caller says.
    unsafe {
        if (*plan).type_ == pg_sys::NodeTag::T_Append {
            (*plan).parallel_aware = false;
        }
        for place in children(plan) {
            visit_whole_appends(*place);
        }
    }
}

/// # Safety
/// `fragment` is a valid plan.
unsafe fn private(
    replacement: &Replacement,
    findings: &Findings,
    fragment: *mut pg_sys::Plan,
    merge: Vec<MergeKey>,
    init_params: Vec<i32>,
    rescan_param: i32,
) -> ParallelReplicasPrivate {
    ParallelReplicasPrivate {
        local_workers: findings.local_workers,
        links_per_replica: replacement.links_per_replica,
        cluster: replacement.cluster.clone(),
        planned: replicas_for(findings.rows, replacement.replicas_used) as u32,
        most: replicas_for(findings.rows, replacement.replicas_most) as u32,
        replicas: Vec::new(),
        available: replacement.available,
        local_plan: replacement.local_plan,
        whole: false,
        local_weight: 0,
        strict: replacement.strict,
        ramp: false,
        // SAFETY: as the caller says.
        streaming: merge.is_empty() && unsafe { shippable::is_streaming(fragment) },
        merge,
        init_params,
        rescan_param,
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

/// A ParallelReplicas in the place of `gather`: same target list, same costs, same child. The
/// target list goes on referring to the child's output, as a Gather's does.
///
/// # Safety
/// `gather` is a Gather or Gather Merge, whose parts are taken over.
pub unsafe fn custom_scan(
    gather: *mut pg_sys::Plan,
    private: &ParallelReplicasPrivate,
) -> *mut pg_sys::Plan {
    // SAFETY: as the caller says; Plan is the first field of every plan node.
    unsafe {
        let scan =
            pgrx::PgBox::<pg_sys::CustomScan>::alloc_node(pg_sys::NodeTag::T_CustomScan).into_pg();
        (*scan).scan.plan = std::ptr::read(gather);
        (*scan).scan.plan.type_ = pg_sys::NodeTag::T_CustomScan;
        (*scan).custom_private = to_list(private);
        (*scan).methods = scan_methods(PARALLEL_REPLICAS_NAME);
        (&raw mut (*scan).scan.plan).cast()
    }
}

/// # Safety
/// `plan` is a Gather or Gather Merge.
unsafe fn restore_workers(plan: *mut pg_sys::Plan, limit: i32) {
    // SAFETY: as the caller says.
    unsafe {
        let wanted = granule_scan_workers((*plan).lefttree)
            .unwrap_or(limit)
            .min(limit);
        if (*plan).type_ == pg_sys::NodeTag::T_Gather {
            let gather = plan.cast::<pg_sys::Gather>();
            (*gather).num_workers = (*gather).num_workers.min(wanted);
        } else {
            let gather = plan.cast::<pg_sys::GatherMerge>();
            (*gather).num_workers = (*gather).num_workers.min(wanted);
        }
    }
}

/// Local workers that the granule scans below want, None if there is none.
///
/// # Safety
/// `plan` is a valid plan.
unsafe fn granule_scan_workers(plan: *mut pg_sys::Plan) -> Option<i32> {
    // SAFETY: as the caller says.
    unsafe {
        if stack::is_deep() {
            return None;
        }
        let scan = plan.cast::<pg_sys::CustomScan>();
        if (*plan).type_ == pg_sys::NodeTag::T_CustomScan && is_granule_scan(scan) {
            return from_list::<GranuleScanPrivate>((*scan).custom_private)
                .map(|private| private.local_workers);
        }
        children(plan)
            .into_iter()
            .filter_map(|place| granule_scan_workers(*place))
            .max()
    }
}
