//! The monitor on real servers: what it finds, how fast, and that it is in nobody's way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parallel_replicas_tests::{Cluster, PRIMARY, SOON, StopMode, text, wait_until};
use postgres::Client;

const INTERVAL: Duration = Duration::from_millis(1000);

fn cluster(standbys: usize) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
        .setting("parallel_replicas.monitor_interval", "1s")
        .start();
    cluster.register_replicas();
    cluster
}

/// A column of the view for one replica.
fn column(client: &mut Client, name: &str, column: &str) -> String {
    text(
        client,
        &format!("SELECT {column}::text FROM parallel_replicas.replicas WHERE name = '{name}'"),
    )
}

#[track_caller]
fn wait_column(client: &mut Client, name: &str, what: &str, expected: &str) {
    wait_until(SOON, &format!("{what} of {name} is {expected}"), || {
        column(client, name, what) == expected
    });
}

fn wait_all_answer(client: &mut Client) {
    wait_until(SOON, "all replicas answer", || {
        text(
            client,
            "SELECT count(*)::text FROM parallel_replicas.replicas WHERE reachable IS NOT TRUE",
        ) == "0"
    });
}

fn workers(client: &mut Client) -> String {
    text(
        client,
        "SELECT count(*)::text FROM pg_stat_activity
         WHERE backend_type = 'parallel_replicas monitor'",
    )
}

#[test]
fn every_server_sees_every_replica() {
    let cluster = cluster(2);
    for node in [0, 1, 2] {
        let mut client = cluster.connect(node);
        wait_all_answer(&mut client);
        wait_until(SOON, "the machine's load is known", || {
            column(&mut client, "standby1", "(memory_used IS NOT NULL)") == "true"
        });
        let row = client
            .query_one(
                "SELECT role, timeline, lag_bytes, lag_ms, cpu_permille, memory_used, memory_limit,
                        running_fragments, server_version_num, is_local, usable, reason,
                        errors_count, slowdowns_count, estimated_recovery_time, last_error
                   FROM parallel_replicas.replicas WHERE name = 'standby1'",
                &[],
            )
            .unwrap();
        assert_eq!(row.get::<_, String>("role"), "standby");
        assert_eq!(row.get::<_, i32>("timeline"), 1);
        assert_eq!(row.get::<_, i32>("running_fragments"), 0);
        assert!((0..=1000).contains(&row.get::<_, i32>("cpu_permille")));
        let (used, limit): (i64, i64) = (row.get("memory_used"), row.get("memory_limit"));
        assert!(0 < used && used <= limit, "{used} of {limit}");
        assert_eq!(row.get::<_, bool>("is_local"), node == 1);
        assert_eq!(row.get::<_, bool>("usable"), node != 1);
        let reason = (node == 1).then_some("this server itself");
        assert_eq!(row.get::<_, Option<&str>>("reason"), reason);
        assert_eq!(row.get::<_, i32>("errors_count"), 0);
        assert_eq!(row.get::<_, Option<&str>>("last_error"), None);
    }
    let mut client = cluster.connect(PRIMARY);
    let version = text(&mut client, "SHOW server_version_num");
    assert_eq!(
        column(&mut client, "standby2", "server_version_num"),
        version
    );

    // The lag is what the standby has not replayed.
    cluster.pause_replay(2);
    cluster.psql(
        PRIMARY,
        "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)",
    );
    wait_until(SOON, "the lag is seen", || {
        column(
            &mut client,
            "standby2",
            "(lag_bytes > 1000000 AND lag_ms > 0)",
        ) == "true"
    });
    assert_eq!(
        column(&mut client, "standby1", "(lag_bytes < 1000000)"),
        "true"
    );
    cluster.resume_replay(2);
    wait_until(SOON, "the lag is gone", || {
        column(&mut client, "standby2", "(lag_bytes = 0 AND lag_ms = 0)") == "true"
    });
}

