//! Random queries over random tables: the rows with replicas must be the rows without, in one
//! snapshot, while the tables change.
//!
//! Everything follows from a seed. A round is one database; a round's number and the seed make the
//! same tables and the same queries again.

mod expression;
mod query;
mod schema;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use postgres::error::SqlState;
use postgres::{Client, Config, Error, NoTls};

use crate::cluster::{Cluster, PRIMARY, text};
use crate::rows::Rows;
use expression::Maker;
use query::Query;
use schema::Schema;

const OFF: &str = "SET LOCAL parallel_replicas.debug_force = off; \
                   SET LOCAL enable_parallel_replicas = off";

/// Planner settings, one or two of which hold for both runs of a query.
const SETTINGS: [&str; 13] = [
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "enable_nestloop = off",
    "enable_hashagg = off",
    "enable_sort = off",
    "enable_partitionwise_join = on",
    "enable_partitionwise_aggregate = on",
    "enable_incremental_sort = off",
    "enable_memoize = off",
    "work_mem = '64kB'",
    "max_parallel_workers_per_gather = 0",
    "parallel_leader_participation = off",
    "min_parallel_table_scan_size = 0",
];

/// Forced, reading on replicas costs nothing, so that the planner may have it done for each row of an outer
/// side. A query that runs into its limit with so many fragments behind it was not stuck.
const MANY_FRAGMENTS: u64 = 20;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// First round and one after the last.
    pub rounds: (u64, u64),
    /// Queries of each round.
    pub queries: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The rows were the same.
    pub equal: usize,
    /// Of those, how many had a fragment to which replicas contributed.
    pub with_replicas: usize,
    /// Both ways raised the same error.
    pub same_error: usize,
    /// Queries that were left out because they take long, alone or by many fragments one after the other.
    pub too_long: usize,
    pub wrong: Vec<Failure>,
}

/// A query that gave something else, made as small as could be.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub round: u64,
    pub number: usize,
    pub sql: String,
    pub settings: String,
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SEED={} ROUND={} query {}\n{}\n{}\n{}",
            self.seed, self.round, self.number, self.settings, self.sql, self.what
        )
    }
}

/// One query with everything that its runs need.
struct Case {
    query: Query,
    parameters: Vec<i32>,
    /// For both runs.
    settings: Vec<String>,
    /// For the run with replicas.
    forced: String,
}

enum Verdict {
    Equal,
    SameError,
    /// It takes long without replicas, too.
    TooLong,
    Wrong(String),
}

/// Runs the rounds on a cluster whose replicas are registered.
pub fn run(cluster: &Cluster, plan: Plan, mut progress: impl FnMut(u64, &Report)) -> Report {
    let mut report = Report::default();
    let mut client = cluster.connect(PRIMARY);
    for round in plan.rounds.0..plan.rounds.1 {
        let mut rng = Rng::with_seed(plan.seed.wrapping_mul(1_000_003).wrapping_add(round));
        let schema = Schema::generate(&mut rng, 6);
        for statement in schema.script.split(";\n") {
            client
                .batch_execute(statement)
                .unwrap_or_else(|error| panic!("round {round}: {error:?}\n{statement}"));
        }
        cluster.wait_all_caught_up();
        let writer = Writer::start(cluster.config(PRIMARY), &schema, rng.u64(..));
        for number in 0..plan.queries {
            let case = Case::generate(&mut rng, &schema);
            let before = used(&mut client);
            match judge(&mut client, &case, &case.query) {
                Verdict::Equal => {
                    report.equal += 1;
                    report.with_replicas += usize::from(used(&mut client) > before);
                }
                Verdict::SameError => report.same_error += 1,
                Verdict::TooLong => report.too_long += 1,
                Verdict::Wrong(what) => {
                    let (query, what) = shrink(&mut client, &case, what);
                    report.wrong.push(Failure {
                        seed: plan.seed,
                        round,
                        number,
                        sql: case.statement(&query),
                        settings: format!("{}; {}", case.settings.join("; "), case.forced),
                        what,
                    });
                }
            }
        }
        writer.stop();
        progress(round, &report);
    }
    report
}

