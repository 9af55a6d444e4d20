//! What PostgreSQL's own suite and generated queries found, each at the lowest level that shows it.

use parallel_replicas_tests::{Cluster, Differential, PRIMARY, damage_check, text};
use postgres::Client;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .start();
    cluster.register_replicas();
    cluster
}

#[track_caller]
fn run(client: &mut Client, script: &str) {
    client
        .batch_execute(script)
        .unwrap_or_else(|error| panic!("{error:?}\n{script}"));
}

/// Two transactions that each read the table that the other writes cannot both be serializable,
/// also if the tables are empty, so that no granule of them is ever read.
#[test]
fn a_serializable_transaction_notices_what_it_read_of_empty_tables() {
    let cluster = cluster();
    let mut clients = [cluster.connect(PRIMARY), cluster.connect(PRIMARY)];
    run(
        &mut clients[0],
        "CREATE TABLE one (i int); CREATE TABLE two (i int)",
    );
    for (client, table) in clients.iter_mut().zip(["one", "two"]) {
        // The plan was made for replicas, before anybody knew of the isolation level.
        run(
            client,
            &format!(
                "SET plan_cache_mode = force_generic_plan; SET parallel_replicas.debug_force = on;
                 PREPARE reader AS SELECT count(*) FROM {table}; EXECUTE reader"
            ),
        );
    }
    for client in &mut clients {
        run(client, "BEGIN ISOLATION LEVEL SERIALIZABLE; EXECUTE reader");
    }
    let [a, b] = &mut clients;
    let outcome = a
        .batch_execute("INSERT INTO two VALUES (1)")
        .and_then(|()| b.batch_execute("INSERT INTO one VALUES (1)"))
        .and_then(|()| a.batch_execute("COMMIT"))
        .and_then(|()| b.batch_execute("COMMIT"));
    let error = outcome.expect_err("one of them must fail");
    let error = error.as_db_error().expect("the server's own error");
    assert_eq!(error.code().code(), "40001", "{error}");
    damage_check(&cluster);
}

/// Fragments that were started with replicas, and replicas that contributed, since the server started.
fn counters(client: &mut Client) -> (u64, u64) {
    let row = client
        .query_one(
            "SELECT sum(value) FILTER (WHERE event = 'ParallelReplicasQueryCount')::text,
                 sum(value) FILTER (WHERE event = 'ParallelReplicasUsedCount')::text
             FROM parallel_replicas.events",
            &[],
        )
        .expect("the events can be read");
    let number = |column| row.get::<_, String>(column).parse().expect("a number");
    (number(0), number(1))
}

/// Runs a script and panics unless replicas contributed rows to it.
#[track_caller]
fn run_with_replicas(client: &mut Client, script: &str) {
    let before = counters(client);
    run(client, script);
    let after = counters(client);
    assert!(after.1 > before.1, "replicas took no part: {script}");
}

