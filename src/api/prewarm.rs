//! SQL functions that load tables into caches.

use crate::prewarm::{self, load_blocks};
use pgrx::iter::TableIterator;
use pgrx::pg_sys;
use pgrx::prelude::*;

extension_sql_file!(
    "../../sql/prewarm.sql",
    name = "prewarm",
    requires = ["views", prewarm, prewarm_blocks]
);

/// Loads each server's own segments of a table into its cache. One row per server; `replica` is
/// null for this server. Needs SELECT on the table. An error on a replica is told in its row.
#[pg_extern(
    volatile,
    strict,
    parallel_unsafe,
    sql = "CREATE FUNCTION prewarm(relation regclass, cluster text DEFAULT 'default', \
               OUT replica text, OUT blocks bigint, OUT milliseconds double precision, \
               OUT error text) \
           RETURNS SETOF record VOLATILE STRICT PARALLEL UNSAFE \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn prewarm(
    relation: pg_sys::Oid,
    cluster: &str,
) -> TableIterator<
    'static,
    (
        name!(replica, Option<String>),
        name!(blocks, i64),
        name!(milliseconds, f64),
        name!(error, Option<String>),
    ),
> {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
    // SAFETY: in a transaction.
    let may = unsafe {
        pg_sys::pg_class_aclcheck(
            relation,
            pg_sys::GetUserId(),
            pg_sys::ACL_SELECT as pg_sys::AclMode,
        ) == pg_sys::AclResult::ACLCHECK_OK
    };
    if !may {
        crate::error::raise(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            "permission denied to prewarm the table",
            "",
            "Grant SELECT on the table to the user.",
        );
    }
    let rows: Vec<_> = prewarm::prewarm(relation, cluster)
        .into_iter()
        .map(|row| (row.replica, row.blocks, row.milliseconds, row.error))
        .collect();
    TableIterator::new(rows)
}

/// Loads blocks of a table into this server's cache, and answers how many there were.
#[pg_extern(
    volatile,
    strict,
    parallel_unsafe,
    sql = "CREATE FUNCTION prewarm_blocks(relation oid, first bigint, past_last bigint) \
           RETURNS bigint VOLATILE STRICT PARALLEL UNSAFE \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn prewarm_blocks(relation: pg_sys::Oid, first: i64, past_last: i64) -> i64 {
    let block = |number: i64| number.clamp(0, i64::from(u32::MAX)) as u32;
    load_blocks(relation, block(first), block(past_last))
}
