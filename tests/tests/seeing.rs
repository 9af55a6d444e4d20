//! A query can be seen: while it runs and afterwards, on the coordinator and on its replicas.

use parallel_replicas_tests::browser::{Scheme, screenshot};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, StopMode, text, wait_until};
use postgres::Client;
use std::thread;

const ROWS: u32 = 200_000;

/// Two replicas, and a table of some hundred granules.
fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("parallel_replicas.query_log_size", "16")
        .setting("parallel_replicas.text_log_size", "2000")
        .start();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT g AS i, repeat('x', 100) AS pad
                 FROM generate_series(1, {ROWS}) g;
             ANALYZE t"
        ),
    );
    cluster.register_replicas();
    cluster
}

/// A session in which only replicas read, so that they are never too late.
fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    prepare(&mut client);
    client
}

fn prepare(client: &mut Client) {
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.granule_blocks = 16;
             SET parallel_replicas.connect_timeout = '30s'",
        )
        .expect("settings");
}

fn count(client: &mut Client) {
    let query = "SELECT count(*)::text FROM t";
    assert_eq!(text(client, query), ROWS.to_string());
}

fn last_id(client: &mut Client) -> String {
    text(client, "SELECT parallel_replicas.last_query_id()::text")
}

fn is_true(client: &mut Client, query: &str) -> bool {
    text(client, &format!("SELECT ({query})::text")) == "true"
}

#[test]
fn a_query_leaves_its_traces() {
    let cluster = cluster();
    let mut client = session(&cluster);
    the_query_log_tells_what_it_did(&mut client);
    the_text_log_tells_each_step(&mut client);
    a_failed_query_is_told_from_a_finished_one(&mut client);
    with_the_level_off_nothing_is_kept(&mut client);
    a_reason_is_kept(&mut client);
    users_see_their_own(&cluster);
    newer_entries_overwrite_older_ones(&mut client);
    counters_can_be_reset(&mut client);
    a_refusal_names_the_query(&cluster, &mut client);
}

fn the_query_log_tells_what_it_did(client: &mut Client) {
    count(client);
    let id = last_id(client);
    let row = client
        .query_one(
            "SELECT status, \"user\"::text, database::text, pid = pg_backend_pid(), fragments,
                    replicas_planned, replicas_used, granules,
                    granules_own + granules_stolen_by_hash + granules_stolen_rest,
                    rows, bytes > 0, duration > '0', now() - started < '1 minute', settings, query
               FROM parallel_replicas.query_log WHERE query_id = $1::text::uuid",
            &[&id],
        )
        .expect("one entry");
    assert_eq!(row.get::<_, String>(0), "finished");
    assert_eq!(row.get::<_, String>(1), "postgres");
    assert_eq!(row.get::<_, String>(2), "postgres");
    assert!(row.get::<_, bool>(3), "this session's process");
    assert_eq!(row.get::<_, i32>(4), 1);
    assert_eq!(row.get::<_, i32>(5), 2);
    assert!((1..=2).contains(&row.get::<_, i32>(6)), "replicas used");
    let blocks: i64 = text(client, "SELECT (pg_relation_size('t') / 8192)::text")
        .parse()
        .expect("a number");
    assert_eq!(row.get::<_, i64>(7), (blocks + 15) / 16);
    assert_eq!(row.get::<_, i64>(8), row.get::<_, i64>(7));
    assert!(row.get::<_, i64>(9) > 0, "rows");
    for column in 10..13 {
        assert!(row.get::<_, bool>(column), "column {column}");
    }
    let settings: String = row.get(13);
    assert!(
        settings.contains("enable_parallel_replicas=force"),
        "{settings}"
    );
    assert!(
        settings.contains("parallel_replicas.granule_blocks=16"),
        "{settings}"
    );
    assert!(!settings.contains("stall_timeout"), "{settings}");
    assert_eq!(row.get::<_, String>(14), "SELECT count(*)::text FROM t");
}

