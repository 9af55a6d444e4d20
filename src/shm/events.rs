//! Counters since the server started, one atomic each.
//!
//! The names are those of ClickHouse's `ParallelReplicas*` events where the same thing is counted.

use std::sync::atomic::{AtomicU64, Ordering};

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
    AvailableCount, "Replicas of the cluster at the start of those fragments, summed.";
    UnavailableCount, "Replicas that could not be reached or refused to take part.";
    UsedCount, "Replicas that contributed to a fragment, summed.";
    NumRequests, "Requests for a task that this server answered, from replicas and its own workers.";
    HandleRequestMicroseconds, "Time spent on answering replicas' requests.";
    HandleAnnouncementMicroseconds, "Time spent on handling replicas' announcements.";
    ReadAssignedMarks, "Granules that a participant read because it owns them.";
    ReadAssignedForStealingMarks, "Granules that a participant read because the hash made it their stealer.";
    ReadUnassignedMarks, "Granules that a participant read although neither owner nor stealer.";
    LostCount, "Links that were lost after they had announced themselves.";
    RetriedMarks, "Granules that a lost link held and somebody else read.";
    RefusedCount, "Links whose replica refused to take part.";
    ReplayWaitMicroseconds, "Time that replicas waited until they had replayed the query's WAL position.";
    RowsReceived, "Rows received from replicas.";
    BytesReceived, "Bytes of rows received from replicas.";
    LocalFallbackCount, "Fragments that were planned with replicas and executed without.";
    ServedCount, "On a replica: fragments that it executed for a coordinator.";
    ServedRefusedCount, "On a replica: fragments that it refused.";
    ServedReplayWaitMicroseconds, "On a replica: time it waited for replay.";
    ReadRequestMicroseconds, "On a replica: time it waited for its next task.";
    ReadMarks, "On a replica: granules it read for coordinators.";
}

/// Number of counters.
pub const COUNT: usize = DESCRIPTIONS.len();

/// The counters in shared memory.
#[repr(C)]
pub struct Events {
    values: [AtomicU64; COUNT],
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
