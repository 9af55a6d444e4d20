//! SQL functions about servers and replicas: `hostname`, `server_identity`, `check_cluster`.
//!
//! `add_replica` and `remove_replica` are plain SQL, in `sql/replicas.sql`, which also makes the
//! foreign-data wrapper and sets who may call what.
//!
//! Invariant: nothing here tells a secret; who is asked and what was answered is all there is.

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::submodules::errcodes::PgSqlErrorCode;
use pgrx::prelude::*;

use super::checks;
use crate::cluster;

extension_sql_file!(
    "../../sql/replicas.sql",
    name = "replicas",
    requires = [fdw_validator, hostname, server_identity, check_cluster]
);

/// Digest of the build, equal on servers that may share plans.
pub(super) const BUILD_ID: &str = match option_env!("PARALLEL_REPLICAS_BUILD_ID") {
    Some(id) => id,
    None => "unknown",
};

/// The name that the operating system gives this server.
#[pg_extern(stable, strict, parallel_safe)]
fn hostname() -> String {
    match crate::pg::proc::host_name() {
        Ok(name) => name,
        Err(error) => ErrorReport::new(
            PgSqlErrorCode::ERRCODE_SYSTEM_ERROR,
            format!("could not get host name: {error}"),
            "hostname",
        )
        .raise(),
    }
}

trait Raise {
    fn raise(self) -> !;
}

impl Raise for ErrorReport {
    fn raise(self) -> ! {
        self.report(PgLogLevel::ERROR);
        unreachable!("an error report does not return")
    }
}

/// What a server says about itself.
pub(super) struct Identity {
    pub system_identifier: String,
    pub timeline: i32,
    pub in_recovery: bool,
    pub server_version_num: i32,
    pub extension_version: String,
    pub build_id: String,
    pub preloaded: bool,
    /// Replayed position in recovery, else null.
    pub replay_lsn: Option<u64>,
    /// 32 hexadecimal digits; null unless the library was loaded at server start.
    pub instance_id: Option<String>,
}

pub(super) fn local_identity() -> Identity {
    let preloaded = is_preloaded();
    // SAFETY: main thread of a backend; all of them read shared memory or backend variables.
    unsafe {
        let in_recovery = pg_sys::RecoveryInProgress();
        let mut timeline: pg_sys::TimeLineID = 0;
        let replay_lsn = match in_recovery {
            true => Some(pg_sys::GetXLogReplayRecPtr(&mut timeline)),
            false => {
                timeline = pg_sys::GetWALInsertionTimeLine();
                None
            }
        };
        Identity {
            system_identifier: pg_sys::GetSystemIdentifier().to_string(),
            timeline: timeline as i32,
            in_recovery,
            server_version_num: server_version_num(),
            extension_version: env!("CARGO_PKG_VERSION").to_owned(),
            build_id: BUILD_ID.to_owned(),
            preloaded,
            replay_lsn,
            instance_id: preloaded.then(|| hex(&crate::shm::instance_id())),
        }
    }
}

/// The running server's version, which may be newer in its minor part than the headers.
fn server_version_num() -> i32 {
    // SAFETY: main thread; the name is static and always exists, the answer is null or
    // zero-terminated and read at once.
    let text = unsafe {
        let value = pg_sys::GetConfigOption(c"server_version_num".as_ptr(), true, false);
        if value.is_null() {
            return pg_sys::PG_VERSION_NUM as i32;
        }
        CStr::from_ptr(value).to_string_lossy()
    };
    text.parse().unwrap_or(pg_sys::PG_VERSION_NUM as i32)
}

/// Whether the library is in shared_preload_libraries of the running server.
fn is_preloaded() -> bool {
    // SAFETY: main thread; a string setting is null or zero-terminated, and read at once.
    let libraries = unsafe {
        let value = pg_sys::shared_preload_libraries_string;
        if value.is_null() {
            return false;
        }
        CStr::from_ptr(value).to_string_lossy()
    };
    libraries.split(',').any(|library| {
        let library = library.trim().trim_matches('"');
        let file = library.rsplit('/').next().unwrap_or(library);
        file.strip_suffix(".so").unwrap_or(file) == "parallel_replicas"
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One row about this server, for other servers to compare with theirs.
#[pg_extern(
    volatile,
    parallel_restricted,
    sql = "CREATE FUNCTION server_identity(\
               OUT system_identifier text, OUT timeline integer, OUT in_recovery boolean, \
               OUT server_version_num integer, OUT extension_version text, OUT build_id text, \
               OUT preloaded boolean, OUT replay_lsn pg_lsn, OUT instance_id text) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED ROWS 1 \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity)]
fn server_identity() -> TableIterator<
    'static,
    (
        name!(system_identifier, String),
        name!(timeline, i32),
        name!(in_recovery, bool),
        name!(server_version_num, i32),
        name!(extension_version, String),
        name!(build_id, String),
        name!(preloaded, bool),
        // pg_lsn and bigint have the same representation.
        name!(replay_lsn, Option<i64>),
        name!(instance_id, Option<String>),
    ),
> {
    let me = local_identity();
    TableIterator::once((
        me.system_identifier,
        me.timeline,
        me.in_recovery,
        me.server_version_num,
        me.extension_version,
        me.build_id,
        me.preloaded,
        me.replay_lsn.map(u64::cast_signed),
        me.instance_id,
    ))
}

/// One row per replica and precondition of parallel replicas: whether it holds, what was found, and
/// what to do if it does not. `ok` is null where a check could not be made.
#[pg_extern(volatile, strict, parallel_unsafe)]
#[search_path(pg_catalog, pg_temp)]
#[allow(clippy::type_complexity)]
fn check_cluster(
    cluster: default!(&str, "'default'"),
) -> TableIterator<
    'static,
    (
        name!(replica, String),
        name!(check_name, &'static str),
        name!(ok, Option<bool>),
        name!(detail, String),
        name!(hint, Option<String>),
    ),
> {
    // SAFETY: main thread, inside a transaction.
    let user = unsafe { pg_sys::GetUserId() };
    let replicas = cluster::replicas(cluster);
    if replicas.is_empty() {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!("cluster \"{cluster}\" has no replicas"),
            "check_cluster",
        )
        .set_detail("No foreign server of parallel_replicas names this cluster.")
        .set_hint("Define a replica with parallel_replicas.add_replica().")
        .raise();
    }
    let rows = replicas
        .iter()
        .flat_map(|replica| checks::check_replica(replica, user));
    let rows: Vec<_> = rows
        .map(|row| (row.replica, row.check_name, row.ok, row.detail, row.hint))
        .collect();
    TableIterator::new(rows)
}
