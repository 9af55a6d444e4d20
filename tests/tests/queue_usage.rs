//! The query queue on a real server: what statements, groups and the cluster use and have.

use std::fs;

use parallel_replicas_tests::queue_server::{QueueServer, error, pid, value};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};
use postgres::Client;

/// Settings under which small tables are scanned by parallel workers.
const PARALLEL: [(&str, &str); 4] = [
    ("max_parallel_workers_per_gather", "2"),
    ("min_parallel_table_scan_size", "0"),
    ("parallel_setup_cost", "0"),
    ("parallel_tuple_cost", "0"),
];

/// CPU time of a process in milliseconds: the first field of /proc/PID/schedstat, nanoseconds.
fn cpu_ms(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("the process lives");
    let word = text.split_whitespace().next().expect("a first word");
    word.parse::<f64>().expect("a number") / 1e6
}

/// CPU time of a group as the view shows it, in milliseconds.
fn cpu_ms_of_group(superuser: &mut Client) -> f64 {
    text(
        superuser,
        "SELECT cpu_ms::text FROM parallel_replicas.resource_groups WHERE name = 'g'",
    )
    .parse()
    .expect("a number")
}

fn rows(client: &mut Client, query: &str) -> String {
    client
        .query(query, &[])
        .unwrap_or_else(|error| panic!("{query}: {error:?}"))
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect()
}

/// A group's CPU time is what the operating system says of its backends and their workers: also of
/// statements that come and go while nobody looks.
#[test]
fn cpu_of_groups_is_that_of_their_processes() {
    let mut settings = PARALLEL.to_vec();
    settings.push(("parallel_replicas.enable_group_level_query_queue", "on"));
    settings.push(("parallel_replicas.query_queue_cores", "16"));
    settings.push(("parallel_leader_participation", "off"));
    let server = QueueServer::start(&settings);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute(
            "SELECT parallel_replicas.create_resource_group('g');
             ALTER ROLE app SET parallel_replicas.resource_group = 'g'",
        )
        .expect("group");
    // Short statements, one after the other.
    let mut client = server.app();
    client
        .batch_execute("SET max_parallel_workers_per_gather = 0; SELECT count(*) FROM t")
        .expect("warm");
    let backend = pid(&mut client);
    let (before, counted_before) = (cpu_ms(backend), cpu_ms_of_group(&mut superuser));
    for _ in 0..20 {
        client
            .batch_execute("SELECT count(*) FROM t a, t b WHERE a.i <> b.i")
            .expect("query");
    }
    let used = cpu_ms(backend) - before;
    let counted = cpu_ms_of_group(&mut superuser) - counted_before;
    assert!(
        (used * 0.8..used * 1.01 + 2.0).contains(&counted),
        "{counted} ms were counted of {used} ms"
    );
    // In workers, which are gone before anybody looks. The leader only waits.
    superuser
        .batch_execute("ALTER TABLE t SET (parallel_workers = 2)")
        .expect("workers");
    client
        .batch_execute("SET max_parallel_workers_per_gather = 2")
        .expect("workers");
    let query = "SELECT count(*) FROM t a, (SELECT i FROM u WHERE i <= 300) b WHERE a.i <> b.i";
    let plan = rows(&mut client, &format!("EXPLAIN (COSTS OFF) {query}"));
    assert!(plan.contains("Workers Planned: 2"), "{plan}");
    let (before, counted_before) = (cpu_ms(backend), cpu_ms_of_group(&mut superuser));
    for _ in 0..10 {
        client.batch_execute(query).expect("query");
    }
    let leader = cpu_ms(backend) - before;
    let counted = cpu_ms_of_group(&mut superuser) - counted_before;
    client
        .batch_execute("SET max_parallel_workers_per_gather = 0")
        .expect("serial");
    let before = cpu_ms(backend);
    for _ in 0..10 {
        client.batch_execute(query).expect("query");
    }
    let serial = cpu_ms(backend) - before;
    // Not more than a part of it, as a machine at its limits starts fewer workers; without them it is none.
    assert!(
        (leader + serial * 0.2..leader + serial * 4.0).contains(&counted),
        "{counted} ms were counted, {leader} ms in the leader; {serial} ms without workers"
    );
    // What runs is seen while it runs, of others by those who may.
    let runner = server.app();
    let token = runner.cancel_token();
    let mut runner_client = runner;
    let running = std::thread::spawn(move || {
        runner_client
            .simple_query("SELECT count(*) FROM t a, t b, t c, t d")
            .map(|_| String::new())
    });
    wait_until(SOON, "the statement is seen to compute", || {
        text(
            &mut superuser,
            "SELECT (coalesce(max(cpu_ms), 0) >= 200)::text
               FROM parallel_replicas.running_queries",
        ) == "true"
    });
    superuser
        .batch_execute("CREATE ROLE stranger; SET ROLE stranger")
        .expect("role");
    let seen = "SELECT count(cpu_ms)::text FROM parallel_replicas.running_queries";
    assert_eq!(text(&mut superuser, seen), "0");
    token
        .cancel_query(postgres::NoTls)
        .expect("the server runs");
    running.join().expect("no panic").expect_err("cancelled");
    server.wait_empty();
}