/// A value of a unique key finds one row, but not if the key is that of a part of the rows, or of one
/// table of several. Each query is the first of its session: the cache knows the indexes in name only.
#[test]
fn a_key_of_a_part_is_no_key_of_all() {
    let cluster = cluster();
    run(
        &mut cluster.connect(PRIMARY),
        "CREATE TABLE parted (k int, first bool);
         INSERT INTO parted SELECT 1, i = 1 FROM generate_series(1, 50000) i;
         CREATE UNIQUE INDEX ON parted (k) WHERE first;
         CREATE TABLE parent (k int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
         INSERT INTO child SELECT 1 FROM generate_series(1, 50000) i;
         CREATE TABLE whole (k int PRIMARY KEY);
         INSERT INTO whole SELECT generate_series(1, 50000);
         ANALYZE parted; ANALYZE parent; ANALYZE child; ANALYZE whole",
    );
    cluster.psql(PRIMARY, "VACUUM parted, parent, child, whole");
    for (table, by_replicas) in [("parted", true), ("parent", true), ("whole", false)] {
        let mut client = cluster.connect(PRIMARY);
        run(
            &mut client,
            "SET enable_parallel_replicas = 1; SET parallel_setup_cost = 0;
             SET parallel_replicas.setup_cost = 0; SET min_parallel_table_scan_size = 0;
             SET enable_indexscan = off; SET enable_bitmapscan = off;
             SET enable_indexonlyscan = off",
        );
        let before = counters(&mut cluster.connect(PRIMARY)).0;
        run(
            &mut client,
            &format!("SELECT count(*) FROM {table} WHERE k = 1"),
        );
        let used = counters(&mut cluster.connect(PRIMARY)).0 > before;
        assert_eq!(used, by_replicas, "{table}");
    }
    damage_check(&cluster);
}

/// Everything is shipped, and only replicas read.
const FORCED: &str =
    "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
     SET parallel_replicas.granule_blocks = 4";

/// The statement's own transaction id comes after its snapshot, so its rows are nobody's yet.
#[test]
fn bulk_writes_read_through_replicas() {
    let cluster = cluster();
    let mut client = cluster.connect(PRIMARY);
    run(
        &mut client,
        "CREATE TABLE source AS SELECT i, i % 7 AS k, md5(i::text) AS t FROM generate_series(1, 20000) i;
         CREATE TABLE written (i int)",
    );
    run(&mut client, FORCED);
    // Each with what it makes, and of which rows.
    for (script, made, query) in [
        (
            "CREATE TABLE made AS SELECT k, count(*), sum(i) FROM source GROUP BY k",
            "made",
            "SELECT k, count(*), sum(i) FROM source GROUP BY k",
        ),
        (
            "CREATE TABLE made2 AS SELECT * FROM source WHERE k < 3",
            "made2",
            "SELECT * FROM source WHERE k < 3",
        ),
        (
            "SELECT * INTO made3 FROM source WHERE k = 2",
            "made3",
            "SELECT * FROM source WHERE k = 2",
        ),
        (
            "CREATE MATERIALIZED VIEW made4 AS SELECT * FROM source WHERE k = 1",
            "made4",
            "SELECT * FROM source WHERE k = 1",
        ),
        (
            "BEGIN; SAVEPOINT a; CREATE TABLE made5 AS SELECT * FROM source WHERE k = 5;
             RELEASE a; COMMIT",
            "made5",
            "SELECT * FROM source WHERE k = 5",
        ),
        (
            "PREPARE rows (int) AS SELECT * FROM source WHERE k = $1;
             CREATE TABLE made6 AS EXECUTE rows (4)",
            "made6",
            "SELECT * FROM source WHERE k = 4",
        ),
    ] {
        run_with_replicas(&mut client, script);
        run(&mut client, "SET parallel_replicas.debug_force = off");
        let unequal = format!(
            "SELECT count(*)::text FROM ((({query}) EXCEPT ALL TABLE {made})
                 UNION ALL (TABLE {made} EXCEPT ALL ({query}))) s"
        );
        assert_eq!(text(&mut client, &unequal), "0", "{script}");
        let count = format!("SELECT count(*)::text FROM {made}");
        assert_ne!(text(&mut client, &count), "0", "{script}");
        run(&mut client, FORCED);
    }
    let mut copied = |settings: &str| {
        run(&mut client, settings);
        let before = counters(&mut client).1;
        let mut rows = String::new();
        client
            .copy_out("COPY (SELECT * FROM source WHERE k = 3) TO STDOUT")
            .unwrap()
            .read_to_string(&mut rows)
            .unwrap();
        let mut rows: Vec<String> = rows.lines().map(String::from).collect();
        rows.sort();
        (rows, counters(&mut client).1 > before)
    };
    let (alone, none) = copied("SET parallel_replicas.debug_force = off");
    let (rows, used) = copied(FORCED);
    assert!(!none && used);
    assert!(rows.len() > 2000);
    assert_eq!(rows, alone);

    // A transaction that wrote before must see its own rows, which replicas cannot.
    run(
        &mut client,
        "BEGIN; INSERT INTO source SELECT -i, 100, '' FROM generate_series(1, 500) i",
    );
    let before = counters(&mut client);
    run(
        &mut client,
        "CREATE TABLE made7 AS SELECT * FROM source WHERE k = 100",
    );
    assert_eq!(counters(&mut client).0, before.0);
    assert_eq!(text(&mut client, "SELECT count(*)::text FROM made7"), "500");
    run(&mut client, "COMMIT");
    damage_check(&cluster);
}