fn the_text_log_tells_each_step(client: &mut Client) {
    let events = |client: &mut Client, id: &str| {
        text(
            client,
            &format!(
                "SELECT string_agg(DISTINCT event, ' ' ORDER BY event)
                   FROM parallel_replicas.text_log WHERE query_id = '{id}'"
            ),
        )
    };
    count(client);
    let id = last_id(client);
    assert_eq!(
        events(client, &id),
        "announced delivered ended started summary"
    );
    client
        .batch_execute("SET parallel_replicas.log_level = trace")
        .expect("setting");
    count(client);
    let id = last_id(client);
    assert_eq!(
        events(client, &id),
        "announced connecting delivered ended nothing_left started summary task_done task_given"
    );
    // The steps add up to what the query did.
    let granules = |client: &mut Client, event: &str| {
        text(
            client,
            &format!(
                "SELECT sum(granules)::text FROM parallel_replicas.text_log
                  WHERE query_id = '{id}' AND event = '{event}'"
            ),
        )
    };
    let selected = text(
        client,
        &format!("SELECT granules::text FROM parallel_replicas.query_log WHERE query_id = '{id}'"),
    );
    // What was given back was given again.
    let number = |text: String| text.parse::<u32>().expect("a number");
    assert!(number(granules(client, "task_given")) >= number(selected.clone()));
    assert_eq!(granules(client, "task_done"), selected);
    assert!(is_true(
        client,
        &format!(
            "SELECT bool_and(stage IS NOT NULL AND replica ~ '^standby' AND level = 'trace'
                             AND message ~ 'asked and got task')
               FROM parallel_replicas.text_log
              WHERE query_id = '{id}' AND event = 'task_given'"
        )
    ));
    client
        .batch_execute("SET parallel_replicas.log_level = summary")
        .expect("setting");
    // With local workers, theirs too.
    client
        .batch_execute(
            "SET parallel_replicas_local_plan = on; SET parallel_replicas.log_level = trace",
        )
        .expect("settings");
    count(client);
    let id = last_id(client);
    assert!(is_true(
        client,
        &format!(
            "SELECT count(*) > 0 FROM parallel_replicas.text_log
              WHERE query_id = '{id}' AND event = 'task_given' AND replica IS NULL"
        )
    ));
    client
        .batch_execute(
            "SET parallel_replicas_local_plan = off; SET parallel_replicas.log_level = summary",
        )
        .expect("settings");
}

fn a_failed_query_is_told_from_a_finished_one(client: &mut Client) {
    client
        .query("SELECT sum(1 / (i - 5)) FROM t", &[])
        .expect_err("division by zero");
    let id = last_id(client);
    let status = format!("SELECT status FROM parallel_replicas.query_log WHERE query_id = '{id}'");
    assert_eq!(text(client, &status), "failed");
    assert!(is_true(
        client,
        "SELECT count(*) = 0 FROM parallel_replicas.query_progress"
    ));
}

fn with_the_level_off_nothing_is_kept(client: &mut Client) {
    let before = text(
        client,
        "SELECT max(started)::text FROM parallel_replicas.query_log",
    );
    client
        .batch_execute("SET parallel_replicas.log_level = off")
        .expect("setting");
    count(client);
    let id = last_id(client);
    for view in ["query_log", "text_log"] {
        assert!(is_true(
            client,
            &format!("SELECT count(*) = 0 FROM parallel_replicas.{view} WHERE query_id = '{id}'")
        ));
    }
    let after = "SELECT max(started)::text FROM parallel_replicas.query_log";
    assert_eq!(text(client, after), before);
    client
        .batch_execute("RESET parallel_replicas.log_level")
        .expect("setting");
}

fn a_reason_is_kept(client: &mut Client) {
    // Found out when the query is planned.
    client
        .query("SELECT count(*) FROM t TABLESAMPLE system (10)", &[])
        .expect_err("force");
    // Found out when it is executed.
    client
        .batch_execute("BEGIN; SELECT pg_current_xact_id()")
        .expect("transaction");
    client
        .query("SELECT count(*) FROM t", &[])
        .expect_err("force");
    client.batch_execute("ROLLBACK").expect("transaction");
    let reasons = text(
        client,
        "SELECT string_agg(status || ': ' || reason, ', ' ORDER BY started)
           FROM parallel_replicas.query_log WHERE reason IS NOT NULL",
    );
    assert_eq!(reasons, "planned without: tablesample, failed: own_xid");
}

