//! All settings, read by the main thread only.
//!
//! Two families. The session settings that users type keep their bare names; PostgreSQL reads
//! postgresql.conf before it loads the library, so a bare name there would stop the server at its
//! next start, and they therefore refuse the file and ALTER SYSTEM. Everything else is
//! `parallel_replicas.*` and may stand in postgresql.conf.

pub mod replicas;

use parallel_replicas_core::list;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum, pg_sys};
use std::cell::Cell;
use std::ffi::{CStr, CString};

/// `enable_parallel_replicas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// PostgreSQL as if the extension were not there.
    Off,
    /// Replicas take part where the planner finds it cheaper; silent otherwise.
    On,
    /// Replicas take part wherever a fragment can be shipped; an error where it cannot.
    Force,
}

/// `parallel_replicas.log_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, PostgresGucEnum)]
pub enum LogLevel {
    /// Nothing is kept.
    #[name = c"off"]
    Off,
    /// Queries, and a few steps of each.
    #[name = c"summary"]
    Summary,
    /// Every request and answer too, for `query_timeline`.
    #[name = c"trace"]
    Trace,
}

/// `parallel_replicas.debug_assignment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum Assignment {
    /// The same owners in every query.
    #[name = c"hash"]
    Hash,
    /// Other owners in every query, to measure what equal ones are worth.
    #[name = c"random"]
    Random,
    /// Nobody gets the last granule, so that the check at the end of a query fails it.
    #[name = c"incomplete"]
    Incomplete,
}

/// A setting's storage that PostgreSQL writes through a raw pointer.
struct EnumSetting(Cell<i32>);

// SAFETY: PostgreSQL backends are single-threaded, and `mode` asserts through pgrx's settings that
// it runs on that thread.
unsafe impl Sync for EnumSetting {}

static MODE: EnumSetting = EnumSetting(Cell::new(0));

/// `config_enum_entry` holds raw pointers to static text.
struct EnumEntries<const N: usize>([pg_sys::config_enum_entry; N]);

// SAFETY: the table is read only and points to static strings.
unsafe impl<const N: usize> Sync for EnumEntries<N> {}

const fn entry(name: &'static CStr, val: i32, hidden: bool) -> pg_sys::config_enum_entry {
    pg_sys::config_enum_entry {
        name: name.as_ptr(),
        val,
        hidden,
    }
}

// The first name of a value is the one that SHOW prints.
static MODE_ENTRIES: EnumEntries<11> = EnumEntries([
    entry(c"off", 0, false),
    entry(c"on", 1, false),
    entry(c"force", 2, false),
    entry(c"0", 0, false),
    entry(c"1", 1, false),
    entry(c"2", 2, false),
    entry(c"false", 0, true),
    entry(c"true", 1, true),
    entry(c"no", 0, true),
    entry(c"yes", 1, true),
    END_OF_ENTRIES,
]);

const END_OF_ENTRIES: pg_sys::config_enum_entry = pg_sys::config_enum_entry {
    name: std::ptr::null(),
    val: 0,
    hidden: false,
};

/// `parallel_replicas.debug_force`, the counterpart of PostgreSQL's force_parallel_mode.
static DEBUG_FORCE: EnumSetting = EnumSetting(Cell::new(0));

static DEBUG_FORCE_ENTRIES: EnumEntries<4> = EnumEntries([
    entry(c"off", 0, false),
    entry(c"on", 1, false),
    entry(c"regress", 2, false),
    END_OF_ENTRIES,
]);

