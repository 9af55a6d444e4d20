//! This process's own state: snapshots, xmin, WAL positions, identity of the server.

use super::ffi;
use pgrx::pg_sys;

/// ProcArrayLock is the fourth individual lock of lwlocknames.txt since 9.6.
const PROC_ARRAY_LOCK: usize = 4;

/// Is this a parallel worker of PostgreSQL?
pub fn is_parallel_worker() -> bool {
    // SAFETY: plain global.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// Position up to which a replica must have replayed so that everything this session can see is
/// there, flushed.
///
/// The insert position of an idle server can stand right behind a page header that no record
/// follows yet; replay ends before that header and flushing beyond it is an error, so it is
/// subtracted (xlogrecovery.c, xlog.c).
pub fn flushed_insert_end() -> u64 {
    const SHORT_HEADER: u64 = 24;
    const LONG_HEADER: u64 = 40;
    // SAFETY: reads shared memory under its own locks; not in recovery, which the caller checked.
    unsafe {
        let insert = pg_sys::GetXLogInsertRecPtr();
        let in_segment = insert % pg_sys::wal_segment_size as u64;
        let end = if in_segment == LONG_HEADER {
            insert - LONG_HEADER
        } else if insert % pg_sys::XLOG_BLCKSZ as u64 == SHORT_HEADER {
            insert - SHORT_HEADER
        } else {
            insert
        };
        pg_sys::XLogFlush(end);
        end
    }
}

/// Replayed position and its timeline.
pub fn replayed() -> (u64, u32) {
    let mut timeline = 0;
    // SAFETY: reads shared memory.
    let lsn = unsafe { pg_sys::GetXLogReplayRecPtr(&mut timeline) };
    (lsn, timeline)
}

/// How far this server is: what it has written, or on a standby what it has replayed.
pub fn own_position() -> u64 {
    // SAFETY: reads shared memory.
    unsafe {
        match pg_sys::RecoveryInProgress() {
            true => replayed().0,
            false => pg_sys::GetXLogWriteRecPtr(),
        }
    }
}

/// Timeline that this server writes or replays.
pub fn own_timeline() -> u32 {
    // SAFETY: reads shared memory; the insertion timeline is set once recovery has ended.
    unsafe {
        match pg_sys::RecoveryInProgress() {
            true => replayed().1,
            false => pg_sys::GetWALInsertionTimeLine(),
        }
    }
}

/// Milliseconds that the last replayed transaction is old, if there is more to replay than has been.
pub fn replay_delay_ms() -> Option<u64> {
    // SAFETY: reads shared memory.
    unsafe {
        if !pg_sys::RecoveryInProgress() {
            return None;
        }
        let received = pg_sys::GetWalRcvFlushRecPtr(std::ptr::null_mut(), std::ptr::null_mut());
        if received <= replayed().0 {
            return Some(0);
        }
        let last = pg_sys::GetLatestXTime();
        let behind = pg_sys::GetCurrentTimestamp() - last;
        Some(if last == 0 {
            0
        } else {
            (behind / 1000).max(0) as u64
        })
    }
}

/// The top-level transaction's id, if it has one.
pub fn own_xid() -> Option<u32> {
    // SAFETY: reads this backend's transaction state.
    let xid = unsafe { pg_sys::GetTopTransactionIdIfAny() };
    (xid != pg_sys::InvalidTransactionId).then(|| xid.into_inner())
}

/// `server_version_num` of the running server.
pub fn server_version() -> u32 {
    super::guc::value(c"server_version_num")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// Leaves the procedure without any snapshot, which it needs to wait for replay: a standby's
/// recovery may have to wait for snapshots, and would wait for ours for ever.
pub fn forget_snapshots() -> bool {
    // SAFETY: in a non-atomic CALL, as COMMIT in a procedure does it; the caller checked that.
    unsafe {
        pg_sys::ForgetPortalSnapshots();
        pg_sys::InvalidateCatalogSnapshot();
        !pg_sys::ActiveSnapshotSet() && (*pg_sys::MyProc).xmin == pg_sys::InvalidTransactionId
    }
}

/// Announces `xmin` as the oldest transaction this backend looks at, so that replayed row removal
/// that would hurt the shipped snapshot cancels this backend, and nothing else does.
pub fn install_xmin(xmin: u32) {
    let xmin = pg_sys::TransactionId::from(xmin);
    // SAFETY: xmin is read by others only under ProcArrayLock.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(PROC_ARRAY_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        (*pg_sys::MyProc).xmin = xmin;
        pg_sys::TransactionXmin = xmin;
        pg_sys::LWLockRelease(lock);
    }
}

/// Stops counting as connected to its database, for a background worker that has read all it needs
/// and will look in no table again: otherwise nobody could drop, rename or copy the database while
/// it runs. Invalidations go on arriving.
pub fn leave_database() {
    // SAFETY: ProcArrayLock as above; others read the field under it.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(PROC_ARRAY_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        (*pg_sys::MyProc).databaseId = pg_sys::InvalidOid;
        pg_sys::LWLockRelease(lock);
    }
}

