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
    CREATE ROLE plain; GRANT SELECT ON one, pairs TO plain;
    ANALYZE one; ANALYZE pairs";

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
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .start();
    cluster.register_replicas();
    let mut client = cluster.connect(PRIMARY);
    client.batch_execute(TABLES).unwrap();
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
