//! Counters since the server started or they were reset, one atomic each.
//!
//! The names are those of ClickHouse's `ParallelReplicas*` events where the same thing is counted.

use pgrx::pg_sys;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

macro_rules! events {
    ($($name:ident, $description:literal;)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Event { $($name,)* }

        /// Name and description of each, in order.
        pub const DESCRIPTIONS: &[(&str, &str)] =
            &[$((concat!("ParallelReplicas", stringify!($name)), $description),)*];
    };
}

events! {
    QueryCount, "Fragments that were started with replicas.";
    WholeQueryCount, "Queries that a replica executed as a whole.";
    AvailableCount, "Replicas of the cluster at the start of those fragments, summed.";
    UnavailableCount, "Replicas that could not be reached or refused to take part.";
    UsedCount, "Replicas that contributed to a fragment, summed.";
    NumRequests, "Requests for a task that this server answered, from replicas and its own workers.";
    HandleRequestMicroseconds, "Time spent on answering replicas' requests.";
    HandleAnnouncementMicroseconds, "Time spent on handling replicas' announcements.";
    CollectingOwnedSegmentsMicroseconds, "Time spent on requests that were answered with the participant's own granules.";
    StealingByHashMicroseconds, "Time spent on requests that were answered with granules stolen by hash.";
    StealingLeftoversMicroseconds, "Time spent on requests that were answered with other granules, or none.";
    ProcessingPartsMicroseconds, "Time spent on dividing tables into granules and giving them owners.";
    ReadAssignedMarks, "Granules that a participant read because it owns them.";
    ReadAssignedForStealingMarks, "Granules that a participant read because the hash made it their stealer.";
    ReadUnassignedMarks, "Granules that a participant read although neither owner nor stealer.";
    ReadByReplicasMarks, "Of those granules, the ones that replicas read.";
    LostCount, "Links that were lost after they had announced themselves.";
    RetriedMarks, "Granules that a lost link held and somebody else read.";
    GivenBackMarks, "Granules that a participant held and gave back for others to read.";
    RefusedCount, "Links whose replica refused to take part.";
    ReplayWaitMicroseconds, "Time that replicas waited until they had replayed the query's WAL position.";
    RowsReceived, "Rows received from replicas.";
    BytesReceived, "Bytes of rows received from replicas.";
    LocalFallbackCount, "Fragments that were planned with replicas and executed without.";
    ServedCount, "On a replica: fragments that it executed for a coordinator.";
    ServedRefusedCount, "On a replica: fragments that it refused.";
    ServedReplayWaitMicroseconds, "On a replica: time it waited for replay.";
    AnnouncementMicroseconds, "On a replica: time from a fragment's arrival to its start, without the wait for replay.";
    ReadRequestMicroseconds, "On a replica: time it waited for its next task.";
    ReadMarks, "On a replica: granules it read for coordinators.";
    QueryLogOverwritten, "Entries of the query log that newer ones took the place of.";
    TextLogOverwritten, "Entries of the text log that newer ones took the place of.";
}

/// Number of counters.
pub const COUNT: usize = DESCRIPTIONS.len();

/// The counters in shared memory.
#[repr(C)]
pub struct Events {
    values: [AtomicU64; COUNT],
    /// PostgreSQL's microseconds since 2000.
    reset_at: AtomicI64,
}

impl Events {
    /// The counting starts now.
    pub(super) fn start(&self) {
        // SAFETY: reads the clock.
        let now = unsafe { pg_sys::GetCurrentTimestamp() };
        self.reset_at.store(now, Ordering::Relaxed);
    }
}

/// Sets all counters to 0. What is added meanwhile may count before or after.
pub fn reset() {
    if let Some(shared) = super::shared() {
        for value in &shared.events.values {
            value.store(0, Ordering::Relaxed);
        }
        shared.events.start();
    }
}

/// When counting began, in PostgreSQL's microseconds since 2000.
pub fn reset_at() -> i64 {
    super::shared().map_or(0, |shared| shared.events.reset_at.load(Ordering::Relaxed))
}

/// Adds to a counter; nothing without preload.
pub fn add(event: Event, amount: u64) {
    if amount > 0
        && let Some(shared) = super::shared()
    {
        shared.events.values[event as usize].fetch_add(amount, Ordering::Relaxed);
    }
}

/// All values, in the order of [`DESCRIPTIONS`].
pub fn values() -> Vec<u64> {
    super::shared().map_or_else(Vec::new, |shared| {
        shared
            .events
            .values
            .iter()
            .map(|value| value.load(Ordering::Relaxed))
            .collect()
    })
}
