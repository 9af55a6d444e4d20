//! The query log, the text log, and what runs now: entries of fixed size, so that they can lie in
//! shared memory.
//!
//! Who writes and reads them is the room `log`. Sizes are settings that are fixed at server start.

use super::ring::Ring;
use crate::settings;
use pgrx::pg_sys;

/// Ended queries.
pub static QUERIES: Ring<QueryEntry> = Ring::new(c"parallel_replicas_query_log");
/// Steps of queries.
pub static STEPS: Ring<StepEntry> = Ring::new(c"parallel_replicas_text_log");

/// Text of at most `N` bytes; more is cut off at the end of a character.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text<const N: usize> {
    length: u32,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    pub const EMPTY: Self = Text {
        length: 0,
        bytes: [0; N],
    };

    pub fn set(&mut self, text: &str) {
        let mut end = text.len().min(N);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        self.length = end as u32;
    }

    pub fn new(text: &str) -> Self {
        let mut new = Self::EMPTY;
        new.set(text);
        new
    }

    pub fn get(&self) -> String {
        let length = (self.length as usize).min(N);
        String::from_utf8_lossy(&self.bytes[..length]).into_owned()
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Who does something for which query.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Origin {
    pub query_id: [u8; 16],
    pub user: u32,
    pub database: u32,
    pub pid: i32,
}

/// How a query ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ending {
    Finished,
    /// By an error or a cancel.
    Failed,
}

/// What one execution of a fragment comes to, or all of a query.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Totals {
    pub replicas_planned: u32,
    pub replicas_used: u32,
    pub workers_launched: u32,
    pub selected: u64,
    pub own: u64,
    pub by_hash: u64,
    pub rest: u64,
    pub lost: u64,
    pub rows: u64,
    pub bytes: u64,
    /// The longest wait of a replica until it had replayed far enough.
    pub replay_wait_us: u64,
    /// Time that the coordinator waited for others.
    pub wait_us: u64,
}

impl Totals {
    /// Adds another fragment's.
    pub fn add(&mut self, other: &Totals) {
        self.replicas_planned = self.replicas_planned.max(other.replicas_planned);
        self.replicas_used = self.replicas_used.max(other.replicas_used);
        self.workers_launched = self.workers_launched.max(other.workers_launched);
        self.selected += other.selected;
        self.own += other.own;
        self.by_hash += other.by_hash;
        self.rest += other.rest;
        self.lost += other.lost;
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.replay_wait_us = self.replay_wait_us.max(other.replay_wait_us);
        self.wait_us += other.wait_us;
    }
}

/// One ended query.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QueryEntry {
    pub origin: Origin,
    pub ending: Ending,
    /// PostgreSQL's microseconds since 2000.
    pub start: i64,
    pub end: i64,
    /// `queryid` of pg_stat_statements, 0 if it is not computed.
    pub statement_id: i64,
    /// Executions of a ParallelReplicas node.
    pub fragments: u32,
    pub totals: Totals,
    /// Slots of the query queue, 0 if it did not queue.
    pub slots: u32,
    /// How long it waited for them.
    pub pending_ms: u64,
    /// Code and sentence of why replicas were not used.
    pub reason: Text<32>,
    pub reason_text: Text<188>,
    pub settings: Text<380>,
    pub text: Text<1024>,
}

/// Steps of a query, and what the numbers of a [`StepEntry`] mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// `count`: granules; `amount`: replicas; detail: a summary.
    Started,
    /// A connection is being made, or one of the session's is used again (`amount` 1).
    Connecting,
    Connected,
    /// `amount`: microseconds that the replica waited for replay.
    Announced,
    /// A task: `task`, granules `first .. first + count`, `stage`.
    Given,
    /// The task was worked through, as far as `count` granules; the rest was given back.
    Done,
    /// Nothing is left for the process.
    NothingLeft,
    /// The fragment has ended; `count`: rows, `amount`: bytes.
    Delivered,
    /// `count`: granules that went back.
    Lost,
    Refused,
    Unavailable,
    /// Nothing was left when it was ready, or no more rows were wanted.
    Stopped,
    /// What a participant did in all: `count` granules; detail: by stage.
    Summary,
    /// The query was executed on this server alone; detail: why.
    NotUsed,
    Ended,
}

/// One step.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StepEntry {
    pub origin: Origin,
    pub time: i64,
    pub step: Step,
    /// Number of the process, or [`NO_PROCESS`].
    pub process: u32,
    /// Number of the execution of a fragment within the query, from 1.
    pub fragment: u32,
    pub scan: u32,
    /// 0 none, 1 own, 2 stolen by hash, 3 stolen rest.
    pub stage: u32,
    pub task: u32,
    pub first: u32,
    pub count: u64,
    pub amount: u64,
    pub trace: bool,
    pub replica: Text<60>,
    pub detail: Text<188>,
}

/// A step of no process in particular.
pub const NO_PROCESS: u32 = u32::MAX;

impl StepEntry {
    /// A step without numbers.
    pub fn new(origin: Origin, step: Step) -> Self {
        StepEntry {
            origin,
            // SAFETY: reads the clock.
            time: unsafe { pg_sys::GetCurrentTimestamp() },
            step,
            process: NO_PROCESS,
            fragment: 0,
            scan: 0,
            stage: 0,
            task: 0,
            first: 0,
            count: 0,
            amount: 0,
            trace: false,
            replica: Text::EMPTY,
            detail: Text::EMPTY,
        }
    }
}

/// From the shared memory request hook.
pub(super) fn request() {
    QUERIES.request(settings::query_log_size());
    STEPS.request(settings::text_log_size());
    super::running::request();
}

/// From the shared memory startup hook.
pub(super) fn create() {
    QUERIES.create(settings::query_log_size());
    STEPS.create(settings::text_log_size());
    super::running::create();
}
