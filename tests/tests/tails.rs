//! The end of a query: nobody waits long for one slow process, and who comes late still helps.

use std::thread;

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{Cluster, PRIMARY, Rows, SOON, damage_check, text, wait_until};
use postgres::{Client, SimpleQueryMessage};

const ROWS: u32 = 60_000;

fn scene(standbys: usize, settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(standbys)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.granule_blocks", "4")
        .settings(settings)
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t(id int, pad text);
             INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i;
             ANALYZE t"
        ),
    );
    cluster.wait_all_caught_up();
    cluster
}

/// A session whose queries are executed by replicas alone.
fn forced(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas_mark_segment_size = 128; SET statement_timeout = '100s'",
        )
        .unwrap();
    client
}

/// What EXPLAIN ANALYZE says about a query that is executed meanwhile.
fn explain(client: &mut Client, query: &str) -> String {
    let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {query}");
    let messages = client.simple_query(&explain).expect("the query succeeds");
    let lines = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The sum of the numbers that follow `word`.
fn sum_after(text: &str, word: &str) -> u64 {
    let numbers = text.split(word).skip(1).map(|rest| {
        let digits = rest.chars().take_while(char::is_ascii_digit);
        digits.collect::<String>().parse::<u64>().unwrap_or(0)
    });
    numbers.sum()
}

/// One process stands still until all others have nothing left to do. What it has not begun they
/// do, and the query does not wait for it to do so.
#[test]
fn a_link_gives_back_what_others_can_do_sooner() {
    for (query, ordered) in [
        ("SELECT sum(length(repeat(pad, 600))) FROM t", false),
        ("SELECT id FROM t WHERE length(repeat(pad, 600)) > 0", false),
        (
            "SELECT id FROM t WHERE length(repeat(pad, 600)) > 0 ORDER BY id DESC",
            true,
        ),
    ] {
        let cluster = scene(2, &[("parallel_replicas.stall_timeout", "100s")]);
        let mut client = forced(&cluster);
        let running = thread::spawn(move || {
            let plan = explain(&mut client, query);
            (plan, client)
        });
        let process = cluster.serving(1);
        let requests = || cluster.event(PRIMARY, "HandleRequestMicroseconds");
        let at_start = requests();
        wait_until(SOON, "tasks are handed out", || requests() > at_start);
        signal(process, Signal::STOP);
        let (mut last, mut looks) = (0, 0);
        wait_until(SOON, "all others have done what they had", || {
            let now = requests();
            looks = if now == last { looks + 1 } else { 0 };
            last = now;
            looks >= 30
        });
        assert!(!running.is_finished(), "it was not waited for");
        signal(process, Signal::CONT);
        let (plan, mut client) = running.join().unwrap();
        assert!(sum_after(&plan, "given back=") > 0, "{plan}");
        assert_eq!(cluster.event(PRIMARY, "LostCount"), 0);
        let expected = Rows::fetch(&mut cluster.connect(PRIMARY), query).unwrap();
        let rows = Rows::fetch(&mut client, query).unwrap();
        assert_eq!(expected.difference(&rows, ordered), None);
        damage_check(&cluster);
    }
}

#[test]
fn a_replica_that_catches_up_late_joins() {
    let cluster = scene(1, &[]);
    let mut client = forced(&cluster);
    client
        .batch_execute(
            "SET parallel_replicas_local_plan = on; SET max_parallel_workers_per_gather = 1;
             SET parallel_replicas_mark_segment_size = 8",
        )
        .unwrap();
    cluster.pause_replay(1);
    cluster.psql(
        PRIMARY,
        "INSERT INTO t SELECT -i, 'late' FROM generate_series(1, 100) i",
    );
    let query = thread::spawn(move || {
        explain(
            &mut client,
            "SELECT count(*), sum(length(repeat(pad, 2000))) FROM t",
        )
    });
    let mut standby = cluster.connect(1);
    wait_until(SOON, "the replica waits for replay", || {
        text(
            &mut standby,
            "SELECT count(*)::text FROM pg_stat_activity
             WHERE query LIKE 'fragment of query %' AND state = 'active'
               AND backend_xmin IS NULL",
        ) == "2"
    });
    assert!(!query.is_finished(), "the query was over too soon");
    cluster.resume_replay(1);
    let plan = query.join().unwrap();
    let replica = plan
        .lines()
        .find(|line| line.contains("Replica: standby1"))
        .unwrap_or_else(|| panic!("no replica in {plan}"));
    assert!(
        sum_after(replica, "granules=") > 0,
        "it did not join: {plan}"
    );
    assert!(
        sum_after(replica, "own=") > 0,
        "its own were not left to it: {plan}"
    );
    let local = plan.lines().find(|line| line.contains("Local: granules="));
    assert!(
        local.is_some_and(|line| sum_after(line, "granules=") > 0),
        "nobody began without it: {plan}"
    );
    damage_check(&cluster);
}

/// A task whose rows are many ends before they take more than work_mem, be it that they gather within
/// one granule or that they leave the replica between the granules.
#[test]
fn large_rows_need_no_temporary_file() {
    for (work_mem, granule_blocks, repeat, rows) in
        [("4MB", "1", 100, 8000), ("16MB", "32", 20, 40_000)]
    {
        let cluster = scene(
            1,
            &[
                ("work_mem", work_mem),
                ("parallel_replicas.granule_blocks", granule_blocks),
            ],
        );
        let mut client = forced(&cluster);
        client.batch_execute("SET temp_file_limit = 0").unwrap();
        let query = format!("SELECT id, repeat(pad, {repeat}) FROM t WHERE id <= {rows}");
        let expected = Rows::fetch(&mut cluster.connect(PRIMARY), &query).unwrap();
        let rows = Rows::fetch(&mut client, &query).expect("no temporary file is needed");
        assert_eq!(expected.difference(&rows, false), None);
        damage_check(&cluster);
    }
}

/// Whoever waits with a page pinned holds up replay.
#[test]
fn a_replica_waits_for_the_network_with_no_page_pinned() {
    let cluster = scene(
        1,
        &[
            ("work_mem", "256MB"),
            ("parallel_replicas.links_per_replica", "1"),
        ],
    );
    cluster.psql(PRIMARY, "CREATE EXTENSION pg_buffercache");
    cluster.wait_all_caught_up();
    let mut client = forced(&cluster);
    // Nobody reads the answer, so in the end neither coordinator nor replica can send.
    let copy = "COPY (SELECT id, repeat(pad, 50) FROM t) TO STDOUT";
    let unread = client.copy_out(copy).unwrap();
    let mut primary = cluster.connect(PRIMARY);
    let mut observer = cluster.connect(1);
    wait_both_stuck(&mut primary, &mut observer);
    let pinned = text(
        &mut observer,
        "SELECT count(*)::text FROM pg_buffercache
         WHERE relfilenode = pg_relation_filenode('t') AND pinning_backends > 0",
    );
    assert_eq!(pinned, "0");
    drop(unread);
    drop(client);
    damage_check(&cluster);
}

/// A nested loop that needs one inner row only leaves its inner scan in the middle.
#[test]
fn a_replica_waits_for_the_network_with_no_inner_page_pinned() {
    let cluster = scene(
        1,
        &[
            ("work_mem", "256MB"),
            ("parallel_replicas.links_per_replica", "1"),
        ],
    );
    cluster.psql(
        PRIMARY,
        "CREATE EXTENSION pg_buffercache;
         CREATE TABLE i AS SELECT i AS id, repeat('y', 30) AS pad FROM generate_series(1, 60000) i;
         CREATE UNIQUE INDEX i_id ON i(id);
         VACUUM ANALYZE i",
    );
    cluster.wait_all_caught_up();
    let mut expected = cluster.connect(PRIMARY);
    let mut primary = cluster.connect(PRIMARY);
    let mut observer = cluster.connect(1);
    let only = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
        SET enable_memoize = off;";
    for (kind, query) in [
        (
            "Index Scan",
            "SELECT t.id, i.pad, repeat(t.pad, 50) FROM t JOIN i USING (id)",
        ),
        (
            "Index Only Scan",
            "SELECT t.id, i.id, repeat(t.pad, 50) FROM t JOIN i USING (id)",
        ),
    ] {
        let mut client = forced(&cluster);
        client.batch_execute(only).unwrap();
        let plan: Vec<String> = client
            .query(&format!("EXPLAIN (COSTS OFF) {query}"), &[])
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        let plan = plan.join("\n");
        assert!(
            plan.contains("Nested Loop") && plan.contains(kind),
            "{plan}"
        );
        let count = format!("SELECT count(*)::text FROM ({query}) q");
        assert_eq!(
            text(&mut client, &count),
            text(&mut expected, &count),
            "{query}"
        );

        let unread = client
            .copy_out(&format!("COPY ({query}) TO STDOUT"))
            .unwrap();
        wait_both_stuck(&mut primary, &mut observer);
        let pinned = text(
            &mut observer,
            "SELECT coalesce(string_agg(c.relname, ' '), 'nothing') FROM pg_buffercache b
             JOIN pg_class c ON b.relfilenode = pg_relation_filenode(c.oid)
             WHERE c.relname IN ('t', 'i', 'i_id') AND b.relforknumber = 0
               AND b.pinning_backends > 0",
        );
        assert_eq!(pinned, "nothing", "{query}");
        drop(unread);
        drop(client);
    }
    damage_check(&cluster);
}

/// Coordinator and replica can neither send nor do anything else.
#[track_caller]
fn wait_both_stuck(primary: &mut Client, observer: &mut Client) {
    let waits = |query: &str, event: &str| {
        format!(
            "SELECT coalesce(bool_and(wait_event IS NOT DISTINCT FROM '{event}'), false)::text
             FROM pg_stat_activity WHERE query LIKE '{query}%' AND state = 'active'"
        )
    };
    let (coordinator, replica) = (
        waits("COPY", "ClientWrite"),
        waits("fragment of query", "Extension"),
    );
    let mut looks = 0;
    wait_until(SOON, "both wait for the network", || {
        let both = text(primary, &coordinator) == "true" && text(observer, &replica) == "true";
        looks = if both { looks + 1 } else { 0 };
        looks >= 20
    });
}

/// A hash join reads its first outer row before it finds its inner side empty, and never asks for the
/// rest of that scan.
#[test]
fn a_scan_that_a_join_does_not_need_is_left() {
    let cluster = scene(2, &[]);
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t2 AS SELECT * FROM t;
         CREATE TABLE d AS SELECT i AS id, i % 2 AS f FROM generate_series(1, 1000) i;
         ANALYZE t2; ANALYZE d",
    );
    cluster.wait_all_caught_up();
    let mut alone = cluster.connect(PRIMARY);
    let mut client = forced(&cluster);
    for local in ["off", "on"] {
        client
            .batch_execute(&format!("SET parallel_replicas_local_plan = {local}"))
            .unwrap();
        for (first, second) in [(7, 7), (7, 1), (1, 7), (0, 1)] {
            for wanted in ["count(*), sum(id)", "*"] {
                let query = format!(
                    "SELECT {wanted} FROM (
                         SELECT t.id FROM t JOIN d USING (id) WHERE d.f = {first}
                         UNION ALL
                         SELECT t2.id FROM t2 JOIN d USING (id) WHERE d.f = {second}) s"
                );
                let plan = explain(&mut client, &query);
                assert!(plan.contains("Append"), "{plan}");
                assert_eq!(plan.matches("(GranuleScan)").count(), 2, "{plan}");
                let expected = Rows::fetch(&mut alone, &query).unwrap();
                let rows = Rows::fetch(&mut client, &query).unwrap();
                assert_eq!(expected.difference(&rows, false), None, "{query}");
                assert_eq!(cluster.event(PRIMARY, "LostCount"), 0, "{query}");
            }
        }
    }
    damage_check(&cluster);
}