fn users_see_their_own(cluster: &Cluster) {
    cluster.psql(
        PRIMARY,
        "CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN;
         GRANT pg_monitor TO eve; GRANT SELECT ON t TO alice, bob;
         CREATE USER MAPPING FOR alice SERVER standby1 OPTIONS (user 'postgres', password_required 'false');
         GRANT USAGE ON FOREIGN SERVER standby1 TO alice",
    );
    let mut alice = cluster.connect_as(PRIMARY, "alice");
    prepare(&mut alice);
    count(&mut alice);
    let own = "SELECT string_agg(DISTINCT \"user\", ' ' ORDER BY \"user\")
                 FROM parallel_replicas.query_log";
    assert_eq!(text(&mut alice, own), "alice");
    let steps = own.replace("query_log", "text_log");
    assert_eq!(text(&mut alice, &steps), "alice");
    let mut bob = cluster.connect_as(PRIMARY, "bob");
    for view in ["query_log", "text_log"] {
        assert!(is_true(
            &mut bob,
            &format!("SELECT count(*) = 0 FROM parallel_replicas.{view}")
        ));
    }
    let mut eve = cluster.connect_as(PRIMARY, "eve");
    assert_eq!(text(&mut eve, own), "alice postgres");
    let refused = bob
        .batch_execute("SELECT parallel_replicas.reset_events()")
        .expect_err("not for everybody");
    let refused = refused.as_db_error().expect("the server's own error");
    assert_eq!(refused.code().code(), "42501");
}

fn newer_entries_overwrite_older_ones(client: &mut Client) {
    let overwritten = "SELECT value::text FROM parallel_replicas.events
                        WHERE event = 'ParallelReplicasQueryLogOverwritten'";
    for _ in 0..16 {
        count(client);
    }
    let id = last_id(client);
    let before: i64 = text(client, overwritten).parse().expect("a number");
    count(client);
    let after: i64 = text(client, overwritten).parse().expect("a number");
    assert_eq!(after, before + 1);
    assert!(is_true(
        client,
        "SELECT count(*) = 16 FROM parallel_replicas.query_log"
    ));
    // Oldest first, and the last but one is still there.
    assert!(is_true(
        client,
        &format!(
            "SELECT array_agg(started) = array_agg(started ORDER BY started)
                    AND (array_agg(query_id))[15] = '{id}'
               FROM parallel_replicas.query_log"
        )
    ));
}

fn counters_can_be_reset(client: &mut Client) {
    let row = |client: &mut Client| -> (i64, f64) {
        let row = client
            .query_one(
                "SELECT value, extract(epoch FROM clock_timestamp() - stats_reset)::float8
                   FROM parallel_replicas.events WHERE event = 'ParallelReplicasQueryCount'",
                &[],
            )
            .expect("a counter");
        (row.get(0), row.get(1))
    };
    let (before, _) = row(client);
    assert!(before > 0);
    client
        .batch_execute("SELECT parallel_replicas.reset_events()")
        .expect("reset");
    let (after, age) = row(client);
    assert_eq!(after, 0);
    assert!((0.0..60.0).contains(&age), "{age}");
    count(client);
    assert_eq!(row(client).0, 1);
    // Every counter that such a query moves.
    let still = text(
        client,
        "SELECT string_agg(event, ' ' ORDER BY event) FROM parallel_replicas.events
          WHERE value > 0",
    );
    for name in [
        "AvailableCount",
        "BytesReceived",
        "CollectingOwnedSegmentsMicroseconds",
        "HandleRequestMicroseconds",
        "NumRequests",
        "ProcessingPartsMicroseconds",
        "QueryCount",
        "ReadAssignedMarks",
        "ReadByReplicasMarks",
        "RowsReceived",
        "UsedCount",
    ] {
        assert!(
            still.contains(&format!("ParallelReplicas{name}")),
            "{name} did not move: {still}"
        );
    }
}

