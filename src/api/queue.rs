//! The query queue's views.

use crate::error;
use crate::log::report::Reader;
use crate::queue::{groups, status};
use parallel_replicas_core::queue::{Admitted, Blocked, State};
use pgrx::iter::TableIterator;
use pgrx::prelude::TimestampWithTimeZone;
use pgrx::{PgSqlErrorCode, name, pg_extern, pg_sys};

/// Raises 55000 without preload.
fn require_preload() {
    if !crate::queue::shared::exists() {
        crate::error::not_preloaded();
    }
}

fn time(micros: i64) -> Option<TimestampWithTimeZone> {
    TimestampWithTimeZone::try_from(micros).ok()
}

fn blocked_reason(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::Order => "order",
        Blocked::Slots => "slots",
        Blocked::Concurrency => "concurrency_limit",
        Blocked::Group => "group_limit",
        Blocked::Overload => "overload",
    }
}

fn admitted_by(admitted: Admitted) -> &'static str {
    match admitted {
        Admitted::Scheduler => "scheduler",
        Admitted::InTransaction => "in_transaction",
        Admitted::Blocker => "blocker",
        Admitted::SwitchedOff => "switched_off",
    }
}

/// One row per statement that holds slots or waits for them; of others' statements, as in
/// pg_stat_activity, not what they are or since when. Raises 55000 without preload.
#[pg_extern(volatile, strict, parallel_restricted)]
#[allow(clippy::type_complexity)]
fn get_running_queries() -> TableIterator<
    'static,
    (
        name!(query_id, Option<i64>),
        name!(pid, i32),
        name!(user_oid, pg_sys::Oid),
        name!(database_oid, pg_sys::Oid),
        name!(resource_group, Option<String>),
        name!(start_time, Option<TimestampWithTimeZone>),
        name!(pending_timeout, Option<TimestampWithTimeZone>),
        name!(query_timeout, Option<TimestampWithTimeZone>),
        name!(state, &'static str),
        name!(slots, i32),
        name!(processes, i32),
        name!(position, Option<i32>),
        name!(wait_ms, i64),
        name!(admitted_by, Option<&'static str>),
        name!(blocked_reason, Option<&'static str>),
        name!(estimated_cost, Option<f64>),
        name!(cpu_ms, Option<i64>),
    ),
> {
    require_preload();
    let reader = Reader::new();
    let rows: Vec<_> = status::statements()
        .into_iter()
        .map(|statement| {
            let (entry, details) = (statement.entry, statement.details);
            let pending = entry.state == State::Pending;
            let sees = reader.sees(details.user);
            let timeout = status::pending_timeout_s() as i64;
            let limit = i64::from(details.statement_timeout_ms);
            (
                (sees && details.query_id != 0).then_some(details.query_id as i64),
                details.pid,
                pg_sys::Oid::from(details.user),
                pg_sys::Oid::from(details.database),
                groups::name_of(entry.group).filter(|_| sees),
                time(details.statement_start).filter(|_| sees),
                (sees && timeout > 0)
                    .then(|| time(details.enqueued_at + timeout * 1_000_000))
                    .flatten(),
                (sees && limit > 0)
                    .then(|| time(details.statement_start + limit * 1000))
                    .flatten(),
                if pending { "PENDING" } else { "RUNNING" },
                entry.slots as i32,
                details.processes as i32,
                pending.then_some(statement.position as i32),
                statement.waited_ms as i64,
                (!pending).then(|| admitted_by(entry.admitted)),
                pending.then(|| blocked_reason(entry.blocked)),
                sees.then_some(details.cost),
                (sees && !pending && details.is_counted).then_some((details.cpu_us / 1000) as i64),
            )
        })
        .collect();
    TableIterator::new(rows)
}

/// Gauges and counters of the queue. Raises 55000 without preload.
#[pg_extern(volatile, strict, parallel_restricted)]
fn get_query_queue() -> TableIterator<
    'static,
    (
        name!(metric, &'static str),
        name!(value, f64),
        name!(description, &'static str),
    ),
> {
    require_preload();
    let totals = status::totals();
    let limits = totals.limits;
    let remaining = u64::from(limits.total).saturating_sub(totals.slots);
    let counters = totals.counters;
    let rows = vec![
        (
            "pending",
            f64::from(totals.pending),
            "Statements that wait.",
        ),
        (
            "running",
            f64::from(totals.running),
            "Statements that hold slots.",
        ),
        (
            "max_slots",
            f64::from(limits.total),
            "Slots that there are.",
        ),
        ("used_slots", totals.slots as f64, "Slots held."),
        ("remaining_slots", remaining as f64, "Slots free."),
        (
            "required_slots",
            totals.slots_required as f64,
            "Slots that waiting statements need together.",
        ),
        (
            "max_required_slots",
            f64::from(totals.slots_required_max),
            "Slots that the largest waiting statement needs.",
        ),
        (
            "earliest_wait_ms",
            totals.earliest_wait_ms as f64,
            "How long the first waiting statement has waited.",
        ),
        (
            "concurrency_limit",
            f64::from(limits.concurrency),
            "Statements that may run at once; 0: no limit.",
        ),
        (
            "max_queued",
            f64::from(limits.queued_max),
            "Statements that may wait; 0: no limit.",
        ),
        (
            "total",
            counters.total as f64,
            "Statements that asked for slots since the server started.",
        ),
        (
            "timeouts",
            counters.timeouts as f64,
            "Statements that waited too long.",
        ),
        (
            "rejected",
            counters.rejected as f64,
            "Statements that found the queue full.",
        ),
        (
            "admitted_in_transaction",
            counters.in_transaction as f64,
            "Statements admitted above the limits because of what their transaction held.",
        ),
        (
            "admitted_blockers",
            counters.blockers as f64,
            "Waiting statements admitted above the limits because they blocked somebody.",
        ),
        (
            "cpu_permille",
            f64::from(totals.cpu_permille),
            "CPU in use at the last measurement, in thousandths.",
        ),
        (
            "memory_used",
            totals.memory_used,
            "Share of memory in use at the last measurement.",
        ),
        (
            "overloaded",
            f64::from(u8::from(limits.overloaded)),
            "1 while the measured limits keep statements waiting.",
        ),
    ];
    TableIterator::new(rows)
}

/// One row per size class. Raises 55000 without preload.
#[pg_extern(volatile, strict, parallel_restricted)]
#[allow(clippy::type_complexity)]
fn get_query_queue_classes() -> TableIterator<
    'static,
    (
        name!(class, i32),
        name!(weight, i64),
        name!(state, i64),
        name!(pending, i64),
        name!(running, i64),
        name!(admitted, i64),
    ),
> {
    require_preload();
    let rows: Vec<_> = status::totals()
        .classes
        .iter()
        .enumerate()
        .map(|(number, class)| {
            (
                number as i32,
                class.weight,
                class.state,
                class.pending as i64,
                class.running as i64,
                class.admitted as i64,
            )
        })
        .collect();
    TableIterator::new(rows)
}

/// What the resource groups of this database use and did since the server started. Raises 55000
/// without preload.
#[pg_extern(volatile, strict, parallel_restricted)]
#[allow(clippy::type_complexity)]
fn get_resource_groups() -> TableIterator<
    'static,
    (
        name!(name, String),
        name!(running, i32),
        name!(pending, i32),
        name!(total, i64),
        name!(timeouts, i64),
        name!(cpu_cores, f64),
        name!(mem_bytes, i64),
        name!(cpu_ms, i64),
        name!(overloaded, bool),
    ),
> {
    require_preload();
    let rows: Vec<_> = groups::uses()
        .into_iter()
        .map(|used| {
            (
                used.name,
                used.group.running as i32,
                used.group.pending as i32,
                used.group.total as i64,
                used.group.timeouts as i64,
                used.cpu_cores,
                used.mem_bytes as i64,
                (used.cpu_us / 1000) as i64,
                used.group.overloaded,
            )
        })
        .collect();
    TableIterator::new(rows)
}

/// Tells the queue that this transaction has written or deleted the definition. Raises 42602 for a
/// name that is empty or longer than 63 bytes, 22023 for limits that are none, 54000 if there are too many
/// groups, and 55000 without preload.
#[pg_extern(volatile, strict, parallel_unsafe)]
fn resource_group_changed(
    name: &str,
    concurrency_limit: i32,
    max_cpu_cores: f64,
    mem_used_pct_limit: f64,
    dropped: bool,
) {
    require_preload();
    let is_fraction = (0.0..=1.0).contains(&mem_used_pct_limit);
    if concurrency_limit < 0 || !is_fraction || !(0.0..f64::INFINITY).contains(&max_cpu_cores) {
        error::raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("resource group \"{name}\" cannot have these limits"),
            "concurrency_limit and max_cpu_cores are at least 0, mem_used_pct_limit is a fraction from 0 to 1.",
            "0 means no limit.",
        );
    }
    let definition = groups::Definition {
        name: groups::checked_name(name),
        concurrency: concurrency_limit.max(0) as u32,
        max_cpu_cores,
        mem_used_pct_limit,
    };
    groups::change(definition, dropped);
}
