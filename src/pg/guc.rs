//! Settings changed for a stretch of code, through PostgreSQL's own nesting: an ERROR restores
//! them with everything else of its (sub)transaction.

use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// A nest level that [`Nest::end`] closes. Not a drop guard: on an ERROR PostgreSQL has already
/// closed it.
pub struct Nest(i32);

/// Opens a level.
pub fn nest() -> Nest {
    // SAFETY: plain counter arithmetic in guc.c.
    Nest(unsafe { pg_sys::NewGUCNestLevel() })
}

impl Nest {
    /// Sets `name` until the level ends. Errors as SET would.
    pub fn set(&self, name: &CStr, value: &CStr) {
        // SAFETY: valid C strings; SAVE ties the value to the open level. The superuser context is
        // right for a value that the extension itself, not the user, chose or copied from a
        // session that was allowed to set it.
        unsafe {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
    }

    /// Sets `name` to a number.
    pub fn set_number(&self, name: &CStr, value: f64) {
        if let Ok(text) = CString::new(value.to_string()) {
            self.set(name, &text);
        }
    }

    /// As a plain number, for a frame that an ERROR may jump over.
    pub fn into_raw(self) -> i32 {
        self.0
    }

    /// What [`Nest::into_raw`] gave.
    pub fn from_raw(level: i32) -> Self {
        Nest(level)
    }

    /// Restores all that was set.
    pub fn end(self) {
        // SAFETY: the level is the one that `nest` opened.
        unsafe { pg_sys::AtEOXact_GUC(true, self.0) };
    }
}

/// A setting's present value, None where it does not exist.
pub fn value(name: &CStr) -> Option<String> {
    // SAFETY: valid C string; the result is copied at once.
    unsafe {
        let text = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Does the setting exist, and may everybody read it?
pub fn is_public(name: &CStr) -> bool {
    // SAFETY: valid C strings. A setting that does not exist has no flags.
    unsafe {
        let flags = pg_sys::GetConfigOptionFlags(name.as_ptr(), true);
        !pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null()
            && flags as u32 & pg_sys::GUC_SUPERUSER_ONLY == 0
    }
}

/// Settings whose name contains `part` and that somebody has set, as `name=value`, by name.
pub fn changed(part: &str) -> Vec<String> {
    // SAFETY: the table lives as long as the process and grows only; names are static text, and a
    // value is copied at once.
    unsafe {
        let all = pg_sys::get_guc_variables();
        (0..pg_sys::GetNumConfigOptions().max(0) as usize)
            .map(|index| *all.add(index))
            .filter(|setting| (**setting).source != pg_sys::GucSource::PGC_S_DEFAULT)
            .filter_map(|setting| {
                let name = CStr::from_ptr((*setting).name);
                let text = name.to_str().ok()?;
                if !text.contains(part) {
                    return None;
                }
                Some(format!("{text}={}", value(name)?))
            })
            .collect()
    }
}
