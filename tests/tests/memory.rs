//! What a query may take on the coordinator: rows that wait go to disk beyond work_mem, where
//! temp_file_limit counts them; a slow consumer stops the senders; many groups need no more memory
//! than a few megabytes each for the rows of a link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use parallel_replicas_tests::footprint::Footprint;
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};
use postgres::Client;

const ROWS: u32 = 400_000;

fn scene() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("max_wal_size", "4GB")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.stall_timeout", "60s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT i AS id, repeat('x', 100) || i AS pad
                 FROM generate_series(1, {ROWS}) i;
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
             SET work_mem = '4MB'; SET hash_mem_multiplier = 1",
        )
        .unwrap();
    client
}

/// Looks at the private memory of a process all the time.
struct Watcher {
    most_kb: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watcher {
    fn start(pid: i32) -> Self {
        let (most_kb, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (most, end) = (Arc::clone(&most_kb), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                most.fetch_max(Footprint::of(pid).private_kb, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        Self {
            most_kb,
            stop,
            thread,
        }
    }

    fn most_mb(&self) -> u64 {
        self.most_kb.load(Ordering::Relaxed) / 1024
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let most = self.most_mb();
        self.thread.join().unwrap();
        most
    }
}

fn pid(client: &mut Client) -> i32 {
    text(client, "SELECT pg_backend_pid()::text")
        .parse()
        .unwrap()
}

/// Bytes of temporary files of the database so far; counted when a file is closed.
fn temporary_bytes(client: &mut Client) -> u64 {
    let query = "SELECT temp_bytes::text FROM pg_stat_database WHERE datname = 'postgres'";
    text(client, query).parse().unwrap()
}

/// A sorted fragment's rows all wait for its end.
#[test]
fn rows_that_wait_go_to_disk_within_the_limit() {
    let cluster = scene();
    let mut observer = cluster.connect(PRIMARY);
    let query =
        "SELECT max(n) FROM (SELECT pad, row_number() OVER (ORDER BY pad, id) AS n FROM t) s";
    let before = temporary_bytes(&mut observer);
    let mut client = forced(&cluster);
    let watcher = Watcher::start(pid(&mut client));
    assert_eq!(
        text(&mut client, &query.replace("max(n)", "max(n)::text")),
        ROWS.to_string()
    );
    // About 56 MB of rows come; four links may hold 4 MB each.
    let most = watcher.end();
    assert!(most < 48, "{most} MB");
    drop(client);
    let mut bytes = 0;
    wait_until(SOON, "temporary files are counted", || {
        bytes = temporary_bytes(&mut observer) - before;
        bytes > 30_000_000
    });

    let mut client = forced(&cluster);
    client.batch_execute("SET temp_file_limit = '5MB'").unwrap();
    let pid = pid(&mut client);
    let before_kb = Footprint::of(pid).private_kb;
    let error = client.simple_query(query).expect_err("the limit counts");
    // 16 MB were held, of which an idle session keeps nothing. The client hears of the error before the
    // transaction has ended.
    assert_eq!(text(&mut client, "SELECT 'idle'"), "idle");
    let kept_kb = Footprint::of(pid).private_kb.saturating_sub(before_kb);
    assert!(kept_kb < 8 * 1024, "{kept_kb} kB");
    assert_eq!(
        error.code().map(|code| code.code()),
        Some("53400"),
        "{error:?}"
    );
    assert_eq!(
        text(&mut client, "SELECT count(*)::text FROM t"),
        ROWS.to_string()
    );
    assert_eq!(
        text(&mut observer, "SELECT count(*)::text FROM pg_ls_tmpdir()"),
        "0"
    );
    damage_check(&cluster);
}

/// Nobody takes the rows: the senders wait, and the coordinator does not grow.
#[test]
fn a_slow_consumer_stops_the_senders() {
    let cluster = scene();
    let mut client = forced(&cluster);
    let watcher = Watcher::start(pid(&mut client));
    // 2 GB.
    let unread = client
        .copy_out("COPY (SELECT id, repeat(pad, 50) FROM t) TO STDOUT")
        .unwrap();
    let waiting = "SELECT count(*)::text FROM pg_stat_activity
         WHERE query LIKE 'fragment of query%' AND state = 'active' AND wait_event = 'Extension'";
    let mut observers: Vec<Client> = cluster.standbys().map(|n| cluster.connect(n)).collect();
    let mut looks = 0;
    wait_until(SOON, "all senders wait", || {
        let all = observers
            .iter_mut()
            .all(|client| text(client, waiting) == "2");
        looks = if all { looks + 1 } else { 0 };
        looks >= 30
    });
    let most = watcher.end();
    assert!(most < 64, "{most} MB");
    let senders = "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity
         WHERE query LIKE 'fragment of query%' AND state = 'active'";
    for client in &mut observers {
        for pid in text(client, senders).split(' ') {
            let kb = Footprint::of(pid.parse().unwrap()).private_kb;
            assert!(kb < 16 << 10, "a sender has {kb} kB");
        }
    }
    drop(unread);
    damage_check(&cluster);
}

/// A group per row: partial states of all links come in, sorted or not, and are not held in memory.
#[test]
fn many_groups_need_little_memory() {
    let cluster = scene();
    for settings in ["SET enable_hashagg = on", "SET enable_hashagg = off"] {
        let mut client = forced(&cluster);
        client.batch_execute(settings).unwrap();
        let watcher = Watcher::start(pid(&mut client));
        let query = "SELECT count(*)::text FROM (
             SELECT pad, count(*) AS n, sum(id) FROM t GROUP BY pad OFFSET 0) s WHERE n = 1";
        assert_eq!(text(&mut client, query), ROWS.to_string(), "{settings}");
        let most = watcher.end();
        assert!(most < 64, "{most} MB, {settings}");
    }
    damage_check(&cluster);
}

/// What a coordinator takes beside its own plan is a matter of its links, not of how many groups come in.
/// `GROUPS=10000000` gives the figures of docs/failures.md.
#[test]
fn a_coordinator_of_many_groups_keeps_to_its_bound() {
    const WORK_MEM_MB: u64 = 4;
    /// Two replicas, two links each: rows that wait, rows that are ready, a frame.
    const BOUND_MB: u64 = 4 * (WORK_MEM_MB + 1 + 1);
    /// What malloc keeps and the catalog's caches take.
    const SLACK_MB: u64 = 16;
    let groups: u64 = std::env::var("GROUPS").map_or(1_000_000, |text| text.parse().unwrap());
    let cluster = scene();
    cluster.psql(
        PRIMARY,
        &format!("CREATE TABLE g AS SELECT i AS k FROM generate_series(1, {groups}) i; ANALYZE g"),
    );
    cluster.wait_all_caught_up();
    let query = "SELECT count(*)::text FROM (
         SELECT k, count(*) AS n, sum(k) FROM g GROUP BY k OFFSET 0) s WHERE n = 1";
    for hashed in ["on", "off"] {
        let mut most = Vec::new();
        for replicas in [0, 2] {
            let mut client = forced(&cluster);
            client
                .batch_execute(&format!(
                    "SET enable_parallel_replicas = {replicas}; SET enable_hashagg = {hashed}"
                ))
                .unwrap();
            let before = cluster.event(PRIMARY, "RowsReceived");
            let watcher = Watcher::start(pid(&mut client));
            assert_eq!(text(&mut client, query), groups.to_string());
            most.push(watcher.end());
            let received = cluster.event(PRIMARY, "RowsReceived") - before;
            assert_eq!(received >= groups, replicas == 2, "{received} rows came");
        }
        println!(
            "hashed {hashed}: {} MB alone, {} MB over replicas",
            most[0], most[1]
        );
        assert!(
            most[1] <= most[0] + BOUND_MB + SLACK_MB,
            "hashed {hashed}: {} MB alone, {} MB over replicas",
            most[0],
            most[1]
        );
    }
    damage_check(&cluster);
}
