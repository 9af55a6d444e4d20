//! The shapes that queries have: each gives the rows that it gives without replicas, replicas take part in
//! it, and EXPLAIN says so; and those in which they cannot say why.

use parallel_replicas_tests::{Cluster, Differential, PRIMARY, damage_check, text};
use postgres::Client;

/// Everything is shipped, and only replicas read.
const FORCED: &str =
    "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
     SET parallel_replicas.granule_blocks = 4";

const OFF: &str = "SET LOCAL parallel_replicas.debug_force = off";

const TABLES: &str = "
    CREATE TABLE sale AS SELECT i AS id, i % 50 AS shop, i % 7 AS kind, (i * 37 % 1000)::numeric / 10 AS price
        FROM generate_series(1, 20000) i;
    CREATE TABLE shop AS SELECT i AS id, 'shop ' || i AS name, i % 5 AS town FROM generate_series(0, 49) i;
    CREATE TABLE parted (id int, v int) PARTITION BY RANGE (id);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10000);
    CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10000) TO (20001);
    INSERT INTO parted SELECT i, i % 9 FROM generate_series(1, 20000) i;
    CREATE TABLE base (id int, v int); CREATE TABLE derived (extra int) INHERITS (base);
    INSERT INTO base SELECT i, i % 4 FROM generate_series(1, 9000) i;
    INSERT INTO derived SELECT -i, i % 4, 1 FROM generate_series(1, 9000) i;
    CREATE VIEW dear AS SELECT * FROM sale WHERE price > 50;
    CREATE VIEW barred WITH (security_barrier) AS SELECT * FROM sale WHERE kind <> 3;
    CREATE FUNCTION sql_count(int) RETURNS bigint LANGUAGE sql STABLE AS
        'SELECT count(*) FROM sale WHERE kind = $1 AND price > 10';
    CREATE FUNCTION sql_rows() RETURNS TABLE (k int, n bigint) LANGUAGE sql VOLATILE AS
        'SELECT kind, count(*) FROM sale GROUP BY kind';
    CREATE FUNCTION plpgsql_count(k int) RETURNS bigint LANGUAGE plpgsql STABLE AS
        'DECLARE n bigint; BEGIN SELECT count(*) INTO n FROM sale WHERE kind = k; RETURN n; END';
    CREATE FUNCTION plpgsql_rows() RETURNS TABLE (k int, n bigint) LANGUAGE plpgsql STABLE AS
        'BEGIN RETURN QUERY SELECT kind, count(*) FROM sale GROUP BY kind; END';
    ANALYZE";

