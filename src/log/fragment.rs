//! A fragment that this server executes for another one: its slot in the view of what runs now, and
//! its query's id where an administrator looks.

use super::{QueryId, id_text};
use crate::shm::logs::{Origin, Text};
use crate::shm::running::{self, About, Kind, Phase, SlotId};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CString;

thread_local! {
    static SLOT: Cell<SlotId> = const { Cell::new(SlotId::NONE) };
}

/// This backend's part in a query, until dropped. Dropping calls nothing in PostgreSQL.
pub struct Serving(());

impl Serving {
    /// `user` is the role as which the fragment will run.
    pub fn begin(query_id: QueryId, user: u32) -> Self {
        let text = format!("fragment of query {} of another server", id_text(&query_id));
        // SAFETY: plain globals and the clock.
        let about = unsafe {
            About {
                origin: Origin {
                    query_id,
                    user,
                    database: pg_sys::MyDatabaseId.to_u32(),
                    pid: pg_sys::MyProcPid,
                },
                start: pg_sys::GetCurrentTimestamp(),
                text: Text::new(&text),
            }
        };
        SLOT.set(running::take(Kind::Fragment, &about));
        announce(&text);
        Serving(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SLOT.take().release();
    }
}

/// The fragment has come so far.
pub fn set_phase(phase: Phase) {
    SLOT.get().set_phase(phase);
}

/// One more granule is read here.
pub fn granule_read() {
    SLOT.get().add_done(1);
}

/// Shows the text as this backend's query: in pg_stat_activity, and as the statement of messages in
/// the server's log. Both end with the statement.
fn announce(text: &str) {
    let Ok(text) = CString::new(text) else {
        return;
    };
    // SAFETY: the copy lives in the context of the client's message, as the original does, until the
    // next message comes, by which time nobody refers to it.
    unsafe {
        let copy = pg_sys::MemoryContextStrdup(pg_sys::MessageContext, text.as_ptr());
        pg_sys::debug_query_string = copy;
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, copy);
    }
}

/// The id as it stands in application_name.
pub fn application_name(query_id: &QueryId) -> Option<CString> {
    CString::new(format!("parallel_replicas {}", id_text(query_id))).ok()
}
