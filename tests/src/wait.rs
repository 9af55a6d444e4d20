//! The one place where a test waits.

use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at. Short against every deadline, long against the cost of a
/// typical condition (one query on an open connection, well under a millisecond).
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The deadline for what should happen at once on an idle machine. Generous, because CI has two
/// cores for several servers.
pub const SOON: Duration = Duration::from_secs(60);

/// Returns as soon as `condition` holds; panics when it does not within `deadline`.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(deadline, what, || condition().then_some(()));
}

/// Returns the first value that `probe` yields; panics when there is none within `deadline`.
#[track_caller]
pub fn wait_for<T>(deadline: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(
            start.elapsed() < deadline,
            "waited {deadline:?} in vain: {what}"
        );
        thread::sleep(POLL_INTERVAL);
    }
}
