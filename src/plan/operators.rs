//! What sorting, hashing and merging by an operator calls: its own function, and support functions of the
//! operator families in which the executor finds it.

use super::calls::{function, function_name};
use super::extensions;
use super::private::Refused;
use super::shippable::{FIRST_NORMAL_OBJECT_ID, Findings};
use super::types::{self, Use};
use crate::pg::plan::items;
use crate::pg::syscache;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;

/// Support functions of btree that comparisons call: BTORDER_PROC and BTSORTSUPPORT_PROC of nbtree.h.
const ORDER: [i16; 2] = [1, 2];

/// BTEqualStrategyNumber of stratnum.h.
const EQUAL: i16 = 3;

/// All that an index of the family may call: besides the support functions of its own types those for the
/// type that it is compared with. Indexes of two methods call other operators than the condition's, too.
///
/// # Safety
/// In a transaction.
pub unsafe fn check_family(
    method: pg_sys::Oid,
    family: pg_sys::Oid,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says; the caches' tuples are of these kinds.
    unsafe {
        let procedures = syscache::list(
            pg_sys::SysCacheIdentifier::AMPROCNUM,
            family,
            |member: &pg_sys::FormData_pg_amproc| member.amproc,
        );
        // A member that reads the time zone need not be what the query uses; its condition tells.
        let time_zone = findings.time_zone;
        for procedure in procedures {
            support(procedure, findings)?;
        }
        findings.time_zone = time_zone;
        if method != pg_sys::BTREE_AM_OID && method != pg_sys::BRIN_AM_OID {
            return Ok(());
        }
        let operators = syscache::list(
            pg_sys::SysCacheIdentifier::AMOPSTRATEGY,
            family,
            |member: &pg_sys::FormData_pg_amop| member.amopopr,
        );
        for operator in operators {
            if operator.to_u32() >= FIRST_NORMAL_OBJECT_ID {
                function(pg_sys::get_opcode(operator), findings)?;
            }
        }
    }
    Ok(())
}

/// The operators by which a plan node sorts or groups, with the types that they compare.
///
/// # Safety
/// `operators` and `columns` are null or have `count` elements; `tlist` is the input's target list.
pub unsafe fn check_columns(
    operators: *const pg_sys::Oid,
    columns: *const i16,
    count: i32,
    tlist: *mut pg_sys::List,
    findings: &mut Findings,
) -> Result<(), Refused> {
    for index in 0..count.max(0) as usize {
        // SAFETY: as the caller says.
        unsafe {
            let column = *columns.add(index) as usize;
            match items::<pg_sys::TargetEntry>(tlist).nth(column.wrapping_sub(1)) {
                Some(entry) => types::check(
                    pg_sys::exprType((*entry).expr.cast()),
                    Use::Compared,
                    findings,
                )?,
                None => return Err(Refused::new(Reason::PlanNode, "sort column")),
            }
            check(*operators.add(index), findings)?;
        }
    }
    Ok(())
}

/// An operator, whatever it is used for.
///
/// # Safety
/// In a transaction.
pub unsafe fn check(operator: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    if !findings.operators.insert(operator.to_u32()) {
        return Ok(());
    }
    let (mut family, mut compared) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    let (mut left, mut right) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    let mut strategy = 0;
    // SAFETY: as the caller says; catalog cache lookups, the executor's own.
    unsafe {
        function(pg_sys::get_opcode(operator), findings)?;
        if pg_sys::get_ordering_op_properties(operator, &mut family, &mut compared, &mut strategy) {
            check_order(family, compared, compared, findings)?;
            // An incremental sort asks whether its first columns are still the same.
            let equal = pg_sys::get_opfamily_member(family, compared, compared, EQUAL);
            if equal != pg_sys::InvalidOid {
                function(pg_sys::get_opcode(equal), findings)?;
            }
        }
        if pg_sys::get_op_hash_functions(operator, &mut left, &mut right) {
            support(left, findings)?;
            support(right, findings)?;
        }
    }
    Ok(())
}

/// A list of operators.
///
/// # Safety
/// `operators` is null or a list of ids.
pub unsafe fn check_all(
    operators: *const pg_sys::List,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe { ids(operators).try_for_each(|operator| check(operator, findings)) }
}

/// The clauses of a merge join, each with its family.
///
/// # Safety
/// `join` is valid.
pub unsafe fn check_merge(
    join: *const pg_sys::MergeJoin,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says; there is a family for each clause, and clauses are operators.
    unsafe {
        for (index, clause) in items::<pg_sys::OpExpr>((*join).mergeclauses).enumerate() {
            check_in_family((*clause).opno, *(*join).mergeFamilies.add(index), findings)?;
        }
    }
    Ok(())
}

/// The columns of a comparison of rows, each with its family.
///
/// # Safety
/// `compare` is valid.
pub unsafe fn check_row_compare(
    compare: *const pg_sys::RowCompareExpr,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says; lists of ids of the same length.
    unsafe {
        for (operator, family) in ids((*compare).opnos).zip(ids((*compare).opfamilies)) {
            check_in_family(operator, family, findings)?;
        }
    }
    Ok(())
}

