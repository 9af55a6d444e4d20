//! The queue's arithmetic and order, against worked examples.

use parallel_replicas_core::queue::capacity::{
    Capacity, Estimator, bytes_per_slot, level, slots_cap, slots_for_amount, slots_for_processes,
    total_slots,
};
use parallel_replicas_core::queue::drivers::{Marks, processes_per_part};
use parallel_replicas_core::queue::sjf::{early_credit, score};
use parallel_replicas_core::queue::swrr::{CLASSES, Swrr, WEIGHTS, class_of};
use parallel_replicas_core::queue::{
    Admitted, Blocked, Entry, Group, Header, Kind, Limits, Queue, Request, State, Strategy,
    is_later_reading,
};

const GIB: u64 = 1 << 30;

fn capacity(servers: u32, cores: u32, gib: u64) -> Capacity {
    Capacity {
        servers,
        cores,
        memory: gib * GIB,
    }
}

#[test]
fn totals() {
    let by_cores = |servers, cores, level| {
        total_slots(
            Estimator::Parallelism,
            capacity(servers, cores, 0),
            level,
            None,
        )
    };
    assert_eq!(by_cores(3, 3, 1), 3);
    assert_eq!(by_cores(1, 16, 2), 8);
    assert_eq!(by_cores(1, 16, 4), 16);
    assert_eq!(by_cores(1, 8, 4), 8);
    assert_eq!(by_cores(1, 1, 2), 1, "half a slot is rounded up");
    assert_eq!(by_cores(1, 0, 4), 1);
    assert_eq!(by_cores(1, u32::MAX, u32::MAX), i32::MAX as u32);
    let by_memory =
        |gib, level, bytes| total_slots(Estimator::Memory, capacity(1, 4, gib), level, bytes);
    assert_eq!(by_memory(64, 16, Some(32 * GIB)), 8);
    assert_eq!(by_memory(0, 16, Some(32 * GIB)), 1);
    assert_eq!(by_memory(64, 16, None), 1);
    assert_eq!(by_memory(16, 4, bytes_per_slot(0, capacity(1, 4, 16))), 4);
    assert_eq!(bytes_per_slot(7, capacity(1, 0, 0)), Some(7));
    assert_eq!(bytes_per_slot(0, capacity(1, 0, 16)), None);
    assert_eq!(level(0), 4);
    assert_eq!(level(-3), 4);
    assert_eq!(level(9), 9);
}

#[test]
fn needs() {
    let by_memory = |bytes| slots_for_amount(bytes, 1024.0, 12);
    assert_eq!(by_memory(-1.0), 1);
    assert_eq!(by_memory(0.0), 1);
    assert_eq!(by_memory(1024.0), 1);
    assert_eq!(by_memory(1024.5), 2);
    assert_eq!(by_memory(1025.0), 2);
    assert_eq!(by_memory(1_024_000.0), 12);
    assert_eq!(by_memory(f64::NAN), 1);
    assert_eq!(by_memory(f64::INFINITY), 12);
    let by_cost = |cost| slots_for_amount(cost, 100.0, 12);
    assert_eq!(by_cost(100.0), 1);
    assert_eq!(by_cost(100.5), 2);
    assert_eq!(by_cost(250.0), 3);
    assert_eq!(by_cost(100_000.0), 12);
    assert_eq!(slots_for_amount(5.0, 0.0, 12), 1);
    assert_eq!(slots_for_amount(5.0, 1.0, 0), 1);
    assert_eq!(slots_for_processes(0, 8), 1);
    assert_eq!(slots_for_processes(3, 8), 3);
    assert_eq!(slots_for_processes(30, 8), 8);
    assert_eq!(slots_cap(16, 4), 4);
    assert_eq!(slots_cap(2, 4), 1);
}

#[test]
fn process_limits() {
    let marks = Marks::from_settings(256, 128, 4).expect("on");
    let processes = |current| processes_per_part(marks, current, 4, 4, 8, true);
    assert_eq!(processes(0), 8);
    assert_eq!(processes(100), 7);
    assert_eq!(processes(120), 6);
    assert_eq!(processes(160), 4);
    assert_eq!(processes(200), 1);
    assert_eq!(processes(253), 1);
    assert_eq!(processes_per_part(marks, 60, 4, 20, 8, false), 3);
    assert_eq!(Marks::from_settings(-1, 0, 4), None);
    let defaults = Marks::from_settings(0, 0, 4);
    assert_eq!(
        defaults,
        Some(Marks {
            high: 64,
            low: Some(32)
        })
    );
    let high_only = Marks::from_settings(16, -1, 4).expect("on");
    assert_eq!(processes_per_part(high_only, 0, 1, 1, 8, true), 8);
    assert_eq!(processes_per_part(high_only, 10, 1, 1, 8, true), 6);
    assert_eq!(processes_per_part(high_only, 15, 1, 1, 8, true), 1);
}