static CLUSTER: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"default"));
static MAX_PARALLEL_REPLICAS: GucSetting<i32> = GucSetting::<i32>::new(1000);
static LOCAL_PLAN: GucSetting<bool> = GucSetting::<bool>::new(true);
static PREFER_LOCAL_REPLICA: GucSetting<bool> = GucSetting::<bool>::new(true);
static MIN_ROWS_PER_REPLICA: GucSetting<i32> = GucSetting::<i32>::new(0);
static MARK_SEGMENT_SIZE: GucSetting<i32> = GucSetting::<i32>::new(0);
static GRANULE_BLOCKS: GucSetting<i32> = GucSetting::<i32>::new(128);
static LINKS_PER_REPLICA: GucSetting<i32> = GucSetting::<i32>::new(2);
static CONNECT_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(300);
static REPLAY_WAIT_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(1000);
static STALL_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static IDLE_LINK_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(300);
static MAX_LINKS: GucSetting<i32> = GucSetting::<i32>::new(0);
static TUPLE_COST: GucSetting<f64> = GucSetting::<f64>::new(0.2);
static DEBUG_ASSIGNMENT: GucSetting<Assignment> = GucSetting::<Assignment>::new(Assignment::Hash);
static LOG_LEVEL: GucSetting<LogLevel> = GucSetting::<LogLevel>::new(LogLevel::Summary);
static QUERY_LOG_SIZE: GucSetting<i32> = GucSetting::<i32>::new(512);
static TEXT_LOG_SIZE: GucSetting<i32> = GucSetting::<i32>::new(8192);
static SHIPPABLE_EXTENSIONS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c""));
static SETUP_COST: GucSetting<f64> = GucSetting::<f64>::new(1000.0);

/// Defines every setting. Called once, from the library's initialisation.
pub fn init() {
    // SAFETY: called from the postmaster's library load, on the main thread; names and tables are
    // static.
    unsafe {
        pg_sys::DefineCustomEnumVariable(
            c"enable_parallel_replicas".as_ptr(),
            c"Executes queries on this server and its streaming standbys together.".as_ptr(),
            c"0 or off: never. 1 or on: where the planner expects it to be faster. 2 or force: \
              wherever possible, and an error where a query over an eligible table cannot."
                .as_ptr(),
            MODE.0.as_ptr(),
            0,
            MODE_ENTRIES.0.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            (GucFlags::DISALLOW_IN_FILE | GucFlags::DISALLOW_IN_AUTO_FILE | GucFlags::EXPLAIN)
                .bits(),
            None,
            None,
            None,
        );
    }
    init_session_settings();
    init_server_settings();
    init_shippable_extensions();
    init_developer_settings();
    init_log_settings();
    replicas::init();
    // SAFETY: as above.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"parallel_replicas".as_ptr()) };
}

