//! The version of a collation's library, as PostgreSQL sees it now.

use super::ffi;
use pgrx::pg_sys;
use std::ffi::CStr;

const DEFAULT_COLLATION: u32 = 100;
const C_COLLATION: u32 = 950;
const POSIX_COLLATION: u32 = 951;

/// Empty where the provider has no version (C, POSIX); None for a collation that does not exist.
///
/// # Safety
/// In a transaction.
pub unsafe fn version(collation: u32) -> Option<String> {
    if matches!(collation, C_COLLATION | POSIX_COLLATION) {
        return Some(String::new());
    }
    // SAFETY: catalog cache lookups; tuples are released. For the default collation the database's
    // row has the names.
    unsafe {
        let (cache, key, attributes) = if collation == DEFAULT_COLLATION {
            (
                pg_sys::SysCacheIdentifier::DATABASEOID,
                pg_sys::MyDatabaseId,
                (
                    pg_sys::Anum_pg_database_datcollate,
                    pg_sys::Anum_pg_database_daticulocale,
                ),
            )
        } else {
            (
                pg_sys::SysCacheIdentifier::COLLOID,
                pg_sys::Oid::from(collation),
                (
                    pg_sys::Anum_pg_collation_collcollate,
                    pg_sys::Anum_pg_collation_colliculocale,
                ),
            )
        };
        let tuple = pg_sys::SearchSysCache1(cache as i32, pg_sys::Datum::from(key));
        if tuple.is_null() {
            return None;
        }
        let row = pg_sys::GETSTRUCT(tuple);
        let provider = if collation == DEFAULT_COLLATION {
            (*row.cast::<pg_sys::FormData_pg_database>()).datlocprovider
        } else {
            (*row.cast::<pg_sys::FormData_pg_collation>()).collprovider
        };
        let icu = provider as u8 == b'i';
        let attribute = if icu { attributes.1 } else { attributes.0 };
        let mut is_null = false;
        let datum = pg_sys::SysCacheGetAttr(cache as i32, tuple, attribute as i16, &mut is_null);
        let mut text = String::new();
        if !is_null {
            let name = pg_sys::text_to_cstring(datum.cast_mut_ptr());
            let version = ffi::guarded::get_collation_actual_version(provider, name);
            if !version.is_null() {
                text = CStr::from_ptr(version).to_string_lossy().into_owned();
            }
        }
        pg_sys::ReleaseSysCache(tuple);
        Some(text)
    }
}
