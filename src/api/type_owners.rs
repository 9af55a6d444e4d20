//! Whose functions are executed when values are made of texts.
//!
//! Domains have checks, ranges compare their bounds, and composite types have columns of any type: their
//! owners may change all that at any time, so it does not matter what they have now. Functions of base types
//! are a superuser's affair; arrays, multiranges and enums have none of their own.

use pgrx::pg_sys;
use std::collections::HashSet;

/// The owners, superusers aside, of the types inside the columns of rows of this type. Domains that columns
/// have themselves are left out, as by `taken`.
///
/// # Safety
/// Main thread, inside a transaction; the relation of the rows is locked.
pub unsafe fn owners_inside(row_type: pg_sys::Oid) -> HashSet<pg_sys::Oid> {
    let (mut seen, mut owners) = (HashSet::new(), HashSet::new());
    // SAFETY: as the caller says; looks in the catalog.
    unsafe {
        let columns = columns(row_type).into_iter();
        let mut open: Vec<pg_sys::Oid> = columns.map(|oid| pg_sys::getBaseType(oid)).collect();
        // No type is inside of itself, but there may be many ways to it.
        while let Some(oid) = open.pop() {
            if seen.insert(oid) {
                let (owner, inside) = look(oid);
                owners.extend(owner.filter(|owner| !pg_sys::superuser_arg(*owner)));
                open.extend(inside);
            }
        }
    }
    owners
}

/// The owner of a type that has functions or columns of his, and the types inside.
///
/// # Safety
/// Main thread, inside a transaction.
unsafe fn look(oid: pg_sys::Oid) -> (Option<pg_sys::Oid>, Vec<pg_sys::Oid>) {
    // SAFETY: as the caller says; the row of the catalog is let go before anything else is looked up.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::TYPEOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, oid.into());
        if tuple.is_null() {
            // Gone meanwhile: no value can be made.
            return (None, Vec::new());
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_type>();
        let (kind, owner) = ((*form).typtype as u8, (*form).typowner);
        let (below, element) = ((*form).typbasetype, (*form).typelem);
        pg_sys::ReleaseSysCache(tuple);
        match kind {
            pg_sys::TYPTYPE_DOMAIN => (Some(owner), vec![below]),
            pg_sys::TYPTYPE_COMPOSITE => (Some(owner), columns(oid)),
            pg_sys::TYPTYPE_RANGE => (Some(owner), vec![pg_sys::get_range_subtype(oid)]),
            pg_sys::TYPTYPE_MULTIRANGE => (None, vec![pg_sys::get_multirange_range(oid)]),
            _ if element != pg_sys::InvalidOid => (None, vec![element]),
            _ => (None, Vec::new()),
        }
    }
}

/// The types of the columns of a composite type.
///
/// # Safety
/// Main thread, inside a transaction.
unsafe fn columns(row_type: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: as the caller says; the description is ours.
    unsafe {
        let shape = pg_sys::lookup_rowtype_tupdesc_copy(row_type, -1);
        let all = (*shape).attrs.as_slice((*shape).natts.max(0) as usize);
        let present = all.iter().filter(|column| !column.attisdropped);
        let types = present.map(|column| column.atttypid).collect();
        pg_sys::pfree(shape.cast());
        types
    }
}
