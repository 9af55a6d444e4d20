//! Properties of the task state under random interleavings, against a model that knows of every
//! granule who has it; and the promises of rendezvous hashing.
//!
//! The model trusts nothing: a granule that is handed out must be free in the model, or be taken
//! from a holder that had not begun it.

use parallel_replicas_core::rendezvous::{Placement, Rendezvous};
use parallel_replicas_core::task_state::{
    ReplicaSpec, ScanSpec, Stage, Task, TaskError, TaskState, size_words,
};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granule {
    Free,
    Held(u16),
    Delivered,
}

/// A task as its process sees it.
#[derive(Clone, Copy, Debug)]
struct Holding {
    task: Task,
    /// Granules begun; what a local process has begun can not be taken from it.
    begun: u32,
    /// Not the process's current task any more.
    worked: bool,
}

struct Model<'a> {
    state: TaskState<'a>,
    granules: Vec<Granule>,
    held: Vec<Vec<Holding>>,
    /// Processes of odd number are links: they never poll, and answer shrinks.
    lost: Vec<bool>,
    /// Tasks that were taken from their processes: their results must never be accepted.
    stale: Vec<(u16, Task)>,
    now: u64,
}

fn is_link(process: u16) -> bool {
    process % 2 == 1
}

impl Model<'_> {
    fn request(&mut self, process: u16, ahead: bool) -> Option<Task> {
        let task = if ahead {
            self.state.request_ahead(process, self.now)
        } else {
            for holding in &mut self.held[usize::from(process)] {
                holding.worked = true;
                holding.begun = holding.task.granules;
            }
            self.state.request(process, self.now)
        }?;
        assert!(!self.lost[usize::from(process)]);
        assert!(task.granules > 0);
        for granule in task.start_granule..task.end_granule() {
            match self.granules[granule as usize] {
                Granule::Free => {}
                Granule::Held(victim) => self.take_from(victim, process, granule),
                Granule::Delivered => panic!("delivered granule {granule} handed out"),
            }
            self.granules[granule as usize] = Granule::Held(process);
        }
        let held = &mut self.held[usize::from(process)];
        held.push(Holding {
            task,
            begun: u32::from(!ahead),
            worked: false,
        });
        Some(task)
    }

    /// `granule` was given to another: only a local process's last granules, not begun, may be.
    fn take_from(&mut self, victim: u16, asker: u16, granule: u32) {
        assert_ne!(victim, asker);
        assert!(!is_link(victim));
        let held = &mut self.held[usize::from(victim)];
        let holding = held
            .iter_mut()
            .find(|h| (h.task.start_granule..h.task.end_granule()).contains(&granule))
            .expect("victim does not hold it");
        assert!(!holding.worked && granule >= holding.task.start_granule + holding.begun);
        // The run is taken from its first granule to its last: cut once, keep what is before it.
        let taken = holding.task.end_granule() - granule;
        holding.task.granules -= taken;
        for later in granule..granule + taken {
            self.granules[later as usize] = Granule::Free;
        }
    }

    fn deliver(&mut self, process: u16, index: usize) {
        let held = &mut self.held[usize::from(process)];
        if held.is_empty() {
            let bogus = Task {
                id: 1,
                start_granule: 0,
                granules: 1,
                stage: Stage::Own,
            };
            assert!(self.state.deliver(process, bogus).is_err());
            return;
        }
        let index = index % held.len();
        let Holding { task, .. } = held.remove(index);
        let wrong = Task {
            granules: task.granules + 1,
            ..task
        };
        assert!(matches!(
            self.state.deliver(process, wrong),
            Err(TaskError::WrongExtent { .. })
        ));
        self.state.deliver(process, task).unwrap();
        assert!(matches!(
            self.state.deliver(process, task),
            Err(TaskError::AlreadyDelivered { .. })
        ));
        for granule in task.start_granule..task.end_granule() {
            self.granules[granule as usize] = Granule::Delivered;
        }
    }

    fn deliver_all(&mut self, process: u16) {
        if self.lost[usize::from(process)] {
            assert!(self.state.deliver_all(process).is_err());
            return;
        }
        self.state.deliver_all(process).unwrap();
        self.held[usize::from(process)].clear();
        for granule in &mut self.granules {
            if *granule == Granule::Held(process) {
                *granule = Granule::Delivered;
            }
        }
    }

    fn lose(&mut self, process: u16) {
        let expected: u32 = self.held[usize::from(process)]
            .iter()
            .map(|h| h.task.granules)
            .sum();
        assert_eq!(self.state.lose(process), Ok(expected));
        assert_eq!(self.state.lose(process), Ok(0));
        self.lost[usize::from(process)] = true;
        for granule in &mut self.granules {
            if *granule == Granule::Held(process) {
                *granule = Granule::Free;
            }
        }
        for holding in std::mem::take(&mut self.held[usize::from(process)]) {
            self.stale.push((process, holding.task));
        }
        self.deliver_stale();
        assert_eq!(self.state.request(process, self.now), None);
    }

    /// Results that come late, when their tasks are somebody else's, or the same process's again.
    fn deliver_stale(&mut self) {
        for (process, task) in &self.stale {
            assert!(self.state.deliver(*process, *task).is_err());
        }
    }

    fn continue_current(&mut self, process: u16) {
        let held = &mut self.held[usize::from(process)];
        let Some(holding) = held.iter_mut().find(|h| !h.worked) else {
            return;
        };
        let next = holding.task.start_granule + holding.begun;
        if is_link(process) {
            holding.begun = (holding.begun + 1).min(holding.task.granules);
            self.state.progress(process, holding.task.id, next);
            return;
        }
        let expected = holding.begun < holding.task.granules;
        assert_eq!(
            self.state.may_continue(process, &holding.task, next),
            expected
        );
        holding.begun += u32::from(expected);
    }

    fn worked(&mut self, process: u16) {
        let held = &mut self.held[usize::from(process)];
        let Some(holding) = held.iter_mut().find(|h| !h.worked) else {
            return;
        };
        holding.worked = true;
        holding.begun = holding.task.granules;
        self.state
            .worked(process, holding.task.id, self.now, 1000)
            .unwrap();
    }

    fn shrink(&mut self, asker: u16) {
        let Some(shrink) = self.state.shrink_candidate(asker, self.now) else {
            return;
        };
        let held = &mut self.held[usize::from(shrink.process)];
        let position = held
            .iter()
            .position(|h| h.task.id == shrink.task)
            .expect("not held");
        let holding = &mut held[position];
        assert!(!holding.worked);
        let wanted = shrink.keep_until - holding.task.start_granule;
        assert!(wanted < holding.task.granules);
        let kept = wanted.max(holding.begun);
        let returned = holding.task.granules - kept;
        for granule in holding.task.start_granule + kept..holding.task.end_granule() {
            self.granules[granule as usize] = Granule::Free;
        }
        holding.task.granules = kept;
        assert!(
            self.state
                .give_back(shrink.process, shrink.task, 1 << 20)
                .is_err()
        );
        assert_eq!(
            self.state.give_back(shrink.process, shrink.task, kept),
            Ok(returned)
        );
        if kept == 0 {
            held.remove(position);
        }
    }

    fn check(&self) {
        let free = self
            .granules
            .iter()
            .filter(|g| **g == Granule::Free)
            .count();
        let delivered = self
            .granules
            .iter()
            .filter(|g| **g == Granule::Delivered)
            .count();
        assert_eq!(self.state.unassigned() as usize, free);
        assert_eq!(
            self.state.undelivered() as usize,
            self.granules.len() - delivered
        );
        let counted: u32 = (0..self.held.len() as u16)
            .map(|p| self.state.process_counters(p))
            .map(|c| c.own + c.by_hash + c.rest)
            .sum();
        assert_eq!(counted as usize, self.granules.len() - free);
    }

    fn step(&mut self, (kind, process, argument, micros): (u8, u8, u16, u16)) {
        self.now += u64::from(micros);
        let process = u16::from(process) % self.held.len() as u16;
        match kind {
            0..=5 => drop(self.request(process, false)),
            6..=8 if is_link(process) => drop(self.request(process, true)),
            6..=8 => self.continue_current(process),
            9..=10 => self.continue_current(process),
            11..=12 => self.worked(process),
            13..=15 => self.deliver(process, usize::from(argument)),
            16 => self.deliver_all(process),
            17 => self.lose(process),
            18 => {
                self.state.revive(process).unwrap();
                self.lost[usize::from(process)] = false;
            }
            19 => self.state.set_replica_live(argument % 8, argument % 3 == 0),
            20..=21 => self.shrink(process),
            22 => self.state.set_ramp(argument % 2 == 0),
            _ => self.deliver_stale(),
        }
        self.check();
    }

    /// Everybody comes back and works until the end.
    fn drain(&mut self) {
        for round in 0.. {
            assert!(
                round < 100_000,
                "does not end: {} left",
                self.state.undelivered()
            );
            for process in 0..self.held.len() as u16 {
                self.state.revive(process).unwrap();
                self.lost[usize::from(process)] = false;
                self.deliver_all(process);
                self.now += 1000;
                self.request(process, false);
            }
            if self.state.undelivered() == 0 {
                break;
            }
        }
        let totals = self.state.verify_complete().unwrap();
        assert_eq!(totals.selected, totals.own + totals.by_hash + totals.rest);
        assert_eq!(totals.selected as usize, self.granules.len());
    }
}

