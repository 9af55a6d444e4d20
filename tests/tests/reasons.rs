//! Reasons to execute a query without replicas that come from the server: silent with
//! `enable_parallel_replicas = on`, an error that names the reason with `force`.

use parallel_replicas_tests::{Cluster, PRIMARY, text};
use postgres::Client;

const QUERY: &str = "SELECT count(*)::text FROM t";

fn cluster(settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .settings(settings)
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) i; ANALYZE t",
    );
    cluster.wait_all_caught_up();
    cluster
}

/// The query gives its rows with `on`, and an error with the reason with `force`.
#[track_caller]
fn assert_reason(client: &mut Client, reason: &str) {
    client
        .batch_execute("SET enable_parallel_replicas = on")
        .unwrap();
    assert_eq!(text(client, QUERY), "1000");
    client
        .batch_execute("SET enable_parallel_replicas = force")
        .unwrap();
    let error = client
        .simple_query(QUERY)
        .expect_err("force answers with an error");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55000");
    let detail = error.detail().unwrap_or_default();
    assert!(detail.starts_with(&format!("Reason {reason}:")), "{detail}");
}

#[test]
fn a_standby_executes_its_own_queries_alone() {
    let cluster = cluster(&[]);
    assert_reason(&mut cluster.connect(1), "in_recovery");
}

#[test]
fn old_snapshot_threshold_keeps_replicas_out() {
    let cluster = cluster(&[("old_snapshot_threshold", "60")]);
    assert_reason(&mut cluster.connect(PRIMARY), "old_snapshot_threshold");
}

/// A snapshot that does not list all subtransactions is completed from pg_subtrans, unless that
/// would be more than a million transaction ids.
#[test]
fn too_many_transaction_ids_since_an_overflowed_one_keep_replicas_out() {
    let cluster = cluster(&[]);
    cluster.psql(PRIMARY, "CREATE TABLE other(i int)");
    let mut writer = cluster.connect(PRIMARY);
    let burn = |count: u32| {
        format!(
            "DO $$BEGIN FOR i IN 1..{count} LOOP
                 BEGIN INSERT INTO other VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END;
             END LOOP; END$$"
        )
    };
    writer.batch_execute("BEGIN").unwrap();
    writer.batch_execute(&burn(100)).unwrap();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET enable_parallel_replicas = force")
        .unwrap();
    assert_eq!(text(&mut client, QUERY), "1000");
    writer.batch_execute(&burn(1_000_100)).unwrap();
    // Only a transaction that is complete moves the end of the next snapshot beyond them.
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (0)");
    assert_reason(&mut client, "subtransaction_overflow");
    writer.batch_execute("ROLLBACK").unwrap();
    client
        .batch_execute("SET enable_parallel_replicas = force")
        .unwrap();
    assert_eq!(text(&mut client, QUERY), "1000");
}

/// A plan that was made for `force` is executed as the session wishes now.
#[test]
fn a_prepared_statement_does_not_keep_force() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect(PRIMARY);
    for statements in [
        "CREATE TABLE other(i int)",
        "SET plan_cache_mode = force_generic_plan; SET enable_parallel_replicas = force;
         PREPARE q AS SELECT count(*) FROM t; EXECUTE q",
        "BEGIN; INSERT INTO other VALUES (1)",
    ] {
        client.batch_execute(statements).unwrap();
    }
    let forced = client.batch_execute("EXECUTE q").unwrap_err();
    assert_eq!(forced.code().unwrap().code(), "55000");
    for statements in [
        "ROLLBACK; SET enable_parallel_replicas = on",
        "BEGIN; INSERT INTO other VALUES (1); EXECUTE q; COMMIT",
    ] {
        client.batch_execute(statements).unwrap();
    }
}
