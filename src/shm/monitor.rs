//! What this server knows about replicas: the monitor's findings, errors of queries, and the load of
//! this server itself.
//!
//! Replicas are known here by their address alone, since several databases may define the same one;
//! names, clusters and credentials stay in the catalog. One lock guards everything but the number of
//! served fragments, is held for copying only, and nothing under it can raise an error.

use parallel_replicas_core::balance::{ErrorCount, ErrorRules};
use parallel_replicas_core::machine::Load;
use pgrx::pg_sys;
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use xxhash_rust::xxh3::xxh3_128;

/// Replicas that are remembered; the one that nobody has asked about for longest makes room.
const ENTRIES_MAX: usize = 1024;
const DATABASES_MAX: usize = 256;
/// Clusters that have a turn of their own for round_robin; all further ones share the last.
const POOLS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 232;
/// Addresses that templates stand for, of all databases together; further ones are left out.
const DISCOVERED_MAX: usize = 256;
const ADDRESS_BYTES_MAX: usize = 64;

/// Name of a thing in here: a hash of what it is. Zero: free.
pub type Key = [u64; 2];

fn key_of(parts: &[&[u8]]) -> Key {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(part);
        bytes.push(0);
    }
    let hash = xxh3_128(&bytes);
    [hash as u64 | 1, (hash >> 64) as u64]
}

/// Key of the replica at an address.
pub fn replica_key(address: &str, port: u16) -> Key {
    key_of(&[address.as_bytes(), &port.to_le_bytes()])
}

/// Key of a cluster of a database.
pub fn pool_key(database: pg_sys::Oid, cluster: &str) -> Key {
    key_of(&[&database.to_u32().to_le_bytes(), cluster.as_bytes()])
}

/// A short text; its end may be missing.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: u64,
}

impl Text {
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; TEXT_BYTES_MAX];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Text {
            bytes,
            length: end as u64,
        }
    }

    pub fn get(&self) -> Option<String> {
        let bytes = self.bytes.get(..self.length as usize)?;
        (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned())
    }
}

/// What the monitor's last look at a replica ended with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    #[default]
    NotProbed,
    Answered,
    /// A server is there, but it did not let the monitor in or did not answer its question.
    LoginFailed,
    NoAnswer,
}

/// What a replica tells about itself, and how far it is behind this server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ServerState {
    pub system_identifier: u64,
    pub instance_id: [u8; 16],
    pub in_recovery: bool,
    pub timeline: u32,
    /// Replayed position; 0 on a primary.
    pub replay_lsn: u64,
    pub lag_bytes: u64,
    pub lag_ms: u64,
    pub load: Load,
    /// Fragments that it executes at the moment.
    pub fragments: u32,
    pub server_version: u32,
    /// Cores that it may use.
    pub cores: u32,
}

/// The monitor's last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Probe {
    pub outcome: Outcome,
    /// PostgreSQL timestamps; 0: never.
    pub probed_at: i64,
    pub answered_at: i64,
    /// As of `answered_at`.
    pub state: ServerState,
}

/// A replica.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entry {
    key: Key,
    used_at: i64,
    /// Process that looks at it on behalf of all databases; 0: none.
    prober: i32,
    pub probe: Probe,
    pub count: ErrorCount,
    pub last_error_at: i64,
    pub last_error: Text,
}

/// What the launcher knows about a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DatabaseState {
    /// Somebody wants it to be looked at.
    Wanted,
    /// A worker has been asked for, or reads the definitions.
    Starting,
    Running,
    /// It defined no replica when it was looked at.
    Idle,
    /// The worker ended although it should not have.
    Failed,
}

/// A database with its worker's process, 0 if there is none, and the worker's failures in a row.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Database {
    /// 0: free.
    oid: u32,
    pub state: DatabaseState,
    pub worker: i32,
    pub failures: u32,
    pub changed_at: i64,
}

