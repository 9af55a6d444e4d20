//! A cluster in virtual time around the real task state: the coordinator's rules of use, local
//! processes and links with speeds, latency, pauses and deaths, and an oracle that sees every
//! granule that is read and every row that is passed on.
//!
//! Nothing here is random but the seeded generator, so a seed is a schedule.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use crate::setup::{Outcome, Random, Setup, names, specs};
use parallel_replicas_core::task_state::{ScanSpec, Shrink, Stage, Task, TaskState, size_words};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start,
    GranuleRead,
    TaskArrives {
        id: u32,
        start: u32,
        granules: u32,
    },
    ShrinkArrives {
        id: u32,
        keep_until: u32,
    },
    TaskDone {
        id: u32,
        start: u32,
        granules: u32,
        took: u64,
    },
    Kept {
        id: u32,
        granules: u32,
    },
    FragmentDone {
        idle_since: u64,
    },
    Tick {
        idle_since: u64,
    },
    Dies,
    LossNoticed,
    Cancel,
}

struct Work {
    task: Task,
    read: u32,
    reading: bool,
    /// When it began.
    since: u64,
}

#[derive(Default)]
struct Process {
    queue: VecDeque<Work>,
    /// Read, not passed on: (first granule, how many) by task.
    read: HashMap<u32, (u32, u32)>,
    dead: bool,
    lost: bool,
    idle_since: Option<u64>,
    /// Tasks sent to a link and not done, as the coordinator sees it.
    in_hand: u32,
}

/// How often the coordinator asks again on behalf of idle processes.
const TICK_MICROS: u64 = 10_000;
/// From the death of a process until the coordinator knows.
const NOTICE_MICROS: u64 = 2_000;

pub struct Cluster<'a> {
    setup: &'a Setup,
    state: TaskState<'a>,
    random: Random,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, u16, Event)>>,
    sequence: u64,
    processes: Vec<Process>,
    /// Who is reading a granule right now.
    reader: Vec<Option<u16>>,
    /// How often a granule's rows were passed on.
    passed: Vec<u8>,
    wasted: u32,
}

pub fn run(setup: &Setup) -> Outcome {
    let scan = ScanSpec {
        database: 5,
        relfilenode: 16_384 + setup.seed as u32,
        blocks: setup.granules * 128,
        granule_blocks: 128,
        segment_granules: setup.segment_granules,
    };
    let names = names(setup.replicas);
    let replicas = specs(&names);
    let of: Vec<u16> = setup.participants.iter().map(|p| p.replica).collect();
    let mut memory = vec![0; size_words(&scan, replicas.len(), of.len()).unwrap()];
    let mut state = TaskState::init(&mut memory, &scan, &replicas, &of).unwrap();
    state.set_ramp(setup.ramp);
    let mut cluster = Cluster {
        setup,
        state,
        random: Random::new(setup.seed ^ 0x5eed),
        now: 0,
        events: BinaryHeap::new(),
        sequence: 0,
        processes: of.iter().map(|_| Process::default()).collect(),
        reader: vec![None; setup.granules as usize],
        passed: vec![0; setup.granules as usize],
        wasted: 0,
    };
    cluster.run()
}