impl Report {
    /// Why so few queries were really compared that the run shows nothing; None if there were enough.
    pub fn shortcoming(&self) -> Option<String> {
        let all = self.equal + self.same_error + self.too_long + self.wrong.len();
        if self.with_replicas * 2 < self.equal {
            let (used, equal) = (self.with_replicas, self.equal);
            return Some(format!("replicas took part in {used} of {equal} queries"));
        }
        (self.too_long * 20 > all || self.equal * 10 < all * 9).then(|| {
            format!(
                "{} of {all} queries were compared, {} took too long",
                self.equal, self.too_long
            )
        })
    }
}

impl Case {
    fn generate(rng: &mut Rng, schema: &Schema) -> Case {
        let parameters = (rng.usize(..5) == 0).then(Vec::new);
        let mut maker = Maker {
            rng: &mut *rng,
            schema,
            parameters,
            aliases: 0,
        };
        let query = Query::generate(&mut maker, &[], 2);
        let parameters = maker.parameters.take().unwrap_or_default();
        let mut settings = vec![format!(
            "SET LOCAL plan_cache_mode = {}",
            ["force_generic_plan", "force_custom_plan"][rng.usize(..2)]
        )];
        for _ in 0..rng.usize(..3) {
            settings.push(format!(
                "SET LOCAL {}",
                SETTINGS[rng.usize(..SETTINGS.len())]
            ));
        }
        let forced = format!(
            "SET LOCAL statement_timeout = '60s'; SET LOCAL parallel_replicas.debug_force = on; \
             SET LOCAL parallel_replicas_local_plan = {}; \
             SET LOCAL parallel_replicas.granule_blocks = {}; \
             SET LOCAL parallel_replicas.links_per_replica = {}",
            ["on", "off"][rng.usize(..2)],
            [1, 4, 128][rng.usize(..3)],
            rng.u8(1..4),
        );
        Case {
            query,
            parameters,
            settings,
            forced,
        }
    }

    /// The statement that gives the rows, for a person.
    fn statement(&self, query: &Query) -> String {
        match self.prepared(query, "fuzz") {
            Some((prepare, execute)) => format!("{prepare}; {execute}"),
            None => query.sql(),
        }
    }

    /// PREPARE and EXECUTE, if the query has parameters.
    fn prepared(&self, query: &Query, name: &str) -> Option<(String, String)> {
        let values: Vec<String> = self.parameters.iter().map(i32::to_string).collect();
        let types = vec!["int"; values.len()];
        (!values.is_empty()).then(|| {
            (
                format!("PREPARE {name}({}) AS {}", types.join(", "), query.sql()),
                format!("EXECUTE {name}({})", values.join(", ")),
            )
        })
    }

    fn fetch(&self, client: &mut Client, query: &Query, name: &str) -> Result<Rows, Error> {
        match self.prepared(query, name) {
            Some((prepare, execute)) => {
                client.batch_execute(&prepare)?;
                Rows::fetch(client, &execute)
            }
            None => Rows::fetch(client, &query.sql()),
        }
    }
}

/// Runs a query without and with replicas, in one snapshot.
fn judge(client: &mut Client, case: &Case, query: &Query) -> Verdict {
    let begin = |client: &mut Client| -> Result<(), Error> {
        client.batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL search_path = fuzz, public; \
             SET LOCAL statement_timeout = '3s'",
        )?;
        client.batch_execute(&case.settings.join("; "))
    };
    let run = |client: &mut Client, setting: &str, name: &str| {
        client.batch_execute(setting)?;
        case.fetch(client, query, name)
    };
    for name in ["alone", "forced"] {
        if !case.parameters.is_empty() {
            // A query that is not valid was not prepared.
            let _ = client.batch_execute(&format!("DEALLOCATE {name}"));
        }
    }
    let before = fragments(client);
    let alone = begin(client).and_then(|()| run(client, OFF, "alone"));
    if let Err(error) = &alone
        && error.code() == Some(&SqlState::QUERY_CANCELED)
    {
        let _ = client.batch_execute("ROLLBACK");
        return Verdict::TooLong;
    }
    let forced = match &alone {
        Ok(_) => run(client, &case.forced, "forced"),
        Err(_) => client
            .batch_execute("ROLLBACK")
            .and_then(|()| begin(client))
            .and_then(|()| run(client, &case.forced, "forced")),
    };
    // After a lost connection there is nothing to roll back.
    let _ = client.batch_execute("ROLLBACK");
    if let (Ok(_), Err(error)) = (&alone, &forced) {
        let cut_off = error.code() == Some(&SqlState::QUERY_CANCELED)
            && fragments(client) > before + MANY_FRAGMENTS;
        // The first run met its limit after its last row, and with it the transaction ended.
        let at_the_limit = error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
        if cut_off || at_the_limit {
            return Verdict::TooLong;
        }
    }
    match (alone, forced) {
        (Ok(alone), Ok(forced)) => match alone.difference(&forced, query.is_ordered()) {
            None => Verdict::Equal,
            Some(difference) => Verdict::Wrong(difference),
        },
        (Err(alone), Err(forced)) if same_error(&alone, &forced) => Verdict::SameError,
        (alone, forced) => {
            let told = |outcome: Result<Rows, Error>| match outcome {
                Ok(rows) => format!("{} rows", rows.rows.len()),
                Err(error) => format!("{error:?}"),
            };
            Verdict::Wrong(format!("{}\nbecame\n{}", told(alone), told(forced)))
        }
    }
}

