//! Whether replicas might help a query: the kind of statement, and the size of its tables.
//!
//! Every statement goes through here before it is planned, so nothing is allocated, the disk is asked
//! for a table's size only where the statistics do not settle it, and relations are looked at without
//! pgrx's guard: no value with a destructor may be alive in here.

#![allow(ffi_unwind_calls)]

use super::{shippable, state};
use crate::pg::plan::items;
use crate::pg::{proc, stack, statement};
use pgrx::pg_sys;
use std::ffi::{c_int, c_void};

/// Might replicas help? Looks at the kind of statement and the size of its tables.
///
/// # Safety
/// `parse` is the query to be planned.
pub unsafe fn is_candidate(parse: *mut pg_sys::Query, cursor_options: c_int, force: bool) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        if (*parse).commandType != pg_sys::CmdType::CMD_SELECT
            || cursor_options & pg_sys::CURSOR_OPT_PARALLEL_OK as c_int == 0
            || !(*parse).rowMarks.is_null()
            || (*parse).hasModifyingCTE
            || proc::is_parallel_worker()
            || state::is_disabled()
        {
            return false;
        }
        let least_pages = if force {
            0
        } else {
            pg_sys::min_parallel_table_scan_size.max(1)
        };
        reads_large_table(parse, least_pages as u32)
    }
}

/// Does the query ask one table for a row by a unique key? By far the commonest query there is, it
/// would pay for being planned with care and never win.
///
/// # Safety
/// `parse` is a rewritten query.
pub unsafe fn finds_one_row(parse: *mut pg_sys::Query) -> bool {
    // SAFETY: as the caller says; tags are checked before nodes are read as what they are.
    unsafe {
        let quals = (*(*parse).jointree).quals;
        let tables = (*parse).rtable;
        if quals.is_null() || tables.is_null() || (*tables).length != 1 || (*parse).hasSubLinks {
            return false;
        }
        let Some(rte) = items::<pg_sys::RangeTblEntry>(tables).next() else {
            return false;
        };
        if (*rte).rtekind != pg_sys::RTEKind::RTE_RELATION {
            return false;
        }
        let relation = statement::open_locked_relation((*rte).relid);
        if relation.is_null() {
            return false;
        }
        let mut found = false;
        let class = &*(*relation).rd_rel;
        // A key is unique in one table; a partitioned table's is in all of its partitions.
        let one_table = !(*rte).inh || !class.relhassubclass || class.relkind as u8 == b'p';
        if class.relhasindex && one_table {
            let indexes = statement::relation_indexes(relation);
            if !indexes.is_null() {
                found = (0..(*indexes).length as usize)
                    .any(|place| is_unique_key((*(*indexes).elements.add(place)).oid_value, quals));
            }
            statement::free_list(indexes);
        }
        statement::close_relation(relation);
        found
    }
}

/// Do the conditions give every column of the index a value, and is the index unique?
///
/// # Safety
/// `quals` are conditions on the index's table, which is locked.
unsafe fn is_unique_key(index: pg_sys::Oid, quals: *mut pg_sys::Node) -> bool {
    // SAFETY: as the caller says; closed again.
    unsafe {
        let relation = statement::open_locked_relation(index);
        if relation.is_null() {
            return false;
        }
        let form = &*(*relation).rd_index;
        let columns = form.indnkeyatts as usize;
        let found = form.indisunique
            && form.indisvalid
            && statement::index_predicate(relation).is_null()
            && (0..columns).all(|place| {
                let column = *form.indkey.values.as_ptr().add(place);
                let family = *(*relation).rd_opfamily.add(place);
                column > 0 && gives_value(quals, column, family)
            });
        statement::close_relation(relation);
        found
    }
}

/// Is one of the conditions `column = value`, with an equality that the operator family knows?
///
/// # Safety
/// `quals` is a valid expression.
unsafe fn gives_value(quals: *mut pg_sys::Node, column: i16, family: pg_sys::Oid) -> bool {
    // SAFETY: as the caller says; tags are checked before nodes are read as what they are.
    unsafe {
        match (*quals).type_ {
            pg_sys::NodeTag::T_BoolExpr => {
                let all = quals.cast::<pg_sys::BoolExpr>();
                (*all).boolop == pg_sys::BoolExprType::AND_EXPR
                    && items::<pg_sys::Node>((*all).args)
                        .any(|qual| gives_value(qual, column, family))
            }
            pg_sys::NodeTag::T_OpExpr => {
                let operation = quals.cast::<pg_sys::OpExpr>();
                let mut arguments = items::<pg_sys::Node>((*operation).args);
                let (Some(left), Some(right)) = (arguments.next(), arguments.next()) else {
                    return false;
                };
                (is_column(left, column) && is_value(right)
                    || is_column(right, column) && is_value(left))
                    && statement::operator_strategy((*operation).opno, family)
                        == pg_sys::BTEqualStrategyNumber as c_int
            }
            _ => false,
        }
    }
}

