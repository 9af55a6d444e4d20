//! The query queue on a real server: its settings, resource groups, and EXPLAIN.

use std::thread;

use parallel_replicas_tests::queue_server::{QueueServer, error, value};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};
use postgres::{Client, NoTls};

#[test]
fn settings_apply_to_those_who_wait() {
    let server = QueueServer::start(&[]);
    let holder = server.holder();
    let waiters: Vec<_> = (0..4)
        .map(|_| server.waiting(server.app(), "SELECT pg_sleep(0.01) FROM t LIMIT 1"))
        .collect();
    // More slots: two more may run.
    server.set("parallel_replicas.query_queue_v2_schedule_strategy", "SJF");
    server.set("parallel_replicas.query_queue_cores", "2");
    for waiter in waiters {
        value(waiter);
    }
    server.set("parallel_replicas.query_queue_cores", "1");
    // Switched off: everybody is admitted.
    let waiters: Vec<_> = (0..4)
        .map(|_| server.waiting(server.app(), "SELECT count(*) FROM t"))
        .collect();
    server.set("parallel_replicas.enable_query_queue_select", "off");
    for waiter in waiters {
        assert_eq!(value(waiter), "1000");
    }
    drop(holder);
    server.wait_empty();
    // Cheap statements pass, and slots by cost.
    server.set("parallel_replicas.enable_query_queue_select", "on");
    server.set("parallel_replicas.query_queue_min_cost", "1000");
    let mut client = server.app();
    let before = server.gauge("total");
    client.batch_execute("SELECT * FROM t WHERE i = 1").unwrap();
    assert_eq!(server.gauge("total"), before);
    client
        .batch_execute("SELECT count(*) FROM t a, t b")
        .unwrap();
    assert_eq!(server.gauge("total"), before + 1);
    server.set("parallel_replicas.query_queue_min_cost", "0");
    // The transaction keeps the slot, if that is wanted.
    server.set("parallel_replicas.query_queue_scope", "transaction");
    let mut client = server.app();
    client
        .batch_execute("BEGIN; SELECT count(*) FROM t")
        .unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client
        .batch_execute("SELECT count(*) FROM t; COMMIT")
        .unwrap();
    server.wait_empty();
}

#[test]
fn explain_shows_the_slots() {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "8"),
        (
            "parallel_replicas.query_queue_slots_estimator_strategy",
            "CBE",
        ),
        ("parallel_replicas.query_queue_v2_cpu_costs_per_slot", "10"),
        ("parallel_replicas.query_queue_v2_concurrency_level", "2"),
    ]);
    let mut client = server.app();
    let plan = |client: &mut Client, query: &str| -> String {
        client
            .query(query, &[])
            .unwrap()
            .iter()
            .map(|row| row.get::<_, String>(0) + "\n")
            .collect()
    };
    // 8 cores at level 2 are 4 slots, of which one statement gets half.
    let cheap = plan(&mut client, "EXPLAIN SELECT * FROM u WHERE i = 1");
    assert!(cheap.contains("\nQueue: slots 1\n"), "{cheap}");
    let dear = plan(&mut client, "EXPLAIN ANALYZE SELECT count(*) FROM t, u");
    assert!(dear.contains("\nQueue: slots 2\n"), "{dear}");
    let none = plan(&mut client, "EXPLAIN SELECT 1");
    assert!(!none.contains("Queue"), "{none}");
    server.wait_empty();
}

