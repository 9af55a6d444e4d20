//! `cluster_all_replicas` gives the values that replicas have, whatever settings, names and encodings
//! are about, and nobody's rights to somebody else.

use parallel_replicas_tests::{Cluster, PRIMARY, StopMode, text};
use postgres::Client;
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn cluster(standbys: usize) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
        .autovacuum(false)
        .setting("parallel_replicas.connect_timeout", "30s")
        .start();
    cluster.register_replicas();
    cluster.wait_all_caught_up();
    cluster
}

/// Rows of replicas, as text, with what follows FROM.
fn from_replicas(relation: &str, what: &str) -> String {
    format!(
        "SELECT coalesce(string_agg({what}, ';'), '')
           FROM parallel_replicas.cluster_all_replicas('default', NULL::{relation})
          WHERE replica <> 'local'"
    )
}

/// What psql says beside the rows.
fn said(cluster: &Cluster, script: &str) -> String {
    let output = cluster.psql_output(PRIMARY, &["-q", "-At"], script);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn rows_are_those_of_the_replica() {
    let cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    columns_may_have_any_name(&cluster, &mut client);
    settings_do_not_change_values(&cluster);
    functions_of_types_have_the_rights_of_the_owner(&cluster);
    types_inside_have_no_rights_of_readers(&cluster);
    a_replica_that_is_behind_is_a_warning(&cluster, &mut client);
    another_relation_of_the_name_is_not_read(&cluster, &mut client);
    too_many_rows_are_refused(&cluster, &mut client);
}

fn columns_may_have_any_name(cluster: &Cluster, client: &mut Client) {
    client
        .batch_execute(
            r#"CREATE TABLE t1(t int); INSERT INTO t1 VALUES (7);
               CREATE TABLE t2(t text, r text, gone int, "row" text, "q ""u" text);
               INSERT INTO t2 VALUES ('a', '(b,c)', 1, NULL, '"');
               ALTER TABLE t2 DROP COLUMN gone; CREATE TABLE t3(); INSERT INTO t3 DEFAULT VALUES"#,
        )
        .expect("tables");
    cluster.wait_all_caught_up();
    for (relation, row) in [("t1", "(7)"), ("t2", r#"(a,"(b,c)",,"""")"#), ("t3", "()")] {
        let all = format!(
            "SELECT string_agg(replica || (\"row\")::text, ' ' ORDER BY replica)
               FROM parallel_replicas.cluster_all_replicas('default', NULL::{relation})"
        );
        assert_eq!(text(client, &all), format!("local{row} standby1{row}"));
    }
}

/// The role of the link and the session print and read in other ways.
fn settings_do_not_change_values(cluster: &Cluster) {
    cluster.psql(
        PRIMARY,
        r#"CREATE TABLE forms(d date, i interval, f float8, x xml, a text[]);
           INSERT INTO forms VALUES ('2024-02-03', '-1 day -02:03:04', 0.1::float8 + 0.2::float8,
                                     'a<b/>', '{NULL,a}');
           CREATE ROLE styled SUPERUSER LOGIN; ALTER ROLE styled SET datestyle = 'SQL, DMY';
           ALTER ROLE styled SET intervalstyle = sql_standard;
           ALTER ROLE styled SET extra_float_digits = -10;
           ALTER USER MAPPING FOR postgres SERVER standby1 OPTIONS (ADD user 'styled')"#,
    );
    cluster.wait_all_caught_up();
    let same = "SELECT count(*)::text FROM (SELECT DISTINCT (\"row\").d, (\"row\").i, (\"row\").f,
                       (\"row\").x::text, (\"row\").a, count(*) OVER () AS servers
          FROM parallel_replicas.cluster_all_replicas('default', NULL::forms)) s WHERE servers = 2";
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET array_nulls = off; SET xmloption = document")
        .expect("settings");
    for date_style in ["ISO, MDY", "SQL, DMY"] {
        for interval_style in ["postgres", "sql_standard"] {
            let settings =
                format!("SET datestyle = '{date_style}'; SET intervalstyle = {interval_style}");
            client.batch_execute(&settings).expect("settings");
            assert_eq!(text(&mut client, same), "1", "{settings}");
        }
    }
    cluster.psql(
        PRIMARY,
        "ALTER USER MAPPING FOR postgres SERVER standby1 OPTIONS (DROP user); DROP ROLE styled",
    );
}

/// A superuser who reads somebody's table lends nothing to that somebody.
fn functions_of_types_have_the_rights_of_the_owner(cluster: &Cluster) {
    cluster.psql(
        PRIMARY,
        "CREATE ROLE mallory; CREATE SCHEMA mallory AUTHORIZATION mallory; SET ROLE mallory;
         CREATE FUNCTION mallory.evil(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
             RAISE WARNING 'checked as %', current_user;
             PERFORM set_config('work_mem', '64kB', false);
             RETURN true;
         END $$;
         CREATE DOMAIN mallory.d AS int CHECK (mallory.evil(VALUE));
         CREATE TABLE mallory.x(i mallory.d, a mallory.d[]); INSERT INTO mallory.x VALUES (1, '{2}');
         CREATE FUNCTION mallory.evil(text) RETURNS mallory.x LANGUAGE plpgsql AS $$ BEGIN
             RAISE WARNING 'cast as %', current_user; RETURN ROW(2, NULL);
         END $$;
         CREATE CAST (text AS mallory.x) WITH FUNCTION mallory.evil(text)",
    );
    cluster.wait_all_caught_up();
    let read = from_replicas("mallory.x", "(\"row\").i::text");
    assert_eq!(
        said(cluster, &read),
        "WARNING:  checked as mallory\n",
        "the array's type is mallory's own affair, and the column's was looked at there"
    );
    cluster.psql(PRIMARY, "CREATE TABLE copy AS SELECT i FROM mallory.x");
    cluster.wait_all_caught_up();
    assert_eq!(
        said(cluster, &from_replicas("copy", "(\"row\").i::text")),
        ""
    );
    cluster.psql(PRIMARY, "DROP TABLE copy");
    let output = cluster.psql(PRIMARY, &format!("{read}; SHOW work_mem"));
    assert!(!output.contains("64kB"), "{output}");
    // Nor can the function take the rights back.
    cluster.psql(
        PRIMARY,
        "SET ROLE mallory; CREATE OR REPLACE FUNCTION mallory.evil(int) RETURNS boolean
             LANGUAGE plpgsql AS 'BEGIN SET ROLE postgres; RETURN true; END'",
    );
    assert_eq!(
        said(cluster, &read),
        "WARNING:  could not read from replica \"standby1\"\n\
         DETAIL:  cannot set parameter \"role\" within security-restricted operation.\n"
    );
    cluster.psql(PRIMARY, "DROP SCHEMA mallory CASCADE; DROP ROLE mallory");
}

/// A plain SELECT of these tables of a superuser executes nothing of the types' owners.
fn types_inside_have_no_rights_of_readers(cluster: &Cluster) {
    cluster.psql(
        PRIMARY,
        "CREATE ROLE mallory; CREATE ROLE eve; CREATE ROLE alice LOGIN;
         CREATE SCHEMA mallory AUTHORIZATION mallory; SET ROLE mallory;
         CREATE FUNCTION mallory.evil(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
             RAISE WARNING 'checked as %', current_user; RETURN true;
         END $$;
         CREATE DOMAIN mallory.d AS int CHECK (mallory.evil(VALUE));
         CREATE TYPE mallory.pair AS (a int, b mallory.d);
         CREATE TYPE mallory.span AS RANGE (subtype = mallory.d, multirange_type_name = mallory.spans);
         RESET ROLE;
         CREATE DOMAIN listed AS mallory.d[]; CREATE DOMAIN narrowed AS mallory.d;
         CREATE TYPE own_pair AS (a int, b narrowed);
         CREATE DOMAIN harmless AS int CHECK (VALUE > 0);
         CREATE TABLE many(v mallory.d[]); INSERT INTO many VALUES ('{1}');
         CREATE TABLE pairs(v mallory.pair); INSERT INTO pairs VALUES ('(1,2)');
         CREATE TABLE spans(v mallory.span); INSERT INTO spans VALUES ('[1,2]');
         CREATE TABLE spans_of(v mallory.spans); INSERT INTO spans_of VALUES ('{[1,2]}');
         CREATE TABLE listed_ones(v listed); INSERT INTO listed_ones VALUES ('{1}');
         CREATE TABLE own_pairs(v own_pair[]); INSERT INTO own_pairs VALUES ('{\"(1,2)\"}');
         CREATE TYPE leaf AS (i harmless); CREATE TABLE node(v leaf[], gone mallory.d[]);
         ALTER TABLE node DROP COLUMN gone; INSERT INTO node VALUES (ARRAY[ROW(1)::leaf]);
         CREATE DOMAIN eves AS int; ALTER DOMAIN eves OWNER TO eve;
         CREATE TABLE of_two(a mallory.d[], b eves[]);
         CREATE USER MAPPING FOR alice SERVER standby1
             OPTIONS (user 'postgres', password_required 'false');
         GRANT USAGE ON FOREIGN SERVER standby1 TO alice;
         GRANT SELECT ON many, pairs, spans, spans_of, listed_ones, own_pairs, node TO alice",
    );
    cluster.wait_all_caught_up();
    let mut alice = cluster.connect_as(PRIMARY, "alice");
    for relation in [
        "many",
        "pairs",
        "spans",
        "spans_of",
        "listed_ones",
        "own_pairs",
    ] {
        let read = from_replicas(relation, "(\"row\").v::text");
        let said = said(cluster, &read);
        assert!(!said.is_empty(), "{relation}");
        for line in said.lines() {
            assert_eq!(line, "WARNING:  checked as mallory", "{relation}");
        }
        let refused = alice.query(&read, &[]).expect_err(relation);
        let refused = refused.as_db_error().expect("the server's own error");
        assert_eq!(refused.code().code(), "42501", "{relation}: {refused}");
        assert!(refused.detail().is_some() && refused.hint().is_some());
    }
    let read = from_replicas("node", "(\"row\").v::text");
    assert_eq!(text(&mut alice, &read), "{(1)}");
    let refused = said(cluster, &from_replicas("of_two", "(\"row\")::text"));
    assert!(
        refused.starts_with("ERROR:  permission denied"),
        "{refused}"
    );
    cluster.psql(
        PRIMARY,
        "DROP TABLE many, pairs, spans, spans_of, listed_ones, own_pairs, node, of_two;
         DROP TYPE own_pair, leaf; DROP DOMAIN narrowed, listed, harmless, eves;
         DROP SCHEMA mallory CASCADE; DROP OWNED BY alice; DROP ROLE alice, eve, mallory",
    );
}

fn a_replica_that_is_behind_is_a_warning(cluster: &Cluster, client: &mut Client) {
    client
        .batch_execute(
            "CREATE TABLE later(i int); CREATE TABLE typed(i text); INSERT INTO later VALUES (1);
             INSERT INTO typed VALUES ('1'), ('x')",
        )
        .expect("tables");
    cluster.wait_all_caught_up();
    cluster.pause_replay(1);
    client
        .batch_execute(
            "ALTER TABLE later ADD COLUMN j int; DELETE FROM typed WHERE i = 'x';
             ALTER TABLE typed ALTER COLUMN i TYPE int USING i::int",
        )
        .expect("other tables");
    for (relation, why) in [
        ("later", "column r.j does not exist"),
        ("typed", "invalid input syntax for type integer: \"x\""),
    ] {
        let warning = said(cluster, &from_replicas(relation, "\"row\"::text"));
        assert_eq!(
            warning,
            format!("WARNING:  could not read from replica \"standby1\"\nDETAIL:  {why}.\n")
        );
        // Neither are some of its rows given.
        assert_eq!(text(client, &from_replicas(relation, "\"row\"::text")), "");
    }
    cluster.resume_replay(1);
    cluster.wait_all_caught_up();
    assert_eq!(
        text(client, &from_replicas("later", "\"row\"::text")),
        "(1,)"
    );
}

/// Somebody's view that was there before a superuser's table would be executed by the link's account.
fn another_relation_of_the_name_is_not_read(cluster: &Cluster, client: &mut Client) {
    client
        .batch_execute("CREATE VIEW swapped AS SELECT 1 / 0 AS i")
        .expect("view");
    cluster.wait_all_caught_up();
    cluster.pause_replay(1);
    client
        .batch_execute("DROP VIEW swapped; CREATE TABLE swapped(i int)")
        .expect("table");
    assert_eq!(
        said(cluster, &from_replicas("swapped", "\"row\"::text")),
        "WARNING:  could not read from replica \"standby1\"\n\
         DETAIL:  another relation has this name there.\n\
         HINT:  Wait until the replica has replayed what was done here.\n"
    );
    cluster.resume_replay(1);
}

fn too_many_rows_are_refused(cluster: &Cluster, client: &mut Client) {
    // 60 rows of 1 MB fit, 70 do not; neither do a million of almost nothing.
    client
        .batch_execute(
            "CREATE VIEW enough AS SELECT repeat('x', 1 << 20) AS x FROM generate_series(1, 60);
             CREATE VIEW too_many AS SELECT repeat('x', 1 << 20) AS x FROM generate_series(1, 70);
             CREATE VIEW tiny AS SELECT FROM generate_series(1, 1000000)",
        )
        .expect("views");
    cluster.wait_all_caught_up();
    let read = |relation: &str| {
        format!(
            "SELECT count(*)::text
               FROM parallel_replicas.rows_of_replicas('default', NULL::{relation})"
        )
    };
    assert_eq!(text(client, &read("enough")), "60");
    for relation in ["too_many", "tiny"] {
        let refused = client.query(&read(relation), &[]).expect_err("too many");
        let refused = refused.as_db_error().expect("the server's own error");
        assert_eq!(refused.code().code(), "54000");
        assert!(refused.detail().is_some() && refused.hint().is_some());
    }
}

/// Silence costs one timeout, however many are silent.
#[test]
fn silent_replicas_are_waited_for_together() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    const SILENT: usize = 3;
    let cluster = cluster(1);
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("CREATE TABLE kept AS SELECT 1 AS i")
        .expect("a table");
    cluster.wait_all_caught_up();
    // The kernel accepts, and nobody reads.
    let silent = [(); SILENT].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
    for (number, listener) in silent.iter().enumerate() {
        let port = listener.local_addr().expect("an address").port();
        let add =
            format!("SELECT parallel_replicas.add_replica('silent{number}', '127.0.0.1', {port})");
        cluster.psql(PRIMARY, &add);
    }
    let timeout = TIMEOUT.as_millis();
    let start = Instant::now();
    let output = cluster.psql_output(
        PRIMARY,
        &["-q", "-At"],
        &format!(
            "SET parallel_replicas.connect_timeout = {timeout}; {}",
            from_replicas("kept", "replica || \"row\"::text")
        ),
    );
    let taken = start.elapsed();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "standby1(1)\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("could not read from replica").count(), SILENT);
    assert!(TIMEOUT <= taken && taken < TIMEOUT * 2, "{taken:?}: {said}");
}

/// A session that may have few connections at once reads from some replicas after others.
#[test]
fn replicas_beyond_the_descriptors_wait_for_their_turn() {
    const REPLICAS: usize = 24;
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("max_files_per_process", "64")
        .setting("parallel_replicas.connect_timeout", "30s")
        .start();
    cluster.register_replicas();
    let port = cluster.port(1);
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE kept AS SELECT 1 AS i;
             SELECT parallel_replicas.add_replica('again' || number, '127.0.0.1', {port})
               FROM generate_series(2, {REPLICAS}) number"
        ),
    );
    cluster.wait_all_caught_up();
    let read = from_replicas("kept", "\"row\"::text");
    assert_eq!(said(&cluster, &read), "");
    let rows = text(&mut cluster.connect(PRIMARY), &read);
    assert_eq!(rows, ["(1)"; REPLICAS].join(";"));
}

#[test]
fn texts_of_other_encodings_stay_what_they_are() {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.connect_timeout", "30s")
        .start();
    cluster.psql(
        PRIMARY,
        "CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    );
    let mut client = cluster.connect_db(PRIMARY, "latin1");
    let port = cluster.port(1);
    client
        .batch_execute(&format!(
            "CREATE EXTENSION parallel_replicas;
             SELECT parallel_replicas.add_replica('standby1', '127.0.0.1', {port});
             CREATE TABLE \"thé\"(\"é\" text); INSERT INTO \"thé\" VALUES ('café')"
        ))
        .expect("a database of its own");
    cluster.wait_all_caught_up();
    let words = from_replicas("\"thé\"", "replica || ' ' || (\"row\").\"é\"");
    assert_eq!(text(&mut client, &words), "standby1 café");
    // A name that no cluster has.
    let none = words.replace("'default'", "'é'");
    assert_eq!(text(&mut client, &none), "");
}

#[test]
fn a_server_without_the_library_says_what_is_missing() {
    let mut cluster = cluster(1);
    cluster.configure(1, "shared_preload_libraries", "");
    cluster.restart(1, StopMode::Fast);
    let mut client = cluster.connect(1);
    for view in [
        "cluster_events",
        "cluster_running_fragments",
        "cluster_query_log",
    ] {
        let refused = client
            .query(&format!("SELECT FROM parallel_replicas.{view}"), &[])
            .expect_err(view);
        let refused = refused.as_db_error().expect("the server's own error");
        assert_eq!(refused.code().code(), "55000", "{refused}");
    }
}
