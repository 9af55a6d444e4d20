//! The stages of a request one by one, by small scripts: what comes from where, in which order,
//! and how a task in flight is cut.

use parallel_replicas_core::task_state::{
    ReplicaSpec, ScanSpec, Shrink, Stage, Task, TaskError, TaskState, size_words,
};

fn scan(granules: u32, segment_granules: u32) -> ScanSpec {
    ScanSpec {
        database: 5,
        relfilenode: 16_400,
        blocks: granules * 128,
        granule_blocks: 128,
        segment_granules,
    }
}

/// One process per replica unless `of` says otherwise; the memory is leaked, as tests may.
fn state(scan: &ScanSpec, replicas: usize, of: &[u16]) -> TaskState<'static> {
    let names: Vec<String> = (0..replicas).map(|i| format!("replica-{i}")).collect();
    let specs: Vec<ReplicaSpec> = names
        .iter()
        .map(|name| ReplicaSpec { name, weight: 1 })
        .collect();
    let words = size_words(scan, replicas, of.len()).unwrap();
    TaskState::init(vec![0; words].leak(), scan, &specs, of).unwrap()
}

/// Gives process `process` a measured speed of one granule per millisecond, and a task of `size`
/// granules, as the last of a scan of two segments.
fn with_last_task(process: u16, size: u32, other: u16) -> (TaskState<'static>, Task, u64) {
    with_last_task_by(TaskState::request, process, size, other)
}