#[test]
fn resource_groups() {
    let mut server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "16"),
        ("parallel_replicas.enable_group_level_query_queue", "on"),
        ("parallel_replicas.report_resource_usage_interval_ms", "100"),
    ]);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute(
            "SELECT parallel_replicas.create_resource_group('one', 1);
             SELECT parallel_replicas.create_resource_group('two', 2);
             CREATE ROLE app2 LOGIN IN ROLE app;
             ALTER ROLE app SET parallel_replicas.resource_group = 'one'",
        )
        .unwrap();
    let state = |superuser: &mut Client| {
        text(
            superuser,
            "SELECT string_agg(concat_ws(' ', name, concurrency_limit, running, pending), ', '
                               ORDER BY name)
               FROM parallel_replicas.resource_groups",
        )
    };
    // The group holds its own up, and nobody else.
    let holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    assert_eq!(state(&mut superuser), "one 1 1 1, two 2 0 0");
    let reason = text(
        &mut superuser,
        "SELECT resource_group || ' ' || blocked_reason
           FROM parallel_replicas.running_queries WHERE state = 'PENDING'",
    );
    assert_eq!(reason, "one group_limit");
    superuser
        .batch_execute("CREATE ROLE stranger; SET ROLE stranger")
        .unwrap();
    let seen = "SELECT concat_ws(' ', count(*), count(pid), count(query_id), count(start_time),
                       count(resource_group), count(estimated_cost))
                  FROM parallel_replicas.running_queries WHERE usename = 'app'";
    assert_eq!(text(&mut superuser, seen), "2 2 0 0 0 0");
    superuser.batch_execute("RESET ROLE").unwrap();
    assert!(text(&mut superuser, seen).ends_with(" 2 2 2"));
    let mut other = server.cluster.connect_as(PRIMARY, "app2");
    assert_eq!(text(&mut other, "SELECT count(*)::text FROM t"), "1000");
    // Rolled back, a change is none; committed, it is for those who wait too.
    superuser
        .batch_execute(
            "BEGIN; SELECT parallel_replicas.alter_resource_group('one', 5); ROLLBACK;
             BEGIN; SAVEPOINT s; SELECT parallel_replicas.drop_resource_group('one');
             ROLLBACK TO s; COMMIT",
        )
        .unwrap();
    assert_eq!(server.gauge("pending"), 1);
    superuser
        .batch_execute("SELECT parallel_replicas.alter_resource_group('one', 2)")
        .unwrap();
    assert_eq!(value(waiter), "1000");
    superuser
        .batch_execute("SELECT parallel_replicas.alter_resource_group('one', 1)")
        .unwrap();
    // Dropped while somebody waits.
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    superuser
        .batch_execute("SELECT parallel_replicas.drop_resource_group('one')")
        .unwrap();
    assert_eq!(value(waiter), "1000");
    drop(holder);
    server.wait_empty();
    // A name that no group has limits nobody; a group made later does.
    let holder = server.holder();
    assert_eq!(
        text(&mut server.app(), "SELECT count(*)::text FROM t"),
        "1000"
    );
    drop(holder);
    superuser
        .batch_execute("SELECT parallel_replicas.create_resource_group('one', 0, 0.2)")
        .unwrap();
    // CPU: while one of the group computes, another one waits.
    let mut busy = server.app();
    let token = busy.cancel_token();
    let computing = thread::spawn(move || {
        busy.simple_query("SELECT count(*) FROM t a, t b, t c, t d")
            .map(|_| String::new())
    });
    server.wait_gauge("running", 1);
    let waits = |superuser: &mut Client| {
        text(
            superuser,
            "SELECT coalesce(max(cpu_cores), 0)::text FROM parallel_replicas.resource_groups",
        )
        .parse::<f64>()
        .expect("a number")
    };
    wait_until(SOON, "the group is seen to compute", || {
        let mut client = server.app();
        client
            .batch_execute("SET statement_timeout = '1s'")
            .unwrap();
        client.simple_query("SELECT count(*) FROM t").is_err() && waits(&mut superuser) >= 0.2
    });
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    token.cancel_query(NoTls).unwrap();
    assert_eq!(error(computing.join().unwrap()).code().code(), "57014");
    assert_eq!(value(waiter), "1000");
    server.wait_empty();
    // Errors.
    let mut refuse = |query: &str| {
        let failed = superuser.batch_execute(query).map(|()| String::new());
        error(failed).code().code().to_owned()
    };
    let long = format!(
        "SELECT parallel_replicas.create_resource_group('{}')",
        "x".repeat(64)
    );
    assert_eq!(refuse(&long), "42602");
    assert_eq!(
        refuse("SELECT parallel_replicas.create_resource_group('two')"),
        "42710"
    );
    assert_eq!(
        refuse("SELECT parallel_replicas.alter_resource_group('three')"),
        "42704"
    );
    assert_eq!(
        refuse("SELECT parallel_replicas.drop_resource_group('three')"),
        "42704"
    );
    for limits in [
        "-1",
        "0, -0.5",
        "0, 'NaN'",
        "0, 'Infinity'",
        "0, 0, 1.5",
        "0, 0, 'NaN'",
    ] {
        for (function, name) in [("create", "four"), ("alter", "two")] {
            let call =
                format!("SELECT parallel_replicas.{function}_resource_group('{name}', {limits})");
            assert_eq!(refuse(&call), "22023", "{call}");
        }
    }
    let denied = server
        .app()
        .batch_execute("SELECT parallel_replicas.drop_resource_group('two')")
        .map(|()| String::new());
    assert_eq!(error(denied).code().code(), "42501");
    // Definitions outlive a restart.
    drop(superuser);
    drop(other);
    server
        .cluster
        .restart(PRIMARY, parallel_replicas_tests::StopMode::Fast);
    let holder = server.holder();
    let mut superuser = server.cluster.connect(PRIMARY);
    assert_eq!(state(&mut superuser), "one 0 1 0, two 2 0 0");
    drop(holder);
}