fn scans() -> impl Strategy<Value = ScanSpec> {
    (
        0u32..40_000,
        0u32..8,
        prop_oneof![Just(0u32), Just(1), Just(4), Just(64)],
    )
        .prop_map(|(blocks, shift, segment_granules)| ScanSpec {
            database: 5,
            relfilenode: 16_400,
            blocks: blocks >> (7 - shift),
            granule_blocks: 1 << shift,
            segment_granules,
        })
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn specs(replicas: usize) -> Vec<ReplicaSpec<'static>> {
    NAMES[..replicas]
        .iter()
        .map(|name| ReplicaSpec { name, weight: 1 })
        .collect()
}

proptest! {
    #[test]
    fn every_granule_exactly_once(
        scan in scans(),
        replicas in 1usize..8,
        processes in 1usize..10,
        steps in prop::collection::vec((0u8..24, any::<u8>(), any::<u16>(), any::<u16>()), 0..400),
    ) {
        let of: Vec<u16> = (0..processes).map(|p| (p % replicas) as u16).collect();
        let mut memory = vec![u64::MAX; size_words(&scan, replicas, processes).unwrap()];
        let state = TaskState::init(&mut memory, &scan, &specs(replicas), &of).unwrap();
        let mut model = Model {
            granules: vec![Granule::Free; state.selected() as usize],
            state,
            held: vec![Vec::new(); processes],
            lost: vec![false; processes],
            stale: Vec::new(),
            now: 0,
        };
        for step in steps {
            model.step(step);
        }
        model.drain();
    }

    #[test]
    fn garbage_is_rejected(mut words in prop::collection::vec(any::<u64>(), 0..200)) {
        prop_assert!(TaskState::attach(&mut words).is_err());
    }

    #[test]
    fn damaged_header_is_rejected(word in 0usize..5, bit in 0u32..64) {
        let scan = ScanSpec {
            database: 1, relfilenode: 2, blocks: 5000, granule_blocks: 128, segment_granules: 0,
        };
        let mut memory = vec![0; size_words(&scan, 3, 4).unwrap()];
        TaskState::init(&mut memory, &scan, &specs(3), &[0, 1, 2, 0]).unwrap();
        prop_assert!(TaskState::attach(&mut memory).is_ok());
        let short = memory.len() - 1;
        prop_assert!(TaskState::attach(&mut memory[..short]).is_err());
        memory[word] ^= 1 << bit;
        prop_assert!(TaskState::attach(&mut memory).is_err());
    }

    /// A replica that goes away moves its own segments only, to their stealers; one that comes
    /// takes only what it wins.
    #[test]
    fn ownership_moves_only_as_promised(
        count in 2usize..8,
        gone in any::<prop::sample::Index>(),
        weights in prop::collection::vec(1u32..5, 8),
        database in any::<u32>(),
        starts in prop::collection::vec(any::<u32>(), 1..200),
    ) {
        let all: Vec<ReplicaSpec> =
            (0..count).map(|i| ReplicaSpec { name: NAMES[i], weight: weights[i] }).collect();
        let gone = gone.index(count);
        let mut fewer = all.clone();
        fewer.remove(gone);
        let (before, after) = (Rendezvous::new(&all).unwrap(), Rendezvous::new(&fewer).unwrap());
        for start in starts {
            let Placement { owner, stealer } = before.place(database, 7, start);
            let now = fewer[usize::from(after.place(database, 7, start).owner)].name;
            let owner_name = all[usize::from(owner)].name;
            let expected = if usize::from(owner) == gone {
                all[usize::from(stealer.unwrap())].name
            } else {
                owner_name
            };
            prop_assert_eq!(now, expected);
        }
    }
}

