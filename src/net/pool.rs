//! The session's connections: idle ones kept for the next query, leased ones in use by an executor.
//!
//! Why leases: an executor node that owns its connections loses them only if its End callback runs,
//! and after an error it never does. So the registry owns every connection in use, and transaction
//! callbacks close those of a transaction or subtransaction that aborts. The executor holds a
//! [`LeaseId`] and borrows the connection from turn to turn with [`get`].
//!
//! Not here: shared state. Each process has its own registry; sockets end with the process, so
//! nothing is closed at backend exit.
//!
//! Who calls it: `exec` (take, lease, get, release); PostgreSQL (the callbacks).
//!
//! Invariants:
//! - A connection is idle, or leased, or owned by a caller, never two of them.
//! - An idle connection was idle and clean when it was put back, and is checked again when taken.
//! - A connection whose server or user mapping definition may have changed is not used again.
//! - No PostgreSQL function that could raise an error runs while the registry is borrowed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use pgrx::pg_sys::{self, SubXactEvent, XactEvent};
use pgrx::prelude::*;

use super::connection::Connection;
use super::error::NetError;
use crate::pg::wait;
use crate::shm::links;

/// What an idle connection may be reused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    pub server_oid: pg_sys::Oid,
    /// A template server stands for several addresses.
    pub address_hash: u64,
    /// Owner of the user mapping that gave the credentials; invalid for the PUBLIC mapping.
    pub mapping_user_oid: pg_sys::Oid,
    /// [`catalog_generation`] from before the parameters were read.
    pub catalog_generation: u64,
    /// The user on whose behalf the connection was made. The PUBLIC mapping serves several, and
    /// whether a password is required depends on the user.
    pub user_oid: pg_sys::Oid,
}

/// Limits of the idle set, given by the caller at each use because they are settings.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Idle connections kept by this session; 0 keeps none. The oldest goes first.
    pub idle_max: usize,
    /// A connection that was idle for longer is closed at the next take or put.
    pub idle_lifetime: Duration,
    /// Links that all sessions may have; 0: no limit. Beyond half of them none is kept, so that idle
    /// ones leave room for those that work.
    pub links_max: u32,
}

/// Names a leased connection. Never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(u64);

impl LeaseId {
    pub fn number(self) -> u64 {
        self.0
    }
}

struct Idle {
    key: PoolKey,
    connection: Connection,
    since: Instant,
}

struct Lease {
    key: PoolKey,
    /// The subtransaction whose abort closes the connection.
    subtransaction: pg_sys::SubTransactionId,
    /// Absent while a [`LeaseGuard`] has it.
    connection: Option<Box<Connection>>,
}

#[derive(Default)]
struct Registry {
    /// Oldest first.
    idle: Vec<Idle>,
    leased: HashMap<LeaseId, Lease>,
    last_lease: u64,
    catalog_generation: u64,
    callbacks_registered: bool,
}

thread_local! {
    // Without a destructor: at process exit nothing may run here, the kernel closes the sockets.
    static REGISTRY: ManuallyDrop<RefCell<Registry>> = ManuallyDrop::new(RefCell::default());
}

fn with_registry<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
    REGISTRY.with(|registry| f(&mut registry.borrow_mut()))
}

impl Registry {
    /// Moves out what has been idle too long, so that it is closed after the borrow has ended.
    fn expire(&mut self, limits: PoolLimits) -> Vec<Idle> {
        let (kept, expired) = std::mem::take(&mut self.idle)
            .into_iter()
            .partition(|idle| idle.since.elapsed() <= limits.idle_lifetime);
        self.idle = kept;
        expired
    }

    /// Moves out the leases that the condition picks.
    fn end_leases(&mut self, ends: impl Fn(&Lease) -> bool) -> Vec<Lease> {
        self.leased
            .extract_if(|_, lease| ends(lease))
            .map(|(_, lease)| lease)
            .collect()
    }
}

