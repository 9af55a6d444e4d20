//! Functions that do on each server what they do on this one are shipped, and others are not: what they look
//! up belongs to the session, or to somebody.

use parallel_replicas_tests::{Cluster, Differential, PRIMARY, damage_check, text};
use postgres::Client;

/// Everything is shipped, and only replicas read.
const FORCED: &str =
    "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
     SET parallel_replicas.granule_blocks = 4";

const TABLES: &str = "
    CREATE TEMP TABLE shown ();
    CREATE TABLE one AS SELECT i AS a, i + 1 AS b, i % 2 = 0 AS even, 'shown'::regclass AS named,
            '{pg_class}'::text AS names, '{<a/>}'::text AS pages, now() - i * interval '1 h' AS at
        FROM generate_series(1, 20000) i;
    CREATE TABLE pairs (a int, b int); INSERT INTO pairs SELECT i % 50, i % 50 + 1 FROM generate_series(1, 20000) i;
    CREATE TABLE parted (a int, b int) PARTITION BY HASH (a);
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE FUNCTION to_text(mood) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN RETURN coalesce(current_setting('app.language', true), '?') || ($1::varchar)::text; END $$;
    CREATE CAST (mood AS text) WITH FUNCTION to_text(mood);
    CREATE TABLE moods AS SELECT i, 'sad'::mood AS m FROM generate_series(1, 20000) i;
    CREATE ROLE plain; GRANT SELECT ON one, pairs, moods TO plain;
    ANALYZE one; ANALYZE pairs; ANALYZE moods";

/// Nine rows are looked for by hash.
const ROWS: &str =
    "ROW(1,2), ROW(2,3), ROW(3,4), ROW(4,5), ROW(5,6), ROW(6,7), ROW(7,8), ROW(8,9), ROW(9,0)";

/// With whether replicas take part.
fn queries() -> Vec<(bool, String)> {
    let queries = [
        (
            true,
            "SELECT count(*) FROM one WHERE current_setting('work_mem') = '4MB'",
        ),
        (
            true,
            "SELECT count(*) FROM one WHERE current_setting('search_path', true) <> '' AND a > 7",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE current_setting('work_mem', even) = '4MB'",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE current_setting('no.such', a > 0) IS NULL",
        ),
        // Nobody but a superuser may read it, and nobody does.
        (
            false,
            "SELECT count(CASE WHEN a < 0 THEN current_setting('data_directory') END) FROM one",
        ),
        (
            true,
            "SELECT concat(a, even, at), count(*) FROM one GROUP BY 1",
        ),
        (
            true,
            "SELECT ARRAY[at]::text, count(*) FROM one WHERE a < 900 GROUP BY 1",
        ),
        (
            true,
            "SELECT to_json(at)::text, count(*) FROM one WHERE a < 900 GROUP BY 1",
        ),
        (
            true,
            "SELECT count(*) FROM one WHERE named = 'pairs'::regclass OR a = 5",
        ),
        // Their names depend on the search path, and a temporary schema's on the session.
        (false, "SELECT concat(named), count(*) FROM one GROUP BY 1"),
        (
            false,
            "SELECT ARRAY[named]::text, count(*) FROM one GROUP BY 1",
        ),
        (
            false,
            "SELECT to_json(named)::text, count(*) FROM one GROUP BY 1",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE row_to_json(one)::text LIKE '%5%'",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE names::regclass[] = '{pg_class}'",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE pages::xml[] IS NOT NULL",
        ),
        // It calls the functions of the partition key, whosever they are.
        (
            false,
            "SELECT count(*) FROM one WHERE satisfies_hash_partition('parted'::regclass, 4, 0, a)",
        ),
        // They convert by whatever cast there is.
        (true, "SELECT count(*) FROM one WHERE 'x' || a LIKE '%7'"),
        (
            false,
            "SELECT count(*) FROM moods WHERE 'x' || m = 'xdesad'",
        ),
        (
            false,
            "SELECT count(*) FROM moods WHERE m || 'x' = 'desadx'",
        ),
        (
            false,
            "SELECT count(*) FROM moods WHERE quote_literal(m) = '''desad'''",
        ),
        (
            false,
            "SELECT count(*) FROM moods WHERE quote_nullable(m) = '''desad'''",
        ),
        // It may have to make a schema, and reads the catalog as it is now.
        (
            false,
            "SELECT count(*) FROM one WHERE current_schema = 'public'",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE current_schema() = 'public'",
        ),
        (
            false,
            "SELECT count(*) FROM one WHERE pg_partition_root(named) IS NULL",
        ),
        // Rows without a name are known by a number that each process gives them.
        (
            false,
            "SELECT count(*) FROM pairs WHERE pairs = ANY (ARRAY[ROWS])",
        ),
        (
            false,
            "SELECT count(*) FROM pairs WHERE pairs = ANY ((SELECT array_agg(r) FROM (VALUES ROWS) r)::record[])",
        ),
    ];
    queries
        .map(|(sent, query)| {
            let values = query.contains("VALUES");
            let rows = if values {
                ROWS.replace("ROW", "")
            } else {
                ROWS.into()
            };
            (sent, query.replace("ROWS", &rows))
        })
        .into()
}

