//! Reads the logs back, as far as the user may see them, and puts steps into words.

use super::id_text;
use crate::shm::logs::{NO_PROCESS, QUERIES, QueryEntry, STEPS, Step, StepEntry};
use crate::shm::running::{self, Kind, Seen};
use pgrx::pg_sys;
use std::collections::TryReserveError;

/// As for pg_stat_activity: one's own, and all for members of pg_read_all_stats, of which pg_monitor is
/// one.
pub struct Reader {
    user: pg_sys::Oid,
    sees_all: bool,
}

impl Reader {
    pub fn new() -> Self {
        // SAFETY: main thread, inside a transaction; looks in a cache of the catalog.
        unsafe {
            let user = pg_sys::GetUserId();
            let all = pg_sys::Oid::from(pg_sys::ROLE_PG_READ_ALL_STATS);
            Reader {
                user,
                sees_all: pg_sys::has_privs_of_role(user, all),
            }
        }
    }

    /// What the role does.
    pub fn sees(&self, role: u32) -> bool {
        // SAFETY: as above; a role that is gone is nobody's.
        self.sees_all || unsafe { pg_sys::has_privs_of_role(self.user, pg_sys::Oid::from(role)) }
    }
}

/// Ended queries, oldest first.
pub fn queries() -> Result<Vec<QueryEntry>, TryReserveError> {
    let reader = Reader::new();
    QUERIES.entries(|entry| reader.sees(entry.origin.user))
}

/// Steps, oldest first; of one query if it is given.
pub fn steps(query: Option<[u8; 16]>) -> Result<Vec<StepEntry>, TryReserveError> {
    let reader = Reader::new();
    STEPS.entries(|entry| {
        query.is_none_or(|query| query == entry.origin.query_id) && reader.sees(entry.origin.user)
    })
}

/// What runs now.
pub fn running(kind: Kind) -> Vec<Seen> {
    let reader = Reader::new();
    let mut seen = running::all(kind);
    seen.retain(|seen| reader.sees(seen.about.origin.user));
    seen
}

/// Stable word for a step.
pub fn word(step: Step) -> &'static str {
    match step {
        Step::Started => "started",
        Step::Connecting => "connecting",
        Step::Connected => "connected",
        Step::Announced => "announced",
        Step::Given => "task_given",
        Step::Done => "task_done",
        Step::NothingLeft => "nothing_left",
        Step::Delivered => "delivered",
        Step::Lost => "lost",
        Step::Refused => "refused",
        Step::Unavailable => "unavailable",
        Step::Stopped => "stopped",
        Step::Summary => "summary",
        Step::NotUsed => "not_used",
        Step::Ended => "ended",
    }
}

/// Stable word for the stage of a task, as ClickHouse's counters call them.
pub fn stage(entry: &StepEntry) -> Option<&'static str> {
    match entry.stage {
        1 => Some("own"),
        2 => Some("stolen_by_hash"),
        3 => Some("stolen_rest"),
        _ => None,
    }
}

/// Number of the process, if it is the step of one.
pub fn process(entry: &StepEntry) -> Option<i32> {
    (entry.process != NO_PROCESS).then_some(entry.process as i32)
}

/// Who did it, for people.
fn who(entry: &StepEntry) -> String {
    if !entry.replica.is_empty() {
        format!("replica \"{}\" link {}", entry.replica.get(), entry.process)
    } else if entry.process == 0 {
        "leader".to_owned()
    } else {
        format!("local worker {}", entry.process)
    }
}

/// The step in words.
pub fn message(entry: &StepEntry) -> String {
    let detail = entry.detail.get();
    let milliseconds = entry.amount as f64 / 1000.0;
    let (count, first) = (entry.count, entry.first);
    match entry.step {
        Step::Started => format!(
            "fragment {} starts: {count} granules, {} replicas, {detail}",
            entry.fragment, entry.amount
        ),
        Step::Connecting if entry.amount == 1 => format!("{} uses a kept connection", who(entry)),
        Step::Connecting => format!("{} connects", who(entry)),
        Step::Connected => format!("{} is connected", who(entry)),
        Step::Announced => format!(
            "{} announced itself after waiting {milliseconds:.3} ms for replay",
            who(entry)
        ),
        Step::Given => format!(
            "{} asked and got task {} of scan {}: granules {first} to {} ({})",
            who(entry),
            entry.task,
            entry.scan,
            u64::from(first) + count.saturating_sub(1),
            stage(entry).unwrap_or("")
        ),
        Step::Done if count == 0 => format!(
            "{} gave task {} of scan {} back before it had begun",
            who(entry),
            entry.task,
            entry.scan
        ),
        Step::Done => format!(
            "{} worked through task {} of scan {}: {count} granules",
            who(entry),
            entry.task,
            entry.scan
        ),
        Step::NothingLeft => format!("{} asked and got nothing", who(entry)),
        Step::Delivered => format!(
            "{} delivered {count} rows, {} bytes",
            who(entry),
            entry.amount
        ),
        Step::Lost => format!("{} was lost with {count} granules: {detail}", who(entry)),
        Step::Refused => format!("{} refused to take part: {detail}", who(entry)),
        Step::Unavailable => format!("{} was unavailable: {detail}", who(entry)),
        Step::Stopped => format!("{} was stopped", who(entry)),
        Step::Summary if entry.replica.is_empty() => {
            format!("this server read {count} granules: {detail}")
        }
        Step::Summary => format!(
            "replica \"{}\" read {count} granules: {detail}",
            entry.replica.get()
        ),
        Step::NotUsed => format!("replicas are not used: {detail}"),
        Step::Ended => format!("query {} {detail}", id_text(&entry.origin.query_id)),
    }
}