/// Counts the changes of servers and user mappings that this session has noticed. Read it before the
/// catalog: a connection whose key has an older number is never kept.
pub fn catalog_generation() -> u64 {
    ensure_callbacks();
    with_registry(|registry| registry.catalog_generation)
}

/// Takes an idle connection for the key, the one used last, if one is still usable. It may still be
/// in the making: a query that ended before its connection was up leaves it for the next one.
pub fn take(key: &PoolKey, limits: PoolLimits) -> Option<Connection> {
    let expired = with_registry(|registry| registry.expire(limits));
    drop(expired);
    loop {
        let mut idle = with_registry(|registry| {
            let at = registry.idle.iter().rposition(|idle| idle.key == *key)?;
            Some(registry.idle.remove(at))
        })?;
        let usable = if idle.connection.is_pending() {
            !idle.connection.is_broken()
        } else {
            idle.connection.is_idle_and_clean()
        };
        if usable {
            return Some(idle.connection);
        }
    }
}

/// Under a cap on links: may the connection wait for the session's next query? Not one that was not
/// counted, or the cap would not hold; not one in the making, which may never come about; and not
/// while others may need its place.
fn may_stay(connection: &Connection, links_max: u32) -> bool {
    connection.is_counted() && connection.is_connected() && links::in_use() <= links_max / 2
}

/// Keeps a connection for the next query, or closes it if it is not clean or there is no room.
pub fn put_back(key: PoolKey, mut connection: Connection, limits: PoolLimits) {
    let clean = limits.idle_max > 0
        && (limits.links_max == 0 || may_stay(&connection, limits.links_max))
        && key.catalog_generation == catalog_generation()
        && (connection.is_pending() || connection.is_idle_and_clean());
    let mut closing = with_registry(|registry| registry.expire(limits));
    if clean {
        with_registry(|registry| {
            registry.idle.push(Idle {
                key,
                connection,
                since: Instant::now(),
            });
            let surplus = registry.idle.len().saturating_sub(limits.idle_max);
            closing.extend(registry.idle.drain(..surplus));
        });
    }
}

/// Hands a connection to the registry for the rest of the current (sub)transaction at the longest.
///
/// # Panics
/// Raises a PostgreSQL error only if registering the callbacks runs out of memory; the connection
/// is closed then.
pub fn lease(key: PoolKey, connection: Connection) -> LeaseId {
    ensure_callbacks();
    // SAFETY: reads a counter of the current transaction.
    let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
    add_lease(key, subtransaction, connection)
}

/// A lease of another connection to where a leased one goes, for the same user and for as long.
///
/// # Errors
/// [`NetError::NotReady`] if that lease has ended; else as for [`Connection::start`].
pub fn lease_beside(id: LeaseId, limits: PoolLimits) -> Result<LeaseId, NetError> {
    let (key, subtransaction) = with_registry(|registry| {
        let lease = registry.leased.get(&id)?;
        Some((lease.key, lease.subtransaction))
    })
    .ok_or(NetError::NotReady)?;
    let link = get(id).ok_or(NetError::NotReady)?;
    let idle = take(&key, limits).filter(|connection| connection.is_beside(&link));
    let connection = match idle {
        Some(connection) => connection,
        None => link.another()?,
    };
    drop(link);
    Ok(add_lease(key, subtransaction, connection))
}

fn add_lease(
    key: PoolKey,
    subtransaction: pg_sys::SubTransactionId,
    connection: Connection,
) -> LeaseId {
    with_registry(|registry| {
        registry.last_lease += 1;
        let id = LeaseId(registry.last_lease);
        let connection = Some(Box::new(connection));
        registry.leased.insert(
            id,
            Lease {
                key,
                subtransaction,
                connection,
            },
        );
        id
    })
}

