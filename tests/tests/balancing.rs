//! Which replicas queries use: the eight algorithms, error counts, priorities and tags.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use parallel_replicas_tests::{Cluster, PRIMARY, SOON, StopMode, text, wait_until};
use postgres::Client;

/// How often each replica comes first in so many selections.
fn shares(client: &mut Client, selections: u32) -> BTreeMap<String, i64> {
    // The function is volatile, so it is called for each row.
    client
        .query(
            "SELECT names[1], count(*) FROM (
                 SELECT parallel_replicas.preferred_replicas() AS names
                   FROM generate_series(1, $1::int) OFFSET 0) s
             GROUP BY 1",
            &[&(selections as i32)],
        )
        .expect("selections")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

/// Replicas that a query used, from EXPLAIN ANALYZE.
fn used(client: &mut Client, query: &str) -> BTreeSet<String> {
    let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {query}");
    client
        .query(&explain, &[])
        .expect("EXPLAIN")
        .iter()
        .filter_map(|row| {
            let line: String = row.get(0);
            let rest = line.trim().strip_prefix("Replica: ")?.to_owned();
            Some(rest.split(' ').next()?.to_owned())
        })
        .collect()
}

fn even(shares: &BTreeMap<String, i64>, replicas: usize, selections: i64) -> bool {
    let expected = selections / replicas as i64;
    shares.len() == replicas
        && shares
            .values()
            .all(|share| (share - expected).abs() <= expected / 10)
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn ten_thousand_choices_are_distributed_as_the_rules_say() {
    let cluster = Cluster::builder()
        .standbys(4)
        .setting("parallel_replicas.monitor_interval", "0")
        .start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t;
             SET enable_parallel_replicas = 2; SET max_parallel_replicas = 1;
             SET parallel_replicas_local_plan = off; SET parallel_replicas.connect_timeout = '20s'",
        )
        .unwrap();
    cluster.wait_all_caught_up();
    // All hosts are alike, so the four that compare names are random.
    for algorithm in [
        "random",
        "nearest_hostname",
        "hostname_levenshtein_distance",
        "hostname_longest_common_prefix",
        "hostname_longest_common_suffix",
        "round_robin",
    ] {
        client
            .batch_execute(&format!("SET load_balancing = {algorithm}"))
            .unwrap();
        let shares = shares(&mut client, 10_000);
        assert!(even(&shares, 4, 10_000), "{algorithm}: {shares:?}");
        println!("{algorithm}: {shares:?}");
    }
    let all = |name: &str| BTreeMap::from([(name.to_owned(), 10_000)]);
    for (settings, first) in [
        ("SET load_balancing = in_order", "standby1"),
        ("SET load_balancing = first_or_random", "standby1"),
        ("SET load_balancing_first_offset = 2", "standby3"),
        ("SET load_balancing_first_offset = 7", "standby4"),
    ] {
        client.batch_execute(settings).unwrap();
        assert_eq!(shares(&mut client, 10_000), all(first), "{settings}");
        assert_eq!(used(&mut client, "SELECT count(*) FROM t"), names(&[first]));
    }

    // Real queries take turns, backwards from the first.
    client
        .batch_execute("SET load_balancing = round_robin")
        .unwrap();
    let turns: Vec<String> = (0..8)
        .flat_map(|_| used(&mut client, "SELECT count(*) FROM t"))
        .collect();
    let start = turns.iter().position(|name| name == "standby1").unwrap();
    let expected = ["standby1", "standby4", "standby3", "standby2"];
    assert_eq!(turns[start..start + 4], expected, "{turns:?}");

    // A better priority comes before every algorithm.
    cluster.psql(PRIMARY, "ALTER SERVER standby3 OPTIONS (ADD priority '0')");
    client
        .batch_execute("SET load_balancing = in_order")
        .unwrap();
    assert_eq!(shares(&mut client, 1000).len(), 1);
    assert_eq!(
        used(&mut client, "SELECT count(*) FROM t"),
        names(&["standby3"])
    );

    // The nearest by name: this machine's own name against others.
    let host = text(&mut client, "SELECT parallel_replicas.hostname()");
    cluster.psql(
        PRIMARY,
        &format!(
            "SELECT parallel_replicas.add_replica('near', '{host}', 1, 'named');
             SELECT parallel_replicas.add_replica('far', '~~~~~~~~~~', 1, 'named')"
        ),
    );
    for algorithm in [
        "nearest_hostname",
        "hostname_levenshtein_distance",
        "hostname_longest_common_prefix",
        "hostname_longest_common_suffix",
    ] {
        client
            .batch_execute(&format!("SET load_balancing = {algorithm}"))
            .unwrap();
        let first = "SELECT (parallel_replicas.preferred_replicas('named'))[1]";
        assert_eq!(text(&mut client, first), "near", "{algorithm}");
    }
}