/// In which replicas take part, and EXPLAIN shows it; with what the plan has if it is of that shape.
const SHIPPED: [(&str, &str, &str); 30] = [
    (
        "GROUPING SETS",
        "(GranuleScan) on sale",
        "SELECT shop, kind, sum(price) FROM sale GROUP BY GROUPING SETS ((shop), (kind), ())",
    ),
    (
        "ROLLUP",
        "(GranuleScan) on sale",
        "SELECT shop, kind, count(*) FROM sale GROUP BY ROLLUP (shop, kind)",
    ),
    (
        "CUBE",
        "(GranuleScan) on sale",
        "SELECT shop, kind, count(*) FROM sale GROUP BY CUBE (shop, kind)",
    ),
    (
        "window over aggregation",
        "WindowAgg",
        "SELECT kind, n, rank() OVER (ORDER BY n DESC, kind) FROM
            (SELECT kind, count(*) AS n FROM sale WHERE shop < 20 GROUP BY kind) s",
    ),
    (
        "window",
        "WindowAgg",
        "SELECT id, sum(price) OVER (PARTITION BY shop ORDER BY id) FROM sale WHERE kind = 2",
    ),
    (
        "DISTINCT",
        "(GranuleScan) on sale",
        "SELECT DISTINCT shop, kind FROM sale",
    ),
    (
        "count(DISTINCT)",
        "(GranuleScan) on sale",
        "SELECT count(DISTINCT price), count(*) FROM sale",
    ),
    (
        "top-N",
        "Limit",
        "SELECT id, price FROM sale ORDER BY price DESC, id LIMIT 10",
    ),
    (
        "LIMIT with OFFSET",
        "Limit",
        "SELECT id FROM sale WHERE kind = 1 ORDER BY id LIMIT 5 OFFSET 20",
    ),
    (
        "UNION ALL",
        "(GranuleScan) on parted_2",
        "SELECT count(*) FROM (SELECT id FROM sale UNION ALL SELECT id FROM parted) s",
    ),
    (
        "UNION",
        "(GranuleScan) on parted_2",
        "SELECT kind FROM sale UNION SELECT v FROM parted",
    ),
    (
        "INTERSECT",
        "SetOp",
        "SELECT id FROM sale WHERE kind = 1 INTERSECT SELECT id FROM parted WHERE v = 1",
    ),
    (
        "EXCEPT",
        "SetOp",
        "SELECT id FROM sale WHERE kind = 1 EXCEPT SELECT id FROM parted WHERE v = 1",
    ),
    (
        "CTE materialised",
        "CTE Scan",
        "WITH c AS MATERIALIZED (SELECT shop, count(*) AS n FROM sale GROUP BY shop)
         SELECT max(n), min(n) FROM c",
    ),
    (
        "CTE not materialised",
        "InitPlan",
        "WITH c AS NOT MATERIALIZED (SELECT * FROM sale WHERE kind = 1)
         SELECT (SELECT count(*) FROM c), (SELECT sum(price) FROM c)",
    ),
    (
        "InitPlan",
        "InitPlan",
        "SELECT count(*) FROM sale WHERE price > (SELECT avg(price) FROM sale)",
    ),
    (
        "hashed subplan above",
        "hashed SubPlan",
        "SELECT kind, n FROM (SELECT kind, count(*) AS n FROM sale GROUP BY kind OFFSET 0) s
         WHERE n NOT IN (SELECT id FROM shop)",
    ),
    (
        "LATERAL",
        "(GranuleScan) on sale",
        "SELECT s.name, l.n FROM shop s, LATERAL (SELECT s.town + 1 AS n) l, sale
         WHERE sale.shop = s.id AND sale.kind = 1",
    ),
    (
        "LATERAL function",
        "Function Scan",
        "SELECT kind, count(*), sum(n) FROM sale, LATERAL generate_series(1, kind) n GROUP BY kind",
    ),
    (
        "LATERAL VALUES",
        "Values Scan",
        "SELECT v.x, count(*) FROM sale s, LATERAL (VALUES (s.kind), (s.shop)) v(x) GROUP BY v.x",
    ),
    (
        "LATERAL aggregate",
        "(GranuleScan) on sale",
        "SELECT s.id, l.n FROM sale s, LATERAL (SELECT count(*) AS n FROM shop WHERE id < s.kind) l WHERE s.shop = 3",
    ),
    (
        "joins",
        "(GranuleScan) on sale",
        "SELECT s.name, count(*), sum(price) FROM sale LEFT JOIN shop s ON s.id = shop AND town < 3
         WHERE EXISTS (SELECT FROM parted p WHERE p.id = sale.id AND v = 2) GROUP BY s.name",
    ),
    (
        "anti join",
        "Anti Join",
        "SELECT count(*) FROM sale WHERE NOT EXISTS (SELECT FROM shop WHERE shop.id = sale.id)",
    ),
    (
        "plan-time pruning",
        "(GranuleScan) on parted_1",
        "SELECT v, count(*) FROM parted WHERE id < 5000 GROUP BY v",
    ),
    (
        "partitions",
        "(GranuleScan) on parted_2",
        "SELECT v, count(*) FROM parted GROUP BY v",
    ),
    (
        "inheritance",
        "(GranuleScan) on derived",
        "SELECT v, count(*), min(id) FROM base GROUP BY v",
    ),
    (
        "view",
        "(GranuleScan) on sale",
        "SELECT kind, count(*) FROM dear GROUP BY kind",
    ),
    (
        "security-barrier view",
        "(GranuleScan) on sale",
        "SELECT kind, count(*) FROM barred WHERE price > 20 GROUP BY kind",
    ),
    (
        "FILTER and HAVING",
        "(GranuleScan) on sale",
        "SELECT shop, count(*) FILTER (WHERE kind = 1) FROM sale GROUP BY shop HAVING max(price) > 90",
    ),
    (
        "correlated subquery above",
        "SubPlan",
        "SELECT kind, (SELECT name FROM shop WHERE shop.id = s.kind) FROM
            (SELECT kind FROM sale GROUP BY kind OFFSET 0) s",
    ),
];

fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::with_two_replicas();
    let mut client = cluster.connect(PRIMARY);
    run(&mut client, TABLES);
    cluster.wait_all_caught_up();
    (cluster, client)
}

#[track_caller]
fn run(client: &mut Client, script: &str) {
    client
        .batch_execute(script)
        .unwrap_or_else(|error| panic!("{error:?}\n{script}"));
}

fn used(client: &mut Client) -> u64 {
    let query = "SELECT value::text FROM parallel_replicas.events WHERE event = 'ParallelReplicasUsedCount'";
    text(client, query).parse().expect("a number")
}

#[track_caller]
fn plan(client: &mut Client, query: &str) -> String {
    client
        .query(&format!("EXPLAIN (COSTS OFF) {query}"), &[])
        .unwrap_or_else(|error| panic!("{error:?}\n{query}"))
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect()
}

#[test]
fn replicas_take_part_in_each_shape() {
    let (cluster, mut client) = cluster();
    run(&mut client, FORCED);
    for (shape, part, query) in SHIPPED {
        let plan = plan(&mut client, query);
        for part in ["Custom Scan (ParallelReplicas)", part] {
            assert!(plan.contains(part), "{shape}: {part}\n{plan}");
        }
        if shape == "plan-time pruning" {
            assert!(!plan.contains("parted_2"), "{plan}");
        }
        let before = used(&mut client);
        let mut compared = Differential::new(&mut client).between(OFF, FORCED);
        if part == "Limit" {
            compared = compared.ordered();
        }
        compared.check(query);
        assert!(used(&mut client) > before, "{shape}: no replica took part");
    }
    damage_check(&cluster);
}

#[test]
fn prepared_statements_and_functions_are_shipped() {
    let (cluster, mut client) = cluster();
    run(&mut client, FORCED);
    run(
        &mut client,
        "PREPARE p (int, numeric) AS SELECT kind, count(*) FROM sale
         WHERE shop = $1 AND price > $2 GROUP BY kind",
    );
    for mode in ["force_custom_plan", "force_generic_plan"] {
        run(&mut client, &format!("SET plan_cache_mode = {mode}"));
        let plan = plan(&mut client, "EXECUTE p (3, 20)");
        assert!(plan.contains("Custom Scan (ParallelReplicas)"), "{plan}");
        // A kept plan goes on without replicas when they are switched off.
        for query in ["EXECUTE p (3, 20)", "EXECUTE p (4, 50)", "EXECUTE p (5, 1)"] {
            let before = used(&mut client);
            Differential::new(&mut client)
                .between(OFF, FORCED)
                .check(query);
            assert!(used(&mut client) > before, "{mode}, {query}");
        }
    }
    run(&mut client, "RESET plan_cache_mode");
    for query in ["SELECT * FROM sql_rows()", "SELECT * FROM plpgsql_rows()"] {
        // PL/pgSQL keeps the plan of the first call.
        run(&mut client, query);
        let before = used(&mut client);
        Differential::new(&mut client)
            .between(OFF, FORCED)
            .check(query);
        assert!(used(&mut client) > before, "{query}");
    }
    // Where it wants a value, PostgreSQL asks for one row or two, and for no other in parallel.
    let before = used(&mut client);
    for query in ["SELECT sql_count(1)", "SELECT plpgsql_count(2)"] {
        Differential::new(&mut client)
            .between(OFF, FORCED)
            .check(query);
    }
    assert_eq!(used(&mut client), before);
    damage_check(&cluster);
}

