//! Walking plan trees and expressions.

#![allow(ffi_unwind_calls)]

use super::{ffi, stack};
use pgrx::pg_sys;
use std::ffi::c_void;

/// The elements of a pointer list, as places that can be written to.
///
/// # Safety
/// `list` is null or a valid pointer list, and is not changed while the iterator lives.
pub unsafe fn cells<T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut *mut T> {
    // SAFETY: as the caller says.
    let (first, length) = unsafe {
        if list.is_null() {
            (std::ptr::null_mut(), 0)
        } else {
            ((*list).elements, (*list).length as usize)
        }
    };
    (0..length).map(move |index| {
        // SAFETY: within the list.
        unsafe { (&raw mut (*first.add(index)).ptr_value).cast() }
    })
}

/// The elements of a pointer list.
///
/// # Safety
/// As for [`cells`].
pub unsafe fn items<T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut T> {
    // SAFETY: as the caller says.
    unsafe { cells::<T>(list) }.map(|cell| {
        // SAFETY: points into the list.
        unsafe { *cell }
    })
}

/// The members of a set.
///
/// # Safety
/// `set` is null or a valid set.
pub unsafe fn members(set: *const pg_sys::Bitmapset) -> Vec<i32> {
    let mut result = Vec::new();
    let mut member = -1;
    loop {
        // SAFETY: as the caller says.
        member = unsafe { pg_sys::bms_next_member(set, member) };
        if member < 0 {
            return result;
        }
        result.push(member);
    }
}

/// A set of the members. Unguarded, see `ffi`.
pub fn bitmapset(members: &[i32]) -> *mut pg_sys::Bitmapset {
    members.iter().fold(std::ptr::null_mut(), |set, member| {
        // SAFETY: the set is ours.
        unsafe { ffi::add_member(set, *member) }
    })
}

/// The places of a plan node's children that are not SubPlans.
///
/// # Safety
/// `plan` is a valid plan node.
pub unsafe fn children(plan: *mut pg_sys::Plan) -> Vec<*mut *mut pg_sys::Plan> {
    let mut places = Vec::new();
    // SAFETY: the tag tells the node's type.
    unsafe {
        for place in [&raw mut (*plan).lefttree, &raw mut (*plan).righttree] {
            if !(*place).is_null() {
                places.push(place);
            }
        }
        let list = match (*plan).type_ {
            pg_sys::NodeTag::T_Append => (*plan.cast::<pg_sys::Append>()).appendplans,
            pg_sys::NodeTag::T_MergeAppend => (*plan.cast::<pg_sys::MergeAppend>()).mergeplans,
            pg_sys::NodeTag::T_BitmapAnd => (*plan.cast::<pg_sys::BitmapAnd>()).bitmapplans,
            pg_sys::NodeTag::T_BitmapOr => (*plan.cast::<pg_sys::BitmapOr>()).bitmapplans,
            pg_sys::NodeTag::T_CustomScan => (*plan.cast::<pg_sys::CustomScan>()).custom_plans,
            pg_sys::NodeTag::T_SubqueryScan => {
                places.push(&raw mut (*plan.cast::<pg_sys::SubqueryScan>()).subplan);
                std::ptr::null_mut()
            }
            _ => std::ptr::null_mut(),
        };
        places.extend(cells::<pg_sys::Plan>(list));
    }
    places
}

/// How an Append or MergeAppend chooses among its children when it is executed; null if it, or any other
/// node, does not.
///
/// # Safety
/// `plan` is a valid plan node.
pub unsafe fn prune_info(plan: *const pg_sys::Plan) -> *const pg_sys::PartitionPruneInfo {
    // SAFETY: the tag tells the node's type.
    unsafe {
        match (*plan).type_ {
            pg_sys::NodeTag::T_Append => (*plan.cast::<pg_sys::Append>()).part_prune_info,
            pg_sys::NodeTag::T_MergeAppend => (*plan.cast::<pg_sys::MergeAppend>()).part_prune_info,
            _ => std::ptr::null(),
        }
    }
}

/// The levels of all partitioned tables that it chooses from.
///
/// # Safety
/// `info` is valid.
unsafe fn prune_levels(
    info: *const pg_sys::PartitionPruneInfo,
) -> impl Iterator<Item = *mut pg_sys::PartitionedRelPruneInfo> {
    // SAFETY: as the caller says; a list for each table, an element for each of its levels.
    unsafe { items::<pg_sys::List>((*info).prune_infos).flat_map(|levels| items(levels)) }
}

/// The parameters of the executor by which it chooses. Those of the query, and functions, count only when
/// the plan is initialised.
///
/// # Safety
/// `info` is valid.
pub unsafe fn prune_params(info: *const pg_sys::PartitionPruneInfo) -> Vec<i32> {
    // SAFETY: as the caller says.
    unsafe {
        prune_levels(info)
            .flat_map(|level| members((*level).execparamids))
            .collect()
    }
}