/// The replica's log names the query, and so does the coordinator's.
fn a_refusal_names_the_query(cluster: &Cluster, client: &mut Client) {
    cluster.pause_replay(2);
    cluster.psql(PRIMARY, "CREATE TABLE later(i int)");
    client
        .batch_execute("SET parallel_replicas.replay_wait_timeout = '50ms'")
        .expect("setting");
    // Slow enough that the replica refuses before it is told that nothing is left for it.
    client
        .query("SELECT sum(length(repeat(pad, 1000))) FROM t", &[])
        .expect("the other replica does it");
    let id = last_id(client);
    cluster.resume_replay(2);
    let own = format!("query {id}: replica \"standby2\" refused to take part: replay");
    wait_until(SOON, "the coordinator's log has it", || {
        cluster.log(PRIMARY).contains(&own)
    });
    let theirs = format!("STATEMENT:  fragment of query {id} of another server");
    wait_until(SOON, "the replica's log has it", || {
        cluster.log(2).contains(&theirs)
    });
}

/// While it runs: progress on the coordinator, and the same id on the replicas.
#[test]
fn a_query_is_seen_while_it_runs() {
    let cluster = cluster();
    let mut client = session(&cluster);
    count(&mut client);
    let slow = thread::spawn(move || {
        text(
            &mut client,
            "SELECT sum(length(repeat(pad, 3000)))::text FROM t",
        )
    });
    let mut observer = cluster.connect(PRIMARY);
    let mut seen = String::new();
    wait_until(SOON, "the query has made progress", || {
        seen = text(
            &mut observer,
            "SELECT coalesce(max(query_id || ' ' || query), '')
               FROM parallel_replicas.query_progress
              WHERE granules_done > 0 AND granules_done < granules_selected
                AND percent > 0 AND percent < 100",
        );
        !seen.is_empty()
    });
    let (id, query) = seen.split_once(' ').expect("two words");
    assert!(query.starts_with("SELECT sum(length(repeat"), "{query}");
    for node in [1, 2] {
        let mut replica = cluster.connect(node);
        wait_until(SOON, "the fragment is seen", || {
            is_true(
                &mut replica,
                &format!(
                    "SELECT count(*) > 0 FROM parallel_replicas.running_fragments f
                       JOIN pg_stat_activity a USING (pid)
                      WHERE f.query_id = '{id}' AND f.phase = 'working' AND f.granules_read > 0
                        AND a.application_name = 'parallel_replicas {id}'
                        AND a.query LIKE '%{id}%'"
                ),
            )
        });
    }
    let answer = slow.join().expect("the query ends");
    assert_eq!(answer, (u64::from(ROWS) * 100 * 3000).to_string());
    wait_until(SOON, "nothing is left", || {
        is_true(
            &mut observer,
            "SELECT count(*) = 0 FROM parallel_replicas.query_progress",
        )
    });
    for node in [1, 2] {
        let mut replica = cluster.connect(node);
        wait_until(SOON, "nothing is left there", || {
            is_true(
                &mut replica,
                "SELECT count(*) = 0 FROM parallel_replicas.running_fragments",
            )
        });
    }
}

