//! SQL functions over what the monitor knows: `server_state` tells about this server, and is what
//! monitors of other servers ask; `get_replicas` is behind the view `replicas`.

use super::replicas::{hex, local_identity};
use crate::choice::{self, Here};
use crate::cluster;
use crate::pg::proc;
use crate::settings::replicas::error_rules;
use crate::shm::monitor::{self, Entry, Outcome};
use pgrx::iter::TableIterator;
use pgrx::pg_sys;
use pgrx::prelude::*;

extension_sql_file!(
    "../../sql/monitor.sql",
    name = "monitor",
    requires = [
        "views",
        server_state,
        get_replicas,
        replica_for_tag,
        preferred_replicas
    ]
);

/// One row about this server. Raises 55000 without preload.
#[pg_extern(
    volatile,
    parallel_restricted,
    sql = "CREATE FUNCTION server_state(\
               OUT system_identifier text, OUT instance_id text, OUT in_recovery boolean, \
               OUT timeline integer, OUT replay_lsn pg_lsn, OUT replay_delay_ms bigint, \
               OUT cpu_permille integer, OUT memory_used bigint, OUT memory_limit bigint, \
               OUT running_fragments integer, OUT server_version_num integer, \
               OUT cores integer) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED ROWS 1 \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn server_state() -> TableIterator<
    'static,
    (
        name!(system_identifier, String),
        name!(instance_id, String),
        name!(in_recovery, bool),
        name!(timeline, i32),
        // pg_lsn and bigint have the same representation.
        name!(replay_lsn, Option<i64>),
        name!(replay_delay_ms, Option<i64>),
        name!(cpu_permille, i32),
        name!(memory_used, i64),
        name!(memory_limit, i64),
        name!(running_fragments, i32),
        name!(server_version_num, i32),
        name!(cores, i32),
    ),
> {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
    let me = local_identity();
    let load = monitor::load();
    TableIterator::once((
        me.system_identifier,
        hex(&crate::shm::instance_id()),
        me.in_recovery,
        me.timeline,
        me.replay_lsn.map(u64::cast_signed),
        proc::replay_delay_ms().map(u64::cast_signed),
        load.cpu_permille as i32,
        load.memory_used.cast_signed(),
        load.memory_limit.cast_signed(),
        monitor::serving() as i32,
        me.server_version_num,
        crate::queue::cores() as i32,
    ))
}

/// One row per replica that this database defines. Raises 55000 without preload.
#[pg_extern(
    volatile,
    parallel_restricted,
    sql = "CREATE FUNCTION get_replicas(\
               OUT cluster text, OUT name text, OUT host text, OUT port integer, \
               OUT priority integer, OUT weight integer, OUT is_local boolean, \
               OUT reachable boolean, OUT in_recovery boolean, OUT timeline integer, \
               OUT replay_lsn pg_lsn, OUT lag_bytes bigint, OUT lag_ms bigint, \
               OUT cpu_permille integer, OUT memory_used bigint, OUT memory_limit bigint, \
               OUT running_fragments integer, OUT server_version_num integer, \
               OUT probed_at timestamptz, OUT answered_at timestamptz, \
               OUT errors_count integer, OUT slowdowns_count integer, \
               OUT estimated_recovery_time bigint, OUT last_error text, \
               OUT last_error_at timestamptz, OUT usable boolean, OUT reason text) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn get_replicas() -> TableIterator<
    'static,
    (
        name!(cluster, String),
        name!(name, String),
        name!(host, String),
        name!(port, i32),
        name!(priority, i32),
        name!(weight, i32),
        name!(is_local, Option<bool>),
        name!(reachable, Option<bool>),
        name!(in_recovery, Option<bool>),
        name!(timeline, Option<i32>),
        name!(replay_lsn, Option<i64>),
        name!(lag_bytes, Option<i64>),
        name!(lag_ms, Option<i64>),
        name!(cpu_permille, Option<i32>),
        name!(memory_used, Option<i64>),
        name!(memory_limit, Option<i64>),
        name!(running_fragments, Option<i32>),
        name!(server_version_num, Option<i32>),
        // timestamptz and bigint have the same representation.
        name!(probed_at, Option<i64>),
        name!(answered_at, Option<i64>),
        name!(errors_count, i32),
        name!(slowdowns_count, i32),
        name!(estimated_recovery_time, i64),
        name!(last_error, Option<String>),
        name!(last_error_at, Option<i64>),
        name!(usable, bool),
        name!(reason, Option<String>),
    ),