/// # Safety
/// `list` is null or a list of ids, which is not changed while the iterator lives.
unsafe fn ids(list: *const pg_sys::List) -> impl Iterator<Item = pg_sys::Oid> {
    let length = match list.is_null() {
        true => 0,
        // SAFETY: as the caller says.
        false => unsafe { (*list).length as usize },
    };
    (0..length).map(move |index| {
        // SAFETY: within the list.
        unsafe { (*(*list).elements.add(index)).oid_value }
    })
}

/// # Safety
/// In a transaction.
unsafe fn check_in_family(
    operator: pg_sys::Oid,
    family: pg_sys::Oid,
    findings: &mut Findings,
) -> Result<(), Refused> {
    let (mut left, mut right) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    let mut strategy = 0;
    // SAFETY: as the caller says.
    unsafe {
        // A user's family may lack it, which is an error to those who ask for its properties.
        if !pg_sys::op_in_opfamily(operator, family) {
            return Err(Refused::new(
                Reason::Function,
                function_name(pg_sys::get_opcode(operator)),
            ));
        }
        pg_sys::get_op_opfamily_properties(
            operator,
            family,
            false,
            &mut strategy,
            &mut left,
            &mut right,
        );
        check_order(family, left, right, findings)
    }
}

/// # Safety
/// In a transaction.
unsafe fn check_order(
    family: pg_sys::Oid,
    left: pg_sys::Oid,
    right: pg_sys::Oid,
    findings: &mut Findings,
) -> Result<(), Refused> {
    for number in ORDER {
        // SAFETY: as the caller says.
        unsafe {
            support(
                pg_sys::get_opfamily_proc(family, left, right, number),
                findings,
            )?
        };
    }
    Ok(())
}

/// # Safety
/// In a transaction.
unsafe fn support(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        match oid == pg_sys::InvalidOid || extensions::support_function(oid, findings) {
            true => Ok(()),
            false => Err(Refused::new(Reason::Function, function_name(oid))),
        }
    }
}

/// What a subquery's hash table calls besides what [`check`] knows: the equality of its own type, if that is
/// not the type that is looked for.
///
/// # Safety
/// `node` is valid.
pub unsafe fn check_hashed_subplan(
    node: *const pg_sys::SubPlan,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says; where there is a hash table, the test is an operator or an AND of them.
    unsafe {
        if !(*node).useHashTable {
            return Ok(());
        }
        let test = (*node).testexpr;
        if (*test).type_ == pg_sys::NodeTag::T_OpExpr {
            return check_hashed_column(test.cast(), findings);
        }
        for column in items::<pg_sys::OpExpr>((*test.cast::<pg_sys::BoolExpr>()).args) {
            check_hashed_column(column, findings)?;
        }
    }
    Ok(())
}

/// # Safety
/// `column` is valid.
unsafe fn check_hashed_column(
    column: *const pg_sys::OpExpr,
    findings: &mut Findings,
) -> Result<(), Refused> {
    let mut equal = pg_sys::InvalidOid;
    // SAFETY: as the caller says.
    unsafe {
        let none = std::ptr::null_mut();
        match pg_sys::get_compatible_hash_operators((*column).opno, none, &mut equal) {
            true => function(pg_sys::get_opcode(equal), findings),
            false => Err(Refused::new(
                Reason::Function,
                function_name((*column).opfuncid),
            )),
        }
    }
}

/// What `= ANY` and `<> ALL` call if they look their values up in a hash table.
///
/// # Safety
/// `node` is valid.
pub unsafe fn check_hashed_array(
    node: *const pg_sys::ScalarArrayOpExpr,
    findings: &mut Findings,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        support((*node).hashfuncid, findings)?;
        match (*node).negfuncid {
            pg_sys::InvalidOid => Ok(()),
            equal => function(equal, findings),
        }
    }
}

/// The default classes of a type, by which arrays, rows and ranges of it are compared, and GREATEST and
/// others compare. A type of PostgreSQL's own may have got one.
///
/// # Safety
/// In a transaction.
pub unsafe fn check_default(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    let wanted = pg_sys::TYPECACHE_EQ_OPR
        | pg_sys::TYPECACHE_CMP_PROC
        | pg_sys::TYPECACHE_HASH_PROC
        | pg_sys::TYPECACHE_HASH_EXTENDED_PROC;
    // SAFETY: as the caller says; the entry is read before anything else is looked up.
    unsafe {
        let entry = &*pg_sys::lookup_type_cache(oid, wanted as i32);
        let equal = entry.eq_opr;
        for called in [entry.cmp_proc, entry.hash_proc, entry.hash_extended_proc] {
            support(called, findings)?;
        }
        match equal {
            pg_sys::InvalidOid => Ok(()),
            operator => function(pg_sys::get_opcode(operator), findings),
        }
    }
}