/// A replica that is silent is left out within two intervals, and comes back by itself.
#[test]
fn a_silent_replica_is_left_out_and_comes_back() {
    let mut cluster = cluster(3);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t;
             SET enable_parallel_replicas = 2",
        )
        .unwrap();
    wait_all_answer(&mut client);
    let planned = "EXPLAIN (COSTS OFF, FORMAT JSON) SELECT count(*) FROM t";
    let replicas_planned = |client: &mut Client, number: u32| {
        let plan = client.query_one(planned, &[]).unwrap();
        let plan: String = plan.get::<_, Json>(0).0;
        assert!(
            plan.contains(&format!("\"Replicas Planned\": {number}")),
            "{plan}"
        );
    };
    replicas_planned(&mut client, 3);

    cluster.sigstop(2);
    let stopped = Instant::now();
    wait_column(&mut client, "standby2", "reason", "does not answer");
    let taken = stopped.elapsed();
    // The machine may have been busy otherwise for another half.
    assert!(taken < INTERVAL * 5 / 2, "{taken:?}");
    replicas_planned(&mut client, 2);
    cluster.sigcont(2);
    wait_column(&mut client, "standby2", "usable", "true");
    replicas_planned(&mut client, 3);

    // The connection that was there breaks; a new one is made at once.
    cluster.kill_9(3);
    wait_column(&mut client, "standby3", "reason", "does not answer");
    assert_ne!(column(&mut client, "standby3", "last_error"), "");
    assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
    cluster.start(3);
    wait_column(&mut client, "standby3", "usable", "true");

    // Promoted: reachable, and of no use.
    cluster.promote(1);
    wait_column(&mut client, "standby1", "reason", "not in recovery");
    assert_eq!(column(&mut client, "standby1", "reachable"), "true");
    replicas_planned(&mut client, 2);
}

/// EXPLAIN's JSON as text.
struct Json(String);

impl<'a> postgres::types::FromSql<'a> for Json {
    fn from_sql(
        _: &postgres::types::Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Json(String::from_utf8(raw.to_vec())?))
    }

    fn accepts(kind: &postgres::types::Type) -> bool {
        *kind == postgres::types::Type::JSON
    }
}

#[test]
fn definitions_take_effect_at_once() {
    let cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    cluster.register_replica("itself", cluster.port(PRIMARY));
    cluster.register_replica("nobody", 1);
    wait_column(&mut client, "itself", "reason", "this server itself");
    wait_column(&mut client, "nobody", "reason", "does not answer");
    assert_eq!(column(&mut client, "itself", "is_local"), "true");
    assert_eq!(column(&mut client, "standby1", "usable"), "true");
    cluster.psql(
        PRIMARY,
        "SELECT parallel_replicas.remove_replica('nobody');
         SELECT parallel_replicas.remove_replica('itself')",
    );
    assert_eq!(
        text(
            &mut client,
            "SELECT string_agg(name, ' ') FROM parallel_replicas.replicas"
        ),
        "standby1"
    );
    // A port that changes is looked at, and the old one no longer.
    cluster.psql(PRIMARY, "ALTER SERVER standby1 OPTIONS (SET port '1')");
    wait_column(&mut client, "standby1", "reason", "does not answer");
    let mut standby = cluster.connect(1);
    wait_until(SOON, "nobody looks at the old port", || {
        probes(&mut standby) == "0"
    });
}

/// Connections of monitors.
fn probes(client: &mut Client) -> String {
    text(
        client,
        "SELECT count(*)::text FROM pg_stat_activity
         WHERE application_name = 'parallel_replicas monitor' AND backend_type = 'client backend'",
    )
}

