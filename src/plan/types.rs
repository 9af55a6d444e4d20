//! Which types' comparison and conversion functions are the same on every server.
//!
//! Built-in ones, those of extensions that may be used, enums (their order is in the catalog, which is
//! replicated), and arrays, domains, composite types and ranges of such. The collations by which composite
//! types and ranges compare are not in the expression that compares them, so they are collected here.

use super::extensions;
use super::operators;
use super::private::Refused;
use super::shippable::{self, FIRST_NORMAL_OBJECT_ID, Findings};
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
    unsafe { check_nested(oid, findings, Use::Read, 0) }
}

/// The same for a type that texts are converted to: a domain's constraints are somebody's expressions.
///
/// # Safety
/// In a transaction.
pub unsafe fn check_made(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    // SAFETY: as the caller says.
    unsafe { check_nested(oid, findings, Use::Made, 0) }
}

/// What happens to values of a type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// They are compared, or converted to something else.
    Read,
    Made,
}

/// # Safety
/// In a transaction.
unsafe fn check_nested(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    used: Use,
    depth: u32,
) -> Result<(), Refused> {
    // SAFETY: catalog cache lookups; tuples and descriptors are given back.
    unsafe {
        let element = pg_sys::get_element_type(oid);
        if depth > DEPTH_MAX {
            return Err(refused(oid));
        }
        if element != pg_sys::InvalidOid {
            return check_nested(element, findings, used, depth + 1);
        }
        let own = oid.to_u32() < FIRST_NORMAL_OBJECT_ID;
        match pg_sys::get_typtype(oid) as u8 {
            b'd' if used == Use::Made && pg_sys::DomainHasConstraints(oid) => {
                return Err(refused(oid));
            }
            b'd' => return check_nested(pg_sys::getBaseType(oid), findings, used, depth + 1),
            _ => operators::check_default(oid, findings)?,
        }
        match pg_sys::get_typtype(oid) as u8 {
            b'c' => return check_columns(oid, findings, used, depth),
            b'e' => {}
            b'r' => check_range(oid, findings, used, depth)?,
            b'm' => {
                let range = pg_sys::get_multirange_range(oid);
                check_nested(range, findings, used, depth + 1)?;
            }
            _ if own => {}
            _ => extensions::base_type(oid, findings).unwrap_or_else(|| Err(refused(oid)))?,
        }
        match own {
            true => Ok(()),
            false => check_json(oid, findings),
        }
    }
}

/// Functions that make JSON of anything use the cast that somebody has defined for the type.
///
/// # Safety
/// In a transaction.
unsafe fn check_json(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    let mut cast = pg_sys::InvalidOid;
    // SAFETY: as the caller says; looks the cast up.
    unsafe {
        let explicit = pg_sys::CoercionContext::COERCION_EXPLICIT;
        pg_sys::find_coercion_pathway(pg_sys::JSONOID, oid, explicit, &mut cast);
        match cast {
            pg_sys::InvalidOid => Ok(()),
            cast => shippable::function(cast, findings),
        }
    }
}

/// # Safety
/// `oid` is a composite type.
unsafe fn check_columns(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    used: Use,
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
            check_nested(kind, findings, used, depth + 1)?;
        }
    }
    Ok(())
}

/// # Safety
/// `oid` is a range type.
unsafe fn check_range(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    used: Use,
    depth: u32,
) -> Result<(), Refused> {
    // SAFETY: as the caller says; the entry is read before anything else is looked up.
    unsafe {
        let entry = &*pg_sys::lookup_type_cache(oid, pg_sys::TYPECACHE_RANGE_INFO as i32);
        let functions = [
            entry.rng_cmp_proc_finfo.fn_oid,
            entry.rng_canonical_finfo.fn_oid,
        ];
        for called in functions {
            if called != pg_sys::InvalidOid {
                shippable::function(called, findings)?;
            }
        }
        let collation = pg_sys::get_range_collation(oid).to_u32();
        if collation != 0 {
            findings.collations.insert(collation);
        }
        check_nested(pg_sys::get_range_subtype(oid), findings, used, depth + 1)
    }
}

fn refused(oid: pg_sys::Oid) -> Refused {
    // SAFETY: format_type_be answers a C string for any id.
    let name = unsafe { CStr::from_ptr(pg_sys::format_type_be(oid)) };
    Refused::new(
        Reason::Function,
        format!(
            "comparison or conversion of type {}",
            name.to_string_lossy()
        ),
    )
}