impl Cluster<'_> {
    fn at(&mut self, time: u64, process: u16, event: Event) {
        self.sequence += 1;
        self.events
            .push(Reverse((time, self.sequence, process, event)));
    }

    fn latency(&self, process: u16) -> u64 {
        self.setup.participants[usize::from(process)]
            .link_micros
            .unwrap_or(0)
    }

    fn is_link(&self, process: u16) -> bool {
        self.setup.participants[usize::from(process)]
            .link_micros
            .is_some()
    }

    fn process(&mut self, process: u16) -> &mut Process {
        &mut self.processes[usize::from(process)]
    }

    fn run(&mut self) -> Outcome {
        for (process, participant) in (0u16..).zip(&self.setup.participants) {
            self.at(participant.start_at, process, Event::Start);
            if let Some(time) = participant.dies_at {
                self.at(time, process, Event::Dies);
            }
        }
        if let Some(time) = self.setup.cancel_at {
            self.at(time, 0, Event::Cancel);
        }
        let mut cancelled = false;
        while self.state.undelivered() > 0 && !cancelled {
            let Some(Reverse((time, _, process, event))) = self.events.pop() else {
                panic!("stuck with {} undelivered", self.state.undelivered());
            };
            self.now = time;
            assert!(
                self.sequence < self.patience(),
                "stuck: {} left",
                self.state.undelivered()
            );
            if self.setup.trace {
                println!("{time:>9} process {process}: {event:?}");
            }
            cancelled = event == Event::Cancel;
            self.handle(process, event);
        }
        if cancelled {
            assert!(self.passed.iter().all(|times| *times <= 1));
        } else {
            assert!(
                self.passed.iter().all(|times| *times == 1),
                "not exactly once"
            );
            let totals = self.state.verify_complete().expect("complete");
            assert_eq!(
                totals.own + totals.by_hash + totals.rest,
                self.setup.granules
            );
        }
        Outcome {
            makespan: self.now,
            ideal: self.setup.ideal(self.wasted, self.now),
            counters: (0..self.processes.len() as u16)
                .map(|process| self.state.process_counters(process))
                .collect(),
            cancelled,
        }
    }

    /// More events than any schedule needs that makes progress: idle processes tick for ever.
    fn patience(&self) -> u64 {
        100_000 + 100 * u64::from(self.setup.granules)
    }

    fn handle(&mut self, process: u16, event: Event) {
        let participant = &self.setup.participants[usize::from(process)];
        let at_process = matches!(
            event,
            Event::Start
                | Event::GranuleRead
                | Event::TaskArrives { .. }
                | Event::ShrinkArrives { .. }
        );
        if at_process && self.process(process).dead {
            return;
        }
        // A stopped process reads its frames when it resumes.
        if let Some((from, length)) = participant.pause
            && at_process
            && (from..from + length).contains(&self.now)
        {
            return self.at(from + length, process, event);
        }
        match event {
            Event::Start => {
                let delay = self.latency(process);
                let idle_since = self.now;
                self.process(process).idle_since = Some(idle_since);
                self.at(idle_since + delay, process, Event::Tick { idle_since });
            }
            Event::GranuleRead => self.granule_read(process),
            Event::TaskArrives {
                id,
                start,
                granules,
            } => {
                let task = Task {
                    id,
                    start_granule: start,
                    granules,
                    stage: Stage::Own,
                };
                self.process(process).queue.push_back(Work {
                    task,
                    read: 0,
                    reading: false,
                    since: 0,
                });
                self.begin_granule(process);
            }
            Event::ShrinkArrives { id, keep_until } => self.shrink_arrives(process, id, keep_until),
            Event::TaskDone {
                id,
                start,
                granules,
                took,
            } => self.task_done(process, id, start, granules, took),
            Event::Kept { id, granules } => self.kept(process, id, granules),
            Event::FragmentDone { idle_since } => {
                if !self.process(process).dead
                    && self.process(process).idle_since == Some(idle_since)
                {
                    self.deliver_all(process);
                }
            }
            Event::Tick { idle_since } => {
                if self.process(process).idle_since == Some(idle_since) {
                    self.ask(process);
                }
                if self.process(process).idle_since == Some(idle_since) {
                    self.at(self.now + TICK_MICROS, process, event);
                }
            }
            Event::Dies => self.dies(process),
            Event::LossNoticed => self.loss_noticed(process),
            Event::Cancel => {}
        }
    }

    /// The coordinator asks the task state for a process that has nothing, or less than it may.
    fn ask(&mut self, process: u16) {
        // That a link is dead the coordinator learns later; a local process asks for itself.
        let Process { dead, lost, .. } = *self.process(process);
        if lost || (dead && !self.is_link(process)) {
            return;
        }
        if self.is_link(process) {
            while let Some(task) = self.state.request_ahead(process, self.now) {
                let Task {
                    id,
                    start_granule: start,
                    granules,
                    ..
                } = task;
                self.process(process).in_hand += 1;
                self.process(process).idle_since = None;
                let time = self.now + self.latency(process);
                self.at(
                    time,
                    process,
                    Event::TaskArrives {
                        id,
                        start,
                        granules,
                    },
                );
            }
            if self.process(process).in_hand > 0 {
                return;
            }
        } else if let Some(task) = self.state.request_local(process, self.now) {
            let local = self.process(process);
            local.idle_since = None;
            local.queue.push_back(Work {
                task,
                read: 0,
                reading: false,
                since: 0,
            });
            return self.begin_granule(process);
        }
        self.idle(process);
    }

    fn idle(&mut self, process: u16) {
        if let Some(Shrink {
            process: victim,
            task,
            keep_until,
        }) = self.state.shrink_candidate(process, self.now)
        {
            let time = self.now + self.latency(victim);
            self.at(
                time,
                victim,
                Event::ShrinkArrives {
                    id: task,
                    keep_until,
                },
            );
        }
        if self.process(process).idle_since.is_some() {
            return;
        }
        let idle_since = self.now;
        self.process(process).idle_since = Some(idle_since);
        self.at(
            idle_since + TICK_MICROS,
            process,
            Event::Tick { idle_since },
        );
        if !self.setup.streaming {
            if self.is_link(process) {
                let time = idle_since + 2 * self.latency(process);
                self.at(time, process, Event::FragmentDone { idle_since });
            } else {
                self.deliver_all(process);
            }
        }
    }

    fn wake_idle(&mut self) {
        for process in 0..self.processes.len() as u16 {
            if self.process(process).idle_since.is_some() {
                self.ask(process);
            }
        }
    }

    fn begin_granule(&mut self, process: u16) {
        let jitter = self.setup.jitter_percent;
        let percent = 100 - jitter + self.random.below(2 * jitter + 1);
        let participant = &self.setup.participants[usize::from(process)];
        let Some(work) = self.processes[usize::from(process)].queue.front_mut() else {
            return;
        };
        if work.reading {
            return;
        }
        if work.read == 0 {
            work.since = self.now;
        }
        work.reading = true;
        let granule = (work.task.start_granule + work.read) as usize;
        let other = self.reader[granule].replace(process);
        assert_eq!(other, None, "granule {granule} read twice at once");
        assert_eq!(
            self.passed[granule], 0,
            "granule {granule} read after it was passed on"
        );
        let micros = (participant.granule_micros * percent / 100).max(1);
        let time = participant.finish(self.now, micros);
        self.at(time, process, Event::GranuleRead);
    }

    fn granule_read(&mut self, process: u16) {
        let work = self.processes[usize::from(process)]
            .queue
            .front_mut()
            .expect("work");
        self.reader[(work.task.start_granule + work.read) as usize] = None;
        work.reading = false;
        work.read += 1;
        let next = work.task.start_granule + work.read;
        let (task, read) = (work.task, work.read);
        let took = self.now - work.since;
        if !self.is_link(process) {
            if self.state.may_continue(process, &task, next) {
                return self.begin_granule(process);
            }
            self.process(process).queue.pop_front();
            self.record(process, task.id, task.start_granule, read);
            return self.ask(process);
        }
        if read == task.granules {
            let local = self.process(process);
            local.queue.pop_front();
            let (id, start, granules) = (task.id, task.start_granule, read);
            let time = self.now + self.latency(process);
            self.at(
                time,
                process,
                Event::TaskDone {
                    id,
                    start,
                    granules,
                    took,
                },
            );
            if self.setup.duplicates && self.random.chance(10) {
                self.at(
                    time + 1,
                    process,
                    Event::TaskDone {
                        id,
                        start,
                        granules,
                        took,
                    },
                );
            }
        }
        self.begin_granule(process);
    }

    /// Rows of a task have come to where they can be passed on.
    fn record(&mut self, process: u16, id: u32, start: u32, granules: u32) {
        if self.setup.streaming {
            let task = Task {
                id,
                start_granule: start,
                granules,
                stage: Stage::Own,
            };
            self.state.deliver(process, task).expect("deliver");
            assert!(self.state.deliver(process, task).is_err());
            self.pass_on(start, granules);
        } else {
            self.process(process).read.insert(id, (start, granules));
        }
    }

    fn pass_on(&mut self, start: u32, granules: u32) {
        for times in &mut self.passed[start as usize..(start + granules) as usize] {
            *times += 1;
        }
    }

    fn deliver_all(&mut self, process: u16) {
        self.state.deliver_all(process).expect("deliver_all");
        for (_, (start, granules)) in std::mem::take(&mut self.process(process).read) {
            self.pass_on(start, granules);
        }
    }

    fn task_done(&mut self, process: u16, id: u32, start: u32, granules: u32, took: u64) {
        let task = Task {
            id,
            start_granule: start,
            granules,
            stage: Stage::Own,
        };
        if self.process(process).lost {
            // Late: its task is somebody else's by now.
            assert!(self.state.deliver(process, task).is_err());
            self.wasted += granules;
            return;
        }
        if self.state.worked(process, id, self.now, took).is_err() {
            // A duplicate is a protocol error of the link: ignored here, or the link is lost.
            assert!(self.setup.duplicates);
            if self.random.chance(50) {
                self.dies(process);
            }
            return;
        }
        self.process(process).in_hand -= 1;
        self.record(process, id, start, granules);
        self.ask(process);
    }

    fn shrink_arrives(&mut self, process: u16, id: u32, keep_until: u32) {
        let queue = &mut self.process(process).queue;
        let mut kept = 0;
        if let Some(position) = queue.iter().position(|work| work.task.id == id) {
            let work = &mut queue[position];
            let begun = work.read + u32::from(work.reading);
            let wanted = keep_until.saturating_sub(work.task.start_granule);
            kept = wanted.max(begun).min(work.task.granules);
            work.task.granules = kept;
            if kept == 0 {
                queue.remove(position);
            }
        }
        let time = self.now + self.latency(process);
        self.at(time, process, Event::Kept { id, granules: kept });
    }

    fn kept(&mut self, process: u16, id: u32, granules: u32) {
        if self.process(process).lost {
            assert!(self.state.give_back(process, id, granules).is_err());
            return;
        }
        let returned = self
            .state
            .give_back(process, id, granules)
            .expect("give_back");
        if returned > 0 {
            self.process(process).in_hand -= u32::from(granules == 0);
            self.wake_idle();
            if self.process(process).in_hand == 0 && self.process(process).idle_since.is_none() {
                self.ask(process);
            }
        }
    }

    fn dies(&mut self, process: u16) {
        let dead = self.process(process);
        if std::mem::replace(&mut dead.dead, true) {
            return;
        }
        let queue = std::mem::take(&mut dead.queue);
        for work in queue {
            self.wasted += work.read;
            if work.reading {
                self.reader[(work.task.start_granule + work.read) as usize] = None;
            }
        }
        self.at(self.now + NOTICE_MICROS, process, Event::LossNoticed);
    }

    fn loss_noticed(&mut self, process: u16) {
        let lost = self.process(process);
        lost.lost = true;
        lost.idle_since = None;
        let read: u32 = std::mem::take(&mut lost.read)
            .values()
            .map(|(_, n)| n)
            .sum();
        self.wasted += read;
        assert!(self.state.lose(process).expect("lose") >= read);
        let replica = self.setup.participants[usize::from(process)].replica;
        let mut all = self.setup.participants.iter().zip(&self.processes);
        if all.all(|(participant, process)| participant.replica != replica || process.lost) {
            self.state.set_replica_live(replica, false);
        }
        self.wake_idle();
    }
}
