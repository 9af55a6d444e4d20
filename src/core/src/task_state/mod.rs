//! The coordinator's state of one granule scan: who reads which granule, and who has delivered it.
//!
//! Plain data without pointers, laid over words that the caller provides: dynamic shared memory
//! when there are local workers, private memory otherwise. Several processes attach to the same
//! words; the caller holds one lock around every call, so nothing here is atomic. It reads no
//! clock: where time matters the caller passes microseconds of any monotonic origin. It knows no
//! link, no frame and no plan.
//!
//! Called by the granule scan (local processes), by the dispatch loop (on behalf of links), and by
//! the simulator in `tests/`, which runs this very code.
//!
//! Words: a *process* is one local worker, the leader, or one link; it works for one replica. It
//! *holds* a task until the task's rows have been passed on (delivered); it has *worked through* a
//! task when it has read all of it, which for a blocking fragment comes long before delivery.
//!
//! Protocol of a caller:
//! - A local process: [`TaskState::request_local`], then before every granule but the first
//!   [`TaskState::may_continue`] (both through [`LocalWork`]), and at its end `deliver_all`.
//! - A link: [`TaskState::request`] when it is idle, [`TaskState::request_ahead`] while it still works on its
//!   current task, until there is none, [`TaskState::worked`] when its TaskDone arrives, then as above.
//! - `None` from a request means "nothing for you now", even while `unassigned` is not 0: near the
//!   end a slow process stands back for faster ones that are at work. After every `lose`, and when
//!   `give_back` returned granules, idle processes must ask again; when nobody is at work and
//!   `unassigned` is not 0, somebody has to. The scan is complete when `undelivered` is 0.
//! - For an idle process, [`TaskState::shrink_candidate`] now and then, if a link is to be asked
//!   to give something back.
//!
//! Invariants:
//! - A granule is unassigned (in its segment's remaining range, or an orphan), or part of exactly
//!   one task held by exactly one process, or delivered. No granule is ever read twice at once.
//! - A task is one contiguous run inside one segment; a segment never crosses a 1 GiB part.
//! - No request takes a step that is linear in the table; `lose` and `verify_complete` do.
//! - Task ids only grow, so that a result that comes late, after its task was taken away, is told
//!   from the result of the next attempt.
//!
//! Contract of the lock and of what lies outside it (`tests/shared` holds it against model checkers):
//! - Every call, `attach` included, is made with the one lock held, exclusively. A call takes a bounded
//!   time, never waits, allocates or panics, and leaves the state whole also when it returns an error;
//!   so the lock may be a spin lock, and no process that dies between two calls leaves it half changed.
//! - The blocks of a granule are read without the lock, by the process that holds it, from the return
//!   of the call that gave it (`request`, `may_continue`) to the process's next call. That is why
//!   holding the lock at both ends is all the ordering that readers need, and why a task can be cut
//!   behind the granule that is being read, never at it: the *end mark* of a task is its granule count
//!   in the process's slot, which others lower under the lock and the process reads in `may_continue`.
//! - There is no atomic here. Progress that others see is added up outside the lock, from differences
//!   that [`TaskState::take_progress`] hands out under it, so the sum is right in whatever order they
//!   arrive.
//! - A link is nobody of its own: the leader makes its calls. Only the leader calls `lose`, `revive`,
//!   `give_back`, `shrink_candidate` and `set_replica_live`, and `verify_complete` after all workers
//!   have ended.
//!
//! How it is laid out: `layout`. Lists of segments: `queues`. Granules that came back: `orphans`.
//! Tasks that wait at a process: `ahead`. The stages of a request: `assign`. Speed and task size: `pace`. Ends of tasks: `deliver`.
//! Taking back what is in flight: `shrink`. A local process between its calls: `local`.

mod ahead;
mod assign;
mod deliver;
mod layout;
mod local;
mod orphans;
mod pace;
mod queues;
mod shrink;

use serde::{Deserialize, Serialize};

pub use crate::rendezvous::{MAX_REPLICAS, ReplicaSpec};
pub use layout::{MAX_GRANULES, MAX_PROCESSES, TaskState, size_words};
pub use local::LocalWork;
pub use shrink::Shrink;

