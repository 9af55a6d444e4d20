//! Waits of admin functions and of the monitor: one socket, the latch, a deadline.
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
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the loop does not spin through the last millisecond.
        let left_ms = left.as_micros().div_ceil(1000).min(i32::MAX as u128) as i64;
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
            return Err(NetError::TimedOut {
                activity: "connecting",
            });
        }
    }
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
