//! Asking for slots, and waiting for them.
//!
//! The wait ends when somebody grants the request (see `core`'s queue), when it takes too long, when
//! the user cancels it, or when it turns out that somebody waits for this backend. The first is found
//! in shared memory, whatever the latch was set for; errors are left to the callbacks of `holders`.

use super::holders::{self, What};
use super::need::Need;
use super::settings::{self, BlockedAction, Scope};
use super::shared::{self, Details, View};
use super::{groups, hands, measure, overload, snapshot, usage};
use crate::error::raise;
use parallel_replicas_core::queue::{Admitted, Kind, Request, State};
use pgrx::{PgLogLevel, PgSqlErrorCode, ereport, pg_sys};
use std::fmt::Write as _;

/// After so long the client is told what it is waiting for.
const NOTICE_AFTER_MS: u64 = 5000;

/// A waiter looks at the queue at least so often.
const LOOK_INTERVAL_MS: u64 = 1000;

/// Gets slots for a statement, after waiting if need be: so many milliseconds. Raises if it cannot
/// have them.
///
/// # Safety
/// `statement` is null (a utility statement) or valid; `query` is null or about to start.
pub unsafe fn acquire(
    what: What,
    kind: Kind,
    need: Need,
    statement: *const pg_sys::PlannedStmt,
    query: *mut pg_sys::QueryDesc,
) -> u64 {
    // SAFETY: as the caller says.
    let waited_ms = unsafe { get(what, kind, need, statement, query) };
    holders::set_waited(what, waited_ms);
    // Not before: a statement that does not get its slots leaves nothing behind.
    if settings::scope() == Scope::Transaction && !holders::has(What::Transaction) {
        holders::add(What::Transaction, need.slots());
    }
    waited_ms
}

/// # Safety
/// As for [`acquire`].
unsafe fn get(
    what: What,
    kind: Kind,
    need: Need,
    statement: *const pg_sys::PlannedStmt,
    query: *mut pg_sys::QueryDesc,
) -> u64 {
    let slots = need.slots();
    if !holders::is_empty() && join(what, slots) {
        return 0;
    }
    let request = Request {
        kind,
        slots,
        group: groups::number(),
    };
    let own_use = usage::is_worth_counting(&request, need.cost).then(usage::own_use);
    let details = Details {
        is_counted: own_use.is_some(),
        ..details(need)
    };
    overload::measure_if_due();
    holders::add(what, slots);
    let index = shared::own_index();
    let state = shared::locked(|view| {
        view.refresh_limits();
        view.details[index] = details;
        if let Some(own_use) = own_use
            && let Some(process) = view.processes.get_mut(details.process_number as usize)
        {
            *process = own_use;
        }
        // Nothing runs here, or it would have been joined.
        view.queue.release(index);
        view.queue.enqueue(index, request, measure::now_ms());
        view.schedule();
        view.queue.state(index)
    });
    if state == State::Running {
        return 0;
    }
    // SAFETY: as the caller says.
    if unsafe { hands::are_full(statement) } {
        admit_over(Admitted::InTransaction);
        return 0;
    }
    reject_if_full();
    // SAFETY: as the caller says; an error leaves the query without a snapshot, and nobody will look.
    unsafe {
        let snapshot = snapshot::put_down(query);
        let waited_ms = wait(slots);
        snapshot::take_up(snapshot);
        waited_ms
    }
}

/// If something here holds slots already, nobody waits for more, or it might wait for itself. False if
/// nothing does.
fn join(what: What, slots: u32) -> bool {
    let most = holders::slots().max(slots);
    let joined = shared::locked(|view| {
        let index = shared::own_index();
        view.queue.resize(index, most);
        view.queue.state(index) == State::Running
    });
    if joined {
        holders::add(what, slots);
    }
    joined
}

fn admit_over(admitted: Admitted) {
    shared::locked(|view| {
        view.queue
            .admit_over(shared::own_index(), admitted, measure::now_ms());
    });
}

fn details(need: Need) -> Details {
    // SAFETY: reads this backend's own state.
    unsafe {
        Details {
            pid: pg_sys::MyProcPid,
            process_number: (*pg_sys::MyProc).pgprocno,
            user: pg_sys::GetUserId().to_u32(),
            database: pg_sys::MyDatabaseId.to_u32(),
            query_id: pg_sys::pgstat_get_my_query_id(),
            statement_start: pg_sys::GetCurrentStatementStartTimestamp(),
            enqueued_at: pg_sys::GetCurrentTimestamp(),
            cost: need.cost,
            processes: need.processes,
            drivers: 0,
            statement_timeout_ms: pg_sys::StatementTimeout,
            is_counted: false,
            cpu_us: 0,
        }
    }
}

