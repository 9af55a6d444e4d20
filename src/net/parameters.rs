//! Keywords and values for one connection attempt.
//!
//! Not here: where the values come from (`cluster`), and which are allowed (`api::fdw`).
//!
//! Invariants: no value holds a zero byte; `Debug` never prints a value; a later `set` of the same
//! keyword replaces the earlier one, so fixed settings win over options from the catalog.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use super::error::NetError;

/// Keywords whose values are secret.
const SECRET_KEYWORDS: [&str; 3] = ["password", "sslpassword", "passfile"];

/// libpq keywords and values, in the order in which they are given.
#[derive(Clone, Default)]
pub struct ConnectParameters {
    pairs: Vec<(CString, CString)>,
    password_must_be_used: bool,
}

impl ConnectParameters {
    pub fn new() -> ConnectParameters {
        ConnectParameters::default()
    }

    /// Sets a keyword. The value is in the server's encoding, which need not be UTF-8.
    ///
    /// # Errors
    /// [`NetError::InvalidParameter`] if keyword or value holds a zero byte.
    pub fn set(&mut self, keyword: &str, value: impl AsRef<[u8]>) -> Result<(), NetError> {
        let invalid = || NetError::InvalidParameter {
            keyword: keyword.replace('\0', ""),
        };
        let key = CString::new(keyword).map_err(|_| invalid())?;
        let value = CString::new(value.as_ref()).map_err(|_| invalid())?;
        match self.pairs.iter_mut().find(|(k, _)| *k == key) {
            Some(pair) => pair.1 = value,
            None => self.pairs.push((key, value)),
        }
        Ok(())
    }

    /// Makes the connection fail unless the server asked for the password (postgres_fdw's rule for
    /// users who are not superusers: otherwise they would act with the server's own credentials).
    pub fn require_password_use(&mut self) {
        self.password_must_be_used = true;
    }

    pub fn password_must_be_used(&self) -> bool {
        self.password_must_be_used
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&CStr, &CStr)> {
        self.pairs.iter().map(|(k, v)| (k.as_c_str(), v.as_c_str()))
    }

    /// The secret values as they would look in a text that was read with replacement characters.
    pub(super) fn secrets(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.pairs
            .iter()
            .filter(|(k, _)| SECRET_KEYWORDS.iter().any(|s| k.to_bytes() == s.as_bytes()))
            .map(|(_, v)| v.to_string_lossy())
    }
}

impl std::fmt::Debug for ConnectParameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keywords = self.pairs.iter().map(|(k, _)| k);
        f.debug_struct("ConnectParameters")
            .field("keywords", &keywords.collect::<Vec<_>>())
            .finish()
    }
}
