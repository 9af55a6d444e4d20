//! The harness tested on itself, on servers without the extension: what it builds is real, and its
//! checks can fail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use parallel_replicas_tests::cluster::{Options, superuser_config};
use parallel_replicas_tests::system::is_alive;
use parallel_replicas_tests::{
    Cluster, Differential, Fault, PRIMARY, Proxy, SOON, StopMode, WriterTable, Writers,
    damage_check, damage_on, text, wait_for, wait_until,
};

fn plain() -> Options {
    Cluster::builder().preload(false)
}

#[test]
fn standbys_stream_and_are_read_only() {
    let cluster = plain()
        .standbys(2)
        .shared_buffers("1MB")
        .autovacuum(false)
        .start();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i",
    );
    cluster.wait_all_caught_up();
    for node in cluster.standbys() {
        assert_eq!(
            cluster.psql(node, "SELECT count(*), sum(i) FROM t"),
            "1000|500500\n"
        );
        assert_eq!(cluster.psql(node, "SHOW shared_buffers"), "1MB\n");
        assert_eq!(
            cluster.psql(node, "SHOW cluster_name"),
            format!("standby{node}\n")
        );
        let refused = cluster.psql_output(node, &["-v", "ON_ERROR_STOP=1"], "DELETE FROM t");
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains("read-only transaction"));
    }
    damage_check(&cluster);
}

#[test]
fn damage_check_sees_what_a_stale_standby_lacks() {
    let cluster = plain().standbys(1).start();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE same(i int); CREATE TABLE other(i int)",
    );
    cluster.psql(
        PRIMARY,
        "INSERT INTO same VALUES (1); INSERT INTO other VALUES (1), (2)",
    );
    damage_check(&cluster);
    cluster.pause_replay(1);
    // The same number of rows, so only the hash can tell.
    cluster.psql(PRIMARY, "UPDATE other SET i = 3 WHERE i = 2");
    let damage = damage_on(&cluster, 1);
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0].relation, "postgres.other");
    assert!(damage[0].standby_has.starts_with("2 rows, hash "));
    assert!(damage[0].primary_has.starts_with("2 rows, hash "));
    cluster.resume_replay(1);
    damage_check(&cluster);
}

#[test]
fn damage_check_reads_every_database_and_materialised_view() {
    let cluster = plain().standbys(1).start();
    cluster.psql(PRIMARY, "CREATE DATABASE second");
    let mut client = cluster.connect_db(PRIMARY, "second");
    client
        .batch_execute("CREATE TABLE t(i int); CREATE MATERIALIZED VIEW m AS TABLE t")
        .unwrap();
    cluster.wait_caught_up(1);
    cluster.pause_replay(1);
    client
        .batch_execute("INSERT INTO t VALUES (1); REFRESH MATERIALIZED VIEW m")
        .unwrap();
    let damage = damage_on(&cluster, 1);
    let relations: Vec<&str> = damage
        .iter()
        .map(|damage| damage.relation.as_str())
        .collect();
    assert_eq!(relations, ["second.m", "second.t"]);
    cluster.resume_replay(1);
}

#[test]
fn servers_stop_crash_freeze_and_come_back() {
    let mut cluster = plain().standbys(1).start();
    cluster.psql(PRIMARY, "CREATE TABLE t(i int); INSERT INTO t VALUES (1)");
    cluster.wait_caught_up(1);

    cluster.kill_9(1);
    assert_eq!(cluster.postmaster_pid(1), None);
    assert!(cluster.config(1).connect(postgres::NoTls).is_err());
    cluster.psql(PRIMARY, "INSERT INTO t VALUES (2)");
    cluster.start(1);
    cluster.wait_caught_up(1);
    assert_eq!(cluster.psql(1, "SELECT count(*) FROM t"), "2\n");

    cluster.sigstop(1);
    let mut stream = ask_for_tls(cluster.port(1));
    assert_eq!(
        answer_within(&mut stream, NOT_NOW),
        None,
        "a frozen server answered"
    );
    cluster.sigcont(1);
    assert_eq!(answer_within(&mut stream, SOON), Some(b'N'));
    assert_eq!(cluster.psql(1, "SELECT count(*) FROM t"), "2\n");

    cluster.restart(PRIMARY, StopMode::Immediate);
    cluster.wait_streaming(1);
    cluster.promote(1);
    cluster.psql(1, "INSERT INTO t VALUES (3)");
    assert_eq!(cluster.psql(1, "SELECT count(*) FROM t"), "3\n");
    assert_eq!(cluster.psql(PRIMARY, "SELECT count(*) FROM t"), "2\n");
    let damage = damage_on(&cluster, 1);
    assert_eq!(
        damage.len(),
        1,
        "the promoted server went its own way: {damage:?}"
    );
}

