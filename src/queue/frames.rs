//! What this backend is in the middle of: is a statement the user's own, or part of another one?
//!
//! The hooks enter a frame before they pass control on, and leave it afterwards. An ERROR jumps over
//! the leaving, so frames say themselves when they are dead: all frames belong to one message of the
//! client, told by its start time, and those entered inside a subtransaction die with it.

use super::holders;
use crate::pg::proc;
use crate::pg::process_local::ProcessLocal;
use crate::pg::statement::{self, message_start, nest_level};
use pgrx::pg_sys;
use std::ffi::c_void;

/// What a hook has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    Planner,
    Executor,
    /// A utility statement whose queries are nested in it.
    Utility,
    /// A utility statement that executes one query on the user's behalf: EXPLAIN, COPY (query) TO.
    Through,
    /// The same, in a portal of the query's own: EXECUTE, DECLARE CURSOR.
    ThroughPortal,
    /// The same, and stores the result, in a portal or not: CREATE TABLE AS.
    ThroughLoad,
}

#[derive(Clone, Copy)]
struct Entered {
    frame: Frame,
    nest_level: i32,
}

/// The message whose frames these are.
static MESSAGE: ProcessLocal<pg_sys::TimestampTz> = ProcessLocal::new(0);
static DEPTH: ProcessLocal<usize> = ProcessLocal::new(0);

/// The frames that are entered. Of those beyond the second only the number is kept: a statement is the
/// user's own below none, may be below one, and is not below more.
static FIRST: [ProcessLocal<Entered>; 2] = [const {
    ProcessLocal::new(Entered {
        frame: Frame::Planner,
        nest_level: 0,
    })
}; 2];

/// What must be noticed later is.
static WATCHED: ProcessLocal<bool> = ProcessLocal::new(false);

/// Enters a frame; the result is for [`leave`]. For hooks that stand behind no guard.
pub fn enter(frame: Frame) -> usize {
    if !WATCHED.get() {
        // SAFETY: once in the process.
        unsafe { watch_ends() };
    }
    let position = depth();
    if let Some(entered) = FIRST.get(position) {
        entered.set(Entered {
            frame,
            nest_level: nest_level(),
        });
    }
    DEPTH.set(position + 1);
    position
}

/// Leaves a frame, and whatever was left inside it by an error.
pub fn leave(position: usize) {
    DEPTH.set(DEPTH.get().min(position));
}

/// The number of frames of the present message.
fn depth() -> usize {
    let message = message_start();
    if MESSAGE.get() != message {
        MESSAGE.set(message);
        DEPTH.set(0);
    }
    DEPTH.get()
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn watch_ends() {
    // SAFETY: the function lives as long as the process.
    unsafe { pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut()) };
    // One holds no slots itself, but works for a statement that does.
    if proc::is_parallel_worker() {
        holders::watch_ends();
    }
    WATCHED.set(true);
}

/// Frames that were entered inside a subtransaction die with it.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction_event(
    event: pg_sys::SubXactEvent::Type,
    _subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    if event != pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        return;
    }
    let nest_level = nest_level();
    let of_it = |entered: &ProcessLocal<Entered>| entered.get().nest_level >= nest_level;
    if let Some(dead) = FIRST.iter().take(DEPTH.get()).position(of_it) {
        DEPTH.set(dead);
    }
}

/// How a statement that is about to start stands to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// What the client sent.
    Own,
    /// The query of a utility statement that the client sent.
    Through { load: bool },
    /// Part of something else: a function, a trigger, planning.
    Nested,
}

/// What functions execute is nested, also where they are in no frame, or in one that waits for a query:
/// foreign keys checked at COMMIT, domains checked at Bind, arguments of EXECUTE, event triggers.
///
/// # Safety
/// `statement` is a valid planned statement, a utility's or one whose rows go to `dest`, if they do not go to
/// EXPLAIN.
pub unsafe fn standing(
    statement: *const pg_sys::PlannedStmt,
    dest: pg_sys::CommandDest::Type,
    explained: bool,
) -> Standing {
    use pg_sys::CommandDest::{DestCopyOut, DestIntoRel, DestTransientRel};
    let depth = depth();
    if depth > 1 || statement::is_in_spi() {
        return Standing::Nested;
    }
    // SAFETY: as the caller says.
    let in_portal = unsafe { is_in_active_portal(statement) };
    match (depth, FIRST[0].get().frame) {
        (0, _) if in_portal => Standing::Own,
        (1, Frame::ThroughPortal) if in_portal => Standing::Through { load: false },
        (1, Frame::Through) if explained || [DestIntoRel, DestCopyOut].contains(&dest) => {
            Standing::Through { load: false }
        }
        (1, Frame::ThroughLoad) if in_portal || [DestIntoRel, DestTransientRel].contains(&dest) => {
            Standing::Through { load: true }
        }
        _ => Standing::Nested,
    }
}

/// # Safety
/// As for [`standing`].
unsafe fn is_in_active_portal(statement: *const pg_sys::PlannedStmt) -> bool {
    // SAFETY: the portal that is being started or executed, if any.
    unsafe {
        let portal = pg_sys::ActivePortal;
        !portal.is_null()
            && crate::pg::plan::items::<pg_sys::PlannedStmt>((*portal).stmts)
                .any(|other| std::ptr::eq(other, statement))
    }
}