/// A replica that two databases define is looked at once by each server.
#[test]
fn two_databases_share_the_looks() {
    let cluster = cluster(1);
    cluster.psql(PRIMARY, "CREATE DATABASE second");
    let mut second = cluster.connect_db(PRIMARY, "second");
    second
        .batch_execute(&format!(
            "CREATE EXTENSION parallel_replicas;
             SELECT parallel_replicas.add_replica('other_name', '127.0.0.1', {})",
            cluster.port(1)
        ))
        .unwrap();
    wait_all_answer(&mut second);
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    wait_until(SOON, "both databases have a worker", || {
        workers(&mut client) == "2"
    });
    let mut standby = cluster.connect(1);
    // The primary's and the standby's own.
    wait_until(SOON, "the standby looks too", || {
        probes(&mut standby) == "2"
    });
    // The one who looks goes; the other one takes over.
    client
        .batch_execute("DROP EXTENSION parallel_replicas CASCADE")
        .unwrap();
    wait_until(SOON, "one worker is left", || workers(&mut client) == "1");
    let before = text(
        &mut second,
        "SELECT max(answered_at)::text FROM parallel_replicas.replicas",
    );
    wait_until(SOON, "the other database's worker looks", || {
        text(
            &mut second,
            &format!(
                "SELECT (max(answered_at) > '{before}')::text FROM parallel_replicas.replicas"
            ),
        ) == "true"
    });
}

/// Databases with a monitor can be copied, renamed and dropped, and the monitor holds no snapshot.
#[test]
fn the_monitor_is_in_nobodys_way() {
    let cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    cluster.psql(PRIMARY, "CREATE DATABASE second");
    {
        let mut second = cluster.connect_db(PRIMARY, "second");
        second
            .batch_execute(&format!(
                "CREATE EXTENSION parallel_replicas;
                 SELECT parallel_replicas.add_replica('s', '127.0.0.1', {})",
                cluster.port(1)
            ))
            .unwrap();
        wait_all_answer(&mut second);
    }
    wait_until(SOON, "the standby has a worker for it too", || {
        workers(&mut cluster.connect(1)) == "2"
    });
    let start = Instant::now();
    // One statement each: none of them may stand in a transaction.
    for statement in [
        "CREATE DATABASE third TEMPLATE second",
        "ALTER DATABASE second RENAME TO renamed",
        "DROP DATABASE renamed",
        "DROP DATABASE third",
    ] {
        let mut complaint = None;
        wait_until(SOON, statement, || {
            // Sessions of monitors elsewhere are other sessions, as a user's would be.
            complaint = client.batch_execute(statement).err();
            complaint.is_none()
        });
    }
    println!("copied, renamed and dropped in {:?}", start.elapsed());
    cluster.wait_all_caught_up();
    for node in [0, 1] {
        let mut client = cluster.connect(node);
        wait_until(SOON, "the dropped database's worker has gone", || {
            workers(&mut client) == "1"
        });
        let mut looks = BTreeSet::new();
        while looks.len() < 3 {
            let held = text(
                &mut client,
                "SELECT count(*)::text FROM pg_stat_activity
                 WHERE backend_type = 'parallel_replicas monitor'
                   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)",
            );
            assert_eq!(held, "0");
            looks.insert(column(&mut client, "standby1", "probed_at"));
        }
    }
}

/// Looks at replicas, from both sides, hold up no replay, however long replay would wait for a snapshot.
#[test]
fn looks_do_not_delay_replay() {
    const LOOKS: usize = 6;
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("parallel_replicas.monitor_interval", "100ms")
        .setting("max_standby_streaming_delay", "-1")
        .start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    wait_all_answer(&mut cluster.connect(1));
    client
        .batch_execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i")
        .unwrap();
    let mut looks = BTreeSet::new();
    let mut round = 0;
    let begun = Instant::now();
    while looks.len() < LOOKS || round < 30 {
        round += 1;
        // A vacuum conflicts with every snapshot that could see what it removes: on the standby replay
        // would wait for it for ever.
        client
            .batch_execute("DELETE FROM t; INSERT INTO t SELECT generate_series(1, 1000)")
            .unwrap();
        client.batch_execute("VACUUM t").unwrap();
        let start = Instant::now();
        cluster.wait_caught_up(1);
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(5), "replay took {taken:?}");
        looks.insert(column(&mut client, "standby1", "answered_at"));
        let asked = begun.elapsed();
        assert!(
            asked < SOON,
            "hardly anybody looked in {asked:?}: {looks:?}"
        );
    }
}