/// One statement shows every server; one that is down is a warning.
#[test]
fn all_servers_are_seen_from_one() {
    let mut cluster = cluster();
    let mut client = session(&cluster);
    count(&mut client);
    let served = "SELECT count(*)::text FROM parallel_replicas.cluster_events
                   WHERE event = 'ParallelReplicasServedCount' AND value > 0
                     AND replica ~ '^standby' AND hostname = parallel_replicas.hostname()";
    wait_until(SOON, "both replicas have counted", || {
        text(&mut client, served) == "2"
    });
    let servers = "SELECT string_agg(DISTINCT replica, ' ' ORDER BY replica)
                     FROM parallel_replicas.cluster_events";
    assert_eq!(text(&mut client, servers), "local standby1 standby2");
    let id = last_id(&mut client);
    assert!(is_true(
        &mut client,
        &format!(
            "SELECT count(*) = 1 AND min(replica) = 'local'
               FROM parallel_replicas.cluster_query_log WHERE query_id = '{id}'"
        )
    ));
    a_table_of_any_name_is_read(&cluster, &mut client);
    users_read_what_is_harmless(&cluster);
    running_fragments_are_seen_from_the_coordinator(&cluster);

    cluster.stop(2, StopMode::Fast);
    let output = cluster.psql_output(
        PRIMARY,
        &["-At"],
        "SELECT DISTINCT replica FROM parallel_replicas.cluster_events ORDER BY 1",
    );
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "local\nstandby1\n");
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        warning.contains("WARNING:  could not read from replica \"standby2\"")
            && warning.contains("DETAIL:  could not connect to replica:"),
        "{warning}"
    );
}

/// With its nulls and its odd characters.
fn a_table_of_any_name_is_read(cluster: &Cluster, client: &mut Client) {
    client
        .batch_execute(
            r#"CREATE SCHEMA "odd schema"; CREATE TABLE "odd schema"."a ""b"(n int, w text);
               INSERT INTO "odd schema"."a ""b" VALUES (1, NULL), (NULL, '("x",)')"#,
        )
        .expect("table");
    cluster.wait_all_caught_up();
    let rows = r#"SELECT string_agg(format('%s %s %s', replica, coalesce(("row").n, 0), ("row").w), ';'
                                    ORDER BY replica, ("row").n)
                    FROM parallel_replicas.cluster_all_replicas('default', NULL::"odd schema"."a ""b")"#;
    assert_eq!(
        text(client, rows),
        ["local", "standby1", "standby2"]
            .map(|server| format!("{server} 1 ;{server} 0 (\"x\",)"))
            .join(";")
    );
    let wrong = client
        .query(
            "SELECT parallel_replicas.cluster_all_replicas('default', 1)",
            &[],
        )
        .expect_err("no row type");
    let wrong = wrong.as_db_error().expect("the server's own error");
    assert_eq!(wrong.code().code(), "42809");
}

