//! One libpq connection, never blocking.
//!
//! Not here: waiting (`wait`), reuse (`pool`).
//!
//! Life: [`Connection::start`] -> [`Connection::poll_connect`] until `Ready` or `Failed` -> requests.
//! A caller with its own event loop waits for [`Connection::socket`] as each call tells it to:
//! readable always while an answer is awaited ([`Connection::consume_input`] then), writable too
//! while [`Connection::flush`] answers `false`. While connecting the socket **may change between two
//! polls** (next address, TLS refused), so a wait set has to be told after every poll.
//!
//! Invariants: the socket is in libpq's non-blocking mode from `Ready` on; no method waits; dropping
//! is allowed in every state and closes the socket, which also ends the remote statement.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use pgrx::pg_sys;
use pq_sys::{ConnStatusType, PGTransactionStatusType, PostgresPollingStatusType};

use super::error::{NetError, redact};
use super::parameters::ConnectParameters;
use super::result::{CopyBuffer, QueryResult};
use crate::shm::links::Permit;

/// What a connection attempt needs next.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectPoll {
    NeedRead,
    NeedWrite,
    Ready,
    /// The attempt is over; drop the connection.
    Failed(NetError),
}

/// Answer of [`Connection::next_result`].
#[derive(Debug)]
pub enum ResultRead {
    Result(QueryResult),
    /// Not here yet: wait for the socket, then [`Connection::consume_input`].
    Nothing,
    /// The statement has ended; the next one may be sent.
    Done,
}

/// Answer of [`Connection::copy_data`].
#[derive(Debug)]
pub enum CopyRead {
    Message(CopyBuffer),
    /// Not here yet: wait for the socket, then [`Connection::consume_input`].
    Nothing,
    /// The remote side ended its direction, in order or by an error: ask
    /// [`Connection::next_result`], whose result tells which.
    Ended,
    Failed(NetError),
}

/// Notices kept until somebody asks; later ones are only counted.
const NOTICES_MAX: usize = 16;
/// Longest notice kept.
const NOTICE_BYTES_MAX: usize = 300;

/// Reservation of one descriptor in fd.c's books.
struct ExternalFd(());

/// Descriptors that are left to whatever else the session needs: a query that found none for its
/// wait set would fail.
const SPARE_FDS: usize = 8;

impl ExternalFd {
    fn acquire() -> Option<ExternalFd> {
        // SAFETY: main thread of a backend; fd.c is initialised before any user code.
        let one = || unsafe { pg_sys::AcquireExternalFD() }.then_some(ExternalFd(()));
        let taken: Vec<ExternalFd> = (0..=SPARE_FDS).map_while(|_| one()).collect();
        match taken.len() > SPARE_FDS {
            true => taken.into_iter().next(),
            false => None,
        }
    }
}

impl Drop for ExternalFd {
    fn drop(&mut self) {
        // SAFETY: decreases a counter that `acquire` increased; it cannot raise an error, so it is
        // safe while one unwinds.
        unsafe { pg_sys::ReleaseExternalFD() }
    }
}

#[derive(Default)]
struct NoticeLog {
    kept: Vec<String>,
    dropped: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Started,
    Connecting,
    Connected,
}

/// A `PGconn`.
pub struct Connection {
    conn: NonNull<pq_sys::PGconn>,
    /// Written by libpq's notice callback through this same pointer, hence not a `Box`.
    notices: NonNull<NoticeLog>,
    parameters: Rc<ConnectParameters>,
    phase: Phase,
    /// Whether the startup packet could be sent, so somebody listens at the address.
    reached: bool,
    /// Dropped after `Drop::drop` has closed the socket. None in a helper thread, for which the main
    /// thread has reserved one.
    _external_fd: Option<ExternalFd>,
    /// Of a link: counted until its socket is closed.
    permit: Option<Permit>,
    _one_thread_only: PhantomData<*mut ()>,
}

