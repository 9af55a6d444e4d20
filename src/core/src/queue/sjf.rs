//! Shortest job first, with aging that cannot starve.
//!
//! A query's score is its slots less a credit for its age; the lowest score goes first. The credit
//! has two parts. One grows with the logarithm of the age and helps in the first seconds. It alone
//! would starve: within a timeout of 300 s it never exceeds 11 slots. The other grows evenly and is
//! worth all slots after a quarter of the timeout, so that whoever arrives more than a quarter of the
//! timeout later never overtakes, whatever the sizes are.

/// Ages count in steps of this.
const STEP_MS: u64 = 100;

/// Share of the timeout after which age outweighs any size.
const QUARTERS: u64 = 4;

/// The timeout that aging takes where there is none.
const TIMEOUT_DEFAULT_MS: u64 = 300_000;

/// Scores have three decimals.
const SCALE: i64 = 1000;

/// Credit, in slots, of the logarithmic part.
pub fn early_credit(age_ms: u64) -> i64 {
    i64::from((age_ms / STEP_MS).max(1).ilog2())
}

/// Score, in thousandths of a slot: the lowest goes first.
pub fn score(slots: u32, total: u32, age_ms: u64, timeout_ms: u64) -> i64 {
    let timeout = if timeout_ms == 0 {
        TIMEOUT_DEFAULT_MS
    } else {
        timeout_ms
    };
    let age = (age_ms / STEP_MS * STEP_MS).min(timeout);
    let even = u128::from(total) * u128::from(QUARTERS * SCALE as u64 * age) / u128::from(timeout);
    i64::from(slots.min(total)) * SCALE - early_credit(age) * SCALE - even as i64
}
