//! Whatever happens in whatever order: nobody runs above the limits who was not admitted above them,
//! every slot comes back, nobody is forgotten, and nobody starves.

use parallel_replicas_core::queue::{
    Admitted, Entry, Group, Header, Kind, Limits, Queue, Request, State, Strategy as Schedule,
};
use proptest::prelude::*;

const BACKENDS: usize = 12;
const GROUPS: usize = 2;

#[derive(Clone, Debug)]
enum Event {
    Ask {
        index: usize,
        slots: u32,
        group: u32,
        load: bool,
    },
    Release(usize),
    AdmitOver(usize),
    Resize(usize, u32),
    Limits(Limits),
    GroupLimit(usize, u32),
    Pass(u64),
}

fn limits() -> impl Strategy<Value = Limits> {
    (
        0_u32..4,
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
        any::<bool>(),
        1_u32..20,
        0_u32..5,
        1_u64..5000,
    )
        .prop_map(
            |(kinds, by_slots, by_group, overloaded, sjf, total, concurrency, timeout_ms)| Limits {
                kinds,
                by_slots,
                by_group,
                overloaded,
                strategy: if sjf { Schedule::Sjf } else { Schedule::Swrr },
                total,
                servers: 1,
                concurrency,
                queued_max: 0,
                timeout_ms,
            },
        )
}

fn event() -> impl Strategy<Value = Event> {
    let index = 0..BACKENDS;
    prop_oneof![
        6 => (index.clone(), 1_u32..25, 0..=GROUPS as u32, any::<bool>())
            .prop_map(|(index, slots, group, load)| Event::Ask { index, slots, group, load }),
        5 => index.clone().prop_map(Event::Release),
        1 => index.clone().prop_map(Event::AdmitOver),
        1 => (index, 1_u32..25).prop_map(|(index, slots)| Event::Resize(index, slots)),
        1 => limits().prop_map(Event::Limits),
        1 => (0..GROUPS, 0_u32..3).prop_map(|(group, limit)| Event::GroupLimit(group, limit)),
        2 => (0_u64..400).prop_map(Event::Pass),
    ]
}

struct Memory {
    header: Header,
    entries: Vec<Entry>,
    groups: Vec<Group>,
    now: u64,
    woken: Vec<usize>,
}

impl Memory {
    fn new(limits: Limits) -> Self {
        let mut header = Header::default();
        header.limits = limits;
        Memory {
            header,
            entries: vec![Entry::default(); BACKENDS],
            groups: vec![Group::default(); GROUPS],
            now: 0,
            woken: Vec::new(),
        }
    }

