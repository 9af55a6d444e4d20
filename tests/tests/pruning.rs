//! Partitions that are pruned when a query starts: by the session that asks, not by the replica's.

use parallel_replicas_tests::{Cluster, PRIMARY, damage_check, text};

/// An ordered read of partitions, of which the session's own setting says which.
#[test]
fn partitions_are_pruned_by_this_session() {
    let cluster = Cluster::builder().standbys(1).autovacuum(false).start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE event(tenant text COLLATE \"C\", at int) PARTITION BY LIST (tenant);
         CREATE TABLE event_a PARTITION OF event FOR VALUES IN ('a');
         CREATE TABLE event_b PARTITION OF event FOR VALUES IN ('b');
         INSERT INTO event SELECT CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END, i
             FROM generate_series(1, 20000) i;
         CREATE INDEX ON event(at);
         ANALYZE event",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'amy';
             SET parallel_replicas.connect_timeout = '20s'; SET app.tenant = 'a'; SET app.none = ''",
        )
        .unwrap();
    let query = "SELECT at FROM event WHERE tenant <= current_setting('app.tenant', true)
                  ORDER BY at LIMIT 3";
    let plan: String = client
        .query(&format!("EXPLAIN (COSTS OFF) {query}"), &[])
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    assert!(plan.contains("Merge Append"), "{plan}");
    assert!(plan.contains("Subplans Removed: 1"), "{plan}");
    let rows = client.query(query, &[]).unwrap();
    let found: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(found, [2, 4, 6]);
    // Partitions are chosen in a subquery, too, and in one that nobody asks. All of it is sent whole.
    for query in [
        query,
        "SELECT at FROM event WHERE tenant <= current_setting('app.tenant', true)
             AND at > (SELECT avg(at) FROM event WHERE tenant <= current_setting('app.tenant', true))
         ORDER BY at LIMIT 3",
        "SELECT (SELECT count(*) FROM event WHERE tenant <= current_setting('app.tenant', true) || at)
         FROM event WHERE tenant < current_setting('app.none', true)",
    ] {
        let used = "SELECT value::text FROM parallel_replicas.events
                    WHERE event = 'ParallelReplicasUsedCount'";
        let before: i64 = text(&mut client, used).parse().unwrap();
        client.query(query, &[]).unwrap();
        let after: i64 = text(&mut client, used).parse().unwrap();
        assert_eq!(after, before + 1, "{query}");
    }
    damage_check(&cluster);
}
