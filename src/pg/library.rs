//! Which machine code a function in C is: a fingerprint of the library that it was loaded from.
//!
//! Taken of the memory that the library was mapped to, not of its file, which may have been replaced
//! since. What the loader changes lies in writable segments, so the others are the same in every process
//! that has loaded the same build.

use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use xxhash_rust::xxh3::xxh3_64;

/// Of all libraries from which these functions are; None if one of them cannot be found. Libraries that
/// are not loaded yet are, and one that is missing is an ERROR.
///
/// # Safety
/// In a transaction; the functions exist.
pub unsafe fn fingerprint(functions: impl IntoIterator<Item = u32>) -> Option<u64> {
    let mut libraries = BTreeSet::new();
    for function in functions {
        // SAFETY: as the caller says.
        libraries.insert(unsafe { library_of(function) }?);
    }
    let bytes: Vec<u8> = libraries.into_iter().flat_map(u64::to_le_bytes).collect();
    Some(xxh3_64(&bytes))
}

/// # Safety
/// As for [`fingerprint`].
unsafe fn library_of(function: u32) -> Option<u64> {
    let mut info = pg_sys::FmgrInfo::default();
    // SAFETY: as the caller says; the callback only uses what it is given, during the call.
    unsafe {
        pg_sys::fmgr_info(pg_sys::Oid::from(function), &mut info);
        let mut search = Search {
            address: info.fn_addr? as usize,
            found: None,
        };
        libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast());
        search.found
    }
}

thread_local! {
    /// By where the library was loaded: PostgreSQL unloads none.
    static KNOWN: RefCell<BTreeMap<usize, u64>> = const { RefCell::new(BTreeMap::new()) };
}

struct Search {
    address: usize,
    found: Option<u64>,
}

/// Called for each loaded library; 1 ends the search.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader's own description of what it has mapped; nothing is unloaded meanwhile.
    unsafe {
        let search = &mut *search.cast::<Search>();
        let info = &*info;
        let base = info.dlpi_addr as usize;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let loaded = || {
            headers
                .iter()
                .filter(|header| header.p_type == libc::PT_LOAD)
        };
        let holds = |header: &libc::Elf64_Phdr| {
            let start = base + header.p_vaddr as usize;
            (start..start + header.p_memsz as usize).contains(&search.address)
        };
        if !loaded().any(holds) {
            return 0;
        }
        // The program itself stands first and has no name. Its function calls another one, of a library
        // that cannot be told from here (fmgr_security_definer, for a hook's sake).
        if *info.dlpi_name == 0 {
            return 1;
        }
        search.found = KNOWN.with_borrow(|known| known.get(&base).copied());
        if search.found.is_some() {
            return 1;
        }
        let mut bytes = Vec::new();
        for header in loaded().filter(|header| header.p_flags & libc::PF_W == 0) {
            // Some systems have code that can be executed and not read.
            if header.p_flags & libc::PF_R == 0 {
                return 1;
            }
            let start = (base + header.p_vaddr as usize) as *const u8;
            let segment = std::slice::from_raw_parts(start, header.p_filesz as usize);
            bytes.extend(xxh3_64(segment).to_le_bytes());
        }
        let found = xxh3_64(&bytes);
        KNOWN.with_borrow_mut(|known| known.insert(base, found));
        search.found = Some(found);
        1
    }
}
