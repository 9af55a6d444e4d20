//! SQL functions behind the views of what queries did and do.

use crate::log::{query, report};
use crate::shm::events;
use crate::shm::logs::Ending;
use crate::shm::running::Kind;
use pgrx::prelude::*;
use pgrx::{PgSqlErrorCode, Uuid, pg_sys};
use std::collections::TryReserveError;

pgrx::extension_sql_file!(
    "../../sql/seeing.sql",
    name = "seeing",
    requires = [
        "views",
        last_query_id,
        reset_events,
        get_stats_reset,
        get_query_log,
        get_text_log,
        get_query_progress,
        get_running_fragments
    ]
);

fn must_be_preloaded() {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
}

/// What was copied of a log. Raises 53200 if there was no memory for it.
pub(super) fn enough<T>(copied: Result<Vec<T>, TryReserveError>) -> Vec<T> {
    copied.unwrap_or_else(|error| {
        crate::error::raise(
            PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
            "out of memory",
            &format!("A copy of the log cannot be made: {error}."),
            "Ask for the steps of one query with get_text_log(query_id), or lower \
             parallel_replicas.text_log_size or parallel_replicas.query_log_size.",
        )
    })
}

/// The id of this session's last statement that was, or could have been, executed over replicas.
#[pg_extern(volatile, parallel_restricted)]
fn last_query_id() -> Option<Uuid> {
    query::last_id().map(Uuid::from_bytes)
}

/// Sets all counters of this server to 0. Raises 55000 without preload.
#[pg_extern(volatile, parallel_safe)]
fn reset_events() {
    must_be_preloaded();
    events::reset();
}

/// Since when the counters count. Timestamps and integers of 64 bits have the same representation.
#[pg_extern(
    volatile,
    parallel_safe,
    sql = "CREATE FUNCTION get_stats_reset() RETURNS timestamptz VOLATILE PARALLEL SAFE \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn get_stats_reset() -> i64 {
    must_be_preloaded();
    events::reset_at()
}

