//! What this backend has in hand that others may wait for.
//!
//! A backend that waits in the queue while it holds a lock can be part of a deadlock that
//! PostgreSQL's detector cannot see. So whoever holds more than what every query holds does not
//! wait, and whoever waits looks now and then whether somebody waits for it.
//!
//! Both look at the whole lock table, and only when a statement has to wait anyway.

use crate::pg::plan::items;
use pgrx::pg_sys;
use pgrx::pg_sys::LockTagType;

const ACCESS_SHARE: i32 = pg_sys::AccessShareLock as i32;
const MODES: std::ops::RangeInclusive<i32> = 1..=8;

fn lock_table() -> Vec<pg_sys::LockInstanceData> {
    // SAFETY: a copy in the current memory context, freed here.
    unsafe {
        let data = pg_sys::GetLockStatusData();
        let locks = std::slice::from_raw_parts((*data).locks, (*data).nelements as usize).to_vec();
        pg_sys::pfree((*data).locks.cast());
        pg_sys::pfree(data.cast());
        locks
    }
}

fn own_pid() -> i32 {
    // SAFETY: plain global.
    unsafe { pg_sys::MyProcPid }
}

fn kind(lock: &pg_sys::LockInstanceData) -> u32 {
    u32::from(lock.locktag.locktag_type)
}

fn held_modes(lock: &pg_sys::LockInstanceData) -> impl Iterator<Item = i32> {
    let mask = lock.holdMask;
    MODES.filter(move |mode| mask & (1 << mode) != 0)
}

/// Does the transaction hold anything but what `statement` itself needed to be planned?
///
/// # Safety
/// `statement` is null or a valid planned statement.
pub unsafe fn are_full(statement: *const pg_sys::PlannedStmt) -> bool {
    if crate::pg::proc::own_xid().is_some() {
        return true;
    }
    let own = own_pid();
    lock_table()
        .iter()
        .filter(|lock| lock.pid == own && lock.holdMask != 0)
        .any(|lock| match kind(lock) {
            LockTagType::LOCKTAG_VIRTUALTRANSACTION => false,
            LockTagType::LOCKTAG_ADVISORY | LockTagType::LOCKTAG_USERLOCK => true,
            LockTagType::LOCKTAG_RELATION => {
                let oid = pg_sys::Oid::from(lock.locktag.locktag_field2);
                held_modes(lock)
                    .filter(|mode| *mode > ACCESS_SHARE)
                    // SAFETY: as the caller says.
                    .any(|mode| unsafe { !is_needed(statement, oid, mode) })
            }
            _ => held_modes(lock).any(|mode| mode > ACCESS_SHARE),
        })
}

/// Did planning the statement take this lock: on one of its tables, or an index of one?
///
/// # Safety
/// As for [`are_full`].
unsafe fn is_needed(statement: *const pg_sys::PlannedStmt, oid: pg_sys::Oid, mode: i32) -> bool {
    if statement.is_null() {
        return false;
    }
    // SAFETY: as the caller says; the range table's entries are valid.
    unsafe {
        let takes = |relation: pg_sys::Oid| {
            items::<pg_sys::RangeTblEntry>((*statement).rtable).any(|rte| {
                (*rte).rtekind == pg_sys::RTEKind::RTE_RELATION
                    && (*rte).relid == relation
                    && (*rte).rellockmode >= mode
            })
        };
        takes(oid) || {
            let table = pg_sys::IndexGetRelation(oid, true);
            table != pg_sys::InvalidOid && takes(table)
        }
    }
}

/// Does anybody wait for a lock that this backend holds? The waiter's process id.
pub fn who_is_blocked() -> Option<i32> {
    let own = own_pid();
    let locks = lock_table();
    let mine: Vec<_> = locks
        .iter()
        .filter(|lock| lock.pid == own && lock.holdMask != 0)
        .collect();
    locks
        .iter()
        .filter(|lock| lock.pid != own && lock.waitLockMode != 0)
        .find(|waiting| {
            mine.iter().any(|held| {
                is_same(&held.locktag, &waiting.locktag)
                    && held_modes(held).any(|mode| {
                        // SAFETY: a table of constants.
                        unsafe { pg_sys::DoLockModesConflict(mode, waiting.waitLockMode) }
                    })
            })
        })
        .map(|waiting| waiting.pid)
}

fn is_same(one: &pg_sys::LOCKTAG, other: &pg_sys::LOCKTAG) -> bool {
    let fields = |tag: &pg_sys::LOCKTAG| {
        (
            tag.locktag_field1,
            tag.locktag_field2,
            tag.locktag_field3,
            tag.locktag_field4,
            tag.locktag_type,
            tag.locktag_lockmethodid,
        )
    };
    fields(one) == fields(other)
}