/// Whoever ends a worker or the launcher sees it come back; nothing else is disturbed.
#[test]
fn a_monitor_that_is_ended_comes_back() {
    let mut cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    for kind in ["parallel_replicas monitor", "parallel_replicas launcher"] {
        let pid = format!(
            "SELECT coalesce(max(pid), 0)::text FROM pg_stat_activity WHERE backend_type = '{kind}'"
        );
        let before = text(&mut client, &pid);
        assert_ne!(before, "0");
        client
            .batch_execute(&format!("SELECT pg_terminate_backend({before})"))
            .unwrap();
        wait_until(SOON, &format!("{kind} comes back"), || {
            let now = text(&mut client, &pid);
            now != "0" && now != before
        });
    }
    let before = column(&mut client, "standby1", "answered_at");
    wait_until(SOON, "it looks again", || {
        column(&mut client, "standby1", "answered_at") != before
    });
    // A crash of the worker is a crash of the server, as with every process of PostgreSQL's.
    let pid: i32 = text(
        &mut client,
        "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'parallel_replicas monitor'",
    )
    .parse()
    .unwrap();
    let ready = cluster.times_ready(PRIMARY);
    parallel_replicas_tests::system::signal(pid, parallel_replicas_tests::system::Signal::KILL);
    drop(client);
    cluster.wait_ready_again(PRIMARY, ready);
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    let start = Instant::now();
    cluster.stop(PRIMARY, StopMode::Fast);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(!cluster.log(PRIMARY).contains("PANIC"));
}

/// The monitor's own account does not decide about the users' links.
#[test]
fn a_login_that_fails_does_not_leave_a_replica_out() {
    let cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    cluster.psql(
        PRIMARY,
        "ALTER USER MAPPING FOR postgres SERVER standby1 OPTIONS (ADD user 'nobody', ADD password 'geheim')",
    );
    wait_until(SOON, "the login fails", || {
        column(&mut client, "standby1", "last_error").contains("nobody")
    });
    assert_eq!(column(&mut client, "standby1", "reachable"), "true");
    assert_eq!(column(&mut client, "standby1", "usable"), "true");
    assert!(!column(&mut client, "standby1", "last_error").contains("geheim"));
    // Only who may see statistics of others sees the text, and how busy the server is.
    assert_ne!(column(&mut client, "standby1", "cpu_permille"), "");
    client
        .batch_execute("CREATE ROLE stranger; SET ROLE stranger")
        .unwrap();
    assert_eq!(column(&mut client, "standby1", "last_error"), "");
    assert_eq!(column(&mut client, "standby1", "cpu_permille"), "");
    assert_eq!(column(&mut client, "standby1", "memory_used"), "");
    assert_eq!(column(&mut client, "standby1", "usable"), "true");
    client.batch_execute("RESET ROLE").unwrap();
    // Another role's mappings.
    cluster.psql(
        PRIMARY,
        "CREATE ROLE watcher LOGIN SUPERUSER; CREATE USER MAPPING FOR watcher SERVER standby1",
    );
    cluster.wait_all_caught_up();
    cluster.configure(PRIMARY, "parallel_replicas.monitor_user", "watcher");
    cluster.reload(PRIMARY);
    let before = column(&mut client, "standby1", "answered_at");
    wait_until(SOON, "the other role gets an answer", || {
        column(&mut client, "standby1", "answered_at") != before
    });
}

#[test]
fn it_can_be_switched_off_and_on() {
    let cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    wait_all_answer(&mut client);
    cluster.configure(PRIMARY, "parallel_replicas.monitor_interval", "0");
    cluster.reload(PRIMARY);
    wait_until(SOON, "no worker is left", || workers(&mut client) == "0");
    // Nothing is known, so everything may be used.
    wait_column(&mut client, "standby1", "reachable", "");
    assert_eq!(column(&mut client, "standby1", "usable"), "true");
    cluster.configure(PRIMARY, "parallel_replicas.monitor_interval", "1s");
    cluster.reload(PRIMARY);
    wait_column(&mut client, "standby1", "reachable", "true");
}

