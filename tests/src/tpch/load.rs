//! Generates TPC-H data and loads them by COPY.
//!
//! The lines of the generator go straight into COPY, nothing touches the disk. Each table is
//! created and filled in one transaction with COPY FREEZE, so its rows are frozen and all-visible
//! at once and no VACUUM has to write it a second time. Two connections work at a time: one on
//! lineitem, which has most of the data, the other on all other tables.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use postgres::{Client, Config, NoTls};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};

use super::schema::{Table, table};

/// Bytes sent at once: large enough that the overhead of one message vanishes.
const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// How often the progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// What is built on the tables after they are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// Primary keys only.
    PrimaryKeys,
    /// Also the indexes that some queries need in order to end at all at a large scale.
    All,
}

/// How far a load has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Rows sent so far, of all tables.
    pub rows: u64,
    /// About how many rows there will be.
    pub expected_rows: u64,
    /// Whether keys, indexes and statistics are made too.
    pub finished: bool,
}

/// Creates and fills all tables at a scale factor in database `postgres`, makes keys and indexes
/// and gathers statistics.
#[track_caller]
pub fn load(
    config: &Config,
    scale_factor: f64,
    indexes: Indexes,
    mut report: impl FnMut(Progress),
) {
    // Row counts at SF 1 (TPC-H specification, clause 4.2.5).
    let at_sf_1 = 6_001_215 + 1_500_000 + 800_000 + 200_000 + 150_000 + 10_000;
    let expected_rows = (f64::from(at_sf_1) * scale_factor) as u64;
    let rows = AtomicU64::new(0);
    let progress = |finished| {
        let rows = rows.load(Ordering::Relaxed);
        Progress {
            rows,
            expected_rows,
            finished,
        }
    };
    thread::scope(|scope| {
        let (ended, all_ended) = channel();
        for part in [load_lineitem, load_others] {
            let loader = Loader {
                client: connect(config),
                scale_factor,
                indexes,
                rows: &rows,
            };
            let ended: Sender<()> = ended.clone();
            scope.spawn(move || {
                part(loader);
                drop(ended);
            });
        }
        drop(ended);
        while all_ended.recv_timeout(REPORT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            report(progress(false));
        }
    });
    report(progress(true));
}

fn connect(config: &Config) -> Client {
    let mut client = config
        .connect(NoTls)
        .expect("the primary accepts connections");
    client
        .batch_execute("SET maintenance_work_mem = '512MB'")
        .expect("the setting exists");
    client
}

fn load_lineitem(mut loader: Loader<'_>) {
    let scale = loader.scale_factor;
    loader.fill("lineitem", || LineItemGenerator::new(scale, 1, 1));
}

fn load_others(mut loader: Loader<'_>) {
    let scale = loader.scale_factor;
    loader.fill("region", || RegionGenerator::new(scale, 1, 1));
    loader.fill("nation", || NationGenerator::new(scale, 1, 1));
    loader.fill("supplier", || SupplierGenerator::new(scale, 1, 1));
    loader.fill("customer", || CustomerGenerator::new(scale, 1, 1));
    loader.fill("part", || PartGenerator::new(scale, 1, 1));
    loader.fill("partsupp", || PartSuppGenerator::new(scale, 1, 1));
    loader.fill("orders", || OrderGenerator::new(scale, 1, 1));
}

struct Loader<'a> {
    client: Client,
    scale_factor: f64,
    indexes: Indexes,
    rows: &'a AtomicU64,
}

impl Loader<'_> {
    fn fill<G>(&mut self, name: &str, generator: impl FnOnce() -> G)
    where
        G: IntoIterator<Item: Display>,
    {
        let Table {
            name,
            columns,
            primary_key,
            index,
        } = table(name);
        self.copy(name, columns, generator())
            .unwrap_or_else(|error| {
                panic!("could not load {name}: {error:?}");
            });
        let index = index
            .filter(|_| self.indexes == Indexes::All)
            .map_or(String::new(), |index| {
                format!("CREATE INDEX ON {name} ({index})")
            });
        for statement in [
            format!("ALTER TABLE {name} ADD PRIMARY KEY ({primary_key})"),
            index,
            format!("VACUUM (ANALYZE) {name}"),
        ] {
            self.client
                .batch_execute(&statement)
                .unwrap_or_else(|error| panic!("{statement} failed: {error:?}"));
        }
    }

    fn copy<R: Display>(
        &mut self,
        name: &str,
        columns: &str,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<(), postgres::Error> {
        let mut transaction = self.client.transaction()?;
        transaction.batch_execute(&format!("CREATE TABLE {name} ({columns})"))?;
        let copy = format!("COPY {name} FROM STDIN (FREEZE, DELIMITER '|')");
        let mut writer = transaction.copy_in(&copy)?;
        let mut buffer = String::with_capacity(COPY_BUFFER_BYTES + 1024);
        let mut buffered_rows = 0;
        let mut rows = rows.into_iter();
        loop {
            let row = rows.next();
            if row.is_none() || buffer.len() >= COPY_BUFFER_BYTES {
                // The server's own error, if there is one, comes out of finish().
                if writer.write_all(buffer.as_bytes()).is_err() {
                    break;
                }
                self.rows.fetch_add(buffered_rows, Ordering::Relaxed);
                buffer.clear();
                buffered_rows = 0;
            }
            let Some(row) = row else { break };
            write!(buffer, "{row}").expect("a String takes everything");
            // The generator ends a line with a delimiter, which COPY takes for one more column.
            buffer.truncate(buffer.trim_end_matches('|').len());
            buffer.push('\n');
            buffered_rows += 1;
        }
        writer.finish()?;
        transaction.commit()
    }
}
