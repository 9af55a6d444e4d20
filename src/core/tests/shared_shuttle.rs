//! Many orders of larger scans: four local processes, and two links that the leader serves, with
//! shuttle. A failure prints the order for `shuttle::replay`.

mod shared;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering as Counted};

use parallel_replicas_core::task_state::{LocalWork, Shrink, Task, TaskState};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use shared::{Memory, STEP_MICROS, check, next_granule, words, work};

const WORKERS: u16 = 3;
/// Leader, workers, and two links of replica 1 and 2.
const PROCESSES: [u16; 6] = [0, 0, 0, 0, 1, 2];
const GRANULES: u32 = 48;
/// More steps than any order needs: a scan that does not end fails.
const STEPS_MAX: u32 = 20_000;

struct Model {
    state: Mutex<(Vec<u64>, u64)>,
    being_read: Vec<AtomicBool>,
}

impl Memory for Model {
    fn with<T>(&self, f: impl FnOnce(&mut TaskState<'_>, u64) -> T) -> T {
        let mut guard = self.state.lock().unwrap();
        let (words, now) = &mut *guard;
        *now += STEP_MICROS;
        f(&mut TaskState::attach(words).unwrap(), *now)
    }

    fn read(&self, granule: u32) {
        let granule = &self.being_read[granule as usize];
        assert!(!granule.swap(true, Ordering::SeqCst), "two readers at once");
        granule.store(false, Ordering::SeqCst);
    }
}

/// A link as the leader sees it, and what its replica has done.
struct Link {
    process: u16,
    tasks: VecDeque<Task>,
    /// The granule of the first task that it reads next.
    next: u32,
    /// Read, and not passed on.
    held: Vec<u32>,
    passed_on: Vec<u32>,
    ended: bool,
}

impl Link {
    fn new(process: u16) -> Self {
        Self {
            process,
            tasks: VecDeque::new(),
            next: 0,
            held: Vec::new(),
            passed_on: Vec::new(),
            ended: false,
        }
    }

    fn push(&mut self, task: Task) {
        if self.tasks.is_empty() {
            self.next = task.start_granule;
        }
        self.tasks.push_back(task);
    }

    /// Something happens on it. `fate` is drawn from 0..16.
    fn step(&mut self, model: &Model, streaming: bool, fate: u32) {
        let process = self.process;
        if self.ended {
            return;
        }
        if self.tasks.is_empty() {
            match model.with(|state, now| state.request(process, now)) {
                Some(task) => self.push(task),
                None => self.end(model),
            }
            return;
        }
        match fate {
            0 => {
                model.with(|state, _| {
                    state.lose(process).unwrap();
                    state.set_replica_live(PROCESSES[usize::from(process)], false);
                });
                self.held.clear();
                self.tasks.clear();
                self.ended = true;
            }
            1..=3 => {
                if let Some(task) = model.with(|state, now| state.request_ahead(process, now)) {
                    self.push(task);
                }
            }
            _ => {
                model.read(self.next);
                self.held.push(self.next);
                self.next += 1;
                self.end_task(model, streaming);
            }
        }
    }

    fn end_task(&mut self, model: &Model, streaming: bool) {
        let Some(task) = self.tasks.front().copied() else {
            return;
        };
        if self.next < task.end_granule() {
            return;
        }
        let process = self.process;
        model.with(|state, now| {
            state.worked(process, task.id, now, 1000).unwrap();
            if streaming {
                state.deliver(process, task).unwrap();
            }
        });
        if streaming {
            self.passed_on.append(&mut self.held);
        }
        self.tasks.pop_front();
        self.next = self.tasks.front().map_or(0, |task| task.start_granule);
    }

    /// The replica obeys a Shrink frame.
    fn shrink(&mut self, model: &Model, streaming: bool, shrink: &Shrink) {
        let Some(position) = self.tasks.iter().position(|task| task.id == shrink.task) else {
            return;
        };
        let task = &mut self.tasks[position];
        let begun = position == 0 && self.next > task.start_granule;
        let kept = match begun {
            true => shrink.keep_until.clamp(self.next, task.end_granule()) - task.start_granule,
            false => 0,
        };
        task.granules = kept;
        let process = self.process;
        model.with(|state, _| state.give_back(process, shrink.task, kept).unwrap());
        if kept == 0 {
            self.tasks.remove(position);
            if position == 0 {
                self.next = self.tasks.front().map_or(0, |task| task.start_granule);
            }
        } else {
            self.end_task(model, streaming);
        }
    }

    fn end(&mut self, model: &Model) {
        model.with(|state, _| state.deliver_all(self.process).unwrap());
        self.passed_on.append(&mut self.held);
        self.ended = true;
    }
}

static LOST: AtomicU64 = AtomicU64::new(0);
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);

fn scan() {
    let streaming = thread_rng().gen_bool(0.5);
    let model = Arc::new(Model {
        state: Mutex::new((words(GRANULES, 8, &PROCESSES), 0)),
        being_read: (0..GRANULES).map(|_| AtomicBool::new(false)).collect(),
    });
    if thread_rng().gen_bool(0.2) {
        model.with(|state, _| state.set_ramp(true));
    }
    let workers: Vec<_> = (1..=WORKERS)
        .map(|process| {
            let model = model.clone();
            thread::spawn(move || work(&*model, process))
        })
        .collect();
    let mut links = [Link::new(WORKERS + 1), Link::new(WORKERS + 2)];
    let mut passed_on = Vec::new();
    // The leader serves the links between its own granules, as the executor does.
    let lead = |links: &mut [Link], passed_on: &mut Vec<u32>| {
        let mut own = LocalWork::default();
        for _ in 0..STEPS_MAX {
            for link in &mut *links {
                link.step(&model, streaming, thread_rng().gen_range(0..16));
            }
            let Some(granule) = next_granule(&*model, 0, &mut own) else {
                if links.iter().all(|link| link.ended) {
                    return;
                }
                if let Some(shrink) = model.with(|state, now| state.shrink_candidate(0, now)) {
                    // A worker that has not come to a granule's end cannot be asked.
                    let of = links.iter_mut().find(|link| link.process == shrink.process);
                    if let Some(link) = of {
                        link.shrink(&model, streaming, &shrink);
                    }
                }
                continue;
            };
            model.read(granule);
            passed_on.push(granule);
        }
        panic!("the scan does not end");
    };
    lead(&mut links, &mut passed_on);
    for worker in workers {
        passed_on.extend(worker.join().unwrap());
    }
    lead(&mut links, &mut passed_on);
    passed_on.extend(links.iter().flat_map(|link| &link.passed_on));
    model.with(|state, _| {
        for process in 0..PROCESSES.len() as u16 {
            let counters = state.process_counters(process);
            LOST.fetch_add(u64::from(counters.lost), Counted::Relaxed);
            GIVEN_BACK.fetch_add(u64::from(counters.given_back), Counted::Relaxed);
        }
        for process in 0..=WORKERS {
            state.deliver_all(process).unwrap();
        }
        check(state, passed_on);
    });
}

#[test]
fn every_granule_once_in_random_orders() {
    const ORDERS: usize = 50_000;
    shuttle::check_random(scan, ORDERS);
    shuttle::check_pct(scan, ORDERS, 3);
    let (lost, given_back) = (
        LOST.load(Counted::Relaxed),
        GIVEN_BACK.load(Counted::Relaxed),
    );
    println!("{lost} granules lost, {given_back} given back");
    assert!(
        lost > 0 && given_back > 0,
        "{lost} lost, {given_back} given back"
    );
}