/// Ended queries, oldest first, as far as the user may see them.
#[pg_extern(
    volatile,
    parallel_safe,
    sql = "CREATE FUNCTION get_query_log(\
               OUT query_id uuid, OUT pid integer, OUT database oid, OUT \"user\" oid, \
               OUT started timestamptz, OUT ended timestamptz, OUT status text, \
               OUT statement_id bigint, OUT fragments integer, OUT replicas_planned integer, \
               OUT replicas_used integer, OUT workers_launched integer, OUT granules bigint, \
               OUT granules_own bigint, OUT granules_stolen_by_hash bigint, \
               OUT granules_stolen_rest bigint, OUT granules_lost bigint, OUT rows bigint, \
               OUT bytes bigint, OUT replay_wait_us bigint, OUT wait_us bigint, OUT slots integer, \
               OUT pending_ms bigint, OUT reason text, OUT reason_text text, OUT settings text, OUT query text) \
           RETURNS SETOF record VOLATILE PARALLEL SAFE ROWS 100 \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn get_query_log() -> TableIterator<
    'static,
    (
        name!(query_id, Uuid),
        name!(pid, i32),
        name!(database, pg_sys::Oid),
        name!(user, pg_sys::Oid),
        name!(started, i64),
        name!(ended, Option<i64>),
        name!(status, &'static str),
        name!(statement_id, i64),
        name!(fragments, i32),
        name!(replicas_planned, i32),
        name!(replicas_used, i32),
        name!(workers_launched, i32),
        name!(granules, i64),
        name!(granules_own, i64),
        name!(granules_stolen_by_hash, i64),
        name!(granules_stolen_rest, i64),
        name!(granules_lost, i64),
        name!(rows, i64),
        name!(bytes, i64),
        name!(replay_wait_us, i64),
        name!(wait_us, i64),
        name!(slots, i32),
        name!(pending_ms, i64),
        name!(reason, Option<String>),
        name!(reason_text, Option<String>),
        name!(settings, String),
        name!(query, String),
    ),
> {
    must_be_preloaded();
    let given = |text: String| (!text.is_empty()).then_some(text);
    // One row after the other, since there may be many.
    TableIterator::new(enough(report::queries()).into_iter().map(move |entry| {
        (
            Uuid::from_bytes(entry.origin.query_id),
            entry.origin.pid,
            pg_sys::Oid::from(entry.origin.database),
            pg_sys::Oid::from(entry.origin.user),
            entry.start,
            (entry.end != 0).then_some(entry.end),
            match entry.ending {
                _ if entry.fragments == 0 => "planned without",
                Ending::Finished => "finished",
                Ending::Failed => "failed",
            },
            entry.statement_id,
            entry.fragments as i32,
            entry.totals.replicas_planned as i32,
            entry.totals.replicas_used as i32,
            entry.totals.workers_launched as i32,
            entry.totals.selected as i64,
            entry.totals.own as i64,
            entry.totals.by_hash as i64,
            entry.totals.rest as i64,
            entry.totals.lost as i64,
            entry.totals.rows as i64,
            entry.totals.bytes as i64,
            entry.totals.replay_wait_us as i64,
            entry.totals.wait_us as i64,
            entry.slots as i32,
            entry.pending_ms as i64,
            given(entry.reason.get()),
            given(entry.reason_text.get()),
            entry.settings.get(),
            entry.text.get(),
        )
    }))
}

/// Steps of queries, oldest first, as far as the user may see them; of one query if it is given.
#[pg_extern(
    volatile,
    parallel_safe,
    sql = "CREATE FUNCTION get_text_log(of_query uuid, \
               OUT event_time timestamptz, OUT query_id uuid, OUT pid integer, OUT database oid, \
               OUT \"user\" oid, OUT level text, OUT fragment integer, OUT process integer, \
               OUT replica text, OUT event text, OUT stage text, OUT task integer, \
               OUT first_granule bigint, OUT granules bigint, OUT message text) \
           RETURNS SETOF record CALLED ON NULL INPUT VOLATILE PARALLEL SAFE ROWS 1000 \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn get_text_log(
    of_query: Option<Uuid>,
) -> TableIterator<
    'static,
    (
        name!(event_time, i64),
        name!(query_id, Uuid),
        name!(pid, i32),
        name!(database, pg_sys::Oid),
        name!(user, pg_sys::Oid),
        name!(level, &'static str),
        name!(fragment, i32),
        name!(process, Option<i32>),
        name!(replica, Option<String>),
        name!(event, &'static str),
        name!(stage, Option<&'static str>),
        name!(task, Option<i32>),
        name!(first_granule, Option<i64>),
        name!(granules, Option<i64>),
        name!(message, String),
    ),
> {
    must_be_preloaded();
    let steps = report::steps(of_query.map(|id| *id.as_bytes()));
    TableIterator::new(enough(steps).into_iter().map(|entry| {
        let task = entry.task != 0;
        let replica = entry.replica.get();
        (
            entry.time,
            Uuid::from_bytes(entry.origin.query_id),
            entry.origin.pid,
            pg_sys::Oid::from(entry.origin.database),
            pg_sys::Oid::from(entry.origin.user),
            if entry.trace { "trace" } else { "summary" },
            entry.fragment as i32,
            report::process(&entry),
            (!replica.is_empty()).then_some(replica),
            report::word(entry.step),
            report::stage(&entry),
            task.then_some(entry.task as i32),
            task.then_some(i64::from(entry.first)),
            task.then_some(entry.count as i64),
            report::message(&entry),
        )
    }))
}

/// Queries that this server coordinates now, as far as the user may see them.
#[pg_extern(
    volatile,
    parallel_safe,
    sql = "CREATE FUNCTION get_query_progress(\
               OUT query_id uuid, OUT pid integer, OUT database oid, OUT \"user\" oid, \
               OUT started timestamptz, OUT granules_selected bigint, OUT granules_done bigint, \
               OUT query text) \
           RETURNS SETOF record VOLATILE PARALLEL SAFE ROWS 10 \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn get_query_progress() -> TableIterator<
    'static,
    (
        name!(query_id, Uuid),
        name!(pid, i32),
        name!(database, pg_sys::Oid),
        name!(user, pg_sys::Oid),
        name!(started, i64),
        name!(granules_selected, i64),
        name!(granules_done, i64),
        name!(query, String),
    ),
> {
    must_be_preloaded();
    let rows: Vec<_> = report::running(Kind::Query)
        .into_iter()
        .map(|seen| {
            (
                Uuid::from_bytes(seen.about.origin.query_id),
                seen.about.origin.pid,
                pg_sys::Oid::from(seen.about.origin.database),
                pg_sys::Oid::from(seen.about.origin.user),
                seen.about.start,
                seen.selected,
                seen.done,
                seen.about.text.get(),
            )
        })
        .collect();
    TableIterator::new(rows)
}

/// Fragments that this server executes now for others, as far as the user may see them.
#[pg_extern(
    volatile,
    parallel_safe,
    sql = "CREATE FUNCTION get_running_fragments(\
               OUT query_id uuid, OUT pid integer, OUT database oid, OUT \"user\" oid, \
               OUT started timestamptz, OUT phase text, OUT granules_read bigint) \
           RETURNS SETOF record VOLATILE PARALLEL SAFE ROWS 10 \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn get_running_fragments() -> TableIterator<
    'static,
    (
        name!(query_id, Uuid),
        name!(pid, i32),
        name!(database, pg_sys::Oid),
        name!(user, pg_sys::Oid),
        name!(started, i64),
        name!(phase, &'static str),
        name!(granules_read, i64),
    ),
> {
    must_be_preloaded();
    let rows: Vec<_> = report::running(Kind::Fragment)
        .into_iter()
        .map(|seen| {
            (
                Uuid::from_bytes(seen.about.origin.query_id),
                seen.about.origin.pid,
                pg_sys::Oid::from(seen.about.origin.database),
                pg_sys::Oid::from(seen.about.origin.user),
                seen.about.start,
                seen.phase.name(),
                seen.done,
            )
        })
        .collect();
    TableIterator::new(rows)
}
