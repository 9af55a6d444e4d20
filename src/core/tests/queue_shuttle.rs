//! Many orders of what backends do to the queue at once, with shuttle: requests, grants, cancels, exits
//! and new limits. A waiter sleeps until its latch is set, and in here for ever: a grant of which nobody
//! is told is a deadlock, which shuttle reports, with the order for `shuttle::replay`.

use parallel_replicas_core::queue::{
    Admitted, Entry, Group, Header, Kind, Limits, Queue, Request, State, Strategy,
};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

const BACKENDS: usize = 4;
const ORDERS: usize = 50_000;
const STATEMENTS: usize = 2;

#[derive(Default)]
struct Shared {
    header: Header,
    entries: [Entry; BACKENDS],
    groups: [Group; 1],
    now_ms: u64,
}

/// What another process sets in a backend, and wakes it with.
#[derive(Clone, Copy, Default)]
struct Latch {
    is_set: bool,
    cancelled: bool,
}

#[derive(Default)]
struct Model {
    shared: Mutex<Shared>,
    latches: [(Mutex<Latch>, Condvar); BACKENDS],
}

impl Model {
    /// As `locked` of the extension: everything under the lock, waking too, and every word of the view
    /// checked before anybody else sees it.
    fn locked<R>(&self, own: usize, work: impl FnOnce(&mut Queue<'_>, u64) -> R) -> R {
        let mut guard = self.shared.lock().unwrap();
        let shared = &mut *guard;
        shared.now_ms += 1;
        let now = shared.now_ms;
        let mut queue = Queue {
            header: &mut shared.header,
            entries: &mut shared.entries,
            groups: &mut shared.groups,
        };
        let result = work(&mut queue, now);
        queue.schedule(now, &mut |index| {
            if index != own {
                self.set(index, |latch| latch.is_set = true);
            }
        });
        check(&queue);
        result
    }

    fn set(&self, index: usize, change: impl FnOnce(&mut Latch)) {
        let (latch, changed) = &self.latches[index];
        change(&mut latch.lock().unwrap());
        changed.notify_one();
    }

    /// Resets the latch. Answers whether a cancel has come.
    fn reset(&self, index: usize) -> bool {
        let mut latch = self.latches[index].0.lock().unwrap();
        latch.is_set = false;
        std::mem::take(&mut latch.cancelled)
    }

    fn sleep(&self, index: usize) {
        let (latch, changed) = &self.latches[index];
        let mut latch = latch.lock().unwrap();
        while !latch.is_set {
            latch = changed.wait(latch).unwrap();
        }
    }

    /// A backend executes statements, and gives its slots back whatever comes of them.
    fn backend(&self, own: usize) {
        for _ in 0..STATEMENTS {
            let request = Request {
                kind: Kind::Select,
                slots: thread_rng().gen_range(1..=3),
                group: u32::from(own.is_multiple_of(2)),
            };
            let mut state = self.locked(own, |queue, now| {
                queue.release(own);
                queue.enqueue(own, request, now);
                State::Pending
            });
            while state != State::Running {
                let cancelled = self.reset(own);
                state = self.locked(own, |queue, _| queue.state(own));
                if cancelled {
                    break;
                }
                match state {
                    State::Running => {}
                    State::Pending => match thread_rng().gen_range(0..8) {
                        // The watchdog has found that it blocks somebody.
                        0 => self.locked(own, |queue, now| {
                            queue.admit_over(own, Admitted::Blocker, now);
                        }),
                        _ => self.sleep(own),
                    },
                    State::Expired => break,
                    State::Free => panic!("a waiter has lost its place"),
                }
            }
            if state == State::Running {
                match thread_rng().gen_range(0..4) {
                    // A second cursor, dearer than the first.
                    0 => self.locked(own, |queue, _| queue.resize(own, request.slots + 1)),
                    // More processes than it asked for.
                    1 => self.locked(own, |queue, _| grow(queue, own, request.slots + 2)),
                    _ => {}
                }
            }
            self.locked(own, |queue, _| queue.release(own));
        }
    }
}

/// Takes nothing that anybody else has or waits for.
fn grow(queue: &mut Queue<'_>, own: usize, most: u32) {
    let (before, waiting) = (queue.header.slots, queue.header.pending);
    let held = queue.entries[own].slots;
    let holds = queue.grow(own, most);
    assert!((held..=most.max(held)).contains(&holds));
    assert!(holds == held || waiting == 0);
    let most_in_all = before.max(u64::from(queue.header.limits.total));
    assert!(queue.header.slots <= most_in_all);
}

fn limits(total: u32, kinds: u32, concurrency: u32) -> Limits {
    Limits {
        kinds,
        by_slots: true,
        by_group: true,
        strategy: if total.is_multiple_of(2) {
            Strategy::Swrr
        } else {
            Strategy::Sjf
        },
        total,
        servers: 1,
        concurrency,
        ..Limits::default()
    }
}

/// The sums agree with the entries, and nobody waits who could run.
fn check(queue: &Queue<'_>) {
    let count = |state| {
        let entries = queue.entries.iter();
        entries.filter(|entry| entry.state == state).count() as u32
    };
    assert_eq!(queue.header.running, count(State::Running));
    assert_eq!(queue.header.pending, count(State::Pending));
    let running = || {
        queue
            .entries
            .iter()
            .filter(|entry| entry.state == State::Running)
    };
    let slots = running().map(|entry| u64::from(entry.slots)).sum::<u64>();
    assert_eq!(queue.header.slots, slots);
    let idle = running().next().is_none() && !queue.groups[0].overloaded;
    assert!(
        !idle || queue.header.pending == 0,
        "somebody waits, and nobody runs"
    );
}

#[test]
fn no_order_loses_a_grant_or_a_slot() {
    shuttle::check_random(
        || {
            let model = Arc::new(Model::default());
            {
                let mut shared = model.shared.lock().unwrap();
                shared.header.limits = limits(3, Kind::Select as u32, 0);
                shared.groups[0].concurrency = 1;
            }
            let backends: Vec<_> = (0..BACKENDS - 1)
                .map(|own| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.backend(own))
                })
                .collect();
            // An operator: cancels, and settings. Its own entry is never used.
            let own = BACKENDS - 1;
            for _ in 0..4 {
                match thread_rng().gen_range(0..4) {
                    0 => {
                        let victim = thread_rng().gen_range(0..own);
                        model.set(victim, |latch| {
                            latch.cancelled = true;
                            latch.is_set = true;
                        });
                    }
                    1 => {
                        let total = thread_rng().gen_range(1..=4);
                        let changed = limits(total, Kind::Select as u32, 2);
                        model.locked(own, |queue, _| queue.set_limits(changed));
                    }
                    2 => model.locked(own, |queue, _| queue.set_limits(limits(2, 0, 0))),
                    _ => model.locked(own, |queue, _| {
                        queue.set_limits(limits(3, Kind::Select as u32, 0));
                    }),
                }
            }
            for backend in backends {
                backend.join().unwrap();
            }
            let shared = model.shared.lock().unwrap();
            assert_eq!(shared.header.running, 0);
            assert_eq!(shared.header.pending, 0);
            assert_eq!(shared.header.slots, 0);
            assert_eq!(shared.groups[0].running, 0);
            assert_eq!(shared.groups[0].pending, 0);
        },
        ORDERS,
    );
}