/// PostgreSQL does not execute a cursor's query in parallel, because it may stop halfway.
#[test]
fn cursors_are_local_and_right() {
    let (cluster, mut client) = cluster();
    run(&mut client, FORCED);
    let before = used(&mut client);
    run(
        &mut client,
        "BEGIN; DECLARE c CURSOR FOR SELECT count(*)::text FROM sale WHERE kind = 1",
    );
    let fetched = text(&mut client, "FETCH c");
    run(&mut client, "COMMIT");
    assert_eq!(used(&mut client), before);
    assert_eq!(
        text(
            &mut client,
            "SELECT count(*)::text FROM sale WHERE kind = 1"
        ),
        fetched
    );
    damage_check(&cluster);
}

/// A scan whose rows are asked of a subplan one by one stays here; the subplan itself may be shipped.
#[test]
fn scans_with_subplans_are_kept_out() {
    let (cluster, mut client) = cluster();
    run(&mut client, FORCED);
    for query in [
        "SELECT count(*) FROM sale WHERE shop NOT IN (SELECT id FROM shop WHERE town = 3)",
        "SELECT count(*) FROM sale WHERE (shop IN (SELECT id FROM shop WHERE town = 3)) IS NOT TRUE",
        "SELECT count(*) FROM sale s
         WHERE (SELECT max(town) FROM shop WHERE id = s.shop AND s.kind < 3) > 2",
        "WITH c AS MATERIALIZED (SELECT id FROM shop WHERE town = 3)
         SELECT count(*) FROM sale WHERE shop NOT IN (SELECT id FROM c)",
    ] {
        let plan = plan(&mut client, query);
        assert!(plan.contains("SubPlan"), "{plan}");
        assert!(!plan.contains("(GranuleScan) on sale"), "{plan}");
        Differential::new(&mut client)
            .between(OFF, FORCED)
            .check(query);
    }
    damage_check(&cluster);
}

/// To look at a deep expression takes more stack than to execute it, so a very deep one is not shipped.
#[test]
fn an_expression_that_postgresql_can_execute_is_not_too_deep() {
    let (cluster, mut client) = cluster();
    for terms in (100..=3900).step_by(200) {
        // With and without what is computed before it is shipped.
        for first in ["0", "extract(year FROM now())::int * 0"] {
            let sum = format!("{first}{}", " + id".repeat(terms));
            let query = format!("SELECT sum(length(({sum})::text)) FROM shop");
            let before = used(&mut client);
            Differential::new(&mut client)
                .between(OFF, FORCED)
                .check(&query);
            assert!(used(&mut client) > before || terms > 100, "not shipped");
        }
    }
    damage_check(&cluster);
}

