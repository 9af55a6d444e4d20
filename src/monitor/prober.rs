//! The helper threads: one for each replica, which asks it at an interval how it is.
//!
//! Nothing of PostgreSQL is touched here but libpq, which is made for threads. All signals are
//! blocked, so that PostgreSQL's handlers go on being executed by the main thread alone. Findings go
//! through a bounded channel; a descriptor that becomes readable wakes the main thread.

use crate::net::thread::{self, ConnectFailure};
use crate::net::{ConnectParameters, Connection, NetError, QueryResult};
use crate::shm::monitor::ServerState;
use crossbeam_channel::{Receiver, Sender, bounded};
use parallel_replicas_core::machine::Load;
use std::ffi::CStr;
use std::net::ToSocketAddrs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Findings that may wait for the main thread; threads then wait for room.
const FINDINGS_MAX: usize = 64;
/// Name service modules, GSSAPI and OpenSSL run on it.
const STACK_BYTES: usize = 2 * 1024 * 1024;
/// How long the threads may take to stop.
const STOP_MS: u64 = 500;

const QUESTION: &CStr = c"SELECT system_identifier, instance_id, in_recovery, timeline, \
    replay_lsn - '0/0'::pg_catalog.pg_lsn, replay_delay_ms, cpu_permille, memory_used, \
    memory_limit, running_fragments, server_version_num, cores FROM parallel_replicas.server_state()";

/// What a thread found out.
pub enum Finding {
    Look {
        /// Position of the replica in the list.
        replica: usize,
        answer: Result<ServerState, Silence>,
    },
    /// What the host name of a template server stands for.
    Addresses { server: u32, addresses: Vec<String> },
}

/// Why there is no answer.
pub struct Silence {
    /// A server that takes sessions is there.
    pub is_login: bool,
    pub why: String,
}

/// What main thread and helpers share.
struct Common {
    /// Readable once all are to stop.
    stop: OwnedFd,
    /// Readable when there are findings.
    findings: OwnedFd,
    interval_ms: AtomicU64,
    running: AtomicUsize,
    /// Replicas that this process is to look at.
    active: Vec<AtomicBool>,
}

/// The helpers. Dropping them tells them to stop.
pub struct Probers {
    common: Arc<Common>,
    sender: Sender<Finding>,
    receiver: Receiver<Finding>,
}

fn event() -> std::io::Result<OwnedFd> {
    // SAFETY: a new descriptor, owned by nobody else.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            fd if fd < 0 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn signal(event: RawFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: eight valid bytes. It fails only if the counter is full, and then it is readable.
    unsafe { libc::write(event, one.as_ptr().cast(), one.len()) };
}

/// All signals blocked until dropped; threads inherit that.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: plain sets of this thread, filled before they are read.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            SignalsBlocked(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

impl Probers {
    /// For so many replicas, none of them active yet. No thread runs yet.
    pub fn new(replicas: usize, interval_ms: u64) -> std::io::Result<Self> {
        let (sender, receiver) = bounded(FINDINGS_MAX);
        Ok(Probers {
            common: Arc::new(Common {
                stop: event()?,
                findings: event()?,
                interval_ms: AtomicU64::new(interval_ms),
                running: AtomicUsize::new(0),
                active: (0..replicas).map(|_| AtomicBool::new(false)).collect(),
            }),
            sender,
            receiver,
        })
    }

    /// Starts a thread for each replica, and for each host name that a template server stands for.
    /// After an error some may run.
    pub fn start(
        &self,
        replicas: Vec<ConnectParameters>,
        hosts: Vec<(u32, String)>,
    ) -> std::io::Result<()> {
        let _blocked = SignalsBlocked::new();
        for (replica, parameters) in replicas.into_iter().enumerate() {
            let sender = self.sender.clone();
            self.spawn(move |common| look_again(replica, parameters, common, &sender))?;
        }
        for (server, host) in hosts {
            let sender = self.sender.clone();
            self.spawn(move |common| resolve_again(server, &host, common, &sender))?;
        }
        Ok(())
    }

    fn spawn(&self, life: impl FnOnce(&Common) + Send + 'static) -> std::io::Result<()> {
        let common = Arc::clone(&self.common);
        common.running.fetch_add(1, Ordering::SeqCst);
        let started = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || {
                life(&common);
                common.running.fetch_sub(1, Ordering::SeqCst);
            });
        if let Err(error) = started {
            self.common.running.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
        Ok(())
    }

    /// The descriptor that is readable when there are findings.
    pub fn findings_event(&self) -> RawFd {
        self.common.findings.as_raw_fd()
    }

    /// All findings so far.
    pub fn findings(&self) -> Vec<Finding> {
        let mut counter = [0_u8; 8];
        let event = self.findings_event();
        // SAFETY: eight bytes of room; the descriptor does not block.
        unsafe { libc::read(event, counter.as_mut_ptr().cast(), counter.len()) };
        self.receiver.try_iter().collect()
    }

    pub fn set_interval(&self, interval_ms: u64) {
        self.common
            .interval_ms
            .store(interval_ms, Ordering::Relaxed);
    }

    pub fn set_active(&self, replica: usize, active: bool) {
        self.common.active[replica].store(active, Ordering::Relaxed);
    }

