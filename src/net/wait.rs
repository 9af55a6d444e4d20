//! Waits of admin functions and of the monitor: the latch, a deadline, and one socket or those of connections
//! that are being made.
//!
//! Not here: the executor's event loop, which waits for all links in one wait set.
//!
//! Invariants: every wait ends at its deadline, serves interrupts each time it wakes (so cancel,
//! statement_timeout and shutdown work), and leaves the process when the postmaster dies. An
//! interrupt raises an error from here; the connection is then closed by its destructor.

use std::ffi::CStr;
use std::time::Instant;

use pgrx::{check_for_interrupts, pg_sys};

use super::connection::{ConnectPoll, Connection, ResultRead};
use super::error::NetError;
use super::parameters::ConnectParameters;
use super::result::{QueryResult, ResultStatus};
use crate::pg::wait;

/// What to wait for on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
    ReadOrWrite,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketWait {
    Ready { readable: bool, writable: bool },
    TimedOut,
}

/// Waits until the socket is ready or the deadline has passed. Interrupts are served meanwhile.
/// Without a socket (a negative number, which libpq gives for a connection that broke) it sleeps.
pub fn wait_socket(socket: i32, interest: Interest, deadline: Instant) -> SocketWait {
    let events = match interest {
        // PostgreSQL raises an error if asked to wait for a socket that is none.
        _ if socket < 0 => 0,
        Interest::Read => pg_sys::WL_SOCKET_READABLE,
        Interest::Write => pg_sys::WL_SOCKET_WRITEABLE,
        Interest::ReadOrWrite => pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE,
    };
    let always = pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH | pg_sys::WL_TIMEOUT;
    loop {
        let left_ms = milliseconds_until(deadline) as i64;
        // SAFETY: main thread; MyLatch is this process's own latch; the caller's socket is open.
        let woken = unsafe {
            pg_sys::WaitLatchOrSocket(
                pg_sys::MyLatch,
                (events | always) as i32,
                socket,
                left_ms,
                pg_sys::PG_WAIT_EXTENSION,
            )
        } as u32;
        if woken & pg_sys::WL_LATCH_SET != 0 {
            // SAFETY: this process's own latch.
            unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
        }
        check_for_interrupts!();
        if woken & events != 0 {
            return SocketWait::Ready {
                readable: woken & pg_sys::WL_SOCKET_READABLE != 0,
                writable: woken & pg_sys::WL_SOCKET_WRITEABLE != 0,
            };
        }
        if Instant::now() >= deadline {
            return SocketWait::TimedOut;
        }
    }
}

/// Rounded up, so that a loop does not spin through the last millisecond.
fn milliseconds_until(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_micros().div_ceil(1000).min(i32::MAX as u128) as u64
}

const CONNECTING_TIMED_OUT: NetError = NetError::TimedOut {
    activity: "connecting",
};

/// Connects, waiting until `deadline` at the most.
///
/// # Errors
/// What [`Connection::start`] gives, [`NetError::Connect`], [`NetError::PasswordNotUsed`] or
/// [`NetError::TimedOut`].
pub fn connect_wait(
    parameters: &ConnectParameters,
    deadline: Instant,
) -> Result<Connection, NetError> {
    let mut connection = Connection::start(parameters)?;
    loop {
        let interest = match connection.poll_connect() {
            ConnectPoll::Ready => return Ok(connection),
            ConnectPoll::Failed(error) => return Err(error),
            ConnectPoll::NeedRead => Interest::Read,
            ConnectPoll::NeedWrite => Interest::Write,
        };
        if wait_socket(connection.socket(), interest, deadline) == SocketWait::TimedOut {
            return Err(CONNECTING_TIMED_OUT);
        }
    }
}

/// One of several connections that are being made.
struct Attempt<E> {
    connection: Result<Connection, E>,
    /// What it is waited for, while it is being made: to be able to write, or else to read.
    write: Option<bool>,
}

impl<E: From<NetError>> Attempt<E> {
    /// Does what can be done without waiting.
    fn turn(&mut self) {
        let (Ok(connection), Some(write)) = (&mut self.connection, self.write) else {
            return;
        };
        // libpq takes a socket that it is not to look at yet for one that is connected.
        if connection.is_ready_for(write) {
            self.step();
        }
    }

    fn step(&mut self) {
        let Ok(connection) = &mut self.connection else {
            return;
        };
        self.write = match connection.poll_connect() {
            ConnectPoll::NeedRead => Some(false),
            ConnectPoll::NeedWrite => Some(true),
            ConnectPoll::Ready => None,
            ConnectPoll::Failed(error) => {
                self.connection = Err(error.into());
                None
            }
        };
    }

