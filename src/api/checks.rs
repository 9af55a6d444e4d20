//! The checks behind `check_cluster`: does a replica fulfil what parallel replicas need?
//!
//! They ask the replica in ordinary SQL, so that they also work against a server that is set up
//! wrongly, and compare with what the same SQL gives here. They repeat none of the guards that a
//! replica applies to a real query (see `serve`); they say in advance which of them would refuse.
//!
//! Invariants: every check of [`CHECKS`] gives exactly one row for each replica, in that order;
//! each replica costs at most [`CONNECT_SECONDS`] + [`ANSWER_SECONDS`] + [`REPLAY_MS`]; a replica
//! that is down gives rows, never an error.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::{Duration, Instant};

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::replicas::{Identity, local_identity};
use crate::cluster::{Purpose, Replica, connect_parameters};
use crate::net::{Connection, NetError, QueryResult, connect_wait, query_wait, sleep};

/// All checks, in the order in which they are made and reported.
const CHECKS: [&str; 14] = [
    "reachable",
    "authenticated",
    "in recovery",
    "system identifier",
    "database",
    "server version",
    "settings",
    "collation versions",
    "extension",
    "preloaded",
    "build",
    "timeline",
    "replay",
    "role rights",
];

const CONNECT_SECONDS: u64 = 5;
const ANSWER_SECONDS: u64 = 10;
/// How long the replica may take to replay what this server has written when the check starts.
const REPLAY_MS: u64 = 1000;
const REPLAY_POLL_MS: u64 = 20;
/// Differences named in a detail; more are only counted.
const DIFFERENCES_MAX: usize = 5;

/// What can be asked of any PostgreSQL server.
const BASICS: &CStr = c"SELECT s.system_identifier::text, pg_catalog.pg_is_in_recovery(), \
    pg_catalog.current_setting('server_version_num'), d.oid::text, d.datname::text, \
    pg_catalog.current_setting('zero_damaged_pages'), \
    pg_catalog.current_setting('ignore_checksum_failure'), \
    pg_catalog.current_setting('ignore_system_indexes'), \
    (SELECT bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE') \
            AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')) \
       FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
      WHERE n.nspname = 'parallel_replicas' AND p.proname = 'serve'), \
    current_user::text \
    FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d \
    WHERE d.datname = pg_catalog.current_database()";

const IDENTITY: &CStr = c"SELECT extension_version, build_id, preloaded, timeline, instance_id \
    FROM parallel_replicas.server_identity()";

/// The database's own collation and those of columns, with the versions the libraries report now.
const COLLATIONS: &CStr = c"SELECT '(database)'::text, \
    pg_catalog.pg_database_collation_actual_version(d.oid)::text \
    FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database() \
    UNION ALL SELECT n.nspname || '.' || c.collname, \
    pg_catalog.pg_collation_actual_version(c.oid)::text \
    FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace \
    WHERE c.collprovider <> 'd' AND c.oid IN (SELECT a.attcollation \
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class r ON r.oid = a.attrelid \
        WHERE r.relkind IN ('r', 'm', 'p') AND a.attnum > 0 AND a.attcollation <> 0)";

const REPLAY: &CStr = c"SELECT pg_catalog.pg_last_wal_replay_lsn() - '0/0'::pg_catalog.pg_lsn, \
    extract(epoch FROM pg_catalog.clock_timestamp() \
        - pg_catalog.pg_last_xact_replay_timestamp())::numeric(20,1)::text, \
    CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_get_wal_replay_pause_state() END";

/// One row of `check_cluster`.
pub struct Row {
    pub replica: String,
    pub check_name: &'static str,
    pub ok: Option<bool>,
    pub detail: String,
    pub hint: Option<String>,
}

/// What a check found.
struct Finding {
    ok: Option<bool>,
    detail: String,
    hint: Option<String>,
}

fn passed(detail: impl Into<String>) -> Finding {
    Finding {
        ok: Some(true),
        detail: detail.into(),
        hint: None,
    }
}

