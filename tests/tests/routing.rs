//! Whole queries under a tag: the plan goes to the tag's replica as it is, exactly once or not at all.

use std::thread;
use std::time::Duration;

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{
    Cluster, Differential, Fault, PRIMARY, Proxy, Rows, SOON, StopMode, damage_check, text,
    wait_until,
};
use postgres::Client;

/// Sends whole, whatever the machine's load.
const TAGGED: &str = "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'amy_test';
     SET parallel_replicas.connect_timeout = '20s'; SET parallel_replicas.replay_wait_timeout = '20s'";

/// Two ways to run in one transaction: alone, and under a tag.
const ALONE: &str = "SET LOCAL enable_parallel_replicas = 0";

const TABLES: &str = "
    CREATE TABLE item(id int PRIMARY KEY, kind int, name text, at timestamptz, parent int);
    INSERT INTO item SELECT i, i % 10, 'name' || i, '2024-03-01 00:00+00'::timestamptz + i * interval '1 h', i / 2
        FROM generate_series(1, 5000) i;
    CREATE INDEX ON item(kind);
    CREATE TABLE kind(kind int PRIMARY KEY, label text);
    INSERT INTO kind SELECT i, 'kind ' || i FROM generate_series(0, 12) i;
    CREATE VIEW kinds AS SELECT kind, count(*) AS items FROM item GROUP BY kind;
    VACUUM ANALYZE item, kind";

fn cluster(standbys: usize, settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
        .autovacuum(false)
        .setting("parallel_replicas.stall_timeout", "60s")
        .settings(settings)
        .start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    for statement in TABLES.split(';') {
        client.batch_execute(statement).unwrap();
    }
    cluster.wait_all_caught_up();
    cluster
}

fn tagged(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client.batch_execute(TAGGED).unwrap();
    client
}

/// The node that the tag leads to.
fn place(cluster: &Cluster, client: &mut Client) -> usize {
    let name = text(
        client,
        "SELECT parallel_replicas.replica_for_tag('amy_test')",
    );
    cluster
        .standbys()
        .find(|node| cluster.name(*node) == name)
        .expect("a replica of the cluster")
}

fn explain(client: &mut Client, options: &str, query: &str) -> String {
    client
        .query(&format!("EXPLAIN ({options}) {query}"), &[])
        .unwrap_or_else(|error| panic!("{error:?}\n{query}"))
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect()
}

