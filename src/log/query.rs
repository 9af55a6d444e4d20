//! One statement on its coordinator, from the first execution of one of its fragments to the end of
//! its executor state, however that comes about.
//!
//! The end is told by the query's memory context: it goes away after an error, too.

use super::{QueryId, Scope, id_text, new_id, origin, steps, utf8};
use crate::pg::guc;
use crate::settings::{self, LogLevel};
use crate::shm::events::{self, Event};
use crate::shm::logs::{Ending, Origin, QUERIES, QueryEntry, Step, Text, Totals};
use crate::shm::running::{self, About, Kind, SlotId};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

struct Query {
    estate: *mut pg_sys::EState,
    slot: SlotId,
    /// The executor has ended in order.
    ended: bool,
    entry: Box<QueryEntry>,
}

thread_local! {
    /// Statements in execution, the innermost last.
    static ACTIVE: RefCell<Vec<Query>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<Option<QueryId>> = const { Cell::new(None) };
}

/// Id of the last statement of this session that was executed over replicas, or could have been.
pub fn last_id() -> Option<QueryId> {
    LAST.get()
}

/// Enters a fragment of a statement. The statement gets an id at its first one.
///
/// # Safety
/// `estate` is the state of a running query; `granted`: its slots in the query queue, and how many
/// milliseconds it waited for them.
pub unsafe fn enter(estate: *mut pg_sys::EState, granted: Option<(u32, u64)>) -> Scope {
    let known = ACTIVE.with_borrow_mut(|active| {
        let query = active.iter_mut().find(|query| query.estate == estate)?;
        query.entry.fragments += 1;
        Some(scope(query))
    });
    if let Some(scope) = known {
        return scope;
    }
    let mut origin = origin(new_id());
    LAST.set(Some(origin.query_id));
    // SAFETY: plain globals; only addresses are compared.
    unsafe {
        // A query that the client sent belongs to who is logged in, as in pg_stat_activity, whatever role
        // executes it.
        if std::ptr::eq((*estate).es_sourceText, pg_sys::debug_query_string) {
            origin.user = pg_sys::GetAuthenticatedUserId().to_u32();
        }
    }
    if settings::log_level() == LogLevel::Off {
        return Scope {
            origin,
            ..Scope::NONE
        };
    }
    // SAFETY: as the caller says. Memory is allocated before anything is kept.
    unsafe {
        let callback = pg_sys::MemoryContextAllocZero(
            (*estate).es_query_cxt,
            size_of::<pg_sys::MemoryContextCallback>(),
        )
        .cast::<pg_sys::MemoryContextCallback>();
        (*callback).func = Some(at_end);
        (*callback).arg = estate.cast();
        let entry = Box::new(new_entry(estate, origin, granted));
        let slot = running::take(
            Kind::Query,
            &About {
                origin,
                start: entry.start,
                text: entry.text,
            },
        );
        let query = Query {
            estate,
            slot,
            ended: false,
            entry,
        };
        let scope = scope(&query);
        ACTIVE.with_borrow_mut(|active| active.push(query));
        pg_sys::MemoryContextRegisterResetCallback((*estate).es_query_cxt, callback);
        scope
    }
}

fn scope(query: &Query) -> Scope {
    Scope::new(query.entry.origin, query.slot, query.entry.fragments)
}

/// # Safety
/// `estate` is the state of a running query.
unsafe fn new_entry(
    estate: *mut pg_sys::EState,
    origin: Origin,
    granted: Option<(u32, u64)>,
) -> QueryEntry {
    let (slots, pending_ms) = granted.unwrap_or_default();
    // SAFETY: as the caller says.
    unsafe {
        let statement = (*estate).es_plannedstmt;
        QueryEntry {
            origin,
            ending: Ending::Failed,
            start: pg_sys::GetCurrentTimestamp(),
            end: 0,
            statement_id: (*statement).queryId as i64,
            fragments: 1,
            totals: Totals::default(),
            slots,
            pending_ms,
            reason: Text::EMPTY,
            reason_text: Text::EMPTY,
            settings: Text::new(&guc::changed("parallel_replicas").join(", ")),
            text: Text::new(&statement_text(
                &utf8((*estate).es_sourceText),
                (*statement).stmt_location,
                (*statement).stmt_len,
            )),
        }
    }
}