fn failed(detail: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding {
        ok: Some(false),
        detail: detail.into(),
        hint: Some(hint.into()),
    }
}

/// Passed if both sides are equal.
fn equal(what: &str, here: &str, there: Option<&str>, hint: &str) -> Finding {
    match there {
        Some(there) if there == here => passed(format!("{what} {there}")),
        Some(there) => failed(format!("{what} {there}, but {here} here"), hint),
        None => failed(format!("{what} not told"), hint),
    }
}

/// Collects rows; what is left at the end was not checked.
struct Report<'a> {
    replica: &'a Replica,
    rows: Vec<Row>,
}

impl Report<'_> {
    fn add(&mut self, finding: Finding) {
        // More findings than checks would be a mistake of this file; the last ones are dropped.
        if let Some(check_name) = CHECKS.get(self.rows.len()) {
            let Finding { ok, detail, hint } = finding;
            let replica = self.replica.name.clone();
            self.rows.push(Row {
                replica,
                check_name,
                ok,
                detail,
                hint,
            });
        }
    }

    /// Fills the rows up to the check named, or to the end.
    fn skip(&mut self, until: Option<&str>, reason: &str) {
        while let Some(next) = CHECKS.get(self.rows.len()) {
            if Some(*next) == until {
                break;
            }
            let detail = format!("not checked: {reason}");
            self.add(Finding {
                ok: None,
                detail,
                hint: None,
            });
        }
    }
}

/// Makes all checks for one replica on behalf of a user.
pub fn check_replica(replica: &Replica, user: pg_sys::Oid) -> Vec<Row> {
    let mut report = Report {
        replica,
        rows: Vec::with_capacity(CHECKS.len()),
    };
    if let Some(mut connection) = connect(&mut report, user)
        && let Err(error) = converse(&mut report, &mut connection)
    {
        // The replica went away, or forbids what every server allows.
        report.skip(None, &describe(&error));
    }
    report.skip(None, "an earlier check failed");
    report.rows
}

fn describe(error: &NetError) -> String {
    match error.detail() {
        Some(detail) => format!("{error} ({detail})"),
        None => error.to_string(),
    }
}

fn connect(report: &mut Report, user: pg_sys::Oid) -> Option<Connection> {
    let replica = report.replica;
    let address = format!("{}:{}", replica.host, replica.port);
    let target = match connect_parameters(replica, user, "parallel_replicas check", Purpose::Check)
    {
        Ok(target) => target,
        Err(reason) => {
            report.skip(Some("authenticated"), "no credentials");
            let hint = reason.hint().unwrap_or_default();
            report.add(failed(reason.to_string(), hint));
            report.skip(None, "not authenticated");
            return None;
        }
    };
    let deadline = Instant::now() + Duration::from_secs(CONNECT_SECONDS);
    let error = match connect_wait(&target.parameters, deadline) {
        Ok(connection) => {
            report.add(passed(address));
            let method = if connection.used_password() {
                "with password"
            } else {
                "no password"
            };
            report.add(passed(method));
            return Some(connection);
        }
        Err(error) => error,
    };
    let reached = match &error {
        NetError::Connect { reached, .. } => *reached,
        NetError::PasswordNotUsed => true,
        _ => false,
    };
    if reached {
        report.add(passed(address));
        let hint = error.hint().unwrap_or_else(|| {
            "Check the user mapping, and pg_hba.conf and the log of the replica.".into()
        });
        report.add(failed(describe(&error), hint));
        report.skip(None, "not authenticated");
    } else {
        let hint = error.hint().unwrap_or_else(|| {
            "Check that the server runs, and the server options host and port.".into()
        });
        report.add(failed(describe(&error), hint));
        report.skip(None, "not reachable");
    }
    None
}

