//! Every counter of `parallel_replicas.events` moves when that happens which it counts, and the logs tell
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, JoinHandle};

use parallel_replicas_tests::system::{Signal, signal};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};
use postgres::Client;

const ROWS: u32 = 100_000;

/// Takes a second at least, nearly all of it in the scan.
const SLOW: &str = "SELECT sum(length(repeat(pad, 300)))::text FROM t";

const STANDBYS: [usize; 2] = [1, 2];

/// Two replicas, a table of some hundred granules, and logs of such sizes.
fn cluster(query_log: &str, text_log: &str) -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "30s")
        .setting("parallel_replicas.replay_wait_timeout", "60s")
        .setting("parallel_replicas.stall_timeout", "100s")
        .setting("parallel_replicas.granule_blocks", "4")
        .setting("parallel_replicas.query_log_size", query_log)
        .setting("parallel_replicas.text_log_size", text_log)
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE other(i int);
             CREATE TABLE t AS SELECT g AS i, repeat('x', 100) AS pad
                 FROM generate_series(1, {ROWS}) g;
             VACUUM ANALYZE t"
        ),
    );
    cluster.wait_all_caught_up();
    cluster
}

/// A session in which only replicas read.
fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET enable_parallel_replicas = 2; SET parallel_replicas_local_plan = off;
             SET parallel_replicas_mark_segment_size = 1; SET statement_timeout = '100s'",
        )
        .expect("settings");
    client
}

fn set(client: &mut Client, settings: &str) {
    client.batch_execute(settings).expect("settings");
}

fn last_id(client: &mut Client) -> String {
    text(client, "SELECT parallel_replicas.last_query_id()::text")
}

#[track_caller]
fn number(client: &mut Client, query: &str) -> u64 {
    let value = text(client, query);
    value
        .parse()
        .unwrap_or_else(|_| panic!("not a number: {value}\n{query}"))
}

/// A value of the query log's entry of this session's last query.
#[track_caller]
fn logged(client: &mut Client, column: &str) -> u64 {
    let id = last_id(client);
    number(
        client,
        &format!(
            "SELECT ({column})::bigint::text FROM parallel_replicas.query_log WHERE query_id = '{id}'"
        ),
    )
}

fn microseconds(column: &str) -> String {
    format!("extract(epoch FROM {column}) * 1000000")
}

fn slow(mut client: Client) -> JoinHandle<Client> {
    thread::spawn(move || {
        let answer = (u64::from(ROWS) * 100 * 300).to_string();
        assert_eq!(text(&mut client, SLOW), answer);
        client
    })
}

/// The counters of every server.
struct Counters {
    observers: Vec<Client>,
    before: Vec<BTreeMap<String, u64>>,
    moved: BTreeSet<String>,
}

impl Counters {
    fn new(cluster: &Cluster) -> Self {
        let nodes = [PRIMARY].into_iter().chain(STANDBYS);
        let mut counters = Self {
            observers: nodes.map(|node| cluster.connect(node)).collect(),
            before: Vec::new(),
            moved: BTreeSet::new(),
        };
        counters.start();
        counters
    }

    fn values(client: &mut Client) -> BTreeMap<String, u64> {
        let rows = client
            .query(
                "SELECT event, value::bigint FROM parallel_replicas.events",
                &[],
            )
            .expect("counters");
        rows.iter()
            .map(|row| {
                let name: String = row.get(0);
                let value: i64 = row.get(1);
                let name = name.strip_prefix("ParallelReplicas").expect("a name");
                (
                    name.to_owned(),
                    value.try_into().expect("no negative count"),
                )
            })
            .collect()
    }

    /// Something is to happen now.
    fn start(&mut self) {
        self.before = self.observers.iter_mut().map(Self::values).collect();
    }

    /// By how much a counter has moved since then.
    fn by(&mut self, node: usize, name: &str) -> u64 {
        Self::values(&mut self.observers[node])[name] - self.before[node][name]
    }