/// `query_queue_scope` = `transaction`: what a statement that never got its slots leaves behind when a
/// savepoint keeps its transaction alive is nothing.
#[test]
fn a_transaction_keeps_only_what_it_got() {
    let server = QueueServer::start(&[("parallel_replicas.query_queue_scope", "transaction")]);
    let holder = server.holder();
    let mut client = server.app();
    client
        .batch_execute("BEGIN; SAVEPOINT s; SET LOCAL statement_timeout = '200ms'")
        .unwrap();
    let cancelled = client
        .simple_query("SELECT count(*) FROM t")
        .map(|_| String::new());
    assert_eq!(error(cancelled).code().code(), "57014");
    client.batch_execute("ROLLBACK TO s").unwrap();
    assert_eq!(server.gauge("pending"), 0);
    // So the next one waits as any other does.
    let waiter = thread::spawn(move || {
        client
            .batch_execute("SELECT count(*) FROM t; ROLLBACK TO s")
            .map(|()| client)
    });
    server.wait_gauge("pending", 1);
    assert_eq!(server.gauge("used_slots"), 1);
    drop(holder);
    let mut client = waiter.join().unwrap().unwrap();
    assert_eq!(server.gauge("used_slots"), 1);
    client.batch_execute("COMMIT").unwrap();
    server.wait_empty();
}