/// Processes that links have on replicas work for the group, too.
#[test]
fn cpu_of_groups_contains_that_of_links() {
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "16")
        .setting("parallel_replicas.enable_group_level_query_queue", "on")
        .setting("parallel_replicas.connect_timeout", "20s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 100000) i;
         SELECT parallel_replicas.create_resource_group('g');",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.wait_all_caught_up();
    let mut superuser = cluster.connect(PRIMARY);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET parallel_replicas.resource_group = 'g';
             SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET statement_timeout = '60s'",
        )
        .expect("settings");
    let query = "SELECT count(*) FROM t WHERE sqrt(i) + sqrt(i + 1) + sqrt(i + 2) > 0
                    AND length(repeat(pad, 20)) > 100";
    // The links stay, so that their processes can be watched.
    client.batch_execute(query).expect("query");
    let links: Vec<i32> = cluster
        .connect(1)
        .query(
            "SELECT pid FROM pg_stat_activity
              WHERE application_name LIKE 'parallel_replicas%'
                AND application_name <> 'parallel_replicas monitor'
                AND backend_type = 'client backend'",
            &[],
        )
        .expect("links")
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(!links.is_empty());
    let used = || links.iter().map(|link| cpu_ms(*link)).sum::<f64>();
    let backend = pid(&mut client);
    let (own_before, links_before) = (cpu_ms(backend), used());
    let counted_before = cpu_ms_of_group(&mut superuser);
    for _ in 0..5 {
        client.batch_execute(query).expect("query");
    }
    let (own, of_links) = (cpu_ms(backend) - own_before, used() - links_before);
    let counted = cpu_ms_of_group(&mut superuser) - counted_before;
    assert!(
        of_links > 3.0 * own,
        "{of_links} ms in links, {own} ms here"
    );
    assert!(
        (of_links * 0.7..(of_links + own) * 1.01 + 5.0).contains(&counted),
        "{counted} ms were counted of {of_links} ms in links and {own} ms here"
    );
}

/// Slots of the cluster: those of the servers that the monitor finds alive, and links need some.
#[test]
fn capacity_of_the_cluster() {
    let mut cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "3")
        .setting("parallel_replicas.query_queue_capacity", "cluster")
        .setting("parallel_replicas.monitor_interval", "200ms")
        .setting("parallel_replicas.connect_timeout", "20s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 50000) i",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.wait_all_caught_up();
    // The servers need not be alike.
    cluster.configure(1, "parallel_replicas.query_queue_cores", "7");
    cluster.reload(1);
    let slots = |cluster: &Cluster| {
        // The views make the monitor look.
        text(
            &mut cluster.connect(PRIMARY),
            "SELECT value::bigint::text FROM parallel_replicas.query_queue
              WHERE metric = 'max_slots' AND (SELECT count(*) FROM parallel_replicas.replicas) = 2",
        )
    };
    wait_until(SOON, "all three servers count", || slots(&cluster) == "13");
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET statement_timeout = '60s'",
        )
        .expect("settings");
    let plan = rows(&mut client, "EXPLAIN ANALYZE SELECT count(*) FROM t");
    assert!(plan.contains("Replicas Planned: 2"), "{plan}");
    // This backend and two links to each.
    assert!(plan.contains("\nQueue: slots 5\n"), "{plan}");
    cluster.kill_9(1);
    wait_until(SOON, "one is gone", || slots(&cluster) == "6");
    cluster.start(1);
    wait_until(SOON, "it is back", || slots(&cluster) == "13");
    // By itself a server counts its own.
    cluster.configure(PRIMARY, "parallel_replicas.query_queue_capacity", "server");
    cluster.reload(PRIMARY);
    wait_until(SOON, "only this server counts", || slots(&cluster) == "3");
}

