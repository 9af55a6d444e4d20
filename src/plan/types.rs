//! Which types' comparison and conversion functions are the same on every server.
//!
//! Built-in ones, those of extensions that may be used, enums (their order is in the catalog, which is
//! replicated), and arrays, domains, composite types and ranges of such. The collations by which composite types and ranges compare
//! are not in the expression that compares them, so they are collected here.

use super::extensions;
use super::private::Refused;
use super::shippable::{FIRST_NORMAL_OBJECT_ID, Findings};
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use std::ffi::CStr;

/// How deep types may nest.
const DEPTH_MAX: u32 = 16;

/// Refuses a type that is not known to behave alike everywhere.
///
/// # Safety
/// In a transaction.
pub unsafe fn check(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe { check_nested(oid, findings, 0) }
}

/// # Safety
/// In a transaction.
unsafe fn check_nested(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    depth: u32,
) -> Result<(), Refused> {
    // SAFETY: catalog cache lookups; tuples and descriptors are given back.
    unsafe {
        let element = pg_sys::get_element_type(oid);
        if depth > DEPTH_MAX {
            return Err(refused(oid));
        }
        if element != pg_sys::InvalidOid {
            return check_nested(element, findings, depth + 1);
        }
        match pg_sys::get_typtype(oid) as u8 {
            b'e' => Ok(()),
            b'd' => check_nested(pg_sys::getBaseType(oid), findings, depth + 1),
            b'c' => check_columns(oid, findings, depth),
            b'r' => check_range(oid, findings, depth),
            b'm' => check_nested(pg_sys::get_multirange_range(oid), findings, depth + 1),
            _ if oid.to_u32() < FIRST_NORMAL_OBJECT_ID => Ok(()),
            _ => extensions::base_type(oid, findings).unwrap_or_else(|| Err(refused(oid))),
        }
    }
}

/// # Safety
/// `oid` is a composite type.
unsafe fn check_columns(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    depth: u32,
) -> Result<(), Refused> {
    // SAFETY: as the caller says; the columns are copied before anything else is looked up.
    unsafe {
        let descriptor = pg_sys::lookup_rowtype_tupdesc_copy(oid, -1);
        let columns: Vec<(pg_sys::Oid, u32)> = (0..(*descriptor).natts as usize)
            .map(|index| &*(*descriptor).attrs.as_ptr().add(index))
            .filter(|column| !column.attisdropped)
            .map(|column| (column.atttypid, column.attcollation.to_u32()))
            .collect();
        pg_sys::pfree(descriptor.cast());
        for (kind, collation) in columns {
            if collation != 0 {
                findings.collations.insert(collation);
            }
            check_nested(kind, findings, depth + 1)?;
        }
    }
    Ok(())
}

/// # Safety
/// `oid` is a range type.
unsafe fn check_range(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    depth: u32,
) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe {
        let collation = pg_sys::get_range_collation(oid).to_u32();
        if collation != 0 {
            findings.collations.insert(collation);
        }
        check_nested(pg_sys::get_range_subtype(oid), findings, depth + 1)
    }
}

fn refused(oid: pg_sys::Oid) -> Refused {
    // SAFETY: format_type_be answers a C string for any id.
    let name = unsafe { CStr::from_ptr(pg_sys::format_type_be(oid)) };
    Refused::new(
        Reason::Function,
        format!("comparison of type {}", name.to_string_lossy()),
    )
}