/// # Safety
/// `node` is a valid expression of a query with one table.
unsafe fn is_column(mut node: *mut pg_sys::Node, column: i16) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        while (*node).type_ == pg_sys::NodeTag::T_RelabelType {
            node = (*node.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        (*node).type_ == pg_sys::NodeTag::T_Var && (*node.cast::<pg_sys::Var>()).varattno == column
    }
}

/// # Safety
/// `node` is a valid expression.
unsafe fn is_value(node: *mut pg_sys::Node) -> bool {
    // SAFETY: as the caller says.
    let tag = unsafe { (*node).type_ };
    tag == pg_sys::NodeTag::T_Const || tag == pg_sys::NodeTag::T_Param
}

/// Is there a table of at least so many pages in the query, or one whose size is not known yet?
///
/// # Safety
/// `parse` is a rewritten query.
unsafe fn reads_large_table(parse: *mut pg_sys::Query, least_pages: u32) -> bool {
    #[pgrx::pg_guard]
    unsafe extern "C-unwind" fn walker(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
        if node.is_null() || stack::is_deep() {
            return false;
        }
        // SAFETY: the walker only visits valid nodes; `context` is the number below.
        unsafe {
            match (*node).type_ {
                pg_sys::NodeTag::T_Query => pg_sys::query_tree_walker(
                    node.cast(),
                    Some(walker),
                    context,
                    pg_sys::QTW_EXAMINE_RTES_BEFORE as c_int,
                ),
                pg_sys::NodeTag::T_RangeTblEntry => {
                    let rte = node.cast::<pg_sys::RangeTblEntry>();
                    may_read_large((*rte).rtekind, rte, *context.cast::<u32>())
                }
                _ => pg_sys::expression_tree_walker(node, Some(walker), context),
            }
        }
    }
    let mut least = least_pages;
    // SAFETY: as the caller says. Most queries name their tables directly: look at those first.
    unsafe {
        let direct = items::<pg_sys::RangeTblEntry>((*parse).rtable)
            .any(|rte| may_read_large((*rte).rtekind, rte, least));
        direct
            || ((*parse).hasSubLinks
                || !(*parse).cteList.is_null()
                || items::<pg_sys::RangeTblEntry>((*parse).rtable)
                    .any(|rte| (*rte).rtekind == pg_sys::RTEKind::RTE_SUBQUERY))
                && walker(parse.cast(), (&raw mut least).cast())
    }
}

/// # Safety
/// `rte` is a valid entry of the kind.
unsafe fn may_read_large(
    kind: pg_sys::RTEKind::Type,
    rte: *mut pg_sys::RangeTblEntry,
    least_pages: u32,
) -> bool {
    // SAFETY: as the caller says; the expression's tag is checked before it is read.
    unsafe {
        match kind {
            pg_sys::RTEKind::RTE_RELATION => is_large((*rte).relid, least_pages),
            // The planner may put a user's SQL function's query in its place.
            pg_sys::RTEKind::RTE_FUNCTION => items::<pg_sys::RangeTblFunction>((*rte).functions)
                .any(|function| {
                    let call = (*function).funcexpr;
                    !call.is_null()
                        && (*call).type_ == pg_sys::NodeTag::T_FuncExpr
                        && (*call.cast::<pg_sys::FuncExpr>()).funcid.to_u32()
                            >= shippable::FIRST_NORMAL_OBJECT_ID
                }),
            _ => false,
        }
    }
}

/// # Safety
/// `relid` is locked by this backend, as every relation of a query in planning is.
unsafe fn is_large(relid: pg_sys::Oid, least_pages: u32) -> bool {
    if relid.to_u32() < shippable::FIRST_NORMAL_OBJECT_ID {
        return false;
    }
    // SAFETY: as the caller says; closed again.
    unsafe {
        let relation = statement::open_locked_relation(relid);
        if relation.is_null() {
            return false;
        }
        let class = &*(*relation).rd_rel;
        let large = match class.relkind as u8 {
            b'p' => true,
            b'r' | b'm' => {
                class.relhassubclass
                    || class.relpages >= least_pages.cast_signed()
                    || pg_sys::RelationGetNumberOfBlocksInFork(
                        relation,
                        pg_sys::ForkNumber::MAIN_FORKNUM,
                    ) >= least_pages
            }
            _ => false,
        };
        statement::close_relation(relation);
        large
    }
}