/// An address that a template server of a database stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Discovered {
    /// 0: free.
    database: u32,
    server: u32,
    address: [u8; ADDRESS_BYTES_MAX],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Pool {
    key: Key,
    turn: u64,
}

#[repr(C)]
struct State {
    launcher: i32,
    load: Load,
    databases: [Database; DATABASES_MAX],
    /// Entries below this position have been used.
    entries_used: usize,
    entries: [Entry; ENTRIES_MAX],
    pools: [Pool; POOLS_MAX],
    discovered: [Discovered; DISCOVERED_MAX],
}

/// The part of shared memory. All zero is a valid beginning, except for the lock.
#[repr(C)]
pub struct Area {
    lock: UnsafeCell<pg_sys::LWLock>,
    state: UnsafeCell<State>,
    serving: AtomicI32,
    /// Counts the changes of what was discovered.
    discoveries: AtomicU32,
}

// SAFETY: `state` is touched under `lock` only.
unsafe impl Sync for Area {}

/// Makes the lock. Once, by the postmaster, with the rest zeroed.
///
/// # Safety
/// `area` is in shared memory that no other process uses yet.
pub(super) unsafe fn init(area: *mut Area, tranche: i32) {
    // SAFETY: as the caller says.
    unsafe { pg_sys::LWLockInitialize((*area).lock.get(), tranche) };
}

fn locked<R>(mode: pg_sys::LWLockMode::Type, f: impl FnOnce(*mut State) -> R) -> Option<R> {
    let area = &super::shared()?.monitor;
    // SAFETY: nothing in here raises an error, so the lock is given back.
    unsafe {
        pg_sys::LWLockAcquire(area.lock.get(), mode);
        let result = f(area.state.get());
        pg_sys::LWLockRelease(area.lock.get());
        Some(result)
    }
}

fn read<R>(f: impl FnOnce(&State) -> R) -> Option<R> {
    // SAFETY: nobody writes while the lock is shared.
    locked(pg_sys::LWLockMode::LW_SHARED, |state| f(unsafe { &*state }))
}

fn write<R>(f: impl FnOnce(&mut State) -> R) -> Option<R> {
    locked(pg_sys::LWLockMode::LW_EXCLUSIVE, |state| {
        // SAFETY: the lock excludes everybody else.
        f(unsafe { &mut *state })
    })
}

/// Now, as a PostgreSQL timestamp: microseconds since 2000.
pub fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

fn seconds(timestamp: i64) -> u64 {
    (timestamp / 1_000_000).max(0) as u64
}

impl State {
    fn find(&self, key: Key) -> Option<usize> {
        self.entries[..self.entries_used]
            .iter()
            .position(|entry| entry.key == key)
    }

    /// The entry of a replica, made if it is not there.
    fn entry(&mut self, key: Key, now: i64) -> &mut Entry {
        let place = self.find(key).unwrap_or_else(|| {
            let place = if self.entries_used < ENTRIES_MAX {
                self.entries_used += 1;
                self.entries_used - 1
            } else {
                (0..ENTRIES_MAX)
                    .min_by_key(|place| self.entries[*place].used_at)
                    .unwrap_or(0)
            };
            self.entries[place] = Entry {
                key,
                used_at: now,
                prober: 0,
                probe: Probe::default(),
                count: ErrorCount::default(),
                last_error_at: 0,
                last_error: Text::new(""),
            };
            place
        });
        let entry = &mut self.entries[place];
        entry.used_at = now;
        entry
    }

    fn database(&mut self, oid: u32) -> Option<&mut Database> {
        let place = self
            .databases
            .iter()
            .position(|database| database.oid == oid)
            .or_else(|| {
                let free = self.databases.iter().position(|database| database.oid == 0);
                // A table full of databases without replicas makes room.
                free.or_else(|| {
                    self.databases
                        .iter()
                        .position(|database| database.state == DatabaseState::Idle)
                })
            })?;
        let database = &mut self.databases[place];
        if database.oid != oid {
            *database = Database {
                oid,
                state: DatabaseState::Idle,
                worker: 0,
                failures: 0,
                changed_at: 0,
            };
        }
        Some(database)
    }
}

