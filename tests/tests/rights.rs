//! Who may see what: the same rows and the same refusals as without replicas, and the replica checks
//! for itself, as the user whose query it is.

use parallel_replicas_core::frame::Begin;
use parallel_replicas_tests::rogue::Outcome;
use parallel_replicas_tests::scene::{ROWS, Scene};
use parallel_replicas_tests::{Cluster, Differential, PRIMARY, damage_check, text};
use postgres::Client;

/// Replicas do all the reading. A function's plan is kept, whatever is set later.
const FORCED: &str = "DISCARD PLANS; SET LOCAL enable_parallel_replicas = 2;
     SET LOCAL parallel_replicas_local_plan = off";
const ALONE: &str = "SET LOCAL enable_parallel_replicas = 0";

const SCHEMA: &str = "
    CREATE ROLE holder; CREATE ROLE reader LOGIN; CREATE ROLE nobody;
    GRANT CREATE ON SCHEMA public TO holder;
    CREATE TABLE border AS SELECT 90 AS n; GRANT SELECT ON border TO reader, holder;
    CREATE TABLE policed AS SELECT i AS id, (ARRAY['reader', 'holder', 'all'])[1 + i % 3] AS whose, i % 97 AS v
        FROM generate_series(1, 9000) i;
    ALTER TABLE policed OWNER TO holder;
    ALTER TABLE policed ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON policed FOR SELECT USING (whose = current_user OR whose = 'all');
    CREATE POLICY low ON policed AS RESTRICTIVE FOR SELECT USING (v < (SELECT max(n) FROM border));
    GRANT SELECT ON policed TO reader;
    CREATE TABLE columns AS SELECT i AS id, i % 10 AS open, 'secret ' || i AS hidden
        FROM generate_series(1, 9000) i;
    ALTER TABLE columns OWNER TO holder; GRANT SELECT (id, open) ON columns TO reader;
    SET ROLE holder;
    CREATE VIEW barrier WITH (security_barrier) AS
        SELECT id, hidden FROM columns WHERE open = 3;
    CREATE VIEW owners AS SELECT id, whose, v FROM policed;
    CREATE VIEW invokers WITH (security_invoker) AS SELECT id, whose, v FROM policed;
    GRANT SELECT ON barrier, owners, invokers TO reader;
    CREATE FUNCTION definer() RETURNS TABLE (whose text, n bigint) LANGUAGE plpgsql SECURITY DEFINER AS
        $$BEGIN RETURN QUERY SELECT p.whose, count(*) FROM policed p GROUP BY 1; END$$;
    CREATE FUNCTION invoker() RETURNS TABLE (whose text, n bigint) LANGUAGE plpgsql AS
        $$BEGIN RETURN QUERY SELECT p.whose, count(*) FROM policed p GROUP BY 1; END$$;
    RESET ROLE;
    ANALYZE policed; ANALYZE columns;";

fn scene() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "20s")
        .setting("parallel_replicas.granule_blocks", "4")
        .start();
    cluster.register_replicas();
    cluster.psql(PRIMARY, SCHEMA);
    for role in ["reader", "holder", "nobody"] {
        for server in ["standby1", "standby2"] {
            cluster.psql(
                PRIMARY,
                &format!(
                    "GRANT USAGE ON FOREIGN SERVER {server} TO {role};
                     CREATE USER MAPPING FOR {role} SERVER {server}
                         OPTIONS (user 'postgres', password_required 'false')"
                ),
            );
        }
    }
    cluster.wait_all_caught_up();
    cluster
}

/// The same rows, and replicas had a part in them; how many rows.
#[track_caller]
fn same_rows(cluster: &Cluster, client: &mut Client, role: &str, query: &str) -> usize {
    let before = cluster.event(PRIMARY, "ReadByReplicasMarks");
    let rows = Differential::new(client)
        .before(role)
        .between(ALONE, FORCED)
        .check(query);
    let read = cluster.event(PRIMARY, "ReadByReplicasMarks") - before;
    assert!(read > 0, "no replica was used: {role}; {query}");
    rows.rows.len()
}