#[test]
fn settings_take_effect_by_reload_and_a_bad_one_stops_the_start() {
    let mut cluster = plain().setting("work_mem", "1234kB").start();
    assert_eq!(cluster.psql(PRIMARY, "SHOW work_mem"), "1234kB\n");
    cluster.configure(PRIMARY, "work_mem", "4321kB");
    cluster.reload(PRIMARY);
    let mut client = cluster.connect(PRIMARY);
    wait_until(SOON, "the new setting is seen", || {
        text(&mut client, "SELECT current_setting('work_mem')") == "4321kB"
    });
    cluster.configure(PRIMARY, "no_such_setting", "1");
    cluster.stop(PRIMARY, StopMode::Fast);
    assert!(cluster.try_start(PRIMARY).is_err());
    assert!(cluster.log(PRIMARY).contains("no_such_setting"));
}

#[test]
fn differential_accepts_equal_and_reports_different_results() {
    let cluster = plain().start();
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "CREATE TABLE t AS SELECT i, i / 7.0::float8 AS f, 'x' || i AS s
             FROM generate_series(1, 100000) i",
        )
        .unwrap();
    let serial = "SET LOCAL max_parallel_workers_per_gather = 0";
    let parallel = "SET LOCAL max_parallel_workers_per_gather = 2;
        SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0;
        SET LOCAL min_parallel_table_scan_size = 0";
    let rows = Differential::new(&mut client)
        .between(serial, parallel)
        .check("SELECT i % 10 AS g, sum(f) AS s, NULL::point AS p FROM t GROUP BY 1");
    assert_eq!(rows.rows.len(), 10);

    let (_, difference) = Differential::new(&mut client)
        .between("SET LOCAL a.b = '1'", "SET LOCAL a.b = '2'")
        .compare("SELECT current_setting('a.b')")
        .unwrap();
    assert!(
        difference
            .unwrap()
            .contains("1 missing (-), 1 extra (+)\n- 1\n+ 2")
    );

    let message = Differential::new(&mut client)
        .between(serial, parallel)
        .check_same_error("SELECT 1 / (i - 5) FROM t")
        .message;
    assert_eq!(message, "division by zero");
}

#[test]
fn writers_change_the_primary_and_the_standby_follows() {
    let cluster = plain().standbys(1).start();
    let mut client = cluster.connect(PRIMARY);
    let tables = [
        WriterTable::create(&mut client, "a", 5000),
        WriterTable::create(&mut client, "b", 100),
    ];
    let before = damage_print(&mut client);
    let writers = Writers::start(&cluster, &tables, 2, 7);
    writers.wait_for_transactions(300);
    assert!(writers.stop() >= 300);
    assert_ne!(
        before,
        damage_print(&mut client),
        "the writers wrote nothing"
    );
    damage_check(&cluster);
    // A second round on the same tables must not collide with the first.
    let writers = Writers::start(&cluster, &tables, 2, 7);
    writers.wait_for_transactions(50);
    writers.stop();
    damage_check(&cluster);
}

fn damage_print(client: &mut postgres::Client) -> String {
    text(client, "SELECT sum(hashtext(a::text))::text FROM a")
}

#[test]
fn a_writers_error_is_reported() {
    let cluster = plain().start();
    let mut client = cluster.connect(PRIMARY);
    let table = WriterTable::create(&mut client, "a", 10);
    let writers = Writers::start(&cluster, &[table], 1, 1);
    client.batch_execute("DROP TABLE a").unwrap();
    writers.wait_for_transactions(10);
    let stopped = catch_unwind(AssertUnwindSafe(|| writers.stop()));
    let message = *stopped.unwrap_err().downcast::<String>().unwrap();
    assert!(
        message.contains("42P01"),
        "undefined_table expected: {message}"
    );
}