/// What is known about replicas, with error counts as they are by now under a session's rules, which are
/// nobody else's.
pub fn entries(keys: &[Key], rules: &ErrorRules) -> Vec<Option<Entry>> {
    let now_s = seconds(now());
    let mut found = look(keys);
    for entry in found.iter_mut().flatten() {
        entry.count.decay(now_s, rules);
    }
    found
}

/// All that is known.
pub fn known() -> Vec<Entry> {
    let used = read(|state| state.entries_used).unwrap_or(0);
    // Allocated before the lock is taken.
    let mut found = Vec::with_capacity(used);
    read(|state| {
        let entries = state.entries.iter().take(state.entries_used.min(used));
        found.extend(entries.copied());
    });
    found
}

/// The same as it was when somebody last wrote it; None for replicas that nothing is known about.
pub fn look(keys: &[Key]) -> Vec<Option<Entry>> {
    let mut found = vec![None; keys.len()];
    read(|state| {
        for (key, found) in keys.iter().zip(&mut found) {
            *found = state.find(*key).map(|place| state.entries[place]);
        }
    });
    found
}

/// A query could not use a replica, because it could not be reached or was lost.
pub fn count_failure(key: Key, rules: &ErrorRules, why: &str) {
    let (now, why) = (now(), Text::new(why));
    write(|state| {
        let entry = state.entry(key, now);
        entry.count.fail(seconds(now), rules);
        entry.last_error_at = now;
        entry.last_error = why;
    });
}

/// A replica was reached too late to be of use.
pub fn count_slowdown(key: Key, rules: &ErrorRules) {
    let now = now();
    write(|state| {
        state.entry(key, now).count.slow_down(seconds(now), rules);
    });
}

/// Seconds until a replica's error counts are zero.
pub fn recovery_s(count: &ErrorCount, rules: &ErrorRules) -> u64 {
    count.recovery_s(seconds(now()), rules)
}

/// How many selections by turn were made before this one in a cluster.
pub fn next_turn(pool: Key) -> u64 {
    write(|state| {
        let place = state
            .pools
            .iter()
            .position(|known| known.key == pool || known.key == [0, 0])
            .unwrap_or(POOLS_MAX - 1);
        let known = &mut state.pools[place];
        known.key = pool;
        let turn = known.turn;
        known.turn = turn.wrapping_add(1);
        turn
    })
    .unwrap_or(0)
}

/// Of these replicas, those that this process is to look at: nobody else does.
pub fn claim(keys: &[Key], process: i32) -> Vec<bool> {
    let now = now();
    let mut claimed = vec![false; keys.len()];
    write(|state| {
        for (key, claimed) in keys.iter().zip(&mut claimed) {
            let entry = state.entry(*key, now);
            if entry.prober == 0 {
                entry.prober = process;
            }
            *claimed = entry.prober == process;
        }
    });
    claimed
}

/// Gives up all that the process had claimed.
pub fn release(process: i32) {
    write(|state| {
        let used = state.entries_used;
        for entry in &mut state.entries[..used] {
            if entry.prober == process {
                entry.prober = 0;
            }
        }
    });
}

/// The monitor has looked at a replica.
pub fn publish(key: Key, outcome: Outcome, state_of: Option<ServerState>, trouble: &str) {
    let (now, trouble) = (now(), (!trouble.is_empty()).then(|| Text::new(trouble)));
    write(|state| {
        let entry = state.entry(key, now);
        entry.probe.outcome = outcome;
        entry.probe.probed_at = now;
        if let Some(state_of) = state_of {
            entry.probe.answered_at = now;
            entry.probe.state = state_of;
        }
        if let Some(trouble) = trouble {
            entry.last_error_at = now;
            entry.last_error = trouble;
        }
    });
}

