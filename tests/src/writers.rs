//! Writers that keep a primary busy while a test reads.
//!
//! The mix aims at what makes visibility hard for a reader elsewhere: many short transactions,
//! aborted ones, subtransactions beyond the 64 that a backend keeps in shared memory, commits that
//! are not flushed yet, and VACUUM, which removes what old snapshots may still need.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use fastrand::Rng;
use postgres::error::SqlState;
use postgres::{Client, Config, Error, NoTls};

use crate::cluster::{Cluster, PRIMARY};
use crate::wait::{SOON, wait_until};

/// One more than PGPROC_MAX_CACHED_SUBXIDS (src/include/storage/proc.h): a snapshot taken while
/// such a transaction runs is suboverflowed.
const OVERFLOWING_SUBTRANSACTIONS: usize = 65;

/// Each writer inserts keys of its own range of this many, so that inserts never collide.
const KEY_RANGE: i64 = 1_000_000_000_000;

/// A table that writers may change: a bigint key and a numeric or integer value; all other columns
/// have defaults or allow nulls.
#[derive(Clone, Debug)]
pub struct WriterTable {
    /// Name of the table as it stands in SQL.
    pub name: String,
    /// Its bigint column with unique values.
    pub key: String,
    /// Its integer or numeric column.
    pub value: String,
}

impl WriterTable {
    /// Creates `name(id bigint PRIMARY KEY, v bigint, pad text)` with `rows` rows.
    #[track_caller]
    pub fn create(client: &mut Client, name: &str, rows: u64) -> Self {
        client
            .batch_execute(&format!(
                "CREATE TABLE {name} (
                     id bigint PRIMARY KEY, v bigint NOT NULL DEFAULT 0,
                     pad text NOT NULL DEFAULT repeat('x', 100));
                 INSERT INTO {name}(id, v) SELECT i, i % 1000 FROM generate_series(1, {rows}) i;
                 ANALYZE {name}"
            ))
            .expect("the table can be created");
        Self {
            name: String::from(name),
            key: String::from("id"),
            value: String::from("v"),
        }
    }
}

/// Running writers; dropping them stops them too.
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    transactions: AtomicU64,
}

impl Writers {
    /// Starts `threads` writers on the primary; `seed` fixes what each of them does in turn.
    #[track_caller]
    pub fn start(cluster: &Cluster, tables: &[WriterTable], threads: usize, seed: u64) -> Self {
        assert!(!tables.is_empty(), "writers need a table");
        let shared = Arc::new(Shared::default());
        let first_range = 1 + Self::last_key(&mut cluster.connect(PRIMARY), tables) / KEY_RANGE;
        let threads = (0..threads)
            .map(|number| {
                let writer = Writer {
                    config: cluster.config(PRIMARY),
                    tables: tables.to_vec(),
                    rng: Rng::with_seed(seed.wrapping_add(number as u64)),
                    next_key: (first_range + number as i64) * KEY_RANGE,
                };
                let shared = Arc::clone(&shared);
                thread::spawn(move || writer.run(&shared))
            })
            .collect();
        Self { shared, threads }
    }

    /// The largest key that is in use in any of the tables.
    fn last_key(client: &mut Client, tables: &[WriterTable]) -> i64 {
        let last_key_of = |WriterTable { name, key, .. }: &WriterTable| -> i64 {
            let query = format!("SELECT coalesce(max({key}), 0)::bigint FROM {name}");
            client
                .query_one(&query, &[])
                .expect("the table can be read")
                .get(0)
        };
        tables.iter().map(last_key_of).max().unwrap_or(0)
    }

    /// How many transactions have ended so far, committed or rolled back.
    pub fn transactions(&self) -> u64 {
        self.shared.transactions.load(Ordering::Relaxed)
    }

    /// Waits until the writers have ended `count` more transactions.
    #[track_caller]
    pub fn wait_for_transactions(&self, count: u64) {
        let target = self.transactions() + count;
        wait_until(SOON, "the writers make progress", || {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            failed || self.transactions() >= target
        });
    }

