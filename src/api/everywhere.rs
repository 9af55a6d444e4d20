//! Reads one relation on every replica of a cluster, for `cluster_all_replicas`.
//!
//! Ordinary SQL over connections of its own, with the rights of the link's account; what a replica
//! cannot answer is a warning.

use crate::cluster::{self, Purpose, Replica, connect_parameters};
use crate::net::{NetError, QueryResult, connect_wait, query_wait};
use crate::settings;
use pgrx::prelude::*;
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long a replica may take to answer.
const ANSWER_SECONDS: u64 = 10;

pgrx::extension_sql_file!(
    "../../sql/everywhere.sql",
    name = "everywhere",
    requires = ["seeing", rows_of_replicas]
);

/// The rows of `relation`, a qualified and quoted name, on each replica of the cluster but this server
/// itself: name of the replica, its host's name, the row as text.
#[pg_extern(volatile, strict, parallel_unsafe)]
#[search_path(pg_catalog, pg_temp)]
fn rows_of_replicas(
    cluster: &str,
    relation: &str,
) -> TableIterator<
    'static,
    (
        name!(replica, String),
        name!(hostname, String),
        name!(line, String),
    ),
> {
    let mut rows = Vec::new();
    for replica in cluster::replicas(cluster).iter() {
        match read(replica, relation) {
            Ok(answer) => {
                let own = super::replicas::local_identity().instance_id;
                for row in 0..answer.rows() {
                    let field = |column| answer.text(row, column).unwrap_or_default().to_owned();
                    // This server itself, on a standby that is a replica of the cluster.
                    if own.as_deref() != Some(field(1).as_str()) {
                        rows.push((replica.name.clone(), field(0), field(2)));
                    }
                }
            }
            Err((why, hint)) => warn(replica, &why, hint),
        }
    }
    TableIterator::new(rows)
}

fn warn(replica: &Replica, why: &str, hint: Option<String>) {
    let mut report = pg_sys::panic::ErrorReport::new(
        PgSqlErrorCode::ERRCODE_CONNECTION_EXCEPTION,
        format!("could not read from replica \"{}\"", replica.name),
        "parallel_replicas",
    )
    .set_detail(format!("{why}."));
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::WARNING);
}

fn read(replica: &Replica, relation: &str) -> Result<QueryResult, (String, Option<String>)> {
    // SAFETY: main thread, inside a transaction.
    let user = unsafe { pg_sys::GetUserId() };
    let target = connect_parameters(replica, user, "parallel_replicas reader", Purpose::Check)
        .map_err(|unusable| (unusable.to_string(), unusable.hint()))?;
    let failed = |error: NetError| (error.to_string(), error.hint());
    let timeout = Duration::from_millis(settings::connect_timeout_ms());
    let mut connection =
        connect_wait(&target.parameters, Instant::now() + timeout).map_err(failed)?;
    let query = CString::new(format!(
        "SELECT parallel_replicas.hostname(), \
                (SELECT instance_id FROM parallel_replicas.server_identity()), t::text \
           FROM {relation} t"
    ))
    .map_err(|_| ("the relation's name has a zero byte".to_owned(), None))?;
    let deadline = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
    query_wait(&mut connection, &query, deadline).map_err(failed)
}