/// Borrows a leased connection; `None` if it was released, closed by an abort, or is borrowed.
pub fn get(id: LeaseId) -> Option<LeaseGuard> {
    let connection = with_registry(|registry| registry.leased.get_mut(&id)?.connection.take())?;
    Some(LeaseGuard {
        id,
        connection: Some(connection),
    })
}

/// Ends a lease: the connection goes back to the idle set if `reusable` and clean, else it is
/// closed. Does nothing for a lease that has ended.
pub fn release(id: LeaseId, reusable: bool, limits: PoolLimits) {
    let lease = with_registry(|registry| registry.leased.remove(&id));
    if let Some(Lease {
        key,
        connection: Some(connection),
        ..
    }) = lease
        && reusable
    {
        put_back(key, *connection, limits);
    }
}

/// A leased connection for one turn of the event loop.
///
/// Dropped in order, it returns the connection to its lease. Dropped while an error unwinds, it
/// closes the connection: whatever was going on has been left half done.
pub struct LeaseGuard {
    id: LeaseId,
    connection: Option<Box<Connection>>,
}

impl LeaseGuard {}

impl Deref for LeaseGuard {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("only drop empties the guard"),
        }
    }
}

impl DerefMut for LeaseGuard {
    fn deref_mut(&mut self) -> &mut Connection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("only drop empties the guard"),
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        // If the lease has ended meanwhile the connection comes back out and is closed here.
        let orphan = REGISTRY.with(|registry| {
            let Ok(mut registry) = registry.try_borrow_mut() else {
                return Some(connection);
            };
            if std::thread::panicking() {
                registry.leased.remove(&self.id);
                return Some(connection);
            }
            match registry.leased.get_mut(&self.id) {
                Some(lease) => lease.connection.replace(connection),
                None => Some(connection),
            }
        });
        drop(orphan);
    }
}

fn ensure_callbacks() {
    if with_registry(|registry| registry.callbacks_registered) {
        return;
    }
    // SAFETY: main thread; the callbacks live as long as the library, which is never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_transaction_event), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_subtransaction_event), std::ptr::null_mut());
        for cache in [
            pg_sys::SysCacheIdentifier::FOREIGNSERVEROID,
            pg_sys::SysCacheIdentifier::USERMAPPINGOID,
        ] {
            pg_sys::CacheRegisterSyscacheCallback(
                cache as i32,
                Some(at_catalog_change),
                pg_sys::Datum::from(0_usize),
            );
        }
    }
    with_registry(|registry| registry.callbacks_registered = true);
}

/// Closes all leases at the end of the transaction. After a commit there should be none, because
/// every executor has ended or, for a held cursor, has been run to its end by then.
#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_event(
    event: XactEvent::Type,
    _arg: *mut std::ffi::c_void,
) {
    use XactEvent::*;
    if matches!(
        event,
        XACT_EVENT_ABORT
            | XACT_EVENT_PARALLEL_ABORT
            | XACT_EVENT_COMMIT
            | XACT_EVENT_PARALLEL_COMMIT
            | XACT_EVENT_PREPARE
    ) {
        wait::forget_set();
        let ended = with_registry(|registry| registry.end_leases(|_| true));
        drop(ended);
    }
}

/// Closes the leases of an aborted subtransaction; hands those of a committed one to its parent.
#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction_event(
    event: SubXactEvent::Type,
    mine: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    match event {
        SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            let ended = with_registry(|registry| registry.end_leases(|l| l.subtransaction == mine));
            drop(ended);
        }
        SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => with_registry(|registry| {
            for lease in registry
                .leased
                .values_mut()
                .filter(|l| l.subtransaction == mine)
            {
                lease.subtransaction = parent;
            }
        }),
        _ => {}
    }
}

/// Drops the idle connections; leased ones finish their query and are recognised by their key.
#[pg_guard]
unsafe extern "C-unwind" fn at_catalog_change(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    let idle = with_registry(|registry| {
        registry.catalog_generation += 1;
        std::mem::take(&mut registry.idle)
    });
    drop(idle);
}
