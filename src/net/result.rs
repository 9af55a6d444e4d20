//! Owned results and owned CopyData messages.
//!
//! Not here: reading them off the socket (`connection`).
//!
//! Invariants: a [`QueryResult`] or [`CopyBuffer`] stays valid after its connection has been closed,
//! because libpq keeps no link from them to it.

use std::ffi::CStr;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use super::error::{NetError, RemoteError, SqlState, redact};
use super::parameters::ConnectParameters;

/// What kind of answer a statement gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultStatus {
    EmptyQuery,
    CommandOk,
    Tuples,
    /// One of the rows, after [`Connection::give_rows_singly`].
    ///
    /// [`Connection::give_rows_singly`]: super::Connection::give_rows_singly
    Row,
    CopyOut,
    CopyIn,
    /// Both directions are open: the state that the link protocol runs in.
    CopyBoth,
    /// The server or libpq reported an error; see [`QueryResult::error`].
    Error,
    /// Something that this project never asks for (pipeline mode).
    Unexpected,
}

/// A `PGresult`.
pub struct QueryResult {
    result: NonNull<pq_sys::PGresult>,
    parameters: Rc<ConnectParameters>,
}

impl QueryResult {
    /// Takes ownership of a result that libpq returned.
    pub(super) fn from_raw(
        result: NonNull<pq_sys::PGresult>,
        parameters: Rc<ConnectParameters>,
    ) -> QueryResult {
        QueryResult { result, parameters }
    }

    fn raw(&self) -> *const pq_sys::PGresult {
        self.result.as_ptr()
    }

    pub fn status(&self) -> ResultStatus {
        use pq_sys::ExecStatusType::*;
        // SAFETY: the result is owned and not yet cleared.
        match unsafe { pq_sys::PQresultStatus(self.raw()) } {
            PGRES_EMPTY_QUERY => ResultStatus::EmptyQuery,
            PGRES_COMMAND_OK => ResultStatus::CommandOk,
            PGRES_TUPLES_OK => ResultStatus::Tuples,
            PGRES_SINGLE_TUPLE => ResultStatus::Row,
            PGRES_COPY_OUT => ResultStatus::CopyOut,
            PGRES_COPY_IN => ResultStatus::CopyIn,
            PGRES_COPY_BOTH => ResultStatus::CopyBoth,
            PGRES_BAD_RESPONSE | PGRES_NONFATAL_ERROR | PGRES_FATAL_ERROR => ResultStatus::Error,
            _ => ResultStatus::Unexpected,
        }
    }

    pub fn is_copy(&self) -> bool {
        use ResultStatus::*;
        matches!(self.status(), CopyOut | CopyIn | CopyBoth)
    }

    pub fn rows(&self) -> i32 {
        // SAFETY: the result is owned and not yet cleared.
        unsafe { pq_sys::PQntuples(self.raw()) }
    }

    pub fn columns(&self) -> i32 {
        // SAFETY: the result is owned and not yet cleared.
        unsafe { pq_sys::PQnfields(self.raw()) }
    }

    /// A value as the bytes that the server sent (text format in the simple protocol), or `None`
    /// for null and for a row or column that does not exist.
    pub fn bytes(&self, row: i32, column: i32) -> Option<&[u8]> {
        if row < 0 || row >= self.rows() || column < 0 || column >= self.columns() {
            return None;
        }
        // SAFETY: row and column are in range; the value lives as long as the result.
        unsafe {
            if pq_sys::PQgetisnull(self.raw(), row, column) != 0 {
                return None;
            }
            let value = pq_sys::PQgetvalue(self.raw(), row, column);
            let length = pq_sys::PQgetlength(self.raw(), row, column);
            Some(std::slice::from_raw_parts(
                value.cast::<u8>(),
                usize::try_from(length).ok()?,
            ))
        }
    }

    /// A value in text format as libpq keeps it; `None` as for [`QueryResult::bytes`].
    pub fn c_text(&self, row: i32, column: i32) -> Option<&CStr> {
        self.bytes(row, column)?;
        // SAFETY: such a value exists, and libpq puts a zero after each.
        Some(unsafe { CStr::from_ptr(pq_sys::PQgetvalue(self.raw(), row, column)) })
    }

