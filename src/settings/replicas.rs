//! Settings that say which replicas a query uses, and of the monitor that watches them.
//!
//! The session settings keep ClickHouse's names.

use super::{EnumSetting, define_session_integer, entry};
use parallel_replicas_core::balance::{Algorithm, ErrorRules};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, pg_sys};
use std::cell::Cell;
use std::ffi::{CString, c_void};

static LOAD_BALANCING: EnumSetting = EnumSetting(Cell::new(Algorithm::Random as i32));

struct Entries([pg_sys::config_enum_entry; 9]);

// SAFETY: the table is read only and points to static strings.
unsafe impl Sync for Entries {}

static LOAD_BALANCING_ENTRIES: Entries = Entries([
    entry(c"random", Algorithm::Random as i32, false),
    entry(
        c"nearest_hostname",
        Algorithm::NearestHostname as i32,
        false,
    ),
    entry(
        c"hostname_levenshtein_distance",
        Algorithm::HostnameLevenshteinDistance as i32,
        false,
    ),
    entry(
        c"hostname_longest_common_prefix",
        Algorithm::HostnameLongestCommonPrefix as i32,
        false,
    ),
    entry(
        c"hostname_longest_common_suffix",
        Algorithm::HostnameLongestCommonSuffix as i32,
        false,
    ),
    entry(c"in_order", Algorithm::InOrder as i32, false),
    entry(c"first_or_random", Algorithm::FirstOrRandom as i32, false),
    entry(c"round_robin", Algorithm::RoundRobin as i32, false),
    pg_sys::config_enum_entry {
        name: std::ptr::null(),
        val: 0,
        hidden: false,
    },
]);

static FIRST_OFFSET: GucSetting<i32> = GucSetting::<i32>::new(0);
static ERROR_HALF_LIFE: GucSetting<i32> = GucSetting::<i32>::new(60);
static ERROR_CAP: GucSetting<i32> = GucSetting::<i32>::new(1000);
static IGNORED_ERRORS: GucSetting<i32> = GucSetting::<i32>::new(0);
static REPLICA_TAG: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static MONITOR_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(2000);
static MONITOR_USER: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

pub(super) fn init() {
    // SAFETY: called from the postmaster's library load, on the main thread; names and tables are
    // static.
    unsafe {
        pg_sys::DefineCustomEnumVariable(
            c"load_balancing".as_ptr(),
            c"Sets which replicas of a cluster a query prefers.".as_ptr(),
            c"It matters where max_parallel_replicas is less than the number of replicas.".as_ptr(),
            LOAD_BALANCING.0.as_ptr(),
            Algorithm::Random as i32,
            LOAD_BALANCING_ENTRIES.0.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            (GucFlags::DISALLOW_IN_FILE | GucFlags::DISALLOW_IN_AUTO_FILE).bits(),
            None,
            None,
            None,
        );
    }
    define_session_integer(
        c"load_balancing_first_offset",
        c"Sets which replica first_or_random prefers, counted from 0 in the order of names.",
        c"Taken modulo the number of replicas.",
        &FIRST_OFFSET,
        0,
        GucFlags::empty(),
    );
    define_session_integer(
        c"distributed_replica_error_half_life",
        c"Sets the time in which a replica's count of errors halves.",
        c"0 forgets errors at once.",
        &ERROR_HALF_LIFE,
        0,
        GucFlags::UNIT_S,
    );
    define_session_integer(
        c"distributed_replica_error_cap",
        c"Sets the largest number of errors that is counted for a replica.",
        c"",
        &ERROR_CAP,
        1,
        GucFlags::empty(),
    );
    define_session_integer(
        c"distributed_replica_max_ignored_errors",
        c"Sets the number of a replica's errors that do not make other replicas preferred.",
        c"",
        &IGNORED_ERRORS,
        0,
        GucFlags::empty(),
    );
    // SAFETY: the function lives as long as the process, and does not fail.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"parallel_replicas.replica_tag",
            c"Sends queries that have the same tag to the same replicas.",
            c"The tag is hashed to an order of the replicas, of which max_parallel_replicas are \
              used. Empty: load_balancing decides.",
            &REPLICA_TAG,
            GucContext::Userset,
            GucFlags::empty(),
            None,
            Some(tag_changes),
            None,
        );
    }
    GucRegistry::define_int_guc(
        c"parallel_replicas.monitor_interval",
        c"Sets the time between two looks of the monitor at each replica.",
        c"A replica that does not answer within this time is left out. 0 switches the monitor off.",
        &MONITOR_INTERVAL,
        0,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"parallel_replicas.monitor_user",
        c"Names the role whose user mappings the monitor uses.",
        c"Empty: the owner of the extension.",
        &MONITOR_USER,
        GucContext::Sighup,
        GucFlags::empty(),
    );
}

pub fn load_balancing() -> Algorithm {
    let value = LOAD_BALANCING.0.get();
    Algorithm::ALL
        .iter()
        .map(|(algorithm, _)| *algorithm)
        .find(|algorithm| *algorithm as i32 == value)
        .unwrap_or(Algorithm::Random)
}

pub fn load_balancing_first_offset() -> u64 {
    FIRST_OFFSET.get().max(0) as u64
}

pub fn error_rules() -> ErrorRules {
    ErrorRules {
        half_life_s: ERROR_HALF_LIFE.get().max(0) as u64,
        cap: ERROR_CAP.get().max(1) as u32,
        ignored: IGNORED_ERRORS.get().max(0) as u32,
    }
}

/// Empty: none.
pub fn replica_tag() -> String {
    text(&REPLICA_TAG)
}

pub fn has_replica_tag() -> bool {
    REPLICA_TAG.get().is_some_and(|tag| !tag.is_empty())
}

/// A plan that was made under another tag, or none, says another thing about where it is executed.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn tag_changes(_new: *const std::ffi::c_char, _extra: *mut c_void) {
    // SAFETY: marks this session's plans as out of date; does nothing where there are none.
    unsafe { pg_sys::ResetPlanCache() };
}

/// None: the monitor is off.
pub fn monitor_interval_ms() -> Option<u64> {
    let interval = MONITOR_INTERVAL.get();
    (interval > 0).then_some(interval as u64)
}

/// Empty: the extension's owner.
pub fn monitor_user() -> String {
    text(&MONITOR_USER)
}

fn text(setting: &GucSetting<Option<CString>>) -> String {
    setting
        .get()
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