fn started(client: &mut Client) -> u64 {
    let query = "SELECT value::text FROM parallel_replicas.events WHERE event = 'ParallelReplicasQueryCount'";
    text(client, query).parse().expect("a number")
}

#[test]
fn what_is_not_the_same_everywhere_stays() {
    let cluster = Cluster::with_two_replicas();
    let mut client = cluster.connect(PRIMARY);
    client.batch_execute(TABLES).unwrap();
    client.batch_execute("SET app.language = 'de'").unwrap();
    cluster.wait_all_caught_up();
    let as_plain = |settings: &str| format!("RESET ROLE; {settings}; SET LOCAL ROLE plain");
    for (sent, query) in queries() {
        let before = started(&mut client);
        Differential::new(&mut client)
            .between(
                &as_plain("SET LOCAL parallel_replicas.debug_force = off"),
                &as_plain(FORCED),
            )
            .check(&query);
        assert_eq!(started(&mut client) > before, sent, "{query}");
    }
    damage_check(&cluster);
}

/// Values that are large, on this server's disk alone, or not there at all.
#[test]
fn values_are_shipped_or_the_query_stays() {
    let cluster = Cluster::with_two_replicas();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE TABLE notes AS SELECT i, 'note ' || i AS note FROM generate_series(1, 20000) i;
             CREATE UNLOGGED TABLE here(long text); ALTER TABLE here ALTER long SET STORAGE EXTERNAL;
             INSERT INTO here SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i;
             INSERT INTO notes SELECT 0, long FROM here;
             CREATE TABLE made(n bigint); ANALYZE notes",
        )
        .unwrap();
    cluster.wait_all_caught_up();
    let tagged =
        "SET LOCAL enable_parallel_replicas = 1; SET LOCAL parallel_replicas.replica_tag = 'test'";
    for (on, query, sent) in [
        // The value is read from its table's disk space before it is shipped.
        (
            FORCED,
            "SELECT i FROM notes WHERE note = (SELECT long FROM here)",
            1,
        ),
        (
            tagged,
            "SELECT count(*) FROM notes WHERE note <> repeat('x', 5000000)",
            1,
        ),
        (
            tagged,
            "SELECT count(*) FROM notes WHERE note <> repeat('x', 30000000)",
            0,
        ),
    ] {
        let before = started(&mut client);
        Differential::new(&mut client)
            .between(
                "SET LOCAL parallel_replicas.debug_force = off; SET LOCAL enable_parallel_replicas = 0",
                on,
            )
            .check(query);
        assert_eq!(started(&mut client) - before, sent, "{query}");
    }
    // A parameter of 30 MB has room, one of 60 MB has not.
    for (bytes, sent) in [(30_000_000, 1), (60_000_000, 0)] {
        client
            .batch_execute(&format!(
                "BEGIN; {tagged}; SET LOCAL plan_cache_mode = force_generic_plan"
            ))
            .unwrap();
        let before = started(&mut client);
        let rows = client
            .query(
                "SELECT count(*) FROM notes WHERE note <> $1",
                &[&"x".repeat(bytes)],
            )
            .unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), 20_001);
        assert_eq!(started(&mut client) - before, sent, "{bytes}");
        client.batch_execute("ROLLBACK").unwrap();
    }
    // The second time, the record has no such column, and no row is there to be compared with it.
    let before = started(&mut client);
    client
        .batch_execute(&format!(
            "BEGIN; {tagged};
             DO $$ DECLARE r record; n bigint; BEGIN
                 FOR round IN 1..2 LOOP
                     IF round = 1 THEN SELECT 'x' AS note INTO r; ELSE SELECT 1 AS other INTO r; END IF;
                     SELECT count(*) INTO n FROM notes WHERE i < 0 AND note = r.note;
                 END LOOP;
                 SET LOCAL enable_parallel_replicas = 0;
                 INSERT INTO made VALUES (n);
             END $$; COMMIT"
        ))
        .unwrap();
    assert_eq!(text(&mut client, "SELECT n::text FROM made"), "0");
    assert_eq!(started(&mut client) - before, 2);
    assert!(!cluster.log(PRIMARY).contains("was lost"));
    damage_check(&cluster);
}
