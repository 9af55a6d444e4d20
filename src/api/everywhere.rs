//! Reads one relation on every replica of a cluster, for `cluster_all_replicas`.
//!
//! Ordinary SQL over connections of its own, with the rights of the link's account; what a replica
//! cannot answer is a warning. Replicas are reached and asked about themselves all at once, so that silent ones
//! are waited for together; their rows are then taken one replica after the other.

use super::readable::{Readable, readable};
use super::taken::{BYTES_MAX, Form, Rows};
use crate::choice;
use crate::cluster::{self, Purpose, Replica, connect_parameters};
use crate::error;
use crate::net::{
    ConnectParameters, Connection, NetError, QueryResult, answers_wait, connect_all_wait, rows_wait,
};
use crate::pg::attempt::attempt;
use crate::settings;
use pgrx::prelude::*;
use pgrx::{AnyElement, PgLogLevel, PgSqlErrorCode, pg_sys};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long a replica may take to answer.
const ANSWER_SECONDS: u64 = 10;

pgrx::extension_sql_file!(
    "../../sql/everywhere.sql",
    name = "everywhere",
    requires = ["seeing", rows_of_replicas]
);

/// The rows of a relation on each replica of the cluster but this server itself: name of the replica,
/// its host's name, the row. The relation is the one whose row type the second argument has. Raises
/// 42501 if the user may not read it so, 42809 if it is no table or view, and 54000 if its rows are too
/// many.
///
/// The settings here read values as those of `Purpose::Read` print them.
#[pg_extern(
    volatile,
    parallel_unsafe,
    sql = "CREATE FUNCTION rows_of_replicas(cluster text, relation anyelement, \
               OUT replica text, OUT hostname text, OUT \"row\" anyelement) \
           RETURNS SETOF record VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE \
           SET search_path TO pg_catalog, pg_temp SET intervalstyle TO postgres \
           SET lc_monetary TO 'C' SET array_nulls TO on SET xmloption TO content \
           LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
fn rows_of_replicas(
    // The bytes of a text, which need not be UTF-8.
    cluster: Option<&[u8]>,
    call: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(replica, Option<AnyElement>),
        name!(hostname, Option<AnyElement>),
        name!(row, Option<AnyElement>),
    ),
> {
    // SAFETY: the call that PostgreSQL is making.
    let row_type = unsafe { pg_sys::get_fn_expr_argtype((*call).flinfo, 1) };
    let relation = readable(row_type);
    let cluster = String::from_utf8_lossy(cluster.unwrap_or_default());
    let mut rows = Rows::of(row_type);
    let replicas = cluster::replicas(&cluster);
    let mut rest = choice::trusted(&replicas);
    while !rest.is_empty() {
        for (replica, reached) in reach(&mut rest, &relation) {
            let before = rows.taken.len();
            match reached.and_then(|reached| read(replica, reached, &relation, &mut rows)) {
                Ok(()) => {}
                Err(Trouble::Replica { why, hint }) => {
                    rows.taken.truncate(before);
                    warn(replica, &why, hint);
                }
                Err(Trouble::TooMuch) => too_much(&relation),
            }
        }
    }
    TableIterator::new(rows.taken)
}

fn too_much(relation: &Readable) -> ! {
    error::raise(
        PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
        format!("rows of {} on replicas are too many", relation.shown()),
        &format!(
            "Those of all replicas together may take {} MB of memory.",
            BYTES_MAX >> 20
        ),
        "Read a materialized view of what is wanted, or ask the replicas themselves.",
    )
}

/// Why there are no rows of a replica.
pub enum Trouble {
    Replica { why: String, hint: Option<String> },
    TooMuch,
}