    /// Those counters of that server have moved since then. A replica may have its last steps before it.
    #[track_caller]
    fn moved(&mut self, node: usize, names: &[&str]) {
        let still = |counters: &mut Self| -> Vec<&str> {
            let still = names.iter().copied();
            still.filter(|name| counters.by(node, name) == 0).collect()
        };
        if node != PRIMARY {
            wait_until(SOON, &format!("{names:?} move on server {node}"), || {
                still(self).is_empty()
            });
        }
        assert_eq!(still(self), [""; 0], "on server {node}");
        self.moved.extend(names.iter().map(|&name| name.to_owned()));
    }
}

#[test]
fn every_counter_moves_when_its_time_comes() {
    let cluster = cluster("4", "60");
    let mut counters = Counters::new(&cluster);
    let mut client = session(&cluster);
    replicas_read_everything(&mut counters, &mut client);
    full_logs_lose_as_many_entries_as_they_get(&mut counters, &mut client);
    client = replicas_wait_for_replay(&cluster, &mut counters, client);
    replicas_refuse(&cluster, &mut counters, &mut client);
    a_planned_query_is_executed_alone(&mut counters, &mut client);
    a_replica_executes_a_whole_query(&mut counters, &mut client);
    client = a_process_gives_its_granules_back(&cluster, &mut counters, client);
    a_process_is_lost_with_its_granules(&cluster, &mut counters, client);

    let all: BTreeSet<String> = counters.before[PRIMARY].keys().cloned().collect();
    let never: Vec<_> = all.difference(&counters.moved).collect();
    assert!(never.is_empty(), "nothing here moves {never:?}");
    all_are_reset_where_they_are_told_to_be(&mut counters);
    damage_check(&cluster);
}

fn replicas_read_everything(counters: &mut Counters, client: &mut Client) {
    counters.start();
    assert_eq!(
        text(client, "SELECT count(*)::text FROM t"),
        ROWS.to_string()
    );
    counters.moved(
        PRIMARY,
        &[
            "QueryCount",
            "AvailableCount",
            "UsedCount",
            "NumRequests",
            "HandleRequestMicroseconds",
            "CollectingOwnedSegmentsMicroseconds",
            "ProcessingPartsMicroseconds",
            "ReadAssignedMarks",
            "ReadByReplicasMarks",
            "RowsReceived",
            "BytesReceived",
        ],
    );
    let selected = logged(client, "granules");
    assert_eq!(counters.by(PRIMARY, "ReadByReplicasMarks"), selected);
    let stages = [
        "ReadAssignedMarks",
        "ReadAssignedForStealingMarks",
        "ReadUnassignedMarks",
    ];
    let read: u64 = stages.iter().map(|name| counters.by(PRIMARY, name)).sum();
    assert_eq!(read, selected);
    assert_eq!(counters.by(PRIMARY, "RowsReceived"), logged(client, "rows"));
    assert_eq!(
        counters.by(PRIMARY, "BytesReceived"),
        logged(client, "bytes")
    );
    // What replicas count themselves comes to the same.
    let served = [
        "AnnouncementMicroseconds",
        "ReadRequestMicroseconds",
        "ServedCount",
    ];
    wait_until(SOON, "the replicas have counted what they read", || {
        let read: u64 = STANDBYS
            .map(|node| counters.by(node, "ReadMarks"))
            .iter()
            .sum();
        read == selected
    });
    for node in STANDBYS {
        if counters.by(node, "ReadMarks") > 0 {
            counters.moved(node, &["ReadMarks"]);
            counters.moved(node, &served);
        }
    }
    // One of them may take less than a microsecond.
    wait_until(SOON, "announcements take time", || {
        text(client, "SELECT count(*)::text FROM t");
        counters.by(PRIMARY, "HandleAnnouncementMicroseconds") > 0
    });
    counters.moved(PRIMARY, &["HandleAnnouncementMicroseconds"]);
}