fn same_error(a: &Error, b: &Error) -> bool {
    match (a.as_db_error(), b.as_db_error()) {
        (Some(a), Some(b)) => a.code() == b.code() && a.message() == b.message(),
        _ => false,
    }
}

/// Leaves out parts of a failing query for as long as it fails, and a few minutes at most.
fn shrink(client: &mut Client, case: &Case, what: String) -> (Query, String) {
    let (mut query, mut what) = (case.query.clone(), what);
    let end = Instant::now() + Duration::from_secs(180);
    'again: loop {
        for smaller in query.smaller() {
            if Instant::now() >= end || client.is_closed() {
                return (query, what);
            }
            if let Verdict::Wrong(difference) = judge(client, case, &smaller) {
                (query, what) = (smaller, difference);
                continue 'again;
            }
        }
        return (query, what);
    }
}

/// Replicas that contributed to a fragment, summed over all fragments of the server so far.
pub fn used(client: &mut Client) -> u64 {
    event(client, "UsedCount")
}

/// Executions of fragments that were started with replicas so far.
fn fragments(client: &mut Client) -> u64 {
    event(client, "QueryCount")
}

fn event(client: &mut Client, name: &str) -> u64 {
    let query = format!(
        "SELECT value::text FROM parallel_replicas.events WHERE event = 'ParallelReplicas{name}'"
    );
    text(client, &query).parse().expect("a counter is a number")
}

/// Changes rows of the tables all the time; the set of ids stays.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(config: Config, schema: &Schema, seed: u64) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let tables: Vec<String> = schema
            .tables
            .iter()
            .map(|table| table.name.clone())
            .filter(|name| name.starts_with('t'))
            .collect();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut rng = Rng::with_seed(seed);
            let mut client = config.connect(NoTls).expect("the primary is there");
            client
                .batch_execute("SET search_path = fuzz; SET synchronous_commit = off")
                .expect("settings can be set");
            while !stopped.load(Ordering::Relaxed) {
                let table = &tables[rng.usize(..tables.len())];
                let id = rng.u32(1..1500);
                let script = match rng.usize(..6) {
                    0 => format!("UPDATE {table} SET k = k + 1 WHERE id = {id}"),
                    1 => format!(
                        "WITH gone AS (DELETE FROM {table} WHERE id % 211 = {} RETURNING *)
                         INSERT INTO {table} SELECT * FROM gone",
                        id % 211
                    ),
                    2 => format!("BEGIN; DELETE FROM {table} WHERE id = {id}; ROLLBACK"),
                    3 => {
                        let mut script = String::from("BEGIN");
                        for index in 0..70 {
                            script.push_str(&format!(
                                "; SAVEPOINT s; UPDATE {table} SET k = k WHERE id = {}",
                                id + index
                            ));
                        }
                        script.push_str("; COMMIT");
                        script
                    }
                    4 => format!("VACUUM {table}"),
                    _ => format!("ANALYZE {table}"),
                };
                // Row movement between partitions may meet a conflict; the next one goes on.
                if client.batch_execute(&script).is_err() {
                    let _ = client.batch_execute("ROLLBACK");
                }
            }
        });
        Writer { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer does not panic");
    }
}
