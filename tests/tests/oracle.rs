//! The differential oracle over whole corpora: every query gives the same rows with replicas as
//! without, in one snapshot, while writers keep the primary busy; and no standby is damaged.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parallel_replicas_tests::corpus::{self, Query};
use parallel_replicas_tests::tpch::{self, Indexes};
use parallel_replicas_tests::{Cluster, PRIMARY, Rows, WriterTable, Writers, damage_check, text};
use postgres::{Client, Error};

/// PostgreSQL alone.
const OFF: &str = "SET LOCAL enable_parallel_replicas = 0";

/// Forced, in two ways. Where this server takes part, granules move between all participants; where
/// it only coordinates, every granule is read by a replica.
const FORCED: [&str; 2] = [
    "SET LOCAL enable_parallel_replicas = 2; SET LOCAL parallel_replicas_local_plan = on;
     SET LOCAL parallel_replicas.granule_blocks = 4",
    "SET LOCAL enable_parallel_replicas = 2; SET LOCAL parallel_replicas_local_plan = off;
     SET LOCAL parallel_replicas.granule_blocks = 16",
];

/// Under a tag nothing is divided: each query goes to one replica whole, or is executed here.
const TAGGED: [&str; 1] = [
    "SET LOCAL enable_parallel_replicas = 1; SET LOCAL parallel_replicas.setup_cost = 1e9;
      SET LOCAL parallel_replicas.replica_tag = 'amy_test'",
];

/// Least number of corpus queries that a replica executes whole.
const LEAST_WHOLE: usize = 440;

/// Least number of corpus queries in which replicas contribute rows or granules: nine in ten of
/// those that are not refused.
const LEAST_USED: usize = 450;

/// The same for every third query over changing tables.
const LEAST_USED_CHANGING: usize = 80;

/// What a query came to.
enum Verdict {
    /// The same rows in all runs; how often replicas were used in the forced ones.
    Equal { used: u64 },
    /// Force refused, for the reason with this code.
    Refused(String),
    /// The rows differ, or it failed.
    Wrong(String),
}

/// Runs a query alone and forced, in one snapshot.
fn judge(client: &mut Client, preamble: &[String], query: &Query) -> Verdict {
    judge_under(client, preamble, query, &FORCED)
}

/// Runs a query alone and under each of the settings, in one snapshot.
fn judge_under(
    client: &mut Client,
    preamble: &[String],
    query: &Query,
    settings: &[&str],
) -> Verdict {
    let before = used(client);
    let verdict = run(client, preamble, query, settings);
    client
        .batch_execute("ROLLBACK")
        .expect("a transaction can be left");
    match verdict {
        Ok(None) => Verdict::Equal {
            used: used(client) - before,
        },
        Ok(Some(difference)) => Verdict::Wrong(difference),
        Err(error) => {
            refusal(&error).map_or_else(|| Verdict::Wrong(format!("{error:?}")), Verdict::Refused)
        }
    }
}

fn run(
    client: &mut Client,
    preamble: &[String],
    query: &Query,
    settings: &[&str],
) -> Result<Option<String>, Error> {
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ")?;
    for statement in preamble.iter().chain(&query.preamble()) {
        client.batch_execute(statement)?;
    }
    client.batch_execute(OFF)?;
    let alone = Rows::fetch(client, &query.text)?;
    for setting in settings {
        client.batch_execute(setting)?;
        let forced = Rows::fetch(client, &query.text)?;
        if let Some(difference) = alone.difference(&forced, query.ordered) {
            return Ok(Some(format!("{setting}\n{difference}")));
        }
    }
    Ok(None)
}

/// Replicas that contributed to a fragment, summed over all fragments of the server so far.
fn used(client: &mut Client) -> u64 {
    let value = text(
        client,
        "SELECT value::text FROM parallel_replicas.events
         WHERE event = 'ParallelReplicasUsedCount'",
    );
    value.parse().expect("a counter is a number")
}

/// The code of the reason why force refused; `None` for any other error.
fn refusal(error: &Error) -> Option<String> {
    let error = error.as_db_error()?;
    if error.message() != "query cannot use parallel replicas" {
        return None;
    }
    let detail = error.detail()?.strip_prefix("Reason ")?;
    Some(String::from(detail.split_once(':')?.0))
}

fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .setting("max_wal_size", "4GB")
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "2s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .setting("parallel_replicas.stall_timeout", "60s")
        .start();
    cluster.register_replicas();
    cluster
}

