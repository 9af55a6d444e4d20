//! PostgreSQL's own means of looking at a query see what replicas did: EXPLAIN with all its options,
//! pg_stat_statements, auto_explain, and their settings.

use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};
use postgres::{Client, SimpleQueryMessage};
use serde_json::Value;

const ROWS: u32 = 100_000;

fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        // Too small for the table: every query reads.
        .shared_buffers("2MB")
        .setting(
            "shared_preload_libraries",
            "pg_stat_statements, parallel_replicas, auto_explain",
        )
        .setting("pg_stat_statements.track", "all")
        .setting("auto_explain.log_min_duration", "0")
        .setting("auto_explain.log_analyze", "on")
        .setting("auto_explain.log_buffers", "on")
        .start();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE EXTENSION pg_stat_statements;
             CREATE TABLE t AS SELECT g AS i, g % 10 AS grp, repeat('x', 100) AS pad
                 FROM generate_series(1, {ROWS}) g;
             VACUUM ANALYZE t"
        ),
    );
    cluster.register_replicas();
    cluster
}

fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.granule_blocks = 16;
             SET parallel_replicas.connect_timeout = '30s'",
        )
        .expect("settings");
    client
}

#[test]
fn what_replicas_did_is_part_of_the_sums() {
    let cluster = cluster();
    let mut client = session(&cluster);
    let blocks: f64 = text(&mut client, "SELECT (pg_relation_size('t') / 8192)::text")
        .parse()
        .expect("a number");
    explain_adds_up_blocks_rows_and_time(&mut client, blocks);
    explain_adds_up_jit(&mut client);
    statements_count_blocks_and_calls_once(&cluster, &mut client, blocks);
    auto_explain_sees_both_sides(&cluster, &mut client);
}

/// EXPLAIN's JSON.
#[track_caller]
fn explain(client: &mut Client, options: &str, query: &str) -> Value {
    let explain = format!("EXPLAIN (ANALYZE, FORMAT JSON, {options}) {query}");
    for message in client.simple_query(&explain).expect("a plan") {
        if let SimpleQueryMessage::Row(row) = message {
            return serde_json::from_str(row.get(0).expect("a text")).expect("valid JSON");
        }
    }
    panic!("no plan: {explain}");
}

fn find<'a>(node: &'a Value, provider: &str) -> Option<&'a Value> {
    if node["Custom Plan Provider"] == provider {
        return Some(node);
    }
    let below = node["Plans"].as_array()?;
    below.iter().find_map(|node| find(node, provider))
}

/// Numbers of the granule scan, all of one execution.
fn of_the_scan<const N: usize>(
    client: &mut Client,
    options: &str,
    fields: [&str; N],
) -> [Option<f64>; N] {
    let plan = explain(client, options, "SELECT i FROM t");
    let scan = find(&plan[0]["Plan"], "GranuleScan").expect("a granule scan");
    fields.map(|field| scan[field].as_f64())
}

/// A plan that gives rows comes whole from the replicas here.
fn explain_adds_up_blocks_rows_and_time(client: &mut Client, blocks: f64) {
    let buffers = ["Shared Hit Blocks", "Shared Read Blocks", "I/O Read Time"];
    let [hit, read, time] = of_the_scan(client, "BUFFERS", buffers);
    let (hit, read) = (hit.expect("buffers"), read.expect("buffers"));
    assert!(hit + read >= blocks, "{hit} + {read} of {blocks}");
    assert!(hit + read < blocks * 1.5, "{hit} + {read} of {blocks}");
    assert!(read > blocks / 2.0, "the cache is smaller than the table");
    assert_eq!(time, None);
    let counts = ["Actual Rows", "Actual Loops", "Actual Total Time"];
    let [rows, loops, time] = of_the_scan(client, "TIMING OFF", counts);
    let (rows, loops) = (rows.expect("rows"), loops.expect("loops"));
    assert!(loops >= 1.0);
    assert!(
        (rows * loops - f64::from(ROWS)).abs() <= loops,
        "{rows} * {loops}"
    );
    assert_eq!(time, None);
    let [_, _, time] = of_the_scan(client, "TIMING ON", counts);
    assert!(time.expect("time") > 0.0);
    // The setting of the session counts, on the replicas too.
    client
        .batch_execute("SET track_io_timing = on")
        .expect("setting");
    let [_, _, time] = of_the_scan(client, "BUFFERS", buffers);
    assert!(
        time.expect("timing") > 0.0,
        "replicas read without taking the time"
    );
    client
        .batch_execute("RESET track_io_timing")
        .expect("setting");
}