    /// Stops the writers; panics if one met an error; returns how many transactions they ended.
    #[track_caller]
    pub fn stop(mut self) -> u64 {
        let errors = self.join();
        assert!(errors.is_empty(), "writers failed:\n{}", errors.join("\n"));
        self.transactions()
    }

    fn join(&mut self) -> Vec<String> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let threads = self.threads.drain(..);
        threads
            .filter_map(|thread| match thread.join() {
                Ok(outcome) => outcome.err(),
                Err(_) => Some(String::from("a writer panicked")),
            })
            .collect()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for error in self.join() {
            eprintln!("a writer failed: {error}");
        }
    }
}

struct Writer {
    config: Config,
    tables: Vec<WriterTable>,
    rng: Rng,
    next_key: i64,
}

impl Writer {
    fn run(mut self, shared: &Shared) -> Result<(), String> {
        let mut client = self
            .config
            .connect(NoTls)
            .map_err(|error| format!("{error:?}"))?;
        while !shared.stop.load(Ordering::Relaxed) {
            match self.transaction(&mut client) {
                Ok(()) => {}
                // Writers meet each other by design; the transaction is simply given up.
                Err(error) if is_conflict(&error) => {
                    client
                        .batch_execute("ROLLBACK")
                        .map_err(|error| format!("{error:?}"))?;
                }
                Err(error) => return Err(format!("{error:?}")),
            }
            shared.transactions.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn transaction(&mut self, client: &mut Client) -> Result<(), Error> {
        let table = self.tables[self.rng.usize(..self.tables.len())].clone();
        if self.rng.u32(..40) == 0 {
            return client.batch_execute(&format!("VACUUM {}", table.name));
        }
        let commit = if self.rng.bool() { "on" } else { "off" };
        client.batch_execute(&format!("BEGIN; SET LOCAL synchronous_commit = {commit}"))?;
        if self.rng.u32(..20) == 0 {
            self.subtransactions(client, &table)?;
        }
        for _ in 0..self.rng.usize(1..=4) {
            let statement = self.statement(&table);
            client.batch_execute(&statement)?;
        }
        let end = if self.rng.u32(..4) == 0 {
            "ROLLBACK"
        } else {
            "COMMIT"
        };
        client.batch_execute(end)
    }

    /// Savepoints that each write, some of them rolled back.
    fn subtransactions(&mut self, client: &mut Client, table: &WriterTable) -> Result<(), Error> {
        let mut script = String::new();
        for _ in 0..OVERFLOWING_SUBTRANSACTIONS {
            let end = if self.rng.u32(..4) == 0 {
                "ROLLBACK TO"
            } else {
                "RELEASE"
            };
            let insert = self.insert(table);
            script.push_str(&format!("SAVEPOINT s; {insert}; {end} s;"));
        }
        client.batch_execute(&script)
    }

    fn statement(&mut self, table: &WriterTable) -> String {
        let WriterTable { name, key, value } = table;
        // One block or so of existing rows, wherever it lies.
        let some = format!(
            "{key} IN (SELECT {key} FROM {name} TABLESAMPLE SYSTEM (1) LIMIT {})",
            self.rng.u32(1..=50)
        );
        match self.rng.u32(..3) {
            0 => self.insert(table),
            1 => format!("UPDATE {name} SET {value} = {value} + 1 WHERE {some}"),
            _ => format!("DELETE FROM {name} WHERE {some}"),
        }
    }

    fn insert(&mut self, table: &WriterTable) -> String {
        let first = self.next_key;
        let count = self.rng.i64(1..=20);
        self.next_key += count;
        format!(
            "INSERT INTO {}({}, {}) SELECT i, i % 1000 FROM generate_series({first}, {}) i",
            table.name,
            table.key,
            table.value,
            first + count - 1
        )
    }
}

fn is_conflict(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
    )
}