/// What stays small tables, look-ups, and shapes of which a plan that is divided has none.
const WHOLE: &[&str] = &[
    "SELECT * FROM item WHERE id = 77",
    "SELECT id, name FROM item WHERE kind = 3 AND id < 60",
    "SELECT count(*), sum(id), avg(id), array_agg(name ORDER BY name COLLATE \"C\" DESC) FROM item WHERE id < 40",
    "SELECT id FROM item ORDER BY at DESC LIMIT 5 OFFSET 3",
    "SELECT kind FROM item ORDER BY kind FETCH FIRST 3 ROWS WITH TIES",
    "SELECT k.label, i.name FROM item i FULL JOIN kind k USING (kind) WHERE coalesce(i.id, 0) < 50",
    "SELECT k.label, i.id FROM kind k RIGHT JOIN item i ON i.kind = k.kind AND k.kind < 5 WHERE i.id < 30",
    "SELECT kind, count(*), rank() OVER (ORDER BY count(*) DESC, kind), grouping(kind)
       FROM item WHERE id < 500 GROUP BY ROLLUP (kind)",
    "SELECT id, sum(id) OVER (PARTITION BY kind ORDER BY id RANGE BETWEEN 20 PRECEDING AND CURRENT ROW)
       FROM item WHERE id < 200",
    "SELECT id, count(*) OVER (ORDER BY at RANGE BETWEEN '5 h' PRECEDING AND CURRENT ROW) FROM item WHERE id < 200",
    "SELECT kind, id % 3, count(*) FROM item GROUP BY GROUPING SETS ((kind), (id % 3), ())",
    "SELECT id FROM item WHERE id < 20 EXCEPT SELECT parent FROM item WHERE id < 20",
    "SELECT kind FROM item INTERSECT ALL SELECT kind FROM kind",
    "SELECT id FROM item WHERE id = 5 UNION ALL SELECT kind FROM kind",
    "WITH RECURSIVE up(id, parent) AS (
         SELECT id, parent FROM item WHERE id = 4711
         UNION SELECT i.id, i.parent FROM up JOIN item i ON i.id = up.parent)
     SELECT * FROM up",
    "WITH k AS MATERIALIZED (SELECT kind, label FROM kind) SELECT * FROM k a JOIN k b USING (kind)",
    "SELECT label, (SELECT max(name) FROM item i WHERE i.kind = k.kind) FROM kind k",
    "SELECT label FROM kind k WHERE NOT EXISTS (SELECT FROM item i WHERE i.kind = k.kind)",
    "SELECT label FROM kind WHERE kind NOT IN (SELECT kind FROM item WHERE kind < 5)",
    "SELECT id FROM item WHERE id = (SELECT max(id) FROM item WHERE kind = 4)",
    "SELECT id, ARRAY(SELECT k.label FROM kind k WHERE k.kind < i.kind) FROM item i WHERE id < 5",
    "SELECT k.label, l.name FROM kind k, LATERAL (SELECT name FROM item i WHERE i.kind = k.kind
         ORDER BY id LIMIT 2) l",
    "SELECT ctid, name FROM item WHERE ctid = '(0,3)' OR ctid = '(1,2)'",
    "SELECT count(*) FROM item WHERE ctid < '(2,1)'",
    "SELECT * FROM kinds ORDER BY kind",
    "SELECT generate_series(1, kind), label FROM kind",
    "SELECT DISTINCT ON (kind) kind, id FROM item ORDER BY kind, id DESC",
    "SELECT json_agg(name), jsonb_object_agg(id, at) FROM item WHERE id < 4",
    "SELECT i FROM item i WHERE id = 6",
    "SELECT 1 FROM item WHERE false",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM item",
    "SELECT now() - at < interval '1 y', current_user, id FROM item WHERE id < 4",
];

#[test]
fn whole_queries_are_executed_by_the_tags_replica() {
    let cluster = cluster(3, &[]);
    let mut client = tagged(&cluster);
    let node = place(&cluster, &mut client);
    for query in WHOLE {
        let before = cluster.event(PRIMARY, "WholeQueryCount");
        Differential::new(&mut client)
            .between(ALONE, "SET LOCAL enable_parallel_replicas = 1")
            .check(query);
        let sent = cluster.event(PRIMARY, "WholeQueryCount") - before;
        assert_eq!(sent, 1, "not sent whole: {query}");
        let plan = explain(&mut client, "ANALYZE, COSTS OFF, TIMING OFF", query);
        assert!(
            plan.contains(&format!("Executed By: {}\n", cluster.name(node))),
            "{plan}"
        );
        for options in ["VERBOSE", "ANALYZE, VERBOSE, BUFFERS, SETTINGS, WAL"] {
            explain(&mut client, options, query);
        }
    }
    for other in cluster.standbys().filter(|other| *other != node) {
        assert_eq!(cluster.event(other, "ServedCount"), 0);
    }
    assert_eq!(cluster.event(PRIMARY, "LostCount"), 0);
    assert_eq!(cluster.event(PRIMARY, "LocalFallbackCount"), 0);
    for standby in cluster.standbys() {
        let log = cluster.log(standby);
        assert!(!log.contains(" leak"), "{log}");
    }

    // Not all are sent to one replica by chance.
    client
        .batch_execute("SET parallel_replicas.replica_tag = 'x'")
        .unwrap();
    let mut places = std::collections::BTreeSet::new();
    for tag in 0..20 {
        client
            .batch_execute(&format!("SET parallel_replicas.replica_tag = 'tag {tag}'"))
            .unwrap();
        let plan = explain(&mut client, "ANALYZE, COSTS OFF", WHOLE[0]);
        let by = plan.split("Executed By: ").nth(1).expect("it tells");
        places.insert(by.lines().next().unwrap_or_default().to_owned());
    }
    assert_eq!(places.len(), 3, "{places:?}");
    damage_check(&cluster);
}