fn with_last_task_by(
    request: fn(&mut TaskState<'static>, u16, u64) -> Option<Task>,
    process: u16,
    size: u32,
    other: u16,
) -> (TaskState<'static>, Task, u64) {
    let mut state = state(&scan(400, 64), 1, &[0, 0]);
    let mut now = 0;
    let mut task = request(&mut state, process, now).unwrap();
    while task.granules < size {
        now += 1000 * u64::from(task.granules);
        state.deliver(process, task).unwrap();
        task = request(&mut state, process, now).unwrap();
    }
    // The other one takes all the rest, one task after the other, in no time.
    while let Some(rest) = state.request(other, now) {
        state.deliver(other, rest).unwrap();
        if state.unassigned() == 0 {
            break;
        }
    }
    (state, task, now)
}

#[test]
fn stages_come_in_order() {
    let mut state = state(&scan(600, 4), 3, &[0, 1, 2]);
    let placements: Vec<_> = state.placements().collect();
    let segment = |task: &Task| placements[(task.start_granule / 4) as usize];
    let mut last = Stage::Own;
    let mut seen = [0; 3];
    let mut now = 0;
    while let Some(task) = state.request(0, now) {
        let (owner, stealer) = segment(&task);
        let expected = match (owner, stealer) {
            (0, _) => Stage::Own,
            (_, Some(0)) => Stage::StolenByHash,
            _ => Stage::StolenRest,
        };
        assert_eq!(task.stage, expected);
        assert_eq!(
            task.start_granule / 4,
            (task.end_granule() - 1) / 4,
            "inside one segment"
        );
        assert!(
            task.stage as u8 >= last as u8,
            "{:?} after {last:?}",
            task.stage
        );
        last = task.stage;
        seen[task.stage as usize] += task.granules;
        state.deliver(0, task).unwrap();
        now += 1000;
    }
    let totals = state.verify_complete().unwrap();
    assert_eq!(seen, [totals.own, totals.by_hash, totals.rest]);
    assert!(seen.iter().all(|granules| *granules > 100), "{seen:?}");
}

#[test]
fn own_segments_are_read_forward_and_wait_for_a_late_joiner() {
    let mut state = state(&scan(64_000, 64), 2, &[0, 1]);
    let placements: Vec<_> = state.placements().collect();
    let mut last = None;
    for now in 0..500 {
        let task = state.request(0, now * 50_000).unwrap();
        assert_eq!(task.stage, Stage::Own);
        assert!(last < Some(task.start_granule));
        last = Some(task.start_granule);
    }
    let task = state.request(1, 30_000_000).unwrap();
    assert_eq!(task.stage, Stage::Own);
    let first = placements
        .iter()
        .position(|(owner, _)| *owner == 1)
        .unwrap() as u32;
    assert_eq!(task.start_granule, first * 64);
}

#[test]
fn dead_queue_goes_first_and_lost_tasks_are_orphans() {
    let mut state = state(&scan(6_000, 4), 4, &[0, 1, 2, 3]);
    let placements: Vec<_> = state.placements().collect();
    let held = state.request(3, 0).unwrap();
    assert_eq!(state.lose(3), Ok(held.granules));
    state.set_replica_live(3, false);
    let (mut rest_owners, mut orphan_seen) = (Vec::new(), false);
    let mut now = 0;
    while let Some(task) = state.request(0, now) {
        now += 10_000;
        state.deliver(0, task).unwrap();
        let owner = placements[(task.start_granule / 4) as usize].0;
        if task.start_granule == held.start_granule {
            assert_eq!(task.stage, Stage::StolenRest);
            orphan_seen = true;
        } else if task.stage == Stage::StolenRest {
            assert!(orphan_seen, "orphans before live queues");
            rest_owners.push(owner);
        }
    }
    assert!(orphan_seen);
    let of_dead = rest_owners.iter().take_while(|owner| **owner == 3).count();
    assert!(of_dead > 0 && rest_owners.len() > of_dead);
    assert!(rest_owners[of_dead..].iter().all(|owner| *owner != 3));
    assert!(matches!(
        state.deliver(3, held),
        Err(TaskError::NotHeld { .. })
    ));
    state.verify_complete().unwrap();
}

#[test]
fn size_is_a_time_and_ramp_doubles() {
    let mut state = state(&scan(100_000, 64), 1, &[0]);
    assert_eq!(state.request(0, 0).unwrap().granules, 1);
    // 2 ms per granule: 25 granules are 50 ms.
    let mut now = 2_000;
    for _ in 0..20 {
        let task = state.request(0, now).unwrap();
        assert!(task.granules <= 25);
        now += 2_000 * u64::from(task.granules);
    }
    // What is left of a segment may be less than a full task.
    let sizes: Vec<u32> = (0..3)
        .map(|_| {
            let task = state.request(0, now).unwrap();
            now += 2_000 * u64::from(task.granules);
            task.granules
        })
        .collect();
    assert!(sizes.contains(&25), "{sizes:?}");

    let mut ramped = self::state(&scan(100_000, 64), 1, &[0]);
    ramped.set_ramp(true);
    let sizes: Vec<u32> = (0..5)
        .map(|i| ramped.request(0, i * 100).unwrap().granules)
        .collect();
    assert_eq!(sizes, [1, 2, 4, 8, 16]);
}

#[test]
fn local_task_in_flight_is_cut_at_the_end_mark() {
    let (mut state, mut task, mut now) = with_last_task(0, 16, 1);
    assert!(state.may_continue(0, &task, task.start_granule + 1));
    // It hangs in its second granule for a second.
    now += 1_000_000;
    let stolen = state.request(1, now).unwrap();
    assert_eq!(stolen.stage, Stage::StolenRest);
    assert_eq!(stolen.end_granule(), task.end_granule());
    assert!(
        stolen.start_granule >= task.start_granule + 2,
        "it has begun two"
    );
    let mut next = task.start_granule + 2;
    while state.may_continue(0, &task, next) {
        next += 1;
    }
    assert_eq!(next, stolen.start_granule);
    assert!(matches!(
        state.deliver(0, task),
        Err(TaskError::WrongExtent { .. })
    ));
    task.granules = next - task.start_granule;
    state.deliver(0, task).unwrap();
    state.deliver(1, stolen).unwrap();
    assert_eq!(state.process_counters(0).given_back, stolen.granules);
    state.verify_complete().unwrap();
}

/// The leader serves links while it reads, also before it has asked for its second granule.
#[test]
fn local_task_is_cut_in_its_first_granule_too() {
    let (mut state, task, mut now) = with_last_task_by(TaskState::request_local, 0, 16, 1);
    now += 400_000;
    assert_eq!(state.shrink_candidate(1, now), None, "nobody asks it");
    let stolen = state.request(1, now).unwrap();
    assert_eq!(stolen.end_granule(), task.end_granule());
    assert!(stolen.start_granule > task.start_granule);
    assert!(!state.may_continue(0, &task, stolen.start_granule));
}

#[test]
fn link_is_asked_once_and_answers_with_what_it_kept() {
    let (mut state, mut task, mut now) = with_last_task(0, 16, 1);
    now += 400_000;
    assert_eq!(state.request(1, now), None);
    let Shrink {
        process,
        task: id,
        keep_until,
    } = state.shrink_candidate(1, now).unwrap();
    assert_eq!((process, id), (0, task.id));
    assert!(keep_until > task.start_granule && keep_until < task.end_granule());
    assert_eq!(state.shrink_candidate(1, now), None, "asked already");
    assert_eq!(state.request(1, now), None, "its own until it answers");
    // It was further than we thought.
    let kept = keep_until + 2 - task.start_granule;
    let returned = task.granules - kept;
    assert_eq!(state.give_back(0, id, kept), Ok(returned));
    assert_eq!(state.unassigned(), returned);
    state.worked(0, id, now, 1000).unwrap();
    assert_eq!(
        state.give_back(0, id, 0),
        Ok(0),
        "crossed with its TaskDone"
    );
    task.granules = kept;
    state.deliver(0, task).unwrap();
    while let Some(orphans) = state.request(1, now) {
        assert!(orphans.start_granule >= task.end_granule());
        state.deliver(1, orphans).unwrap();
        now += 1000;
    }
    state.verify_complete().unwrap();
}

#[test]
fn prefetch_is_one_large_task_and_none_near_the_end() {
    let mut state = state(&scan(1000, 4), 1, &[0, 0]);
    let first = state.request_ahead(0, 0).unwrap();
    let ahead = state.request_ahead(0, 0).unwrap();
    assert_eq!(state.request_ahead(0, 0), None);
    assert!(matches!(
        state.worked(0, 999, 0, 0),
        Err(TaskError::NotHeld { .. })
    ));
    state.worked(0, first.id, 1000, 1000).unwrap();
    assert!(state.worked(0, first.id, 1000, 1000).is_err());
    let mut current = ahead;
    let mut now = 1000;
    let mut prefetched = 0;
    loop {
        let next = state.request_ahead(0, now);
        let took = 1000 * u64::from(current.granules);
        now += took;
        state.worked(0, current.id, now, took).unwrap();
        prefetched += u32::from(next.is_some());
        let Some(task) = next.or_else(|| state.request(0, now)) else {
            break;
        };
        if next.is_none() {
            assert!(
                state.unassigned() < 32,
                "no prefetch with {} left",
                state.unassigned()
            );
        }
        current = task;
    }
    assert!(prefetched > 200, "{prefetched}");
    state.deliver_all(0).unwrap();
    state.verify_complete().unwrap();
}

#[test]
fn large_rows_make_small_tasks() {
    let mut state = state(&scan(4000, 64), 1, &[0]);
    let mut now = 0;
    let mut next = |state: &mut TaskState<'_>| {
        let task = state.request(0, now).unwrap();
        now += u64::from(task.granules) * 1000;
        task
    };
    let mut task = next(&mut state);
    while task.granules < 20 {
        state.deliver(0, task).unwrap();
        task = next(&mut state);
    }
    // Its rows were too much after four granules.
    assert_eq!(state.give_back(0, task.id, 4), Ok(task.granules - 4));
    state.limit_tasks(0, 4);
    state
        .deliver(
            0,
            Task {
                granules: 4,
                ..task
            },
        )
        .unwrap();
    let sizes: Vec<u32> = (0..12)
        .map(|_| {
            let task = next(&mut state);
            state.deliver(0, task).unwrap();
            task.granules
        })
        .collect();
    assert_eq!(sizes[0], 4);
    assert!(
        sizes[1..].iter().all(|size| (1..=16).contains(size)),
        "{sizes:?}"
    );
    assert!(sizes[11] > 8, "{sizes:?}");
}

