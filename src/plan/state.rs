//! What is known while one statement is being planned.
//!
//! Planning nests: a function that the planner evaluates may plan a query of its own. The entries
//! form a stack; each belongs to the (sub)transaction that pushed it, so that an ERROR, which
//! never returns to the hook, cannot leave one behind.

#![allow(ffi_unwind_calls)]

use super::private::Refused;
use crate::cluster::Replica;
use crate::pg::statement;
use crate::settings;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_void};
use std::rc::Rc;

/// What is settled before planning starts.
pub struct Start {
    /// Ship whatever can be shipped, whatever it costs.
    pub force: bool,
    /// Under force, and the user's own query: an error if it cannot use replicas.
    pub strict: bool,
    /// The user's values of the settings that are changed meanwhile.
    pub saved_settings: Rc<[(&'static CStr, CString)]>,
    /// Replicas to plan with; empty only under force, to be told why not.
    pub replicas: Rc<[Replica]>,
    /// How many of them can be used and are admitted by the limits.
    pub replicas_used: usize,
    /// The limits alone.
    pub replicas_most: usize,
    pub links_per_replica: usize,
    pub local_plan: bool,
    /// It is expected to: nobody is preferred to this server.
    pub local_share: bool,
    /// `max_parallel_workers_per_gather` as the user set it.
    pub local_workers_limit: i32,
}

/// One planner call that may use replicas.
pub struct Planning {
    pub start: Start,
    /// Scans of tables that could use replicas, as far as the table is concerned.
    pub eligible_scans: usize,
    pub refused: Vec<Refused>,
    /// Pages of all children of the parent looked at last, which the planner's root and
    /// the parent's range table index name.
    pub parent_pages: Option<((usize, i32), f64)>,
    subtransaction: pg_sys::SubTransactionId,
}

enum Entry {
    Attempt(Planning),
    Marker(pg_sys::SubTransactionId),
}

impl Entry {
    fn subtransaction(&self) -> pg_sys::SubTransactionId {
        match self {
            Entry::Attempt(planning) => planning.subtransaction,
            Entry::Marker(subtransaction) => *subtransaction,
        }
    }
}

impl Planning {
    /// Processes on replicas.
    pub fn links(&self) -> usize {
        self.start.replicas_used * self.start.links_per_replica
    }

    /// How many replicas a scan of so many rows may use. One participant is this server; if no other
    /// is left, none is.
    pub fn replicas_for(&self, rows: f64) -> usize {
        replicas_for(rows, self.start.replicas_used)
    }

    pub fn refuse(&mut self, refused: Refused) {
        if !self.refused.contains(&refused) && self.refused.len() < 16 {
            self.refused.push(refused);
        }
    }
}

/// Applies `parallel_replicas_min_number_of_rows_per_replica`.
pub fn replicas_for(rows: f64, most: usize) -> usize {
    let least_rows = settings::min_rows_per_replica();
    if least_rows == 0 {
        return most;
    }
    let participants = (rows / f64::from(least_rows)) as usize;
    if participants <= 1 {
        0
    } else {
        most.min(participants)
    }
}

thread_local! {
    static STACK: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    /// The next query to be planned is the one that EXPLAIN was asked about.
    static EXPLAINED: Cell<bool> = const { Cell::new(false) };
    static DISABLED: Cell<bool> = const { Cell::new(false) };
    static CALLBACKS: Cell<bool> = const { Cell::new(false) };
    /// Why the statement planned last had to do without replicas, for EXPLAIN.
    static LAST_REFUSED: RefCell<Option<Refused>> = const { RefCell::new(None) };
}

/// Pushes an entry and returns its position.
///
/// [`register_callbacks`] has been called.
pub fn push(start: Start) -> usize {
    let subtransaction = statement::subtransaction();
    STACK.with_borrow_mut(|stack| {
        stack.push(Entry::Attempt(Planning {
            start,
            eligible_scans: 0,
            refused: Vec::new(),
            parent_pages: None,
            subtransaction,
        }));
        stack.len() - 1
    })
}

/// Takes the entry at `position` off, and whatever is above it.
pub fn pop(position: usize) -> Option<Planning> {
    STACK.with_borrow_mut(|stack| {
        stack.truncate(position + 1);
        match (stack.len() == position + 1).then(|| stack.pop()).flatten() {
            Some(Entry::Attempt(planning)) => Some(planning),
            _ => None,
        }
    })
}

/// Pushes an entry for a planner call that has nothing to do with replicas.
pub fn push_marker() -> usize {
    register_callbacks();
    let subtransaction = statement::subtransaction();
    STACK.with_borrow_mut(|stack| {
        stack.push(Entry::Marker(subtransaction));
        stack.len() - 1
    })
}

pub fn pop_marker(position: usize) {
    STACK.with_borrow_mut(|stack| stack.truncate(position));
}

/// Works on the innermost entry, if the innermost planner call may use replicas.
pub fn with_current<T>(f: impl FnOnce(&mut Planning) -> T) -> Option<T> {
    STACK.with_borrow_mut(|stack| match stack.last_mut() {
        Some(Entry::Attempt(planning)) => Some(f(planning)),
        _ => None,
    })
}

/// Works on the entry at `position`.
pub fn with<T>(position: usize, f: impl FnOnce(&mut Planning) -> T) -> Option<T> {
    STACK.with_borrow_mut(|stack| match stack.get_mut(position) {
        Some(Entry::Attempt(planning)) => Some(f(planning)),
        _ => None,
    })
}

/// Is any planner call going on that was made while replicas are switched on?
pub fn is_planning() -> bool {
    STACK.with_borrow(|stack| !stack.is_empty())
}

/// May the innermost planner call use replicas?
pub fn is_active() -> bool {
    STACK.with_borrow(|stack| matches!(stack.last(), Some(Entry::Attempt(_))))
}

/// This backend works for another server's query, and must not use replicas itself.
pub fn disable(disabled: bool) {
    DISABLED.set(disabled);
}

pub fn is_disabled() -> bool {
    DISABLED.get()
}

pub fn set_explained(explained: bool) {
    EXPLAINED.set(explained);
}

pub fn is_explained() -> bool {
    EXPLAINED.get()
}

pub fn take_explained() -> bool {
    EXPLAINED.take()
}

pub fn set_last_refused(refused: Option<Refused>) {
    LAST_REFUSED.set(refused);
}

pub fn take_last_refused() -> Option<Refused> {
    LAST_REFUSED.take()
}

/// To be called before anything with a destructor is made: it may run out of memory.
pub fn register_callbacks() {
    if CALLBACKS.get() {
        return;
    }
    // SAFETY: the callbacks live as long as the process.
    unsafe {
        statement::register_transaction_callback(Some(at_transaction_end), std::ptr::null_mut());
        statement::register_subtransaction_callback(
            Some(at_subtransaction_end),
            std::ptr::null_mut(),
        );
    }
    CALLBACKS.set(true);
}

/// Unguarded, as its fellow: nothing in them raises an error. A session may end while the stack is in
/// use; then it does not matter any more.
unsafe extern "C-unwind" fn at_transaction_end(
    event: pg_sys::XactEvent::Type,
    _context: *mut c_void,
) {
    if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
        with_idle_stack(Vec::clear);
    }
}

fn with_idle_stack(change: impl FnOnce(&mut Vec<Entry>)) {
    STACK.with(|stack| {
        if let Ok(mut stack) = stack.try_borrow_mut() {
            change(&mut stack);
        }
    });
}

unsafe extern "C-unwind" fn at_subtransaction_end(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _context: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        with_idle_stack(|stack| stack.retain(|entry| entry.subtransaction() < subtransaction));
    }
}