#[test]
fn size_classes() {
    let classes = |total: u32, sizes: &[u32]| -> Vec<usize> {
        sizes.iter().map(|n| class_of(*n, total, 1)).collect()
    };
    assert_eq!(
        classes(64, &[100, 64, 63, 32, 16, 8, 4, 2, 1, 0]),
        [7, 7, 6, 6, 5, 4, 3, 2, 1, 0]
    );
    assert_eq!(
        classes(16, &[1, 2, 3, 4, 7, 8, 15, 16]),
        [3, 4, 4, 5, 5, 6, 6, 7]
    );
    assert_eq!(class_of(0, 16, 1), 2);
    assert_eq!(class_of(1, 1, 0), 7);
}

#[test]
fn a_period_serves_each_class_by_its_weight() {
    let mut swrr = Swrr::default();
    let mut served = [0; CLASSES];
    let mut first = Vec::new();
    for _ in 0..779 {
        let class = swrr.next_class([true; CLASSES]).expect("occupied");
        served[class] += 1;
        first.push(class);
    }
    assert_eq!(served, WEIGHTS);
    assert_eq!(
        first[..30],
        [
            0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 3, 0, 0, 1, 0, 2, 0, 1, 0, 0, 4, 0, 1, 0, 0, 2, 0, 1,
            0
        ]
    );
}

#[test]
fn empty_classes_are_skipped_and_counted() {
    let mut swrr = Swrr::default();
    assert_eq!(swrr.next_class([false; CLASSES]), None);
    let mut only_largest = [false; CLASSES];
    only_largest[7] = true;
    assert_eq!(swrr.next_class(only_largest), Some(7));
    assert_eq!(swrr.skips(), [188, 75, 30, 12, 5, 2, 1, 0]);
}

#[test]
fn a_small_machine_still_prefers_small_queries() {
    let mut swrr = Swrr::default();
    let mut occupied = [false; CLASSES];
    occupied[class_of(1, 16, 1)] = true;
    occupied[class_of(8, 16, 1)] = true;
    let mut small = 0;
    for _ in 0..2000 {
        small += usize::from(swrr.next_class(occupied) == Some(3));
    }
    assert_eq!(small, 1875);
}

#[test]
fn aging() {
    let credits: Vec<i64> = [
        0, 100, 200, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000,
    ]
    .iter()
    .map(|age| early_credit(*age))
    .collect();
    assert_eq!(credits, [0, 0, 1, 3, 5, 6, 8, 9, 11, 12, 15]);
    let timeout = 300_000;
    // At the beginning, size decides; after a quarter of the timeout no newcomer is ahead.
    assert!(score(16, 16, 0, timeout) > score(1, 16, 0, timeout));
    assert!(score(16, 16, timeout / 4, timeout) < score(1, 16, 0, timeout));
    // And it stays like that, however old both get.
    for age in (75_000..300_000).step_by(1000) {
        assert!(score(16, 16, age, timeout) < score(1, 16, age - 75_000, timeout));
    }
    // More slots than there are count as all of them, and no limit on the wait as 300 s.
    assert_eq!(score(99, 16, 0, timeout), score(16, 16, 0, timeout));
    assert_eq!(score(5, 16, 1000, 0), score(5, 16, 1000, timeout));
}

/// A queue in ordinary memory.
struct Memory {
    header: Header,
    entries: Vec<Entry>,
    groups: Vec<Group>,
}

impl Memory {
    fn new(limits: Limits) -> Self {
        let mut header = Header::default();
        header.limits = limits;
        Memory {
            header,
            entries: vec![Entry::default(); 64],
            groups: vec![Group::default(); 4],
        }
    }

