//! What this backend's slots are held for, and giving them back.
//!
//! A backend has one entry in the queue, however many statements it has open: cursors overlap, and
//! drivers fetch from several portals by turns. The entry holds as many slots as the dearest of them
//! needs, until the last has ended. Ends are noticed at the executor's end, at the end of the
//! statement, of the transaction or of the subtransaction that they began in, and at the end of the
//! process; whichever comes first wins, and the others find nothing to do.

use super::{shared, usage};
use crate::pg::process_local::ProcessLocal;
use crate::pg::statement::subtransaction;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

/// What holds slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A query, from the executor's start to its end.
    Query(*const pg_sys::QueryDesc),
    /// A utility statement, across the transactions that it commits.
    Utility,
    /// The rest of the transaction.
    Transaction,
}

#[derive(Clone, Copy)]
struct Holder {
    what: What,
    subtransaction: pg_sys::SubTransactionId,
    /// Where a query is being executed at the moment: an error there leaves its cursor dead, although
    /// the cursor was opened further out.
    running: pg_sys::SubTransactionId,
    slots: u32,
    /// How long the statement waited for them, in milliseconds.
    waited_ms: u64,
    /// Of a query that has been executed.
    estate: *const pg_sys::EState,
}

/// `InvalidSubTransactionId` of c.h.
const NO_SUBTRANSACTION: pg_sys::SubTransactionId = 0;

/// `TopSubTransactionId` of c.h.
const TOP_SUBTRANSACTION: pg_sys::SubTransactionId = 1;

thread_local! {
    static HOLDERS: RefCell<Vec<Holder>> = const { RefCell::new(Vec::new()) };
    static CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

/// There is any. Asked several times for every statement.
static ANY: ProcessLocal<bool> = ProcessLocal::new(false);

/// Has this process's ends noticed: a backend's from the first holder on, as one that never queues pays
/// nothing, and a parallel worker's.
pub fn watch_ends() {
    if CALLBACKS.get() {
        return;
    }
    // SAFETY: the functions live as long as the process.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_event), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut());
        pg_sys::before_shmem_exit(Some(process_exit), pg_sys::Datum::null());
    }
    CALLBACKS.set(true);
}

pub fn is_empty() -> bool {
    !ANY.get()
}

pub fn has(what: What) -> bool {
    HOLDERS.with_borrow(|holders| holders.iter().any(|holder| holder.what == what))
}

/// The most slots that anything here needs; 0 if there is nothing.
pub fn slots() -> u32 {
    HOLDERS.with_borrow(|holders| {
        let slots = holders.iter().map(|holder| holder.slots);
        slots.max().unwrap_or(0)
    })
}

/// Adds a holder. Before it asks for slots: so whatever happens then, they are given back.
pub fn add(what: What, slots: u32) {
    watch_ends();
    let subtransaction = match what {
        What::Transaction => TOP_SUBTRANSACTION,
        What::Query(_) | What::Utility => subtransaction(),
    };
    HOLDERS.with_borrow_mut(|holders| {
        holders.push(Holder {
            what,
            subtransaction,
            running: NO_SUBTRANSACTION,
            slots,
            waited_ms: 0,
            estate: std::ptr::null(),
        });
    });
    ANY.set(true);
}

/// The statement got its slots after so many milliseconds.
pub fn set_waited(what: What, waited_ms: u64) {
    with(what, |holder| holder.waited_ms = waited_ms);
}

/// Slots of the query that is executed in this state, and how long it waited for them, in milliseconds.
pub fn granted(estate: *const pg_sys::EState) -> Option<(u32, u64)> {
    HOLDERS.with_borrow(|holders| {
        let holder = holders.iter().find(|holder| holder.estate == estate)?;
        Some((holder.slots, holder.waited_ms))
    })
}

/// Has the query that is executed in this state hold up to `most` slots, as far as some are free and
/// nobody waits for them. Answers how many it holds.
pub fn grow(estate: *const pg_sys::EState, most: u32) -> u32 {
    let got = shared::locked(|view| view.queue.grow(shared::own_index(), most));
    HOLDERS.with_borrow_mut(|holders| {
        if let Some(holder) = holders.iter_mut().find(|holder| holder.estate == estate) {
            holder.slots = holder.slots.max(got.min(most));
        }
    });
    got
}

/// The executor works on a query, in the present subtransaction, until [`pause`].
///
/// # Safety
/// The query has been started.
pub unsafe fn resume(query: *const pg_sys::QueryDesc) {
    if is_empty() {
        return;
    }
    let subtransaction = subtransaction();
    // SAFETY: as the caller says.
    let estate = unsafe { (*query).estate };
    with(What::Query(query), |holder| {
        holder.running = subtransaction;
        holder.estate = estate;
    });
}

/// The executor has come back from a query without an error.
pub fn pause(query: *const pg_sys::QueryDesc) {
    if is_empty() {
        return;
    }
    with(What::Query(query), |holder| {
        holder.running = NO_SUBTRANSACTION
    });
}

fn with(what: What, change: impl Fn(&mut Holder)) {
    HOLDERS.with_borrow_mut(|holders| {
        holders
            .iter_mut()
            .filter(|holder| holder.what == what)
            .for_each(change);
    });
}

/// A query or utility statement has ended.
pub fn end(what: What) {
    keep(|holder| holder.what != what);
}

/// Keeps those that the test says, and gives back what only the others needed.
fn keep(test: impl Fn(&Holder) -> bool) {
    let before = slots();
    let gone = HOLDERS.with_borrow_mut(|holders| {
        let count = holders.len();
        holders.retain(test);
        ANY.set(!holders.is_empty());
        count != holders.len()
    });
    if !gone {
        return;
    }
    let now = slots();
    if now == 0 {
        shared::locked(|view| view.release_own());
    } else if now < before {
        shared::locked(|view| {
            view.queue.resize(shared::own_index(), now);
            view.schedule();
        });
    }
}

/// Unguarded where nothing is held.
unsafe extern "C-unwind" fn transaction_event(event: pg_sys::XactEvent::Type, arg: *mut c_void) {
    if !is_empty() {
        // SAFETY: PostgreSQL's own arguments.
        unsafe { transaction_event_holding(event, arg) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction_event_holding(
    event: pg_sys::XactEvent::Type,
    _arg: *mut c_void,
) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    match event {
        // ANALYZE and others commit in their middle.
        XACT_EVENT_COMMIT => keep(|holder| holder.what == What::Utility),
        XACT_EVENT_ABORT | XACT_EVENT_PREPARE => keep(|_| false),
        _ => {}
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction_event(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    match event {
        SUBXACT_EVENT_ABORT_SUB => keep(|holder| {
            holder.subtransaction != subtransaction && holder.running != subtransaction
        }),
        // Cursors go over to the parent.
        SUBXACT_EVENT_COMMIT_SUB => HOLDERS.with_borrow_mut(|holders| {
            for holder in holders {
                if holder.subtransaction == subtransaction {
                    holder.subtransaction = parent;
                }
            }
        }),
        _ => {}
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn process_exit(_code: i32, _arg: pg_sys::Datum) {
    keep(|_| false);
    usage::process_ends();
}