/// Does it choose by the parameters as they are, so that nothing is computed that might fail?
///
/// # Safety
/// `info` is valid.
pub unsafe fn prunes_by_params_alone(info: *const pg_sys::PartitionPruneInfo) -> bool {
    use pg_sys::NodeTag;
    // SAFETY: as the caller says; the tag tells the step's type.
    unsafe {
        prune_levels(info)
            .flat_map(|level| items::<pg_sys::Node>((*level).exec_pruning_steps))
            .filter(|step| (**step).type_ == NodeTag::T_PartitionPruneStepOp)
            .flat_map(|step| {
                items::<pg_sys::Node>((*step.cast::<pg_sys::PartitionPruneStepOp>()).exprs)
            })
            .all(|value| {
                every_node(value, &mut |node| match (*node).type_ {
                    NodeTag::T_Param | NodeTag::T_Const | NodeTag::T_RelabelType => Walk::Down,
                    _ => Walk::Stop,
                })
            })
    }
}

/// Leaves only the children at these positions in an Append or MergeAppend, which has nothing to choose then;
/// without any, a node without rows takes its place.
///
/// # Safety
/// `place` holds one of these, which has so many children.
pub unsafe fn keep_children(place: *mut *mut pg_sys::Plan, positions: &[usize]) {
    // SAFETY: as the caller says; the tag tells the type.
    unsafe {
        let plan = *place;
        if positions.is_empty() {
            *place = nothing(plan);
            return;
        }
        let children = children(plan);
        let list = positions
            .iter()
            .map(|position| *children[*position])
            .fold(std::ptr::null_mut(), |list, child| {
                pg_sys::lappend(list, child.cast())
            });
        if (*plan).type_ == pg_sys::NodeTag::T_Append {
            let append = plan.cast::<pg_sys::Append>();
            (*append).appendplans = list;
            (*append).part_prune_info = std::ptr::null_mut();
        } else {
            let append = plan.cast::<pg_sys::MergeAppend>();
            (*append).mergeplans = list;
            (*append).part_prune_info = std::ptr::null_mut();
        }
    }
}

/// A Result whose condition is false, in the place of a node without children.
///
/// # Safety
/// `plan` is a valid plan node, whose target list is taken over.
unsafe fn nothing(plan: *mut pg_sys::Plan) -> *mut pg_sys::Plan {
    // SAFETY: as the caller says; Plan is the first field of every plan node.
    unsafe {
        let result = pgrx::PgBox::<pg_sys::Result>::alloc_node(pg_sys::NodeTag::T_Result).into_pg();
        (*result).plan = std::ptr::read(plan);
        (*result).plan.type_ = pg_sys::NodeTag::T_Result;
        let never = pg_sys::makeBoolConst(false, false);
        (*result).resconstantqual = pg_sys::lappend(std::ptr::null_mut(), never.cast()).cast();
        result.cast()
    }
}

/// The places of a plan node's own expressions, apart from its children's; empty ones left out.
///
/// # Safety
/// `plan` is a valid plan node.
pub unsafe fn expression_places(plan: *mut pg_sys::Plan) -> Vec<*mut *mut pg_sys::Node> {
    use pg_sys::NodeTag;
    let mut places: Vec<*mut *mut pg_sys::Node> = Vec::new();
    macro_rules! add {
        ($node:ident: $kind:ident, $($field:ident),+) => {{
            let typed = $node.cast::<pg_sys::$kind>();
            places.extend([$((&raw mut (*typed).$field).cast()),+]);
        }};
    }
    // SAFETY: the tag tells the node's type; a pointer to a list or expression is a pointer to a
    // node.
    unsafe {
        match (*plan).type_ {
            NodeTag::T_IndexScan => {
                add!(plan: IndexScan, indexqual, indexqualorig, indexorderby, indexorderbyorig);
            }
            NodeTag::T_IndexOnlyScan => {
                add!(plan: IndexOnlyScan, indexqual, recheckqual, indexorderby, indextlist);
            }
            NodeTag::T_BitmapIndexScan => add!(plan: BitmapIndexScan, indexqual, indexqualorig),
            NodeTag::T_BitmapHeapScan => add!(plan: BitmapHeapScan, bitmapqualorig),
            NodeTag::T_HashJoin => {
                add!(plan: Join, joinqual);
                add!(plan: HashJoin, hashclauses, hashkeys);
            }
            NodeTag::T_MergeJoin => {
                add!(plan: Join, joinqual);
                add!(plan: MergeJoin, mergeclauses);
            }
            NodeTag::T_NestLoop => {
                add!(plan: Join, joinqual);
                let params = (*plan.cast::<pg_sys::NestLoop>()).nestParams;
                for param in items::<pg_sys::NestLoopParam>(params) {
                    places.push((&raw mut (*param).paramval).cast());
                }
            }
            NodeTag::T_Hash => add!(plan: Hash, hashkeys),
            NodeTag::T_Memoize => add!(plan: Memoize, param_exprs),
            NodeTag::T_Result => add!(plan: Result, resconstantqual),
            NodeTag::T_ValuesScan => add!(plan: ValuesScan, values_lists),
            NodeTag::T_FunctionScan => {
                let functions = (*plan.cast::<pg_sys::FunctionScan>()).functions;
                for function in items::<pg_sys::RangeTblFunction>(functions) {
                    places.push(&raw mut (*function).funcexpr);
                }
            }
            NodeTag::T_CustomScan => add!(plan: CustomScan, custom_exprs),
            NodeTag::T_TidScan => add!(plan: TidScan, tidquals),
            NodeTag::T_TidRangeScan => add!(plan: TidRangeScan, tidrangequals),
            NodeTag::T_Limit => add!(plan: Limit, limitOffset, limitCount),
            NodeTag::T_WindowAgg => {
                add!(plan: WindowAgg, startOffset, endOffset, runCondition, runConditionOrig);
            }
            _ => {}
        }
        add!(plan: Plan, targetlist, qual, initPlan);
        places.retain(|place| !(**place).is_null());
    }
    places
}