/// 60 of 64 replicas are dead or behind an address that swallows everything: the first query is not
/// delayed by more than the connect timeout, and those after the next look not at all.
#[test]
fn sixty_dead_replicas_do_not_delay_queries() {
    let cluster = cluster(4);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t;
             SET enable_parallel_replicas = 2; SET parallel_replicas.connect_timeout = '2s'",
        )
        .unwrap();
    let time = |client: &mut Client| {
        let start = Instant::now();
        assert_eq!(text(client, "SELECT count(*)::text FROM t"), "1000");
        start.elapsed()
    };
    time(&mut client);
    let dead: String = (1..=60)
        .map(|number| match number % 2 {
            0 => format!(
                "SELECT parallel_replicas.add_replica('dead{number}', '127.0.0.1', {number});"
            ),
            // TEST-NET-1: nobody answers.
            _ => format!(
                "SELECT parallel_replicas.add_replica('dead{number}', '192.0.2.{number}', 5432);"
            ),
        })
        .collect();
    cluster.psql(PRIMARY, &dead);
    let first = time(&mut client);
    assert!(first < Duration::from_millis(2500), "{first:?}");
    wait_until(SOON, "the dead are known", || {
        text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.replicas WHERE reason = 'does not answer'",
        ) == "60"
    });
    wait_until(SOON, "the living are known", || {
        text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.replicas WHERE usable",
        ) == "4"
    });
    let before = text(&mut client, EVENT_UNAVAILABLE);
    let times: Vec<Duration> = (0..5).map(|_| time(&mut client)).collect();
    assert_eq!(
        text(&mut client, EVENT_UNAVAILABLE),
        before,
        "none of the dead was tried"
    );
    println!("first query {first:?}, later {times:?}");
    let best = times.iter().min().unwrap();
    assert!(*best < Duration::from_millis(500), "{times:?}");
}

const EVENT_UNAVAILABLE: &str = "SELECT value::text FROM parallel_replicas.events
    WHERE event = 'ParallelReplicasUnavailableCount'";

/// A template server stands for whoever streams; who stops disappears.
#[test]
fn standbys_are_discovered() {
    let mut cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.monitor_interval", "1s")
        .start();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE EXTENSION parallel_replicas;
             CREATE SERVER standbys FOREIGN DATA WRAPPER parallel_replicas
                 OPTIONS (discover 'pg_stat_replication', port '{port}');
             CREATE USER MAPPING FOR CURRENT_USER SERVER standbys OPTIONS (user 'nobody');
             CREATE SERVER named FOREIGN DATA WRAPPER parallel_replicas
                 OPTIONS (discover 'dns', host 'localhost', port '{port}', cluster 'named');
             CREATE USER MAPPING FOR CURRENT_USER SERVER named OPTIONS (user 'nobody');
             CREATE TABLE t AS SELECT generate_series(1, 1000) AS i; ANALYZE t",
            port = cluster.port(1)
        ),
    );
    let mut client = cluster.connect(PRIMARY);
    let found = "SELECT coalesce(string_agg(name || ' ' || usable || ' ' || coalesce(role, ''),
            ', ' ORDER BY name), 'none')
        FROM parallel_replicas.replicas WHERE cluster = 'default'";
    // Somebody is there, who may not be a standby: nobody logs in.
    wait_until(SOON, "the standby is found", || {
        text(
            &mut client,
            "SELECT coalesce(string_agg(reason, ', '), '') FROM parallel_replicas.replicas
              WHERE cluster = 'default' AND reachable",
        ) == "discovered, but has not answered the monitor"
    });
    client
        .batch_execute(
            "ALTER USER MAPPING FOR CURRENT_USER SERVER standbys OPTIONS (DROP user);
             ALTER USER MAPPING FOR CURRENT_USER SERVER named OPTIONS (DROP user)",
        )
        .unwrap();
    wait_until(SOON, "the standby is found and answers", || {
        text(&mut client, found) == "standbys/127.0.0.1 true standby"
    });
    cluster.wait_all_caught_up();
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.connect_timeout = '20s'",
        )
        .unwrap();
    for cluster in ["default", "named"] {
        client
            .batch_execute(&format!("SET cluster_for_parallel_replicas = '{cluster}'"))
            .unwrap();
        let server = if cluster == "named" {
            "named"
        } else {
            "standbys"
        };
        wait_until(SOON, "the address of localhost is known", || {
            text(
                &mut client,
                &format!(
                    "SELECT count(*)::text FROM parallel_replicas.replicas
                     WHERE name = '{server}/127.0.0.1' AND reachable"
                ),
            ) == "1"
        });
        let plan: Vec<String> = client
            .query("EXPLAIN (ANALYZE, COSTS OFF) SELECT count(*) FROM t", &[])
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        let used = plan.iter().any(|line| {
            line.contains(&format!("Replica: {server}/127.0.0.1 ")) && !line.contains("unavailable")
        });
        assert!(used, "{cluster}: {plan:#?}");
        assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
    }
    cluster.stop(1, StopMode::Fast);
    wait_until(SOON, "nobody streams", || {
        text(&mut client, found) == "none"
    });
    who_archives_is_no_standby(&cluster, &mut client, found);
    cluster.start(1);
    wait_until(SOON, "the standby is found again", || {
        text(&mut client, found) == "standbys/127.0.0.1 true standby"
    });
    for (options, detail) in [
        (
            "discover 'etcd'",
            "Valid values are pg_stat_replication and dns.",
        ),
        ("discover 'dns'", "There is no name to look up."),
        (
            "discover 'dns', host 'h', hostaddr '1.2.3.4'",
            "A server that discovers addresses cannot name one.",
        ),
    ] {
        let error = client
            .batch_execute(&format!(
                "CREATE SERVER bad FOREIGN DATA WRAPPER parallel_replicas OPTIONS ({options})"
            ))
            .unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.detail(), Some(detail));
        assert_eq!(error.code().code(), "22023");
    }
}