/// The link's account is a superuser here, and nobody gets at its rights.
fn users_read_what_is_harmless(cluster: &Cluster) {
    cluster.psql(
        PRIMARY,
        "CREATE ROLE nosy LOGIN; CREATE TABLE hidden AS SELECT 1 AS i;
         CREATE USER MAPPING FOR nosy SERVER standby1 OPTIONS (user 'postgres', password_required 'false');
         CREATE USER MAPPING FOR nosy SERVER standby2 OPTIONS (user 'postgres', password_required 'false');
         GRANT USAGE ON FOREIGN SERVER standby1, standby2 TO nosy;
         CREATE SCHEMA own AUTHORIZATION nosy; CREATE TABLE policed AS SELECT 1 AS i;
         GRANT SELECT ON policed, t TO nosy; ALTER TABLE policed ENABLE ROW LEVEL SECURITY;
         SET ROLE nosy;
         CREATE FUNCTION own.who() RETURNS name LANGUAGE sql AS 'SELECT current_user';
         CREATE VIEW own.trap AS SELECT own.who() AS who; RESET ROLE;
         CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere;
         CREATE FOREIGN TABLE afar(i int) SERVER elsewhere;
         CREATE TABLE partly(i int) PARTITION BY LIST (i);
         CREATE FOREIGN TABLE part PARTITION OF partly FOR VALUES IN (1) SERVER elsewhere;
         CREATE VIEW plain AS SELECT 1 AS i; CREATE MATERIALIZED VIEW kept AS SELECT 1 AS i;
         CREATE TABLE heirs(i int); CREATE TABLE own.child() INHERITS (heirs); ALTER TABLE own.child OWNER TO nosy;
         CREATE TABLE own.given AS SELECT 1 AS i;
         GRANT SELECT ON afar, partly, plain, kept, heirs, own.given TO nosy",
    );
    cluster.wait_all_caught_up();
    let mut nosy = cluster.connect_as(PRIMARY, "nosy");
    let read = |relation: &str| {
        format!(
            "SELECT count(*)::text
               FROM parallel_replicas.rows_of_replicas('default', NULL::{relation})"
        )
    };
    let refused = [
        "hidden",
        "pg_authid",
        "own.trap",
        "policed",
        "plain",
        "afar",
        "partly",
        "heirs",
        "own.given",
        "pg_stats",
        "pg_user_mappings",
        "pg_stat_activity",
        "parallel_replicas.replicas",
        "parallel_replicas.running_queries",
        "parallel_replicas.cluster_query_log",
    ];
    for relation in refused {
        let refused = nosy.query(&read(relation), &[]).expect_err(relation);
        let refused = refused.as_db_error().expect("the server's own error");
        assert_eq!(refused.code().code(), "42501", "{relation}: {refused}");
    }
    for (relation, rows) in [("kept", "2"), ("parallel_replicas.resource_groups", "0")] {
        assert_eq!(text(&mut nosy, &read(relation)), rows, "{relation}");
    }
    // Members of pg_monitor see all of these on each server.
    cluster.psql(PRIMARY, "GRANT pg_monitor TO nosy");
    assert_eq!(text(&mut nosy, &read("parallel_replicas.replicas")), "4");
    cluster.psql(PRIMARY, "REVOKE pg_monitor FROM nosy");
    others_queries_stay_hidden(cluster, &mut nosy);
    assert_eq!(
        text(
            &mut nosy,
            "SELECT string_agg(DISTINCT replica, ' ' ORDER BY replica)
               FROM parallel_replicas.cluster_events"
        ),
        "local standby1 standby2"
    );
}

/// A log of a replica, that its superuser sees whole.
fn others_queries_stay_hidden(cluster: &Cluster, nosy: &mut Client) {
    let mut standby = cluster.connect(1);
    let mut own = cluster.connect_as(1, "nosy");
    for client in [&mut standby, &mut own] {
        client
            .batch_execute(
                "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'x';
                 SELECT count(*) FROM t",
            )
            .expect("a query");
    }
    let users = "SELECT string_agg(DISTINCT \"user\", ' ' ORDER BY \"user\")
                   FROM parallel_replicas.cluster_query_log WHERE replica = 'standby1'";
    assert_eq!(text(nosy, users), "nosy");
    assert_eq!(text(&mut cluster.connect(PRIMARY), users), "nosy postgres");
    cluster.psql(PRIMARY, "GRANT pg_read_all_stats TO nosy");
    cluster.wait_all_caught_up();
    assert_eq!(text(nosy, users), "nosy postgres");
    cluster.psql(PRIMARY, "REVOKE pg_read_all_stats FROM nosy");
    cluster.wait_all_caught_up();
}

