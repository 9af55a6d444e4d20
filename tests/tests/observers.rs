//! Who sees what of the queries of others, and of other servers: while they run, afterwards, and when
//! a server does not answer.

use std::thread;
use std::time::{Duration, Instant};

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_for, wait_until};
use postgres::error::SqlState;
use postgres::{Client, NoTls};

const ROWS: u32 = 60_000;

fn cluster(standbys: usize) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "30s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.stall_timeout", "100s")
        .setting("parallel_replicas.granule_blocks", "4")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT g AS i, repeat('x', 100) AS pad
                 FROM generate_series(1, {ROWS}) g;
             ANALYZE t"
        ),
    );
    cluster.wait_all_caught_up();
    cluster
}

#[track_caller]
fn count(client: &mut Client, from: &str) -> u32 {
    let count = text(client, &format!("SELECT count(*)::text FROM {from}"));
    count.parse().expect("a number")
}

/// Roles that differ in what they may see of alice's queries.
const SEE_THEM: [&str; 4] = ["alice", "friend", "watcher", "postgres"];
const SEE_NOTHING: &str = "bob";

#[test]
fn a_query_is_seen_by_its_user_and_by_who_watches_over_all() {
    let cluster = cluster(2);
    cluster.psql(
        PRIMARY,
        "CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE friend LOGIN IN ROLE alice;
         CREATE ROLE watcher LOGIN IN ROLE pg_monitor; GRANT SELECT ON t TO alice, bob;
         GRANT USAGE ON FOREIGN SERVER standby1, standby2 TO alice;
         CREATE USER MAPPING FOR alice SERVER standby1 OPTIONS (user 'postgres', password_required 'false');
         CREATE USER MAPPING FOR alice SERVER standby2 OPTIONS (user 'postgres', password_required 'false');
         CREATE ROLE shared; GRANT shared TO alice, bob; GRANT SELECT ON t TO shared;
         GRANT USAGE ON FOREIGN SERVER standby1 TO shared;
         CREATE USER MAPPING FOR shared SERVER standby1 OPTIONS (user 'postgres', password_required 'false')",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect_as(PRIMARY, "alice");
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas.log_level = trace; SET statement_timeout = '100s'",
        )
        .expect("settings");
    let query = thread::spawn(move || {
        let answer = text(
            &mut client,
            "SELECT sum(length(repeat(pad, 500)))::text FROM t",
        );
        assert_eq!(answer, (u64::from(ROWS) * 100 * 500).to_string());
        text(
            &mut client,
            "SELECT parallel_replicas.last_query_id()::text",
        )
    });
    // It cannot end before this process, which has sums that nobody else has, goes on.
    let mut standby = cluster.connect(1);
    let process: i32 = wait_for(SOON, "a process has begun to read", || {
        let process = text(
            &mut standby,
            "SELECT max(pid)::text FROM parallel_replicas.running_fragments WHERE granules_read > 0",
        );
        process.parse().ok()
    });
    signal(process, Signal::STOP);
    let running = [
        (PRIMARY, String::from("parallel_replicas.query_progress")),
        (
            1,
            format!("parallel_replicas.running_fragments WHERE pid = {process}"),
        ),
    ];
    for (node, from) in &running {
        for role in SEE_THEM {
            let mut client = cluster.connect_as(*node, role);
            assert_eq!(count(&mut client, from), 1, "{role} on server {node}");
        }
        let mut client = cluster.connect_as(*node, SEE_NOTHING);
        assert_eq!(count(&mut client, from), 0, "on server {node}");
    }
    assert!(!query.is_finished(), "the query was over too soon");
    signal(process, Signal::CONT);
    let id = query.join().expect("the query ends");

    let ended = [
        format!("parallel_replicas.query_log WHERE query_id = '{id}'"),
        format!("parallel_replicas.text_log WHERE query_id = '{id}' AND event = 'ended'"),
        format!("parallel_replicas.get_text_log('{id}') WHERE event = 'ended'"),
    ];
    let picture = format!("SELECT parallel_replicas.query_timeline('{id}')");
    for role in SEE_THEM {
        let mut client = cluster.connect_as(PRIMARY, role);
        for from in &ended {
            assert_eq!(count(&mut client, from), 1, "{role}: {from}");
        }
        assert!(text(&mut client, &picture).contains(&id), "{role}");
    }
    let mut client = cluster.connect_as(PRIMARY, SEE_NOTHING);
    for from in &ended {
        assert_eq!(count(&mut client, from), 0, "{from}");
    }
    let refused = client.query(&picture, &[]).expect_err("of somebody else");
    let refused = refused.as_db_error().expect("the server's own error");
    assert_eq!(refused.code().code(), "02000");

    // It stays hers when she takes a role that others may take, too.
    let mut client = cluster.connect_as(PRIMARY, "alice");
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas.log_level = summary;
             SET ROLE shared; SELECT count(*) FROM t",
        )
        .expect("the query");
    let id = text(
        &mut client,
        "SELECT parallel_replicas.last_query_id()::text",
    );
    let ended = format!("parallel_replicas.query_log WHERE query_id = '{id}'");
    for (role, seen) in SEE_THEM
        .map(|role| (role, 1))
        .into_iter()
        .chain([(SEE_NOTHING, 0)])
    {
        let mut client = cluster.connect_as(PRIMARY, role);
        assert_eq!(count(&mut client, &ended), seen, "{role}");
    }
    damage_check(&cluster);
}

