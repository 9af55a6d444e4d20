//! Sessions that query all the time and compare.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use fastrand::Rng;
use postgres::Client;

use crate::cluster::{Cluster, PRIMARY, text};
use crate::differential::Differential;
use crate::footprint::Footprint;
use crate::wait::{SOON, wait_until};

/// Whole answers, and whether they have an order.
const QUERIES: &[(&str, bool)] = &[
    (
        "SELECT count(*), sum(v), sum(hashtextextended(pad, id)::numeric) FROM t",
        false,
    ),
    (
        "SELECT v % 10, count(*), min(id), max(id) FROM t GROUP BY 1",
        false,
    ),
    ("SELECT id, v, pad FROM t WHERE v < 300", false),
    ("SELECT id, v FROM t WHERE v % 3 = 1 ORDER BY id DESC", true),
    (
        "SELECT d.name, count(*), sum(t.v) FROM t JOIN d ON t.v % 100 = d.id GROUP BY 1 ORDER BY 1",
        true,
    ),
    ("SELECT sum(length(repeat(pad, 200))) FROM t", false),
    (
        "SELECT id FROM t WHERE length(repeat(pad, 200)) > 0 ORDER BY v, id LIMIT 20",
        true,
    ),
    ("SELECT count(*) FROM (SELECT v FROM t LIMIT 500) s", false),
    (
        "SELECT count(*) FROM t WHERE v > (SELECT avg(v) FROM quiet)",
        false,
    ),
    ("SELECT count(DISTINCT v), count(*) FROM t", false),
    (
        "SELECT t.id, quiet.v FROM t JOIN quiet USING (id) WHERE quiet.v < 50",
        false,
    ),
    (
        "SELECT count(*), sum(length(repeat(pad, 300))) FROM quiet",
        false,
    ),
    ("SELECT * FROM quiet WHERE v > 500", false),
    ("SELECT id FROM t UNION ALL SELECT id FROM quiet", false),
];

/// After so many turns a session has met about everything once.
const WARM: u64 = 20;

const OFF: &str = "SET LOCAL enable_parallel_replicas = 0;
    SET LOCAL parallel_replicas.debug_force = off";

/// What the sessions saw.
#[derive(Debug, Default)]
pub struct Tally {
    /// Queries that were compared.
    pub queries: u64,
    /// Executions that were ended early.
    pub early_ends: u64,
    /// Differences.
    pub wrong: Vec<String>,
    /// Errors.
    pub failed: Vec<String>,
    /// What each session held, idle, after its first queries and at its end.
    pub footprints: Vec<(Footprint, Footprint)>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    queries: AtomicU64,
    early_ends: AtomicU64,
    wrong: Mutex<Vec<String>>,
    failed: Mutex<Vec<String>>,
}

/// Running sessions.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<(Footprint, Footprint)>>,
}

impl Load {
    pub fn start(cluster: &Cluster, sessions: usize, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let mut load = Self {
            shared,
            threads: Vec::new(),
        };
        for number in 0..sessions {
            let mut client = cluster.connect(PRIMARY);
            client
                // What hangs is noticed. The table grows with the writer's rows, and one process may be
                // left with all of it.
                .batch_execute("SET statement_timeout = '5min'; SET default_statistics_target = 10")
                .expect("settings can be made");
            let pid = text(&mut client, "SELECT pg_backend_pid()::text");
            let mut session = Session {
                client,
                pid: pid.parse().expect("a process id"),
                rng: Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(number as u64)),
                shared: Arc::clone(&load.shared),
            };
            load.threads.push(thread::spawn(move || session.run()));
        }
        load
    }

    /// Most queries have been executed.
    pub fn wait_warm(&self) {
        self.wait_queries(WARM * self.threads.len() as u64);
    }

    /// Waits for so many more queries.
    pub fn wait_queries(&self, count: u64) {
        let target = self.shared.queries.load(Ordering::Relaxed) + count;
        wait_until(SOON * 3, "queries are executed", || {
            self.shared.queries.load(Ordering::Relaxed) >= target || self.has_failed()
        });
    }

    pub fn has_failed(&self) -> bool {
        let any = |list: &Mutex<Vec<String>>| !list.lock().expect("no session panics").is_empty();
        any(&self.shared.wrong) || any(&self.shared.failed)
    }

    /// Ends the sessions.
    pub fn stop(self) -> Tally {
        self.shared.stop.store(true, Ordering::Relaxed);
        let sessions = self.threads.into_iter();
        let footprints = sessions
            .map(|session| session.join().expect("no session panics"))
            .collect();
        let take =
            |list: &Mutex<Vec<String>>| std::mem::take(&mut *list.lock().expect("all have ended"));
        Tally {
            queries: self.shared.queries.load(Ordering::Relaxed),
            early_ends: self.shared.early_ends.load(Ordering::Relaxed),
            wrong: take(&self.shared.wrong),
            failed: take(&self.shared.failed),
            footprints,
        }
    }
}

