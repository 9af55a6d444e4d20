//! Which relations, and which of their indexes, are the same on a standby.

use super::extensions;
use super::operators;
use super::private::Refused;
use super::shippable::{FIRST_NORMAL_OBJECT_ID, Findings};
use super::types::{self, Use};
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Why this relation cannot be read on a replica; None if it can.
///
/// # Safety
/// In a transaction.
pub unsafe fn relation_reason(oid: pg_sys::Oid) -> Option<Reason> {
    if oid.to_u32() < FIRST_NORMAL_OBJECT_ID {
        return Some(Reason::CatalogTable);
    }
    // SAFETY: catalog cache lookups; the tuple is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(oid),
        );
        if tuple.is_null() {
            return Some(Reason::AccessMethod);
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>();
        let reason = class_reason(&*form);
        pg_sys::ReleaseSysCache(tuple);
        reason
    }
}

/// The same for a pg_class row at hand.
pub fn class_reason(class: &pg_sys::FormData_pg_class) -> Option<Reason> {
    match class.relkind as u8 {
        b'r' | b'm' => {}
        b'f' => return Some(Reason::ForeignTable),
        _ => return Some(Reason::AccessMethod),
    }
    match class.relpersistence as u8 {
        b'p' => {}
        b't' => return Some(Reason::TemporaryTable),
        _ => return Some(Reason::UnloggedTable),
    }
    (class.relam != pg_sys::HEAP_TABLE_AM_OID).then_some(Reason::AccessMethod)
}

/// The relation's name, for messages.
///
/// # Safety
/// In a transaction.
pub unsafe fn relation_name(oid: pg_sys::Oid) -> String {
    // SAFETY: get_rel_name answers null or a C string.
    unsafe { name_or_oid(pg_sys::get_rel_name(oid), oid) }
}

/// # Safety
/// `name` is null or a C string.
pub unsafe fn name_or_oid(name: *const std::ffi::c_char, oid: pg_sys::Oid) -> String {
    if name.is_null() {
        oid.to_u32().to_string()
    } else {
        // SAFETY: as the caller says.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }
}

/// The index that a scan goes by.
///
/// # Safety
/// `plan` is a valid plan node.
pub unsafe fn index_of(plan: *mut pg_sys::Plan) -> Option<pg_sys::Oid> {
    // SAFETY: the tag tells the type.
    unsafe {
        match (*plan).type_ {
            pg_sys::NodeTag::T_IndexScan => Some((*plan.cast::<pg_sys::IndexScan>()).indexid),
            pg_sys::NodeTag::T_IndexOnlyScan => {
                Some((*plan.cast::<pg_sys::IndexOnlyScan>()).indexid)
            }
            pg_sys::NodeTag::T_BitmapIndexScan => {
                Some((*plan.cast::<pg_sys::BitmapIndexScan>()).indexid)
            }
            _ => None,
        }
    }
}

/// The index is of PostgreSQL's own kinds, or of an extension that may be used: whoever reads it calls
/// functions of its operator classes.
///
/// # Safety
/// The index belongs to a relation that is locked.
pub unsafe fn check_index(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    // SAFETY: as the caller says; closed again. The arrays have an element for each key column.
    unsafe {
        let relation = pg_sys::RelationIdGetRelation(oid);
        if relation.is_null() {
            return Err(Refused::new(Reason::AccessMethod, relation_name(oid)));
        }
        let columns = (*(*relation).rd_index).indnkeyatts.max(0) as usize;
        let families = std::slice::from_raw_parts((*relation).rd_opfamily, columns).to_vec();
        let attributes = (*(*relation).rd_att).attrs.as_slice(columns);
        let keys: Vec<_> = attributes.iter().map(|column| column.atttypid).collect();
        let method = (*(*relation).rd_rel).relam;
        pg_sys::RelationClose(relation);
        let own = |oid: pg_sys::Oid| oid.to_u32() < FIRST_NORMAL_OBJECT_ID;
        let known = own(method)
            && families.into_iter().all(|family| {
                (own(family) || extensions::operator_family(family, findings))
                    && operators::check_family(method, family, findings).is_ok()
            })
            // A GIN class without a comparison of its own has its keys compared by their type's.
            && (method != pg_sys::GIN_AM_OID
                || (keys.into_iter())
                    .all(|key| types::check(key, Use::Compared, findings).is_ok()));
        match known {
            true => Ok(()),
            false => Err(Refused::new(Reason::AccessMethod, relation_name(oid))),
        }
    }
}