/// A query that was to leave this server's processes out and finds no replica is executed here: with so
/// many workers as there are free slots for, if nobody waits for them.
#[test]
fn a_query_without_its_replicas_takes_free_slots_only() {
    let mut builder = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("parallel_replicas.enable_query_queue_select", "on")
        .setting("parallel_replicas.query_queue_bypass_superuser", "off")
        .setting("parallel_replicas.query_queue_cores", "3")
        .setting("parallel_replicas.connect_timeout", "20s");
    for (name, value) in PARALLEL {
        builder = builder.setting(name, value);
    }
    let cluster = builder.start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 50000) i;
         ALTER TABLE t SET (parallel_workers = 2);
         CREATE TABLE written (i int)",
    );
    cluster.psql(PRIMARY, "VACUUM ANALYZE t");
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET plan_cache_mode = force_generic_plan; SET parallel_replicas.debug_force = on;
             SET parallel_replicas_local_plan = off; SET statement_timeout = '60s';
             PREPARE p AS SELECT count(*) FROM t",
        )
        .expect("settings");
    let shipped = rows(&mut client, "EXPLAIN ANALYZE EXECUTE p");
    assert!(shipped.contains("Replicas Used: 1"), "{shipped}");
    let plan = rows(&mut client, "EXPLAIN SELECT count(*) FROM t");
    assert!(plan.contains("\nQueue: slots 1\n"), "{plan}");
    // What has written cannot be shipped.
    let mut launched = || {
        client
            .batch_execute("BEGIN; INSERT INTO written VALUES (1)")
            .expect("insert");
        let plan = rows(&mut client, "EXPLAIN ANALYZE EXECUTE p");
        client.batch_execute("ROLLBACK").expect("rollback");
        assert!(plan.contains("Replicas Used: 0"), "{plan}");
        let (_, rest) = plan
            .split_once("Local Workers Launched: ")
            .expect("a count");
        rest.lines().next().expect("a number").to_owned()
    };
    assert_eq!(launched(), "2", "all slots are free");
    let serial = || {
        let mut client = cluster.connect(PRIMARY);
        client
            .batch_execute(
                "SET max_parallel_workers_per_gather = 0;
                 BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c",
            )
            .expect("a slot is free");
        client
    };
    let holder = serial();
    assert_eq!(launched(), "1", "one is free");
    let gauge = |metric: &str| {
        text(
            &mut cluster.connect(PRIMARY),
            &format!(
                "SELECT value::bigint::text FROM parallel_replicas.query_queue
                  WHERE metric = '{metric}'"
            ),
        )
    };
    assert_eq!(gauge("used_slots"), "1");
    let mut waiter_client = cluster.connect(PRIMARY);
    let waiter = std::thread::spawn(move || {
        waiter_client
            .simple_query("SET statement_timeout = '60s'; SELECT count(*) FROM t")
            .map(|_| String::new())
    });
    wait_until(SOON, "the query waits for all slots", || {
        gauge("pending") == "1"
    });
    assert_eq!(launched(), "0", "somebody waits for it");
    drop(holder);
    value(waiter);
    assert_eq!(launched(), "2", "all slots are free again");
}

/// Resident memory of a process that it does not share, in bytes: RssAnon of /proc/PID/status, in kB.
fn private_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let (_, rest) = text.split_once("RssAnon:").expect("a line");
    let word = rest.split_whitespace().next().expect("a word");
    word.parse::<u64>().expect("a number") * 1024
}