fn who_archives_is_no_standby(cluster: &Cluster, client: &mut Client, found: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut receiver = parallel_replicas_tests::system::installation()
        .client_command("pg_receivewal")
        .args(["-h", "127.0.0.1", "-U", "postgres", "--no-loop", "-D"])
        .arg(folder.path())
        .args(["-p", &cluster.port(PRIMARY).to_string()])
        .spawn()
        .expect("pg_receivewal");
    wait_until(SOON, "WAL is streamed to it", || {
        text(
            client,
            "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming'",
        ) == "1"
    });
    // The worker that looks at the other replica at an interval looks for standbys as often.
    let now = text(client, "SELECT clock_timestamp()::text");
    wait_until(SOON, "the monitor has looked more than once", || {
        text(
            client,
            &format!(
                "SELECT (max(probed_at) > '{now}'::timestamptz + interval '3 s')::text
                   FROM parallel_replicas.replicas WHERE cluster = 'named'"
            ),
        ) == "true"
    });
    assert_eq!(text(client, found), "none");
    receiver.kill().expect("it runs");
    receiver.wait().expect("it ends");
}

/// A database whose DROP was interrupted takes no sessions; every attempt would be a FATAL.
#[test]
fn a_half_dropped_database_is_left_alone() {
    let cluster = Cluster::builder()
        .autovacuum(false)
        .setting("parallel_replicas.monitor_interval", "1s")
        .start();
    cluster.psql(PRIMARY, "CREATE DATABASE half");
    cluster.psql(
        PRIMARY,
        "UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half'",
    );
    cluster.psql(PRIMARY, "CREATE DATABASE later");
    let mut client = cluster.connect(PRIMARY);
    // Nobody else has been there.
    wait_until(SOON, "a worker has looked at the other database", || {
        text(
            &mut client,
            "SELECT (xact_commit > 0)::text FROM pg_stat_database WHERE datname = 'later'",
        ) == "true"
    });
    let log = cluster.log(PRIMARY);
    assert!(!log.contains("database \"half\""), "{log}");
}