/// Each entry of a full log takes the place of an older one.
fn full_logs_lose_as_many_entries_as_they_get(counters: &mut Counters, client: &mut Client) {
    let count = |client: &mut Client, log: &str| {
        number(
            client,
            &format!("SELECT count(*)::text FROM parallel_replicas.{log}"),
        )
    };
    wait_until(SOON, "both logs are full", || {
        text(client, "SELECT count(*)::text FROM t");
        count(client, "query_log") == 4 && count(client, "text_log") == 60
    });
    counters.start();
    text(client, "SELECT count(*)::text FROM t");
    let id = last_id(client);
    counters.moved(PRIMARY, &["QueryLogOverwritten", "TextLogOverwritten"]);
    assert_eq!(counters.by(PRIMARY, "QueryLogOverwritten"), 1);
    let steps = format!("text_log WHERE query_id = '{id}'");
    assert_eq!(
        counters.by(PRIMARY, "TextLogOverwritten"),
        count(client, &steps)
    );
    assert_eq!(count(client, "text_log"), 60);
    // The oldest are the ones that are gone.
    let newest = "SELECT (array_agg(query_id))[count(*)]::text FROM parallel_replicas.text_log";
    assert_eq!(text(client, newest), id);
}

fn replicas_wait_for_replay(cluster: &Cluster, counters: &mut Counters, client: Client) -> Client {
    counters.start();
    for node in STANDBYS {
        cluster.pause_replay(node);
    }
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (1)");
    let query = slow(client);
    // Two links each.
    let waiting = "SELECT count(*)::text FROM parallel_replicas.running_fragments
         WHERE phase = 'waiting for replay' AND clock_timestamp() - started > '500 ms'";
    for node in STANDBYS {
        let observer = &mut counters.observers[node];
        wait_until(SOON, "the replica waits for replay", || {
            text(observer, waiting) == "2"
        });
    }
    for node in STANDBYS {
        cluster.resume_replay(node);
    }
    let mut client = query.join().expect("the query ends");
    counters.moved(PRIMARY, &["ReplayWaitMicroseconds"]);
    for node in STANDBYS {
        counters.moved(node, &["ServedReplayWaitMicroseconds"]);
    }
    let counted = counters.by(PRIMARY, "ReplayWaitMicroseconds");
    let served: u64 = STANDBYS
        .map(|node| counters.by(node, "ServedReplayWaitMicroseconds"))
        .iter()
        .sum();
    let longest = logged(&mut client, &microseconds("replay_wait"));
    let duration = logged(&mut client, &microseconds("duration"));
    assert!(
        250_000 < longest && longest <= counted && counted <= served && longest < duration,
        "{longest} of {counted} of {served} in {duration}"
    );
    let waited = logged(&mut client, &microseconds("wait"));
    assert!(
        longest / 2 < waited && waited <= duration,
        "{waited} in {duration}, replicas {longest}"
    );
    client
}

/// This server reads all, also what others own.
fn replicas_refuse(cluster: &Cluster, counters: &mut Counters, client: &mut Client) {
    counters.start();
    for node in STANDBYS {
        cluster.pause_replay(node);
    }
    cluster.psql(PRIMARY, "INSERT INTO other VALUES (2)");
    set(
        client,
        "SET parallel_replicas.replay_wait_timeout = '50ms'; SET parallel_replicas_local_plan = on",
    );
    let answer = (u64::from(ROWS) * 100 * 300).to_string();
    assert_eq!(text(client, SLOW), answer);
    for node in STANDBYS {
        cluster.resume_replay(node);
    }
    counters.moved(
        PRIMARY,
        &[
            "RefusedCount",
            "UnavailableCount",
            "ReadAssignedForStealingMarks",
            "ReadUnassignedMarks",
            "StealingByHashMicroseconds",
            "StealingLeftoversMicroseconds",
        ],
    );
    for (name, value) in [
        ("RefusedCount", 4),
        ("UnavailableCount", 2),
        ("UsedCount", 0),
        ("ReadByReplicasMarks", 0),
    ] {
        assert_eq!(counters.by(PRIMARY, name), value, "{name}");
    }
    for node in STANDBYS {
        counters.moved(node, &["ServedRefusedCount"]);
        assert_eq!(counters.by(node, "ServedRefusedCount"), 2);
    }
    for (column, name) in [
        ("granules_own", "ReadAssignedMarks"),
        ("granules_stolen_by_hash", "ReadAssignedForStealingMarks"),
        ("granules_stolen_rest", "ReadUnassignedMarks"),
    ] {
        assert_eq!(
            logged(client, column),
            counters.by(PRIMARY, name),
            "{column}"
        );
    }
    set(
        client,
        "RESET parallel_replicas.replay_wait_timeout; SET parallel_replicas_local_plan = off",
    );
    cluster.wait_all_caught_up();
}