/// Where the extension is not installed anybody can make relations of its names. The server reads none
/// of them.
#[test]
fn somebody_elses_resource_groups_are_not_read() {
    let server = QueueServer::start(&[("parallel_replicas.enable_group_level_query_queue", "on")]);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute("CREATE DATABASE tenant OWNER app")
        .unwrap();
    let connect = || {
        let mut config = server.cluster.config(PRIMARY);
        config.user("app").dbname("tenant").connect(NoTls).unwrap()
    };
    connect()
        .batch_execute(
            "CREATE SCHEMA parallel_replicas;
             CREATE TABLE t AS SELECT generate_series(1, 1000) AS i",
        )
        .unwrap();
    let wide = (1..=1500)
        .map(|number| format!("c{number} bool"))
        .collect::<Vec<_>>()
        .join(", ");
    for (relation, kind) in [
        (
            "VIEW parallel_replicas.resource_group AS SELECT 'g'::name AS name".to_owned(),
            "VIEW",
        ),
        (
            format!("TABLE parallel_replicas.resource_group ({wide})"),
            "TABLE",
        ),
        (
            "TABLE parallel_replicas.resource_group AS SELECT 1::bigint AS name, 1 AS a,
                 1::float8 AS b, 1::float8 AS c"
                .to_owned(),
            "TABLE",
        ),
        // As the extension makes it, but not the extension's: it limits nobody.
        (
            "TABLE parallel_replicas.resource_group AS SELECT 'g'::name AS name, 1 AS a,
                 1::float8 AS b, 1::float8 AS c"
                .to_owned(),
            "TABLE",
        ),
    ] {
        let mut client = connect();
        client.batch_execute(&format!("CREATE {relation}")).unwrap();
        let _ = client.batch_execute("INSERT INTO parallel_replicas.resource_group DEFAULT VALUES");
        client
            .batch_execute("SET parallel_replicas.resource_group = 'g'")
            .unwrap();
        assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
        client
            .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
            .unwrap();
        let group = "SELECT (resource_group IS NULL)::text FROM parallel_replicas.running_queries";
        assert_eq!(text(&mut superuser, group), "true", "{relation}");
        client
            .batch_execute(&format!(
                "COMMIT; DROP {kind} parallel_replicas.resource_group"
            ))
            .unwrap();
    }
    server.wait_empty();
}

/// All places taken by another database, which is then dropped.
#[test]
fn groups_of_a_dropped_database_give_their_places_back() {
    let server = QueueServer::start(&[]);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser.batch_execute("CREATE DATABASE other").unwrap();
    let mut config = server.cluster.config(PRIMARY);
    config
        .dbname("other")
        .connect(NoTls)
        .unwrap()
        .batch_execute(
            "CREATE EXTENSION parallel_replicas;
             SELECT parallel_replicas.create_resource_group('g' || i)
               FROM generate_series(1, 128) i",
        )
        .unwrap();
    let create = "SELECT parallel_replicas.create_resource_group('g')";
    let refused = superuser.batch_execute(create).map(|()| String::new());
    assert_eq!(error(refused).code().code(), "54000");
    superuser
        .batch_execute("DROP DATABASE other WITH (FORCE)")
        .unwrap();
    superuser.batch_execute(create).unwrap();
}

/// Statements queue on a standby, too, in a group that lets one of them run.
fn with_a_group_on_a_standby() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "16")
        .setting("parallel_replicas.enable_group_level_query_queue", "on")
        .start();
    cluster.psql(
        PRIMARY,
        "CREATE EXTENSION IF NOT EXISTS parallel_replicas;
         CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
         SELECT parallel_replicas.create_resource_group('g', 1);",
    );
    cluster.wait_all_caught_up();
    cluster
}

/// A standby's queue knows the groups as replication brings them, and as it takes them away.
#[test]
fn a_standby_follows_changes_of_groups() {
    let cluster = with_a_group_on_a_standby();
    let session = || {
        let mut client = cluster.connect(1);
        client
            .batch_execute(
                "SET parallel_replicas.resource_group = 'g'; SET statement_timeout = '500ms'",
            )
            .unwrap();
        client
    };
    let mut first = session();
    first
        .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
        .unwrap();
    let mut second = session();
    for (change, is_limited) in [
        ("SELECT 1", true),
        (
            "SELECT parallel_replicas.alter_resource_group('g', 2)",
            false,
        ),
        (
            "SELECT parallel_replicas.alter_resource_group('g', 1)",
            true,
        ),
        (
            "BEGIN; SELECT parallel_replicas.alter_resource_group('g', 2); ROLLBACK",
            true,
        ),
        ("DROP EXTENSION parallel_replicas", false),
    ] {
        cluster.psql(PRIMARY, change);
        cluster.wait_all_caught_up();
        let answer = second.simple_query("SELECT count(*) FROM t");
        assert_eq!(answer.is_err(), is_limited, "{change}");
    }
}

