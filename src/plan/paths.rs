//! The GranuleScan path: a partial path for a table whose granules several servers may scan.

use super::private::{GRANULE_SCAN_NAME, GranuleScanPrivate, Refused, scan_methods, to_list};
use super::relations;
use super::shippable::{self, Findings};
use super::state::{self, Planning};
use crate::pg::plan::{Walk, every_node, items};
use crate::settings;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::set_rel_pathlist_hook_type = None;

static PATH_METHODS: PathMethods = PathMethods(pg_sys::CustomPathMethods {
    CustomName: GRANULE_SCAN_NAME.as_ptr(),
    PlanCustomPath: Some(plan_custom_path),
    ReparameterizeCustomPathByChild: None,
});

struct PathMethods(pg_sys::CustomPathMethods);

// SAFETY: read only, pointers to static data.
unsafe impl Sync for PathMethods {}

/// Installs the hook. Once, from the library's initialisation.
pub fn init() {
    // SAFETY: single-threaded start of the server.
    unsafe {
        PREVIOUS = pg_sys::set_rel_pathlist_hook;
        pg_sys::set_rel_pathlist_hook = Some(set_rel_pathlist);
    }
}

/// Unguarded where no replicas are asked for.
#[allow(ffi_unwind_calls)]
unsafe extern "C-unwind" fn set_rel_pathlist(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rti: pg_sys::Index,
    rte: *mut pg_sys::RangeTblEntry,
) {
    // SAFETY: the planner's own arguments; nothing with a destructor lives in this frame.
    unsafe {
        if let Some(previous) = PREVIOUS {
            previous(root, rel, rti, rte);
        }
        if state::is_active() && (*rte).rtekind == pg_sys::RTEKind::RTE_RELATION && !(*rte).inh {
            add_path(root, rel, rte);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn add_path(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rte: *mut pg_sys::RangeTblEntry,
) {
    // SAFETY: the planner's own arguments.
    unsafe {
        match consider(root, rel, rte) {
            Verdict::NotOurs => {}
            Verdict::Refused(why) => {
                state::with_current(|planning| {
                    planning.eligible_scans += 1;
                    planning.refuse(why);
                });
            }
            Verdict::Offer => {
                let terms = state::with_current(|planning| {
                    // An empty table may stand beside others in an Append; alone it is no reason
                    // to expect replicas.
                    planning.eligible_scans += usize::from((*rel).pages > 0);
                    Terms::new(planning, (*rel).tuples)
                });
                if let Some(mut terms) = terms {
                    offer(root, rel, &mut terms);
                    state::with_current(|planning| planning.parent_pages = terms.parent_pages);
                }
            }
        }
    }
}

/// What a path is made by. A copy, because the planner may serve an interrupt meanwhile, and a session
/// that ends there clears what is known about its planning.
struct Terms {
    force: bool,
    local_share: bool,
    local_workers_limit: i32,
    replicas: usize,
    links_per_replica: usize,
    parent_pages: Option<((usize, i32), f64)>,
}

impl Terms {
    fn new(planning: &Planning, rows: f64) -> Self {
        Terms {
            force: planning.start.force,
            local_share: planning.start.local_share,
            local_workers_limit: planning.start.local_workers_limit,
            replicas: planning.replicas_for(rows),
            links_per_replica: planning.start.links_per_replica,
            parent_pages: planning.parent_pages,
        }
    }
}

enum Verdict {
    /// A catalog, or nothing to scan.
    NotOurs,
    Refused(Refused),
    Offer,
}

/// # Safety
/// The planner's arguments, for a plain relation.
unsafe fn consider(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rte: *mut pg_sys::RangeTblEntry,
) -> Verdict {
    // SAFETY: as the caller says.
    unsafe {
        if (*rte).relid.to_u32() < shippable::FIRST_NORMAL_OBJECT_ID || pg_sys::is_dummy_rel(rel) {
            return Verdict::NotOurs;
        }
        let refuse =
            |reason| Verdict::Refused(Refused::new(reason, relations::relation_name((*rte).relid)));
        if let Some(reason) = relations::relation_reason((*rte).relid) {
            return refuse(reason);
        }
        if !(*rte).tablesample.is_null() {
            return refuse(Reason::TableSample);
        }
        if !(*rel).lateral_relids.is_null() || !(*root).plan_params.is_null() {
            return refuse(Reason::CorrelatedParameter);
        }
        if !(*(*root).glob).parallelModeOK || !(*rel).consider_parallel {
            let clauses = pg_sys::extract_actual_clauses((*rel).baserestrictinfo, false);
            let correlated = uses_outer_value(root, clauses.cast())
                || uses_outer_value(root, (*(*rel).reltarget).exprs.cast());
            return refuse(if correlated {
                Reason::CorrelatedParameter
            } else {
                Reason::NotParallelSafe
            });
        }
        let mut findings = Findings::default();
        let target = (*(*rel).reltarget).exprs;
        let clauses = pg_sys::extract_actual_clauses((*rel).baserestrictinfo, false);
        for expression in [clauses.cast(), target.cast()] {
            if let Err(why) = shippable::expression(expression, &mut findings) {
                return Verdict::Refused(why);
            }
        }
        let force = state::with_current(|planning| planning.start.force).unwrap_or(false);
        if !force && local_workers(rel, i32::MAX) == 0 {
            return refuse(Reason::TooSmall);
        }
        Verdict::Offer
    }
}

/// Does an expression use a value of the query around? That is an executor's parameter which no
/// InitPlan gives.
///
/// # Safety
/// The planner's state, and an expression of the query that is being planned.
unsafe fn uses_outer_value(root: *mut pg_sys::PlannerInfo, expression: *mut pg_sys::Node) -> bool {
    // SAFETY: as the caller says; the tag is checked before a node is read as a Param.
    unsafe {
        !every_node(expression, &mut |node| {
            if (*node).type_ != pg_sys::NodeTag::T_Param {
                return Walk::Down;
            }
            let param = node.cast::<pg_sys::Param>();
            let from_outside = (*param).paramkind == pg_sys::ParamKind::PARAM_EXEC
                && !is_given_by_init_plan(root, (*param).paramid);
            if from_outside { Walk::Stop } else { Walk::Down }
        })
    }
}

/// # Safety
/// The planner's state.
unsafe fn is_given_by_init_plan(mut root: *mut pg_sys::PlannerInfo, param: i32) -> bool {
    // SAFETY: as the caller says; the queries around form a chain.
    unsafe {
        while !root.is_null() {
            if items::<pg_sys::SubPlan>((*root).init_plans)
                .any(|plan| pg_sys::list_member_int((*plan).setParam, param))
            {
                return true;
            }
            root = (*root).parent_root;
        }
        false
    }
}

/// Workers that PostgreSQL would use for a parallel scan of this table, by its size.
///
/// # Safety
/// `rel` is a base relation with its size estimated.
unsafe fn local_workers(rel: *mut pg_sys::RelOptInfo, limit: i32) -> i32 {
    // SAFETY: as the caller says.
    unsafe { pg_sys::compute_parallel_worker(rel, f64::from((*rel).pages), -1.0, limit) }
}

/// # Safety
/// As for [`consider`], which said that the table is fit.
unsafe fn offer(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, terms: &mut Terms) {
    test_point!("plan-offer");
    // SAFETY: as the caller says; the path is allocated by the planner's makeNode.
    unsafe {
        let natural = local_workers(rel, terms.local_workers_limit);
        let local = if terms.local_share { natural } else { 0 };
        let path =
            pgrx::PgBox::<pg_sys::CustomPath>::alloc_node(pg_sys::NodeTag::T_CustomPath).into_pg();
        let base = &raw mut (*path).path;
        (*base).pathtype = pg_sys::NodeTag::T_CustomScan;
        (*base).parent = rel;
        (*base).pathtarget = (*rel).reltarget;
        (*base).parallel_aware = true;
        (*base).parallel_safe = true;
        let links = terms.replicas * terms.links_per_replica;
        (*base).parallel_workers = (local + links as i32).max(1);
        let share = share_of_parent(root, rel, terms);
        cost(rel, base, local, share, terms);
        (*path).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        (*path).methods = &PATH_METHODS.0;
        (*path).custom_private = to_list(&GranuleScanPrivate {
            local_workers: natural,
            granule_blocks: settings::granule_blocks(),
            rows: (*rel).tuples,
        });
        if terms.force {
            keep_whole_scans_only(root, rel);
        }
        pg_sys::add_partial_path(rel, base);
    }
}

/// Which part of its parent's pages a partition or other child of an Append has; 1 for a table by
/// itself.
///
/// # Safety
/// As for [`offer`].
unsafe fn share_of_parent(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    terms: &mut Terms,
) -> f64 {
    // SAFETY: as the caller says; the sizes of all relations are estimated before paths are made.
    unsafe {
        let parent = (*rel).top_parent_relids;
        if parent.is_null() {
            return 1.0;
        }
        let key = (root as usize, pg_sys::bms_next_member(parent, -1));
        if terms.parent_pages.is_none_or(|(known, _)| known != key) {
            let pages: f64 = (1..(*root).simple_rel_array_size as usize)
                .map(|index| *(*root).simple_rel_array.add(index))
                .filter(|child| {
                    !child.is_null() && pg_sys::bms_equal((**child).top_parent_relids, parent)
                })
                .map(|child| f64::from((*child).pages))
                .sum();
            terms.parent_pages = Some((key, pages));
        }
        let pages = terms.parent_pages.map_or(0.0, |(_, pages)| pages);
        f64::from((*rel).pages) / pages.max(1.0)
    }
}

/// Costs as costsize.c gives a parallel sequential scan, with two differences: every server reads
/// its own share from its own disk, and starting costs more, once for all `share`s.
///
/// # Safety
/// As for [`offer`].
unsafe fn cost(
    rel: *mut pg_sys::RelOptInfo,
    path: *mut pg_sys::Path,
    local: i32,
    share: f64,
    terms: &Terms,
) {
    // SAFETY: as the caller says.
    unsafe {
        let links = (terms.replicas * terms.links_per_replica) as f64;
        let local_processes = if terms.local_share {
            f64::from(local.max(1))
        } else {
            0.0
        };
        let processes = (local_processes + links).max(1.0);
        let servers = (terms.replicas as f64 + f64::from(u8::from(terms.local_share))).max(1.0);
        let mut qual = (*rel).baserestrictcost;
        let target = (*(*path).pathtarget).cost;
        let mut page_cost = 0.0;
        pg_sys::get_tablespace_page_costs(
            (*rel).reltablespace,
            std::ptr::null_mut(),
            &mut page_cost,
        );
        qual.startup += target.startup;
        let per_tuple = pg_sys::cpu_tuple_cost + qual.per_tuple;
        let run = page_cost * f64::from((*rel).pages) / servers
            + per_tuple * (*rel).tuples / processes
            + target.per_tuple * (*rel).rows / processes;
        let mut startup = qual.startup + settings::setup_cost() * share;
        let mut total = startup + run;
        if terms.force {
            // Cheaper than anything else, but still in proportion, for joins.
            startup = 0.0;
            total = run * 1e-6;
        }
        (*path).rows = pg_sys::clamp_row_est((*rel).rows / processes);
        (*path).startup_cost = startup;
        (*path).total_cost = total;
    }
}

/// Under force, leaves of the ways to read the whole table only the plain one, which joins need
/// for inner sides; index scans that a join parameterises stay.
///
/// # Safety
/// `rel` is a base relation whose paths are being made.
unsafe fn keep_whole_scans_only(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) {
    // SAFETY: as the caller says. A new list, because the planner may hold the old one.
    unsafe {
        let mut kept = std::ptr::null_mut();
        let mut plain = false;
        for path in items::<pg_sys::Path>((*rel).pathlist) {
            let is_plain = (*path).pathtype == pg_sys::NodeTag::T_SeqScan;
            plain |= is_plain;
            if is_plain || !(*path).param_info.is_null() {
                kept = pg_sys::lappend(kept, path.cast());
            }
        }
        if !plain {
            let scan = pg_sys::create_seqscan_path(root, rel, std::ptr::null_mut(), 0);
            kept = pg_sys::lappend(kept, scan.cast());
        }
        (*rel).pathlist = kept;
        (*rel).partial_pathlist = std::ptr::null_mut();
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn plan_custom_path(
    _root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    path: *mut pg_sys::CustomPath,
    tlist: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    _custom_plans: *mut pg_sys::List,
) -> *mut pg_sys::Plan {
    // SAFETY: the planner's own arguments.
    unsafe {
        let scan =
            pgrx::PgBox::<pg_sys::CustomScan>::alloc_node(pg_sys::NodeTag::T_CustomScan).into_pg();
        (*scan).scan.plan.targetlist = tlist;
        (*scan).scan.plan.qual = pg_sys::extract_actual_clauses(clauses, false);
        (*scan).scan.scanrelid = (*rel).relid;
        (*scan).flags = (*path).flags;
        (*scan).custom_private = (*path).custom_private;
        (*scan).methods = scan_methods(GRANULE_SCAN_NAME);
        (&raw mut (*scan).scan.plan).cast()
    }
}
