//! Every order of the steps of two processes, near the end of a scan, where they take work from each
//! other, with loom.

mod shared;

use std::sync::atomic::{AtomicU32, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use parallel_replicas_core::task_state::{LocalWork, TaskState};

use shared::{Memory, STEP_MICROS, check, next_granule, words, work};

struct Model {
    state: Mutex<(Vec<u64>, u64)>,
    /// How often each was read. Loom fails where two accesses are not ordered by the lock.
    granules: Vec<UnsafeCell<u32>>,
}

impl Model {
    fn new(granules: u32, segment_granules: u32, processes: &[u16]) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new((words(granules, segment_granules, processes), 0)),
            granules: (0..granules).map(|_| UnsafeCell::new(0)).collect(),
        })
    }
}

impl Memory for Model {
    fn with<T>(&self, f: impl FnOnce(&mut TaskState<'_>, u64) -> T) -> T {
        let mut guard = self.state.lock().unwrap();
        let (words, now) = &mut *guard;
        *now += STEP_MICROS;
        f(&mut TaskState::attach(words).unwrap(), *now)
    }

    fn read(&self, granule: u32) {
        // SAFETY: loom checks that nobody else has access.
        self.granules[granule as usize].with_mut(|times| unsafe { *times += 1 });
    }
}

/// Explores all orders with at most `preemptions` each. Fails if `happened` is still 0 then: the model
/// would not show what it is for.
fn explore(
    preemptions: usize,
    happened: &'static AtomicU32,
    model: impl Fn() + Sync + Send + 'static,
) {
    static ORDERS: AtomicU32 = AtomicU32::new(0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        ORDERS.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let (orders, happened) = (
        ORDERS.load(Ordering::Relaxed),
        happened.load(Ordering::Relaxed),
    );
    println!("{orders} orders so far, what matters {happened} times");
    assert!(happened > 0);
}

/// The leader and a worker. Each may cut the other's task short while the other is in it.
#[test]
fn an_end_mark_is_obeyed() {
    static GIVEN_BACK: AtomicU32 = AtomicU32::new(0);
    explore(6, &GIVEN_BACK, || {
        let model = Model::new(14, 16, &[0, 0]);
        // A start in peace, so that speeds are known and tasks have several granules.
        let mut leader = LocalWork::default();
        let mut read = Vec::new();
        for _ in 0..5 {
            let granule = next_granule(&*model, 0, &mut leader).expect("there is work");
            model.read(granule);
            read.push(granule);
        }
        let other = model.clone();
        let worker = thread::spawn(move || work(&*other, 1));
        while let Some(granule) = next_granule(&*model, 0, &mut leader) {
            model.read(granule);
            read.push(granule);
        }
        let by_worker = worker.join().unwrap();
        // What the worker left because the leader was at work.
        read.extend(work(&*model, 0));
        model.with(|state, _| {
            assert_eq!(
                read.len() as u32,
                state.process_counters(0).own + state.process_counters(0).rest
            );
            read.extend(by_worker);
            state.deliver_all(0).unwrap();
            state.deliver_all(1).unwrap();
            GIVEN_BACK.fetch_add(
                state.process_counters(0).given_back + state.process_counters(1).given_back,
                Ordering::Relaxed,
            );
            check(state, read);
        });
    });
}

/// The leader gives a link work and loses the link, while a worker works: what the link held comes
/// back once.
#[test]
fn a_lost_link_leaves_nothing_and_nothing_twice() {
    static LOST: AtomicU32 = AtomicU32::new(0);
    explore(6, &LOST, || {
        let model = Model::new(6, 2, &[0, 0, 1]);
        let other = model.clone();
        let worker = thread::spawn(move || work(&*other, 1));
        let given = model.with(|state, now| state.request(2, now));
        let ahead = model.with(|state, now| state.request_ahead(2, now));
        if let Some(task) = given {
            // It has read the first, and its rows are not passed on.
            model.read(task.start_granule);
        }
        let lost = model.with(|state, _| state.lose(2).unwrap());
        assert_eq!(
            lost,
            given.map_or(0, |task| task.granules) + ahead.map_or(0, |task| task.granules)
        );
        LOST.fetch_add(lost, Ordering::Relaxed);
        model.with(|state, _| state.set_replica_live(1, false));
        let mut read = work(&*model, 0);
        let by_worker = worker.join().unwrap();
        read.extend(work(&*model, 0));
        read.extend(by_worker);
        model.with(|state, _| {
            state.deliver_all(0).unwrap();
            state.deliver_all(1).unwrap();
            check(state, read);
        });
    });
}

/// The sum of what each step adds to the shown progress, outside the lock, is the scan.
#[test]
fn shown_progress_adds_up() {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    explore(6, &STEPS, || {
        let model = Model::new(4, 1, &[0, 0]);
        let shown = Arc::new(loom::sync::atomic::AtomicI64::new(0));
        let run = |model: &Model, shown: &loom::sync::atomic::AtomicI64, process: u16| {
            loop {
                let (task, more) = model.with(|state, now| {
                    let task = state.request(process, now);
                    (task, state.take_progress())
                });
                shown.fetch_add(more, Ordering::Relaxed);
                STEPS.fetch_add(1, Ordering::Relaxed);
                if task.is_none() {
                    break;
                }
            }
        };
        let (other, others) = (model.clone(), shown.clone());
        let worker = thread::spawn(move || run(&other, &others, 1));
        run(&model, &shown, 0);
        worker.join().unwrap();
        run(&model, &shown, 0);
        assert_eq!(shown.load(Ordering::Relaxed), 4);
    });
}
