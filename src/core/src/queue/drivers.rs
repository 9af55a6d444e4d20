//! How many processes an admitted query gets when many are at work already.
//!
//! A driver is a process of a running query. Above the low-water mark queries get fewer of them,
//! the fewer the nearer the high-water mark is; at the high-water mark each part of a query runs in
//! one. A query that is alone is never cut below what the high-water mark itself allows.

/// The marks. `low` of None: only the high-water mark counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub high: i64,
    pub low: Option<i64>,
}

impl Marks {
    /// From the settings: below 0 is off, and 0 stands for 16 (high) and 8 (low) per core.
    pub fn from_settings(high: i32, low: i32, cores: u32) -> Option<Self> {
        let resolve = |setting: i32, per_core: i64| match setting {
            i32::MIN..0 => None,
            0 => Some(i64::from(cores.max(1)) * per_core),
            _ => Some(i64::from(setting)),
        };
        Some(Marks {
            high: resolve(high, 16)?,
            low: resolve(low, 8),
        })
    }
}

/// Processes per part (Gather, for example) of a query that is admitted now.
///
/// `current` processes are at work; the queries that are admitted together have `batch_parts` parts,
/// this one has `parts`, and each part would like `wanted` processes. `alone`: nobody else is
/// admitted with it.
pub fn processes_per_part(
    marks: Marks,
    current: i64,
    parts: i64,
    batch_parts: i64,
    wanted: i64,
    alone: bool,
) -> i64 {
    let batch_parts = batch_parts.max(1);
    let wanted = wanted.max(1);
    let within = |mark: i64| {
        if current + batch_parts >= mark {
            1
        } else {
            ((mark - current) / batch_parts).clamp(1, wanted)
        }
    };
    if current + parts >= marks.high {
        return 1;
    }
    let processes = within(marks.high);
    if processes <= 1 || (current <= 0 && alone) {
        return processes;
    }
    let Some(low) = marks.low.filter(|low| *low < marks.high) else {
        return processes;
    };
    let over = current + batch_parts * processes - low;
    if over <= 0 {
        return processes;
    }
    let room = marks.high - low;
    (processes * (room - over) / room).max(within(low))
}