    fn queue(&mut self) -> Queue<'_> {
        Queue {
            header: &mut self.header,
            entries: &mut self.entries,
            groups: &mut self.groups,
        }
    }

    fn schedule(&mut self) {
        let now = self.now;
        let mut woken = std::mem::take(&mut self.woken);
        woken.clear();
        self.queue().schedule(now, &mut |index| woken.push(index));
        self.woken = woken;
    }

    fn apply(&mut self, event: &Event) {
        let now = self.now;
        match event.clone() {
            Event::Ask {
                index,
                slots,
                group,
                load,
            } => {
                let kind = if load { Kind::Load } else { Kind::Select };
                self.queue()
                    .enqueue(index, Request { kind, slots, group }, now);
            }
            Event::Release(index) => {
                self.queue().release(index);
            }
            Event::AdmitOver(index) => {
                self.queue().admit_over(index, Admitted::Blocker, now);
            }
            Event::Resize(index, slots) => self.queue().resize(index, slots),
            Event::Limits(limits) => self.queue().set_limits(limits),
            Event::GroupLimit(group, limit) => self.groups[group].concurrency = limit,
            Event::Pass(ms) => self.now += ms,
        }
    }

    fn in_state(&self, state: State) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.state == state)
    }

    fn check_books(&mut self) {
        let running: u64 = self
            .in_state(State::Running)
            .map(|entry| u64::from(entry.slots))
            .sum();
        assert_eq!(self.header.slots, running);
        assert_eq!(
            self.header.running as usize,
            self.in_state(State::Running).count()
        );
        let over = || {
            self.in_state(State::Running)
                .filter(|entry| entry.admitted != Admitted::Scheduler)
        };
        assert_eq!(self.header.running_over as usize, over().count());
        let slots_over: u64 = over().map(|entry| u64::from(entry.slots)).sum();
        assert_eq!(self.header.slots_over, slots_over);
        let pending = self.in_state(State::Pending).count();
        assert_eq!(self.header.pending as usize, pending);
        for (index, group) in self.groups.iter().enumerate() {
            let of_group = |state| {
                self.in_state(state)
                    .filter(|entry| entry.group as usize == index + 1)
                    .count()
            };
            assert_eq!(group.running as usize, of_group(State::Running));
            let over = over().filter(|entry| entry.group as usize == index + 1);
            assert_eq!(group.running_over as usize, over.count());
            assert_eq!(group.pending as usize, of_group(State::Pending));
        }
        let listed: Vec<usize> = self.queue().pending().collect();
        assert_eq!(listed.len(), pending, "{listed:?}");
        let tickets: Vec<u64> = listed.iter().map(|i| self.entries[*i].ticket).collect();
        assert!(tickets.is_sorted());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_books_balance_and_limits_hold(
        first in limits(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut memory = Memory::new(first);
        for event in &events {
            memory.apply(event);
            let before = memory.header;
            let groups = memory.groups.clone();
            memory.schedule();
            memory.check_books();
            let header = memory.header;
            let limits = header.limits;
            // Where all others were admitted over the limits, one runs whatever it needs.
            let alone = before.running == before.running_over
                && header.running - header.running_over == 1;
            let granted: Vec<usize> = memory
                .woken
                .iter()
                .copied()
                .filter(|index| memory.entries[*index].state == State::Running
                    && memory.entries[*index].admitted == Admitted::Scheduler)
                .collect();
            if granted.is_empty() {
                continue;
            }
            // What the scheduler itself let in is within every limit, whatever others did.
            if limits.by_slots {
                prop_assert!(header.slots <= u64::from(limits.total) || alone);
            } else {
                prop_assert!(!limits.overloaded);
            }
            if limits.concurrency > 0 {
                prop_assert!(header.running <= limits.concurrency || alone);
            }
            for index in granted {
                let group = memory.entries[index].group;
                if limits.by_group && group > 0 {
                    let group = group as usize - 1;
                    let (before, now) = (groups[group], memory.groups[group]);
                    let alone = before.running == before.running_over
                        && now.running - now.running_over == 1;
                    prop_assert!(now.concurrency == 0 || now.running <= now.concurrency || alone);
                }
            }
        }
        // Everybody leaves: nothing is left behind.
        for index in 0..BACKENDS {
            memory.queue().release(index);
        }
        memory.check_books();
        prop_assert_eq!(memory.header.slots, 0);
        prop_assert_eq!(memory.header.pending, 0);
    }

    /// Room for whoever is next is always used: after a round the one that is next does not fit.
    #[test]
    fn no_room_is_wasted(
        first in limits(),
        events in prop::collection::vec(event(), 1..80),
    ) {
        let mut memory = Memory::new(first);
        for event in &events {
            memory.apply(event);
            memory.schedule();
            let limits = memory.header.limits;
            let only_over = memory.header.running == memory.header.running_over;
            let limited = limits.concurrency > 0
                && memory.header.running >= limits.concurrency
                && !only_over;
            if only_over && !limits.overloaded {
                let grouped = limits.by_group;
                prop_assert!(grouped || memory.header.pending == 0);
            }
            if limits.by_slots && !limited {
                let now = memory.now;
                let next = memory.queue().peek(now);
                if let Some(next) = next {
                    let sum = memory.header.slots + u64::from(memory.entries[next].slots);
                    prop_assert!(sum > u64::from(limits.total) && !only_over);
                }
            }
        }
    }

    /// Statements that are admitted over the limits keep coming, so that they alone fill all slots and
    /// every concurrency limit at any moment: all others get on nevertheless.
    #[test]
    fn those_admitted_over_the_limits_keep_nobody_out(
        limits in limits(),
        group_limit in 0_u32..3,
        over in prop::collection::vec((1_u32..25, 0..=GROUPS as u32), 6),
        others in prop::collection::vec((1_u32..25, 0..=GROUPS as u32), 6),
    ) {
        let limits = Limits { kinds: 3, overloaded: false, timeout_ms: 0, ..limits };
        let mut memory = Memory::new(limits);
        memory.groups = vec![Group { concurrency: group_limit, ..Group::default() }; GROUPS];
        let ask = |memory: &mut Memory, index: usize, (slots, group): (u32, u32)| {
            memory.apply(&Event::Ask { index, slots, group, load: false });
        };
        for (index, request) in over.iter().enumerate() {
            ask(&mut memory, index, *request);
            memory.apply(&Event::AdmitOver(index));
        }
        for (index, request) in others.iter().enumerate() {
            ask(&mut memory, over.len() + index, *request);
        }
        // In each round one statement over the limits ends, and a new one comes before the others
        // are looked at; whoever else runs ends.
        for round in 0..others.len() {
            let index = round % over.len();
            memory.apply(&Event::Release(index));
            ask(&mut memory, index, over[index]);
            memory.apply(&Event::AdmitOver(index));
            memory.schedule();
            memory.check_books();
            for index in over.len()..BACKENDS {
                if memory.entries[index].state == State::Running {
                    memory.apply(&Event::Release(index));
                }
            }
        }
        prop_assert_eq!(memory.header.pending, 0);
    }

    /// A steady stream of one-slot queries, which alone would keep every slot busy for ever, and one
    /// query of any size among them: it runs long before its timeout.
    #[test]
    fn nobody_starves(
        sjf in any::<bool>(),
        total in 1_u32..24,
        size in 1_u32..30,
        work_ms in 1_u64..400,
        backlog in 0_usize..20,
    ) {
        const STREAM: usize = 60;
        let timeout_ms = 300_000;
        let limits = Limits {
            kinds: 1,
            by_slots: true,
            strategy: if sjf { Schedule::Sjf } else { Schedule::Swrr },
            total,
            servers: 1,
            timeout_ms,
            ..Limits::default()
        };
        let mut memory = Memory::new(limits);
        memory.entries = vec![Entry::default(); STREAM + 1];
        let small = |index| Event::Ask { index, slots: 1, group: 0, load: false };
        let busy = (total as usize + backlog).min(STREAM);
        for index in 0..busy {
            memory.apply(&small(index));
        }
        memory.schedule();
        memory.apply(&Event::Ask { index: STREAM, slots: size, group: 0, load: false });
        // Each small query that ends is followed by a new one at once.
        while memory.entries[STREAM].state == State::Pending {
            memory.now += work_ms;
            for index in 0..busy {
                if memory.entries[index].state == State::Running
                    && memory.now >= memory.entries[index].admitted_ms + work_ms
                {
                    memory.queue().release(index);
                    memory.apply(&small(index));
                }
            }
            memory.schedule();
            prop_assert!(memory.now < timeout_ms, "starved");
        }
        prop_assert_eq!(memory.entries[STREAM].state, State::Running);
        prop_assert!(memory.now <= timeout_ms / 4 + 60 * work_ms + 1000, "{}", memory.now);
    }
}
