//! May a piece of plan run on a replica? An allow-list of nodes and expressions.
//!
//! Used twice: by the planner on the coordinator, and by `serve` on a plan that arrived, which
//! must stand the same test again. What is not named here is refused, so that a new PostgreSQL
//! node or expression is executed locally until somebody has thought about it.

use super::calls;
use super::extensions::Extensions;
use super::foldable;
use super::operators;
use super::private::{GranuleScanPrivate, Refused, from_list, is_granule_scan};
use super::relations;
use super::types::{self, Use, is_anonymous};
use crate::pg::ffi;
use crate::pg::plan::{
    Walk, children, every_node, expressions, items, members, node_name, prune_info, prune_params,
    prunes_by_params_alone,
};
use crate::pg::stack;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// Object ids below this belong to PostgreSQL itself (transam.h FirstNormalObjectId).
pub const FIRST_NORMAL_OBJECT_ID: u32 = 16_384;

/// pg_collation.dat DEFAULT_COLLATION_OID.
const DEFAULT_COLLATION: u32 = 100;

/// sysattr.h MinCommandIdAttributeNumber and MaxCommandIdAttributeNumber.
const CMIN: i16 = -3;
const CMAX: i16 = -5;

/// Most bytes of constants that are shipped. A plan's text has up to five for each, and some 150 for a constant
/// without any.
const CONSTANT_BYTES_MAX: usize = 8 << 20;
const CONSTANT_BYTES_LEAST: usize = 30;

/// Whose check it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// It chooses partitions, when the plan is executed.
    Coordinator,
    #[default]
    Replica,
}

/// What shipping a fragment entails.
#[derive(Debug, Default)]
pub struct Findings {
    /// Range table index and object id of each relation that is read.
    pub relations: BTreeMap<u32, u32>,
    /// Collations that comparisons and pattern matches use.
    pub collations: BTreeSet<u32>,
    /// Operators and types that were found to be known everywhere.
    pub operators: BTreeSet<u32>,
    pub types: BTreeSet<(u32, Use)>,
    /// Size of the constants.
    pub constant_bytes: usize,
    /// What is used of extensions.
    pub extensions: Extensions,
    /// Some function reads the session's time zone.
    pub time_zone: bool,
    /// Some column-free stable expression has to become a constant first.
    pub fold: bool,
    /// The plan is a whole query, which one process executes. Then its rows may depend on who executes
    /// it (which ones a LIMIT lets pass, in which order a window sees equals), and subplans are shipped.
    pub whole: bool,
    /// Parameters that are shipped with their values.
    pub init_params: Vec<i32>,
    pub side: Side,
    /// Granule scans found.
    pub scans: usize,
    /// Estimated rows of the tables that are scanned in granules.
    pub rows: f64,
    /// Most local workers that any of them wants.
    pub local_workers: i32,
}

/// Checks the fragment below a Gather on one side. `init_params` are InitPlan outputs that will be shipped,
/// `extensions` says which it may use.
///
/// # Safety
/// `plan` is a finished plan tree of a statement with range table `rtable`.
pub unsafe fn fragment(
    side: Side,
    plan: *mut pg_sys::Plan,
    rtable: *mut pg_sys::List,
    init_params: &[i32],
    rescan_param: i32,
    extensions: Extensions,
) -> Result<Findings, Refused> {
    let mut findings = Findings {
        side,
        extensions,
        init_params: init_params.to_vec(),
        ..Findings::default()
    };
    // Some types compare texts inside by the default collation, whatever the expression says.
    findings.collations.insert(DEFAULT_COLLATION);
    // SAFETY: as the caller says.
    unsafe {
        let outside = members((*plan).extParam);
        if outside
            .iter()
            .any(|param| *param != rescan_param && !init_params.contains(param))
        {
            return Err(Refused::new(Reason::CorrelatedParameter, ""));
        }
        output(plan)?;
        node(plan, rtable, true, &mut findings)?;
    }
    if findings.scans == 0 {
        return Err(Refused::new(Reason::PlannerChoice, ""));
    }
    Ok(findings)
}

