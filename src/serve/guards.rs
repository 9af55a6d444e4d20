//! What must hold on this server before a row is looked at. The order of the calls is `serve`'s.
//!
//! Each guard answers with a refusal, which costs the query time and nothing else.

use super::copy_both;
use crate::exec::failure::TRUNCATED_FILE;
use crate::exec::shipment::relation_identity;
use crate::pg::wait::now_micros;
use crate::pg::{collation, guc, heap, library, proc, timezone};
use crate::plan::extensions::{self, Extensions};
use crate::secret;
use crate::shm::events::{self, Event};
use parallel_replicas_core::frame::{self, Begin, Nonce, Refusal, Relation, ToReplica};
use pgrx::pg_sys;
use std::ffi::CStr;

/// Not a refusal of ours: the query has ended without us.
pub const STOPPED: &str = "stopped";

pub fn refusal(reason: &str, detail: impl Into<String>) -> Refusal {
    Refusal {
        reason: reason.to_owned(),
        detail: detail.into(),
    }
}

/// Receives Begin and looks at it only if whoever sent it knows the secret.
pub fn authenticated_begin(secret: &[u8], nonce: &Nonce) -> Result<Begin, Refusal> {
    match copy_both::receive(true) {
        Some(ToReplica::Begin { mac, body }) => {
            if !secret::verify(secret, nonce, &body, &mac) {
                return Err(refusal(
                    "authentication",
                    "the coordinator does not know the secret",
                ));
            }
            frame::decode_body(&body).map_err(|error| refusal("protocol", error.to_string()))
        }
        Some(ToReplica::Stop) => Err(refusal(STOPPED, "the coordinator needs no rows")),
        _ => Err(refusal("protocol", "the coordinator did not begin")),
    }
}

/// A standby of the coordinator's server, on its timeline. Identity itself has been compared by the
/// coordinator; a replica that is not in recovery has a history of its own.
pub fn server(begin: &Begin) -> Result<(), Refusal> {
    recovery(begin.timeline)
}

/// In recovery, replaying that timeline.
pub fn recovery(expected: u32) -> Result<(), Refusal> {
    // SAFETY: reads shared memory.
    if !unsafe { pg_sys::RecoveryInProgress() } {
        return Err(refusal("not_standby", "the server is not in recovery"));
    }
    let (_, timeline) = proc::replayed();
    if timeline != expected {
        return Err(refusal(
            "timeline",
            format!("the server replays timeline {timeline}, the coordinator {expected}"),
        ));
    }
    Ok(())
}

/// Waits until everything that the coordinator's snapshot can see has been replayed. The backend
/// holds no snapshot meanwhile. Answers how long it took, in microseconds.
pub fn wait_for_replay(begin: &Begin) -> Result<u64, Refusal> {
    let start = now_micros();
    let deadline = start + u64::from(begin.replay_wait_ms) * 1000;
    let mut pause_ms = 1;
    loop {
        let (replayed, _) = proc::replayed();
        if replayed >= begin.lsn {
            break;
        }
        // SAFETY: reads this process's own entry.
        if unsafe { (*pg_sys::MyProc).xmin } != pg_sys::InvalidTransactionId {
            return Err(refusal("snapshot_held", "the backend holds a snapshot"));
        }
        if now_micros() >= deadline {
            return Err(refusal(
                "replay",
                format!(
                    "{} bytes were not replayed within {} ms",
                    begin.lsn - replayed,
                    begin.replay_wait_ms
                ),
            ));
        }
        if copy_both::receive(false).is_some() {
            return Err(refusal(STOPPED, "the coordinator needs no rows"));
        }
        copy_both::pause(pause_ms);
        pause_ms = (pause_ms * 2).min(10);
    }
    let waited = now_micros() - start;
    events::add(Event::ServedReplayWaitMicroseconds, waited);
    Ok(waited)
}

/// The snapshot is complete, and of this server's present.
pub fn snapshot(begin: &Begin) -> Result<(), Refusal> {
    begin
        .snapshot
        .check()
        .map_err(|error| refusal("snapshot", error.to_string()))?;
    // SAFETY: reads shared memory.
    let next = unsafe { pg_sys::ReadNextFullTransactionId() }.value;
    let xmax = u64::from(begin.snapshot.xmax_epoch) << 32 | u64::from(begin.snapshot.xmax);
    // What the coordinator saw assigned has been replayed, give or take ids without WAL.
    if next.abs_diff(xmax) > u64::from(u32::MAX >> 1) {
        return Err(refusal("epoch", "transaction ids are of another epoch"));
    }
    match running_here()
        .into_iter()
        .find(|xid| begin.snapshot.misses(*xid))
    {
        Some(xid) => Err(refusal(
            "snapshot",
            format!("transaction {xid} is in progress, and the snapshot does not list it"),
        )),
        None => Ok(()),
    }
}