/// Without the monitor it is the error count that steers around a dead replica.
#[test]
fn a_dead_replicas_error_count_steers_the_choice_and_halves() {
    let mut cluster = Cluster::builder()
        .standbys(4)
        .setting("parallel_replicas.monitor_interval", "0")
        .start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    let settings = "SET enable_parallel_replicas = 2; SET max_parallel_replicas = 1;
         SET load_balancing = in_order; SET distributed_replica_error_half_life = '1h'";
    client
        .batch_execute(&format!(
            "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t; {settings}"
        ))
        .unwrap();
    cluster.wait_all_caught_up();
    cluster.stop(1, StopMode::Immediate);
    let errors =
        "SELECT errors_count::text FROM parallel_replicas.replicas WHERE name = 'standby1'";
    assert_eq!(text(&mut client, errors), "0");
    assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
    assert_eq!(text(&mut client, errors), "1");
    // Another session's rules are nobody else's.
    let mut forgetful = cluster.connect(PRIMARY);
    forgetful
        .batch_execute("SET distributed_replica_error_half_life = 0")
        .unwrap();
    assert_eq!(text(&mut forgetful, errors), "0");
    assert_eq!(text(&mut client, errors), "1");
    // Every session and every query now prefers the next.
    for _ in 0..3 {
        let mut other = cluster.connect(PRIMARY);
        other.batch_execute(settings).unwrap();
        assert_eq!(text(&mut other, "SELECT count(*)::text FROM t"), "1000");
        let first = "SELECT (parallel_replicas.preferred_replicas())[1]";
        assert_eq!(text(&mut other, first), "standby2");
    }
    assert_eq!(text(&mut client, errors), "1");
    // Unless errors are ignored: then it is tried again, by sessions that have not tried lately.
    for expected in 2..=5 {
        let mut other = cluster.connect(PRIMARY);
        other.batch_execute(settings).unwrap();
        other
            .batch_execute("SET distributed_replica_max_ignored_errors = 100")
            .unwrap();
        assert_eq!(text(&mut other, "SELECT count(*)::text FROM t"), "1000");
        assert_eq!(text(&mut client, errors), expected.to_string());
    }
    let recovery = "SELECT (estimated_recovery_time BETWEEN 2 * 3600 AND 3 * 3600)::text
        FROM parallel_replicas.replicas WHERE name = 'standby1'";
    assert_eq!(text(&mut client, recovery), "true");
    // The cap holds for what is counted from now on.
    let mut other = cluster.connect(PRIMARY);
    other.batch_execute(settings).unwrap();
    other
        .batch_execute(
            "SET distributed_replica_max_ignored_errors = 100;
             SET distributed_replica_error_cap = 3; SELECT count(*) FROM t",
        )
        .unwrap();
    assert_eq!(text(&mut client, errors), "3");
    drop(other);

    // It halves: 3, 1, 0. Then the replica is the first again, and there.
    cluster.start(1);
    client
        .batch_execute("SET distributed_replica_error_half_life = '1s'")
        .unwrap();
    let mut seen = BTreeSet::new();
    wait_until(SOON, "the errors are forgotten", || {
        let errors = text(&mut client, errors);
        seen.insert(errors.clone());
        errors == "0"
    });
    assert!(
        seen.iter()
            .all(|errors| ["3", "1", "0"].contains(&errors.as_str())),
        "{seen:?}"
    );
    let mut other = cluster.connect(PRIMARY);
    other.batch_execute(settings).unwrap();
    other
        .batch_execute(
            "SET distributed_replica_error_half_life = '1s';
             SET parallel_replicas.connect_timeout = '20s'; SET parallel_replicas_local_plan = off",
        )
        .unwrap();
    assert_eq!(
        used(&mut other, "SELECT count(*) FROM t"),
        names(&["standby1"])
    );
}