#[test]
fn wrong_arguments_are_errors() {
    let scan = ScanSpec {
        database: 1,
        relfilenode: 2,
        blocks: 1000,
        granule_blocks: 128,
        segment_granules: 0,
    };
    let mut memory = vec![0; size_words(&scan, 2, 2).unwrap()];
    let replicas = specs(2);
    for bad in [
        ScanSpec {
            granule_blocks: 0,
            ..scan
        },
        ScanSpec {
            granule_blocks: 100,
            ..scan
        },
        ScanSpec {
            segment_granules: 3,
            ..scan
        },
        ScanSpec {
            blocks: u32::MAX,
            granule_blocks: 1,
            ..scan
        },
    ] {
        assert!(TaskState::init(&mut memory, &bad, &replicas, &[0, 1]).is_err());
    }
    assert!(TaskState::init(&mut memory, &scan, &replicas, &[0, 2]).is_err());
    assert!(TaskState::init(&mut memory, &scan, &[], &[0]).is_err());
    assert!(TaskState::init(&mut memory, &scan, &replicas, &[]).is_err());
    assert!(TaskState::init(&mut memory[1..], &scan, &replicas, &[0, 1]).is_err());

    let mut state = TaskState::init(&mut memory, &scan, &replicas, &[0, 1]).unwrap();
    assert_eq!(state.selected(), 8);
    assert_eq!(state.request(2, 0), None);
    assert!(state.lose(2).is_err() && state.deliver_all(2).is_err() && state.revive(2).is_err());
    assert!(state.worked(0, 1, 0, 0).is_err() && state.give_back(9, 1, 0).is_err());
    state.set_replica_live(77, false);
    let task = state.request(0, 0).unwrap();
    assert!(matches!(
        state.deliver(1, task),
        Err(TaskError::NotHeld { .. })
    ));
    assert!(matches!(
        state.verify_complete(),
        Err(TaskError::Undelivered { .. })
    ));
}

