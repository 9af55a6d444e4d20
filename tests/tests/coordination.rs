//! Who reads which granule on real servers: shares by weight, whether this server takes part, what
//! stays in the buffers, and the check that every granule was counted.

use std::collections::BTreeMap;

use parallel_replicas_tests::cluster::Options;
use parallel_replicas_tests::{
    Cluster, PRIMARY, Rows, SOON, StopMode, damage_check, text, wait_until,
};
use postgres::{Client, SimpleQueryMessage};

/// A table `t` of about 12 MB, in granules of 8 blocks.
fn scene(options: Options) -> Cluster {
    let cluster = options
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "30s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.granule_blocks", "8")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t(id int, pad text);
         INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 10500) i;
         VACUUM (FREEZE, ANALYZE) t",
    );
    cluster.wait_all_caught_up();
    cluster
}

fn forced(cluster: &Cluster, settings: &str) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(&format!("SET enable_parallel_replicas = 2; {settings}"))
        .unwrap();
    client
}

/// The check at the end of a query fails it where a granule was left out, whatever the rows look like.
#[test]
fn a_granule_that_nobody_reads_fails_the_query() {
    let cluster = scene(Cluster::builder().standbys(1));
    let mut alone = cluster.connect(PRIMARY);
    let mut client = forced(&cluster, "");
    for (query, ordered) in [
        ("SELECT count(*) FROM t", false),
        ("SELECT id FROM t", false),
        ("SELECT id FROM t ORDER BY id", true),
        ("SELECT id FROM t ORDER BY id LIMIT 5", true),
    ] {
        for local in ["on", "off"] {
            client
                .batch_execute(&format!(
                    "SET parallel_replicas_local_plan = {local};
                     SET parallel_replicas.debug_assignment = incomplete"
                ))
                .unwrap();
            let error = Rows::fetch(&mut client, query).expect_err("a granule is missing");
            let error = error.as_db_error().expect("an error of the server").clone();
            assert_eq!(error.code().code(), "XX000", "{error:?}");
            let expected = "was not delivered";
            assert!(error.message().contains(expected), "{error:?}");
            client
                .batch_execute("RESET parallel_replicas.debug_assignment")
                .unwrap();
            let rows = Rows::fetch(&mut client, query).expect("nothing is missing");
            let expected = Rows::fetch(&mut alone, query).unwrap();
            assert_eq!(expected.difference(&rows, ordered), None);
        }
    }
    damage_check(&cluster);
}