/// A group that has more memory than it may keeps its own waiting and nobody else, and the view says so.
#[test]
fn memory_limits_of_groups() {
    let server = QueueServer::start(&[
        ("parallel_replicas.enable_group_level_query_queue", "on"),
        ("parallel_replicas.query_queue_cores", "16"),
        ("parallel_replicas.report_resource_usage_interval_ms", "100"),
    ]);
    let mut superuser = server.cluster.connect(PRIMARY);
    // Less than anything has.
    superuser
        .batch_execute(
            "SELECT parallel_replicas.create_resource_group('g', 0, 0, 1e-12);
             CREATE ROLE app2 LOGIN IN ROLE app;
             ALTER ROLE app SET parallel_replicas.resource_group = 'g'",
        )
        .expect("group");
    let mut group = |columns: &str| {
        text(
            &mut superuser,
            &format!(
                "SELECT concat_ws(' ', {columns})
                   FROM parallel_replicas.resource_groups WHERE name = 'g'"
            ),
        )
    };
    let state = "running, pending, total, timeouts, overloaded";
    assert_eq!(
        group("concurrency_limit, max_cpu_cores, mem_used_pct_limit"),
        "0 0 1e-12"
    );
    assert_eq!(group(state), "0 0 0 0 f");
    assert_eq!(group("mem_bytes"), "0");
    // With nobody in it a group has no memory.
    let mut holder = server.holder();
    wait_until(SOON, "the group is over its limit", || {
        group(state) == "1 0 1 0 t"
    });
    let process = pid(&mut holder);
    let shown: u64 = group("mem_bytes").parse().expect("a number");
    let has = private_bytes(process);
    assert!(
        (has / 2..has * 2).contains(&shown),
        "{shown} bytes are shown of {has}"
    );
    // Fifteen slots are free, but not for its own.
    let waiter = server.waiting(server.app(), "SELECT count(*) FROM t");
    assert_eq!(group(state), "1 1 2 0 t");
    let mut other = server.cluster.connect_as(PRIMARY, "app2");
    assert_eq!(text(&mut other, "SELECT count(*)::text FROM t"), "1000");
    let mut observer = server.cluster.connect(PRIMARY);
    assert_eq!(
        text(
            &mut observer,
            "SELECT resource_group || ' ' || blocked_reason
               FROM parallel_replicas.running_queries WHERE state = 'PENDING'",
        ),
        "g group_limit"
    );
    // A limit that is above what it has lets it run.
    observer
        .batch_execute(
            "SELECT parallel_replicas.alter_resource_group('g', mem_used_pct_limit => 1)",
        )
        .expect("alter");
    assert_eq!(value(waiter), "1000");
    assert_eq!(group("mem_used_pct_limit"), "1");
    assert_eq!(group(state), "1 0 2 0 f");
    // Who waits too long is the group's, and the server's.
    observer
        .batch_execute(
            "SELECT parallel_replicas.alter_resource_group('g', mem_used_pct_limit => 1e-12)",
        )
        .expect("alter");
    wait_until(SOON, "the group is over its limit again", || {
        group("overloaded") == "t"
    });
    server.set("parallel_replicas.query_queue_pending_timeout_second", "1s");
    let late = server.app().simple_query("SELECT count(*) FROM t");
    let late = error(late.map(|_| String::new()));
    assert!(late.message().contains("query queue"), "{late}");
    assert_eq!(group(state), "1 0 3 1 t");
    assert_eq!(server.gauge("timeouts"), 1);
    drop(holder);
    server.wait_empty();
    wait_until(SOON, "nobody is in it", || group("mem_bytes") == "0");
    assert_eq!(group(state), "0 0 3 1 f");
}

/// A database's group is that of its sessions, unless their role has another.
#[test]
fn groups_of_databases() {
    let server = QueueServer::start(&[
        ("parallel_replicas.enable_group_level_query_queue", "on"),
        ("parallel_replicas.query_queue_cores", "16"),
    ]);
    let mut superuser = server.cluster.connect(PRIMARY);
    superuser
        .batch_execute(
            "SELECT parallel_replicas.create_resource_group('of_database', 1);
             SELECT parallel_replicas.create_resource_group('of_role', 1);
             CREATE ROLE app2 LOGIN IN ROLE app;
             ALTER DATABASE postgres SET parallel_replicas.resource_group = 'of_database'",
        )
        .expect("groups");
    let holder = server.holder();
    let waiter = server.waiting(
        server.cluster.connect_as(PRIMARY, "app2"),
        "SELECT count(*) FROM t",
    );
    let mut state = || {
        text(
            &mut superuser,
            "SELECT string_agg(concat_ws(' ', usename, state, resource_group), ', ' ORDER BY usename)
               FROM parallel_replicas.running_queries",
        )
    };
    assert_eq!(
        state(),
        "app RUNNING of_database, app2 PENDING of_database",
        "one at a time"
    );
    drop(holder);
    assert_eq!(value(waiter), "1000");
    server.cluster.psql(
        PRIMARY,
        "ALTER ROLE app2 SET parallel_replicas.resource_group = 'of_role'",
    );
    let holder = server.holder();
    let mut other = server.cluster.connect_as(PRIMARY, "app2");
    other
        .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
        .expect("nobody is in its group");
    assert_eq!(state(), "app RUNNING of_database, app2 RUNNING of_role");
    drop(other);
    drop(holder);
    server.wait_empty();
}