struct Session {
    client: Client,
    /// Its process on the primary.
    pid: i32,
    rng: Rng,
    shared: Arc<Shared>,
}

impl Session {
    fn run(&mut self) -> (Footprint, Footprint) {
        let mut first = Footprint::default();
        for turn in 0_u64.. {
            if turn == WARM {
                first = Footprint::of(self.pid);
            }
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            if self.rng.u32(..5) == 0 {
                self.end_early();
                self.shared.early_ends.fetch_add(1, Ordering::Relaxed);
            } else {
                self.compare();
                self.shared.queries.fetch_add(1, Ordering::Relaxed);
            }
        }
        (first, Footprint::of(self.pid))
    }

    /// Settings under which replicas are used, each time others.
    fn on(&mut self) -> String {
        let rng = &mut self.rng;
        format!(
            "SET LOCAL parallel_replicas.debug_force = on;
             SET LOCAL parallel_replicas_local_plan = {};
             SET LOCAL parallel_replicas.links_per_replica = {};
             SET LOCAL parallel_replicas.granule_blocks = {};
             SET LOCAL work_mem = '{}'",
            if rng.bool() { "on" } else { "off" },
            rng.u32(1..=3),
            1 << rng.u32(0..=5),
            rng.choice(["64kB", "1MB", "16MB"]).expect("not empty")
        )
    }

    fn compare(&mut self) {
        let (query, ordered) = QUERIES[self.rng.usize(..QUERIES.len())];
        let on = self.on();
        let mut pair = Differential::new(&mut self.client).between(OFF, &on);
        if ordered {
            pair = pair.ordered();
        }
        match pair.compare(query) {
            Ok((_, None)) => {}
            Ok((_, Some(difference))) => {
                self.note(&self.shared.wrong, format!("{query}\n{on}\n{difference}"));
            }
            Err((setting, error)) => {
                self.note(
                    &self.shared.failed,
                    format!("{query}\n{setting}\n{error:?}"),
                );
            }
        }
    }

    fn note(&self, list: &Mutex<Vec<String>>, text: String) {
        list.lock().expect("no session panics").push(text);
    }

    /// Executions that are not run to their end, and queries that have an error of their own, which
    /// must be the client's.
    fn end_early(&mut self) {
        let on = self.on();
        let timeout = self.rng.u32(1..80);
        let rows = self.rng.u32(1..400);
        let (script, expected) = match self.rng.u32(..5) {
            0 => (
                format!("DECLARE c CURSOR FOR SELECT id, pad FROM t; FETCH {rows} FROM c; CLOSE c"),
                &[][..],
            ),
            1 => (
                format!(
                    "SAVEPOINT s; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY v, id;
                     FETCH {rows} FROM c; ROLLBACK TO s"
                ),
                &[][..],
            ),
            2 => (
                format!(
                    "SET LOCAL statement_timeout = {timeout};
                     SELECT count(*), sum(length(repeat(pad, 300))) FROM t"
                ),
                &["57014"][..],
            ),
            3 => (
                String::from("SELECT sum(1 / (id - id)) FROM t"),
                &["22012"][..],
            ),
            _ => (
                String::from("SELECT 1 / (count(*) - count(*)) FROM t"),
                &["22012"][..],
            ),
        };
        let outcome = self.client.batch_execute(&format!("BEGIN; {on}; {script}"));
        let state = match &outcome {
            Ok(()) => None,
            Err(error) => error.code().map(|code| code.code().to_owned()),
        };
        let fine = match &state {
            None => outcome.is_ok() && (expected.is_empty() || expected == ["57014"]),
            Some(code) => expected.contains(&code.as_str()),
        };
        if !fine {
            self.note(&self.shared.failed, format!("{script}\n{on}\n{outcome:?}"));
        }
        if let Err(error) = self.client.batch_execute("ROLLBACK") {
            self.note(&self.shared.failed, format!("ROLLBACK: {error:?}"));
        }
    }
}