> {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
    let replicas = cluster::all_replicas();
    if !replicas.is_empty() {
        monitor::want_this_database();
    }
    let rules = error_rules();
    let keys: Vec<_> = replicas.iter().map(choice::key).collect();
    let known = monitor::entries(&keys, &rules);
    let here = Here::new();
    let sees_errors = has_privs_of(pg_sys::ROLE_PG_READ_ALL_STATS);
    // As for server_state.
    let sees_load = has_privs_of(pg_sys::ROLE_PG_MONITOR);
    let rows: Vec<_> = replicas
        .into_iter()
        .zip(known)
        .map(|(replica, entry)| {
            let entry = entry.as_ref();
            let recent = entry.filter(|entry| here.is_recent(entry));
            let state = entry
                .filter(|entry| entry.probe.answered_at != 0)
                .map(|entry| entry.probe.state);
            let standby = state.filter(|state| state.in_recovery);
            let load = state.filter(|_| sees_load).map(|state| state.load);
            let memory = load.filter(|load| load.memory_limit != 0);
            let count = entry.map(|entry| entry.count).unwrap_or_default();
            let obstacle = here.obstacle(&replica, entry);
            (
                replica.cluster,
                replica.name,
                replica.host,
                i32::from(replica.port),
                replica.priority,
                replica.weight as i32,
                here.is_itself(entry),
                recent.map(|entry| entry.probe.outcome != Outcome::NoAnswer),
                state.map(|state| state.in_recovery),
                state.map(|state| state.timeline as i32),
                standby.map(|state| state.replay_lsn.cast_signed()),
                standby.map(|state| state.lag_bytes.cast_signed()),
                standby.map(|state| state.lag_ms.cast_signed()),
                load.map(|load| load.cpu_permille as i32),
                memory.map(|load| load.memory_used.cast_signed()),
                memory.map(|load| load.memory_limit.cast_signed()),
                state.map(|state| state.fragments as i32),
                state.map(|state| state.server_version as i32),
                entry.and_then(|entry| time(entry.probe.probed_at)),
                entry.and_then(|entry| time(entry.probe.answered_at)),
                count.errors.cast_signed(),
                count.slowdowns.cast_signed(),
                monitor::recovery_s(&count, &rules).cast_signed(),
                entry.filter(|_| sees_errors).and_then(last_error),
                entry.and_then(|entry| time(entry.last_error_at)),
                obstacle.is_none(),
                obstacle.map(str::to_owned),
            )
        })
        .collect();
    TableIterator::new(rows)
}

fn time(timestamp: i64) -> Option<i64> {
    (timestamp != 0).then_some(timestamp)
}

fn last_error(entry: &Entry) -> Option<String> {
    entry.last_error.get()
}

/// Error texts may name accounts, and how busy a server is does not concern everybody.
pub(super) fn has_privs_of(role: u32) -> bool {
    // SAFETY: main thread, inside a transaction; the role is built in.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), pg_sys::Oid::from(role)) }
}

/// Name of the replica that a tag leads to now; null if none can be used. Raises 55000 without
/// preload.
#[pg_extern(
    volatile,
    strict,
    parallel_restricted,
    sql = "CREATE FUNCTION replica_for_tag(tag text, cluster text DEFAULT 'default') RETURNS text \
           VOLATILE STRICT PARALLEL RESTRICTED \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn replica_for_tag(tag: &str, cluster: &str) -> Option<String> {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
    choice::replica_for_tag(tag, &cluster::replicas(cluster))
}

/// Names of the replicas that can be used, in the order in which a query would prefer them now. A
/// selection like any other: it takes a turn of round_robin. Raises 55000 without preload.
#[pg_extern(
    volatile,
    strict,
    parallel_restricted,
    sql = "CREATE FUNCTION preferred_replicas(cluster text DEFAULT 'default') RETURNS text[] \
           VOLATILE STRICT PARALLEL RESTRICTED \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn preferred_replicas(cluster: &str) -> Vec<String> {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
    let replicas = cluster::replicas(cluster);
    choice::order(cluster, &replicas)
        .into_iter()
        .map(|position| replicas[position].name.clone())
        .collect()
}
