//! Lists of PostgreSQL's catalog caches.

use pgrx::pg_sys;

/// What `read` finds in each tuple of the cache whose first key is `key`.
///
/// # Safety
/// In a transaction. The cache's tuples begin with a `T`.
pub unsafe fn list<T, R>(
    cache: pg_sys::SysCacheIdentifier::Type,
    key: pg_sys::Oid,
    read: impl Fn(&T) -> R,
) -> Vec<R> {
    let none = pg_sys::Datum::from(0);
    // SAFETY: as the caller says; the tuples live until the list is released.
    unsafe {
        let list = pg_sys::SearchSysCacheList(cache as i32, 1, key.into(), none, none);
        let members = (*list).members.as_slice((*list).n_members as usize);
        let found = members
            .iter()
            .map(|member| {
                let tuple = (**member).tuple.t_data;
                read(&*tuple.byte_add(usize::from((*tuple).t_hoff)).cast::<T>())
            })
            .collect();
        pg_sys::ReleaseCatCacheList(list);
        found
    }
}