/// Tasks ahead of a process that has worked through one granule per `granule_micros`.
fn ahead_of(state: &mut TaskState<'_>, granule_micros: u64) -> (Vec<Task>, u64) {
    let mut now = 0;
    let mut tasks: Vec<Task> = Vec::new();
    // Until the speed is known well.
    for _ in 0..8 {
        let task = state.request(0, now).unwrap();
        let took = u64::from(task.granules) * granule_micros;
        now += took;
        state.worked(0, task.id, now, took).unwrap();
    }
    tasks.extend(state.request(0, now));
    tasks.extend(std::iter::from_fn(|| state.request_ahead(0, now)));
    (tasks, now)
}

#[test]
fn short_tasks_are_given_many_at_once() {
    // Segments of one granule: a task cannot be larger.
    let mut fast = state(&scan(4000, 1), 1, &[0]);
    let (tasks, mut now) = ahead_of(&mut fast, 1_000);
    assert_eq!(tasks.len(), 1 + 16, "bounded");
    // Its reports may come together, with the times of their ends, or only the last one.
    for task in &tasks[..4] {
        now += 1_000;
        fast.worked(0, task.id, now, 1_000).unwrap();
    }
    assert_eq!(fast.worked_through(), 8 + 4);
    now += 4_000;
    fast.worked(0, tasks[7].id, now, 1_000).unwrap();
    assert_eq!(fast.worked_through(), 8 + 8);
    assert!(
        fast.worked(0, tasks[4].id, now, 1_000).is_err(),
        "done with the last"
    );
    // One of the rest need not begin, wherever it is.
    assert_eq!(fast.give_back(0, tasks[10].id, 0), Ok(1));
    assert!(fast.worked(0, tasks[10].id, now, 1_000).is_err());
    fast.worked(0, tasks[16].id, now + 8_000, 1_000).unwrap();
    assert_eq!(fast.worked_through(), 8 + 16);

    // As much as one task would take.
    let mut slow = state(&scan(4000, 1), 1, &[0]);
    let (tasks, _) = ahead_of(&mut slow, 10_000);
    assert_eq!(tasks.len(), 1 + 5);
    let mut large = state(&scan(4000, 64), 1, &[0]);
    let (tasks, _) = ahead_of(&mut large, 10_000);
    assert_eq!(tasks.len(), 1 + 1);
}