/// This server chooses the partitions, and replicas read those.
#[test]
fn partitions_that_are_chosen_at_run_time_are_shipped() {
    let (cluster, mut client) = cluster();
    run(
        &mut client,
        "CREATE TABLE other (id int, v int) PARTITION BY RANGE (id);
         CREATE TABLE other_1 PARTITION OF other FOR VALUES FROM (0) TO (100) PARTITION BY LIST (v);
         CREATE TABLE other_1_1 PARTITION OF other_1 FOR VALUES IN (1);
         CREATE TABLE other_1_2 PARTITION OF other_1 DEFAULT;
         CREATE TABLE other_2 PARTITION OF other FOR VALUES FROM (100) TO (20001);
         INSERT INTO other SELECT i, i % 3 FROM generate_series(1, 5000) i; ANALYZE other;
         SET plan_cache_mode = force_generic_plan;
         PREPARE below (int) AS SELECT v, count(*) FROM parted WHERE id < $1 GROUP BY v;
         PREPARE inner_side (int, int) AS SELECT count(*), sum(o.id) FROM sale
             JOIN (SELECT * FROM other WHERE id < $1 AND v = $2) o ON o.id = sale.id;
         PREPARE union_all (int) AS SELECT count(*), sum(id)
             FROM (SELECT id FROM sale UNION ALL SELECT id FROM other WHERE id < $1) s;
         PREPARE two_tables (int) AS SELECT count(*), sum(o.id) FROM parted p
             JOIN other o ON o.id = p.id WHERE p.id < $1 AND o.id < $1 AND o.v = (SELECT $1 % 3)",
    );
    cluster.wait_all_caught_up();
    let with_workers = format!("{FORCED}; SET parallel_replicas_local_plan = on");
    for settings in [FORCED, &with_workers] {
        run(&mut client, "DISCARD PLANS");
        run(&mut client, settings);
        for statement in [
            "below (1)",
            "inner_side (1, 1)",
            "union_all (1)",
            "two_tables (1)",
        ] {
            // The plan that is kept is one with replicas.
            plan(&mut client, &format!("EXECUTE {statement}"));
        }
        for (query, replicas) in [
            ("EXECUTE below (5000)", true),
            ("EXECUTE below (15000)", true),
            ("EXECUTE below (NULL)", false),
            ("EXECUTE inner_side (90, 1)", true),
            ("EXECUTE inner_side (2000, 2)", true),
            // Nothing is left of one side, or of one of two tables.
            ("EXECUTE inner_side (NULL, 1)", true),
            ("EXECUTE union_all (NULL)", true),
            ("EXECUTE union_all (50)", true),
            ("EXECUTE two_tables (50)", true),
            ("EXECUTE two_tables (12000)", true),
            (
                "SELECT v, count(*) FROM parted WHERE id < (SELECT max(id) * 100 FROM shop) GROUP BY v",
                true,
            ),
            (
                "SELECT count(*) FROM parted WHERE id < (SELECT 0 WHERE random() >= 0)",
                false,
            ),
            (
                "SELECT v, count(*) FROM parted WHERE id < extract(epoch FROM now() - now())::int + 5000 GROUP BY v",
                true,
            ),
            // Executed several times, with other partitions each time.
            (
                "SELECT k, (SELECT count(*) FROM parted WHERE id < (SELECT k * 9000)) FROM generate_series(0, 3) k",
                true,
            ),
            (
                "SELECT k, (SELECT count(*) FROM parted WHERE id < (SELECT k * 9000)) FROM unnest('{2, 0, 1, 0}'::int[]) k",
                true,
            ),
        ] {
            let before = used(&mut client);
            Differential::new(&mut client)
                .between(OFF, settings)
                .check(query);
            if settings == FORCED {
                assert_eq!(used(&mut client) > before, replicas, "{query}");
            }
        }
        let plan = plan(&mut client, "EXECUTE below (5000)");
        assert!(plan.contains("Custom Scan (ParallelReplicas)"), "{plan}");
        assert!(plan.contains("Subplans Removed: 1"), "{plan}");
    }
    // An execution that has nothing to read is not counted as the one before.
    run(&mut client, FORCED);
    let marks = |client: &mut Client| -> i64 {
        let query = "SELECT sum(value)::text FROM parallel_replicas.events
                     WHERE event ~ 'Read(Assigned|AssignedForStealing|Unassigned)Marks'";
        text(client, query).parse().expect("a number")
    };
    let [once, twice] = ["{2}", "{2, 0, 0}"].map(|ks| {
        let before = marks(&mut client);
        run(
            &mut client,
            &format!(
                "SELECT k, (SELECT count(*) FROM parted WHERE id < (SELECT k * 9000))
                 FROM unnest('{ks}'::int[]) k"
            ),
        );
        marks(&mut client) - before
    });
    assert!(once > 0);
    assert_eq!(once, twice);
    // An expression on a subquery's value might fail, and is not computed ahead of time.
    let refused = client
        .batch_execute(
            "RESET parallel_replicas.debug_force; SET enable_parallel_replicas = force;
             SELECT count(*) FROM parted WHERE id < (SELECT '5' WHERE random() >= 0)::int",
        )
        .expect_err("it is refused");
    let refused = refused.as_db_error().expect("the server's own error");
    assert!(
        refused
            .detail()
            .is_some_and(|detail| detail.contains("by an expression")),
        "{refused:?}"
    );
    run(&mut client, "RESET enable_parallel_replicas");
    run(&mut client, FORCED);
    // Of the partition that is pruned nothing is read anywhere.
    let analyzed: String = client
        .query(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT v, count(*) FROM parted
             WHERE id < (SELECT max(id) * 100 FROM shop) GROUP BY v",
            &[],
        )
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    let pruned = analyzed
        .lines()
        .find(|line| line.contains("on parted_2"))
        .unwrap_or_else(|| panic!("{analyzed}"));
    assert!(pruned.contains("never executed"), "{analyzed}");
    damage_check(&cluster);
}

