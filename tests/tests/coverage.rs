//! What PostgreSQL's own suite and generated queries found, each at the lowest level that shows it.

use parallel_replicas_tests::{Cluster, PRIMARY, damage_check};
use postgres::Client;

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
