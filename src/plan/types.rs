//! Which types' comparison and conversion functions are the same on every server.
//!
//! Built-in ones, those of extensions that may be used, enums (their order is in the catalog, which is
//! replicated), and arrays, domains, composite types and ranges of such. The collations by which composite
//! types and ranges compare are not in the expression that compares them, so they are collected here.

use super::calls;
use super::extensions;
use super::operators;
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
pub unsafe fn check(oid: pg_sys::Oid, used: Use, findings: &mut Findings) -> Result<(), Refused> {
    if findings.types.contains(&(oid.to_u32(), used)) {
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe { check_nested(oid, findings, used, 0)? };
    findings.types.insert((oid.to_u32(), used));
    Ok(())
}

/// What happens to values of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// They are compared, or handed to a function that knows them.
    Compared,
    /// They are converted to texts, also those within a value.
    Written,
    /// They are made of texts, and a domain's constraints are somebody's expressions.
    Read,
}

/// Is the type of rows without a name? Its columns are known to the process that made it.
pub fn is_anonymous(oid: pg_sys::Oid) -> bool {
    oid == pg_sys::RECORDOID || oid == pg_sys::RECORDARRAYOID
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
        if depth > DEPTH_MAX {
            return Err(refused(oid));
        }
        let kind = pg_sys::get_typtype(oid) as u8;
        if kind == b'd' {
            if used == Use::Read && pg_sys::DomainHasConstraints(oid) {
                return Err(refused(oid));
            }
            return check_nested(pg_sys::getBaseType(oid), findings, used, depth + 1);
        }
        operators::check_default(oid, findings)?;
        let element = pg_sys::get_element_type(oid);
        if element != pg_sys::InvalidOid {
            return check_nested(element, findings, used, depth + 1);
        }
        let own = oid.to_u32() < FIRST_NORMAL_OBJECT_ID;
        match kind {
            b'c' => return check_columns(oid, findings, used, depth),
            b'e' => {}
            b'r' => check_range(oid, findings, used, depth)?,
            b'm' => {
                let range = pg_sys::get_multirange_range(oid);
                check_nested(range, findings, used, depth + 1)?;
            }
            _ if own => check_conversion(oid, findings, used)?,
            _ => extensions::base_type(oid, findings).unwrap_or_else(|| Err(refused(oid)))?,
        }
        match own {
            true => Ok(()),
            false => check_json(oid, findings),
        }
    }
}

/// Whoever converts arrays, rows and ranges, or anything, calls the functions of the types inside.
///
/// # Safety
/// `oid` is a base type or a pseudo-type.
unsafe fn check_conversion(
    oid: pg_sys::Oid,
    findings: &mut Findings,
    used: Use,
) -> Result<(), Refused> {
    let (mut called, mut parameter) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    let mut is_varlena = false;
    // SAFETY: as the caller says; all such types have both functions.
    unsafe {
        match used {
            Use::Compared => return Ok(()),
            Use::Written => pg_sys::getTypeOutputInfo(oid, &mut called, &mut is_varlena),
            Use::Read => pg_sys::getTypeInputInfo(oid, &mut called, &mut parameter),
        }
        calls::function(called, findings).map_err(|_| refused(oid))
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
            cast => calls::function(cast, findings),
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
                calls::function(called, findings)?;
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