/// Copies of corpus tables, of the same names in schema `busy`, in the form that writers need.
fn busy_tables(client: &mut Client) -> Vec<WriterTable> {
    let mut tables = vec![WriterTable::create(client, "busy.quiet_corner", 2000)];
    for (name, key, value) in [
        ("fact", "id", "flags"),
        ("detail", "fact_id", "val"),
        ("t_sparse", "id", "v"),
        ("t_dead", "id", "v"),
    ] {
        client
            .batch_execute(&format!(
                "CREATE TABLE busy.{name} (LIKE public.{name});
                 ALTER TABLE busy.{name} ALTER {key} TYPE bigint;
                 INSERT INTO busy.{name} SELECT * FROM public.{name};
                 CREATE INDEX ON busy.{name} ({key});
                 ANALYZE busy.{name};"
            ))
            .expect("a table can be copied");
        tables.push(WriterTable {
            name: format!("busy.{name}"),
            key: String::from(key),
            value: String::from(value),
        });
    }
    client
        .batch_execute(
            "ALTER TABLE busy.fact ALTER prod_id SET DEFAULT 7, ALTER flags SET DEFAULT 0,
                 ALTER tl SET DEFAULT '2020-01-01';
             ALTER TABLE busy.detail ALTER line SET DEFAULT 1;
             GRANT USAGE ON SCHEMA busy TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA busy TO PUBLIC",
        )
        .expect("defaults can be set");
    tables
}

/// Servers with the corpus, and writers on copies of its tables.
fn corpus_cluster() -> (Cluster, Client, Writers) {
    let cluster = cluster();
    cluster.psql(PRIMARY, corpus::SCHEMA);
    let mut client = cluster.connect(PRIMARY);
    for statement in [
        "CREATE SCHEMA busy",
        // Some tables have no dead rows and are all-visible, others are as they were filled.
        "VACUUM region, store, customer, product",
    ] {
        client.batch_execute(statement).unwrap();
    }
    let tables = busy_tables(&mut client);
    client.batch_execute("ANALYZE").unwrap();
    cluster.wait_all_caught_up();
    let writers = Writers::start(&cluster, &tables, 2, 15);
    writers.wait_for_transactions(50);
    (cluster, client, writers)
}

/// No standby was damaged, and nothing was left to PostgreSQL's end of transaction to find.
#[track_caller]
fn end(cluster: &Cluster) {
    for node in cluster.standbys().chain([PRIMARY]) {
        let log = cluster.log(node);
        let leak = log.lines().find(|line| line.contains(" leak"));
        assert_eq!(leak, None, "{} left a resource behind", cluster.name(node));
    }
    damage_check(cluster);
}

#[test]
fn every_corpus_query_gives_the_same_rows_with_replicas() {
    let (cluster, mut client, writers) = corpus_cluster();
    let (mut equal, mut queries_with_replicas) = (0, 0);
    let mut refused = BTreeMap::new();
    let mut wrong = String::new();
    for query in corpus::queries() {
        match judge(&mut client, &[], &query) {
            Verdict::Equal { used } => {
                equal += 1;
                queries_with_replicas += usize::from(used > 0);
                if used == 0 {
                    println!("no replica was used: {}", query.name);
                }
            }
            Verdict::Refused(reason) => {
                refused.insert(query.name, reason);
            }
            Verdict::Wrong(why) => writeln!(wrong, "{}: {why}\n", query.name).unwrap(),
        }
    }
    let transactions = writers.stop();
    println!(
        "{equal} equal, {queries_with_replicas} of them with replicas, {} refused; \
         {transactions} transactions of writers meanwhile",
        refused.len()
    );
    let list = refused
        .iter()
        .map(|(name, reason)| format!("{name} {reason}\n"))
        .collect::<String>();
    assert!(wrong.is_empty(), "{wrong}\nrefused:\n{list}");
    assert!(
        refused == corpus::local(),
        "corpus/local.txt is not what force refused, which is:\n{list}"
    );
    assert!(
        queries_with_replicas >= LEAST_USED,
        "only {queries_with_replicas} queries used replicas"
    );
    end(&cluster);
}

/// Corpus queries over tables that writers change: every third of them is enough, and keeps the time in
/// bounds.
fn changing_queries() -> impl Iterator<Item = Query> {
    const CHANGING: [&str; 4] = ["fact", "detail", "t_sparse", "t_dead"];
    const EVERY: usize = 3;
    // xmax is what a row's page says, which a snapshot does not fix.
    let changing = |query: &Query| {
        CHANGING.iter().any(|name| query.mentions(name)) && !query.text.contains("xmax")
    };
    let queries = corpus::queries().into_iter().filter(changing);
    queries.step_by(EVERY).map(|query| Query {
        // The writers' rows have equal keys and nulls, so that no order is total.
        ordered: false,
        ..query
    })
}