#[test]
fn the_proxy_passes_on_cuts_and_spoils() {
    let cluster = plain().start();
    let proxy = Proxy::start(cluster.port(PRIMARY));
    let connect = || superuser_config(proxy.port()).connect(postgres::NoTls);
    let long = "SELECT repeat('x', 1000000)";

    let mut client = connect().unwrap();
    assert_eq!(text(&mut client, long).len(), 1_000_000);
    assert!(proxy.to_client_bytes() > 1_000_000);
    assert!(proxy.to_server_bytes() > 0);

    proxy.set(Fault::Delay(Duration::from_millis(20)));
    assert_eq!(text(&mut client, "SELECT 'late'"), "late");

    proxy.set(Fault::Cut {
        after_bytes: 500_000,
    });
    assert!(client.query_one(long, &[]).is_err());
    assert!(client.is_closed());

    proxy.set(Fault::HalfClose { after_bytes: 0 });
    assert!(connect().is_err());

    proxy.set(Fault::None);
    let mut stream = ask_for_tls(proxy.port());
    assert_eq!(answer_within(&mut stream, SOON), Some(b'N'));
    proxy.set(Fault::Garbage { after_bytes: 1 });
    // A StartupMessage; the server's answer begins with AuthenticationOk.
    stream
        .write_all(b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0")
        .unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], b'R');
    assert_ne!(answer[1..], [0, 0, 0, 8, 0, 0, 0, 0]);

    proxy.set(Fault::Refuse);
    let before = proxy.connections();
    assert!(connect().is_err());
    assert_eq!(proxy.connections(), before + 1);

    proxy.set(Fault::None);
    let mut client = connect().unwrap();
    proxy.cut_all();
    assert!(client.query_one("SELECT 1", &[]).is_err());
}

#[test]
fn a_stalled_proxy_loses_nothing() {
    let cluster = plain().start();
    let proxy = Proxy::start(cluster.port(PRIMARY));
    proxy.set(Fault::Stall);
    let mut stream = ask_for_tls(proxy.port());
    assert_eq!(
        answer_within(&mut stream, NOT_NOW),
        None,
        "something came through"
    );
    proxy.set(Fault::None);
    assert_eq!(answer_within(&mut stream, SOON), Some(b'N'));
}

/// Long enough for an idle server to answer many times.
const NOT_NOW: Duration = Duration::from_millis(200);

/// Sends an SSLRequest (PostgreSQL documentation, "Message Formats": length 8, code 80877103), which
/// a server without TLS answers with one byte, N.
fn ask_for_tls(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
    stream
}

fn answer_within(stream: &mut TcpStream, time: Duration) -> Option<u8> {
    let mut answer = [0];
    stream.set_read_timeout(Some(time)).unwrap();
    stream.read_exact(&mut answer).ok().map(|()| answer[0])
}

#[test]
fn a_dropped_cluster_leaves_nothing_and_a_failed_one_its_logs() {
    let cluster = plain().start();
    let (base, pid) = (
        PathBuf::from(cluster.base()),
        cluster.postmaster_pid(PRIMARY).unwrap(),
    );
    drop(cluster);
    assert!(!base.exists());
    assert!(!is_alive(pid));

    let mut failed = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let cluster = plain().start();
        failed = Some((
            PathBuf::from(cluster.base()),
            cluster.postmaster_pid(PRIMARY).unwrap(),
        ));
        panic!("a test fails");
    }));
    assert!(outcome.is_err());
    let (base, pid) = failed.unwrap();
    assert!(base.join("primary.log").exists());
    assert!(!base.join("primary").exists());
    assert!(!is_alive(pid));
    std::fs::remove_dir_all(base).unwrap();
}

#[test]
fn a_killed_test_leaves_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "makes_a_cluster_and_never_ends",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.map_while(Result::ok).find_map(|line| {
        let (base, pid) = line.strip_prefix("cluster ")?.split_once(' ')?;
        Some((PathBuf::from(base), pid.parse().ok()?))
    });
    let (base, pid) = told.expect("the other process says where its cluster is");
    assert!(is_alive(pid));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(SOON, "the servers of a killed test are gone", || {
        !is_alive(pid) && !base.exists()
    });
}

#[test]
#[ignore = "run by a_killed_test_leaves_nothing, in a process that it kills"]
fn makes_a_cluster_and_never_ends() {
    let cluster = plain().standbys(1).start();
    println!(
        "\ncluster {} {}",
        cluster.base().display(),
        cluster.postmaster_pid(1).unwrap()
    );
    // Ends at the latest with the test that started this one.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let outcome = catch_unwind(|| wait_until(Duration::from_millis(50), "pigs fly", || false));
    let message = *outcome.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("pigs fly"), "{message}");
    assert_eq!(wait_for(SOON, "a value", || Some(5)), 5);
}
