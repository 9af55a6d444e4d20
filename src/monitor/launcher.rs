//! The launcher: one process per server. It samples the server's load and sees to it that every
//! database that defines replicas has a worker.

use super::{fill, machine, serve_signals, take_signals};
use crate::pg::wait;
use crate::settings::replicas::monitor_interval_ms;
use crate::shm::monitor::{self, Database, DatabaseState};
use parallel_replicas_core::machine::load;
use pgrx::pg_sys;
use std::ffi::CStr;

const LIBRARY: &CStr = c"parallel_replicas";
/// Seconds after which PostgreSQL starts the launcher again, and it a worker, that ended by error. A
/// worker that goes on doing so waits twice as long each time, up to about ten minutes.
const RESTART_S: i32 = 5;
const DOUBLINGS_MAX: u32 = 7;
/// `datconnlimit` of a database that is half dropped.
const INVALID_DATABASE: i32 = -2;
const SECOND_US: i64 = 1_000_000;
/// How often a database without replicas is looked at, if nobody asks for it.
const IDLE_US: i64 = 60 * SECOND_US;
/// After this time a worker that was asked for is not coming.
const STARTING_US: i64 = 10 * SECOND_US;
/// How long the launcher sleeps when the monitor is off.
const OFF_MS: u64 = 10_000;
/// How often all databases are looked through.
const LIST_US: i64 = 5 * SECOND_US;

/// Registers the launcher. Once, while the postmaster loads the library. pg_upgrade's server is not for others.
pub fn init() {
    // SAFETY: plain global.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        return;
    }
    let mut worker = describe(c"parallel_replicas launcher", c"parallel_replicas_launcher");
    worker.bgw_restart_time = RESTART_S;
    // SAFETY: in the postmaster, while libraries are preloaded.
    unsafe { pg_sys::RegisterBackgroundWorker(&mut worker) };
}

fn describe(name: &CStr, function: &CStr) -> pg_sys::BackgroundWorker {
    let mut worker = pg_sys::BackgroundWorker {
        bgw_flags: (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION)
            as i32,
        // On a standby as soon as it takes queries.
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_ConsistentState,
        bgw_restart_time: pg_sys::BGW_NEVER_RESTART,
        ..pg_sys::BackgroundWorker::default()
    };
    fill(&mut worker.bgw_name, name);
    fill(&mut worker.bgw_type, name);
    fill(&mut worker.bgw_library_name, LIBRARY);
    fill(&mut worker.bgw_function_name, function);
    worker
}

/// Main function of the process.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn parallel_replicas_launcher(_argument: pg_sys::Datum) {
    take_signals();
    // SAFETY: main thread of a background worker. Without a database only shared catalogs can be
    // read, which is all that is needed.
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0) };
    // SAFETY: plain global.
    monitor::set_launcher(unsafe { pg_sys::MyProcPid });
    let mut before = machine::sample();
    let mut listed_at = 0;
    let mut complained = false;
    let mut woken = true;
    while serve_signals() {
        let sleep_ms = match monitor_interval_ms() {
            None => OFF_MS,
            Some(interval_ms) => {
                let now = machine::sample();
                // Shorter spans say nothing: the kernel counts in hundredths of a second.
                if now.at_us.saturating_sub(before.at_us) >= interval_ms.min(100) * 1000 {
                    monitor::set_load(load(&before, &now));
                    before = now;
                }
                let now = monitor::now();
                if woken || now - listed_at >= LIST_US {
                    listed_at = now;
                    supervise(&mut complained);
                }
                interval_ms.min(5000)
            }
        };
        let started = wait::now_micros();
        wait::latch_or_sockets(&[], sleep_ms, pg_sys::PG_WAIT_EXTENSION);
        woken = wait::now_micros() - started < sleep_ms * 1000;
    }
    // With any other code PostgreSQL would not start it again, should it be this process alone that
    // was told to end.
    // SAFETY: ends the process in order.
    unsafe { pg_sys::proc_exit(1) };
}

/// Starts the worker that is due first, if one is. One at a time, so that a server with many databases
/// has background workers left for its queries: the next is started when this one has read its
/// database's definitions.
fn supervise(complained: &mut bool) {
    let databases = databases();
    monitor::keep_databases(&databases);
    let now = monitor::now();
    let known: Vec<(pg_sys::Oid, Option<Database>)> = databases
        .into_iter()
        .map(|oid| (oid, monitor::database(oid)))
        .collect();
    let is_one_starting = known.iter().filter_map(|(_, known)| *known).any(|known| {
        known.state == DatabaseState::Starting && now - known.changed_at <= STARTING_US
    });
    if is_one_starting {
        return;
    }
    // Those that somebody asks for first, then those that have waited for longest.
    let first = known
        .into_iter()
        .filter(|(_, known)| is_due(known.as_ref(), now))
        .min_by_key(|(_, known)| {
            known.map_or((true, 0), |known| {
                (known.state != DatabaseState::Wanted, known.changed_at)
            })
        });
    let Some((oid, _)) = first else {
        return;
    };
    let started = start(oid);
    if !started {
        monitor::set_database(oid, DatabaseState::Wanted, 0);
        if !*complained {
            pgrx::warning!(
                "no background worker slot is free for the monitor of parallel_replicas; \
                 increase max_worker_processes"
            );
        }
    }
    *complained = !started;
}

fn is_due(known: Option<&Database>, now: i64) -> bool {
    // With more databases than there are places, further ones have to ask.
    let Some(known) = known else {
        return monitor::has_room_for_database();
    };
    let since = now - known.changed_at;
    match known.state {
        DatabaseState::Wanted => true,
        DatabaseState::Starting => known.worker == 0 && since > STARTING_US,
        DatabaseState::Running => false,
        DatabaseState::Idle => since > IDLE_US,
        DatabaseState::Failed => {
            let doublings = known.failures.saturating_sub(1).min(DOUBLINGS_MAX);
            since > (i64::from(RESTART_S) << doublings) * SECOND_US
        }
    }
}

fn start(database: pg_sys::Oid) -> bool {
    monitor::set_database(database, DatabaseState::Starting, 0);
    let mut worker = describe(c"parallel_replicas monitor", c"parallel_replicas_monitor");
    worker.bgw_main_arg = pg_sys::Datum::from(database);
    // SAFETY: plain global: PostgreSQL tells this process when the worker starts and ends.
    worker.bgw_notify_pid = unsafe { pg_sys::MyProcPid };
    // SAFETY: main thread; the description is copied, and nobody wants a handle.
    unsafe { pg_sys::RegisterDynamicBackgroundWorker(&mut worker, std::ptr::null_mut()) }
}

/// Databases that sessions can connect to, except templates.
fn databases() -> Vec<pg_sys::Oid> {
    let mut found = Vec::new();
    // SAFETY: outside any transaction. As PostgreSQL's autovacuum launcher does it: a snapshot is
    // held for the scan only, and errors end the process.
    unsafe {
        pg_sys::StartTransactionCommand();
        pg_sys::GetTransactionSnapshot();
        let lock = pg_sys::AccessShareLock as i32;
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            if (*form).datallowconn
                && !(*form).datistemplate
                && (*form).datconnlimit != INVALID_DATABASE
            {
                found.push((*form).oid);
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(relation, lock);
        pg_sys::CommitTransactionCommand();
    }
    found
}