/// SIREAD locks that a query takes in a serializable transaction.
fn predicate_locks(client: &mut Client, settings: &str, query: &str) -> String {
    run(
        client,
        &format!("BEGIN ISOLATION LEVEL SERIALIZABLE; {settings}"),
    );
    run(client, query);
    let locks = text(
        client,
        "SELECT string_agg(concat_ws(' ', relation::regclass, locktype, page, tuple), ', '
                 ORDER BY relation::regclass::text, page, tuple)
         FROM pg_locks WHERE mode = 'SIReadLock' AND relation >= 16384",
    );
    run(client, "ROLLBACK");
    locks
}

/// A serializable transaction remembers what it has read, whatever the switch says.
#[test]
fn predicate_locks_are_those_of_postgresql() {
    let (cluster, mut client) = cluster();
    run(
        &mut client,
        "CREATE INDEX ON sale (id); ANALYZE sale;
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET parallel_replicas.setup_cost = 0; SET parallel_replicas.tuple_cost = 0",
    );
    let queries = [
        (
            "SELECT kind, count(*) FROM sale GROUP BY kind",
            "sale relation",
        ),
        ("SELECT * FROM sale WHERE id = 7", "sale_id_idx page"),
        (
            "SELECT count(*) FROM sale WHERE id BETWEEN 100 AND 130",
            "sale_id_idx page",
        ),
        (
            "SELECT count(*) FROM sale JOIN shop ON shop.id = shop WHERE town = 1",
            "shop relation",
        ),
    ];
    for (query, lock) in queries {
        let wanted = predicate_locks(
            &mut client,
            "SET LOCAL enable_parallel_replicas = off",
            query,
        );
        assert!(wanted.contains(lock), "{wanted}\n{query}");
        for settings in [
            "SET LOCAL enable_parallel_replicas = on",
            "SET LOCAL parallel_replicas.debug_force = on",
        ] {
            let before = used(&mut client);
            assert_eq!(
                predicate_locks(&mut client, settings, query),
                wanted,
                "{settings}\n{query}"
            );
            assert_eq!(used(&mut client), before);
        }
    }
    // A plan that was made for replicas, before anybody knew of the isolation level.
    run(
        &mut client,
        "SET enable_parallel_replicas = on; SET plan_cache_mode = force_generic_plan;
         PREPARE kept AS SELECT kind, count(*) FROM sale GROUP BY kind; EXECUTE kept",
    );
    assert!(plan(&mut client, "EXECUTE kept").contains("(ParallelReplicas)"));
    let before = used(&mut client);
    assert!(predicate_locks(&mut client, "SELECT 1", "EXECUTE kept").contains("sale relation"));
    assert_eq!(used(&mut client), before);
    // Who insists is told.
    run(
        &mut client,
        "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL enable_parallel_replicas = force",
    );
    let error = client
        .batch_execute(queries[0].0)
        .expect_err("it is refused");
    let detail = error.as_db_error().and_then(|error| error.detail());
    assert!(detail.is_some_and(|detail| detail.starts_with("Reason serializable")));
    run(&mut client, "ROLLBACK");
    damage_check(&cluster);
}
