//! Queries while everything breaks: replicas die, freeze, lag, are promoted and lie at random
//! moments, and every query must succeed with the answer that the primary alone gives.
//!
//! Sessions ([`load`]) run a mix of queries, each with replicas off and on in one snapshot, beside
//! writers. Meanwhile one fault after the other ([`fault`]) hits a random standby, and ends at a
//! random later moment, so that any number of standbys may be in trouble at a time. At the end all
//! faults are healed, nothing may be left behind ([`leaks`]), and the standbys are compared with
//! the primary. The seed fixes which faults and queries come in which order; how they meet is up to
//! the machine.

mod fault;
mod leaks;
mod load;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::cluster::{Cluster, Options, PRIMARY};
use crate::damage::damage_check;
use crate::writers::{WriterTable, Writers};
use fault::{Scene, Trouble};
use load::{Load, Tally};

/// How much chaos.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Faults.
    pub events: usize,
    /// No new fault after this time.
    pub at_most: Duration,
    /// Sessions that query.
    pub sessions: usize,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Faults by name.
    pub events: BTreeMap<&'static str, usize>,
    pub tally: Tally,
    /// Transactions of the writers.
    pub transactions: u64,
    /// Counters of the extension on the primary.
    pub counters: BTreeMap<String, u64>,
    /// Anything that is left behind.
    pub leaks: Vec<String>,
    /// What did not happen, without which the answers prove nothing.
    pub unproven: Vec<String>,
}

impl Report {
    /// Faults of all kinds.
    pub fn total(&self) -> usize {
        self.events.values().sum()
    }

    /// Nothing went wrong, and replicas took part.
    pub fn is_clean(&self) -> bool {
        self.tally.wrong.is_empty()
            && self.tally.failed.is_empty()
            && self.leaks.is_empty()
            && self.unproven.is_empty()
    }

    /// Answers that this server gave alone would be right whatever replicas did.
    fn prove(&mut self) {
        let counted = |name: &str| self.counters[name];
        let queries = self.tally.queries;
        let used = counted("UsedCount");
        if queries == 0 || used * 2 < queries {
            self.unproven.push(format!(
                "replicas contributed {used} times to {queries} queries"
            ));
        }
        for name in ["ReadByReplicasMarks", "LostCount", "RetriedMarks"] {
            if counted(name) == 0 {
                self.unproven.push(format!("{name} is 0"));
            }
        }
    }
}

/// Rows of the large table at the start.
const ROWS: u64 = 30_000;
/// Time between two faults.
const PAUSES_MS: std::ops::Range<u64> = 5..250;
/// Now and then longer, so that what lasts is noticed by deadlines.
const LONG_PAUSE: Duration = Duration::from_millis(1500);

/// Servers with short patience, so that a fault costs a query little time.
fn options() -> Options {
    Cluster::builder()
        .standbys(2)
        .setting("jit", "off")
        .setting("shared_buffers", "32MB")
        .setting("max_wal_size", "2GB")
        .setting("log_min_messages", "log")
        .setting("parallel_replicas.connect_timeout", "1s")
        .setting("parallel_replicas.replay_wait_timeout", "500ms")
        .setting("parallel_replicas.stall_timeout", "1s")
        .setting("parallel_replicas.monitor_interval", "200ms")
}

/// Runs the plan on a cluster of its own. `progress` is told after every event.
///
/// # Panics
/// When a standby is damaged, or does not come back.
pub fn run(plan: Plan, mut progress: impl FnMut(usize, &Report)) -> Report {
    let mut scene = Scene::new(options().start());
    let table = prepare(&scene.cluster);
    let load = Load::start(&scene.cluster, plan.sessions, plan.seed);
    load.wait_warm();
    let writers = Writers::start(&scene.cluster, &[table], 1, plan.seed);
    let mut rng = Rng::with_seed(plan.seed);
    let mut report = Report::default();
    let start = Instant::now();
    while report.total() < plan.events && start.elapsed() < plan.at_most && !load.has_failed() {
        let standby = scene.random_standby(&mut rng);
        if scene.is_healthy(standby) {
            let trouble = Trouble::random(&mut rng);
            if scene.hit(standby, trouble, &mut rng) {
                *report.events.entry(trouble.name()).or_default() += 1;
                progress(report.total(), &report);
            }
        } else {
            scene.heal(standby);
        }
        // The moments are to be random; nothing is waited for.
        thread::sleep(match rng.u32(..25) {
            0 => LONG_PAUSE,
            _ => Duration::from_millis(rng.u64(PAUSES_MS)),
        });
    }
    scene.heal_all();
    report.transactions = writers.stop();
    // The sessions go on for a while in peace, so that they let go of what they held in trouble.
    load.wait_queries(10);
    report.tally = load.stop();
    leaks::grown(&report.tally.footprints, &mut report.leaks);
    report.counters = counters(&scene.cluster);
    report.prove();
    scene.cluster.wait_all_caught_up();
    leaks::left_behind(&scene.cluster, &mut report.leaks);
    if !report.is_clean() {
        keep_logs(&scene.cluster);
    }
    damage_check(&scene.cluster);
    report
}

/// Copies the servers' logs to where they outlive the cluster.
fn keep_logs(cluster: &Cluster) {
    for node in std::iter::once(PRIMARY).chain(cluster.standbys()) {
        let name = format!("chaos-{}-{}.log", std::process::id(), cluster.name(node));
        let path = std::env::temp_dir().join(name);
        match std::fs::write(&path, cluster.log(node)) {
            Ok(()) => eprintln!("--- a server's log is kept in {}", path.display()),
            Err(error) => eprintln!("--- a server's log is lost: {error}"),
        }
    }
}

fn prepare(cluster: &Cluster) -> WriterTable {
    let table = WriterTable::create(&mut cluster.connect(PRIMARY), "t", ROWS);
    cluster.psql(
        PRIMARY,
        "CREATE TABLE d AS SELECT i AS id, 'name' || i % 7 AS name FROM generate_series(0, 99) i;
         CREATE TABLE quiet AS SELECT i AS id, i % 1000 AS v, repeat('y', 100) AS pad
             FROM generate_series(1, 30000) i;
         VACUUM ANALYZE",
    );
    table
}

fn counters(cluster: &Cluster) -> BTreeMap<String, u64> {
    [
        "QueryCount",
        "UsedCount",
        "UnavailableCount",
        "RefusedCount",
        "ReadAssignedMarks",
        "ReadAssignedForStealingMarks",
        "ReadUnassignedMarks",
        "ReadByReplicasMarks",
        "LostCount",
        "RetriedMarks",
        "GivenBackMarks",
    ]
    .into_iter()
    .map(|name| (String::from(name), cluster.event(PRIMARY, name)))
    .collect()
}
