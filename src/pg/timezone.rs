//! A fingerprint of the session time zone's rules.

use pgrx::pg_sys;
use std::cell::Cell;
use std::hash::Hasher;
use xxhash_rust::xxh3::Xxh3;

thread_local! {
    static KNOWN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// Hash of the offsets from UTC at weekly steps from 1902 to 2037, and of the abbreviations. Two
/// servers with other time zone data differ in it where it matters; computed once per zone and
/// session.
pub fn fingerprint() -> u64 {
    const WEEK: i64 = 7 * 24 * 3600;
    const RANGE: i64 = 1 << 31;
    // SAFETY: the session's zone is always set; pg_localtime answers a static struct or null.
    unsafe {
        let zone = pg_sys::session_timezone;
        let (known_zone, known) = KNOWN.get();
        if known_zone == zone as usize && known != 0 {
            return known;
        }
        let mut hash = Xxh3::new();
        let mut at: i64 = -RANGE;
        while at < RANGE {
            let broken_down = pg_sys::pg_localtime(&at, zone);
            if !broken_down.is_null() {
                hash.write_i64((*broken_down).tm_gmtoff as i64);
                hash.write_i32((*broken_down).tm_isdst);
            }
            at += WEEK;
        }
        let value = hash.finish() | 1;
        KNOWN.set((zone as usize, value));
        value
    }
}