    fn queue(&mut self) -> Queue<'_> {
        Queue {
            header: &mut self.header,
            entries: &mut self.entries,
            groups: &mut self.groups,
        }
    }

    fn ask(&mut self, index: usize, slots: u32, group: u32) {
        let kind = Kind::Select;
        self.queue()
            .enqueue(index, Request { kind, slots, group }, 0);
    }

    fn schedule(&mut self, now_ms: u64) -> Vec<usize> {
        let mut woken = Vec::new();
        self.queue()
            .schedule(now_ms, &mut |index| woken.push(index));
        woken
    }
}

fn by_slots(total: u32, strategy: Strategy) -> Limits {
    Limits {
        kinds: Kind::Select as u32,
        by_slots: true,
        strategy,
        total,
        servers: 1,
        timeout_ms: 300_000,
        ..Limits::default()
    }
}

fn by_load(concurrency: u32) -> Limits {
    Limits {
        by_slots: false,
        concurrency,
        ..by_slots(1, Strategy::Swrr)
    }
}

#[test]
fn a_smaller_arrival_replaces_the_kept_pick_once() {
    let mut memory = Memory::new(by_slots(1024, Strategy::Swrr));
    memory.ask(10, 1024, 0);
    assert_eq!(memory.queue().peek(0), Some(10));
    memory.ask(11, 512, 0);
    assert_eq!(memory.queue().peek(0), Some(11));
    memory.ask(12, 1, 0);
    assert_eq!(memory.queue().peek(0), Some(12));
    memory.ask(13, 256, 0);
    assert_eq!(memory.queue().peek(0), Some(12));
    let mut order = Vec::new();
    for _ in 0..4 {
        let mut queue = memory.queue();
        let next = queue.peek(0).expect("somebody is pending");
        queue.release(next);
        order.push(next);
    }
    assert_eq!(order, [12, 13, 11, 10]);
}

#[test]
fn nothing_is_chosen_where_only_one_waits_and_can_run() {
    let mut memory = Memory::new(by_slots(4, Strategy::Swrr));
    for index in 0..4 {
        memory.ask(index, 1, 0);
        assert_eq!(memory.schedule(0), [index]);
    }
    assert_eq!(memory.header.class_states(), [0; CLASSES]);
    // One that cannot run yet has its turn, which somebody smaller may take from it.
    memory.ask(4, 4, 0);
    assert_eq!(memory.schedule(0), [] as [usize; 0]);
    assert_ne!(memory.header.class_states(), [0; CLASSES]);
    memory.ask(5, 1, 0);
    memory.queue().release(0);
    assert_eq!(memory.schedule(0), [5]);
}

#[test]
fn no_backfill_behind_a_head_that_does_not_fit() {
    let mut memory = Memory::new(by_slots(4, Strategy::Swrr));
    memory.ask(0, 3, 0);
    assert_eq!(memory.schedule(0), [0]);
    memory.ask(1, 2, 0);
    assert_eq!(memory.schedule(0), [] as [usize; 0]);
    assert_eq!(memory.entries[1].blocked, Blocked::Slots);
    memory.ask(2, 2, 0);
    assert_eq!(memory.schedule(0), [] as [usize; 0]);
    assert_eq!(memory.queue().position(2), 2);
    memory.queue().release(0);
    assert_eq!(memory.schedule(5), [1, 2]);
    assert_eq!(memory.entries[1].admitted_ms, 5);
    assert_eq!(memory.header.slots, 4);
}

#[test]
fn the_oversized_runs_alone() {
    let mut memory = Memory::new(by_slots(4, Strategy::Sjf));
    memory.ask(0, 9, 0);
    assert_eq!(memory.schedule(0), [0]);
    memory.ask(1, 1, 0);
    assert_eq!(memory.schedule(0), [] as [usize; 0]);
    memory.queue().release(0);
    assert_eq!(memory.schedule(0), [1]);
}

#[test]
fn the_concurrency_limit_counts_the_picks_of_a_round() {
    let limits = Limits {
        concurrency: 1,
        ..by_slots(64, Strategy::Swrr)
    };
    let mut memory = Memory::new(limits);
    memory.ask(0, 1, 0);
    memory.ask(1, 1, 0);
    assert_eq!(memory.schedule(0), [0]);
    assert_eq!(memory.entries[1].blocked, Blocked::Concurrency);
}

