//! Connections to replicas: kept between queries, bounded in number, gone with the session.

use parallel_replicas_tests::rogue_recorder::Recorder;
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};
use postgres::Client;

/// Backends of links on a standby.
fn link_backends(cluster: &Cluster, node: usize) -> i64 {
    let mut client = cluster.connect(node);
    let query = "SELECT count(*)::text FROM pg_stat_activity
                 WHERE application_name LIKE 'parallel_replicas%'
                   AND application_name <> 'parallel_replicas monitor'
                   AND backend_type = 'client backend'";
    text(&mut client, query).parse().expect("a number")
}

#[test]
fn a_session_of_short_queries_keeps_its_connections() {
    const QUERIES: usize = 100;
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("log_connections", "on")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET enable_parallel_replicas = 2")
        .unwrap();
    let before = cluster.log(1).matches("connection received").count();
    for _ in 0..QUERIES {
        assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
    }
    let made = cluster.log(1).matches("connection received").count() - before;
    assert!(made <= 20, "{made} connections for {QUERIES} queries");
    assert!(link_backends(&cluster, 1) <= 2);
    drop(client);
    wait_until(SOON, "the links end with their session", || {
        link_backends(&cluster, 1) == 0
    });
}

/// Processes of links on standby 1.
fn link_processes(observer: &mut Client) -> Vec<i32> {
    let query = "SELECT pid FROM pg_stat_activity
                 WHERE application_name LIKE 'parallel_replicas%'
                   AND application_name <> 'parallel_replicas monitor'
                   AND backend_type = 'client backend'";
    let rows = observer.query(query, &[]).expect("the view can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

/// A kept connection that the server has closed, or whose definition has changed, or that is not to be
/// kept at all.
#[test]
fn a_connection_that_is_no_longer_right_is_not_used_again() {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.connect_timeout", "20s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t",
    );
    cluster.wait_all_caught_up();
    let mut observer = cluster.connect(1);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off")
        .unwrap();
    let mut count = || text(&mut client, "SELECT count(*)::text FROM t");
    assert_eq!(count(), "1000");
    let first = link_processes(&mut observer);
    assert!(!first.is_empty(), "nothing is kept");

    // Closed by the server: the query under force would fail if it were used.
    observer
        .execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM unnest($1::int[]) AS pid",
            &[&first],
        )
        .unwrap();
    assert_eq!(count(), "1000");
    let second = link_processes(&mut observer);
    assert!(second.iter().all(|pid| !first.contains(pid)), "{second:?}");

    // Defined anew.
    for change in [
        "ALTER SERVER standby1 OPTIONS (ADD keepalives_idle '7')",
        "ALTER USER MAPPING FOR postgres SERVER standby1 OPTIONS (ADD password 'not asked for')",
    ] {
        let before = link_processes(&mut observer);
        cluster.psql(PRIMARY, change);
        assert_eq!(count(), "1000");
        wait_until(SOON, &format!("old links are gone after {change}"), || {
            let now = link_processes(&mut observer);
            !now.is_empty() && now.iter().all(|pid| !before.contains(pid))
        });
    }

    // Not to be kept.
    drop(client);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.idle_link_timeout = 0",
        )
        .unwrap();
    assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
    wait_until(SOON, "no link is kept", || {
        link_processes(&mut observer).is_empty()
    });
}

/// A connection that was idle for longer than it may be is closed when the session uses its links again.
#[test]
fn an_idle_connection_expires() {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.links_per_replica", "1")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t",
    );
    cluster.wait_all_caught_up();
    let mut observer = cluster.connect(1);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off")
        .unwrap();
    let mut after_idling = |timeout: &str| {
        let set = format!("SET parallel_replicas.idle_link_timeout = '{timeout}'");
        client.batch_execute(&set).unwrap();
        let mut count = || text(&mut client, "SELECT count(*)::text FROM t");
        assert_eq!(count(), "1000");
        let before = link_processes(&mut observer);
        assert_eq!(before.len(), 1, "{before:?}");
        // As the standby's own clock sees it.
        let idle = format!(
            "SELECT (state = 'idle' AND clock_timestamp() - state_change > '1100 ms')::text
             FROM pg_stat_activity WHERE pid = {}",
            before[0]
        );
        wait_until(SOON, "the link has been idle", || {
            text(&mut observer, &idle) == "true"
        });
        assert_eq!(count(), "1000");
        let mut after = Vec::new();
        wait_until(SOON, "one link is left", || {
            after = link_processes(&mut observer);
            after.len() == 1
        });
        (before, after)
    };
    let (before, after) = after_idling("1min");
    assert_eq!(after, before, "it was closed too soon");
    let (before, after) = after_idling("1s");
    assert_ne!(after, before, "it was kept too long");
}

/// A process that stops in the middle of its work costs the query the stall timeout, not for ever.
#[test]
fn a_replica_that_stalls_is_given_up() {
    let cluster = Cluster::builder()
        .standbys(2)
        .setting("parallel_replicas.stall_timeout", "2s")
        .setting("parallel_replicas.granule_blocks", "8")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 200000) i;
         ANALYZE t",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.connect_timeout = '20s'; SET statement_timeout = '60s'",
        )
        .unwrap();
    let query = "SELECT sum(length(repeat(pad, 200)))::text FROM t";
    let expected = (200_000_i64 * 100 * 200).to_string();
    assert_eq!(text(&mut client, query), expected);
    let running = {
        let query = query.to_owned();
        std::thread::spawn(move || text(&mut client, &query))
    };
    let mut observer = cluster.connect(1);
    let mut pid = String::new();
    wait_until(SOON, "a link works", || {
        pid = text(
            &mut observer,
            "SELECT coalesce(min(pid), 0)::text FROM pg_stat_activity
             WHERE application_name LIKE 'parallel_replicas%'
               AND application_name <> 'parallel_replicas monitor' AND state = 'active'",
        );
        pid != "0"
    });
    let pid: i32 = pid.parse().expect("a process id");
    parallel_replicas_tests::system::signal(pid, parallel_replicas_tests::system::Signal::STOP);
    let answer = running.join();
    parallel_replicas_tests::system::signal(pid, parallel_replicas_tests::system::Signal::CONT);
    assert_eq!(answer.expect("the query succeeds"), expected);
}

/// A server that does not know the secret gets no plan, however it came to stand at that address.
#[test]
fn a_stranger_is_told_nothing() {
    let cluster = Cluster::builder().start();
    cluster.psql(
        PRIMARY,
        "CREATE EXTENSION parallel_replicas;
         CREATE TABLE t AS SELECT generate_series(1, 20000) AS i; ANALYZE t",
    );
    // Another system altogether, with the extension and a secret of its own.
    let strangers = Cluster::builder().standbys(1).start();
    strangers.psql(PRIMARY, "CREATE EXTENSION parallel_replicas");
    strangers.wait_all_caught_up();
    let mut recorder = Recorder::start_before(&cluster, strangers.port(1));
    let client = recorder.client();
    let explain = "EXPLAIN (ANALYZE, COSTS OFF, FORMAT JSON)
                   SELECT count(*) FROM t WHERE length(repeat(i::text, 10000)) > 0";
    wait_until(SOON, "the stranger is met", || {
        let plan: String = client
            .simple_query(explain)
            .expect("the query succeeds")
            .iter()
            .filter_map(|message| match message {
                postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            })
            .collect();
        plan.contains("does not know the secret")
    });
    assert!(recorder.begins().is_empty(), "it was told what to execute");
}