impl From<NetError> for Trouble {
    fn from(error: NetError) -> Self {
        Trouble::Replica {
            why: error.to_string(),
            hint: error.hint(),
        }
    }
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

/// A connection, and what the replica says about itself: its host's name, its identity, and whether the
/// relation is the same there.
struct Reached {
    connection: Connection,
    about: QueryResult,
}

/// Connects to as many of the replicas as this session may have connections at once, asks them about
/// themselves, and takes them from `rest`.
fn reach<'a>(
    rest: &mut Vec<&'a Replica>,
    relation: &Readable,
) -> Vec<(&'a Replica, Result<Reached, Trouble>)> {
    let mut started = Vec::new();
    for replica in rest.iter() {
        let connection = match parameters(replica) {
            Ok(parameters) => match Connection::start(&parameters) {
                // Its turn comes when the others are closed.
                Err(NetError::TooManyFiles) if !started.is_empty() => break,
                connection => connection.map_err(Trouble::from),
            },
            Err(trouble) => Err(trouble),
        };
        started.push(connection);
    }
    let replicas: Vec<&Replica> = rest.drain(..started.len()).collect();
    let timeout = Duration::from_millis(settings::connect_timeout_ms());
    let connected = connect_all_wait(started, Instant::now() + timeout);
    let ask = |mut connection: Connection| {
        connection.send_query(&statement(&[
            b"SELECT parallel_replicas.hostname(), \
              (SELECT instance_id FROM parallel_replicas.server_identity()), ",
            &relation.is_same(),
        ])?)?;
        Ok(connection)
    };
    let asked = connected
        .into_iter()
        .map(|connection| connection.and_then(ask));
    let asked: Vec<Result<Connection, Trouble>> = asked.collect();
    let deadline = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
    let answer = |mut connection: Connection| {
        let about = answers_wait(&mut connection, deadline)?.pop();
        let about = about.ok_or(NetError::NotReady)?;
        Ok(Reached { connection, about })
    };
    let reached = asked
        .into_iter()
        .map(|connection| connection.and_then(answer));
    replicas.into_iter().zip(reached).collect()
}

fn parameters(replica: &Replica) -> Result<ConnectParameters, Trouble> {
    // SAFETY: main thread, inside a transaction.
    let user = unsafe { pg_sys::GetUserId() };
    connect_parameters(replica, user, "parallel_replicas reader", Purpose::Read)
        .map(|target| target.parameters)
        .map_err(|unusable| Trouble::Replica {
            why: unusable.to_string(),
            hint: unusable.hint(),
        })
}

fn read(
    replica: &Replica,
    reached: Reached,
    relation: &Readable,
    rows: &mut Rows,
) -> Result<(), Trouble> {
    let Reached {
        mut connection,
        about,
    } = reached;
    let own = super::replicas::local_identity().instance_id;
    if own.is_some() && own.as_deref() == about.text(0, 1) {
        // This server itself, on a standby that is a replica of the cluster.
        return Ok(());
    }
    if about.boolean(0, 2) != Some(true) {
        return Err(Trouble::Replica {
            why: "another relation has this name there".into(),
            hint: Some("Wait until the replica has replayed what was done here.".into()),
        });
    }
    let query = statement(&[
        b"SELECT ",
        &rows.names(),
        b" FROM ",
        relation.name.to_bytes(),
        b" r",
        &relation.condition,
    ])?;
    let deadline = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
    // SAFETY: main thread, inside a transaction; rows are kept in a context of the call.
    let done = unsafe {
        attempt(|| {
            let mut form = Form::new(rows, relation.reads_as);
            let name = form.text(replica.name.as_bytes());
            let hostname = form.text(about.bytes(0, 0).unwrap_or_default());
            rows_wait(&mut connection, &query, deadline, |answer| {
                let (row, bytes) = form.row(answer);
                rows.keep((name, hostname, row), bytes)
            })
        })
    };
    done.unwrap_or_else(|error| {
        Err(Trouble::Replica {
            why: error.message().to_owned(),
            hint: error.hint().map(str::to_owned),
        })
    })
}

fn statement(parts: &[&[u8]]) -> Result<CString, Trouble> {
    CString::new(parts.concat()).map_err(|_| Trouble::Replica {
        why: "the relation's name has a zero byte".into(),
        hint: None,
    })
}