/// How this backend talks to its client.
pub fn comm_methods() -> &'static ffi::PqCommMethods {
    // SAFETY: set before any backend code runs, and never null in a backend.
    unsafe { &*ffi::PqCommMethods }
}

/// The backend with this process id and its CPU time in nanoseconds; None if the session's user has no
/// such backend.
pub fn cpu_time(process: i32) -> Option<(pg_sys::BackendId, i64)> {
    // SAFETY: looks the process up in shared memory under its lock; the entry is only read, and one
    // that was taken over meanwhile still has a valid role.
    let backend = unsafe {
        let proc = pg_sys::BackendPidGetProc(process);
        if proc.is_null() || (*proc).roleId != pg_sys::GetSessionUserId() {
            return None;
        }
        (*proc).backendId
    };
    Some((backend, cpu_clock(process)?))
}

/// CPU time of this process in nanoseconds.
pub fn own_cpu_time() -> i64 {
    cpu_clock(0).unwrap_or(0)
}

/// CPU time in nanoseconds of any process of this machine; 0 stands for this one. None if it has gone.
pub fn cpu_clock(process: i32) -> Option<i64> {
    // SAFETY: the clock of a process that has ended is an error, not a danger.
    unsafe {
        let mut clock = libc::CLOCK_PROCESS_CPUTIME_ID;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if (process != 0 && libc::clock_getcpuclockid(process, &mut clock) != 0)
            || libc::clock_gettime(clock, &mut time) != 0
        {
            return None;
        }
        Some(time.tv_sec * 1_000_000_000 + time.tv_nsec)
    }
}

/// The name that the operating system gives this server.
pub fn host_name() -> std::io::Result<String> {
    // HOST_NAME_MAX is 64 on Linux; POSIX allows 255.
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is as long as said; one byte less keeps it zero-terminated in any case.
    let result = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    match (result, std::ffi::CStr::from_bytes_until_nul(&name)) {
        (0, Ok(name)) => Ok(name.to_string_lossy().into_owned()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Processes that stream WAL to standbys. Not those of pg_basebackup and pg_receivewal, which never say
/// that they have applied anything.
fn standby_senders() -> Vec<i32> {
    // SAFETY: plain globals, set before any backend runs.
    let (control, slots) = unsafe { (pg_sys::WalSndCtl, pg_sys::max_wal_senders.max(0) as usize) };
    let mut senders = Vec::with_capacity(slots);
    for slot in 0..slots {
        // SAFETY: the array has as many slots. Between taking the spinlock and giving it back there
        // are three reads. It is taken with PostgreSQL's function, and given back as its macros do.
        let (pid, state, apply) = unsafe {
            let sender = (*control).walsnds.as_mut_ptr().add(slot);
            let mutex = &raw mut (*sender).mutex;
            pg_sys::s_lock(mutex, c"proc.rs".as_ptr(), 0, c"standby_senders".as_ptr());
            let read = ((*sender).pid, (*sender).state, (*sender).apply);
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            mutex.write_volatile(0);
            read
        };
        if pid != 0 && state == pg_sys::WalSndState::WALSNDSTATE_STREAMING && apply != 0 {
            senders.push(pid);
        }
    }
    senders
}

/// Addresses of the standbys that stream from this server, sorted, each once; connections over a Unix
/// socket have none.
pub fn streaming_addresses() -> Vec<String> {
    let mut addresses = Vec::new();
    let senders = standby_senders();
    // SAFETY: main thread; the entries are this process's own copy until it is cleared, and an
    // address is as long as it says.
    unsafe {
        for index in 1..=pg_sys::pgstat_fetch_stat_numbackends() {
            let entry = pg_sys::pgstat_fetch_stat_local_beentry(index);
            if entry.is_null() {
                continue;
            }
            let entry = &(*entry).backendStatus;
            // One that is connected to a database replicates logically.
            if entry.st_backendType != pg_sys::BackendType::B_WAL_SENDER
                || entry.st_databaseid != pg_sys::InvalidOid
                || !senders.contains(&entry.st_procpid)
            {
                continue;
            }
            let client = &entry.st_clientaddr;
            let family = i32::from(client.addr.ss_family);
            if family != libc::AF_INET && family != libc::AF_INET6 {
                continue;
            }
            let mut text = [0_u8; 64];
            let status = libc::getnameinfo(
                (&raw const client.addr).cast(),
                client.salen,
                text.as_mut_ptr().cast(),
                text.len() as libc::socklen_t,
                std::ptr::null_mut(),
                0,
                libc::NI_NUMERICHOST,
            );
            if status == 0
                && let Ok(text) = std::ffi::CStr::from_bytes_until_nul(&text)
            {
                addresses.push(text.to_string_lossy().into_owned());
            }
        }
        pg_sys::pgstat_clear_backend_activity_snapshot();
    }
    addresses.sort();
    addresses.dedup();
    addresses
}