/// The statement's part of a text with several.
fn statement_text(source: &str, location: i32, length: i32) -> String {
    let start = location.max(0) as usize;
    let rest = source.get(start..).unwrap_or(source);
    let part = match length {
        1.. => rest.get(..length as usize).unwrap_or(rest),
        _ => rest,
    };
    part.trim().to_owned()
}

fn with(estate: *mut pg_sys::EState, f: impl FnOnce(&mut Query)) {
    ACTIVE.with_borrow_mut(|active| {
        if let Some(query) = active.iter_mut().find(|query| query.estate == estate) {
            f(query);
        }
    });
}

/// Counts what an execution of a fragment came to.
pub fn add(estate: *mut pg_sys::EState, totals: &Totals) {
    with(estate, |query| query.entry.totals.add(totals));
}

/// Remembers why a fragment is executed without replicas.
pub fn not_used(estate: *mut pg_sys::EState, scope: &Scope, code: &str, text: &str) {
    with(estate, |query| {
        query.entry.reason.set(code);
        query.entry.reason_text.set(text);
    });
    steps::note(scope, Step::NotUsed, "", text);
}

/// A statement that was planned to do without replicas although a table of it was eligible. It gets an
/// entry without duration, since nothing of it is executed here.
pub fn planned_without(code: &str, text: &str) {
    if settings::log_level() == LogLevel::Off {
        return;
    }
    // SAFETY: the text of the client's message, or null; copied at once. It belongs to who is logged
    // in, also within a function that is executed with its owner's rights.
    let (source, now, user) = unsafe {
        (
            utf8(pg_sys::debug_query_string),
            pg_sys::GetCurrentTimestamp(),
            pg_sys::GetAuthenticatedUserId().to_u32(),
        )
    };
    let origin = Origin {
        user,
        ..origin(new_id())
    };
    LAST.set(Some(origin.query_id));
    let entry = QueryEntry {
        origin,
        ending: Ending::Finished,
        start: now,
        end: 0,
        statement_id: 0,
        fragments: 0,
        totals: Totals::default(),
        slots: 0,
        pending_ms: 0,
        reason: Text::new(code),
        reason_text: Text::new(text),
        settings: Text::new(&guc::changed("parallel_replicas").join(", ")),
        text: Text::new(&source),
    };
    keep(&entry);
}

fn keep(entry: &QueryEntry) {
    if QUERIES.push(entry) {
        events::add(Event::QueryLogOverwritten, 1);
    }
}

/// The statement's executor ends in order.
pub fn ended(estate: *mut pg_sys::EState) {
    with(estate, |query| query.ended = true);
}

/// The statement's memory goes away: after its end, or after an error.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_end(estate: *mut c_void) {
    let query = ACTIVE.with_borrow_mut(|active| {
        let position = active
            .iter()
            .rposition(|query| query.estate == estate.cast())?;
        Some(active.remove(position))
    });
    let Some(mut query) = query else {
        return;
    };
    query.slot.release();
    // SAFETY: reads the clock.
    query.entry.end = unsafe { pg_sys::GetCurrentTimestamp() };
    if query.ended {
        query.entry.ending = Ending::Finished;
    }
    keep(&query.entry);
    let duration = query.entry.end - query.entry.start;
    let how = match query.entry.ending {
        Ending::Finished => "finished",
        Ending::Failed => "failed",
    };
    steps::note(
        &scope(&query),
        Step::Ended,
        "",
        &format!("{how} after {:.3} ms", duration as f64 / 1000.0),
    );
}

/// For messages in the server's log.
pub fn label(id: &QueryId) -> String {
    format!("query {}", id_text(id))
}