/// Checks a whole query: its plan, and the plans of its subqueries.
///
/// # Safety
/// `plan`, `subplans` and `rtable` are those of a finished statement.
pub unsafe fn whole(
    side: Side,
    plan: *mut pg_sys::Plan,
    subplans: *mut pg_sys::List,
    rtable: *mut pg_sys::List,
    extensions: Extensions,
) -> Result<Findings, Refused> {
    let mut findings = Findings {
        side,
        whole: true,
        extensions,
        ..Findings::default()
    };
    findings.collations.insert(DEFAULT_COLLATION);
    // SAFETY: as the caller says; a subplan that nothing refers to is null.
    unsafe {
        if !(*plan).extParam.is_null() {
            return Err(Refused::new(Reason::CorrelatedParameter, ""));
        }
        output(plan)?;
        for plan in items::<pg_sys::Plan>(subplans).chain([plan]) {
            if !plan.is_null() {
                node(plan, rtable, false, &mut findings)?;
            }
        }
    }
    Ok(findings)
}

/// No row type is anonymous: it is known to one server only.
///
/// # Safety
/// `plan` is a valid plan.
unsafe fn output(plan: *mut pg_sys::Plan) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        for entry in items::<pg_sys::TargetEntry>((*plan).targetlist) {
            if is_anonymous(pg_sys::exprType((*entry).expr.cast())) {
                return Err(Refused::new(Reason::RecordOutput, ""));
            }
        }
    }
    Ok(())
}

