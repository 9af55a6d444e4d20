//! Which servers this session could not reach lately.
//!
//! A server that does not answer costs a query nothing but a connection attempt, yet there is no
//! point in an attempt by every query. After a failure the session waits one second before the next
//! attempt, doubling up to half a minute, unless the monitor has had an answer meanwhile.

use crate::pg::wait::now_micros;
use crate::shm::monitor::{self, Key};
use std::cell::RefCell;
use std::collections::HashMap;

const FIRST_PAUSE_US: u64 = 1_000_000;
const LONGEST_PAUSE_US: u64 = 30_000_000;

struct Trouble {
    pause_us: u64,
    retry_at: u64,
    /// A PostgreSQL timestamp, to compare with the monitor's.
    failed_at: i64,
}

thread_local! {
    static TROUBLES: RefCell<HashMap<Key, Trouble>> = RefCell::default();
}

/// Milliseconds until an attempt is due; None if it is.
pub fn retry_in_ms(replica: Key) -> Option<u64> {
    let now = now_micros();
    TROUBLES.with_borrow(|troubles| {
        let trouble = troubles.get(&replica)?;
        let left = trouble.retry_at.checked_sub(now)?;
        let entry = monitor::look(&[replica]).pop().flatten();
        if entry.is_some_and(|entry| entry.probe.answered_at > trouble.failed_at) {
            return None;
        }
        (left > 0).then_some(left / 1000 + 1)
    })
}

pub fn failed(replica: Key) {
    let now = now_micros();
    TROUBLES.with_borrow_mut(|troubles| {
        let trouble = troubles.entry(replica).or_insert(Trouble {
            pause_us: FIRST_PAUSE_US / 2,
            retry_at: 0,
            failed_at: 0,
        });
        trouble.pause_us = (trouble.pause_us * 2).min(LONGEST_PAUSE_US);
        trouble.retry_at = now + trouble.pause_us;
        trouble.failed_at = monitor::now();
    });
}

pub fn succeeded(replica: Key) {
    TROUBLES.with_borrow_mut(|troubles| troubles.remove(&replica));
}