/// Each process compiles for itself, and all of that is shown.
fn explain_adds_up_jit(client: &mut Client) {
    client
        .batch_execute("SET jit_above_cost = 0; SET jit = on")
        .expect("settings");
    let mut functions = |replicas: u8, links: u8| -> i64 {
        client
            .batch_execute(&format!(
                "SET max_parallel_replicas = {replicas};
                 SET parallel_replicas.links_per_replica = {links}"
            ))
            .expect("settings");
        let query = "SELECT grp, sum(length(repeat(pad, 200))) FROM t GROUP BY grp";
        let plan = explain(client, "COSTS ON", query);
        plan[0]["JIT"]["Functions"].as_i64().expect("JIT")
    };
    let few = functions(1, 1);
    let many = functions(2, 2);
    assert!(
        many > few,
        "{many} functions with four links, {few} with one"
    );
    client
        .batch_execute(
            "RESET jit_above_cost; RESET jit; RESET max_parallel_replicas;
             RESET parallel_replicas.links_per_replica",
        )
        .expect("settings");
}

fn statements_count_blocks_and_calls_once(cluster: &Cluster, client: &mut Client, blocks: f64) {
    let mut monitor = cluster.connect(PRIMARY);
    for node in 0..=2 {
        cluster.psql(node, "SELECT pg_stat_statements_reset()");
    }
    for _ in 0..3 {
        client
            .query("SELECT grp, count(*) FROM t GROUP BY grp", &[])
            .expect("query");
    }
    let row = monitor
        .query_one(
            "SELECT calls, rows, (shared_blks_hit + shared_blks_read)::float8, queryid,
                    total_exec_time > 0
               FROM pg_stat_statements
              WHERE query = 'SELECT grp, count(*) FROM t GROUP BY grp'",
            &[],
        )
        .expect("one entry");
    assert_eq!(row.get::<_, i64>(0), 3);
    assert_eq!(row.get::<_, i64>(1), 30);
    let touched: f64 = row.get(2);
    assert!(
        touched >= 3.0 * blocks && touched < 4.5 * blocks,
        "{touched} of 3 * {blocks}"
    );
    assert!(row.get::<_, bool>(4));
    let queryid: i64 = row.get(3);
    assert_eq!(
        text(
            &mut monitor,
            "SELECT statement_id::text FROM parallel_replicas.query_log
              ORDER BY started DESC LIMIT 1"
        ),
        queryid.to_string()
    );
    for node in [1, 2] {
        let mut replica = cluster.connect(node);
        // One entry for all calls, however many challenges there were.
        let row = replica
            .query_one(
                "SELECT count(*), sum(calls)::bigint, bool_and(total_exec_time > 0)
                   FROM pg_stat_statements WHERE query LIKE 'CALL parallel_replicas.serve%'",
                &[],
            )
            .expect("entries");
        assert_eq!(row.get::<_, i64>(0), 1);
        assert!(row.get::<_, i64>(1) >= 3, "calls");
        assert!(row.get::<_, bool>(2));
        // The fragment has the query's own identifier, and its rows and time.
        let row = replica
            .query_one(
                "SELECT sum(calls)::bigint, sum(rows)::bigint, sum(total_exec_time),
                        sum(shared_blks_hit + shared_blks_read)::bigint
                   FROM pg_stat_statements WHERE queryid = $1",
                &[&queryid],
            )
            .expect("entries");
        assert!(row.get::<_, i64>(0) >= 3, "calls");
        assert!(row.get::<_, i64>(1) > 0, "rows");
        assert!(row.get::<_, f64>(2) > 0.0, "time");
        assert!(row.get::<_, i64>(3) > 0, "blocks");
    }
}

fn auto_explain_sees_both_sides(cluster: &Cluster, client: &mut Client) {
    client
        .query("SELECT grp AS marked, count(*) FROM t GROUP BY grp", &[])
        .expect("query");
    wait_until(SOON, "the coordinator's log has the plan", || {
        let log = cluster.log(PRIMARY);
        log.split("plan:").any(|plan| {
            plan.contains("SELECT grp AS marked")
                && plan.contains("Replica: standby1 links=")
                && plan.contains("(GranuleScan) on t")
        })
    });
    let id = text(
        client,
        "SELECT query_id::text FROM parallel_replicas.query_log
          WHERE query LIKE 'SELECT grp AS marked%'",
    );
    wait_until(SOON, "a replica's log has its part", || {
        [1, 2].into_iter().any(|node| {
            let log = cluster.log(node);
            log.split("plan:").any(|plan| {
                plan.contains(&format!("fragment of query {id}"))
                    && plan.contains("(GranuleScan) on t")
                    && plan.contains("actual time=")
            })
        })
    });
}
