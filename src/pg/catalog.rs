//! The extension's own tables.

use pgrx::pg_sys;

/// Opens a table of the extension with AccessShareLock, or answers null. Anybody can give a relation of
/// their own the name where the extension is not installed, so it has to be the extension's, and
/// what we are about to read: a plain table with columns of exactly these types.
///
/// # Safety
/// In a transaction.
pub unsafe fn open_own_table(name: &std::ffi::CStr, types: &[pg_sys::Oid]) -> pg_sys::Relation {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: as the caller says; catalog look-ups, and a relation that is open while it is looked at.
    unsafe {
        let extension = pg_sys::get_extension_oid(c"parallel_replicas".as_ptr(), true);
        let schema = pg_sys::get_namespace_oid(c"parallel_replicas".as_ptr(), true);
        if extension == pg_sys::InvalidOid || schema == pg_sys::InvalidOid {
            return std::ptr::null_mut();
        }
        let table = pg_sys::get_relname_relid(name.as_ptr(), schema);
        if table == pg_sys::InvalidOid
            || pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, table) != extension
        {
            return std::ptr::null_mut();
        }
        let relation = pg_sys::try_relation_open(table, lock);
        if relation.is_null() {
            return relation;
        }
        let columns = (*(*relation).rd_att).natts.max(0) as usize;
        let attributes = (*(*relation).rd_att).attrs.as_slice(columns);
        let is_as_made = (*(*relation).rd_rel).relkind as u8 == pg_sys::RELKIND_RELATION
            && columns == types.len()
            && attributes
                .iter()
                .zip(types)
                .all(|(attribute, of)| !attribute.attisdropped && attribute.atttypid == *of);
        if is_as_made {
            return relation;
        }
        pg_sys::relation_close(relation, lock);
        std::ptr::null_mut()
    }
}