/// `leading`: on the path from the top to the granule scan, where each participant sees a share of
/// the rows; off it, everybody sees all of them.
///
/// # Safety
/// As for [`fragment`].
unsafe fn node(
    plan: *mut pg_sys::Plan,
    rtable: *mut pg_sys::List,
    leading: bool,
    findings: &mut Findings,
) -> Result<(), Refused> {
    use pg_sys::NodeTag;
    // SAFETY: as the caller says; tags tell types.
    unsafe {
        let refuse = || Refused::new(Reason::PlanNode, node_name(plan.cast()));
        if stack::is_deep() {
            return Err(Refused::new(Reason::PlanNode, "too little stack left"));
        }
        if !(*plan).initPlan.is_null() && !findings.whole {
            return Err(Refused::new(Reason::SubPlan, node_name(plan.cast())));
        }
        let tag = (*plan).type_;
        let input = if (*plan).lefttree.is_null() {
            std::ptr::null_mut()
        } else {
            (*(*plan).lefttree).targetlist
        };
        if (*plan).parallel_aware && tag != NodeTag::T_CustomScan && tag != NodeTag::T_Append {
            return Err(refuse());
        }
        match tag {
            NodeTag::T_CustomScan => {
                let scan = plan.cast::<pg_sys::CustomScan>();
                if !leading || !is_granule_scan(scan) {
                    return Err(refuse());
                }
                let Some(private) = from_list::<GranuleScanPrivate>((*scan).custom_private) else {
                    return Err(refuse());
                };
                findings.scans += 1;
                findings.rows += private.rows;
                findings.local_workers = findings.local_workers.max(private.local_workers);
                relation((*scan).scan.scanrelid, rtable, findings)?;
            }
            NodeTag::T_Append => {
                let append = plan.cast::<pg_sys::Append>();
                pruning(plan, findings)?;
                if leading && (*append).first_partial_plan != 0 {
                    return Err(Refused::new(
                        Reason::PlanNode,
                        "Append of whole and partial scans",
                    ));
                }
            }
            NodeTag::T_SeqScan
            | NodeTag::T_IndexScan
            | NodeTag::T_IndexOnlyScan
            | NodeTag::T_BitmapHeapScan
            | NodeTag::T_BitmapIndexScan
            | NodeTag::T_TidScan
            | NodeTag::T_TidRangeScan
                if !leading
                    && (findings.whole
                        || !matches!(tag, NodeTag::T_TidScan | NodeTag::T_TidRangeScan)) =>
            {
                relation((*plan.cast::<pg_sys::Scan>()).scanrelid, rtable, findings)?;
                if let Some(oid) = relations::index_of(plan) {
                    relations::check_index(oid, findings)?;
                }
                if tag == NodeTag::T_IndexScan {
                    operators::check_all(
                        (*plan.cast::<pg_sys::IndexScan>()).indexorderbyops,
                        findings,
                    )?;
                }
            }
            NodeTag::T_SampleScan => return Err(Refused::new(Reason::TableSample, "")),
            NodeTag::T_CteScan | NodeTag::T_WorkTableScan if findings.whole => {}
            NodeTag::T_RecursiveUnion if findings.whole => {
                let union = plan.cast::<pg_sys::RecursiveUnion>();
                collations((*union).dupCollations, (*union).numCols, findings);
                operators::check_columns(
                    (*union).dupOperators,
                    (*union).dupColIdx,
                    (*union).numCols,
                    (*plan).targetlist,
                    findings,
                )?;
            }
            NodeTag::T_SetOp if findings.whole => {
                let operation = plan.cast::<pg_sys::SetOp>();
                collations((*operation).dupCollations, (*operation).numCols, findings);
                operators::check_columns(
                    (*operation).dupOperators,
                    (*operation).dupColIdx,
                    (*operation).numCols,
                    input,
                    findings,
                )?;
            }
            NodeTag::T_Limit if findings.whole => {
                let limit = plan.cast::<pg_sys::Limit>();
                collations((*limit).uniqCollations, (*limit).uniqNumCols, findings);
                operators::check_columns(
                    (*limit).uniqOperators,
                    (*limit).uniqColIdx,
                    (*limit).uniqNumCols,
                    input,
                    findings,
                )?;
            }
            NodeTag::T_WindowAgg if findings.whole => {
                window(plan.cast(), input, findings)?;
            }
            NodeTag::T_BitmapAnd
            | NodeTag::T_BitmapOr
            | NodeTag::T_ValuesScan
            | NodeTag::T_FunctionScan
            | NodeTag::T_Hash
                if !leading => {}
            NodeTag::T_Memoize if !leading => {
                let memoize = plan.cast::<pg_sys::Memoize>();
                for index in 0..(*memoize).numKeys as usize {
                    operators::check(*(*memoize).hashOperators.add(index), findings)?;
                }
            }
            NodeTag::T_Agg => {
                let agg = plan.cast::<pg_sys::Agg>();
                let partial = (*agg).aggsplit & pg_sys::AGGSPLITOP_SKIPFINAL != 0;
                // A full aggregation step on a share of the rows is right only where it just drops
                // duplicates, as core plans DISTINCT; the coordinator drops the rest.
                if leading && !partial && has_aggregates(plan) {
                    return Err(refuse());
                }
                if !(*agg).chain.is_null() && !findings.whole {
                    return Err(Refused::new(Reason::PlanNode, "grouping sets"));
                }
                // The rest of the chain groups, and sorts, the same input by other columns.
                for agg in items::<pg_sys::Agg>((*agg).chain).chain([agg]) {
                    collations((*agg).grpCollations, (*agg).numCols, findings);
                    operators::check_columns(
                        (*agg).grpOperators,
                        (*agg).grpColIdx,
                        (*agg).numCols,
                        input,
                        findings,
                    )?;
                    let below = (*agg).plan.lefttree;
                    if agg != plan.cast() && !below.is_null() {
                        if (*below).type_ != NodeTag::T_Sort {
                            return Err(refuse());
                        }
                        sort(below.cast(), input, findings)?;
                    }
                }
            }
            NodeTag::T_Sort | NodeTag::T_IncrementalSort => sort(plan.cast(), input, findings)?,
            NodeTag::T_Unique => {
                let unique = plan.cast::<pg_sys::Unique>();
                collations((*unique).uniqCollations, (*unique).numCols, findings);
                operators::check_columns(
                    (*unique).uniqOperators,
                    (*unique).uniqColIdx,
                    (*unique).numCols,
                    input,
                    findings,
                )?;
            }
            NodeTag::T_Group => {
                let group = plan.cast::<pg_sys::Group>();
                collations((*group).grpCollations, (*group).numCols, findings);
                operators::check_columns(
                    (*group).grpOperators,
                    (*group).grpColIdx,
                    (*group).numCols,
                    input,
                    findings,
                )?;
            }
            NodeTag::T_Material if !leading => {}
            NodeTag::T_MergeAppend if !leading => {
                let append = plan.cast::<pg_sys::MergeAppend>();
                pruning(plan, findings)?;
                collations((*append).collations, (*append).numCols, findings);
                let own = (*plan).targetlist;
                operators::check_columns(
                    (*append).sortOperators,
                    (*append).sortColIdx,
                    (*append).numCols,
                    own,
                    findings,
                )?;
            }
            NodeTag::T_Result | NodeTag::T_ProjectSet | NodeTag::T_SubqueryScan => {}
            NodeTag::T_NestLoop | NodeTag::T_HashJoin | NodeTag::T_MergeJoin => {
                // Rows of the inner side without a partner can only be told by who sees all others.
                use pg_sys::JoinType::{JOIN_ANTI, JOIN_INNER, JOIN_LEFT, JOIN_SEMI};
                let kind = (*plan.cast::<pg_sys::Join>()).jointype;
                if leading && ![JOIN_INNER, JOIN_LEFT, JOIN_SEMI, JOIN_ANTI].contains(&kind) {
                    return Err(refuse());
                }
                if tag == NodeTag::T_MergeJoin {
                    operators::check_merge(plan.cast(), findings)?;
                }
            }
            _ => return Err(refuse()),
        }
        for expression in expressions(plan) {
            self::expression(expression, findings)?;
        }
        let join = matches!(
            tag,
            NodeTag::T_NestLoop | NodeTag::T_HashJoin | NodeTag::T_MergeJoin
        );
        for place in children(plan) {
            let inner = join && *place == (*plan).righttree;
            node(*place, rtable, leading && !inner, findings)?;
        }
    }
    Ok(())
}