/// Transactions that recovery takes to be in progress now, sub-transactions included as far as it
/// knows them.
fn running_here() -> Vec<u32> {
    // SAFETY: takes a snapshot of this server's own and only reads its list; a snapshot taken during
    // recovery has all of it in subxip (procarray.c). Nothing refers to it afterwards.
    unsafe {
        let snapshot = &*pg_sys::GetLatestSnapshot();
        (0..snapshot.subxcnt.max(0) as usize)
            .map(|index| (*snapshot.subxip.add(index)).into_inner())
            .collect()
    }
}

/// Settings that hide corruption are off; libraries whose rules expressions follow are the same.
pub fn settings_and_libraries(begin: &Begin) -> Result<(), Refusal> {
    const DANGEROUS: &[&CStr] = &[
        c"zero_damaged_pages",
        c"ignore_checksum_failure",
        c"ignore_system_indexes",
    ];
    for name in DANGEROUS {
        if guc::value(name).as_deref() == Some("on") {
            return Err(refusal(
                "dangerous_setting",
                format!("{} is on", name.to_string_lossy()),
            ));
        }
    }
    for expected in &begin.collations {
        // SAFETY: in a transaction.
        let version = unsafe { collation::version(expected.oid) };
        if version.as_deref() != Some(expected.version.as_str()) {
            return Err(refusal(
                "collation",
                format!(
                    "collation {} has version {}, on the coordinator {}",
                    expected.oid,
                    version.as_deref().unwrap_or("none"),
                    expected.version
                ),
            ));
        }
    }
    // Looking at catalogs took a snapshot of its own.
    // SAFETY: no scan is open.
    unsafe { pg_sys::InvalidateCatalogSnapshot() };
    Ok(())
}

/// The libraries of extensions are the coordinator's.
///
/// # Safety
/// In a transaction; `used` was found in a plan that refers to functions that exist.
pub unsafe fn extensions(begin: &Begin, used: &Extensions) -> Result<(), Refusal> {
    for (extension, functions) in &used.used {
        let listed = begin
            .extensions
            .iter()
            .find(|listed| listed.oid == *extension);
        // SAFETY: as the caller says.
        let here = unsafe { library::fingerprint(functions.iter().copied()) };
        if here.is_none() || here != listed.map(|listed| listed.libraries) {
            return Err(refusal(
                "extension",
                // SAFETY: as above.
                format!("the library of extension {} differs", unsafe {
                    extensions::name(*extension)
                }),
            ));
        }
    }
    Ok(())
}

/// After the session's settings have been taken over: the time zone has the same rules.
pub fn time_zone(begin: &Begin) -> Result<(), Refusal> {
    match begin.time_zone_fingerprint {
        Some(expected) if timezone::fingerprint() != expected => {
            Err(refusal("time_zone", "the time zone data differs"))
        }
        _ => Ok(()),
    }
}

/// Locks the fragment's relations, then compares them with the coordinator's, and the lengths of their
/// files with what has been replayed: a scan ends in silence where its file does.
pub fn lock_relations(begin: &Begin) -> Result<(), Refusal> {
    for expected in &begin.relations {
        let oid = pg_sys::Oid::from(expected.identity.oid);
        // SAFETY: in a transaction; the lock is released at its end. A relation that is gone would
        // be an error on opening, so the cache is asked first.
        let found = unsafe {
            pg_sys::LockRelationOid(oid, pg_sys::AccessShareLock as i32);
            let known = !pg_sys::get_rel_name(oid).is_null();
            known.then(|| compare(oid, expected))
        };
        found.unwrap_or_else(|| Err(refusal("relation", format!("relation {oid} is gone"))))?;
    }
    Ok(())
}

/// # Safety
/// The relation exists, and is locked by this transaction.
unsafe fn compare(oid: pg_sys::Oid, expected: &Relation) -> Result<(), Refusal> {
    // SAFETY: as the caller says; closed again. What is a heap on the coordinator is one here.
    let (is_same, blocks) = unsafe {
        let relation = pg_sys::relation_open(oid, pg_sys::NoLock as i32);
        let is_same = relation_identity(relation) == expected.identity;
        let counts = is_same && expected.filled_blocks > 0;
        let blocks = counts.then(|| heap::blocks(relation));
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        (is_same, blocks)
    };
    if !is_same {
        return Err(refusal("relation", format!("relation {oid} differs")));
    }
    match blocks.filter(|blocks| *blocks < expected.filled_blocks) {
        Some(blocks) => Err(refusal(
            TRUNCATED_FILE,
            format!(
                "relation {oid} ends at block {blocks}, on the coordinator block {} holds rows",
                expected.filled_blocks - 1
            ),
        )),
        None => Ok(()),
    }
}