#[test]
fn users_see_what_they_would_see_without_replicas() {
    let cluster = scene();
    let mut superuser = cluster.connect(PRIMARY);
    let mut reader = cluster.connect_as(PRIMARY, "reader");
    let by_whose = "SELECT whose, count(*), sum(v) FROM policed GROUP BY whose";
    // What each must come to, so that a comparison of nothing with nothing does not pass.
    for (role, query, rows) in [
        // Row-level security: everything for a superuser and the owner, two of three for others.
        ("SET LOCAL ROLE none", by_whose, 3),
        ("SET LOCAL ROLE holder", by_whose, 3),
        ("SET LOCAL ROLE reader", by_whose, 2),
        ("SET LOCAL SESSION AUTHORIZATION reader", by_whose, 2),
        // A view asks with its owner's rights, unless it is told to ask with the caller's.
        (
            "SET LOCAL ROLE reader",
            "SELECT whose, count(*) FROM owners GROUP BY 1",
            3,
        ),
        (
            "SET LOCAL ROLE reader",
            "SELECT whose, count(*) FROM invokers GROUP BY 1",
            2,
        ),
        (
            "SET LOCAL ROLE reader",
            "SELECT id, hidden FROM barrier WHERE length(hidden) > 3",
            900,
        ),
        // Functions with the owner's rights and with the caller's.
        ("SET LOCAL ROLE reader", "SELECT * FROM definer()", 3),
        ("SET LOCAL ROLE reader", "SELECT * FROM invoker()", 2),
        // Columns.
        (
            "SET LOCAL ROLE reader",
            "SELECT open, count(*) FROM columns GROUP BY open",
            10,
        ),
    ] {
        let found = same_rows(&cluster, &mut superuser, role, query);
        assert_eq!(found, rows, "{role}; {query}");
    }
    let found = same_rows(&cluster, &mut reader, "SELECT 1", by_whose);
    assert_eq!(found, 2, "who logged in as reader");

    for (role, query) in [
        ("SET LOCAL ROLE nobody", by_whose),
        ("SET LOCAL ROLE nobody", "SELECT whose FROM owners"),
        ("SET LOCAL ROLE reader", "SELECT hidden FROM columns"),
        (
            "SET LOCAL ROLE reader",
            "SELECT count(*) FROM columns c WHERE c IS NOT NULL",
        ),
    ] {
        let message = Differential::new(&mut superuser)
            .before(role)
            .between(ALONE, FORCED)
            .check_same_error(query)
            .message;
        assert!(message.starts_with("permission denied"), "{message}");
    }
    damage_check(&cluster);
}

/// A coordinator may say what it likes: the replica asks its own catalog.
#[test]
fn the_replica_checks_rights_for_itself() {
    let mut scene = Scene::start();
    scene.cluster.psql(
        PRIMARY,
        "CREATE ROLE narrow; GRANT SELECT (id) ON t TO narrow;
         CREATE ROLE wide; GRANT SELECT ON t TO wide;
         CREATE ROLE holder; CREATE VIEW view AS SELECT id, v FROM t; ALTER VIEW view OWNER TO holder;
         GRANT SELECT ON t TO holder; GRANT SELECT ON view TO stranger",
    );
    scene.cluster.wait_all_caught_up();
    let ids = scene.proven("SELECT id FROM t", ROWS);
    let values = scene.proven("SELECT id, v FROM t", ROWS);
    let view = scene.proven("SELECT id, v FROM view", ROWS);
    let attempt = |scene: &mut Scene, begin: &Begin, user: &str| {
        let oid = format!("SELECT '{user}'::regrole::oid::text");
        let mut changed = begin.clone();
        changed.user = text(&mut scene.observer, &oid).parse().unwrap();
        let mut rogue = scene.rogue();
        let state = match rogue.attempt(&scene.secret, &changed) {
            Outcome::Done { rows: ROWS, .. } => String::from("all rows"),
            Outcome::Error(error) => error.sqlstate,
            other => panic!("{user}: {other:?}"),
        };
        scene.nothing_left(&mut rogue);
        state
    };
    for (begin, user, expected) in [
        (&ids, "wide", "all rows"),
        (&ids, "narrow", "all rows"),
        (&values, "wide", "all rows"),
        (&values, "narrow", "42501"),
        (&values, "stranger", "42501"),
        // The view's owner reads the table; the caller needs the view.
        (&view, "stranger", "all rows"),
        (&view, "wide", "42501"),
    ] {
        assert_eq!(attempt(&mut scene, begin, user), expected, "{user}");
    }
    scene
        .cluster
        .psql(PRIMARY, "REVOKE SELECT ON t FROM holder");
    scene.cluster.wait_all_caught_up();
    assert_eq!(
        attempt(&mut scene, &view, "stranger"),
        "42501",
        "the owner may not any more"
    );
    scene.end();
}

/// Its owner could put operators into it that the extension's views would use.
#[test]
fn a_schema_of_somebody_else_is_not_taken() {
    let cluster = Cluster::builder().standbys(0).start();
    cluster.psql(
        PRIMARY,
        "CREATE ROLE mallory; CREATE SCHEMA parallel_replicas AUTHORIZATION mallory",
    );
    let mut client = cluster.connect(PRIMARY);
    let error = client
        .batch_execute("CREATE EXTENSION parallel_replicas")
        .unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501");
    client
        .batch_execute("ALTER SCHEMA parallel_replicas OWNER TO CURRENT_USER; CREATE EXTENSION parallel_replicas")
        .unwrap();
}