/// Nobody on a standby applies a change of a group to those who wait there: they find it themselves.
#[test]
fn who_waits_on_a_standby_follows_changes_of_groups() {
    let cluster = with_a_group_on_a_standby();
    let session = || {
        let mut client = cluster.connect(1);
        client
            .batch_execute(
                "SET parallel_replicas.resource_group = 'g'; SET statement_timeout = '60s'",
            )
            .unwrap();
        client
    };
    let waiting = |cluster: &Cluster| {
        text(
            &mut cluster.connect(1),
            "SELECT count(*)::text FROM parallel_replicas.running_queries WHERE state = 'PENDING'",
        )
    };
    let mut first = session();
    first
        .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
        .unwrap();
    for (change, restored) in [
        (
            "SELECT parallel_replicas.alter_resource_group('g', 2)",
            "SELECT parallel_replicas.alter_resource_group('g', 1)",
        ),
        (
            "SELECT parallel_replicas.drop_resource_group('g')",
            "SELECT parallel_replicas.create_resource_group('g', 1)",
        ),
        ("DROP EXTENSION parallel_replicas", "SELECT"),
    ] {
        let mut second = session();
        let waiter = thread::spawn(move || {
            second
                .simple_query("SELECT count(*) FROM t")
                .map(|_| String::new())
        });
        wait_until(SOON, "the second waits", || waiting(&cluster) == "1");
        // A change that is rolled back changes nothing.
        cluster.psql(PRIMARY, &format!("BEGIN; {change}; ROLLBACK"));
        cluster.wait_all_caught_up();
        assert_eq!(waiting(&cluster), "1", "{change}, rolled back");
        cluster.psql(PRIMARY, change);
        value(waiter);
        cluster.psql(PRIMARY, restored);
        cluster.wait_all_caught_up();
    }
}

/// With many processes at work a query gets fewer, and a cached plan is not changed for good.
#[test]
fn driver_marks_cut_processes() {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_cores", "16"),
        ("parallel_replicas.query_queue_driver_high_water", "4"),
        ("max_parallel_workers_per_gather", "4"),
        ("min_parallel_table_scan_size", "0"),
        ("parallel_setup_cost", "0"),
        ("parallel_tuple_cost", "0"),
    ]);
    server
        .cluster
        .psql(PRIMARY, "ALTER TABLE t SET (parallel_workers = 3)");
    let mut client = server.app();
    client
        .batch_execute(
            "SET plan_cache_mode = force_generic_plan;
             PREPARE p AS SELECT count(*) FROM t",
        )
        .unwrap();
    let plan = |client: &mut Client| -> String {
        client
            .query(
                "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT count(*) FROM t",
                &[],
            )
            .unwrap()
            .iter()
            .map(|row| row.get::<_, String>(0) + "\n")
            .collect()
    };
    let alone = plan(&mut client);
    assert!(alone.contains("Workers Planned: 3"), "{alone}");
    assert!(alone.contains("\nQueue: slots 4\n"), "{alone}");
    // Two cursors of other sessions: two processes of four are at work.
    let holders = [server.serial_holder(), server.serial_holder()];
    let cut = plan(&mut client);
    assert!(cut.contains("Workers Planned: 1"), "{cut}");
    assert!(
        cut.contains("\nQueue: slots 4, processes 2 of 4\n"),
        "{cut}"
    );
    client.batch_execute("EXECUTE p").unwrap();
    let third = server.serial_holder();
    let serial = plan(&mut client);
    assert!(serial.contains("Workers Planned: 0"), "{serial}");
    assert!(serial.contains("processes 1 of 4"), "{serial}");
    assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
    drop(holders);
    drop(third);
    server.wait_empty();
    let again: String = client
        .query("EXPLAIN ANALYZE EXECUTE p", &[])
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    assert!(again.contains("Workers Planned: 3"), "{again}");
}