/// The expressions of a plan node itself, apart from its children's.
///
/// # Safety
/// `plan` is a valid plan node.
pub unsafe fn expressions(plan: *mut pg_sys::Plan) -> Vec<*mut pg_sys::Node> {
    // SAFETY: as the caller says.
    unsafe { expression_places(plan) }
        .into_iter()
        .map(|place| {
            // SAFETY: points into the node.
            unsafe { *place }
        })
        .collect()
}

/// What a visitor is called through by PostgreSQL's walkers.
struct Visitor<'a, T> {
    visit: &'a mut dyn FnMut(*mut T) -> Walk,
}

/// Calls `visit` for `node` and everything below it until it wants to stop; true if it never did. Where they are
/// nested too deeply for a walk it stops, too.
///
/// # Safety
/// `node` is null or a valid expression.
pub unsafe fn every_node(
    node: *mut pg_sys::Node,
    visit: &mut dyn FnMut(*mut pg_sys::Node) -> Walk,
) -> bool {
    // Only PostgreSQL calls it: an error that it raises jumps over whoever does.
    #[pgrx::pg_guard]
    unsafe extern "C-unwind" fn walker(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
        // SAFETY: the visitor below, which outlives the walk.
        unsafe { step(node, context) }
    }
    unsafe fn step(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
        // SAFETY: as above; the walker only visits valid nodes, and null.
        unsafe {
            if node.is_null() {
                return false;
            }
            if stack::is_deep() {
                return true;
            }
            match ((*context.cast::<Visitor<'_, pg_sys::Node>>()).visit)(node) {
                Walk::Stop => true,
                Walk::Skip => false,
                Walk::Down => pg_sys::expression_tree_walker(node, Some(walker), context),
            }
        }
    }
    let mut visitor = Visitor { visit };
    // SAFETY: as the caller says.
    unsafe { !step(node, (&raw mut visitor).cast()) }
}

/// The same for the states of a plan that is being executed, however deep.
///
/// # Safety
/// `state` is null or an initialised plan state.
pub unsafe fn every_state(
    state: *mut pg_sys::PlanState,
    visit: &mut dyn FnMut(*mut pg_sys::PlanState) -> Walk,
) -> bool {
    #[pgrx::pg_guard]
    unsafe extern "C-unwind" fn walker(
        state: *mut pg_sys::PlanState,
        context: *mut c_void,
    ) -> bool {
        // SAFETY: as in `every_node`.
        unsafe { step(state, context) }
    }
    unsafe fn step(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
        // SAFETY: as in `every_node`.
        unsafe {
            if state.is_null() {
                return false;
            }
            match ((*context.cast::<Visitor<'_, pg_sys::PlanState>>()).visit)(state) {
                Walk::Stop => true,
                Walk::Skip => false,
                Walk::Down => ffi::guarded::planstate_tree_walker(state, Some(walker), context),
            }
        }
    }
    let mut visitor = Visitor { visit };
    // SAFETY: as the caller says.
    unsafe { !step(state, (&raw mut visitor).cast()) }
}

/// What a visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    Down,
    Skip,
    Stop,
}

/// The plan node's name as EXPLAIN would print it, roughly: the tag without its prefix.
///
/// # Safety
/// `node` is a valid node.
pub unsafe fn node_name(node: *const pg_sys::Node) -> String {
    // SAFETY: as the caller says.
    format!("{:?}", unsafe { (*node).type_ })
        .trim_start_matches("T_")
        .to_owned()
}