/// What cannot be sent is executed here, and EXPLAIN tells why.
#[test]
fn what_is_not_sent_has_a_reason() {
    let cluster = cluster(1, &[]);
    let mut client = tagged(&cluster);
    client
        .batch_execute(
            "CREATE TEMP TABLE mine(i int); CREATE UNLOGGED TABLE unlogged(i int);
             CREATE FUNCTION own_abs(int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
                 AS 'BEGIN RETURN abs($1); END';
             CREATE EXTENSION btree_gist; CREATE TABLE foreign_index(i int, t text);
             INSERT INTO foreign_index SELECT i, i FROM generate_series(1, 3000) i;
             CREATE INDEX ON foreign_index USING gist (i); ANALYZE foreign_index;
             CREATE TABLE parts(k int) PARTITION BY RANGE (k);
             CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
             CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        )
        .unwrap();
    for (query, reason) in [
        ("SELECT * FROM mine", "temporary_table"),
        ("SELECT * FROM unlogged", "unlogged_table"),
        (
            "SELECT id FROM item WHERE id < 9 FOR UPDATE",
            "not_parallel_safe",
        ),
        ("SELECT random(), id FROM item", "function"),
        ("SELECT own_abs(id) FROM item", "function"),
        (
            "SELECT k.kind FROM kind k JOIN pg_class c ON c.relname = k.label",
            "catalog_table",
        ),
        ("SELECT (id, name) FROM item", "record_output"),
        (
            "SELECT count(*) FROM item TABLESAMPLE SYSTEM (50)",
            "tablesample",
        ),
        ("SELECT pg_sleep(0) FROM kind", "function"),
        ("SELECT i FROM foreign_index WHERE i < 5", "access_method"),
        (
            "SELECT * FROM parts WHERE k = (SELECT max(kind) FROM kind)",
            "plan_node",
        ),
        (
            "WITH x AS (INSERT INTO kind VALUES (99, 'x') RETURNING kind) SELECT * FROM x, item",
            "not_parallel_safe",
        ),
    ] {
        let plan = explain_json(&mut client, query);
        assert!(
            plan.contains(&format!("\"Parallel Replicas Reason\": \"{reason}\"")),
            "{reason}: {query}\n{plan}"
        );
    }
    // Nothing to tell of where no table is read that could be sent.
    for query in [
        "SELECT 1",
        "SELECT relname FROM pg_class",
        "SELECT * FROM generate_series(1, 3)",
    ] {
        let plan = explain_json(&mut client, query);
        assert!(!plan.contains("Parallel Replicas"), "{plan}");
    }
    let sent = |cluster: &Cluster| cluster.event(PRIMARY, "WholeQueryCount");
    let before = sent(&cluster);
    // A transaction that has written sees its own rows.
    let mut transaction = client.transaction().unwrap();
    transaction
        .execute("INSERT INTO kind VALUES (50, 'mine')", &[])
        .unwrap();
    let seen = transaction
        .query_one("SELECT label FROM kind WHERE kind = 50", &[])
        .unwrap();
    assert_eq!(seen.get::<_, String>(0), "mine");
    transaction.rollback().unwrap();
    assert_eq!(sent(&cluster), before);
    for (begin, reason) in [
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", "serializable"),
        ("BEGIN; INSERT INTO kind VALUES (51, 'x')", "own_xid"),
    ] {
        client.batch_execute(begin).unwrap();
        let plan = explain_json(&mut client, "SELECT label FROM kind WHERE kind = 5");
        assert!(plan.contains(&format!("Reason\": \"{reason}\"")), "{plan}");
        client.batch_execute("ROLLBACK").unwrap();
    }
    // Cursors fetch in portions; a session that resets its tag is no longer routed, also with what it
    // has prepared.
    client
        .batch_execute("BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id FROM item ORDER BY id")
        .unwrap();
    for (fetch, expected) in [
        ("FETCH 2 FROM c", vec![1, 2]),
        ("FETCH FORWARD 2 FROM c", vec![3, 4]),
        ("FETCH BACKWARD 2 FROM c", vec![3, 2]),
    ] {
        let rows = client.query(fetch, &[]).unwrap();
        let ids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(ids, expected);
    }
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(sent(&cluster), before);
    client
        .batch_execute("PREPARE p(int) AS SELECT name FROM item WHERE id = $1; SET plan_cache_mode = force_generic_plan")
        .unwrap();
    for (tag, number) in [("amy", 1), ("", 0), ("bob", 1)] {
        client
            .batch_execute(&format!("SET parallel_replicas.replica_tag = '{tag}'"))
            .unwrap();
        let before = sent(&cluster);
        assert_eq!(text(&mut client, "EXECUTE p(17)"), "name17");
        assert_eq!(sent(&cluster) - before, number, "{tag}");
    }
    client
        .batch_execute("SET max_parallel_replicas = 0")
        .unwrap();
    let plan = explain_json(&mut client, "SELECT label FROM kind WHERE kind = 5");
    assert!(plan.contains("\"no_replica_allowed\""), "{plan}");
    damage_check(&cluster);
}

fn explain_json(client: &mut Client, query: &str) -> String {
    let messages = client
        .simple_query(&format!("EXPLAIN (ANALYZE, FORMAT JSON) {query}"))
        .unwrap_or_else(|error| panic!("{error:?}\n{query}"));
    messages
        .iter()
        .filter_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .collect()
}

/// Settings, role, parameters and errors are the session's own.
#[test]
fn the_replica_executes_in_the_sessions_terms() {
    let cluster = cluster(1, &[]);
    let mut client = tagged(&cluster);
    client
        .batch_execute(
            "CREATE SCHEMA other; CREATE TABLE other.item AS SELECT 1 AS id, 'other' AS name, now() AS at;
             CREATE ROLE reader; GRANT SELECT ON item TO reader; GRANT parallel_replicas_link TO reader;
             GRANT USAGE ON SCHEMA other TO reader;
             ALTER TABLE item ENABLE ROW LEVEL SECURITY;
             CREATE POLICY few ON item TO reader USING (id < 4 AND current_user = 'reader');
             GRANT USAGE ON FOREIGN SERVER standby1 TO reader;
             CREATE USER MAPPING FOR reader SERVER standby1 OPTIONS (user 'postgres', password_required 'false');
             ANALYZE other.item",
        )
        .unwrap_or_else(|error| panic!("{error:?}"));
    cluster.wait_all_caught_up();
    let texts =
        "SELECT at::text, to_char(at, 'TMMonth HH24 TZ'), at::date::text, (at - now())::text < ''
          FROM item WHERE id BETWEEN 1 AND 40";
    for (settings, query) in [
        ("SET LOCAL TimeZone = 'Asia/Kolkata'", texts),
        (
            "SET LOCAL TimeZone = 'America/St_Johns'; SET LOCAL DateStyle = 'SQL, DMY'",
            texts,
        ),
        (
            "SET LOCAL DateStyle = 'German'; SET LOCAL IntervalStyle = 'iso_8601'",
            texts,
        ),
        ("SET LOCAL search_path = other", "SELECT id, name FROM item"),
        (
            "SET LOCAL search_path = public",
            "SELECT count(*), current_setting('search_path') FROM item",
        ),
        (
            "SET LOCAL extra_float_digits = 0",
            "SELECT (id / 3.0::float8)::text FROM item WHERE id < 50",
        ),
        (
            "SET LOCAL bytea_output = 'escape'",
            "SELECT name::bytea::text FROM item WHERE id < 50",
        ),
        ("SET LOCAL ROLE reader", "SELECT id, current_user FROM item"),
        (
            "SET LOCAL work_mem = '64kB'",
            "SELECT a.name || b.name FROM item a, item b WHERE b.id < 3 ORDER BY 1",
        ),
    ] {
        let before = cluster.event(PRIMARY, "WholeQueryCount");
        let rows = Differential::new(&mut client)
            .before(settings)
            .between(ALONE, "SET LOCAL enable_parallel_replicas = 1")
            .check(query);
        assert_eq!(
            cluster.event(PRIMARY, "WholeQueryCount") - before,
            1,
            "{settings}: {query}"
        );
        assert!(!rows.rows.is_empty(), "{settings}: {query}");
    }
    // No rights: the same error as without.
    client
        .batch_execute("REVOKE SELECT ON item FROM reader")
        .unwrap();
    Differential::new(&mut client)
        .before("SET LOCAL ROLE reader")
        .between(ALONE, "SET LOCAL enable_parallel_replicas = 1")
        .check_same_error("SELECT id FROM item");
    let before = cluster.event(PRIMARY, "LostCount");
    let message = Differential::new(&mut client)
        .between(ALONE, "SET LOCAL enable_parallel_replicas = 1")
        .check_same_error("SELECT 10 / (id - 7) FROM item WHERE id < 9")
        .message;
    assert_eq!(message, "division by zero");
    assert_eq!(
        cluster.event(PRIMARY, "LostCount") - before,
        1,
        "the replica met it first"
    );
    // The query's fault is not counted as the replica's.
    assert_eq!(errors_and_slowdowns(&mut client), "0 0");
    // Parameters of every kind.
    let statement = client
        .prepare("SELECT id, $2::text || name FROM item WHERE id = ANY ($1) ORDER BY id LIMIT $3")
        .unwrap();
    for limit in 0..8_i64 {
        let rows = client
            .query(&statement, &[&vec![3, 1, 2], &"x", &limit])
            .unwrap();
        assert_eq!(rows.len(), limit.min(3) as usize);
        assert!(
            rows.iter()
                .all(|row| row.get::<_, String>(1) == format!("xname{}", row.get::<_, i32>(0)))
        );
    }
    // CREATE TABLE AS, COPY and queries in functions.
    client
        .batch_execute(
            "CREATE FUNCTION number() RETURNS bigint LANGUAGE plpgsql AS
                 'DECLARE n bigint; BEGIN SELECT count(*) INTO n FROM item; RETURN n; END';
             CREATE FUNCTION first() RETURNS int LANGUAGE sql AS
                 'SELECT id FROM item ORDER BY id'",
        )
        .unwrap();
    for statement in [
        "CREATE TABLE copy AS SELECT id, name FROM item WHERE kind = 3",
        "COPY (SELECT id FROM item WHERE id < 3) TO '/dev/null'",
        "DO 'BEGIN ASSERT (SELECT count(*) FROM copy) = 500; END'",
        "DO 'BEGIN ASSERT number() = 5000; END'",
        "DO 'BEGIN ASSERT first() = 1; END'",
    ] {
        let before = cluster.event(PRIMARY, "WholeQueryCount");
        client.batch_execute(statement).unwrap();
        let sent = cluster.event(PRIMARY, "WholeQueryCount") - before;
        assert_eq!(sent, 1, "{statement}");
    }
    // But not those of functions that a query calls, for each row.
    client
        .batch_execute("SET parallel_replicas.replica_tag = 'other'")
        .unwrap();
    for calls in [
        "SELECT sum(number() + first()) = 50010 FROM generate_series(1, 10)",
        // The plan that was made for this one must not be used in that way, either.
        "DO 'BEGIN ASSERT number() = 5000; END'",
        "SELECT sum(number() + first()) = 50010 FROM generate_series(1, 10)",
    ] {
        let before = cluster.event(PRIMARY, "WholeQueryCount");
        client.batch_execute(calls).unwrap();
        let sent = cluster.event(PRIMARY, "WholeQueryCount") - before;
        assert!(
            sent <= 1 && (sent == 0 || calls.starts_with("DO")),
            "{sent}: {calls}"
        );
    }
    in_portions(&cluster, &mut client);
    damage_check(&cluster);
}

/// A client that takes its rows in portions, and does other things meanwhile, gets those of the time
/// when it began.
fn in_portions(cluster: &Cluster, client: &mut Client) {
    let before = cluster.event(PRIMARY, "WholeQueryCount");
    let mut transaction = client.transaction().unwrap();
    let statement = transaction
        .prepare("SELECT id FROM item ORDER BY id")
        .unwrap();
    let portal = transaction.bind(&statement, &[]).unwrap();
    let mut ids: Vec<i32> = Vec::new();
    loop {
        let rows = transaction.query_portal(&portal, 700).unwrap();
        ids.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        if rows.len() < 700 {
            break;
        }
        let mut savepoint = transaction.transaction().unwrap();
        savepoint
            .batch_execute("DELETE FROM item WHERE id > 2000; SELECT count(*) FROM kind")
            .unwrap();
        assert!(savepoint.batch_execute("SELECT 1 / 0").is_err());
        savepoint.rollback().unwrap();
        transaction
            .batch_execute("DELETE FROM item WHERE id > 4000")
            .unwrap();
    }
    assert_eq!(ids, (1..=5000).collect::<Vec<i32>>());
    transaction.rollback().unwrap();
    assert_eq!(cluster.event(PRIMARY, "WholeQueryCount") - before, 1);
}

fn errors_and_slowdowns(client: &mut Client) -> String {
    text(
        client,
        "SELECT errors_count || ' ' || slowdowns_count FROM parallel_replicas.replicas",
    )
}

/// A plan with workers of this server's own is planned anew without them.
#[test]
fn a_plan_with_local_workers_is_planned_serially() {
    let cluster = cluster(1, &[]);
    let mut client = tagged(&cluster);
    client
        .batch_execute(
            "CREATE FUNCTION own(int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
                 AS 'BEGIN RETURN $1; END';
             SET min_parallel_table_scan_size = 0; SET min_parallel_index_scan_size = 0;
             SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
             SET parallel_replicas.setup_cost = 1e9",
        )
        .unwrap();
    let query = "SELECT count(*) FROM item";
    client
        .batch_execute("SET enable_parallel_replicas = 0")
        .unwrap();
    assert!(explain(&mut client, "COSTS OFF", query).contains("Gather"));
    client
        .batch_execute("SET enable_parallel_replicas = 1")
        .unwrap();
    let plan = explain(&mut client, "ANALYZE", query);
    assert!(
        plan.contains("Executed By: standby1") && !plan.contains("Gather"),
        "{plan}"
    );
    // What is not sent keeps its workers.
    let plan = explain(
        &mut client,
        "COSTS OFF",
        "SELECT count(*) FROM item WHERE own(id) > 0",
    );
    assert!(
        plan.contains("Gather") && !plan.contains("ParallelReplicas"),
        "{plan}"
    );
}

/// Rows of a query that takes seconds, and how to know that a replica executes it.
const SLOW: &str = "SELECT a.id, b.kind FROM item a, kind b
     WHERE length(repeat(a.name, 20000)) > b.kind ORDER BY 1, 2";

/// Whatever becomes of the replica, every row comes exactly once.
#[test]
fn a_replica_that_is_lost_costs_the_query_nothing_but_time() {
    let mut cluster = cluster(1, &[("jit", "off")]);
    let expected = Rows::fetch(&mut cluster.connect(PRIMARY), SLOW).unwrap();
    for way in ["terminate", "kill", "freeze", "promote"] {
        let mut client = tagged(&cluster);
        client
            .batch_execute("SET parallel_replicas.stall_timeout = '2s'")
            .unwrap();
        wait_until(SOON, "the replica is usable", || {
            let usable = "SELECT usable::text FROM parallel_replicas.replicas";
            text(&mut client, usable) == "true"
        });
        let lost = cluster.event(PRIMARY, "LostCount");
        let query = thread::spawn(move || Rows::fetch(&mut client, SLOW));
        let process = cluster.serving(1);
        match way {
            "terminate" => signal(process, Signal::TERM),
            "kill" => cluster.kill_9(1),
            "freeze" => cluster.sigstop(1),
            _ => cluster.promote(1),
        }
        let rows = query.join().unwrap().expect("the query succeeds");
        assert_eq!(expected.difference(&rows, true), None, "{way}");
        match way {
            "kill" => cluster.start(1),
            "freeze" => cluster.sigcont(1),
            _ => {}
        }
        if way == "promote" {
            // It was still a standby when it took the snapshot, and has had its rows from then.
            continue;
        }
        assert_eq!(cluster.event(PRIMARY, "LostCount") - lost, 1, "{way}");
        cluster.wait_streaming(1);
        cluster.wait_caught_up(1);
        damage_check(&cluster);
    }
}

/// The connection breaks while rows are on their way.
#[test]
fn a_link_that_breaks_between_rows_gives_no_row_twice() {
    let cluster = cluster(1, &[]);
    let proxy = Proxy::start(cluster.port(1));
    cluster.psql(
        PRIMARY,
        &format!(
            "SELECT parallel_replicas.add_replica('proxy', '127.0.0.1', {}, 'proxied');
             CREATE TABLE wide AS SELECT i, repeat(i::text, 100) AS pad FROM generate_series(1, 4000) i;
             CREATE INDEX ON wide(i); ANALYZE wide",
            proxy.port()
        ),
    );
    cluster.wait_all_caught_up();
    let query = "SELECT * FROM wide ORDER BY i";
    let expected = Rows::fetch(&mut cluster.connect(PRIMARY), query).unwrap();
    let session = || {
        let mut client = tagged(&cluster);
        client
            .batch_execute(
                "SET cluster_for_parallel_replicas = 'proxied'; SET parallel_replicas.setup_cost = 1e9;
                 SET parallel_replicas.idle_link_timeout = 0; SET parallel_replicas.stall_timeout = '5s'",
            )
            .unwrap();
        client
    };
    let whole = {
        let before = proxy.to_client_bytes();
        let rows = Rows::fetch(&mut session(), query).unwrap();
        assert_eq!(expected.difference(&rows, true), None);
        proxy.to_client_bytes() - before
    };
    assert!(whole > 1_000_000, "{whole}");
    let mut lost = 0;
    for tenth in 0..10 {
        for fault in [
            Fault::Cut {
                after_bytes: whole * tenth / 10,
            },
            Fault::HalfClose {
                after_bytes: whole * tenth / 10,
            },
        ] {
            let mut client = session();
            let before = cluster.event(PRIMARY, "LostCount");
            proxy.set(fault);
            let rows = Rows::fetch(&mut client, query).unwrap();
            proxy.set(Fault::None);
            assert_eq!(expected.difference(&rows, true), None, "{fault:?}");
            lost += cluster.event(PRIMARY, "LostCount") - before;
        }
    }
    assert!(lost >= 10, "only {lost} links were lost in mid-query");
    damage_check(&cluster);
}

/// A replica that is late is not waited for longer than allowed; that it was late is counted, and
/// forgotten with time.
#[test]
fn a_replica_that_is_late_is_counted_as_slow() {
    let cluster = cluster(1, &[]);
    let mut client = tagged(&cluster);
    client
        .batch_execute(
            "SET parallel_replicas.replay_wait_timeout = '100ms';
             SET distributed_replica_error_half_life = '1h'",
        )
        .unwrap();
    let query = "SELECT count(*)::text FROM kind";
    assert_eq!(text(&mut client, query), "13");
    assert_eq!(errors_and_slowdowns(&mut client), "0 0");
    cluster.pause_replay(1);
    for late in 1..=4 {
        let before = cluster.event(PRIMARY, "RefusedCount");
        client
            .batch_execute(&format!("INSERT INTO kind VALUES ({}, 'late')", 100 + late))
            .unwrap();
        assert_eq!(text(&mut client, query), (13 + late).to_string());
        assert_eq!(cluster.event(PRIMARY, "RefusedCount") - before, 1);
        assert_eq!(errors_and_slowdowns(&mut client), format!("0 {late}"));
    }
    let recovery = "SELECT (estimated_recovery_time > 3600)::text FROM parallel_replicas.replicas";
    assert_eq!(text(&mut client, recovery), "true");
    // Divided queries count it as well.
    client
        .batch_execute(
            "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
             SET client_min_messages = error; INSERT INTO kind VALUES (200, 'late')",
        )
        .unwrap();
    assert_eq!(text(&mut client, query), "18");
    assert_eq!(errors_and_slowdowns(&mut client), "0 5");
    cluster.resume_replay(1);
    cluster.wait_all_caught_up();
    client
        .batch_execute("SET distributed_replica_error_half_life = '1s'")
        .unwrap();
    let mut seen = std::collections::BTreeSet::new();
    wait_until(SOON, "the slowness is forgotten", || {
        let count = errors_and_slowdowns(&mut client);
        seen.insert(count.clone());
        count == "0 0"
    });
    assert!(
        seen.iter()
            .all(|count| ["0 5", "0 2", "0 1", "0 0"].contains(&count.as_str())),
        "{seen:?}"
    );
    let served = cluster.event(1, "ServedCount");
    // Whole again, so by one process.
    client
        .batch_execute("RESET parallel_replicas.debug_force; RESET parallel_replicas_local_plan")
        .unwrap();
    client.batch_execute(TAGGED).unwrap();
    assert_eq!(text(&mut client, query), "18");
    assert_eq!(cluster.event(1, "ServedCount") - served, 1);
    damage_check(&cluster);
}

/// Rows leave a replica when its scans have ended: a coordinator that does not read holds no page there,
/// so replay goes on.
#[test]
fn a_coordinator_that_does_not_read_holds_up_nobody() {
    let cluster = cluster(1, &[("max_standby_streaming_delay", "-1"), ("jit", "off")]);
    cluster.psql(
        PRIMARY,
        "CREATE TABLE big(i int, pad text); ALTER TABLE big ALTER pad SET STORAGE PLAIN;
         INSERT INTO big SELECT i, repeat('x', 900) FROM generate_series(1, 200000) i;
         CREATE INDEX ON big(i); ANALYZE big;
         DELETE FROM big WHERE i % 7 = 0",
    );
    cluster.wait_all_caught_up();
    let mut client = tagged(&cluster);
    client
        .batch_execute("SET parallel_replicas.setup_cost = 1e9; SET work_mem = '1GB'")
        .unwrap();
    let coordinator: i32 = text(&mut client, "SELECT pg_backend_pid()::text")
        .parse()
        .unwrap();
    let query = thread::spawn(move || {
        let rows = client
            .query("SELECT i, pad FROM big", &[])
            .expect("the query succeeds");
        rows.iter()
            .map(|row| i64::from(row.get::<_, i32>(0)))
            .sum::<i64>()
    });
    cluster.serving(1);
    signal(coordinator, Signal::STOP);
    let mut observer = cluster.connect(1);
    wait_until(
        SOON,
        "the replica waits for the coordinator to read",
        || {
            text(
                &mut observer,
                "SELECT count(*)::text FROM pg_stat_activity
             WHERE query LIKE 'fragment of query %' AND wait_event_type = 'Extension'",
            ) == "1"
        },
    );
    // Every page has rows that nobody sees, so each is pruned with a lock that waits for pins.
    cluster.psql(PRIMARY, "VACUUM (INDEX_CLEANUP off) big");
    cluster.wait_caught_up(1);
    signal(coordinator, Signal::CONT);
    let expected: i64 = (1..=200_000).filter(|i| i % 7 != 0).sum();
    assert_eq!(query.join().unwrap(), expected);
    assert_eq!(cluster.event(PRIMARY, "WholeQueryCount"), 1);
    damage_check(&cluster);
}

/// The tag's replica is down: the query is executed here, then the tag moves on.
#[test]
fn a_dead_replicas_tags_move_on() {
    let mut cluster = cluster(2, &[("parallel_replicas.monitor_interval", "500ms")]);
    let mut client = tagged(&cluster);
    let node = place(&cluster, &mut client);
    let query = "SELECT count(*)::text FROM kind";
    assert_eq!(text(&mut client, query), "13");
    cluster.stop(node, StopMode::Immediate);
    assert_eq!(text(&mut client, query), "13");
    wait_until(SOON, "the tag leads elsewhere", || {
        place(&cluster, &mut client) != node
    });
    let next = place(&cluster, &mut client);
    let before = cluster.event(next, "ServedCount");
    for _ in 0..10 {
        assert_eq!(text(&mut client, query), "13");
    }
    assert_eq!(cluster.event(next, "ServedCount") - before, 10);
    cluster.start(node);
    wait_until(SOON, "the tag leads back", || {
        place(&cluster, &mut client) == node
    });
    let before = cluster.event(node, "ServedCount");
    assert_eq!(text(&mut client, query), "13");
    assert_eq!(cluster.event(node, "ServedCount") - before, 1);
    // Cancelled and timed out while the replica works.
    client
        .batch_execute("SET statement_timeout = '700ms'")
        .unwrap();
    let error = client.simple_query(SLOW).expect_err("it takes seconds");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"));
    let mut observer = cluster.connect(node);
    wait_until(
        Duration::from_secs(10),
        "the replica's process has ended",
        || {
            text(
                &mut observer,
                "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'fragment of query %'
               AND state = 'active'",
            ) == "0"
        },
    );
    damage_check(&cluster);
}