fn a_planned_query_is_executed_alone(counters: &mut Counters, client: &mut Client) {
    counters.start();
    set(
        client,
        "SET enable_parallel_replicas = 1; SET parallel_replicas.debug_force = on",
    );
    set(client, "BEGIN; SELECT pg_current_xact_id()");
    assert_eq!(
        text(client, "SELECT count(*)::text FROM t"),
        ROWS.to_string()
    );
    set(
        client,
        "ROLLBACK; SET enable_parallel_replicas = 2; RESET parallel_replicas.debug_force",
    );
    counters.moved(PRIMARY, &["LocalFallbackCount"]);
    assert_eq!(counters.by(PRIMARY, "LocalFallbackCount"), 1);
    assert_eq!(counters.by(PRIMARY, "QueryCount"), 0);
}

fn a_replica_executes_a_whole_query(counters: &mut Counters, client: &mut Client) {
    counters.start();
    set(
        client,
        "SET enable_parallel_replicas = 1; SET parallel_replicas.replica_tag = 'somebody'",
    );
    assert_eq!(text(client, "SELECT i::text FROM other WHERE i = 2"), "2");
    set(
        client,
        "SET enable_parallel_replicas = 2; RESET parallel_replicas.replica_tag",
    );
    counters.moved(PRIMARY, &["WholeQueryCount"]);
    assert_eq!(counters.by(PRIMARY, "WholeQueryCount"), 1);
}

/// Stops a process of the first replica in the middle of a granule.
fn stop_at_work(cluster: &Cluster) -> i32 {
    let mut observer = cluster.connect(1);
    let mut process = 0;
    wait_until(SOON, "a process is in the middle of its work", || {
        process = cluster.serving(1);
        signal(process, Signal::STOP);
        let at_work = text(
            &mut observer,
            &format!(
                "SELECT (count(*) > 0)::text FROM pg_stat_activity a
                   JOIN parallel_replicas.running_fragments f USING (pid)
                  WHERE pid = {process} AND wait_event IS NULL AND granules_read > 0"
            ),
        ) == "true";
        if !at_work {
            signal(process, Signal::CONT);
        }
        at_work
    });
    process
}

/// The others have done what they could: they ask for nothing any more, and none is at work.
fn wait_others_idle(counters: &mut Counters, process: i32) {
    let at_work = format!(
        "SELECT count(*)::text FROM pg_stat_activity
          WHERE query LIKE 'fragment of query %' AND state = 'active' AND wait_event IS NULL
            AND pid <> {process}"
    );
    let (mut last, mut looks) = (0, 0);
    wait_until(SOON, "all others have done what they had", || {
        let now = counters.by(PRIMARY, "HandleRequestMicroseconds");
        let idle = STANDBYS
            .iter()
            .all(|&node| text(&mut counters.observers[node], &at_work) == "0");
        looks = if idle && now == last && now > 0 {
            looks + 1
        } else {
            0
        };
        last = now;
        looks >= 30
    });
}

