//! The worker of one database: reads its definitions of replicas once, leaves the database, and then
//! publishes what the helper threads find, until a definition changes.

use super::prober::{Finding, Probers, Silence, Stopper};
use super::{serve_signals, take_signals};
use crate::cluster::{self, Purpose, Replica, Source, Template};
use crate::net::ConnectParameters;
use crate::pg::{proc, wait};
use crate::settings::replicas::{monitor_interval_ms, monitor_user};
use crate::shm::monitor::{self, DatabaseState, Key, Outcome, ServerState, replica_key};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::panic::AssertUnwindSafe;

const APPLICATION: &str = "parallel_replicas monitor";
/// How often the worker looks for changed definitions, and for replicas that nobody looks at.
const TICK_MS: u64 = 1000;

thread_local! {
    static DATABASE: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
    /// What becomes of the database's entry when this process ends.
    static AFTERWARDS: Cell<DatabaseState> = const { Cell::new(DatabaseState::Failed) };
    /// The database was renamed or dropped, or may have been.
    static DATABASE_CHANGED: Cell<bool> = const { Cell::new(false) };
    static STOPPER: RefCell<Option<Stopper>> = const { RefCell::new(None) };
}

/// A replica as the worker deals with it.
struct Watched {
    key: Key,
    /// Why it cannot even be tried.
    parameters: Result<ConnectParameters, String>,
}

/// Main function of the process.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn parallel_replicas_monitor(argument: pg_sys::Datum) {
    let database = pg_sys::Oid::from(argument.value() as u32);
    // SAFETY: plain global.
    let me = unsafe { pg_sys::MyProcPid };
    take_signals();
    if monitor::database(database).is_some_and(|known| {
        matches!(
            known.state,
            DatabaseState::Starting | DatabaseState::Running
        ) && known.worker != 0
            && known.worker != me
    }) {
        return;
    }
    DATABASE.set(database);
    monitor::set_database(database, DatabaseState::Starting, me);
    // SAFETY: main thread of a background worker; the callbacks live as long as the process.
    unsafe {
        pg_sys::before_shmem_exit(Some(give_up_claims), pg_sys::Datum::from(0_usize));
        pg_sys::on_proc_exit(Some(stop_threads), pg_sys::Datum::from(0_usize));
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
    }
    let Some(interval_ms) = monitor_interval_ms() else {
        AFTERWARDS.set(DatabaseState::Idle);
        return;
    };
    // Before the catalog is read, so that no change goes unnoticed.
    let generation = cluster::generation();
    // SAFETY: main thread; the callback lives as long as the process.
    unsafe {
        pg_sys::CacheRegisterSyscacheCallback(
            pg_sys::SysCacheIdentifier::DATABASEOID as i32,
            Some(at_database_change),
            pg_sys::Datum::from(0_usize),
        );
    }
    let (watched, templates) =
        pgrx::bgworkers::BackgroundWorker::transaction(AssertUnwindSafe(definitions));
    // SAFETY: plain pointer into static memory.
    unsafe { pg_sys::debug_query_string = std::ptr::null() };
    if watched.is_empty() && templates.is_empty() {
        AFTERWARDS.set(DatabaseState::Idle);
        return;
    }
    proc::leave_database();
    monitor::set_database(database, DatabaseState::Running, me);
    monitor::wake_launcher();
    watch(&watched, &templates, interval_ms, generation);
}

/// All replicas of all clusters of this database, each address once, with the way to log in, and
/// the templates. What streams from here is looked up first, so that it is among the replicas.
fn definitions() -> (Vec<Watched>, Vec<Template>) {
    let Some(user) = user() else {
        return (Vec::new(), Vec::new());
    };
    let templates = cluster::templates();
    let servers: Vec<pg_sys::Oid> = templates.iter().map(|known| known.server_oid).collect();
    monitor::keep_discovered(DATABASE.get(), &servers);
    discover_streaming(&templates);
    let mut watched: Vec<Watched> = Vec::new();
    for replica in cluster::all_replicas() {
        let key = replica_key(&replica.address, replica.port);
        if !watched.iter().any(|known| known.key == key) {
            watched.push(Watched {
                key,
                parameters: parameters(&replica, user.clone()),
            });
        }
    }
    (watched, templates)
}

/// Publishes what streams from this server. Answers whether that has changed.
fn discover_streaming(templates: &[Template]) -> bool {
    let mut streaming = None;
    let mut changed = false;
    for template in templates {
        if template.source == Source::Streaming {
            let addresses = streaming.get_or_insert_with(proc::streaming_addresses);
            changed |= monitor::set_discovered(DATABASE.get(), template.server_oid, addresses);
        }
    }
    changed
}

fn parameters(
    replica: &Replica,
    user: Result<pg_sys::Oid, String>,
) -> Result<ConnectParameters, String> {
    cluster::connect_parameters(replica, user?, APPLICATION, Purpose::Check)
        .map(|target| target.parameters)
        .map_err(|unusable| unusable.to_string())
}

