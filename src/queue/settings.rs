//! The queue's settings, and the limits that follow from them.

use super::measure;
use parallel_replicas_core::queue::capacity::{self, Estimator};
use parallel_replicas_core::queue::drivers::Marks;
use parallel_replicas_core::queue::{Kind, Limits, Strategy};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::ffi::{CStr, CString};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum EstimatorSetting {
    #[name = c"PBE"]
    Pbe,
    #[name = c"MBE"]
    Mbe,
    #[name = c"CBE"]
    Cbe,
    #[name = c"MAX"]
    Max,
    #[name = c"MIN"]
    Min,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum ScheduleSetting {
    #[name = c"SWRR"]
    Swrr,
    #[name = c"SJF"]
    Sjf,
}

/// What a waiter does when its locks block somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum BlockedAction {
    #[name = c"admit"]
    Admit,
    #[name = c"error"]
    Error,
    #[name = c"ignore"]
    Ignore,
}

/// Whose cores and memory are divided into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum CapacitySetting {
    #[name = c"server"]
    Server,
    #[name = c"cluster"]
    Cluster,
}

/// How long a slot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum Scope {
    #[name = c"statement"]
    Statement,
    #[name = c"transaction"]
    Transaction,
}

static SELECT: GucSetting<bool> = GucSetting::<bool>::new(false);
static LOAD: GucSetting<bool> = GucSetting::<bool>::new(false);
static STATISTIC: GucSetting<bool> = GucSetting::<bool>::new(false);
static GROUP_LEVEL: GucSetting<bool> = GucSetting::<bool>::new(false);
static SESSION: GucSetting<bool> = GucSetting::<bool>::new(true);
static GROUP: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static CONCURRENCY_LIMIT: GucSetting<i32> = GucSetting::<i32>::new(0);
static MEM_USED_PCT_LIMIT: GucSetting<f64> = GucSetting::<f64>::new(0.0);
static CPU_USED_PERMILLE_LIMIT: GucSetting<i32> = GucSetting::<i32>::new(0);
static MAX_QUEUED: GucSetting<i32> = GucSetting::<i32>::new(1024);
static PENDING_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(300);
static DRIVER_HIGH_WATER: GucSetting<i32> = GucSetting::<i32>::new(-1);
static DRIVER_LOW_WATER: GucSetting<i32> = GucSetting::<i32>::new(-1);
static V2: GucSetting<bool> = GucSetting::<bool>::new(true);
static LEVEL: GucSetting<i32> = GucSetting::<i32>::new(4);
static ESTIMATOR: GucSetting<EstimatorSetting> =
    GucSetting::<EstimatorSetting>::new(EstimatorSetting::Pbe);
static SCHEDULE: GucSetting<ScheduleSetting> =
    GucSetting::<ScheduleSetting>::new(ScheduleSetting::Swrr);
static BYTES_PER_SLOT: GucSetting<i32> = GucSetting::<i32>::new(0);
static COST_PER_SLOT: GucSetting<f64> = GucSetting::<f64>::new(100_000.0);
static USAGE_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(1000);
static CAPACITY: GucSetting<CapacitySetting> =
    GucSetting::<CapacitySetting>::new(CapacitySetting::Server);
static CORES: GucSetting<i32> = GucSetting::<i32>::new(0);
static MIN_COST: GucSetting<f64> = GucSetting::<f64>::new(0.0);
static BYPASS_SUPERUSER: GucSetting<bool> = GucSetting::<bool>::new(true);
static BLOCKED_ACTION: GucSetting<BlockedAction> =
    GucSetting::<BlockedAction>::new(BlockedAction::Admit);
static LOG_MIN_WAIT: GucSetting<i32> = GucSetting::<i32>::new(-1);
static SCOPE: GucSetting<Scope> = GucSetting::<Scope>::new(Scope::Statement);

/// Defines every setting. Once, from the library's initialisation, before the prefix is reserved.
pub fn init() {
    init_switches();
    init_limits();
    init_slots();
    init_conduct();
}

fn switch(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<bool>,
) {
    GucRegistry::define_bool_guc(
        name,
        short,
        long,
        setting,
        GucContext::Sighup,
        GucFlags::empty(),
    );
}