/// The coordinator ships the partitions that it has chosen, which it can where all that they are chosen by
/// is known by then. That is looked at sooner than PostgreSQL would, so nothing may fail in it.
///
/// # Safety
/// `plan` is a valid plan node.
unsafe fn pruning(plan: *const pg_sys::Plan, findings: &Findings) -> Result<(), Refused> {
    let refuse = |about| Err(Refused::new(Reason::PlanNode, about));
    // SAFETY: as the caller says; what a replica is sent is not looked into.
    unsafe {
        let info = prune_info(plan);
        if info.is_null() {
            return Ok(());
        }
        if findings.side == Side::Replica {
            return refuse("partitions not chosen beforehand");
        }
        let known = |param: &i32| findings.init_params.contains(param);
        if !prune_params(info).iter().all(known) {
            return refuse(match findings.whole {
                true => "partitions chosen by a subquery",
                false => "partitions chosen for each row",
            });
        }
        if !prunes_by_params_alone(info) {
            return refuse("partitions chosen by an expression on a subquery");
        }
    }
    Ok(())
}

/// # Safety
/// `sort` is a Sort, or an IncrementalSort, which begins with one; `input` is its input's target list.
unsafe fn sort(
    sort: *mut pg_sys::Sort,
    input: *mut pg_sys::List,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        collations((*sort).collations, (*sort).numCols, findings);
        operators::check_columns(
            (*sort).sortOperators,
            (*sort).sortColIdx,
            (*sort).numCols,
            input,
            findings,
        )
    }
}

/// # Safety
/// `window` is a WindowAgg, `input` its input's target list.
unsafe fn window(
    window: *mut pg_sys::WindowAgg,
    input: *mut pg_sys::List,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        let window = &*window;
        collations(window.partCollations, window.partNumCols, findings);
        collations(window.ordCollations, window.ordNumCols, findings);
        collations(&raw const window.inRangeColl, 1, findings);
        operators::check_columns(
            window.partOperators,
            window.partColIdx,
            window.partNumCols,
            input,
            findings,
        )?;
        operators::check_columns(
            window.ordOperators,
            window.ordColIdx,
            window.ordNumCols,
            input,
            findings,
        )?;
        for in_range in [window.startInRangeFunc, window.endInRangeFunc] {
            if in_range != pg_sys::InvalidOid {
                calls::function(in_range, findings)?;
            }
        }
    }
    Ok(())
}