/// Everything after login.
fn converse(report: &mut Report, connection: &mut Connection) -> Result<(), NetError> {
    let deadline = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
    let me = local_identity();
    let basics = query_wait(connection, BASICS, deadline)?;
    let identity = query_wait(connection, IDENTITY, deadline);
    let itself = is_this_server(&me, identity.as_ref().ok());

    report.add(match (basics.boolean(0, 1), itself) {
        (_, true) => passed("this server itself"),
        (Some(true), _) => passed("standby"),
        _ => failed(
            "not in recovery",
            "A replica must be a streaming standby of the same primary; remove it or rebuild it.",
        ),
    });
    let same_system = equal(
        "system identifier",
        &me.system_identifier,
        basics.text(0, 0),
        "The server was not made from a base backup of this system; remove it or rebuild it.",
    );
    let is_same_system = same_system.ok == Some(true);
    report.add(same_system);
    report.add(database(&basics));
    report.add(equal(
        "server version",
        &me.server_version_num.to_string(),
        basics.text(0, 2),
        "Install the same minor version of PostgreSQL on all servers.",
    ));
    report.add(settings(&basics));
    report.add(collations(connection, deadline)?);

    let identity = match identity {
        Ok(identity) => identity,
        Err(error) => {
            report.add(failed(
                describe(&error),
                "Install the extension's files of the same version on the replica's server.",
            ));
            report.skip(Some("role rights"), "extension not usable");
            report.add(role_rights(&basics));
            return Ok(());
        }
    };
    report.add(equal(
        "version",
        &me.extension_version,
        identity.text(0, 0),
        "Install the same version of the extension on all servers and restart them.",
    ));
    report.add(match identity.boolean(0, 2) {
        Some(true) => passed("in shared_preload_libraries"),
        _ => failed(
            "not in shared_preload_libraries",
            "Add parallel_replicas to shared_preload_libraries of the replica and restart it.",
        ),
    });
    report.add(equal(
        "build",
        &me.build_id,
        identity.text(0, 1),
        "Install the same build of the extension on all servers and restart them.",
    ));
    report.add(equal(
        "timeline",
        &me.timeline.to_string(),
        identity.text(0, 3),
        "A standby follows a promotion with recovery_target_timeline = 'latest'.",
    ));
    report.add(match (itself, is_same_system, basics.boolean(0, 1)) {
        (true, _, _) => passed("this server itself"),
        (_, true, Some(true)) => replay(connection, &me)?,
        _ => Finding {
            ok: None,
            detail: "not checked: not a standby of this system".into(),
            hint: None,
        },
    });
    report.add(role_rights(&basics));
    Ok(())
}

fn is_this_server(me: &Identity, identity: Option<&QueryResult>) -> bool {
    let theirs = identity.and_then(|identity| identity.text(0, 4));
    me.instance_id.is_some() && theirs == me.instance_id.as_deref()
}

fn database(basics: &QueryResult) -> Finding {
    // SAFETY: set once at backend start.
    let here = unsafe { pg_sys::MyDatabaseId };
    let name = basics.text(0, 4).unwrap_or("?");
    equal(
        &format!("database \"{name}\" with OID"),
        &u32::from(here).to_string(),
        basics.text(0, 3),
        "The server belongs to another system, or the database was made anew meanwhile.",
    )
}

fn settings(basics: &QueryResult) -> Finding {
    let names = [
        "zero_damaged_pages",
        "ignore_checksum_failure",
        "ignore_system_indexes",
    ];
    let is_off = |column: &i32| basics.text(0, *column) == Some("off");
    let on: Vec<&str> = (5..)
        .zip(names)
        .filter(|(c, _)| !is_off(c))
        .map(|(_, n)| n)
        .collect();
    match on.is_empty() {
        true => passed("none that hides damage is on"),
        false => failed(
            format!("on: {}", on.join(", ")),
            "Turn these settings off on the replica; they hide damage, so answers could be wrong.",
        ),
    }
}

