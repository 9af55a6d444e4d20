//! The end of a query: nobody waits long for one slow process, and who comes late still helps.

use std::thread;

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{Cluster, PRIMARY, Rows, SOON, damage_check, text, wait_until};
use postgres::{Client, SimpleQueryMessage};

const ROWS: u32 = 60_000;

fn scene(standbys: usize, settings: &[(&str, &str)]) -> Cluster {
    let mut options = Cluster::builder()
        .standbys(standbys)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.granule_blocks", "4");
    for (name, value) in settings {
        options = options.setting(name, value);
    }
    let cluster = options.start();
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

fn event(cluster: &Cluster, name: &str) -> u64 {
    let query = format!(
        "SELECT value::text FROM parallel_replicas.events WHERE event = 'ParallelReplicas{name}'"
    );
    text(&mut cluster.connect(PRIMARY), &query).parse().unwrap()
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
        let mut observer = cluster.connect(1);
        let mut process = String::new();
        wait_until(SOON, "a replica works", || {
            process = text(
                &mut observer,
                "SELECT coalesce(min(pid), 0)::text FROM pg_stat_activity
                 WHERE query LIKE 'CALL parallel_replicas.serve%' AND state = 'active'
                   AND backend_xmin IS NOT NULL",
            );
            process != "0"
        });
        let process = process.parse().expect("a process id");
        let requests = || event(&cluster, "HandleRequestMicroseconds");
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
        assert_eq!(event(&cluster, "LostCount"), 0);
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
            "SET parallel_replicas_local_plan = on; SET max_parallel_workers_per_gather = 1",
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
             WHERE query LIKE 'CALL parallel_replicas.serve%' AND state = 'active'
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

#[test]
fn large_rows_need_no_temporary_file() {
    let cluster = scene(
        1,
        &[
            ("log_temp_files", "0"),
            ("work_mem", "4MB"),
            ("parallel_replicas.granule_blocks", "1"),
        ],
    );
    let mut client = forced(&cluster);
    let query = "SELECT id, repeat(pad, 100) FROM t WHERE id <= 8000";
    let expected = Rows::fetch(&mut cluster.connect(PRIMARY), query).unwrap();
    let rows = Rows::fetch(&mut client, query).unwrap();
    assert_eq!(expected.difference(&rows, false), None);
    let log = cluster.log(PRIMARY);
    let written = |line: &&str| line.contains("client backend") && line.contains("temporary file");
    assert_eq!(log.lines().find(written), None);
    damage_check(&cluster);
}