#[test]
fn no_process_takes_more_than_its_share_of_the_end_ahead() {
    // Two alike, who have 32 granules left: a quarter of them each.
    let mut state = state(&scan(48, 1), 1, &[0, 0]);
    let mut now = 0;
    for _ in 0..8 {
        let tasks = [0, 1].map(|process| (process, state.request(process, now).unwrap()));
        now += 1_000;
        for (process, task) in tasks {
            state.worked(process, task.id, now, 1_000).unwrap();
        }
    }
    assert_eq!(state.unassigned(), 32);
    let held = std::iter::once(state.request(0, now))
        .chain(std::iter::from_fn(|| Some(state.request_ahead(0, now))))
        .take_while(Option::is_some)
        .count();
    assert!((5..=8).contains(&held), "{held}");
}

#[test]
fn who_may_need_few_rows_takes_one_task_ahead() {
    let mut state = state(&scan(4000, 1), 1, &[0]);
    state.set_ramp(true);
    let (tasks, _) = ahead_of(&mut state, 1_000);
    assert_eq!(tasks.len(), 1 + 1);
}

/// The coordinator was busy while they came.
#[test]
fn reports_that_come_late_and_together_do_not_change_a_speed() {
    let mut state = state(&scan(4000, 1), 1, &[0]);
    let (tasks, mut now) = ahead_of(&mut state, 10_000);
    assert_eq!(tasks.len(), 1 + 5);
    now += 200_000;
    for task in &tasks {
        now += 20;
        state.worked(0, task.id, now, 10_000).unwrap();
    }
    state.request(0, now).unwrap();
    let ahead = std::iter::from_fn(|| state.request_ahead(0, now)).count();
    assert_eq!(ahead, 5, "50 ms of it, as before");
}

#[test]
fn large_rows_keep_what_is_ahead_small() {
    let mut state = state(&scan(4000, 4), 1, &[0]);
    let (tasks, now) = ahead_of(&mut state, 1_000);
    assert!(tasks.len() > 2, "{}", tasks.len());
    assert_eq!(state.give_back(0, tasks[0].id, 1), Ok(3));
    state.limit_tasks(0, 1);
    for task in &tasks {
        state.worked(0, task.id, now, 4_000).unwrap();
    }
    state.request(0, now).unwrap();
    assert_eq!(
        std::iter::from_fn(|| state.request_ahead(0, now)).count(),
        1
    );
}
