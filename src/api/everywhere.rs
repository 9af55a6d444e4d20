//! Reads one relation on every replica of a cluster, for `cluster_all_replicas`.
//!
//! Ordinary SQL over connections of its own, with the rights of the link's account; what a replica
//! cannot answer is a warning.

use crate::choice;
use crate::cluster::{self, Purpose, Replica, connect_parameters};
use crate::error;
use crate::net::{NetError, QueryResult, connect_wait, query_wait};
use crate::settings;
use pgrx::prelude::*;
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};
use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

/// How long a replica may take to answer.
const ANSWER_SECONDS: u64 = 10;

pgrx::extension_sql_file!(
    "../../sql/everywhere.sql",
    name = "everywhere",
    requires = ["seeing", rows_of_replicas]
);

/// The rows of a relation on each replica of the cluster but this server itself: name of the replica,
/// its host's name, the row as text. Raises 42501 if the user may not read it so, 42809 if it is no
/// table or view.
#[pg_extern(
    volatile,
    strict,
    parallel_unsafe,
    sql = "CREATE FUNCTION rows_of_replicas(cluster text, relation regclass, \
               OUT replica text, OUT hostname text, OUT line text) \
           RETURNS SETOF record VOLATILE STRICT PARALLEL UNSAFE \
           SET search_path TO pg_catalog, pg_temp \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn rows_of_replicas(
    cluster: &str,
    relation: pg_sys::Oid,
) -> TableIterator<
    'static,
    (
        name!(replica, String),
        name!(hostname, String),
        name!(line, String),
    ),
> {
    let relation = readable(relation);
    let mut rows = Vec::new();
    for replica in choice::trusted(&cluster::replicas(cluster)) {
        match read(replica, &relation) {
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

/// The relation's qualified and quoted name, if the user may have it read with the rights of the link's
/// account.
///
/// The functions of a view run as that account, and policies on rows are applied to it. So users get
/// at what superusers have made, if no policy applies to them; superusers at everything.
fn readable(relation: pg_sys::Oid) -> CString {
    // SAFETY: main thread, inside a transaction. The row of the catalog is let go before anything can
    // raise an error on purpose; names are copies of PostgreSQL's.
    let (name, kind, owner, qualified) = unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(relation),
        );
        if tuple.is_null() {
            error::raise(
                PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
                format!("relation with OID {} does not exist", relation.to_u32()),
                "",
                "",
            );
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>();
        let name = pg_sys::pstrdup((*form).relname.data.as_ptr());
        let (kind, owner) = ((*form).relkind, (*form).relowner);
        let schema = pg_sys::get_namespace_name((*form).relnamespace);
        pg_sys::ReleaseSysCache(tuple);
        let qualified = pg_sys::quote_qualified_identifier(schema, name);
        (name, kind, owner, CStr::from_ptr(qualified).to_owned())
    };
    const KINDS: [u8; 5] = [
        pg_sys::RELKIND_RELATION,
        pg_sys::RELKIND_VIEW,
        pg_sys::RELKIND_MATVIEW,
        pg_sys::RELKIND_FOREIGN_TABLE,
        pg_sys::RELKIND_PARTITIONED_TABLE,
    ];
    let shown = qualified.to_string_lossy();
    if !KINDS.contains(&(kind as u8)) {
        error::raise(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            format!("{shown} is not a table or view"),
            "",
            "",
        );
    }
    // SAFETY: as above; the name is zero-terminated.
    let (is_superuser, is_trusted, has_policy) = unsafe {
        let user = pg_sys::GetUserId();
        let allowed = pg_sys::pg_class_aclcheck(relation, user, pg_sys::ACL_SELECT);
        if allowed != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(allowed, pg_sys::get_relkind_objtype(kind), name);
        }
        let policy = pg_sys::check_enable_rls(relation, user, true);
        (
            pg_sys::superuser_arg(user),
            pg_sys::superuser_arg(owner),
            policy == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32,
        )
    };
    if !is_superuser && (!is_trusted || has_policy) {
        error::raise(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("permission denied to read {shown} on replicas"),
            "It would be read there with the rights of the link's account. Only superusers may do that \
             with a relation that does not belong to a superuser or has row-level security for them.",
            "",
        );
    }
    qualified
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

fn read(replica: &Replica, relation: &CStr) -> Result<QueryResult, (String, Option<String>)> {
    // SAFETY: main thread, inside a transaction.
    let user = unsafe { pg_sys::GetUserId() };
    let target = connect_parameters(replica, user, "parallel_replicas reader", Purpose::Check)
        .map_err(|unusable| (unusable.to_string(), unusable.hint()))?;
    let failed = |error: NetError| (error.to_string(), error.hint());
    let timeout = Duration::from_millis(settings::connect_timeout_ms());
    let mut connection =
        connect_wait(&target.parameters, Instant::now() + timeout).map_err(failed)?;
    // Not `t::text`: somebody may have made a cast of his own. The name goes as the bytes that it has.
    let mut query = b"SELECT parallel_replicas.hostname(), \
        (SELECT instance_id FROM parallel_replicas.server_identity()), \
        pg_catalog.textin(pg_catalog.record_out(t)) FROM "
        .to_vec();
    query.extend_from_slice(relation.to_bytes());
    query.extend_from_slice(b" t");
    let query = CString::new(query)
        .map_err(|_| ("the relation's name has a zero byte".to_owned(), None))?;
    let deadline = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
    query_wait(&mut connection, &query, deadline).map_err(failed)
}
