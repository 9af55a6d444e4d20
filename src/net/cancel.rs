//! Asking a replica to cancel what a connection runs, without waiting where the latch is not served.
//!
//! libpq 15 has only `PQcancel`, which connects, sends and reads in blocking calls: a host that
//! accepts and then stays silent (stopped, cut off) would hold the backend for good, and its key is
//! not accessible for a request of our own. `PQcancelStart` and its kin came with 17. So the request
//! is an ordinary second connection that runs `pg_cancel_backend`; it is a state machine that fits
//! into the caller's event loop, costs one connection, needs no more rights than the first one had
//! (same role), and can be given up at any moment by dropping it.
//!
//! Cheaper and always possible, also while an error unwinds: drop the connection. The replica sees
//! the closed socket at its next read or, while it computes, within
//! `client_connection_check_interval`. Use a request only to keep the connection.

use std::ffi::CString;
use std::rc::Rc;
use std::time::Instant;

use super::connection::{ConnectPoll, Connection, ResultRead};
use super::error::NetError;
use super::wait::{Interest, SocketWait, wait_socket};

/// What a cancel request needs next.
#[derive(Debug, PartialEq, Eq)]
pub enum CancelPoll {
    NeedRead,
    NeedWrite,
    /// The replica answered; `true` if it signalled the process.
    Done(bool),
    Failed(NetError),
}

/// A cancel request under way. Dropping it gives it up.
pub struct CancelRequest {
    connection: Connection,
    pid: i32,
    sent: bool,
}

impl CancelRequest {
    /// Begins a request against the statement that `target` runs.
    ///
    /// # Errors
    /// As [`Connection::start`]; [`NetError::NotReady`] if the target is not connected.
    pub fn start(target: &Connection) -> Result<CancelRequest, NetError> {
        if !target.is_connected() {
            return Err(NetError::NotReady);
        }
        let pid = target.backend_pid();
        let connection = Connection::start_shared(Rc::clone(target.parameters()))?;
        Ok(CancelRequest {
            connection,
            pid,
            sent: false,
        })
    }

    /// The socket to wait for; it may change after a poll.
    pub fn socket(&self) -> i32 {
        self.connection.socket()
    }

    /// Advances the request. Call it again once the socket is ready for what it asked.
    pub fn poll(&mut self) -> CancelPoll {
        if !self.sent {
            match self.connection.poll_connect() {
                ConnectPoll::NeedRead => return CancelPoll::NeedRead,
                ConnectPoll::NeedWrite => return CancelPoll::NeedWrite,
                ConnectPoll::Failed(error) => return CancelPoll::Failed(error),
                ConnectPoll::Ready => {}
            }
            let sql = format!("SELECT pg_catalog.pg_cancel_backend({})", self.pid);
            let Ok(sql) = CString::new(sql) else {
                return CancelPoll::Failed(NetError::NotReady);
            };
            if let Err(error) = self.connection.send_query(&sql) {
                return CancelPoll::Failed(error);
            }
            self.sent = true;
        }
        self.poll_answer().unwrap_or_else(CancelPoll::Failed)
    }

    fn poll_answer(&mut self) -> Result<CancelPoll, NetError> {
        self.connection.consume_input()?;
        match self.connection.next_result() {
            ResultRead::Result(result) => {
                let result = result.into_ok()?;
                Ok(CancelPoll::Done(result.boolean(0, 0) == Some(true)))
            }
            ResultRead::Done => Err(NetError::NotReady),
            ResultRead::Nothing => match self.connection.flush()? {
                true => Ok(CancelPoll::NeedRead),
                false => Ok(CancelPoll::NeedWrite),
            },
        }
    }
}

impl Connection {
    /// Cancels the running statement and waits, serving the latch, until the replica has confirmed
    /// the signal or the deadline has passed. Must not be called where interrupts may not be served
    /// (abort callbacks, destructors): drop the connection there.
    ///
    /// # Errors
    /// As [`CancelRequest::start`], or [`NetError::TimedOut`].
    pub fn request_cancel(&self, deadline: Instant) -> Result<bool, NetError> {
        let mut request = CancelRequest::start(self)?;
        loop {
            let interest = match request.poll() {
                CancelPoll::NeedRead => Interest::Read,
                CancelPoll::NeedWrite => Interest::Write,
                CancelPoll::Done(signalled) => return Ok(signalled),
                CancelPoll::Failed(error) => return Err(error),
            };
            if wait_socket(request.socket(), interest, deadline) == SocketWait::TimedOut {
                return Err(NetError::TimedOut {
                    activity: "canceling a statement",
                });
            }
        }
    }
}
