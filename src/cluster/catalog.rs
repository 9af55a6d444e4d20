//! Reads foreign servers and user mappings from the catalog.
//!
//! Not here: what the options mean. Called by this room only.
//!
//! Invariant: everything returned is owned by Rust; what PostgreSQL allocated meanwhile is freed
//! here, or by PostgreSQL if an error is raised.

use std::ffi::{CStr, c_char};
use std::str::FromStr;

use pgrx::pg_sys;

/// Options of a catalog object: names, and values in the database's encoding.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(String, Vec<u8>)>);

impl Options {
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_slice())
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.bytes(name)?).ok()
    }

    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.trim().parse().ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_slice()))
    }
}

/// Values may be secret.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(n, _)| n))
            .finish()
    }
}

pub struct Server {
    pub oid: pg_sys::Oid,
    pub name: String,
    pub options: Options,
}

pub struct Mapping {
    /// Invalid for the PUBLIC mapping.
    pub owner: pg_sys::Oid,
    pub options: Options,
}

/// Whether a transaction is open that the catalog can be read in.
pub fn is_readable() -> bool {
    // SAFETY: main thread; both only read backend variables.
    unsafe { pg_sys::IsTransactionState() && pg_sys::MyDatabaseId != pg_sys::InvalidOid }
}

/// Runs `f` in a memory context of its own, which is gone afterwards. If `f` raises an error, the
/// context goes with its parent.
fn in_scratch_context<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: main thread; the context is a child of the current one, and is made current only
    // between the two switches. An error makes PostgreSQL reset the current context by itself.
    unsafe {
        let scratch = pg_sys::AllocSetContextCreateInternal(
            pg_sys::CurrentMemoryContext,
            c"parallel_replicas catalog".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
        );
        let before = pg_sys::MemoryContextSwitchTo(scratch);
        let result = f();
        pg_sys::MemoryContextSwitchTo(before);
        pg_sys::MemoryContextDelete(scratch);
        result
    }
}

/// # Safety
/// The text must be zero-terminated.
unsafe fn owned(text: *const c_char) -> Vec<u8> {
    if text.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()
}

/// Copies a list of DefElem as `untransformRelOptions` makes it.
///
/// # Safety
/// `list` must be such a list, or null for an empty one.
pub unsafe fn options_from_list(list: *mut pg_sys::List) -> Options {
    if list.is_null() {
        return Options::default();
    }
    // SAFETY: the caller's promise; a list's cells are an array of its length, and each holds a
    // DefElem with a name and a string or nothing.
    unsafe {
        let cells = (*list).elements;
        let elements = (0..(*list).length as usize).map(|i| {
            let element = (*cells.add(i)).ptr_value.cast::<pg_sys::DefElem>();
            let name = String::from_utf8_lossy(&owned((*element).defname)).into_owned();
            let value = match (*element).arg.is_null() {
                true => Vec::new(),
                false => owned(pg_sys::defGetString(element)),
            };
            (name, value)
        });
        Options(elements.collect())
    }
}

/// The servers of a foreign-data wrapper, in no particular order. None if there is no such wrapper.
pub fn servers(wrapper: &CStr) -> Vec<Server> {
    // SAFETY: main thread, inside a transaction (the caller has asked `is_readable`); name is
    // zero-terminated. The scan is closed before the servers' own cache entries are read, and
    // FSV_MISSING_OK makes a server dropped in between a null answer.
    in_scratch_context(|| unsafe {
        let wrapper_oid = pg_sys::get_foreign_data_wrapper_oid(wrapper.as_ptr(), true);
        if wrapper_oid == pg_sys::InvalidOid {
            return Vec::new();
        }
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(pg_sys::ForeignServerRelationId, lock);
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        let mut oids = Vec::new();
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_foreign_server>();
            if (*form).srvfdw == wrapper_oid {
                oids.push((*form).oid);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
        oids.into_iter().filter_map(|oid| server(oid)).collect()
    })
}

/// One server as it is now; `None` if it has been dropped.
pub fn current_server(oid: pg_sys::Oid) -> Option<Server> {
    // SAFETY: main thread, inside a transaction (the caller has asked `is_readable`).
    in_scratch_context(|| unsafe { server(oid) })
}

/// # Safety
/// Inside a transaction, on the main thread.
unsafe fn server(oid: pg_sys::Oid) -> Option<Server> {
    // SAFETY: the caller's promise; the struct and what it points to are in the current context.
    unsafe {
        let found = pg_sys::GetForeignServerExtended(oid, pg_sys::FSV_MISSING_OK as pg_sys::bits16);
        let found = found.as_ref()?;
        Some(Server {
            oid,
            name: String::from_utf8_lossy(&owned(found.servername)).into_owned(),
            options: options_from_list(found.options),
        })
    }
}

/// The mapping that holds for a user: the user's own, else that of PUBLIC.
pub fn mapping(user: pg_sys::Oid, server: pg_sys::Oid) -> Option<Mapping> {
    in_scratch_context(|| {
        [user, pg_sys::InvalidOid]
            .into_iter()
            // SAFETY: main thread, inside a transaction (the caller has asked `is_readable`).
            .find_map(|owner| unsafe { mapping_of(owner, server) })
    })
}

/// # Safety
/// Inside a transaction, on the main thread.
unsafe fn mapping_of(owner: pg_sys::Oid, server: pg_sys::Oid) -> Option<Mapping> {
    let cache = pg_sys::SysCacheIdentifier::USERMAPPINGUSERSERVER as i32;
    // SAFETY: the caller's promise; the cache has these two keys; the tuple stays pinned until it
    // is released, and the options are copied before.
    unsafe {
        let tuple = pg_sys::SearchSysCache2(cache, owner.into(), server.into());
        if tuple.is_null() {
            return None;
        }
        let mut is_null = true;
        let datum = pg_sys::SysCacheGetAttr(
            cache,
            tuple,
            pg_sys::Anum_pg_user_mapping_umoptions as pg_sys::AttrNumber,
            &mut is_null,
        );
        let options = match is_null {
            true => Options::default(),
            false => options_from_list(pg_sys::untransformRelOptions(datum)),
        };
        pg_sys::ReleaseSysCache(tuple);
        Some(Mapping { owner, options })
    }
}
