//! The connection options that the linked libpq has.
//!
//! Not here: which of them may be given where (`api::fdw`).

use std::ffi::{CStr, c_char};

/// One of libpq's connection options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryOption {
    pub keyword: String,
    /// Shown as asterisks by clients, so not to be put where everybody can read it.
    pub is_secret: bool,
    /// For libpq's own developers.
    pub is_debug: bool,
}

/// All options of the linked libpq; `None` if memory ran out.
pub fn library_options() -> Option<Vec<LibraryOption>> {
    // SAFETY: no arguments; the answer is null or an array that ends with a null keyword.
    let first = unsafe { pq_sys::PQconndefaults() };
    if first.is_null() {
        return None;
    }
    let text = |text: *const c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: not null, zero-terminated, alive until the array is freed.
        false => unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    };
    let mut options = Vec::new();
    let mut next = first;
    // SAFETY: the loop stops at the array's end; the array is freed once, after the last use.
    unsafe {
        while !(*next).keyword.is_null() {
            let shown_as = text((*next).dispchar);
            options.push(LibraryOption {
                keyword: text((*next).keyword),
                is_secret: shown_as.contains('*'),
                is_debug: shown_as.contains('D'),
            });
            next = next.add(1);
        }
        pq_sys::PQconninfoFree(first);
    }
    Some(options)
}