    /// A value as text; `None` also if it is not UTF-8.
    pub fn text(&self, row: i32, column: i32) -> Option<&str> {
        std::str::from_utf8(self.bytes(row, column)?).ok()
    }

    /// A boolean in the server's text form.
    pub fn boolean(&self, row: i32, column: i32) -> Option<bool> {
        match self.bytes(row, column)? {
            b"t" => Some(true),
            b"f" => Some(false),
            _ => None,
        }
    }

    fn field(&self, code: u8) -> Option<String> {
        // SAFETY: the result is owned; libpq answers null for a field that is not there.
        let text = unsafe { pq_sys::PQresultErrorField(self.raw(), i32::from(code)) };
        if text.is_null() {
            return None;
        }
        // SAFETY: a text that is not null is zero-terminated and lives as long as the result.
        Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        )
    }

    /// The error that this result carries, if its status is [`ResultStatus::Error`].
    pub fn error(&self) -> Option<RemoteError> {
        if self.status() != ResultStatus::Error {
            return None;
        }
        let clean = |text: String| redact(&text, &self.parameters);
        let primary = self
            .field(pq_sys::PG_DIAG_MESSAGE_PRIMARY)
            .unwrap_or_else(|| {
                // libpq's own errors have no fields. SAFETY: as for `field`; never null.
                let text = unsafe { CStr::from_ptr(pq_sys::PQresultErrorMessage(self.raw())) };
                text.to_string_lossy().into_owned()
            });
        let sqlstate = self.field(pq_sys::PG_DIAG_SQLSTATE);
        // An error without a code was made by libpq, when the connection broke.
        let sqlstate = sqlstate
            .and_then(|s| SqlState::from_text(&s))
            .unwrap_or(SqlState(*b"08006"));
        Some(RemoteError {
            severity: self
                .field(pq_sys::PG_DIAG_SEVERITY_NONLOCALIZED)
                .unwrap_or_else(|| "ERROR".into()),
            sqlstate,
            primary: clean(primary),
            detail: self.field(pq_sys::PG_DIAG_MESSAGE_DETAIL).map(clean),
            hint: self.field(pq_sys::PG_DIAG_MESSAGE_HINT).map(clean),
            context: self.field(pq_sys::PG_DIAG_CONTEXT).map(clean),
        })
    }

    /// The result itself, or its error.
    pub fn into_ok(self) -> Result<QueryResult, NetError> {
        match self.error() {
            Some(error) => Err(NetError::Remote(Box::new(error))),
            None => Ok(self),
        }
    }
}

impl Drop for QueryResult {
    fn drop(&mut self) {
        // SAFETY: owned, cleared once. PQclear only frees memory.
        unsafe { pq_sys::PQclear(self.result.as_ptr()) }
    }
}

impl std::fmt::Debug for QueryResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryResult")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// The payload of one CopyData message, without the protocol header.
///
/// The bytes start on a 16-byte boundary: libpq copies each message into a block of its own from
/// `malloc`, which the C standard aligns for any basic type.
pub struct CopyBuffer {
    bytes: NonNull<u8>,
    length: usize,
}

impl CopyBuffer {
    /// Takes ownership of a block that `PQgetCopyData` returned, with its length.
    pub(super) fn from_raw(bytes: NonNull<u8>, length: usize) -> CopyBuffer {
        debug_assert_eq!(bytes.as_ptr().align_offset(16), 0);
        CopyBuffer { bytes, length }
    }
}

impl Deref for CopyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: libpq filled `length` bytes; the block is owned and never written again.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.length) }
    }
}

impl Drop for CopyBuffer {
    fn drop(&mut self) {
        // SAFETY: owned, freed once, by libpq's own function as its contract asks.
        unsafe { pq_sys::PQfreemem(self.bytes.as_ptr().cast()) }
    }
}

impl std::fmt::Debug for CopyBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyBuffer")
            .field("length", &self.length)
            .finish()
    }
}