/// Workers here and links that execute one node together are lowered together, and neither of them
/// to nothing while there is room for both.
#[test]
fn driver_marks_cut_workers_beside_links() {
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "16")
        .setting("parallel_replicas.query_queue_driver_high_water", "8")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("min_parallel_table_scan_size", "0")
        .setting("parallel_setup_cost", "0")
        .setting("parallel_tuple_cost", "0")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 50000) i;
         ALTER TABLE t SET (parallel_workers = 2)",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.wait_all_caught_up();
    let serial = || {
        let mut holder = cluster.connect(PRIMARY);
        holder
            .batch_execute(
                "SET enable_parallel_replicas = 0; SET max_parallel_workers_per_gather = 0;
                 BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c",
            )
            .expect("a slot is free");
        holder
    };
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = on;
             SET statement_timeout = '60s'",
        )
        .expect("settings");
    let mut plan = || -> String {
        let rows = client.query("EXPLAIN ANALYZE SELECT count(*) FROM t", &[]);
        rows.expect("plan")
            .iter()
            .map(|row| row.get::<_, String>(0) + "\n")
            .collect()
    };
    let mut holders = Vec::new();
    // Of eight processes, this backend's included, so many are at work elsewhere.
    for (at_work, workers, links, cut) in [
        (0, 2, 2, ""),
        (3, 2, 2, ""),
        (4, 2, 1, ", processes 4 of 5"),
        (5, 1, 1, ", processes 3 of 5"),
        (6, 0, 1, ", processes 2 of 5"),
    ] {
        while holders.len() < at_work {
            holders.push(serial());
        }
        let plan = plan();
        for line in [
            format!("Local Workers Planned: {workers}\n"),
            format!("Local Workers Launched: {workers}\n"),
            format!("/{links} granules="),
            format!("\nQueue: slots 3{cut}\n"),
        ] {
            assert!(plan.contains(&line), "{at_work}: {line}{plan}");
        }
    }
}

/// Version 1 admits nothing while a server is above its limits, which are measured.
#[test]
fn measured_load_keeps_statements_waiting() {
    let server = QueueServer::start(&[
        ("parallel_replicas.enable_query_queue_v2", "off"),
        (
            "parallel_replicas.query_queue_mem_used_pct_limit",
            "0.00001",
        ),
        ("parallel_replicas.report_resource_usage_interval_ms", "100"),
    ]);
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    let mut superuser = server.cluster.connect(PRIMARY);
    let reason = "SELECT blocked_reason FROM parallel_replicas.running_queries";
    wait_until(SOON, "the reason is seen", || {
        text(&mut superuser, reason) == "overload"
    });
    assert_eq!(server.gauge("overloaded"), 1);
    // The waiter itself measures again, and sees that there is no limit any more.
    server.set("parallel_replicas.query_queue_mem_used_pct_limit", "0");
    assert_eq!(value(waiter), "1000");
    cpu_keeps_statements_waiting(&server);
    // One at a time, by count.
    server.set("parallel_replicas.query_queue_concurrency_limit", "1");
    let holder = server.holder();
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    let pending = format!("{reason} WHERE state = 'PENDING'");
    assert_eq!(text(&mut superuser, &pending), "concurrency_limit");
    drop(holder);
    assert_eq!(value(waiter), "1000");
    server.wait_empty();
}