fn number(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    range: std::ops::RangeInclusive<i32>,
    flags: GucFlags,
) {
    GucRegistry::define_int_guc(
        name,
        short,
        long,
        setting,
        *range.start(),
        *range.end(),
        GucContext::Sighup,
        flags,
    );
}

fn init_switches() {
    switch(
        c"parallel_replicas.enable_query_queue_select",
        c"Lets queries wait in the query queue.",
        c"",
        &SELECT,
    );
    switch(
        c"parallel_replicas.enable_query_queue_load",
        c"Lets INSERT ... SELECT, CREATE TABLE AS, COPY FROM and REFRESH MATERIALIZED VIEW wait in \
          the query queue.",
        c"",
        &LOAD,
    );
    switch(
        c"parallel_replicas.enable_query_queue_statistic",
        c"Lets ANALYZE wait in the query queue.",
        c"Autovacuum never does.",
        &STATISTIC,
    );
    switch(
        c"parallel_replicas.enable_group_level_query_queue",
        c"Applies the limits of resource groups.",
        c"",
        &GROUP_LEVEL,
    );
    GucRegistry::define_bool_guc(
        c"enable_query_queue",
        c"Lets this session's statements wait in the query queue.",
        c"Off, they are executed at once and do not count.",
        &SESSION,
        GucContext::Suset,
        GucFlags::DISALLOW_IN_FILE | GucFlags::DISALLOW_IN_AUTO_FILE,
    );
    GucRegistry::define_string_guc(
        c"parallel_replicas.resource_group",
        c"Names the resource group that this session's statements belong to.",
        c"Empty, or a name that no group has: none.",
        &GROUP,
        GucContext::Userset,
        GucFlags::empty(),
    );
}

fn init_limits() {
    number(
        c"parallel_replicas.query_queue_concurrency_limit",
        c"Sets how many queued statements run at once.",
        c"0 means no limit.",
        &CONCURRENCY_LIMIT,
        0..=i32::MAX,
        GucFlags::empty(),
    );
    GucRegistry::define_float_guc(
        c"parallel_replicas.query_queue_mem_used_pct_limit",
        c"Sets the share of memory in use, 0 to 1, above which nothing is admitted.",
        c"0 means no limit. Only without query_queue_v2.",
        &MEM_USED_PCT_LIMIT,
        0.0,
        1.0,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.query_queue_cpu_used_permille_limit",
        c"Sets the share of CPU in use, in thousandths, above which nothing is admitted.",
        c"0 means no limit. Only without query_queue_v2.",
        &CPU_USED_PERMILLE_LIMIT,
        0..=1000,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.query_queue_max_queued_queries",
        c"Sets how many statements may wait; one more is an error.",
        c"0 means no limit.",
        &MAX_QUEUED,
        0..=i32::MAX,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.query_queue_pending_timeout_second",
        c"Sets how long a statement may wait.",
        c"0 means no limit.",
        &PENDING_TIMEOUT,
        0..=i32::MAX / 1000,
        GucFlags::UNIT_S,
    );
    number(
        c"parallel_replicas.query_queue_driver_high_water",
        c"Sets the number of processes of queued statements at which new ones get one each.",
        c"-1 turns it off; 0 means 16 per core.",
        &DRIVER_HIGH_WATER,
        -1..=i32::MAX,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.query_queue_driver_low_water",
        c"Sets the number of processes of queued statements above which new ones get fewer.",
        c"-1 turns it off; 0 means 8 per core.",
        &DRIVER_LOW_WATER,
        -1..=i32::MAX,
        GucFlags::empty(),
    );
}