/// The corpus queries over some tables, in which the writers are at work: rows of transactions in
/// progress, rolled back, deleted and vacuumed away lie everywhere.
#[test]
fn corpus_queries_over_changing_tables_give_the_same_rows_with_replicas() {
    let (cluster, mut client, writers) = corpus_cluster();
    let search_path = [String::from("SET LOCAL search_path = busy, public")];
    let (mut equal, mut with_replicas, mut refused) = (0, 0, 0);
    let mut wrong = String::new();
    for query in changing_queries() {
        match judge(&mut client, &search_path, &query) {
            Verdict::Equal { used } => {
                equal += 1;
                with_replicas += usize::from(used > 0);
            }
            Verdict::Refused(_) => refused += 1,
            Verdict::Wrong(why) => writeln!(wrong, "{}: {why}\n", query.name).unwrap(),
        }
    }
    let transactions = writers.stop();
    println!(
        "{equal} equal, {with_replicas} of them with replicas, {refused} refused; \
         {transactions} transactions of writers meanwhile"
    );
    assert!(wrong.is_empty(), "{wrong}");
    assert!(
        with_replicas >= LEAST_USED_CHANGING,
        "only {with_replicas} queries used replicas"
    );
    end(&cluster);
}

/// The corpus once more, each query whole on the replica of a tag: over tables at rest, and those of
/// them that mention a changing table over that as well.
#[test]
fn every_corpus_query_gives_the_same_rows_under_a_tag() {
    let (cluster, mut client, writers) = corpus_cluster();
    let (mut whole, mut here) = (0, BTreeMap::new());
    let mut wrong = String::new();
    for query in corpus::queries() {
        match judge_under(&mut client, &[], &query, &TAGGED) {
            Verdict::Equal { used: 0 } => {
                let why = "SELECT coalesce((SELECT coalesce(reason, 'none') FROM
                     parallel_replicas.query_log ORDER BY started DESC LIMIT 1), 'none')";
                here.insert(query.name.clone(), text(&mut client, why));
            }
            Verdict::Equal { .. } => whole += 1,
            Verdict::Refused(reason) => panic!("{}: refused for {reason}", query.name),
            Verdict::Wrong(why) => writeln!(wrong, "{}: {why}\n", query.name).unwrap(),
        }
    }
    let search_path = [String::from("SET LOCAL search_path = busy, public")];
    for query in changing_queries() {
        if let Verdict::Wrong(why) = judge_under(&mut client, &search_path, &query, &TAGGED) {
            writeln!(wrong, "changing {}: {why}\n", query.name).unwrap();
        }
    }
    let transactions = writers.stop();
    println!(
        "{whole} whole, {} here: {here:#?}; {transactions} transactions of writers meanwhile",
        here.len()
    );
    assert!(wrong.is_empty(), "{wrong}");
    assert!(whole >= LEAST_WHOLE, "only {whole} queries were sent whole");
    end(&cluster);
}

#[test]
fn every_tpch_query_gives_the_same_rows_with_replicas() {
    let cluster = cluster();
    tpch::load(&cluster.config(PRIMARY), 0.05, Indexes::All, |_| {});
    let mut client = cluster.connect(PRIMARY);
    cluster.wait_all_caught_up();
    let busy = WriterTable::create(&mut client, "busy", 2000);
    let writers = Writers::start(&cluster, &[busy], 1, 22);
    let (mut used_in, mut refused) = (Vec::new(), Vec::new());
    let mut wrong = String::new();
    for number in tpch::QUERY_NUMBERS {
        let query = Query {
            text: String::from(tpch::query(number)),
            ..Query::default()
        };
        match judge(&mut client, &[], &query) {
            Verdict::Equal { used } if used > 0 => used_in.push(number),
            Verdict::Equal { .. } => {}
            Verdict::Refused(reason) => refused.push((number, reason)),
            Verdict::Wrong(why) => writeln!(wrong, "Q{number}: {why}\n").unwrap(),
        }
    }
    writers.stop();
    println!("with replicas: {used_in:?}, refused: {refused:?}");
    assert!(wrong.is_empty(), "{wrong}");
    assert!(refused.is_empty(), "refused: {refused:?}");
    let all: Vec<_> = tpch::QUERY_NUMBERS.collect();
    assert_eq!(used_in, all, "the queries in which replicas took part");
    end(&cluster);
}
