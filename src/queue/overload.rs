//! Measured load. Version 1 of the queue admits nothing while the server is above its memory or CPU
//! limit; resource groups have limits of their own.
//!
//! There is no process of its own for measuring. Whoever asks for slots or waits for them measures
//! when the last measurement is old; while nobody does, nobody needs one.

use super::shared::View;
use super::{groups, measure, settings, shared, usage};

/// How often a waiter has to look.
pub fn interval_ms() -> u64 {
    if is_on() || settings::is_by_group() {
        settings::usage_interval_ms()
    } else {
        u64::MAX
    }
}

/// Are there limits on the server's load?
pub fn is_on() -> bool {
    settings::load_limits() != (0.0, 0)
}

/// Measures, if there are limits and the last measurement is older than the interval.
pub fn measure_if_due() {
    measure::look_at_cluster_if_due();
    if is_on() || settings::is_by_group() {
        measure(groups::is_measured);
    }
}

/// Measures what groups use, for somebody who looks.
pub fn measure_groups_if_due() {
    if settings::is_by_group() {
        measure(|_| true);
    }
}

fn measure(groups_wanted: fn(&View<'_>) -> bool) {
    let now = measure::now_ms();
    let interval = settings::usage_interval_ms();
    let due = shared::locked(|view| {
        let by_group = groups_wanted(view);
        let elapsed = now.saturating_sub(view.usage.measured_ms);
        ((is_on() || by_group) && elapsed >= interval).then(|| {
            // Nobody else then does the same.
            view.usage.measured_ms = now;
            (elapsed, by_group)
        })
    });
    let Some((elapsed, by_group)) = due else {
        return;
    };
    if by_group {
        usage::measure_groups(elapsed);
    }
    if is_on() {
        measure_server();
    }
}

fn measure_server() {
    let ticks = measure::cpu_ticks().unwrap_or_default();
    let memory = measure::memory_used().unwrap_or(0.0);
    let (memory_limit, cpu_limit) = settings::load_limits();
    shared::locked(|view| {
        let before = view.usage.ticks;
        let all = ticks.all.saturating_sub(before.all);
        if before.all > 0 && all > 0 {
            let busy = ticks.busy.saturating_sub(before.busy);
            view.usage.cpu_permille = (busy * 1000 / all) as u32;
        }
        view.usage.ticks = ticks;
        view.usage.memory_used = memory;
        view.queue.header.limits.overloaded = (memory_limit > 0.0 && memory >= memory_limit)
            || (cpu_limit > 0 && view.usage.cpu_permille >= cpu_limit);
    });
}
