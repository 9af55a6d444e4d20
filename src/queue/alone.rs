//! A query that was to leave this server's own processes out (`parallel_replicas_local_plan` = `off`), and
//! has to be executed here after all, because no replica can be used.
//!
//! It was admitted without the workers that PostgreSQL would take. It holds slots, so it must not wait for
//! more: it takes those that are free and that nobody waits for, and starts no more workers than that.

use super::{holders, need, settings};
use pgrx::pg_sys;

/// How many of `wanted` workers it starts. `links` were counted for the driver marks instead of them.
///
/// # Safety
/// The state is that of a query that is executed.
pub unsafe fn workers(estate: *const pg_sys::EState, wanted: i32, links: u32) -> i32 {
    let Some((held, _)) = holders::granted(estate) else {
        return wanted;
    };
    let wanted = match settings::marks() {
        Some(_) => wanted.min(i32::try_from(links).unwrap_or(i32::MAX)),
        None => wanted,
    };
    // SAFETY: as the caller says.
    let needed = unsafe { need::without_replicas((*estate).es_plannedstmt) }.slots();
    if needed <= held || wanted <= 0 {
        return wanted.max(0);
    }
    let more = holders::grow(estate, needed).saturating_sub(held);
    let share = i64::from(wanted) * i64::from(more) / i64::from(needed - held);
    share.min(i64::from(wanted)) as i32
}
