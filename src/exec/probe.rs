//! A second connection beside a silent link, which asks the server for the CPU time of the process
//! there. It waits for nothing: its socket is in the same wait set as the links'.

use crate::net::pool::{self, LeaseId, PoolLimits};
use crate::net::{ConnectPoll, NetError, QueryResult, ResultRead};
use crate::pg::wait::Interest;
use std::ffi::CString;

pub struct Probe {
    lease: LeaseId,
    question: CString,
    state: State,
    wants_write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    /// The question is out.
    Asked,
    Idle,
}

const CLOSED: &str = "connection was closed";

/// Why there is no answer.
pub type Trouble = String;

impl Probe {
    /// Asks about the process at the other end of `link`.
    pub fn start(link: LeaseId, limits: PoolLimits) -> Result<Probe, Trouble> {
        let process = pool::get(link).ok_or(CLOSED)?.remote_process();
        let question = format!("SELECT parallel_replicas.cpu_time({process})");
        Ok(Probe {
            lease: pool::lease_beside(link, limits).map_err(text)?,
            question: CString::new(question).map_err(|error| error.to_string())?,
            state: State::Connecting,
            wants_write: true,
        })
    }

    /// Asks again.
    pub fn ask(&mut self) -> Result<(), Trouble> {
        if self.state == State::Idle {
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Trouble> {
        let mut connection = pool::get(self.lease).ok_or(CLOSED)?;
        connection.send_query(&self.question).map_err(text)?;
        self.wants_write = !connection.flush().map_err(text)?;
        self.state = State::Asked;
        Ok(())
    }

    /// Does what can be done without waiting; the answer, in nanoseconds, if it has come.
    pub fn turn(&mut self) -> Result<Option<u64>, Trouble> {
        if self.state == State::Connecting && !self.connect()? {
            return Ok(None);
        }
        if self.state != State::Asked {
            return Ok(None);
        }
        let mut connection = pool::get(self.lease).ok_or(CLOSED)?;
        if let Err(lost) = connection.consume_input() {
            return Err(text(connection.last_words().unwrap_or(lost)));
        }
        self.wants_write = !connection.flush().map_err(text)?;
        let mut answer = None;
        loop {
            match connection.next_result() {
                ResultRead::Nothing => return Ok(None),
                ResultRead::Result(result) => answer = Some(cpu_time(result)?),
                ResultRead::Done => break,
            }
        }
        self.state = State::Idle;
        answer.map(Some).ok_or_else(|| "no answer".to_owned())
    }

    /// Goes on with connecting; true once the question is out.
    fn connect(&mut self) -> Result<bool, Trouble> {
        {
            let mut connection = pool::get(self.lease).ok_or(CLOSED)?;
            if !connection.is_connected() {
                if !connection.is_ready_for(self.wants_write) {
                    return Ok(false);
                }
                match connection.poll_connect() {
                    ConnectPoll::NeedRead => self.wants_write = false,
                    ConnectPoll::NeedWrite => self.wants_write = true,
                    ConnectPoll::Failed(error) => return Err(text(error)),
                    ConnectPoll::Ready => {}
                }
                if !connection.is_connected() {
                    return Ok(false);
                }
            }
        }
        self.send()?;
        Ok(true)
    }

    /// What to wait for; nothing while no answer is due.
    pub fn interest(&self) -> Option<Interest> {
        if self.state == State::Idle {
            return None;
        }
        let socket = pool::get(self.lease)?.socket();
        Some(Interest {
            socket,
            write: self.wants_write,
        })
    }

    /// Lets go of the connection; one that owes no answer can be used again.
    pub fn end(self, limits: PoolLimits) {
        pool::release(self.lease, self.state == State::Idle, limits);
    }
}

fn cpu_time(result: QueryResult) -> Result<u64, Trouble> {
    let result = result.into_ok().map_err(text)?;
    result
        .text(0, 0)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| "the process is gone".to_owned())
}

fn text(error: NetError) -> Trouble {
    error.to_string()
}