    /// For the process's end, which may come without dropping anything.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.common))
    }
}

impl Drop for Probers {
    fn drop(&mut self) {
        signal(self.common.stop.as_raw_fd());
    }
}

/// Stops the threads.
pub struct Stopper(Arc<Common>);

impl Stopper {
    /// False if one of them is still there after a while, which only name resolution can cause.
    pub fn stop(&self) -> bool {
        signal(self.0.stop.as_raw_fd());
        let deadline = Instant::now() + Duration::from_millis(STOP_MS);
        while self.0.running.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// The life of a thread that looks at a replica.
fn look_again(
    replica: usize,
    parameters: ConnectParameters,
    common: &Common,
    sender: &Sender<Finding>,
) {
    let parameters = Rc::new(parameters);
    let stop = common.stop.as_raw_fd();
    let mut connection = None;
    loop {
        let started = Instant::now();
        let interval = common.interval();
        if common.active[replica].load(Ordering::Relaxed) {
            let answer = look(&parameters, &mut connection, started + interval, stop);
            if !common.report(Finding::Look { replica, answer }, sender) {
                return;
            }
        } else {
            connection = None;
        }
        if !thread::sleep(interval.saturating_sub(started.elapsed()), stop) {
            return;
        }
    }
}

/// The life of a thread that looks a host name up. A name that cannot be looked up keeps the
/// addresses that it had.
fn resolve_again(server: u32, host: &str, common: &Common, sender: &Sender<Finding>) {
    loop {
        if let Ok(found) = (host, 0).to_socket_addrs() {
            let mut addresses: Vec<String> = found.map(|at| at.ip().to_string()).collect();
            addresses.sort();
            addresses.dedup();
            if !common.report(Finding::Addresses { server, addresses }, sender) {
                return;
            }
        }
        if !thread::sleep(common.interval(), common.stop.as_raw_fd()) {
            return;
        }
    }
}

impl Common {
    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.load(Ordering::Relaxed).max(1))
    }

    /// Hands a finding to the main thread, which may be slow. False if it is gone, or the thread is to
    /// stop.
    fn report(&self, mut finding: Finding, sender: &Sender<Finding>) -> bool {
        while let Err(error) = sender.try_send(finding) {
            match error {
                crossbeam_channel::TrySendError::Full(again) => finding = again,
                crossbeam_channel::TrySendError::Disconnected(_) => return false,
            }
            if !thread::sleep(Duration::from_millis(10), self.stop.as_raw_fd()) {
                return false;
            }
        }
        signal(self.findings.as_raw_fd());
        true
    }
}

/// Asks once, over the connection that is there or a new one.
fn look(
    parameters: &Rc<ConnectParameters>,
    connection: &mut Option<Connection>,
    deadline: Instant,
    stop: RawFd,
) -> Result<ServerState, Silence> {
    if let Some(mut old) = connection.take() {
        match ask(&mut old, deadline, stop) {
            Ok(state) => {
                *connection = Some(old);
                return Ok(state);
            }
            // The time is used up.
            Err(NetError::TimedOut { activity }) => {
                return Err(Silence {
                    is_login: false,
                    why: NetError::TimedOut { activity }.to_string(),
                });
            }
            // It may have been restarted meanwhile.
            Err(_) => drop(old),
        }
    }
    let mut new = thread::connect(parameters, deadline, stop).map_err(login_silence)?;
    let state = ask(&mut new, deadline, stop).map_err(|error| Silence {
        is_login: matches!(&error, NetError::Remote(remote)
            if !matches!(&remote.sqlstate.as_str()[..2], "57" | "08")),
        why: error.to_string(),
    })?;
    *connection = Some(new);
    Ok(state)
}

fn login_silence(failure: ConnectFailure) -> Silence {
    let why = failure.error.to_string();
    Silence {
        is_login: failure.is_login,
        // What follows is about the server's source code.
        why: match why.split_once(" LOCATION:") {
            Some((before, _)) => before.to_owned(),
            None => why,
        },
    }
}

fn ask(
    connection: &mut Connection,
    deadline: Instant,
    stop: RawFd,
) -> Result<ServerState, NetError> {
    let row = thread::query(connection, QUESTION, deadline, stop)?;
    Ok(ServerState {
        system_identifier: number(&row, 0),
        instance_id: row.text(0, 1).and_then(bytes).unwrap_or_default(),
        in_recovery: row.boolean(0, 2).unwrap_or(false),
        timeline: number(&row, 3),
        replay_lsn: number(&row, 4),
        lag_bytes: 0,
        lag_ms: number(&row, 5),
        load: Load {
            cpu_permille: number(&row, 6),
            memory_used: number(&row, 7),
            memory_limit: number(&row, 8),
        },
        fragments: number(&row, 9),
        server_version: number(&row, 10),
        cores: number(&row, 11),
    })
}

fn number<T: std::str::FromStr + Default>(row: &QueryResult, column: i32) -> T {
    row.text(0, column)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// 32 hexadecimal digits.
fn bytes(text: &str) -> Option<[u8; 16]> {
    Some(u128::from_str_radix(text, 16).ok()?.to_be_bytes())
}