#[test]
fn a_full_group_keeps_its_place_and_holds_nobody_up() {
    for strategy in [Strategy::Swrr, Strategy::Sjf] {
        let mut memory = Memory::new(Limits {
            by_group: true,
            ..by_slots(4, strategy)
        });
        memory.groups[0].concurrency = 1;
        memory.ask(0, 1, 1);
        memory.ask(1, 1, 1);
        memory.ask(2, 1, 2);
        memory.ask(3, 1, 0);
        assert_eq!(memory.schedule(0), [0, 2, 3]);
        assert_eq!(memory.entries[1].blocked, Blocked::Group);
        assert_eq!((memory.groups[0].running, memory.groups[0].pending), (1, 1));
        // A pending one that leaves does not count down what runs.
        memory.ask(4, 1, 1);
        memory.queue().release(4);
        assert_eq!(memory.groups[0].running, 1);
        memory.queue().release(0);
        assert_eq!(memory.schedule(0), [1]);
        memory.queue().release(1);
        assert_eq!((memory.groups[0].running, memory.groups[0].pending), (0, 0));
        assert_eq!(memory.groups[0].total, 3);
    }
}

/// A group that uses more than it may keeps its own waiting, whoever else comes, also if none of it runs.
#[test]
fn an_overloaded_group_waits_and_holds_nobody_up() {
    let limits = [
        by_slots(4, Strategy::Swrr),
        by_slots(4, Strategy::Sjf),
        by_load(0),
    ];
    for limits in limits {
        let mut memory = Memory::new(Limits {
            by_group: true,
            ..limits
        });
        memory.groups[0].overloaded = true;
        memory.ask(0, 1, 1);
        memory.ask(1, 1, 2);
        memory.ask(2, 1, 0);
        let mut woken = memory.schedule(0);
        woken.sort_unstable();
        assert_eq!(woken, [1, 2], "{limits:?}");
        assert_eq!(memory.entries[0].blocked, Blocked::Group, "{limits:?}");
        assert_eq!((memory.groups[0].running, memory.groups[0].pending), (0, 1));
        memory.groups[0].overloaded = false;
        assert_eq!(memory.schedule(0), [0], "{limits:?}");
        memory.groups[0].overloaded = true;
        memory.ask(3, 1, 1);
        assert_eq!(memory.schedule(0), [] as [usize; 0], "{limits:?}");
        // While groups do not count, their measured limits do not either.
        memory.queue().set_limits(limits);
        assert_eq!(memory.schedule(0), [3], "{limits:?}");
    }
}

/// However many a group lets run, while it uses more than it may it lets none; and who waits there can wait
/// too long as anybody can, which the group counts.
#[test]
fn an_overloaded_group_counts_who_waited_too_long() {
    let mut memory = Memory::new(Limits {
        by_group: true,
        ..by_slots(4, Strategy::Swrr)
    });
    memory.groups[0] = Group {
        concurrency: 9,
        overloaded: true,
        ..Group::default()
    };
    memory.ask(0, 1, 1);
    assert_eq!(memory.schedule(299_999), [] as [usize; 0]);
    assert_eq!(memory.schedule(300_000), [0]);
    assert_eq!(memory.entries[0].state, State::Expired);
    let group = memory.groups[0];
    assert_eq!(
        (group.pending, group.timeouts, group.total, group.running),
        (0, 1, 1, 0)
    );
}

#[test]
fn version_1_takes_groups_by_turns() {
    let mut memory = Memory::new(by_load(2));
    for (index, group) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 0)] {
        memory.ask(index, 1, group);
    }
    // From a group as many as are allowed, and the next one begins after the last that got any.
    assert_eq!(memory.schedule(0), [4, 0]);
    memory.queue().release(4);
    assert_eq!(memory.schedule(0), [3]);
    memory.queue().release(3);
    assert_eq!(memory.schedule(0), [1]);
    assert_eq!(memory.entries[2].blocked, Blocked::Concurrency);
}

#[test]
fn version_1_waits_while_a_server_is_overloaded() {
    let mut memory = Memory::new(Limits {
        overloaded: true,
        ..by_load(0)
    });
    memory.ask(0, 1, 0);
    assert_eq!(memory.schedule(0), [] as [usize; 0]);
    assert_eq!(memory.entries[0].blocked, Blocked::Overload);
    memory.queue().set_limits(by_load(0));
    assert_eq!(memory.schedule(0), [0]);
}