/// Replaces what a template server stands for. Answers whether that is something else than before.
pub fn set_discovered(database: pg_sys::Oid, server: pg_sys::Oid, addresses: &[String]) -> bool {
    let (database, server) = (database.to_u32(), server.to_u32());
    let mut wanted: Vec<Discovered> = addresses
        .iter()
        .filter(|address| address.len() < ADDRESS_BYTES_MAX)
        .map(|text| {
            let mut address = [0; ADDRESS_BYTES_MAX];
            address[..text.len()].copy_from_slice(text.as_bytes());
            Discovered {
                database,
                server,
                address,
            }
        })
        .collect();
    let changed = write(|state| {
        let mut changed = false;
        for known in &mut state.discovered {
            if known.database == database && known.server == server {
                match wanted.iter().position(|wanted| wanted == known) {
                    Some(place) => drop(wanted.swap_remove(place)),
                    None => {
                        known.database = 0;
                        changed = true;
                    }
                }
            }
        }
        for new in wanted.drain(..) {
            if let Some(free) = state
                .discovered
                .iter_mut()
                .find(|known| known.database == 0)
            {
                *free = new;
                changed = true;
            }
        }
        changed
    });
    let changed = changed.unwrap_or(false);
    if changed && let Some(shared) = super::shared() {
        shared.monitor.discoveries.fetch_add(1, Ordering::Relaxed);
    }
    changed
}

/// Forgets what servers of a database stood for that are no templates any more.
pub fn keep_discovered(database: pg_sys::Oid, servers: &[pg_sys::Oid]) {
    write(|state| {
        for known in &mut state.discovered {
            if known.database == database.to_u32()
                && !servers.iter().any(|server| server.to_u32() == known.server)
            {
                known.database = 0;
            }
        }
    });
}

/// What the template servers of this session's database stand for: server and address.
pub fn discovered() -> Vec<(pg_sys::Oid, String)> {
    // SAFETY: plain global.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let mut found = Vec::new();
    read(|state| {
        for known in state
            .discovered
            .iter()
            .filter(|known| known.database == database)
        {
            let end = known.address.iter().position(|byte| *byte == 0);
            let address = &known.address[..end.unwrap_or(ADDRESS_BYTES_MAX)];
            found.push((
                pg_sys::Oid::from(known.server),
                String::from_utf8_lossy(address).into_owned(),
            ));
        }
    });
    found
}

/// Changes whenever [`discovered`] may.
pub fn discoveries() -> u32 {
    super::shared().map_or(0, |shared| {
        shared.monitor.discoveries.load(Ordering::Relaxed)
    })
}

/// This server's own load, by the launcher.
pub fn set_load(load: Load) {
    write(|state| state.load = load);
}

pub fn load() -> Load {
    read(|state| state.load).unwrap_or_default()
}

pub fn set_launcher(process: i32) {
    write(|state| state.launcher = process);
}

/// Changes what is known about a database.
pub fn set_database(oid: pg_sys::Oid, to: DatabaseState, worker: i32) {
    let now = now();
    write(|state| {
        if let Some(database) = state.database(oid.to_u32()) {
            database.state = to;
            database.worker = worker;
            database.changed_at = now;
        }
    });
}

/// A worker that ran for so long has not failed in the same way as the one before.
const STEADY_US: i64 = 60_000_000;

/// A worker has ended: its database is to be looked at again.
pub fn worker_ended(oid: pg_sys::Oid, worker: i32, then: DatabaseState) {
    let now = now();
    write(|state| {
        for database in &mut state.databases {
            if database.oid == oid.to_u32() && database.worker == worker {
                let was_steady = database.state == DatabaseState::Running
                    && now - database.changed_at > STEADY_US;
                database.failures = match then {
                    DatabaseState::Failed if was_steady => 1,
                    DatabaseState::Failed => database.failures.saturating_add(1),
                    _ => 0,
                };
                database.state = then;
                database.worker = 0;
                database.changed_at = now;
            }
        }
    });
}

