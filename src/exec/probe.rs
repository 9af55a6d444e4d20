//! A second connection beside a silent link, which asks the server for the CPU time of the process
//! there. It waits for nothing: its socket is in the same wait set as the links'.

use crate::net::pool::{self, LeaseGuard, LeaseId, PoolLimits};
use crate::net::{ConnectPoll, NetError, QueryResult, ResultRead};
use crate::pg::wait::Interest;
use std::ffi::CString;

pub struct Probe {
    lease: LeaseId,
    question: CString,
    state: State,
    /// The answer to the last question, until the server is ready for the next.
    answer: Option<u64>,
    answered: bool,
    wants_write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    /// The question is out.
    Asked,
    Idle,
}

/// Why there is no answer.
pub enum Trouble {
    /// The server has no room for another connection. So it lives.
    NoRoom,
    Failed(String),
}

impl From<NetError> for Trouble {
    fn from(error: NetError) -> Self {
        match error.sqlstate() {
            Some(TOO_MANY_CONNECTIONS) => Trouble::NoRoom,
            _ => Trouble::Failed(error.to_string()),
        }
    }
}

/// SQLSTATE of a refusal because all connections of the server, database or role are in use.
const TOO_MANY_CONNECTIONS: &str = "53300";

fn failed(why: &str) -> Trouble {
    Trouble::Failed(why.to_owned())
}

fn get(lease: LeaseId) -> Result<LeaseGuard, Trouble> {
    pool::get(lease).ok_or_else(|| failed("connection was closed"))
}

impl Probe {
    /// Asks about the process at the other end of `link`.
    pub fn start(link: LeaseId, limits: PoolLimits) -> Result<Probe, Trouble> {
        let process = get(link)?.remote_process();
        let question = format!("SELECT parallel_replicas.cpu_time({process})");
        Ok(Probe {
            lease: pool::lease_beside(link, limits)?,
            question: CString::new(question).map_err(|error| failed(&error.to_string()))?,
            state: State::Connecting,
            answer: None,
            answered: false,
            wants_write: true,
        })
    }

    /// It has given an answer at some time.
    pub fn has_answered(&self) -> bool {
        self.answered
    }

    /// Asks again.
    pub fn ask(&mut self) -> Result<(), Trouble> {
        if self.state == State::Idle {
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Trouble> {
        let mut connection = get(self.lease)?;
        connection.send_query(&self.question)?;
        self.wants_write = !connection.flush()?;
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
        let mut connection = get(self.lease)?;
        if let Err(lost) = connection.consume_input() {
            return Err(connection.last_words().unwrap_or(lost).into());
        }
        self.wants_write = !connection.flush()?;
        loop {
            match connection.next_result() {
                ResultRead::Nothing => return Ok(None),
                ResultRead::Result(result) => self.answer = Some(cpu_time(result)?),
                ResultRead::Done => break,
            }
        }
        self.state = State::Idle;
        let answer = self.answer.take();
        self.answered |= answer.is_some();
        answer.map(Some).ok_or_else(|| failed("no answer"))
    }

    /// Goes on with connecting; true once the question is out.
    fn connect(&mut self) -> Result<bool, Trouble> {
        {
            let mut connection = get(self.lease)?;
            if !connection.is_connected() {
                if !connection.is_ready_for(self.wants_write) {
                    return Ok(false);
                }
                match connection.poll_connect() {
                    ConnectPoll::NeedRead => self.wants_write = false,
                    ConnectPoll::NeedWrite => self.wants_write = true,
                    ConnectPoll::Failed(error) => return Err(error.into()),
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
            lasting: None,
        })
    }

    /// Lets go of the connection; one that owes no answer can be used again.
    pub fn end(self, limits: PoolLimits) {
        pool::release(self.lease, self.state == State::Idle, limits);
    }
}

fn cpu_time(result: QueryResult) -> Result<u64, Trouble> {
    let result = result.into_ok()?;
    result
        .text(0, 0)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| failed("the process is gone"))
}
