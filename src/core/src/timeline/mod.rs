//! A picture of one query: a lane per process, and what it did when.
//!
//! `spans` turns the steps that the coordinator wrote down into spans of time, `page` draws them as a
//! page of HTML that needs nothing else. Nothing here reads a clock: times are microseconds of the
//! caller's.
//!
//! All steps were noted on the coordinator's server, so one clock rules them all. What a replica does
//! is therefore seen with the delay of the network.

mod page;
mod spans;

pub use page::{Caption, html};
pub use spans::{Lane, Span, SpanKind, lanes};

use crate::task_state::Stage;

/// What was noted about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection is being made; `reused`: it was kept from an earlier query.
    Connecting {
        reused: bool,
    },
    Connected,
    /// The replica is ready, after waiting so long for replay.
    Announced {
        replay_wait_us: u64,
    },
    Given {
        stage: Stage,
    },
    /// As far as the event's granules; the rest of the task was given back.
    Done,
    NothingLeft,
    Delivered,
    Lost,
    /// Refused or unavailable.
    LeftOut,
    Stopped,
}

/// One step, in the order of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at_us: i64,
    pub kind: Kind,
    /// Execution of a fragment within the query, from 1.
    pub fragment: u32,
    /// Number of the process; 0 is the leader.
    pub process: u32,
    /// Empty for a process of the coordinator's own server.
    pub replica: String,
    pub scan: u32,
    pub task: u32,
    pub first_granule: u32,
    pub granules: u32,
    /// For people.
    pub detail: String,
}