#[test]
fn last_granule_may_be_short() {
    let task = Task {
        id: 1,
        start_granule: 7,
        granules: 1,
        stage: Stage::Own,
    };
    assert_eq!(task.block_range(128, 1000), (896, 104));
    assert_eq!(task.block_range(128, 100), (100, 0));
    let huge = Task {
        start_granule: u32::MAX,
        granules: u32::MAX,
        ..task
    };
    assert_eq!(huge.block_range(128, u32::MAX), (u32::MAX, 0));
}

/// Two scans of the same table have the same map; a segment never crosses a part.
#[test]
fn automatic_segments() {
    for (blocks, expected) in [
        (0, 1),
        (100, 1),
        (128 * 511, 1),
        (128 * 512, 4),
        (128 * 16_383, 4),
        (128 * 16_384, 16),
        (128 * 65_536, 64),
    ] {
        let scan = ScanSpec {
            database: 1,
            relfilenode: 2,
            blocks,
            granule_blocks: 128,
            segment_granules: 0,
        };
        let mut memory = vec![0; size_words(&scan, 2, 1).unwrap()];
        let state = TaskState::init(&mut memory, &scan, &specs(2), &[0]).unwrap();
        assert_eq!(state.segment_granules(), expected);
    }
    let scan = ScanSpec {
        database: 1,
        relfilenode: 2,
        blocks: 300_000,
        granule_blocks: 65_536,
        segment_granules: 64,
    };
    let mut memory = vec![0; size_words(&scan, 2, 1).unwrap()];
    let state = TaskState::init(&mut memory, &scan, &specs(2), &[0]).unwrap();
    assert_eq!((state.selected(), state.segment_granules()), (5, 2));
}