#[test]
fn expiry_comes_before_admission() {
    let mut memory = Memory::new(by_slots(1, Strategy::Swrr));
    memory.ask(0, 1, 0);
    assert_eq!(memory.schedule(0), [0]);
    memory.ask(1, 1, 0);
    assert_eq!(memory.schedule(299_999), [] as [usize; 0]);
    memory.queue().release(0);
    assert_eq!(memory.schedule(300_000), [1]);
    assert_eq!(memory.entries[1].state, State::Expired);
    assert_eq!(memory.header.counters.timeouts, 1);
    assert_eq!(memory.header.running, 0);
    assert_eq!(memory.queue().release(1), State::Expired);
    assert_eq!(memory.header.pending, 0);
}

#[test]
fn switching_a_kind_off_admits_its_waiters() {
    let mut memory = Memory::new(by_slots(1, Strategy::Swrr));
    for index in 0..3 {
        memory.ask(index, 1, 0);
    }
    assert_eq!(memory.schedule(0), [0]);
    memory.queue().set_limits(Limits {
        kinds: Kind::Load as u32,
        ..by_slots(1, Strategy::Swrr)
    });
    assert_eq!(memory.schedule(0), [1, 2]);
    assert_eq!(memory.entries[1].admitted, Admitted::SwitchedOff);
}

#[test]
fn admission_over_the_limits_is_counted_and_given_back() {
    let mut memory = Memory::new(by_slots(2, Strategy::Swrr));
    memory.ask(0, 2, 0);
    memory.ask(1, 2, 0);
    assert_eq!(memory.schedule(0), [0]);
    memory.queue().admit_over(1, Admitted::InTransaction, 7);
    assert_eq!((memory.header.slots, memory.header.running), (4, 2));
    assert_eq!(memory.header.counters.in_transaction, 1);
    memory.queue().resize(1, 5);
    assert_eq!(memory.header.slots, 7);
    assert_eq!(memory.queue().release(1), State::Running);
    assert_eq!(memory.queue().release(1), State::Free);
    assert_eq!(memory.queue().release(0), State::Running);
    assert_eq!((memory.header.slots, memory.header.running), (0, 0));
}

#[test]
fn what_runs_grows_into_what_nobody_needs() {
    let mut memory = Memory::new(by_slots(4, Strategy::Swrr));
    memory.ask(0, 1, 0);
    memory.ask(1, 1, 0);
    assert_eq!(memory.queue().grow(0, 3), 1, "it is not running yet");
    assert_eq!(memory.schedule(0), [0, 1]);
    assert_eq!(memory.queue().grow(0, 1), 1);
    assert_eq!(memory.queue().grow(0, 9), 3);
    assert_eq!(memory.header.slots, 4);
    assert_eq!(memory.queue().grow(1, 2), 1, "nothing is free");
    memory.queue().release(0);
    memory.ask(2, 4, 0);
    assert_eq!(memory.schedule(0), [] as [usize; 0]);
    assert_eq!(memory.queue().grow(1, 2), 1, "somebody waits for it");
    assert_eq!(memory.queue().grow(99, 2), 0);
    assert_eq!((memory.header.slots, memory.header.running), (1, 1));
}

#[test]
fn settings_read_after_the_clock_was_set_back_count() {
    assert!(is_later_reading(5, 4, 10));
    assert!(!is_later_reading(4, 4, 10));
    assert!(!is_later_reading(4, 5, 10));
    assert!(is_later_reading(4, 11, 10), "the other is from before");
    assert!(!is_later_reading(11, 4, 10), "this is from before");
    assert!(is_later_reading(12, 11, 10), "both are from before");
}

#[test]
fn the_full_queue_rejects_the_last() {
    let mut memory = Memory::new(Limits {
        queued_max: 1,
        ..by_slots(1, Strategy::Swrr)
    });
    memory.ask(0, 1, 0);
    memory.schedule(0);
    memory.ask(1, 1, 0);
    assert!(!memory.queue().is_overfull());
    memory.ask(2, 1, 0);
    assert!(memory.queue().is_overfull());
    memory.queue().reject(2);
    assert_eq!(memory.header.counters.rejected, 1);
    assert_eq!(
        memory.state_of_all(),
        [State::Running, State::Pending, State::Free]
    );
}

impl Memory {
    fn state_of_all(&self) -> [State; 3] {
        [0, 1, 2].map(|index| self.entries[index].state)
    }
}