/// Blocks in a part: PostgreSQL's RELSEG_SIZE, 1 GiB of 8 KiB blocks.
pub const PART_BLOCKS: u32 = 131_072;

/// What is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanSpec {
    /// Oid of the database; with `relfilenode` it names the table to the hash.
    pub database: u32,
    pub relfilenode: u32,
    /// Blocks of the table, counted once, after the snapshot was taken.
    pub blocks: u32,
    /// Blocks per granule: a power of two, 1..=131072.
    pub granule_blocks: u32,
    /// Granules per segment: 0 = by table size, else a power of two; capped at one part.
    pub segment_granules: u32,
}

/// How a task reached its process; the counters have ClickHouse's names for the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Its replica owns the segment.
    Own,
    /// Its replica is the segment's stealer.
    StolenByHash,
    /// Anything else: orphans, a dead replica's segments, the longest queue, work in flight.
    StolenRest,
}

/// The answer to a request: granules `start_granule .. start_granule + granules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub id: u32,
    pub start_granule: u32,
    pub granules: u32,
    pub stage: Stage,
}

impl Task {
    /// First block and number of blocks, given the granule size and the blocks of the table (the
    /// table's last granule may be short).
    pub fn block_range(&self, granule_blocks: u32, blocks: u32) -> (u32, u32) {
        let start = self
            .start_granule
            .saturating_mul(granule_blocks)
            .min(blocks);
        let count = self
            .granules
            .saturating_mul(granule_blocks)
            .min(blocks - start);
        (start, count)
    }

    /// The granule after the last one.
    pub fn end_granule(&self) -> u32 {
        self.start_granule.saturating_add(self.granules)
    }
}

/// What one process did; granule counts are of tasks held now or delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    /// Requests made, answered with a task or not.
    pub requests: u32,
    /// Tasks received, lost ones included.
    pub tasks: u32,
    pub own: u32,
    pub by_hash: u32,
    pub rest: u32,
    /// Granules it held and lost.
    pub lost: u32,
    /// Granules it held and gave back at the request of others.
    pub given_back: u32,
}

/// The sums that [`TaskState::verify_complete`] has proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub selected: u32,
    pub own: u32,
    pub by_hash: u32,
    pub rest: u32,
}

/// Everything that the task state refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    #[error("number of replicas is {given}, must be between 1 and {max}")]
    ReplicaCount { given: usize, max: usize },
    #[error("replica {replica} has the same name as one before it")]
    DuplicateReplica { replica: usize },
    #[error("number of processes is {given}, must be between 1 and {max}")]
    ProcessCount { given: usize, max: usize },
    #[error("process {process} belongs to replica {replica}, which does not exist")]
    ProcessReplica { process: usize, replica: u16 },
    #[error("granule size of {0} blocks is not a power of two between 1 and {PART_BLOCKS}")]
    GranuleBlocks(u32),
    #[error("segment size of {0} granules is not a power of two")]
    SegmentGranules(u32),
    #[error("number of granules is {granules}, must be at most {max}")]
    GranuleCount { granules: u32, max: u32 },
    #[error("memory of the task state has {given} words, needs {needed}")]
    MemoryTooSmall { given: usize, needed: usize },
    #[error("memory holds no task state")]
    NotTaskState,
    #[error("task state has layout version {found}, expected {expected}")]
    LayoutVersion { found: u32, expected: u32 },
    #[error("task state is damaged: {0}")]
    Damaged(&'static str),
    #[error("process {0} does not exist")]
    UnknownProcess(u16),
    #[error("process {process} was lost")]
    LostProcess { process: u16 },
    #[error("process {process} does not hold task {task}")]
    NotHeld { process: u16, task: u32 },
    #[error("task {task} of process {process} was already delivered")]
    AlreadyDelivered { process: u16, task: u32 },
    #[error("task {task} has {held} granules, process {process} reported {reported}")]
    WrongExtent {
        process: u16,
        task: u32,
        held: u32,
        reported: u32,
    },
    #[error("granule {granule} was not delivered")]
    Undelivered { granule: u32 },
    #[error("scan counted {counted} granules, selected {selected}")]
    WrongTotal { counted: u64, selected: u32 },
}