/// While a superuser's query, which does not queue, computes, the server is above its limit.
fn cpu_keeps_statements_waiting(server: &QueueServer) {
    let limit = "parallel_replicas.query_queue_cpu_used_permille_limit";
    let mut busy = server.cluster.connect(PRIMARY);
    let token = busy.cancel_token();
    let computing = thread::spawn(move || {
        busy.simple_query("SELECT count(*) FROM t a, t b, t c, t d")
            .map(|_| String::new())
    });
    // Without a limit it is none of the queue's business.
    assert_eq!(server.gauge("overloaded"), 0);
    assert_eq!(
        text(&mut server.app(), "SELECT count(*)::text FROM t"),
        "1000"
    );
    server.set(limit, "1");
    // The first look has nothing to compare with.
    wait_until(SOON, "the load is measured", || {
        let mut client = server.app();
        client
            .batch_execute("SET statement_timeout = '1s'")
            .unwrap();
        client.simple_query("SELECT count(*) FROM t").is_err()
    });
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    let mut superuser = server.cluster.connect(PRIMARY);
    let reason = text(
        &mut superuser,
        "SELECT blocked_reason FROM parallel_replicas.running_queries",
    );
    assert_eq!(reason, "overload");
    assert_eq!(server.gauge("overloaded"), 1);
    assert!(server.gauge("cpu_permille") >= 1);
    server.set(limit, "0");
    assert_eq!(value(waiter), "1000");
    token.cancel_query(NoTls).unwrap();
    assert_eq!(error(computing.join().unwrap()).code().code(), "57014");
}

/// With replicas: links need no slots here, but count as processes for the driver marks, and a replica's
/// own queue does not stop them.
#[test]
fn links_need_no_slots_and_are_not_queued_themselves() {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "16")
        .setting("parallel_replicas.connect_timeout", "20s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 50000) i;
         CREATE TABLE small AS SELECT 1 AS i;",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t, small");
    cluster.wait_all_caught_up();
    // The standby's only slot is taken.
    cluster.configure(1, "parallel_replicas.query_queue_concurrency_limit", "1");
    cluster.reload(1);
    let mut reader = cluster.connect(1);
    wait_until(SOON, "the limit is in force", || {
        text(
            &mut reader,
            "SHOW parallel_replicas.query_queue_concurrency_limit",
        ) == "1"
    });
    reader
        .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
        .unwrap();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET statement_timeout = '60s'",
        )
        .unwrap();
    let plan: String = client
        .query("EXPLAIN ANALYZE SELECT count(*) FROM t", &[])
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    assert!(plan.contains("Replicas Used: 1"), "{plan}");
    assert!(plan.contains("/2 granules="), "{plan}");
    // This backend; the links' processes are the replica's.
    assert!(plan.contains("\nQueue: slots 1\n"), "{plan}");
    // The log knows them.
    assert_eq!(
        text(
            &mut client,
            "SELECT slots || ' ' || (pending < interval '1 minute')
               FROM parallel_replicas.query_log ORDER BY started DESC LIMIT 1",
        ),
        "1 true"
    );
    // The marks lower the links.
    cluster.configure(
        PRIMARY,
        "parallel_replicas.query_queue_driver_high_water",
        "4",
    );
    cluster.reload(PRIMARY);
    wait_until(SOON, "the mark is in force", || {
        text(
            &mut client,
            "SHOW parallel_replicas.query_queue_driver_high_water",
        ) == "4"
    });
    let holders = [(); 2].map(|()| {
        let mut holder = cluster.connect(PRIMARY);
        holder
            .batch_execute(
                "SET enable_parallel_replicas = 0; SET max_parallel_workers_per_gather = 0;
                 BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c",
            )
            .unwrap();
        holder
    });
    let cut: String = client
        .query("EXPLAIN ANALYZE SELECT count(*) FROM t", &[])
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    assert!(cut.contains("Replicas Used: 1"), "{cut}");
    assert!(cut.contains("links=1/1 granules="), "{cut}");
    assert!(cut.contains(", processes 2 of 3\n"), "{cut}");
    drop(holders);
    // The standby queues its own users' queries.
    let mut other = cluster.connect(1);
    other
        .batch_execute("SET statement_timeout = '500ms'")
        .unwrap();
    let late = other.simple_query("SELECT * FROM t").map(|_| String::new());
    assert_eq!(error(late).code().code(), "57014");
    reader.batch_execute("COMMIT").unwrap();
    damage_check(&cluster);
}
