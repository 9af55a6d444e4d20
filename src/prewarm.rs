//! Loads a table into the caches of a cluster: each server its own segments, as the hash that
//! queries use maps them.
//!
//! A replica is asked in ordinary SQL, in statements of bounded size: each has a snapshot of its own,
//! so that no replay has to wait long for one.

use crate::choice;
use crate::cluster::{self, Purpose, Replica};
use crate::exec::tasks::LOCAL_REPLICA;
use crate::net::{Connection, answers_wait, connect_wait};
use crate::pg::ffi;
use crate::settings;
use parallel_replicas_core::task_state::{ReplicaSpec, ScanSpec, TaskError, TaskState, size_words};
use pgrx::{PgSqlErrorCode, check_for_interrupts, pg_sys};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Blocks that one statement loads at the most.
const STATEMENT_BLOCKS: u32 = 8192;
/// Longest time that a server may take; the user's own timeouts and cancel hold as well.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What one server has loaded.
pub struct Warmed {
    /// None: this server.
    pub replica: Option<String>,
    pub blocks: i64,
    pub milliseconds: f64,
    pub error: Option<String>,
}

/// Blocks of a relation: first, and the one after the last.
#[derive(Clone, Copy)]
struct Range {
    relation: pg_sys::Oid,
    start: u32,
    end: u32,
}