/// Blocks per server that the hash gives it; "" is this server.
fn owned(client: &mut Client) -> BTreeMap<String, i64> {
    let rows = client
        .query(
            "SELECT coalesce(replica, ''), blocks FROM parallel_replicas.prewarm('t')",
            &[],
        )
        .expect("prewarm");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[track_caller]
fn assert_shares(owned: &BTreeMap<String, i64>, weights: &[(&str, i64)]) {
    let all: i64 = owned.values().sum();
    let sum: i64 = weights.iter().map(|(_, weight)| weight).sum();
    assert_eq!(owned.len(), weights.len(), "{owned:?}");
    for (name, weight) in weights {
        let (share, expected) = (owned[*name], all * weight / sum);
        // Less than three standard deviations of a share of some 190 segments.
        assert!(
            (share - expected).abs() <= all / 9,
            "{name}: {owned:?}, not {expected}"
        );
    }
}

/// Replicas own, and read, what their weights say; this server what its own definition says.
#[test]
fn weights_divide_the_work() {
    let cluster = scene(Cluster::builder().standbys(2));
    let mut client = forced(&cluster, "");
    assert_shares(
        &owned(&mut client),
        &[("", 1), ("standby1", 1), ("standby2", 1)],
    );
    cluster.psql(PRIMARY, "ALTER SERVER standby1 OPTIONS (ADD weight '4')");
    wait_until(SOON, "the weight is known", || {
        let shares = owned(&mut client);
        shares["standby1"] > 2 * shares["standby2"]
    });
    assert_shares(
        &owned(&mut client),
        &[("", 1), ("standby1", 4), ("standby2", 1)],
    );

    // What queries read follows: owners read their own before anything else.
    let mut own = [0, 0];
    for _ in 0..5 {
        let plan = explain(&mut client, "SELECT sum(length(repeat(pad, 20))) FROM t");
        for (index, name) in ["standby1", "standby2"].iter().enumerate() {
            own[index] += number_after(&plan, &format!("Replica: {name} "), "own=");
        }
    }
    assert!(own[0] > 2 * own[1], "{own:?}");

    // This server's own definition.
    cluster.register_replica("here", cluster.port(PRIMARY));
    cluster.psql(PRIMARY, "ALTER SERVER here OPTIONS (ADD weight '6')");
    wait_until(SOON, "the monitor has recognised this server", || {
        let shares = owned(&mut client);
        !shares.contains_key("here") && shares[""] > shares["standby1"]
    });
    assert_shares(
        &owned(&mut client),
        &[("", 6), ("standby1", 4), ("standby2", 1)],
    );
    damage_check(&cluster);
}

fn explain(client: &mut Client, query: &str) -> String {
    let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {query}");
    let messages = client.simple_query(&explain).expect("the query succeeds");
    let lines = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The number after `word` in the line that has `name`; 0 if there is none.
fn number_after(plan: &str, name: &str, word: &str) -> u64 {
    let line = plan.lines().find(|line| line.contains(name));
    let rest = line
        .and_then(|line| line.split_once(word))
        .map(|(_, rest)| rest);
    let digits = rest
        .unwrap_or_default()
        .split(|c: char| !c.is_ascii_digit())
        .next();
    digits.unwrap_or_default().parse().unwrap_or(0)
}

/// With the preference off this server is one of those that `load_balancing` chooses from.
#[test]
fn this_server_can_be_left_out() {
    let cluster = scene(Cluster::builder().standbys(2));
    cluster.psql(PRIMARY, "ALTER SERVER standby2 OPTIONS (ADD priority '3')");
    cluster.register_replica("here", cluster.port(PRIMARY));
    let mut client = forced(&cluster, "SET load_balancing = in_order");
    wait_until(SOON, "the monitor knows everybody", || {
        text(
            &mut client,
            "SELECT count(*) FILTER (WHERE usable) || ' ' || count(*) FILTER (WHERE is_local)
             FROM parallel_replicas.replicas WHERE priority IS NOT NULL",
        ) == "2 1"
    });
    // Who takes part, by priority and name: (preference, servers, priority of the primary).
    let mut takes_part = |prefer: &str, most: u32, priority: u32| {
        cluster.psql(
            PRIMARY,
            &format!("ALTER SERVER here OPTIONS (SET priority '{priority}')"),
        );
        client
            .batch_execute(&format!(
                "SET parallel_replicas_prefer_local_replica = {prefer};
                 SET max_parallel_replicas = {most}"
            ))
            .unwrap();
        let names: Vec<String> = owned(&mut client).into_keys().collect();
        let plan = explain(&mut client, "SELECT sum(length(repeat(pad, 20))) FROM t");
        let scans = plan.contains("Local: granules=") && !plan.contains("Local: granules=0 ");
        (names.join(","), scans)
    };
    let text = |names: &str, scans| (names.to_owned(), scans);
    cluster.psql(PRIMARY, "ALTER SERVER here OPTIONS (ADD priority '2')");
    // Preferred: it is there in any case, beside as many replicas as are admitted.
    assert_eq!(takes_part("on", 1, 2), text(",standby1", true));
    // One of one: the only one that is not left out is the replica of the best priority.
    assert_eq!(takes_part("off", 1, 2), text("standby1", false));
    // At least one replica, whatever the order says.
    assert_eq!(takes_part("off", 1, 0), text("standby1", false));
    // Two of three: it is better than standby2, or worse.
    assert_eq!(takes_part("off", 2, 2), text(",standby1", true));
    assert_eq!(takes_part("off", 2, 4), text("standby1,standby2", false));
    // All of them.
    assert_eq!(takes_part("off", 3, 4), text(",standby1,standby2", true));
    damage_check(&cluster);
}

/// A share of the table that fits stays in each server's buffers, though the table is too large for
/// any: the second query reads next to nothing. PostgreSQL alone would read such a table through a few
/// buffers only.
#[test]
fn an_owner_keeps_its_share_in_its_buffers() {
    // 2048 buffers for 1500 blocks: none is pushed out, and each server's share is a third.
    let mut cluster = scene(Cluster::builder().standbys(2).shared_buffers("16MB"));
    for (assignment, kept) in [("hash", true), ("random", false)] {
        for node in 0..=2 {
            cluster.restart(node, StopMode::Fast);
        }
        for node in 1..=2 {
            cluster.wait_streaming(node);
        }
        cluster.wait_all_caught_up();
        let settings = format!("SET parallel_replicas.debug_assignment = {assignment}");
        let mut client = forced(&cluster, &settings);
        let mut read = [0, 0];
        for run in &mut read {
            let query = "SELECT sum(length(repeat(pad, 20))) FROM t";
            let explain = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {query}");
            let messages = client.simple_query(&explain).expect("the query succeeds");
            let line = messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0).filter(|l| l.contains("Buffers:")),
                _ => None,
            });
            let line = line.expect("buffers are counted");
            *run = number_after(line, "Buffers:", "read=");
        }
        assert!(read[0] > 1300, "they were empty: {read:?}");
        if kept {
            // A few segments change hands when a server is late.
            assert!(read[1] < read[0] / 4, "{assignment}: {read:?}");
        } else {
            assert!(read[1] > read[0] / 3, "{assignment}: {read:?}");
        }
    }
    damage_check(&cluster);
}