/// A REFRESH has an id before its query begins, because of its lock. What it has written by then is none of
/// the query's matter; what anybody else wrote in its transaction may be.
#[test]
fn a_refresh_reads_through_replicas() {
    let cluster = cluster();
    let mut client = cluster.connect(PRIMARY);
    run(
        &mut client,
        "CREATE TABLE source AS SELECT i, i % 7 AS k FROM generate_series(1, 20000) i;
         CREATE TABLE log (i int);
         CREATE MATERIALIZED VIEW mv AS SELECT i, k FROM source WHERE k = 1;
         CREATE UNIQUE INDEX ON mv (i)",
    );
    let rows = "SELECT count(*) || ' ' || sum(i) FROM mv";
    let wanted = "SELECT count(*) || ' ' || sum(i) FROM source WHERE k = 1";
    run(&mut client, FORCED);
    for (change, refresh) in [
        (
            "INSERT INTO source VALUES (-1, 1)",
            "REFRESH MATERIALIZED VIEW mv",
        ),
        (
            "DELETE FROM source WHERE i < 40",
            "REFRESH MATERIALIZED VIEW CONCURRENTLY mv",
        ),
        (
            "UPDATE source SET k = 1 WHERE k = 2",
            "BEGIN; SAVEPOINT a; REFRESH MATERIALIZED VIEW mv; RELEASE a; COMMIT",
        ),
        (
            "DELETE FROM source WHERE i < 80",
            "BEGIN ISOLATION LEVEL REPEATABLE READ; REFRESH MATERIALIZED VIEW CONCURRENTLY mv; COMMIT",
        ),
        // As a function's statement.
        (
            "INSERT INTO source SELECT -i, 1 FROM generate_series(2, 50) i",
            "DO $$ BEGIN REFRESH MATERIALIZED VIEW mv; END $$",
        ),
    ] {
        run(&mut client, change);
        run_with_replicas(&mut client, refresh);
        assert_eq!(
            text(&mut client, rows),
            text(&mut client, wanted),
            "{refresh}"
        );
        damage_check(&cluster);
    }

    // The transaction has written before, the table or another one.
    for (before, after) in [
        ("BEGIN; INSERT INTO source VALUES (-100, 1)", "COMMIT"),
        ("BEGIN; INSERT INTO log VALUES (1)", "COMMIT"),
        (
            "BEGIN; SAVEPOINT a; DELETE FROM source WHERE i < 0; RELEASE a",
            "COMMIT",
        ),
        // An earlier REFRESH has done no harm, but it gave the transaction its id.
        ("BEGIN; REFRESH MATERIALIZED VIEW mv", "COMMIT"),
        // Rows are locked, the id is of the same statement.
        ("BEGIN; SELECT FROM source LIMIT 1 FOR UPDATE", "COMMIT"),
    ] {
        run(&mut client, before);
        run_here(&mut client, "REFRESH MATERIALIZED VIEW mv");
        assert_eq!(
            text(&mut client, rows),
            text(&mut client, wanted),
            "{before}"
        );
        run(&mut client, after);
    }
    // No id yet, but a lock with which rows are written.
    run(
        &mut client,
        "BEGIN; LOCK TABLE source IN ROW EXCLUSIVE MODE",
    );
    run_here(&mut client, "REFRESH MATERIALIZED VIEW mv");
    run(&mut client, "COMMIT");
    // One that fails leaves nothing to the statements that come after it.
    run(
        &mut client,
        "CREATE MATERIALIZED VIEW failing AS SELECT 1 / (k - 6) AS x FROM source WITH NO DATA",
    );
    client
        .batch_execute("REFRESH MATERIALIZED VIEW failing")
        .expect_err("it divides by zero");
    run(&mut client, "BEGIN; INSERT INTO source VALUES (-200, 1)");
    run_here(&mut client, "REFRESH MATERIALIZED VIEW mv");
    assert_eq!(text(&mut client, rows), text(&mut client, wanted));
    run(&mut client, "ROLLBACK");

    // An event trigger writes between the statement's beginning and its query.
    run(
        &mut client,
        "CREATE FUNCTION writes() RETURNS event_trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO log VALUES (2); END $$;
         CREATE EVENT TRIGGER writes ON ddl_command_start
             WHEN TAG IN ('REFRESH MATERIALIZED VIEW') EXECUTE FUNCTION writes()",
    );
    run_here(&mut client, "REFRESH MATERIALIZED VIEW mv");
    assert_eq!(text(&mut client, rows), text(&mut client, wanted));
    run(&mut client, "DROP EVENT TRIGGER writes");
    // Others' transactions begin and end all the time.
    let (done, ended) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = cluster.connect(PRIMARY);
            while !done.load(Ordering::Relaxed) {
                run(&mut writer, "INSERT INTO log VALUES (3)");
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..20 {
            run_with_replicas(&mut client, "REFRESH MATERIALIZED VIEW mv");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(ended.into_inner() > 20);
    assert_eq!(text(&mut client, rows), text(&mut client, wanted));
    damage_check(&cluster);
}

/// Runs a script and panics if a fragment of it was started with replicas.
#[track_caller]
fn run_here(client: &mut Client, script: &str) {
    let before = counters(client);
    run(client, script);
    assert_eq!(counters(client).0, before.0, "replicas took part: {script}");
}

/// Small and empty partitions stand beside large ones in an Append; none of them may keep the others
/// from being shipped.
#[test]
fn partitions_of_all_sizes_are_shipped_together() {
    let cluster = cluster();
    let mut client = cluster.connect(PRIMARY);
    run(
        &mut client,
        "CREATE TABLE parted (id int, v int, pad text) PARTITION BY RANGE (id);
         CREATE TABLE parted_large PARTITION OF parted FOR VALUES FROM (0) TO (400000);
         CREATE TABLE parted_small PARTITION OF parted FOR VALUES FROM (400000) TO (400100);
         CREATE TABLE parted_rest PARTITION OF parted DEFAULT;
         INSERT INTO parted SELECT i, i % 10, repeat('x', 200) FROM generate_series(0, 400099) i",
    );
    run(&mut client, "VACUUM ANALYZE parted");
    cluster.wait_all_caught_up();
    run(&mut client, "SET enable_parallel_replicas = on");
    let query = "SELECT v, count(*), sum(id) FROM parted WHERE pad LIKE 'x%' GROUP BY v";
    let plan = plan(&mut client, query);
    assert!(plan.contains("(ParallelReplicas)"), "{plan}");
    for part in ["parted_large", "parted_small", "parted_rest"] {
        assert!(plan.contains(&format!("(GranuleScan) on {part}")), "{plan}");
    }
    run_with_replicas(&mut client, query);
    Differential::new(&mut client).check(query);

    // Nothing but small partitions.
    run(
        &mut client,
        "CREATE TABLE many (id int, v int) PARTITION BY HASH (id)",
    );
    for part in 0..8 {
        run(
            &mut client,
            &format!(
                "CREATE TABLE many_{part} PARTITION OF many
                 FOR VALUES WITH (MODULUS 8, REMAINDER {part})"
            ),
        );
    }
    run(
        &mut client,
        "INSERT INTO many SELECT i, i % 10 FROM generate_series(1, 20000) i; ANALYZE many",
    );
    run(&mut client, FORCED);
    run_with_replicas(
        &mut client,
        "SELECT v, count(*), sum(id) FROM many GROUP BY v",
    );
    Differential::new(&mut client)
        .between("SET LOCAL parallel_replicas.debug_force = off", FORCED)
        .check("SELECT v, count(*), sum(id) FROM many GROUP BY v");
    damage_check(&cluster);
}

fn plan(client: &mut Client, query: &str) -> String {
    let rows = client
        .query(&format!("EXPLAIN (COSTS OFF) {query}"), &[])
        .unwrap_or_else(|error| panic!("{error:?}\n{query}"));
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

/// Extensions that look at plans and executions, before and after ours in the list of libraries, and
/// types that come from extensions.
#[test]
fn other_extensions_do_not_mind() {
    for libraries in [
        "pg_stat_statements,auto_explain,parallel_replicas",
        "parallel_replicas,auto_explain,pg_stat_statements",
    ] {
        let cluster = Cluster::builder()
            .standbys(2)
            .preload(false)
            .setting("shared_preload_libraries", libraries)
            .setting("auto_explain.log_min_duration", "0")
            .setting("auto_explain.log_analyze", "on")
            .setting("auto_explain.log_verbose", "on")
            .setting("auto_explain.log_buffers", "on")
            .setting("auto_explain.log_settings", "on")
            .setting("auto_explain.log_nested_statements", "on")
            .setting("compute_query_id", "on")
            .setting("parallel_replicas.connect_timeout", "5s")
            .setting("parallel_replicas.replay_wait_timeout", "30s")
            .start();
        cluster.register_replicas();
        let mut client = cluster.connect(PRIMARY);
        run(
            &mut client,
            "CREATE EXTENSION pg_stat_statements; CREATE EXTENSION pg_trgm;
             CREATE EXTENSION citext; CREATE EXTENSION hstore;
             CREATE TABLE words AS SELECT i, md5(i::text) AS t, md5((i % 50)::text)::citext AS c,
                 hstore('k', (i % 9)::text) AS h FROM generate_series(1, 20000) i;
             CREATE TABLE keys AS SELECT i FROM generate_series(1, 100) i;
             CREATE INDEX ON words USING gin (t gin_trgm_ops); ANALYZE words; ANALYZE keys",
        );
        cluster.wait_all_caught_up();
        for query in [
            "SELECT count(*), min(t) FROM words WHERE i % 3 = 1",
            "SELECT w.i, w.t FROM words w JOIN keys USING (i) WHERE i < (SELECT max(i) FROM keys)",
            "SELECT t FROM words WHERE t LIKE '%abc%' ORDER BY t LIMIT 5",
            "SELECT i, h FROM words WHERE i < 500",
            "SELECT c, count(*) FROM words GROUP BY c",
            "SELECT h -> 'k', count(*) FROM words GROUP BY 1",
            "SELECT count(*) FROM words WHERE similarity(t, 'abcdef') > 0.1",
        ] {
            Differential::new(&mut client)
                .between("SET LOCAL parallel_replicas.debug_force = off", FORCED)
                .check(query);
        }
        run(&mut client, FORCED);
        run_with_replicas(
            &mut client,
            "SELECT count(*), min(t) FROM words WHERE i % 3 = 1",
        );
        let calls = "SELECT sum(calls)::text FROM pg_stat_statements WHERE query LIKE '%min(t)%'";
        assert!(text(&mut client, calls).parse::<u32>().expect("a number") >= 3);
        // What auto_explain logged of the whole query has our nodes.
        assert!(
            cluster
                .log(PRIMARY)
                .contains("Custom Scan (ParallelReplicas)")
        );
        damage_check(&cluster);
    }
}