/// The replica of every tag.
fn places(client: &mut Client, tags: i32) -> Vec<String> {
    client
        .query(
            "SELECT parallel_replicas.replica_for_tag('tag_' || i) FROM generate_series(1, $1) i
             ORDER BY i",
            &[&tags],
        )
        .expect("tags")
        .iter()
        .map(|row| row.get(0))
        .collect()
}

#[test]
fn a_tag_leads_to_one_replica() {
    const TAGS: i32 = 10_000;
    let mut cluster = Cluster::builder()
        .standbys(4)
        .setting("parallel_replicas.monitor_interval", "1s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    wait_until(SOON, "all replicas answer", || {
        text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.replicas WHERE reachable",
        ) == "4"
    });

    // 1,000 queries from 50 sessions: one replica.
    let place = text(
        &mut client,
        "SELECT parallel_replicas.replica_for_tag('amy_test')",
    );
    let served = |node: usize| {
        text(
            &mut cluster.connect(node),
            "SELECT value::text FROM parallel_replicas.events
             WHERE event = 'ParallelReplicasServedCount'",
        )
        .parse::<u64>()
        .unwrap()
    };
    let before: Vec<u64> = (1..=4).map(served).collect();
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for session in 0..5 {
                    let mut config = cluster.config(PRIMARY);
                    // In the connection string, the counterpart of a header.
                    config.options("-c parallel_replicas.replica_tag=amy_test");
                    let mut client = config.connect(postgres::NoTls).unwrap();
                    // Divided, of which one replica gets all, and whole.
                    let mode = 1 + session % 2;
                    client
                        .batch_execute(&format!(
                            "SET enable_parallel_replicas = {mode}; SET max_parallel_replicas = 1;
                             SET parallel_replicas_local_plan = off;
                             SET parallel_replicas.links_per_replica = 1;
                             SET parallel_replicas.connect_timeout = '20s'"
                        ))
                        .unwrap();
                    for _ in 0..20 {
                        assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
                    }
                }
            });
        }
    });
    for (node, before) in (1..=4).zip(before) {
        let expected = if cluster.name(node) == place { 1000 } else { 0 };
        assert_eq!(
            served(node) - before,
            expected,
            "node {node}, tag at {place}"
        );
    }

    let whole = "SELECT value::text FROM parallel_replicas.events
         WHERE event = 'ParallelReplicasWholeQueryCount'";
    assert_eq!(text(&mut client, whole), "600");

    // k successors.
    client
        .batch_execute(
            "SET parallel_replicas.replica_tag = 'amy_test'; SET enable_parallel_replicas = 2;
             SET max_parallel_replicas = 2",
        )
        .unwrap();
    let two = used(&mut client, "SELECT count(*) FROM t");
    assert!(two.len() == 2 && two.contains(&place), "{two:?}");
    assert_eq!(used(&mut client, "SELECT sum(i) FROM t"), two);

    // A thousand tags are spread evenly enough.
    let thousand = places(&mut client, 1000);
    // Shares, with equal and other weights.
    let count = |places: &[String]| {
        let mut shares = BTreeMap::new();
        for place in places {
            *shares.entry(place.clone()).or_insert(0_i64) += 1;
        }
        shares
    };
    assert!(even(&count(&thousand), 4, 1000), "{:?}", count(&thousand));
    let all = places(&mut client, TAGS);
    let shares = count(&all);
    assert!(even(&shares, 4, i64::from(TAGS)), "{shares:?}");
    println!("{TAGS} tags: {shares:?}");

    // A replica removed: only its tags move; back again: they return.
    cluster.stop(4, StopMode::Immediate);
    wait_until(SOON, "standby4 is left out", || {
        text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.replicas WHERE usable",
        ) == "3"
    });
    let rest = places(&mut client, TAGS);
    let moved = all.iter().zip(&rest).filter(|(a, b)| a != b).count() as i64;
    assert_eq!(moved, shares["standby4"]);
    assert!(
        all.iter()
            .zip(&rest)
            .all(|(a, b)| a == b || a == "standby4")
    );
    let without = count(&rest);
    assert!(even(&without, 3, i64::from(TAGS)), "{without:?}");
    cluster.start(4);
    wait_until(SOON, "standby4 is back", || {
        text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.replicas WHERE usable",
        ) == "4"
    });
    assert_eq!(places(&mut client, TAGS), all);

    cluster.psql(PRIMARY, "ALTER SERVER standby2 OPTIONS (ADD weight '3')");
    let weighted = count(&places(&mut client, TAGS));
    let expected = i64::from(TAGS) / 6;
    for (name, share) in &weighted {
        let expected = if name == "standby2" {
            expected * 3
        } else {
            expected
        };
        assert!((share - expected).abs() <= expected / 10, "{weighted:?}");
    }
}