fn init_session_settings() {
    let flags = GucFlags::DISALLOW_IN_FILE | GucFlags::DISALLOW_IN_AUTO_FILE | GucFlags::EXPLAIN;
    GucRegistry::define_string_guc(
        c"cluster_for_parallel_replicas",
        c"Names the cluster whose replicas take part in queries.",
        c"A cluster is the set of servers of foreign-data wrapper parallel_replicas that have this \
          name as their option \"cluster\".",
        &CLUSTER,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_int_guc(
        c"max_parallel_replicas",
        c"Sets the largest number of replicas that take part in a query.",
        c"May exceed the number of replicas in the cluster.",
        &MAX_PARALLEL_REPLICAS,
        0,
        1000,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"parallel_replicas_local_plan",
        c"Lets this server scan its own share of the table.",
        c"Off, this server only coordinates and merges, as long as any replica is there.",
        &LOCAL_PLAN,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"parallel_replicas_prefer_local_replica",
        c"Lets this server take part in every query, however few servers are admitted.",
        c"Off, it is one of the servers that load_balancing chooses max_parallel_replicas from. Switch it \
          off where many sessions on one server would make that server the busiest of the cluster.",
        &PREFER_LOCAL_REPLICA,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas_min_number_of_rows_per_replica",
        c"Limits the number of replicas to the estimated rows divided by this.",
        c"0 means no limit.",
        &MIN_ROWS_PER_REPLICA,
        0,
        i32::MAX,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas_mark_segment_size",
        c"Sets how many granules in a row belong to one replica.",
        c"A power of two; other values are rounded down to one. 0 means by the size of the table. Raise it \
          where tables are read from disks that are slow to seek; queries with another value find the \
          caches of other replicas warm.",
        &MARK_SEGMENT_SIZE,
        0,
        16_384,
        GucContext::Userset,
        flags,
    );
}

/// A session setting without upper limit.
fn define_session_integer(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    min: i32,
    unit: GucFlags,
) {
    let flags = unit | GucFlags::DISALLOW_IN_FILE | GucFlags::DISALLOW_IN_AUTO_FILE;
    GucRegistry::define_int_guc(
        name,
        short,
        long,
        setting,
        min,
        i32::MAX,
        GucContext::Userset,
        flags,
    );
}

fn init_server_settings() {
    GucRegistry::define_int_guc(
        c"parallel_replicas.granule_blocks",
        c"Sets the smallest unit of work, in table blocks.",
        c"A power of two between 1 and 131072, so that granules divide a 1 GiB segment; other \
          values are rounded down to one.",
        &GRANULE_BLOCKS,
        1,
        131_072,
        GucContext::Userset,
        GucFlags::empty(),
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas.links_per_replica",
        c"Sets how many processes of each replica work on a query.",
        c"Each is one connection.",
        &LINKS_PER_REPLICA,
        1,
        64,
        GucContext::Userset,
        GucFlags::empty(),
    );
    define_milliseconds(
        c"parallel_replicas.connect_timeout",
        c"Sets how long a query tries to connect to a replica.",
        &CONNECT_TIMEOUT,
        600_000,
    );
    define_milliseconds(
        c"parallel_replicas.replay_wait_timeout",
        c"Sets how long a replica may wait until it has replayed the query's WAL position.",
        &REPLAY_WAIT_TIMEOUT,
        3_600_000,
    );
    define_milliseconds(
        c"parallel_replicas.stall_timeout",
        c"Sets after how much silence a working replica counts as lost.",
        &STALL_TIMEOUT,
        3_600_000,
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas.idle_link_timeout",
        c"Sets how long a session keeps an unused connection to a replica.",
        c"It is noticed when the session next uses replicas. 0 keeps none.",
        &IDLE_LINK_TIMEOUT,
        0,
        86_400,
        GucContext::Userset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas.max_links",
        c"Sets how many connections to replicas all sessions of this server may have.",
        c"A query takes fewer rather than wait. Beyond half of them none is kept after its query. \
          0 means no limit.",
        &MAX_LINKS,
        0,
        1_000_000,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_float_guc(
        c"parallel_replicas.tuple_cost",
        c"Sets the planner's estimate of the cost of passing a row from a replica.",
        c"While replicas are considered, the larger of this and parallel_tuple_cost counts.",
        &TUPLE_COST,
        0.0,
        f64::MAX,
        GucContext::Userset,
        GucFlags::EXPLAIN,
    );
    GucRegistry::define_float_guc(
        c"parallel_replicas.setup_cost",
        c"Sets the planner's estimate of the cost of starting work on replicas.",
        c"Added to parallel_setup_cost.",
        &SETUP_COST,
        0.0,
        f64::MAX,
        GucContext::Userset,
        GucFlags::EXPLAIN,
    );
}

fn init_shippable_extensions() {
    GucRegistry::define_string_guc(
        c"parallel_replicas.shippable_extensions",
        c"Names extensions whose immutable functions in C are executed on replicas.",
        c"Their libraries must be the same on all servers, which is compared before each execution.",
        &SHIPPABLE_EXTENSIONS,
        GucContext::Suset,
        GucFlags::EXPLAIN | GucFlags::from_bits_retain(pg_sys::GUC_LIST_INPUT as i32),
    );
}

fn init_developer_settings() {
    // SAFETY: called from the postmaster's library load, on the main thread; names and tables are
    // static.
    unsafe {
        pg_sys::DefineCustomEnumVariable(
            c"parallel_replicas.debug_force".as_ptr(),
            c"Ships everything that can be shipped, whatever it costs, for tests.".as_ptr(),
            c"Overrides enable_parallel_replicas; what cannot be shipped is executed locally \
              without a word. With regress, EXPLAIN shows the plan without replicas."
                .as_ptr(),
            DEBUG_FORCE.0.as_ptr(),
            0,
            DEBUG_FORCE_ENTRIES.0.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            GucFlags::EXPLAIN.bits() | pg_sys::GUC_NOT_IN_SAMPLE as i32,
            None,
            None,
            None,
        );
    }
    GucRegistry::define_enum_guc(
        c"parallel_replicas.debug_assignment",
        c"Spoils the assignment of granules, for tests and benchmarks.",
        c"hash: not at all. random: to other owners in every query. incomplete: the last granule to \
          nobody, which is an error.",
        &DEBUG_ASSIGNMENT,
        GucContext::Suset,
        GucFlags::EXPLAIN,
    );
}

fn init_log_settings() {
    GucRegistry::define_enum_guc(
        c"parallel_replicas.log_level",
        c"Sets what is kept about queries in query_log and text_log.",
        c"off: nothing. summary: queries and a few steps of each. trace: every request for a task and \
          its answer, too.",
        &LOG_LEVEL,
        GucContext::Userset,
        GucFlags::empty(),
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas.query_log_size",
        c"Sets how many queries parallel_replicas.query_log keeps.",
        c"About 2 kB of shared memory each. 0 keeps none.",
        &QUERY_LOG_SIZE,
        0,
        1_000_000,
        GucContext::Postmaster,
        GucFlags::empty(),
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas.text_log_size",
        c"Sets how many steps of queries parallel_replicas.text_log keeps.",
        c"About 350 bytes of shared memory each. 0 keeps none.",
        &TEXT_LOG_SIZE,
        0,
        10_000_000,
        GucContext::Postmaster,
        GucFlags::empty(),
    );
}

fn define_milliseconds(
    name: &'static CStr,
    short: &'static CStr,
    setting: &'static GucSetting<i32>,
    max: i32,
) {
    let long = c"";
    GucRegistry::define_int_guc(
        name,
        short,
        long,
        setting,
        1,
        max,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
}

pub fn mode() -> Mode {
    if is_debug_forced() {
        return Mode::Force;
    }
    match MODE.0.get() {
        0 => Mode::Off,
        1 => Mode::On,
        _ => Mode::Force,
    }
}

/// Replicas are used for a test's sake: no error tells that they cannot be.
pub fn is_debug_forced() -> bool {
    DEBUG_FORCE.0.get() != 0
}

/// EXPLAIN must show what it would show without replicas.
pub fn is_hidden_from_explain() -> bool {
    DEBUG_FORCE.0.get() == 2
}

pub fn assignment() -> Assignment {
    DEBUG_ASSIGNMENT.get()
}

pub fn cluster() -> String {
    CLUSTER
        .get()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

pub fn max_parallel_replicas() -> usize {
    MAX_PARALLEL_REPLICAS.get().max(0) as usize
}

pub fn local_plan() -> bool {
    LOCAL_PLAN.get()
}

pub fn prefer_local_replica() -> bool {
    PREFER_LOCAL_REPLICA.get()
}

/// 0 means no limit.
pub fn min_rows_per_replica() -> u32 {
    MIN_ROWS_PER_REPLICA.get().max(0) as u32
}

/// A power of two.
pub fn granule_blocks() -> u32 {
    let blocks = GRANULE_BLOCKS.get().max(1) as u32;
    1 << blocks.ilog2()
}

/// A power of two, or 0: by the size of the table.
pub fn mark_segment_size() -> u32 {
    match MARK_SEGMENT_SIZE.get().max(0) as u32 {
        0 => 0,
        granules => 1 << granules.ilog2(),
    }
}

pub fn links_per_replica() -> usize {
    LINKS_PER_REPLICA.get().max(1) as usize
}

pub fn connect_timeout_ms() -> u64 {
    CONNECT_TIMEOUT.get().max(1) as u64
}

pub fn replay_wait_timeout_ms() -> u64 {
    REPLAY_WAIT_TIMEOUT.get().max(1) as u64
}

pub fn stall_timeout_ms() -> u64 {
    STALL_TIMEOUT.get().max(1) as u64
}

/// 0 means no limit.
pub fn max_links() -> u32 {
    MAX_LINKS.get().max(0) as u32
}

pub fn idle_link_timeout_s() -> u64 {
    IDLE_LINK_TIMEOUT.get().max(0) as u64
}

pub fn tuple_cost() -> f64 {
    TUPLE_COST.get()
}

pub fn setup_cost() -> f64 {
    SETUP_COST.get()
}

/// The extensions whose functions may be shipped.
pub fn shippable_extensions() -> Vec<String> {
    SHIPPABLE_EXTENSIONS
        .get()
        .map(|list| list::names(&list.to_string_lossy()))
        .unwrap_or_default()
}

pub fn log_level() -> LogLevel {
    LOG_LEVEL.get()
}

pub fn query_log_size() -> u32 {
    QUERY_LOG_SIZE.get().max(0) as u32
}

pub fn text_log_size() -> u32 {
    TEXT_LOG_SIZE.get().max(0) as u32
}