/// What is known about a database.
pub fn database(oid: pg_sys::Oid) -> Option<Database> {
    read(|state| {
        state
            .databases
            .iter()
            .find(|database| database.oid == oid.to_u32())
            .copied()
    })?
}

/// Can one more database be remembered without forgetting another?
pub fn has_room_for_database() -> bool {
    read(|state| state.databases.iter().any(|database| database.oid == 0)).unwrap_or(false)
}

/// Forgets databases that are not in the list.
pub fn keep_databases(oids: &[pg_sys::Oid]) {
    write(|state| {
        for database in &mut state.databases {
            if !oids.iter().any(|oid| oid.to_u32() == database.oid) {
                database.oid = 0;
            }
        }
        for known in &mut state.discovered {
            if !oids.iter().any(|oid| oid.to_u32() == known.database) {
                known.database = 0;
            }
        }
    });
}

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
    static AT_COMMIT: Cell<bool> = const { Cell::new(false) };
    static COMMIT_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static SERVING: Cell<bool> = const { Cell::new(false) };
    static EXIT_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Asks that this session's database be looked at: it defines replicas. Once per session.
pub fn want_this_database() {
    if !ASKED.replace(true) {
        want_if(|state| state == DatabaseState::Idle);
    }
}

/// Asks for this session's database if it is in such a state.
fn want_if(is_so: impl FnOnce(DatabaseState) -> bool) {
    // SAFETY: plain global.
    let oid = unsafe { pg_sys::MyDatabaseId };
    let now = now();
    let launcher = write(|state| {
        let database = state.database(oid.to_u32())?;
        if !is_so(database.state) {
            return None;
        }
        database.state = DatabaseState::Wanted;
        database.changed_at = now;
        Some(state.launcher)
    });
    if let Some(launcher) = launcher.flatten() {
        wake(launcher);
    }
}

/// Tells the launcher that something has changed.
pub fn wake_launcher() {
    if let Some(launcher) = read(|state| state.launcher) {
        wake(launcher);
    }
}

/// The same once this transaction has committed: it defines a replica.
pub fn want_this_database_after_commit() {
    if super::shared().is_none() {
        return;
    }
    AT_COMMIT.set(true);
    if !COMMIT_CALLBACK.replace(true) {
        // SAFETY: the callback lives as long as the process.
        unsafe { pg_sys::RegisterXactCallback(Some(at_commit), std::ptr::null_mut()) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_commit(event: pg_sys::XactEvent::Type, _context: *mut c_void) {
    let ended = match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => true,
        pg_sys::XactEvent::XACT_EVENT_ABORT => false,
        _ => return,
    };
    if AT_COMMIT.replace(false) && ended {
        // The change may have mended what made workers fail.
        want_if(|state| matches!(state, DatabaseState::Idle | DatabaseState::Failed));
    }
}

/// Sets another process's latch.
fn wake(process: i32) {
    // SAFETY: looks in the process array; a process that has gone gives null, and a latch that is
    // set for its successor does no harm.
    unsafe {
        let proc = pg_sys::BackendPidGetProc(process);
        if !proc.is_null() {
            pg_sys::SetLatch(&raw mut (*proc).procLatch);
        }
    }
}

/// This backend begins or ends to execute a fragment for another server.
pub fn set_serving(serving: bool) {
    if SERVING.replace(serving) == serving {
        return;
    }
    if !EXIT_CALLBACK.replace(true) {
        // SAFETY: the callback lives as long as the process.
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0_usize)) };
    }
    if let Some(shared) = super::shared() {
        let step = if serving { 1 } else { -1 };
        shared.monitor.serving.fetch_add(step, Ordering::Relaxed);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    set_serving(false);
}

/// Fragments that this server executes for others at the moment.
pub fn serving() -> u32 {
    super::shared().map_or(0, |shared| {
        shared.monitor.serving.load(Ordering::Relaxed).max(0) as u32
    })
}