/// What psql says to one statement, and how long it took.
#[track_caller]
fn ask(cluster: &Cluster, script: &str) -> (String, String, Duration) {
    let start = Instant::now();
    let output = cluster.psql_output(PRIMARY, &["-q", "-At"], script);
    let took = start.elapsed();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{stderr}");
    (stdout, stderr, took)
}

/// A standby keeps a log of its own, of what its own users wanted.
#[test]
fn the_query_log_of_a_replica_is_seen_from_the_primary_unless_the_replica_is_frozen() {
    let mut cluster = cluster(2);
    let mut standby = cluster.connect(2);
    standby
        .batch_execute("SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'x'")
        .expect("settings");
    assert_eq!(count(&mut standby, "t"), ROWS);
    let id = text(
        &mut standby,
        "SELECT parallel_replicas.last_query_id()::text",
    );
    let log = format!(
        "SET parallel_replicas.connect_timeout = '1500ms';
         SELECT replica, status, reason, query FROM parallel_replicas.cluster_query_log
          WHERE query_id = '{id}'"
    );
    let events = "SET parallel_replicas.connect_timeout = '1500ms';
        SELECT DISTINCT replica FROM parallel_replicas.cluster_events ORDER BY 1";
    let row = "standby2|planned without|in_recovery|SELECT count(*)::text FROM t\n";
    let all = "local\nstandby1\nstandby2\n";
    for (script, expected) in [(log.as_str(), row), (events, all)] {
        let (rows, said, _) = ask(&cluster, script);
        assert_eq!((rows.as_str(), said.as_str()), (expected, ""));
    }

    cluster.sigstop(2);
    for (script, expected) in [(log.as_str(), ""), (events, "local\nstandby1\n")] {
        let (rows, said, took) = ask(&cluster, script);
        assert_eq!(rows, expected);
        assert_eq!(
            said,
            "WARNING:  could not read from replica \"standby2\"\n\
             DETAIL:  timed out while connecting.\n"
        );
        // An answer would have been waited for much longer.
        let took = took.as_millis();
        assert!((1500..9000).contains(&took), "{took} ms");
    }
    cluster.sigcont(2);

    for (script, expected) in [(log.as_str(), row), (events, all)] {
        let script = script.replace("1500ms", "30s");
        let (rows, said, _) = ask(&cluster, &script);
        assert_eq!((rows.as_str(), said.as_str()), (expected, ""));
    }
    damage_check(&cluster);
}

/// Longer than a replica's answer is waited for, and than a test waits.
const SLEEPY: &str = "CREATE VIEW sleepy AS
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_sleep(600)::text ELSE 'awake' END AS state";

const ASK_SLEEPY: &str = "SELECT replica, (\"row\").state
    FROM parallel_replicas.cluster_all_replicas('default', NULL::sleepy)";

/// The statement that a replica executes for somebody who asks about all servers.
const ASKED: &str = "pg_stat_activity
    WHERE query LIKE '%sleepy%' AND state = 'active' AND wait_event = 'PgSleep'";

#[test]
fn a_replica_that_does_not_answer_is_a_warning_and_is_left_in_peace() {
    let cluster = cluster(1);
    cluster.psql(PRIMARY, SLEEPY);
    cluster.wait_all_caught_up();
    let mut standby = cluster.connect(1);

    // Somebody who does not want to know any more.
    let mut client = cluster.connect(PRIMARY);
    let canceller = client.cancel_token();
    let asking = thread::spawn(move || client.query(ASK_SLEEPY, &[]).map(|rows| rows.len()));
    wait_until(SOON, "the replica is asked", || {
        count(&mut standby, ASKED) == 1
    });
    canceller.cancel_query(NoTls).expect("a request to cancel");
    let cancelled = asking.join().expect("no panic").expect_err("cancelled");
    assert_eq!(cancelled.code(), Some(&SqlState::QUERY_CANCELED));
    wait_until(SOON, "the replica stops, too", || {
        count(&mut standby, ASKED) == 0
    });

    let (rows, said, took) = ask(&cluster, ASK_SLEEPY);
    assert_eq!(rows, "local|awake\n");
    assert_eq!(
        said,
        "WARNING:  could not read from replica \"standby1\"\n\
         DETAIL:  timed out while waiting for a reply.\n"
    );
    assert!((10..50).contains(&took.as_secs()), "{took:?}");
    wait_until(SOON, "the replica stops, too", || {
        count(&mut standby, ASKED) == 0
    });
    damage_check(&cluster);
}
