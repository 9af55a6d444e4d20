//! What a query did: recorded while it runs, for `query_log`, `text_log` and the views of what runs
//! now.
//!
//! `query` follows one statement on its coordinator, `steps` writes down single steps, `fragment`
//! follows the work for another server, `report` reads all of it back for SQL. Entries lie in shared
//! memory (`shm::logs`, `shm::running`).
//!
//! Called by `plan`, `exec`, `serve` and `api`. With `parallel_replicas.log_level` off every call here
//! is a branch. Nothing here raises an error or changes what a query does.

pub mod fragment;
pub mod query;
pub mod report;
pub mod steps;

use crate::settings::{self, LogLevel};
use crate::shm::logs::Origin;
use crate::shm::running::SlotId;
use pgrx::pg_sys;

/// Random bytes that name a query on all servers.
pub type QueryId = [u8; 16];

/// What whoever works for a query needs to know to report it. Plain data, also in shared memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Scope {
    pub origin: Origin,
    /// Where progress is shown.
    pub slot: SlotId,
    /// Number of the execution of a fragment within the query, from 1.
    pub fragment: u32,
    keeps: bool,
    traces: bool,
}

impl Scope {
    /// Nobody wants to know.
    pub const NONE: Scope = Scope {
        origin: Origin {
            query_id: [0; 16],
            user: 0,
            database: 0,
            pid: 0,
        },
        slot: SlotId::NONE,
        fragment: 0,
        keeps: false,
        traces: false,
    };

    fn new(origin: Origin, slot: SlotId, fragment: u32) -> Self {
        let level = settings::log_level();
        Scope {
            origin,
            slot,
            fragment,
            keeps: level >= LogLevel::Summary,
            traces: level >= LogLevel::Trace,
        }
    }
}

impl Default for Scope {
    fn default() -> Self {
        Scope::NONE
    }
}

/// This process, for a query.
fn origin(query_id: QueryId) -> Origin {
    // SAFETY: plain globals of this process.
    unsafe {
        Origin {
            query_id,
            user: pg_sys::GetUserId().to_u32(),
            database: pg_sys::MyDatabaseId.to_u32(),
            pid: pg_sys::MyProcPid,
        }
    }
}

/// A new id: a UUID of version 4.
fn new_id() -> QueryId {
    let mut id = [0; 16];
    // SAFETY: fills the buffer. Should no random bytes be had, an id of zeroes is as good as none.
    unsafe { pg_sys::pg_strong_random(id.as_mut_ptr().cast(), id.len()) };
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// In the usual form, as PostgreSQL prints a uuid.
pub fn id_text(id: &QueryId) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in id.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Text of this database as UTF-8, which is what the logs hold.
///
/// # Safety
/// `text` is null or zero-terminated.
unsafe fn utf8(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { std::ffi::CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