/// # Safety
/// `plan` is a valid plan node.
unsafe fn has_aggregates(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: as the caller says.
    let expressions = unsafe { expressions(plan) };
    !expressions.into_iter().all(|expression| {
        // SAFETY: an expression of the node.
        unsafe {
            every_node(expression, &mut |node| {
                if (*node).type_ == pg_sys::NodeTag::T_Aggref {
                    Walk::Stop
                } else {
                    Walk::Down
                }
            })
        }
    })
}

/// # Safety
/// `array` is null or has `length` elements.
pub unsafe fn collations(array: *const pg_sys::Oid, length: i32, findings: &mut Findings) {
    for index in 0..length.max(0) as usize {
        // SAFETY: as the caller says.
        let collation = unsafe { *array.add(index) }.to_u32();
        if collation != 0 {
            findings.collations.insert(collation);
        }
    }
}

/// Only permanent heap tables and materialised views: nothing else is the same on a standby.
///
/// # Safety
/// `rtable` is the statement's range table, `index` within it.
unsafe fn relation(
    index: u32,
    rtable: *mut pg_sys::List,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        let Some(entry) = items::<pg_sys::RangeTblEntry>(rtable).nth(index as usize - 1) else {
            return Err(Refused::new(Reason::PlanNode, "range table"));
        };
        let oid = (*entry).relid;
        if let Some(reason) = relations::relation_reason(oid) {
            return Err(Refused::new(reason, relations::relation_name(oid)));
        }
        findings.relations.insert(index, oid.to_u32());
    }
    Ok(())
}

/// Checks one expression or list of them.
///
/// # Safety
/// `root` is null or a valid expression.
pub unsafe fn expression(root: *mut pg_sys::Node, findings: &mut Findings) -> Result<(), Refused> {
    let mut refused = None;
    let mut visit = |node: *mut pg_sys::Node| {
        // SAFETY: the walker only visits valid nodes.
        match unsafe { expression_node(node, findings) } {
            Ok(walk) => walk,
            Err(why) => {
                refused = Some(why);
                Walk::Stop
            }
        }
    };
    // SAFETY: as the caller says.
    let walked = unsafe { every_node(root, &mut visit) };
    match (refused, walked) {
        (Some(why), _) => Err(why),
        (None, true) => Ok(()),
        (None, false) => Err(Refused::new(Reason::Expression, "too little stack left")),
    }
}