fn role_rights(basics: &QueryResult) -> Finding {
    let role = basics.text(0, 9).unwrap_or("?");
    match basics.boolean(0, 8) {
        Some(true) => passed(format!(
            "role \"{role}\" may execute parallel_replicas.serve(bytea)"
        )),
        Some(false) => failed(
            format!("role \"{role}\" may not execute parallel_replicas.serve(bytea)"),
            "Grant EXECUTE on parallel_replicas.serve(bytea) and USAGE on its schema to that role, on \
             the primary.",
        ),
        None => failed(
            "parallel_replicas.serve(bytea) does not exist",
            "Run CREATE EXTENSION parallel_replicas, or ALTER EXTENSION parallel_replicas UPDATE.",
        ),
    }
}

fn collations(connection: &mut Connection, deadline: Instant) -> Result<Finding, NetError> {
    let theirs = query_wait(connection, COLLATIONS, deadline)?;
    let theirs: BTreeMap<String, String> = (0..theirs.rows())
        .filter_map(|row| {
            let version = theirs.text(row, 1).unwrap_or("none").to_owned();
            Some((theirs.text(row, 0)?.to_owned(), version))
        })
        .collect();
    let ours = local_collations();
    let mut differences: Vec<String> = ours
        .iter()
        .filter(|(name, version)| theirs.get(*name) != Some(version))
        .map(|(name, version)| match theirs.get(name) {
            Some(other) => format!("{name} {other}, but {version} here"),
            None => format!("{name} not known"),
        })
        .collect();
    if differences.is_empty() {
        return Ok(passed(format!("{} equal", ours.len())));
    }
    let more = differences.len().saturating_sub(DIFFERENCES_MAX);
    differences.truncate(DIFFERENCES_MAX);
    if more > 0 {
        differences.push(format!("and {more} more"));
    }
    Ok(failed(
        differences.join("; "),
        "Install the same versions of libc and ICU on all servers; text may sort differently.",
    ))
}

fn local_collations() -> BTreeMap<String, String> {
    let sql = COLLATIONS.to_str().unwrap_or_default();
    let read = Spi::connect(|client| {
        let mut rows = BTreeMap::new();
        for row in client.select(sql, None, &[])? {
            if let Some(name) = row.get::<String>(1)? {
                rows.insert(name, row.get::<String>(2)?.unwrap_or_else(|| "none".into()));
            }
        }
        Ok::<_, pgrx::spi::Error>(rows)
    });
    // The query is fixed, so only a server that lacks these functions gets here.
    read.unwrap_or_default()
}

/// The position that the replica has to reach: all that is safely on disk here.
fn local_position(me: &Identity) -> u64 {
    match me.replay_lsn {
        Some(lsn) => lsn,
        // SAFETY: main thread, not in recovery.
        None => unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) },
    }
}

/// Waits for the replica to replay what is on disk here now.
fn replay(connection: &mut Connection, me: &Identity) -> Result<Finding, NetError> {
    let goal = local_position(me);
    let started = Instant::now();
    let deadline = started + Duration::from_millis(REPLAY_MS);
    loop {
        let answer_by = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
        let answer = query_wait(connection, REPLAY, answer_by)?;
        let replayed = answer
            .text(0, 0)
            .and_then(|lsn| lsn.parse::<u64>().ok())
            .unwrap_or(0);
        if replayed >= goal {
            let taken = started.elapsed().as_millis();
            return Ok(passed(format!(
                "0 bytes behind after {taken} ms, at most {REPLAY_MS}"
            )));
        }
        if Instant::now() >= deadline {
            let seconds = answer.text(0, 1).unwrap_or("?");
            let paused = answer.text(0, 2).is_some_and(|state| state != "not paused");
            let hint = match paused {
                true => "Replay is paused; resume it with pg_wal_replay_resume().",
                false => "Queries go on without a replica that does not catch up in time.",
            };
            return Ok(failed(
                format!(
                    "{} bytes behind after {REPLAY_MS} ms; the last transaction replayed was \
                     committed {seconds} s ago",
                    goal - replayed
                ),
                hint,
            ));
        }
        sleep(Duration::from_millis(REPLAY_POLL_MS));
    }
}