    fn interest(&self) -> Option<wait::Interest> {
        let (Ok(connection), Some(write)) = (&self.connection, self.write) else {
            return None;
        };
        let socket = connection.socket();
        // PostgreSQL raises an error if asked to wait for a socket that is none.
        (socket >= 0).then_some(wait::Interest {
            socket,
            write,
            lasting: None,
        })
    }
}

/// Goes on with connections that have been started, all at once, waiting until `deadline` at the most.
/// The answers, in the same order, are those of [`connect_wait`].
pub fn connect_all_wait<E: From<NetError>>(
    started: Vec<Result<Connection, E>>,
    deadline: Instant,
) -> Vec<Result<Connection, E>> {
    let attempt = |connection| Attempt {
        connection,
        write: None,
    };
    let mut attempts: Vec<Attempt<E>> = started.into_iter().map(attempt).collect();
    attempts.iter_mut().for_each(Attempt::step);
    loop {
        check_for_interrupts!();
        attempts.iter_mut().for_each(Attempt::turn);
        let interests: Vec<wait::Interest> =
            attempts.iter().filter_map(Attempt::interest).collect();
        let left_ms = milliseconds_until(deadline);
        if interests.is_empty() || left_ms == 0 {
            break;
        }
        wait::latch_or_sockets(&interests, left_ms, pg_sys::PG_WAIT_EXTENSION);
    }
    let answer = |attempt: Attempt<E>| match attempt.write {
        Some(_) => Err(CONNECTING_TIMED_OUT.into()),
        None => attempt.connection,
    };
    attempts.into_iter().map(answer).collect()
}

/// Runs one statement and returns its last result; the first error wins.
///
/// After an error the connection may still be busy; `is_idle_and_clean` tells, and the pool asks.
///
/// # Errors
/// [`NetError::Remote`] if the server reported an error, else as for the link.
pub fn query_wait(
    connection: &mut Connection,
    sql: &CStr,
    deadline: Instant,
) -> Result<QueryResult, NetError> {
    connection.send_query(sql)?;
    let last = answers_wait(connection, deadline)?.pop();
    last.ok_or(NetError::NotReady)
}

/// Runs one statement and hands each row on as it comes, so that they are not all kept here.
///
/// # Errors
/// As for [`query_wait`], or what `take` answers, which ends it: the connection may still be busy.
pub fn rows_wait<E: From<NetError>>(
    connection: &mut Connection,
    sql: &CStr,
    deadline: Instant,
    mut take: impl FnMut(&QueryResult) -> Result<(), E>,
) -> Result<(), E> {
    connection.send_query(sql)?;
    connection.give_rows_singly()?;
    each_answer(connection, deadline, |answer| match answer.status() {
        ResultStatus::Row => take(&answer),
        _ => Ok(()),
    })
}

/// The results of what was sent with [`Connection::send_query`], one for each statement.
///
/// # Errors
/// As for [`query_wait`].
pub fn answers_wait(
    connection: &mut Connection,
    deadline: Instant,
) -> Result<Vec<QueryResult>, NetError> {
    let mut answers = Vec::new();
    each_answer(connection, deadline, |answer| {
        answers.push(answer);
        Ok::<_, NetError>(())
    })?;
    Ok(answers)
}

fn each_answer<E: From<NetError>>(
    connection: &mut Connection,
    deadline: Instant,
    mut take: impl FnMut(QueryResult) -> Result<(), E>,
) -> Result<(), E> {
    let mut failure = None;
    loop {
        match connection.next_result() {
            ResultRead::Result(result) => {
                if result.is_copy() {
                    // A copy would never end here. The caller's connection is not clean now.
                    return Err(NetError::NotReady.into());
                }
                match result.into_ok() {
                    Ok(answer) => take(answer)?,
                    Err(error) => {
                        failure.get_or_insert(error);
                    }
                }
                continue;
            }
            ResultRead::Done => break,
            ResultRead::Nothing => {}
        }
        let interest = match connection.flush()? {
            true => Interest::Read,
            false => Interest::ReadOrWrite,
        };
        match wait_socket(connection.socket(), interest, deadline) {
            SocketWait::TimedOut => {
                return Err(NetError::TimedOut {
                    activity: "waiting for a reply",
                }
                .into());
            }
            SocketWait::Ready { readable: true, .. } => {
                if let Err(lost) = connection.consume_input() {
                    let failure = failure.or_else(|| connection.last_words());
                    return Err(failure.unwrap_or(lost).into());
                }
            }
            SocketWait::Ready { .. } => {}
        }
    }
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Sleeps, serving interrupts.
pub fn sleep(duration: std::time::Duration) {
    // Without a socket only the latch and the deadline end the wait.
    let outcome = wait_socket(
        pg_sys::PGINVALID_SOCKET,
        Interest::Read,
        Instant::now() + duration,
    );
    debug_assert_eq!(outcome, SocketWait::TimedOut);
}