/// libpq's notice receiver: keeps the texts, calls nothing that could raise an error.
///
/// # Safety
/// Called by libpq only, with the pointer given to `PQsetNoticeReceiver`.
unsafe extern "C" fn receive_notice(arg: *mut c_void, result: *const pq_sys::PGresult) {
    // SAFETY: `arg` is the log of a live connection, and no reference to it is held while libpq runs.
    let Some(log) = (unsafe { arg.cast::<NoticeLog>().as_mut() }) else {
        return;
    };
    if log.kept.len() >= NOTICES_MAX {
        log.dropped += 1;
        return;
    }
    let field = |code: u8| {
        // SAFETY: libpq hands a valid result; absent fields are null.
        let text = unsafe { pq_sys::PQresultErrorField(result, i32::from(code)) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not null, zero-terminated, alive during this call.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        text.chars().take(NOTICE_BYTES_MAX).collect()
    };
    let severity = field(pq_sys::PG_DIAG_SEVERITY_NONLOCALIZED);
    log.kept.push(format!(
        "{severity}: {}",
        field(pq_sys::PG_DIAG_MESSAGE_PRIMARY)
    ));
}

impl Connection {
    /// Begins a connection attempt. Resolving a host name may block inside libpq.
    ///
    /// # Errors
    /// [`NetError::TooManyFiles`], [`NetError::OutOfMemory`], or [`NetError::Connect`] if libpq
    /// refused the parameters or could not make a socket.
    pub fn start(parameters: &ConnectParameters) -> Result<Connection, NetError> {
        Connection::start_shared(Rc::new(parameters.clone()))
    }

    /// The same for a link, of which all sessions together have `most` at the most; 0: no limit.
    ///
    /// # Errors
    /// [`NetError::TooManyLinks`], else as for [`Connection::start`].
    pub fn start_link(parameters: &ConnectParameters, most: u32) -> Result<Connection, NetError> {
        let permit = Permit::take(most).ok_or(NetError::TooManyLinks { most })?;
        let mut connection = Connection::start(parameters)?;
        connection.permit = Some(permit);
        Ok(connection)
    }

    pub(super) fn start_shared(parameters: Rc<ConnectParameters>) -> Result<Connection, NetError> {
        let external_fd = ExternalFd::acquire().ok_or(NetError::TooManyFiles)?;
        Connection::start_with(parameters, Some(external_fd))
    }

    /// The same in a helper thread: touches nothing of PostgreSQL's, whose main thread has to keep
    /// the books of descriptors.
    pub(super) fn start_in_thread(
        parameters: Rc<ConnectParameters>,
    ) -> Result<Connection, NetError> {
        let connection = Connection::start_with(parameters, None)?;
        connection.tell_sqlstate();
        Ok(connection)
    }

    /// Makes a refusal to connect tell its SQLSTATE.
    fn tell_sqlstate(&self) {
        // SAFETY: live connection.
        unsafe { pq_sys::PQsetErrorVerbosity(self.raw(), pq_sys::PGVerbosity::PQERRORS_VERBOSE) };
    }

    fn start_with(
        parameters: Rc<ConnectParameters>,
        external_fd: Option<ExternalFd>,
    ) -> Result<Connection, NetError> {
        let (mut keywords, mut values): (Vec<*const c_char>, Vec<*const c_char>) = parameters
            .pairs()
            .map(|(k, v)| (k.as_ptr(), v.as_ptr()))
            .unzip();
        keywords.push(ptr::null());
        values.push(ptr::null());
        // SAFETY: both arrays are null-terminated, equally long and alive during the call. With
        // expand_dbname = 0 a database name is never taken for a connection string.
        let conn = unsafe { pq_sys::PQconnectStartParams(keywords.as_ptr(), values.as_ptr(), 0) };
        let conn = NonNull::new(conn).ok_or(NetError::OutOfMemory)?;
        let notices = NonNull::from(Box::leak(Box::new(NoticeLog::default())));
        let connection = Connection {
            conn,
            notices,
            parameters,
            phase: Phase::Started,
            reached: false,
            _external_fd: external_fd,
            permit: None,
            _one_thread_only: PhantomData,
        };
        // SAFETY: the receiver has the type libpq wants and the log outlives the PGconn.
        unsafe {
            pq_sys::PQsetNoticeReceiver(
                connection.raw(),
                Some(receive_notice),
                notices.as_ptr().cast(),
            );
        }
        match connection.is_broken() {
            true => Err(connection.connect_error()),
            false => Ok(connection),
        }
    }

    /// Begins another connection to the very server that this one has reached: the parameters may
    /// name several, or a name with several addresses. A refusal tells its SQLSTATE.
    ///
    /// # Errors
    /// As for [`Connection::start`].
    pub fn another(&self) -> Result<Connection, NetError> {
        let mut parameters = ConnectParameters::clone(&self.parameters);
        for (keyword, value) in ["host", "hostaddr", "port"].into_iter().zip(self.place()) {
            if !value.is_empty() {
                parameters.set(keyword, value.to_bytes())?;
            }
        }
        let connection = Connection::start(&parameters)?;
        connection.tell_sqlstate();
        Ok(connection)
    }

    /// Whether both go to the same server. False if one of them is not up.
    pub fn is_beside(&self, other: &Connection) -> bool {
        self.is_connected() && other.is_connected() && self.place() == other.place()
    }

    /// Host, address and port of the server that was reached; empty as far as there is none.
    fn place(&self) -> [&CStr; 3] {
        // SAFETY: live connection, which owns the texts and changes them only when it is reset, as
        // never happens, or tries its next host, for which it would have to be borrowed mutably.
        let texts = unsafe {
            [
                pq_sys::PQhost(self.raw()),
                pq_sys::PQhostaddr(self.raw()),
                pq_sys::PQport(self.raw()),
            ]
        };
        texts.map(|text| match text.is_null() {
            true => c"",
            // SAFETY: zero-terminated, and as above.
            false => unsafe { CStr::from_ptr(text) },
        })
    }

    fn raw(&self) -> *mut pq_sys::PGconn {
        self.conn.as_ptr()
    }

    /// libpq's last error on this connection, cleaned.
    fn error_text(&self) -> String {
        // SAFETY: live connection; the text is zero-terminated and copied at once.
        let text = unsafe { CStr::from_ptr(pq_sys::PQerrorMessage(self.raw())) };
        match redact(&text.to_string_lossy(), &self.parameters) {
            text if text.is_empty() => "no message from libpq".into(),
            text => text,
        }
    }

    fn connect_error(&self) -> NetError {
        NetError::Connect {
            message: self.error_text(),
            reached: self.reached,
        }
    }

    fn lost(&self) -> NetError {
        NetError::Lost {
            message: self.error_text(),
        }
    }

    /// Advances the attempt. Call it again once the socket is ready for what it asked.
    pub fn poll_connect(&mut self) -> ConnectPoll {
        match self.phase {
            // libpq's contract: the first wait is for writability, before the first poll.
            Phase::Started => {
                self.phase = Phase::Connecting;
                return ConnectPoll::NeedWrite;
            }
            Phase::Connected => return ConnectPoll::Ready,
            Phase::Connecting => {}
        }
        // SAFETY: live connection that is being established.
        let next = unsafe { pq_sys::PQconnectPoll(self.raw()) };
        // SAFETY: live connection.
        self.reached |= matches!(
            unsafe { pq_sys::PQstatus(self.raw()) },
            ConnStatusType::CONNECTION_AWAITING_RESPONSE
                | ConnStatusType::CONNECTION_AUTH_OK
                | ConnStatusType::CONNECTION_OK
        );
        match next {
            PostgresPollingStatusType::PGRES_POLLING_READING => ConnectPoll::NeedRead,
            PostgresPollingStatusType::PGRES_POLLING_WRITING => ConnectPoll::NeedWrite,
            PostgresPollingStatusType::PGRES_POLLING_OK => self.finish_connect(),
            _ => ConnectPoll::Failed(self.connect_error()),
        }
    }

    fn finish_connect(&mut self) -> ConnectPoll {
        if self.parameters.password_must_be_used() && !self.used_password() {
            return ConnectPoll::Failed(NetError::PasswordNotUsed);
        }
        // SAFETY: live, established connection with nothing queued, so this does not wait.
        if unsafe { pq_sys::PQsetnonblocking(self.raw(), 1) } != 0 {
            return ConnectPoll::Failed(self.connect_error());
        }
        self.phase = Phase::Connected;
        ConnectPoll::Ready
    }

    /// The socket to wait for, or -1 if there is none. See the module comment about changes.
    pub fn socket(&self) -> c_int {
        // SAFETY: live connection.
        unsafe { pq_sys::PQsocket(self.raw()) }
    }

    /// What comes is decrypted in portions of its own.
    pub fn is_encrypted(&self) -> bool {
        // SAFETY: live connection.
        unsafe { pq_sys::PQsslInUse(self.raw()) != 0 || pq_sys::PQgssEncInUse(self.raw()) != 0 }
    }

    /// Whether libpq has given the connection up.
    pub fn is_broken(&self) -> bool {
        // SAFETY: live connection.
        unsafe { pq_sys::PQstatus(self.raw()) == ConnStatusType::CONNECTION_BAD }
    }

    /// Is the socket ready to be written to, or else to be read from, this moment?
    pub fn is_ready_for(&self, write: bool) -> bool {
        let events = if write { libc::POLLOUT } else { libc::POLLIN };
        let mut poll = libc::pollfd {
            fd: self.socket(),
            events,
            revents: 0,
        };
        // SAFETY: one valid pollfd, no wait.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }

    /// Still being made: [`Connection::poll_connect`] goes on with it.
    pub fn is_pending(&self) -> bool {
        self.phase != Phase::Connected && !self.is_broken()
    }

    /// Does it count among the links of this server?
    pub fn is_counted(&self) -> bool {
        self.permit.is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.phase == Phase::Connected && !self.is_broken()
    }

    /// The process that serves this connection, as the server names it; 0 before it is up.
    pub fn remote_process(&self) -> i32 {
        // SAFETY: live connection.
        unsafe { pq_sys::PQbackendPID(self.raw()) }
    }

    /// Whether the server asked for a password and got the one that was given.
    pub fn used_password(&self) -> bool {
        // SAFETY: live connection.
        unsafe { pq_sys::PQconnectionUsedPassword(self.raw()) != 0 }
    }

    /// Whether the server asked for a password and there was none.
    pub fn needs_password(&self) -> bool {
        // SAFETY: live connection, even if the attempt failed.
        unsafe { pq_sys::PQconnectionNeedsPassword(self.raw()) != 0 }
    }

    /// Queues a statement (simple protocol). Flush until all is out.
    pub fn send_query(&mut self, sql: &CStr) -> Result<(), NetError> {
        if self.phase != Phase::Connected {
            return Err(NetError::NotReady);
        }
        // SAFETY: live connection, zero-terminated text.
        match unsafe { pq_sys::PQsendQuery(self.raw(), sql.as_ptr()) } {
            1 => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// Makes the statement that was just sent give each of its rows as a result of its own, before the
    /// next one is read, and after them an empty one.
    pub fn give_rows_singly(&mut self) -> Result<(), NetError> {
        // SAFETY: live connection.
        match unsafe { pq_sys::PQsetSingleRowMode(self.raw()) } {
            1 => Ok(()),
            _ => Err(NetError::NotReady),
        }
    }

    /// Reads what the socket has, without waiting, and sends what is queued. After an error, what
    /// arrived before can still be taken, and [`Connection::last_words`] may know the reason.
    pub fn consume_input(&mut self) -> Result<(), NetError> {
        // SAFETY: live connection.
        match unsafe { pq_sys::PQconsumeInput(self.raw()) } {
            1 => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// After [`Connection::consume_input`] failed: the error that the server sent before it closed,
    /// such as a recovery conflict or a shutdown, if it sent one.
    pub fn last_words(&mut self) -> Option<NetError> {
        const RESULTS_MAX: usize = 8;
        for _ in 0..RESULTS_MAX {
            let ResultRead::Result(result) = self.next_result() else {
                return None;
            };
            if let Some(error) = result.error() {
                return Some(NetError::Remote(Box::new(error)));
            }
            if result.is_copy() {
                return None;
            }
        }
        None
    }

    /// Whether [`Connection::next_result`] would have to wait.
    pub fn is_busy(&self) -> bool {
        // SAFETY: live connection; parses input already read.
        unsafe { pq_sys::PQisBusy(self.raw()) != 0 }
    }

    pub fn next_result(&mut self) -> ResultRead {
        if self.is_busy() {
            return ResultRead::Nothing;
        }
        // SAFETY: live connection; not busy, so libpq returns at once.
        match NonNull::new(unsafe { pq_sys::PQgetResult(self.raw()) }) {
            Some(result) => {
                ResultRead::Result(QueryResult::from_raw(result, self.parameters.clone()))
            }
            None => ResultRead::Done,
        }
    }

    /// Takes the next complete CopyData message out of what was read.
    pub fn copy_data(&mut self) -> CopyRead {
        let mut buffer: *mut c_char = ptr::null_mut();
        // SAFETY: live connection; async = 1, so libpq neither waits nor reads the socket.
        let length = unsafe { pq_sys::PQgetCopyData(self.raw(), &mut buffer, 1) };
        match (length, NonNull::new(buffer.cast::<u8>())) {
            (0, _) => CopyRead::Nothing,
            (-1, _) => CopyRead::Ended,
            (1.., Some(bytes)) => CopyRead::Message(CopyBuffer::from_raw(bytes, length as usize)),
            _ => CopyRead::Failed(self.lost()),
        }
    }

    /// Queues one CopyData message. `false`: no room now; flush and try the same bytes again.
    ///
    /// libpq grows its buffer as long as memory lasts, so the caller bounds what it queues by
    /// waiting for [`Connection::flush`].
    pub fn put_copy_data(&mut self, bytes: &[u8]) -> Result<bool, NetError> {
        // Five bytes of header, and libpq computes the sum in `int`.
        let length = i32::try_from(bytes.len())
            .ok()
            .filter(|length| *length < i32::MAX - 16)
            .ok_or(NetError::TooLarge { bytes: bytes.len() })?;
        // SAFETY: live connection; libpq copies the bytes before it returns.
        match unsafe { pq_sys::PQputCopyData(self.raw(), bytes.as_ptr().cast(), length) } {
            1 => Ok(true),
            0 => Ok(false),
            _ => Err(self.lost()),
        }
    }

    /// Queues CopyDone. `false`: no room now; flush and try again.
    pub fn put_copy_end(&mut self) -> Result<bool, NetError> {
        // SAFETY: live connection; a null message means an orderly end.
        match unsafe { pq_sys::PQputCopyEnd(self.raw(), ptr::null()) } {
            1 => Ok(true),
            0 => Ok(false),
            _ => Err(self.lost()),
        }
    }

    /// Sends what is queued as far as the socket takes it; `true` when nothing is left.
    pub fn flush(&mut self) -> Result<bool, NetError> {
        // SAFETY: live, non-blocking connection.
        match unsafe { pq_sys::PQflush(self.raw()) } {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(self.lost()),
        }
    }

    /// Whether the connection may be used for another statement by another query: no transaction,
    /// nothing in flight in either direction, and the server has not closed it meanwhile.
    pub fn is_idle_and_clean(&mut self) -> bool {
        self.is_connected()
            && self.socket_is_quiet()
            && !self.is_busy()
            && self.flush() == Ok(true)
            // SAFETY: live connection.
            && unsafe { pq_sys::PQtransactionStatus(self.raw()) }
                == PGTransactionStatusType::PQTRANS_IDLE
            && !self.is_broken()
    }

    /// Reads what came by itself (a parameter change, TLS session tickets) and answers `false` if
    /// the peer has closed or does not stop talking.
    fn socket_is_quiet(&mut self) -> bool {
        const READS_MAX: usize = 3;
        for _ in 0..READS_MAX {
            let mut poll = libc::pollfd {
                fd: self.socket(),
                events: libc::POLLIN | libc::POLLRDHUP,
                revents: 0,
            };
            // SAFETY: one valid pollfd, no wait.
            let ready = unsafe { libc::poll(&mut poll, 1, 0) };
            if ready == 0 {
                return true;
            }
            let closed = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
            if ready < 0 || poll.revents & closed != 0 || self.consume_input().is_err() {
                return false;
            }
        }
        false
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: owned, closed once. libpq sends Terminate if the socket takes it without waiting
        // and closes; it calls nothing of PostgreSQL's server. The log is freed after the last call
        // that could write to it.
        unsafe {
            pq_sys::PQfinish(self.raw());
            drop(Box::from_raw(self.notices.as_ptr()));
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("socket", &self.socket())
            .finish_non_exhaustive()
    }
}
