//! A fingerprint of the session time zone's rules.

use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;
use std::hash::Hasher;
use xxhash_rust::xxh3::Xxh3;

thread_local! {
    static KNOWN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// Where Debian's and most other servers have the source of their time zone data.
const SOURCE: &str = "/usr/share/zoneinfo/tzdata.zi";

/// Hash of the session zone's offsets and abbreviations, day by day from 1902 to 2037, and of the
/// server's time zone source where there is one, for the zones that expressions name. Two servers
/// with other time zone data differ in it. Computed once per zone and session.
pub fn fingerprint() -> u64 {
    const DAY: i64 = 24 * 3600;
    const RANGE: i64 = 1 << 31;
    // SAFETY: the session's zone is always set; pg_localtime answers a static struct or null, whose
    // abbreviation is a C string or null.
    unsafe {
        let zone = pg_sys::session_timezone;
        let (known_zone, known) = KNOWN.get();
        if known_zone == zone as usize && known != 0 {
            return known;
        }
        let mut hash = Xxh3::new();
        let mut last = (i64::MIN, 0);
        let mut at: i64 = -RANGE;
        while at < RANGE {
            let broken_down = pg_sys::pg_localtime(&at, zone);
            if !broken_down.is_null() {
                let now = ((*broken_down).tm_gmtoff as i64, (*broken_down).tm_isdst);
                if now != last {
                    hash.write_i64(at);
                    hash.write_i64(now.0);
                    hash.write_i32(now.1);
                    if !(*broken_down).tm_zone.is_null() {
                        hash.write(CStr::from_ptr((*broken_down).tm_zone).to_bytes());
                    }
                    last = now;
                }
            }
            at += DAY;
        }
        if let Ok(source) = std::fs::read(SOURCE) {
            hash.write(&source);
        }
        let value = hash.finish() | 1;
        KNOWN.set((zone as usize, value));
        value
    }
}
