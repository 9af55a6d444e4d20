//! Connecting and asking in a helper thread, which must not touch PostgreSQL: no latch, no
//! interrupts, no memory contexts.
//!
//! A thread waits with poll(2) for its socket and for a descriptor that becomes readable when all
//! threads are to stop.

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::connection::{ConnectPoll, Connection, ResultRead};
use super::error::NetError;
use super::parameters::ConnectParameters;
use super::result::QueryResult;

const STOPPED: NetError = NetError::TimedOut {
    activity: "stopping",
};

/// Why a connection could not be made.
#[derive(Debug)]
pub struct ConnectFailure {
    pub error: NetError,
    /// A server that accepts sessions is there; it only did not want this one.
    pub is_login: bool,
}

/// Connects, waiting until `deadline` at the most.
///
/// # Errors
/// What libpq says, or that the time is over, or that the thread is to stop.
pub fn connect(
    parameters: &Rc<ConnectParameters>,
    deadline: Instant,
    stop: RawFd,
) -> Result<Connection, ConnectFailure> {
    let failure = |error| ConnectFailure {
        error,
        is_login: false,
    };
    let mut connection = Connection::start_in_thread(Rc::clone(parameters)).map_err(failure)?;
    loop {
        let write = match connection.poll_connect() {
            ConnectPoll::Ready => return Ok(connection),
            ConnectPoll::Failed(error) => {
                let is_login = error == NetError::PasswordNotUsed
                    || connection.needs_password()
                    || error.sqlstate().is_some_and(|code| !code.starts_with("57"));
                return Err(ConnectFailure { error, is_login });
            }
            ConnectPoll::NeedRead => false,
            ConnectPoll::NeedWrite => true,
        };
        wait(
            Some((connection.socket(), write)),
            deadline,
            stop,
            "connecting",
        )
        .map_err(failure)?;
    }
}

/// Runs one statement and returns its last result.
///
/// # Errors
/// [`NetError::Remote`] if the server reported an error, else as for the link.
pub fn query(
    connection: &mut Connection,
    sql: &CStr,
    deadline: Instant,
    stop: RawFd,
) -> Result<QueryResult, NetError> {
    connection.send_query(sql)?;
    let mut last = None;
    loop {
        match connection.next_result() {
            ResultRead::Result(result) => {
                last = Some(result.into_ok()?);
                continue;
            }
            ResultRead::Done => return last.ok_or(NetError::NotReady),
            ResultRead::Nothing => {}
        }
        let write = !connection.flush()?;
        wait(
            Some((connection.socket(), write)),
            deadline,
            stop,
            "waiting for a reply",
        )?;
        if let Err(lost) = connection.consume_input() {
            return Err(connection.last_words().unwrap_or(lost));
        }
    }
}

/// Sleeps. False if the thread is to stop.
pub fn sleep(duration: Duration, stop: RawFd) -> bool {
    wait(None, Instant::now() + duration, stop, "sleeping") != Err(STOPPED)
}

/// Waits for a socket to become readable (or writable, if asked), the deadline, or the end.
fn wait(
    socket: Option<(RawFd, bool)>,
    deadline: Instant,
    stop: RawFd,
    activity: &'static str,
) -> Result<(), NetError> {
    let (socket, write) = socket.unwrap_or((-1, false));
    let events = if write {
        libc::POLLIN | libc::POLLOUT
    } else {
        libc::POLLIN
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left_ms = left.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        let descriptor = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut polled = [descriptor(stop, libc::POLLIN), descriptor(socket, events)];
        // SAFETY: an array of two valid entries; a negative descriptor is ignored.
        unsafe { libc::poll(polled.as_mut_ptr(), 2, left_ms) };
        if polled[0].revents != 0 {
            return Err(STOPPED);
        }
        if polled[1].revents != 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(NetError::TimedOut { activity });
        }
    }
}