/// A session sees on its tag's replica what it, or anybody, has committed before.
#[test]
fn reads_after_writes_hold_under_a_tag() {
    // Divided, of which one replica gets all, and whole.
    for mode in [2, 1] {
        reads_after_writes(mode);
    }
}

fn reads_after_writes(mode: u32) {
    const ROUNDS: i64 = 1000;
    let cluster = Cluster::builder().standbys(2).start();
    cluster.register_replicas();
    let settings = format!(
        "SET enable_parallel_replicas = {mode}; SET max_parallel_replicas = 1;
         SET parallel_replicas.replica_tag = 'amy_test'; SET parallel_replicas_local_plan = off;
         SET parallel_replicas.links_per_replica = 1;
         SET parallel_replicas.connect_timeout = '20s'; SET parallel_replicas.replay_wait_timeout = '20s'"
    );
    let mut writer = cluster.connect(PRIMARY);
    writer
        .batch_execute(&format!("CREATE TABLE t (i bigint); ANALYZE t; {settings}"))
        .unwrap();
    let mut other = cluster.connect(PRIMARY);
    other.batch_execute(&settings).unwrap();
    cluster.wait_all_caught_up();
    let served = |cluster: &Cluster| -> i64 {
        let count = |node| {
            text(
                &mut cluster.connect(node),
                "SELECT value::text FROM parallel_replicas.events
                 WHERE event = 'ParallelReplicasServedCount'",
            )
            .parse::<i64>()
            .unwrap()
        };
        count(1) + count(2)
    };
    let before = served(&cluster);
    let query = "SELECT count(*) || ' ' || max(i) FROM t";
    for round in 1..=ROUNDS {
        writer
            .execute("INSERT INTO t VALUES ($1)", &[&round])
            .unwrap();
        let expected = format!("{round} {round}");
        assert_eq!(text(&mut writer, query), expected);
        assert_eq!(text(&mut other, query), expected);
    }
    // The replicas have answered them, except where a machine too busy made them late.
    let answered = served(&cluster) - before;
    println!("{answered} of {} queries answered by a replica", 2 * ROUNDS);
    assert!(answered > ROUNDS, "{answered}");
}