/// Warms the caches of this server and of the replicas that a query would use.
pub fn prewarm(relation: pg_sys::Oid, cluster: &str) -> Vec<Warmed> {
    let known = cluster::replicas(cluster);
    let most = settings::max_parallel_replicas();
    let chosen = choice::choose(cluster, &known, most, false, settings::local_plan());
    let positions = chosen.replicas.iter();
    let replicas: Vec<&Replica> = positions.map(|position| &known[*position]).collect();
    let local = usize::from(chosen.local || replicas.is_empty());
    let mut servers = vec![(LOCAL_REPLICA, chosen.local_weight); local];
    servers.extend(
        replicas
            .iter()
            .map(|replica| (replica.name.as_str(), replica.weight)),
    );
    let mut work: Vec<Vec<Range>> = vec![Vec::new(); servers.len()];
    for relation in leaves(relation) {
        share(relation, &servers, &mut work);
    }
    let started = Instant::now();
    let milliseconds = || started.elapsed().as_secs_f64() * 1000.0;
    let mut asked: Vec<Result<Connection, String>> = replicas
        .iter()
        .zip(&work[local..])
        .map(|(replica, ranges)| ask(replica, ranges))
        .collect();
    let mut warmed = Vec::new();
    if local == 1 {
        let blocks = work[0].iter().map(load).sum();
        warmed.push(Warmed {
            replica: None,
            blocks,
            milliseconds: milliseconds(),
            error: None,
        });
    }
    for (replica, asked) in replicas.iter().zip(&mut asked) {
        let answers = match asked {
            Ok(connection) => answers_wait(connection, Instant::now() + LONGEST)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        let blocks = answers.as_ref().map_or(0, |answers| {
            let numbers = answers
                .iter()
                .map(|answer| answer.text(0, 0)?.parse::<i64>().ok());
            numbers.flatten().sum()
        });
        warmed.push(Warmed {
            replica: Some(replica.name.clone()),
            blocks,
            milliseconds: milliseconds(),
            error: answers.err(),
        });
    }
    warmed
}

/// The relation, or its partitions and children, as far as standbys have their rows.
fn leaves(relation: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: in a transaction; takes the locks that a query would.
    unsafe {
        let lock = pg_sys::AccessShareLock as i32;
        let all = ffi::guarded::find_all_inheritors(relation, lock, std::ptr::null_mut());
        (0..(*all).length as usize)
            .map(|index| (*(*all).elements.add(index)).oid_value)
            .filter(|oid: &pg_sys::Oid| {
                let kind = pg_sys::get_rel_relkind(*oid) as u8;
                let persistence = pg_sys::get_rel_persistence(*oid) as u8;
                matches!(kind, b'r' | b'm') && persistence == b'p'
            })
            .collect()
    }
}

/// Divides a relation as a query would.
fn share(relation: pg_sys::Oid, servers: &[(&str, u32)], work: &mut [Vec<Range>]) {
    // SAFETY: in a transaction, the relation is locked; closed again, the lock stays.
    let (relfilenode, blocks) = unsafe {
        let opened = pg_sys::relation_open(relation, pg_sys::NoLock as i32);
        let blocks =
            pg_sys::RelationGetNumberOfBlocksInFork(opened, pg_sys::ForkNumber::MAIN_FORKNUM);
        let relfilenode = (*opened).rd_node.relNode.to_u32();
        pg_sys::relation_close(opened, pg_sys::NoLock as i32);
        (relfilenode, blocks)
    };
    let spec = ScanSpec {
        // SAFETY: plain global.
        database: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        relfilenode,
        blocks,
        granule_blocks: settings::granule_blocks(),
        segment_granules: settings::mark_segment_size(),
    };
    let specs: Vec<ReplicaSpec<'_>> = servers
        .iter()
        .map(|(name, weight)| ReplicaSpec {
            name,
            weight: *weight,
        })
        .collect();
    let placed = owners(&spec, &specs)
        .unwrap_or_else(|error| crate::error::internal(format!("task state: {error}")));
    for (owner, start, end) in placed {
        let ranges = &mut work[owner];
        match ranges.last_mut() {
            Some(last) if last.relation == relation && last.end == start => last.end = end,
            _ => ranges.push(Range {
                relation,
                start,
                end,
            }),
        }
    }
}

/// Owner and blocks of each segment.
fn owners(
    spec: &ScanSpec,
    replicas: &[ReplicaSpec<'_>],
) -> Result<Vec<(usize, u32, u32)>, TaskError> {
    let mut words = vec![0; size_words(spec, replicas.len(), 1)?];
    let state = TaskState::init(&mut words, spec, replicas, &[0])?;
    let segment_blocks = state.segment_granules() * spec.granule_blocks;
    Ok(state
        .placements()
        .zip((0..spec.blocks).step_by(segment_blocks as usize))
        .map(|((owner, _), start)| {
            let end = spec.blocks.min(start.saturating_add(segment_blocks));
            (usize::from(owner), start, end)
        })
        .collect())
}

/// Connects and sends all statements.
fn ask(replica: &Replica, ranges: &[Range]) -> Result<Connection, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    // SAFETY: plain global.
    let user = unsafe { pg_sys::GetUserId() };
    let name = "parallel_replicas prewarm";
    let target = cluster::connect_parameters(replica, user, name, Purpose::Check)
        .map_err(|error| text(&error))?;
    let deadline = Instant::now() + Duration::from_millis(settings::connect_timeout_ms());
    let mut connection =
        connect_wait(&target.parameters, deadline).map_err(|error| text(&error))?;
    let statements = CString::new(statements(ranges)).map_err(|error| text(&error))?;
    connection
        .send_query(&statements)
        .map_err(|error| text(&error))?;
    connection.flush().map_err(|error| text(&error))?;
    Ok(connection)
}

/// One statement for each few ranges.
fn statements(ranges: &[Range]) -> String {
    let mut sql = String::new();
    for range in ranges {
        for start in (range.start..range.end).step_by(STATEMENT_BLOCKS as usize) {
            let end = range.end.min(start.saturating_add(STATEMENT_BLOCKS));
            sql.push_str(&format!(
                "SELECT parallel_replicas.prewarm_blocks({}, {start}, {end});",
                range.relation.to_u32()
            ));
        }
    }
    sql
}

fn load(range: &Range) -> i64 {
    load_blocks(range.relation, range.start, range.end)
}

/// Reads blocks into this server's cache, as far as the relation has them, and counts them.
pub fn load_blocks(relation: pg_sys::Oid, start: u32, end: u32) -> i64 {
    // SAFETY: in a transaction; the relation is locked while it is read, and each buffer is pinned
    // for the moment only.
    unsafe {
        let lock = pg_sys::AccessShareLock as i32;
        let opened = pg_sys::try_relation_open(relation, lock);
        if opened.is_null() {
            crate::error::raise(
                PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
                format!("relation with OID {} does not exist", relation.to_u32()),
                "",
                "",
            );
        }
        let class = &*(*opened).rd_rel;
        if !matches!(class.relkind as u8, b'r' | b'm') || class.relpersistence as u8 != b'p' {
            crate::error::raise(
                PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                "only permanent tables and materialized views can be prewarmed",
                "",
                "",
            );
        }
        let fork = pg_sys::ForkNumber::MAIN_FORKNUM;
        let end = end.min(pg_sys::RelationGetNumberOfBlocksInFork(opened, fork));
        for block in start..end {
            check_for_interrupts!();
            let buffer = pg_sys::ReadBufferExtended(
                opened,
                fork,
                block,
                pg_sys::ReadBufferMode::RBM_NORMAL,
                std::ptr::null_mut(),
            );
            pg_sys::ReleaseBuffer(buffer);
        }
        pg_sys::relation_close(opened, lock);
        i64::from(end.saturating_sub(start))
    }
}