fn running_fragments_are_seen_from_the_coordinator(cluster: &Cluster) {
    // With an account of the link that has no rights of its own, and that several may share.
    cluster.psql(
        PRIMARY,
        "CREATE ROLE link LOGIN IN ROLE parallel_replicas_link; CREATE ROLE carol LOGIN;
         CREATE USER MAPPING FOR carol SERVER standby1 OPTIONS (user 'link', password_required 'false');
         CREATE USER MAPPING FOR carol SERVER standby2 OPTIONS (user 'link', password_required 'false');
         GRANT USAGE ON FOREIGN SERVER standby1, standby2 TO carol; GRANT SELECT ON t TO carol",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect_as(PRIMARY, "carol");
    prepare(&mut client);
    count(&mut client);
    let mut link = cluster.connect_as(1, "link");
    let mut standby = cluster.connect(1);
    let slow = thread::spawn(move || {
        text(
            &mut client,
            "SELECT sum(length(repeat(pad, 3000)))::text FROM t",
        )
    });
    let mut observer = cluster.connect(PRIMARY);
    wait_until(SOON, "fragments on both replicas", || {
        is_true(
            &mut observer,
            "SELECT count(DISTINCT f.replica) = 2 AND count(DISTINCT f.query_id) = 1
               FROM parallel_replicas.cluster_running_fragments f
               JOIN parallel_replicas.query_progress q USING (query_id)",
        )
    });
    let fragments = "SELECT count(*) > 0 FROM parallel_replicas.running_fragments";
    assert!(!is_true(&mut link, fragments));
    assert!(is_true(&mut standby, fragments));
    slow.join().expect("the query ends");
}

/// The picture is there, is whole, and can be seen by day and by night.
#[test]
fn a_query_has_a_picture() {
    let cluster = cluster();
    let mut client = session(&cluster);
    client
        .batch_execute(
            "SET parallel_replicas_local_plan = on; SET parallel_replicas.log_level = trace;
             SET parallel_replicas.granule_blocks = 64",
        )
        .expect("settings");
    // Not the first one, which has to connect.
    let query = "SELECT count(*)::text FROM t WHERE pad <> '<&\"' AND length(repeat(pad, 500)) > 0";
    for _ in 0..2 {
        assert_eq!(text(&mut client, query), ROWS.to_string());
    }
    let id = last_id(&mut client);
    let page = text(
        &mut client,
        &format!("SELECT parallel_replicas.query_timeline('{id}')"),
    );
    assert!(
        page.contains("pad &lt;&gt; &#39;&lt;&amp;&quot;&#39;"),
        "the query's text"
    );
    let tasks = text(
        &mut client,
        &format!(
            "SELECT (count(*) FILTER (WHERE event = 'task_given')
                     - count(*) FILTER (WHERE event = 'task_done' AND granules = 0))::text
               FROM parallel_replicas.text_log WHERE query_id = '{id}'"
        ),
    );
    let bars = ["own", "hash", "rest", "back"]
        .map(|class| page.matches(&format!("class=\"bar {class}\"")).count());
    assert_eq!(bars.iter().sum::<usize>().to_string(), tasks, "{bars:?}");
    // Well-formed, with a lane for each process that did something.
    let lanes = client
        .query_one(
            "SELECT xpath('//s:svg[@role]/s:text/text()', $1::text::xml,
                          '{{s,http://www.w3.org/2000/svg}}')::text[]",
            &[&page],
        )
        .expect("a document");
    let lanes: Vec<String> = lanes.get(0);
    assert!(
        lanes
            .iter()
            .any(|lane| lane.starts_with("worker ") || lane == "leader"),
        "{lanes:?}"
    );
    for replica in ["standby1 #", "standby2 #"] {
        let links = lanes
            .iter()
            .filter(|lane| lane.starts_with(replica))
            .count();
        assert_eq!(links, 2, "{lanes:?}");
    }

    // Written to a file as README.md says.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("timeline.html");
    cluster.psql(
        PRIMARY,
        &format!(
            "SELECT parallel_replicas.query_timeline('{id}') \\g (format=unaligned tuples_only=on) {}",
            file.display()
        ),
    );
    let written = std::fs::read_to_string(&file).expect("the page");
    assert_eq!(written, format!("{page}\n"));
    for (scheme, background, own) in [
        (Scheme::Light, [0xff, 0xff, 0xff], [0x00, 0x72, 0xb2]),
        (Scheme::Dark, [0x14, 0x17, 0x1b], [0x56, 0xa8, 0xe0]),
    ] {
        let shot = screenshot(&file, scheme);
        assert_eq!(shot.at(3, 3), background, "{scheme:?}");
        assert!(
            shot.count(own) > 500,
            "{scheme:?}: own tasks cannot be seen"
        );
    }

    let unknown = client
        .query(
            "SELECT parallel_replicas.query_timeline('00000000-0000-0000-0000-000000000000')",
            &[],
        )
        .expect_err("no such query");
    let unknown = unknown.as_db_error().expect("the server's own error");
    assert_eq!(unknown.code().code(), "02000");
    assert!(unknown.hint().is_some());
}