/// Each server loads its own segments, all of them together the table.
#[test]
fn a_table_is_loaded_by_its_owners() {
    let mut cluster = cluster(2);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE TABLE p (i int, pad text) PARTITION BY RANGE (i);
             CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (20000);
             CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (20000) TO (60001);
             INSERT INTO p SELECT i, repeat('x', 500) FROM generate_series(1, 60000) i;
             CREATE EXTENSION pg_buffercache;
             SET parallel_replicas.granule_blocks = 16;
             SET parallel_replicas.connect_timeout = '20s'",
        )
        .unwrap();
    cluster.wait_all_caught_up();
    let cached = |cluster: &Cluster, node: usize| -> i64 {
        text(
            &mut cluster.connect(node),
            "SELECT count(*)::text FROM pg_buffercache b
             JOIN pg_class c ON b.relfilenode = pg_relation_filenode(c.oid)
             WHERE c.relname IN ('p1', 'p2') AND b.relforknumber = 0",
        )
        .parse()
        .unwrap()
    };
    // A restart makes the caches cold, which replay has filled. The checkpoint keeps it from doing so
    // again.
    client.batch_execute("CHECKPOINT").unwrap();
    cluster.wait_all_caught_up();
    for node in [1, 2] {
        cluster.connect(node).batch_execute("CHECKPOINT").unwrap();
        cluster.restart(node, StopMode::Fast);
        cluster.wait_streaming(node);
        assert_eq!(cached(&cluster, node), 0, "node {node}");
    }
    let restarted = text(&mut client, "SELECT clock_timestamp()::text");
    wait_until(SOON, "the replicas answer again", || {
        text(
            &mut client,
            &format!(
                "SELECT count(*)::text FROM parallel_replicas.replicas
                 WHERE reachable AND answered_at > '{restarted}'"
            ),
        ) == "2"
    });
    let blocks: i64 = text(
        &mut client,
        "SELECT ((pg_relation_size('p1') + pg_relation_size('p2')) / 8192)::text",
    )
    .parse()
    .unwrap();
    let rows = client
        .query(
            "SELECT * FROM parallel_replicas.prewarm('p') ORDER BY replica NULLS FIRST",
            &[],
        )
        .unwrap();
    let names: Vec<Option<String>> = rows.iter().map(|row| row.get("replica")).collect();
    assert_eq!(
        names,
        [
            None,
            Some("standby1".to_owned()),
            Some("standby2".to_owned())
        ]
    );
    let shares: Vec<i64> = rows.iter().map(|row| row.get("blocks")).collect();
    println!("{shares:?} of {blocks} blocks");
    assert_eq!(shares.iter().sum::<i64>(), blocks);
    assert!(
        shares.iter().all(|share| *share > blocks / 10),
        "{shares:?}"
    );
    for row in &rows {
        assert_eq!(row.get::<_, Option<String>>("error"), None);
        assert!(row.get::<_, f64>("milliseconds") > 0.0);
    }
    // They are really there.
    for (node, share) in [1, 2].into_iter().zip(&shares[1..]) {
        assert_eq!(cached(&cluster, node), *share, "node {node}");
    }
    // Rights are asked for.
    client
        .batch_execute("CREATE ROLE stranger; SET ROLE stranger")
        .unwrap();
    for (query, code) in [
        ("SELECT parallel_replicas.prewarm('p')", "42501"),
        (
            "SELECT parallel_replicas.prewarm_blocks('p'::regclass, 0, 1)",
            "42501",
        ),
        ("SELECT parallel_replicas.server_state()", "42501"),
    ] {
        let error = client.batch_execute(query).unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some(code), "{query}");
    }
    client.batch_execute("RESET ROLE").unwrap();
    for (query, code) in [
        ("SELECT parallel_replicas.prewarm_blocks(1, 0, 1)", "42P01"),
        (
            "SELECT parallel_replicas.prewarm_blocks('p'::regclass, 0, 1)",
            "42809",
        ),
    ] {
        let error = client.batch_execute(query).unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some(code), "{query}");
    }
}
