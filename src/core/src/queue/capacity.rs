//! How many slots there are, and how many a query needs.
//!
//! A slot is a share of the servers: one process' worth of work. The formulas are StarRocks', with
//! the process in the place of its worker.

/// What a query's need is estimated by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Estimator {
    /// Processes that the plan will use.
    #[default]
    Parallelism = 0,
    /// Memory that the plan may use.
    Memory = 1,
    /// The planner's total cost.
    Cost = 2,
}

/// What the live servers of the cluster have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// At least 1.
    pub servers: u32,
    /// Cores; 0 if unknown.
    pub cores: u32,
    /// Bytes of memory; 0 if unknown.
    pub memory: u64,
}

/// The concurrency level that stands for values below 1.
const LEVEL_DEFAULT: i32 = 4;

/// `query_queue_v2_concurrency_level` as the formulas take it.
pub fn level(setting: i32) -> u32 {
    if setting < 1 {
        LEVEL_DEFAULT as u32
    } else {
        setting as u32
    }
}

/// Bytes of memory that one slot stands for: `setting` if above 0, otherwise the memory per core;
/// None means that memory never fills a slot.
pub fn bytes_per_slot(setting: u64, capacity: Capacity) -> Option<u64> {
    if setting > 0 {
        return Some(setting);
    }
    (capacity.memory > 0 && capacity.cores > 0)
        .then(|| (capacity.memory / u64::from(capacity.cores)).max(1))
}

/// Slots that running queries may hold together: cores × level / 4, or for [`Estimator::Memory`]
/// memory × (level / 4) / bytes per slot; at least one per server.
pub fn total_slots(
    estimator: Estimator,
    capacity: Capacity,
    level: u32,
    bytes_per_slot: Option<u64>,
) -> u32 {
    let share = f64::from(level) / 4.0;
    let slots = match (estimator, bytes_per_slot) {
        (Estimator::Memory, Some(bytes)) if capacity.memory > 0 => {
            (capacity.memory as f64 * share / bytes as f64).floor()
        }
        (Estimator::Memory, _) => 1.0,
        _ => (f64::from(capacity.cores) * share).round(),
    };
    // `as` saturates.
    (slots.min(f64::from(i32::MAX)) as u32).max(capacity.servers.max(1))
}

/// Need of a plan that uses so many processes at once.
pub fn slots_for_processes(processes: u32, total: u32) -> u32 {
    processes.clamp(1, total.max(1))
}

/// The most that memory or cost can make a query need, so that `level` of the largest can run at
/// the same time.
pub fn slots_cap(total: u32, level: u32) -> u32 {
    (total / level.max(1)).max(1)
}

/// Need of a plan by its bytes or cost: `amount / unit` rounded up, between 1 and `cap`. Not a
/// number, or nothing to divide, is 1.
pub fn slots_for_amount(amount: f64, unit: f64, cap: u32) -> u32 {
    let cap = cap.max(1);
    if amount.is_nan() || amount <= 0.0 || unit.is_nan() || unit <= 0.0 {
        return 1;
    }
    let slots = (amount / unit).ceil();
    if slots >= f64::from(cap) {
        cap
    } else {
        (slots as u32).max(1)
    }
}