/// Waits until the request is granted: so many milliseconds.
fn wait(slots: u32) -> u64 {
    let began = measure::now_ms();
    // SAFETY: a plain setting.
    let watch_interval = unsafe { pg_sys::DeadlockTimeout.max(1) as u64 };
    let mut next_watch = began + watch_interval;
    let mut notice_at = Some(began + NOTICE_AFTER_MS);
    let index = shared::own_index();
    loop {
        // SAFETY: this process's latch.
        unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
        let (state, deadline) = shared::locked(|view| {
            view.refresh_limits();
            view.schedule();
            let timeout = view.queue.header.limits.timeout_ms;
            let deadline = (timeout > 0).then(|| view.queue.entries[index].arrived_ms + timeout);
            (view.queue.state(index), deadline)
        });
        match state {
            State::Running => break,
            State::Expired => timed_out(slots, measure::now_ms() - began),
            State::Pending => {}
            State::Free => crate::error::internal("a waiting statement has lost its place"),
        }
        pgrx::check_for_interrupts!();
        reload_settings();
        if groups::follow() {
            continue;
        }
        overload::measure_if_due();
        let now = measure::now_ms();
        if now >= next_watch {
            next_watch = now + watch_interval;
            watch();
        }
        if notice_at.is_some_and(|at| now >= at) {
            notice_at = None;
            notice(slots);
        }
        let until = [
            Some(next_watch),
            notice_at,
            deadline,
            Some(now + LOOK_INTERVAL_MS.min(overload::interval_ms())),
        ];
        let until = until.into_iter().flatten().min().unwrap_or(now);
        sleep(until.saturating_sub(now).max(1));
    }
    test_point!("queue-granted");
    let waited_ms = measure::now_ms() - began;
    log(slots, waited_ms);
    waited_ms
}

fn sleep(timeout_ms: u64) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: this process's latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            timeout_ms as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
    }
}

/// A waiter is between planning and execution, as a prepared statement is between its uses, so it
/// can take new settings. It must: they may say that nobody waits any more.
fn reload_settings() {
    // SAFETY: plain flag of this process; what its main loop does with it.
    unsafe {
        if std::ptr::read_volatile(&raw const pg_sys::ConfigReloadPending) != 0 {
            std::ptr::write_volatile(&raw mut pg_sys::ConfigReloadPending, 0);
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Does somebody wait for a lock of this backend, which itself waits for slots?
fn watch() {
    let action = settings::blocked_action();
    if action == BlockedAction::Ignore {
        return;
    }
    let Some(pid) = hands::who_is_blocked() else {
        return;
    };
    if action == BlockedAction::Admit {
        admit_over(Admitted::Blocker);
        return;
    }
    raise(
        PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED,
        "canceling statement because it blocks another one while it waits in the query queue",
        &format!("Process {pid} waits for a lock that this statement holds."),
        "Repeat the statement, or set parallel_replicas.query_queue_blocked_action to admit.",
    )
}

/// Who is in front, for messages.
struct Situation {
    position: u32,
    slots: u64,
    total: u32,
    holders: Vec<(i32, u32)>,
}

impl Situation {
    const HOLDERS_SHOWN: usize = 5;

    fn now() -> Self {
        let mut holders = Vec::with_capacity(Self::HOLDERS_SHOWN);
        let (position, slots, total) = shared::locked(|view: &mut View<'_>| {
            for (entry, details) in view.queue.entries.iter().zip(view.details.iter()) {
                if entry.state == State::Running && holders.len() < Self::HOLDERS_SHOWN {
                    holders.push((details.pid, entry.slots));
                }
            }
            let header = &view.queue.header;
            (
                view.queue.position(shared::own_index()),
                header.slots,
                header.limits.total,
            )
        });
        Situation {
            position,
            slots,
            total,
            holders,
        }
    }

    fn describe(&self) -> String {
        let mut text = format!("{} of {} slots are held", self.slots, self.total);
        for (number, (pid, slots)) in self.holders.iter().enumerate() {
            let before = if number == 0 { ", by" } else { "," };
            let _ = write!(text, "{before} process {pid} ({slots})");
        }
        text
    }
}

fn reject_if_full() {
    let index = shared::own_index();
    let most = shared::locked(|view| {
        let full = view.queue.is_overfull() && view.queue.state(index) == State::Pending;
        if full {
            view.queue.reject(index);
        }
        full.then_some(view.queue.header.limits.queued_max)
    });
    let Some(most) = most else {
        return;
    };
    raise(
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        "query queue is full",
        &format!(
            "{most} statements are waiting already; {}.",
            Situation::now().describe()
        ),
        "Repeat the statement later, or raise parallel_replicas.query_queue_max_queued_queries.",
    )
}

fn timed_out(slots: u32, waited_ms: u64) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
        "canceling statement because it waited too long in the query queue",
        &format!(
            "It waited {} ms for {slots} slots; {}.",
            waited_ms,
            Situation::now().describe()
        ),
        "Repeat the statement later, raise \
         parallel_replicas.query_queue_pending_timeout_second, or see \
         parallel_replicas.running_queries for what runs.",
    )
}

fn notice(slots: u32) {
    let situation = Situation::now();
    ereport!(
        PgLogLevel::NOTICE,
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        "statement is waiting in the query queue",
        format!(
            "It waits for {slots} slots at position {}; {}.",
            situation.position,
            situation.describe()
        )
    );
}

fn log(slots: u32, waited_ms: u64) {
    if settings::log_min_wait_ms().is_some_and(|least| waited_ms >= least) {
        ereport!(
            PgLogLevel::LOG,
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            format!("statement waited {waited_ms} ms in the query queue for {slots} slots")
        );
    }
}
