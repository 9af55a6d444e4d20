//! What the task state costs on a table of 1 TiB (1M granules) with 64 replicas and 256 processes, by
//! criterion. A request's median is held to its bar.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::Criterion;
use parallel_replicas_core::rendezvous::Rendezvous;
use parallel_replicas_core::task_state::{ReplicaSpec, ScanSpec, TaskState, size_words};

const SCAN: ScanSpec = ScanSpec {
    database: 5,
    relfilenode: 16_400,
    blocks: 128 << 20,
    granule_blocks: 128,
    segment_granules: 0,
};
const REPLICAS: usize = 64;
const PROCESSES: u16 = 256;
const BAR_NANOS: f64 = 2000.0;

fn replicas(names: &[String], weight: impl Fn(u32) -> u32) -> Vec<ReplicaSpec<'_>> {
    (0..)
        .zip(names)
        .map(|(number, name)| ReplicaSpec {
            name,
            weight: weight(number),
        })
        .collect()
}

/// A scan in which everybody takes one granule at a time, so that there are a million requests, and
/// replica 0 is so slow that others take its segments. Each call goes through `attach`, as between
/// processes.
struct Scan {
    memory: Vec<u64>,
    now: u64,
    process: u16,
}

impl Scan {
    fn new() -> Self {
        let names: Vec<String> = (0..REPLICAS).map(|i| format!("replica-{i}")).collect();
        let of: Vec<u16> = (0..PROCESSES).map(|p| p % REPLICAS as u16).collect();
        let mut memory = vec![0; size_words(&SCAN, REPLICAS, of.len()).unwrap()];
        TaskState::init(&mut memory, &SCAN, &replicas(&names, |_| 1), &of).unwrap();
        Self {
            memory,
            now: 0,
            process: 0,
        }
    }

    /// One request; false at the end of the scan.
    fn request(&mut self) -> bool {
        loop {
            self.process += 1;
            if self.process == PROCESSES {
                self.process = 0;
                self.now += 200_000;
            }
            let slow = self.process.is_multiple_of(REPLICAS as u16);
            if !slow || self.now.is_multiple_of(20_000_000) {
                break;
            }
        }
        let mut state = TaskState::attach(&mut self.memory).unwrap();
        black_box(state.request(self.process, self.now)).is_some()
    }
}

fn request(criterion: &mut Criterion) {
    let mut scan = Scan::new();
    criterion.bench_function("request", |bencher| {
        bencher.iter_custom(|count| {
            let (mut done, mut elapsed) = (0, Duration::ZERO);
            while done < count {
                let start = Instant::now();
                while done < count && scan.request() {
                    done += 1;
                }
                elapsed += start.elapsed();
                if done < count {
                    scan = Scan::new();
                }
            }
            elapsed
        });
    });
}

/// What happens once per query, or per lost process.
fn once(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("once");
    group.sample_size(10);
    group.bench_function("lay out", |bencher| bencher.iter(Scan::new));
    group.bench_function("lose a process", |bencher| {
        let mut scan = Scan::new();
        for _ in 0..500_000 {
            scan.request();
        }
        bencher.iter_batched_ref(
            || scan.memory.clone(),
            |memory| TaskState::attach(memory).unwrap().lose(1).unwrap(),
            criterion::BatchSize::LargeInput,
        );
    });
    let names: Vec<String> = (0..REPLICAS).map(|i| format!("replica-{i}")).collect();
    for (what, weights) in [("equal", 1), ("unequal", 3)] {
        let map = Rendezvous::new(&replicas(&names, |i| 1 + i % weights)).unwrap();
        group.bench_function(format!("place 16k segments, weights {what}"), |bencher| {
            bencher.iter(|| {
                let owners = (0..16_384).map(|s| u32::from(map.place(5, 16_400, s << 13).owner));
                owners.sum::<u32>()
            });
        });
    }
    group.finish();
}

/// The median that criterion has written for `request`, in nanoseconds.
fn median(folder: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join("request/new/estimates.json")).ok()?;
    let estimates: serde_json::Value = serde_json::from_str(&text).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("criterion");
    let mut criterion = Criterion::default()
        .output_directory(&folder)
        .configure_from_args();
    request(&mut criterion);
    once(&mut criterion);
    criterion.final_summary();
    let Some(nanos) = median(&folder) else {
        return;
    };
    println!(
        "| one request, 1M granules, 64 replicas, {PROCESSES} processes | <= {:.0} us median | \
         {nanos:.0} ns median |",
        BAR_NANOS / 1000.0
    );
    assert!(nanos <= BAR_NANOS, "a request costs {nanos:.0} ns");
}