fn a_process_gives_its_granules_back(
    cluster: &Cluster,
    counters: &mut Counters,
    mut client: Client,
) -> Client {
    counters.start();
    // Tasks of many granules.
    set(&mut client, "SET parallel_replicas_mark_segment_size = 128");
    let query = slow(client);
    let process = stop_at_work(cluster);
    wait_others_idle(counters, process);
    signal(process, Signal::CONT);
    let client = query.join().expect("the query ends");
    counters.moved(PRIMARY, &["GivenBackMarks"]);
    assert_eq!(counters.by(PRIMARY, "LostCount"), 0);
    client
}

fn a_process_is_lost_with_its_granules(cluster: &Cluster, counters: &mut Counters, client: Client) {
    counters.start();
    let query = slow(client);
    let process = stop_at_work(cluster);
    signal(process, Signal::TERM);
    signal(process, Signal::CONT);
    let mut client = query.join().expect("the query ends");
    counters.moved(PRIMARY, &["LostCount", "RetriedMarks"]);
    assert_eq!(counters.by(PRIMARY, "LostCount"), 1);
    let lost = counters.by(PRIMARY, "RetriedMarks");
    assert_eq!(logged(&mut client, "granules_lost"), lost);
    let id = last_id(&mut client);
    let message = text(
        &mut client,
        &format!(
            "SELECT message FROM parallel_replicas.text_log
              WHERE query_id = '{id}' AND event = 'lost' AND replica = 'standby1'"
        ),
    );
    assert!(
        message.contains(&format!(" was lost with {lost} granules: ")),
        "{lost}: {message}"
    );
    // They were read all the same, once.
    let read = "granules_own + granules_stolen_by_hash + granules_stolen_rest";
    assert_eq!(logged(&mut client, read), logged(&mut client, "granules"));
}

/// One server's counters, and no others.
fn all_are_reset_where_they_are_told_to_be(counters: &mut Counters) {
    let reset = "SELECT DISTINCT stats_reset::text FROM parallel_replicas.events";
    let since: Vec<String> = counters
        .observers
        .iter_mut()
        .map(|one| text(one, reset))
        .collect();
    counters.start();
    let primary = &mut counters.observers[PRIMARY];
    let now = text(primary, "SELECT clock_timestamp()::text");
    set(primary, "SELECT parallel_replicas.reset_events()");
    let left: Vec<_> = Counters::values(primary)
        .into_iter()
        .filter(|(_, value)| *value > 0)
        .collect();
    assert_eq!(left, []);
    let later = format!(
        "SELECT (min(stats_reset) >= '{now}' AND '{now}' > '{}')::text FROM parallel_replicas.events",
        since[PRIMARY]
    );
    assert_eq!(text(primary, &later), "true");
    for node in STANDBYS {
        let replica = &mut counters.observers[node];
        assert_eq!(Counters::values(replica), counters.before[node]);
        assert_eq!(text(replica, reset), since[node]);
    }
}

/// A log may have no room at all.
#[test]
fn logs_without_room_keep_nothing() {
    let cluster = cluster("0", "0");
    let mut client = session(&cluster);
    set(&mut client, "SET parallel_replicas.log_level = trace");
    let mut counters = Counters::new(&cluster);
    assert_eq!(
        text(&mut client, "SELECT count(*)::text FROM t"),
        ROWS.to_string()
    );
    counters.moved(PRIMARY, &["QueryCount"]);
    for log in ["query_log", "text_log"] {
        let count = format!("SELECT count(*)::text FROM parallel_replicas.{log}");
        assert_eq!(text(&mut client, &count), "0");
    }
    for name in ["QueryLogOverwritten", "TextLogOverwritten"] {
        assert_eq!(counters.by(PRIMARY, name), 0);
    }
    let id = last_id(&mut client);
    let refused = client
        .query(
            &format!("SELECT parallel_replicas.query_timeline('{id}')"),
            &[],
        )
        .expect_err("nothing is known of it");
    let refused = refused.as_db_error().expect("the server's own error");
    assert_eq!(refused.code().code(), "02000");
}
