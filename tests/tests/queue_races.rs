//! The query queue on a real server, where two things happen at once.

use std::thread;

use parallel_replicas_tests::queue_server::{QueueServer, error, pid, value};
use parallel_replicas_tests::{PRIMARY, text};
use postgres::NoTls;

/// How often the race is run at least, and at most until either side has won some.
const ROUNDS: [usize; 2] = [40, 1000];

/// A waiter is cancelled, or terminated, in the moment in which it gets its slot. Whoever comes first,
/// the slot is there for the next one, and nobody is left in the queue.
#[test]
fn a_grant_and_an_end_at_once() {
    let server = QueueServer::start(&[]);
    let mut superuser = server.cluster.connect(PRIMARY);
    // Granted and ended, of those that were cancelled and of those that were terminated.
    let mut outcomes = [[0; 2]; 2];
    let [least, most] = ROUNDS;
    for round in 0..most {
        if round >= least && outcomes.as_flattened().iter().all(|count| *count > 0) {
            break;
        }
        let terminates = round % 2 == 1;
        let holder = server.holder();
        let mut client = server.app();
        let victim = pid(&mut client);
        let token = client.cancel_token();
        let waiter = server.waiting(client, "SELECT count(*) FROM t");
        let freed = thread::spawn(move || drop(holder));
        if terminates {
            text(
                &mut superuser,
                &format!("SELECT pg_terminate_backend({victim})::text"),
            );
        } else {
            token.cancel_query(NoTls).expect("the server runs");
        }
        freed.join().expect("no panic");
        match waiter.join().expect("no panic") {
            Ok(answer) => {
                assert_eq!(answer, "1000");
                outcomes[usize::from(terminates)][0] += 1;
            }
            Err(failed) => {
                if let Some(failed) = failed.as_db_error() {
                    let expected = if terminates { "57P01" } else { "57014" };
                    assert_eq!(failed.code().code(), expected);
                }
                outcomes[usize::from(terminates)][1] += 1;
            }
        }
        server.wait_empty();
        assert_eq!(
            text(&mut server.app(), "SELECT count(*)::text FROM t"),
            "1000",
            "round {round}"
        );
    }
    println!("granted and ended, cancelled and terminated: {outcomes:?}");
    assert!(
        outcomes.as_flattened().iter().all(|count| *count > 0),
        "one side has won always: {outcomes:?}"
    );
}

/// Limits are changed, and the queue switched off and on, while statements come, wait and go.
#[test]
fn settings_change_under_load() {
    let server = QueueServer::start(&[]);
    thread::scope(|scope| {
        let sessions: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = server.app();
                    for _ in 0..100 {
                        assert_eq!(text(&mut client, "SELECT count(*)::text FROM t"), "1000");
                    }
                })
            })
            .collect();
        let mut turn = 0;
        while !sessions.iter().all(|session| session.is_finished()) {
            turn += 1;
            let (name, value) = [
                ("query_queue_cores", "2"),
                ("query_queue_v2_schedule_strategy", "SJF"),
                ("enable_query_queue_select", "off"),
                ("query_queue_cores", "1"),
                ("enable_query_queue_v2", "off"),
                ("enable_query_queue_select", "on"),
                ("query_queue_v2_schedule_strategy", "SWRR"),
                ("enable_query_queue_v2", "on"),
            ][turn % 8];
            server.set(&format!("parallel_replicas.{name}"), value);
        }
    });
    server.set("parallel_replicas.enable_query_queue_select", "on");
    server.wait_empty();
}

/// What belongs to an admitted statement asks for nothing more: its parallel workers, the queries of its
/// triggers and functions, and the statements of a procedure that commits.
#[test]
fn parts_of_a_statement_share_its_slot() {
    let server = QueueServer::start(&[
        ("parallel_replicas.enable_query_queue_load", "on"),
        ("max_parallel_workers_per_gather", "2"),
        ("min_parallel_table_scan_size", "0"),
        ("parallel_setup_cost", "0"),
        ("parallel_tuple_cost", "0"),
    ]);
    let mut client = server.app();
    client
        .batch_execute(
            "SET statement_timeout = '30s'; ALTER TABLE t SET (parallel_workers = 2);
             CREATE TABLE target (i int);
             CREATE FUNCTION on_insert() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM count(*) FROM t; RETURN NEW; END';
             CREATE TRIGGER tr AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION on_insert()",
        )
        .expect("tables");
    let before = server.gauge("total");
    client
        .batch_execute("INSERT INTO target SELECT i FROM t WHERE i <= 20")
        .expect("the triggers' queries do not wait for their own statement");
    assert_eq!(server.gauge("total"), before + 1);
    let plan: String = client
        .query("EXPLAIN (ANALYZE, COSTS OFF) SELECT count(*) FROM t", &[])
        .expect("the workers do not wait for their leader")
        .iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect();
    assert!(plan.contains("Workers Launched: 2"), "{plan}");
    assert_eq!(server.gauge("total"), before + 2);
    server.wait_empty();
}

/// Two sessions want what the other has: rows on one side, the slot on the other. PostgreSQL's
/// deadlock detector cannot see the second; the queue does.
#[test]
fn a_row_against_a_slot() {
    let server = QueueServer::start(&[]);
    let mut writer = server.app();
    writer
        .batch_execute("BEGIN; UPDATE u SET i = i WHERE i = 1")
        .expect("update");
    let mut holder = server.holder();
    // It has a row lock in hand, so that it does not wait for the slot whose holder waits for the row.
    let blocked = thread::spawn(move || {
        holder
            .batch_execute(
                "SET LOCAL statement_timeout = '30s'; UPDATE u SET i = i WHERE i = 1; COMMIT",
            )
            .map(|()| String::new())
    });
    let mut superuser = server.cluster.connect(PRIMARY);
    parallel_replicas_tests::wait_until(parallel_replicas_tests::SOON, "the holder waits", || {
        text(
            &mut superuser,
            "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
        ) == "1"
    });
    assert_eq!(
        text(&mut writer, "SELECT count(*)::text FROM t"),
        "1000",
        "admitted with something in hand"
    );
    writer.batch_execute("COMMIT").expect("commit");
    value(blocked);
    // The other way round, the error of a real deadlock frees the slot.
    let mut first = server.holder();
    let mut second = server.app();
    second
        .batch_execute("BEGIN; LOCK TABLE u IN EXCLUSIVE MODE")
        .expect("lock");
    let waits = thread::spawn(move || {
        let outcome = first.batch_execute("INSERT INTO u VALUES (0); COMMIT");
        (first, outcome)
    });
    assert_eq!(text(&mut second, "SELECT count(*)::text FROM t"), "1000");
    second.batch_execute("COMMIT").expect("commit");
    let (_, outcome) = waits.join().expect("no panic");
    if let Err(failed) = outcome {
        panic!("{}", error(Err(failed)).message());
    }
    server.wait_empty();
}