fn init_slots() {
    switch(
        c"parallel_replicas.enable_query_queue_v2",
        c"Counts slots instead of statements and measured load.",
        c"",
        &V2,
    );
    number(
        c"parallel_replicas.query_queue_v2_concurrency_level",
        c"Sets how many of the largest statements run at once; there are cores * level / 4 slots.",
        c"0 or less means 4.",
        &LEVEL,
        -1..=1_000_000,
        GucFlags::empty(),
    );
    GucRegistry::define_enum_guc(
        c"parallel_replicas.query_queue_slots_estimator_strategy",
        c"Sets what a statement's slots are estimated by.",
        c"PBE: processes. MBE: memory. CBE: cost. MAX and MIN are accepted and mean PBE.",
        &ESTIMATOR,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_enum_guc(
        c"parallel_replicas.query_queue_v2_schedule_strategy",
        c"Sets in which order waiting statements are admitted.",
        c"SWRR: by turns of size classes, the small ones more often. SJF: the smallest first, less \
          a credit for its age.",
        &SCHEDULE,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.query_queue_v2_mem_bytes_per_slot",
        c"Sets how much memory a slot stands for under MBE.",
        c"0 means the memory per core.",
        &BYTES_PER_SLOT,
        0..=i32::MAX,
        GucFlags::UNIT_KB,
    );
    GucRegistry::define_float_guc(
        c"parallel_replicas.query_queue_v2_cpu_costs_per_slot",
        c"Sets how much planner cost a slot stands for under CBE.",
        c"The default is about that of scanning half a gigabyte in one process.",
        &COST_PER_SLOT,
        1.0,
        f64::MAX,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_enum_guc(
        c"parallel_replicas.query_queue_capacity",
        c"Sets whose cores and memory are divided into slots.",
        c"server: this server's, and links need no slots. cluster: also those of its live replicas, and \
          links need slots.",
        &CAPACITY,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.query_queue_cores",
        c"Sets how many cores this server has for slots.",
        c"0 means those that this server may use.",
        &CORES,
        0..=65_536,
        GucFlags::empty(),
    );
    number(
        c"parallel_replicas.report_resource_usage_interval_ms",
        c"Sets how often memory and CPU in use are measured while statements wait.",
        c"",
        &USAGE_INTERVAL,
        10..=3_600_000,
        GucFlags::UNIT_MS,
    );
}

fn init_conduct() {
    GucRegistry::define_float_guc(
        c"parallel_replicas.query_queue_min_cost",
        c"Sets the planner's cost below which a statement does not queue.",
        c"",
        &MIN_COST,
        0.0,
        f64::MAX,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    switch(
        c"parallel_replicas.query_queue_bypass_superuser",
        c"Lets superusers' statements run without queueing.",
        c"",
        &BYPASS_SUPERUSER,
    );
    GucRegistry::define_enum_guc(
        c"parallel_replicas.query_queue_blocked_action",
        c"Sets what happens to a waiting statement whose locks block somebody.",
        c"admit: it runs, above the limits. error: it fails. ignore: it goes on waiting.",
        &BLOCKED_ACTION,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_int_guc(
        c"parallel_replicas.query_queue_log_min_wait",
        c"Sets after how long a wait in the query queue is logged.",
        c"-1 logs none, 0 every one.",
        &LOG_MIN_WAIT,
        -1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_enum_guc(
        c"parallel_replicas.query_queue_scope",
        c"Sets whether slots are kept for a statement or for its transaction.",
        c"",
        &SCOPE,
        GucContext::Sighup,
        GucFlags::empty(),
    );
}

/// Kinds of work that queue, as a sum of [`Kind`]s; 0 if the queue is off.
#[inline]
pub fn kinds() -> u32 {
    let bit = |on: bool, kind: Kind| if on { kind as u32 } else { 0 };
    bit(SELECT.get(), Kind::Select)
        | bit(LOAD.get(), Kind::Load)
        | bit(STATISTIC.get(), Kind::Statistic)
}

/// Is anything queued at all? What every statement pays.
#[inline]
pub fn is_on() -> bool {
    SELECT.get() || LOAD.get() || STATISTIC.get()
}

/// Does this session queue?
pub fn session_queues() -> bool {
    SESSION.get()
}

/// The session's group; None if it has none.
pub fn group() -> Option<CString> {
    GROUP.get().filter(|name| !name.is_empty())
}

pub fn is_by_group() -> bool {
    GROUP_LEVEL.get()
}

pub fn min_cost() -> f64 {
    MIN_COST.get()
}

pub fn bypass_superuser() -> bool {
    BYPASS_SUPERUSER.get()
}

pub fn blocked_action() -> BlockedAction {
    BLOCKED_ACTION.get()
}

/// None: not logged.
pub fn log_min_wait_ms() -> Option<u64> {
    u64::try_from(LOG_MIN_WAIT.get()).ok()
}

pub fn scope() -> Scope {
    SCOPE.get()
}

pub fn pending_timeout_s() -> u64 {
    PENDING_TIMEOUT.get().max(0) as u64
}

pub fn usage_interval_ms() -> u64 {
    USAGE_INTERVAL.get().max(10) as u64
}

/// Version 1's limits on measured load: share of memory, thousandths of CPU; 0 is none.
pub fn load_limits() -> (f64, u32) {
    if V2.get() {
        return (0.0, 0);
    }
    (
        MEM_USED_PCT_LIMIT.get(),
        CPU_USED_PERMILLE_LIMIT.get().max(0) as u32,
    )
}

/// Driver marks, if any.
pub fn marks() -> Option<Marks> {
    Marks::from_settings(
        DRIVER_HIGH_WATER.get(),
        DRIVER_LOW_WATER.get(),
        capacity().cores,
    )
}

pub fn capacity() -> capacity::Capacity {
    let own = own_capacity();
    if !is_by_cluster() {
        return own;
    }
    let replicas = measure::of_replicas();
    capacity::Capacity {
        servers: own.servers + replicas.servers,
        cores: own.cores.saturating_add(replicas.cores),
        memory: own.memory.saturating_add(replicas.memory),
    }
}

/// Do replicas' cores, and processes on them, count?
pub fn is_by_cluster() -> bool {
    CAPACITY.get() == CapacitySetting::Cluster
}

/// Of this server.
pub fn own_capacity() -> capacity::Capacity {
    let measured = measure::capacity();
    let cores = CORES.get().max(0) as u32;
    capacity::Capacity {
        cores: if cores > 0 { cores } else { measured.cores },
        ..measured
    }
}

fn estimator() -> Estimator {
    match ESTIMATOR.get() {
        EstimatorSetting::Mbe => Estimator::Memory,
        EstimatorSetting::Cbe => Estimator::Cost,
        EstimatorSetting::Pbe | EstimatorSetting::Max | EstimatorSetting::Min => {
            Estimator::Parallelism
        }
    }
}

fn bytes_per_slot() -> Option<u64> {
    let setting = BYTES_PER_SLOT.get().max(0) as u64 * 1024;
    capacity::bytes_per_slot(setting, capacity())
}

/// What the settings amount to. Measured load is added by whoever measures.
pub fn limits() -> Limits {
    let capacity = capacity();
    Limits {
        kinds: kinds(),
        by_slots: V2.get(),
        by_group: GROUP_LEVEL.get(),
        overloaded: false,
        strategy: match SCHEDULE.get() {
            ScheduleSetting::Swrr => Strategy::Swrr,
            ScheduleSetting::Sjf => Strategy::Sjf,
        },
        total: capacity::total_slots(
            estimator(),
            capacity,
            capacity::level(LEVEL.get()),
            bytes_per_slot(),
        ),
        servers: capacity.servers,
        concurrency: CONCURRENCY_LIMIT.get().max(0) as u32,
        queued_max: MAX_QUEUED.get().max(0) as u32,
        timeout_ms: pending_timeout_s() * 1000,
    }
}

/// Slots that a statement needs.
pub fn slots(processes: u32, bytes: f64, cost: f64) -> u32 {
    if !V2.get() {
        return 1;
    }
    let total = limits().total;
    let cap = capacity::slots_cap(total, capacity::level(LEVEL.get()));
    match estimator() {
        Estimator::Parallelism => capacity::slots_for_processes(processes, total),
        Estimator::Memory => bytes_per_slot().map_or(1, |unit| {
            capacity::slots_for_amount(bytes, unit as f64, cap)
        }),
        Estimator::Cost => capacity::slots_for_amount(cost, COST_PER_SLOT.get(), cap),
    }
}