/// The role whose mappings are used. None if this database does not have the extension.
fn user() -> Option<Result<pg_sys::Oid, String>> {
    // SAFETY: in a transaction; the wrapper's description is null or valid.
    let owner = unsafe {
        pg_sys::GetForeignDataWrapperByName(cluster::WRAPPER.as_ptr(), true)
            .as_ref()?
            .owner
    };
    let name = monitor_user();
    if name.is_empty() {
        return Some(Ok(owner));
    }
    let missing = format!("role \"{name}\" of parallel_replicas.monitor_user does not exist");
    let Ok(name) = CString::new(name) else {
        return Some(Err(missing));
    };
    // SAFETY: in a transaction, zero-terminated name.
    let role = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    Some(match role {
        pg_sys::InvalidOid => Err(missing),
        role => Ok(role),
    })
}

fn watch(watched: &[Watched], templates: &[Template], interval_ms: u64, generation: u64) {
    let mut tried = Vec::new();
    let mut keys = Vec::new();
    for replica in watched {
        match &replica.parameters {
            Ok(parameters) => {
                tried.push(parameters.clone());
                keys.push(replica.key);
            }
            Err(why) => monitor::publish(replica.key, Outcome::LoginFailed, None, why),
        }
    }
    for _ in &tried {
        // SAFETY: main thread; a counter in PostgreSQL's books of descriptors.
        unsafe { pg_sys::ReserveExternalFD() };
    }
    let hosts = templates
        .iter()
        .filter_map(|template| match &template.source {
            Source::Dns(host) => Some((template.server_oid.to_u32(), host.clone())),
            Source::Streaming => None,
        });
    let started = Probers::new(tried.len(), interval_ms).and_then(|probers| {
        // Before the first thread, since not all may start.
        STOPPER.set(Some(probers.stopper()));
        probers.start(tried, hosts.collect())?;
        Ok(probers)
    });
    let probers = match started {
        Ok(probers) => probers,
        Err(error) => {
            pgrx::warning!("monitor of parallel_replicas could not start its threads: {error}");
            return;
        }
    };
    // SAFETY: plain global.
    let me = unsafe { pg_sys::MyProcPid };
    let mut claimed_at = 0;
    loop {
        if !serve_signals() {
            return;
        }
        let now = wait::now_micros();
        if now - claimed_at >= TICK_MS * 1000 {
            claimed_at = now;
            let Some(interval_ms) = monitor_interval_ms() else {
                AFTERWARDS.set(DatabaseState::Idle);
                return;
            };
            probers.set_interval(interval_ms);
            if has_changed(generation) || discover_streaming(templates) {
                AFTERWARDS.set(DatabaseState::Wanted);
                return;
            }
            for (replica, mine) in monitor::claim(&keys, me).into_iter().enumerate() {
                probers.set_active(replica, mine);
            }
        }
        for finding in probers.findings() {
            if publish(&keys, finding) {
                AFTERWARDS.set(DatabaseState::Wanted);
                return;
            }
        }
        let findings = wait::Interest {
            socket: probers.findings_event(),
            write: false,
            lasting: None,
        };
        wait::latch_or_sockets(&[findings], TICK_MS, pg_sys::PG_WAIT_EXTENSION);
    }
}

/// Has a definition changed? An empty transaction takes in what other backends have announced.
fn has_changed(generation: u64) -> bool {
    // SAFETY: outside any transaction; no table is looked at.
    unsafe {
        pg_sys::StartTransactionCommand();
        pg_sys::CommitTransactionCommand();
    }
    cluster::generation() != generation || DATABASE_CHANGED.get()
}

/// Somebody's database has changed; `hash` tells whose, 0 that it may be anybody's.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_database_change(_argument: pg_sys::Datum, cache: i32, hash: u32) {
    let none = pg_sys::Datum::from(0_usize);
    let key = pg_sys::Datum::from(DATABASE.get());
    // SAFETY: computes a hash; the cache has this one key.
    let own = unsafe { pg_sys::GetSysCacheHashValue(cache, key, none, none, none) };
    if hash == 0 || hash == own {
        DATABASE_CHANGED.set(true);
    }
}

/// Answers whether the replicas are others than before.
fn publish(keys: &[Key], finding: Finding) -> bool {
    match finding {
        Finding::Look { replica, answer } => {
            if let Some(key) = keys.get(replica) {
                publish_look(key, answer);
            }
            false
        }
        Finding::Addresses { server, addresses } => {
            monitor::set_discovered(DATABASE.get(), pg_sys::Oid::from(server), &addresses)
        }
    }
}

fn publish_look(key: &Key, answer: Result<ServerState, Silence>) {
    match answer {
        Ok(mut state) => {
            state.lag_bytes = match state.in_recovery {
                true => proc::own_position().saturating_sub(state.replay_lsn),
                false => 0,
            };
            monitor::publish(*key, Outcome::Answered, Some(state), "");
        }
        Err(silence) => {
            let outcome = match silence.is_login {
                true => Outcome::LoginFailed,
                false => Outcome::NoAnswer,
            };
            monitor::publish(*key, outcome, None, &silence.why);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn give_up_claims(_code: i32, _argument: pg_sys::Datum) {
    // SAFETY: plain global.
    let me = unsafe { pg_sys::MyProcPid };
    monitor::release(me);
    monitor::worker_ended(DATABASE.get(), me, AFTERWARDS.get());
}

/// The end of the process, in whatever way, must not find threads at work: what exit() tears down is
/// theirs too.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn stop_threads(code: i32, _argument: pg_sys::Datum) {
    let stopped = STOPPER.take().is_none_or(|stopper| stopper.stop());
    if !stopped {
        // Shared memory has been left in order by now; what is left out is the tearing down.
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) };
    }
}