/// # Safety
/// `node` is a valid expression node.
unsafe fn expression_node(
    node: *mut pg_sys::Node,
    findings: &mut Findings,
) -> Result<Walk, Refused> {
    use pg_sys::NodeTag;
    // SAFETY: tags tell types.
    unsafe {
        if foldable::is_foldable(node) {
            findings.fold = true;
            return Ok(Walk::Skip);
        }
        match (*node).type_ {
            NodeTag::T_SubPlan | NodeTag::T_AlternativeSubPlan if !findings.whole => {
                return Err(Refused::new(Reason::SubPlan, ""));
            }
            NodeTag::T_SubPlan => operators::check_hashed_subplan(node.cast(), findings)?,
            NodeTag::T_GroupingFunc | NodeTag::T_WindowFunc if findings.whole => {}
            NodeTag::T_SortGroupClause => {
                let clause = node.cast::<pg_sys::SortGroupClause>();
                for operator in [(*clause).eqop, (*clause).sortop] {
                    if operator != pg_sys::InvalidOid {
                        operators::check(operator, findings)?;
                    }
                }
            }
            NodeTag::T_List
            | NodeTag::T_IntList
            | NodeTag::T_OidList
            | NodeTag::T_TargetEntry
            | NodeTag::T_PlaceHolderVar
            | NodeTag::T_RelabelType
            | NodeTag::T_BoolExpr
            | NodeTag::T_CaseExpr
            | NodeTag::T_CaseWhen
            | NodeTag::T_CaseTestExpr
            | NodeTag::T_ArrayExpr
            | NodeTag::T_CoalesceExpr
            | NodeTag::T_NullTest
            | NodeTag::T_BooleanTest
            | NodeTag::T_CollateExpr
            | NodeTag::T_FieldSelect
            | NodeTag::T_ConvertRowtypeExpr
            | NodeTag::T_ArrayCoerceExpr => {}
            NodeTag::T_SubscriptingRef => {
                let container = (*node.cast::<pg_sys::SubscriptingRef>()).refcontainertype;
                let handler = pg_sys::get_typsubscript(container, std::ptr::null_mut());
                calls::function(handler, findings)?;
            }
            NodeTag::T_MinMaxExpr => {
                let compared = (*node.cast::<pg_sys::MinMaxExpr>()).minmaxtype;
                types::check(compared, Use::Compared, findings)?;
            }
            NodeTag::T_Var => {
                let var = node.cast::<pg_sys::Var>();
                if is_anonymous((*var).vartype) {
                    return Err(Refused::new(Reason::RecordOutput, ""));
                }
                // Command ids are not in the WAL.
                if (*var).varattno == CMIN || (*var).varattno == CMAX {
                    return Err(Refused::new(Reason::Expression, "cmin or cmax"));
                }
            }
            NodeTag::T_Const => {
                let constant = node.cast::<pg_sys::Const>();
                if is_anonymous((*constant).consttype) {
                    return Err(Refused::new(Reason::RecordOutput, ""));
                }
                findings.constant_bytes += CONSTANT_BYTES_LEAST;
                findings.constant_bytes += ffi::guarded::datumEstimateSpace(
                    (*constant).constvalue,
                    (*constant).constisnull,
                    (*constant).constbyval,
                    (*constant).constlen,
                );
                if findings.constant_bytes > CONSTANT_BYTES_MAX {
                    return Err(Refused::new(
                        Reason::Expression,
                        "more than 8 MB of constants",
                    ));
                }
            }
            NodeTag::T_Param => {
                if is_anonymous((*node.cast::<pg_sys::Param>()).paramtype) {
                    return Err(Refused::new(Reason::RecordOutput, ""));
                }
            }
            NodeTag::T_RowExpr => {
                if is_anonymous((*node.cast::<pg_sys::RowExpr>()).row_typeid) {
                    return Err(Refused::new(Reason::RecordOutput, ""));
                }
            }
            NodeTag::T_RowCompareExpr => {
                let compare = node.cast::<pg_sys::RowCompareExpr>();
                operators::check_row_compare(compare, findings)?;
                let list = (*compare).inputcollids;
                for index in 0..if list.is_null() {
                    0
                } else {
                    (*list).length as usize
                } {
                    let collation = (*(*list).elements.add(index)).oid_value.to_u32();
                    if collation != 0 {
                        findings.collations.insert(collation);
                    }
                }
            }
            NodeTag::T_FuncExpr
            | NodeTag::T_OpExpr
            | NodeTag::T_DistinctExpr
            | NodeTag::T_NullIfExpr
            | NodeTag::T_ScalarArrayOpExpr
            | NodeTag::T_CoerceViaIO
            | NodeTag::T_Aggref => {}
            _ => return Err(Refused::new(Reason::Expression, node_name(node))),
        }
        let collation = pg_sys::exprInputCollation(node).to_u32();
        if collation != 0 {
            findings.collations.insert(collation);
        }
        calls::check(node, findings)
    }
}

/// Are a task's rows complete when the task is? True where each row of the scan is passed on, or
/// dropped, before the next one is read.
///
/// # Safety
/// `plan` is a valid fragment.
pub unsafe fn is_streaming(plan: *mut pg_sys::Plan) -> bool {
    use pg_sys::NodeTag;
    // SAFETY: as the caller says.
    unsafe {
        match (*plan).type_ {
            NodeTag::T_CustomScan => true,
            NodeTag::T_Append => {
                items::<pg_sys::Plan>((*plan.cast::<pg_sys::Append>()).appendplans)
                    .all(|child| is_streaming(child))
            }
            NodeTag::T_SubqueryScan => is_streaming((*plan.cast::<pg_sys::SubqueryScan>()).subplan),
            NodeTag::T_Result | NodeTag::T_ProjectSet | NodeTag::T_NestLoop => {
                !(*plan).lefttree.is_null() && is_streaming((*plan).lefttree)
            }
            _ => false,
        }
    }
}
