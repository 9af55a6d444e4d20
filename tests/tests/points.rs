//! Failures at exact places inside the servers: needs the library built with the feature
//! `test_points` (`make test-points`), so these are ignored elsewhere.

use std::fs;
use std::path::PathBuf;
use std::thread;

use parallel_replicas_tests::queue_server::{QueueServer, pid, value};
use parallel_replicas_tests::system::installation;
use parallel_replicas_tests::{Cluster, PRIMARY, Rows, SOON, damage_check, text, wait_until};
use postgres::Client;

const STREAMING: &str = "SELECT id, pad FROM t WHERE length(repeat(pad, 200)) > 0";
const PARTIAL: &str = "SELECT v, count(*), sum(length(repeat(pad, 200))) FROM t GROUP BY v";

/// Of a session whose queries are left to the replica as long as it is there.
const SETTINGS: &str = "SET parallel_replicas.debug_force = on;
     SET parallel_replicas_local_plan = off;
     SET client_min_messages = error; SET statement_timeout = '60s'";

/// What a process on the replica passes, in order.
const ON_THE_REPLICA: &[&str] = &[
    "serve-called",
    "serve-greeted",
    "serve-begun",
    "serve-admitted",
    "serve-snapshot",
    "serve-announced",
    "serve-granule",
    "serve-rows-sent",
    "serve-executed",
    "serve-ending",
];

/// What the coordinator passes, in order.
const ON_THE_COORDINATOR: &[&str] = &[
    "exec-begin-made",
    "exec-connected",
    "exec-greeted",
    "exec-task-done",
    "exec-finishing",
];

struct Scene {
    cluster: Cluster,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::builder()
            .standbys(1)
            .autovacuum(false)
            .setting("jit", "off")
            .setting("parallel_replicas.monitor_interval", "0")
            .setting("parallel_replicas.granule_blocks", "16")
            .setting("parallel_replicas.links_per_replica", "1")
            .setting("parallel_replicas.connect_timeout", "2s")
            .setting("parallel_replicas.replay_wait_timeout", "1s")
            .setting("parallel_replicas.stall_timeout", "1s")
            .start();
        cluster.register_replicas();
        cluster.psql(
            PRIMARY,
            "CREATE TABLE t AS SELECT i AS id, i % 10 AS v, repeat('x', 100) AS pad
                 FROM generate_series(1, 10000) i;
             ANALYZE t",
        );
        cluster.wait_all_caught_up();
        for node in [PRIMARY, 1] {
            let folder = cluster.data_dir(node).join("test_points");
            fs::create_dir(&folder).unwrap();
            installation().give_to_server_user(&folder);
        }
        Self { cluster }
    }

    fn file(&self, node: usize, point: &str) -> PathBuf {
        self.cluster.data_dir(node).join("test_points").join(point)
    }

    fn arm(&self, node: usize, point: &str, action: &str) {
        fs::write(self.file(node, point), action).unwrap();
    }

    fn is_reached(&self, node: usize, point: &str) -> bool {
        self.file(node, &format!("{point}.reached")).exists()
    }

    fn disarm(&self, node: usize, point: &str) {
        let _ = fs::remove_file(self.file(node, point));
        let _ = fs::remove_file(self.file(node, &format!("{point}.reached")));
    }

    /// A session whose queries are left to the replica as long as it is there.
    fn session(&self) -> Client {
        let mut client = self.cluster.connect(PRIMARY);
        client.batch_execute(SETTINGS).unwrap();
        client
    }

    /// SQLSTATE with which such a session ends together with its query. Through psql: the other client
    /// forgets the error if the end of the connection comes with it.
    fn last_words(&self, query: &str) -> Option<String> {
        let script = format!("\\set VERBOSITY sqlstate\n{SETTINGS};\n{query};\n");
        let output = self.cluster.psql_output(PRIMARY, &["-q"], &script);
        let said = String::from_utf8_lossy(&output.stderr);
        let (_, state) = said.split_once("FATAL:  ")?;
        Some(
            state
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect(),
        )
    }

    #[track_caller]
    fn wait_quiet(&self, what: &str) {
        let mut observer = self.cluster.connect(1);
        wait_until(SOON, &format!("nothing is left after {what}"), || {
            text(
                &mut observer,
                "SELECT count(*)::text FROM pg_stat_activity
                 WHERE application_name LIKE 'parallel_replicas%' AND state <> 'idle'",
            ) == "0"
        });
    }
}

#[test]
#[ignore = "needs the library with test points"]
fn a_replica_that_fails_at_any_place_costs_the_query_nothing_but_time() {
    let scene = Scene::start();
    let mut alone = scene.cluster.connect(PRIMARY);
    for query in [STREAMING, PARTIAL] {
        let expected = Rows::fetch(&mut alone, query).unwrap();
        for point in ON_THE_REPLICA {
            let actions: &[&str] = match query {
                STREAMING => &["error", "fatal", "wait", "crash"],
                _ => &["error", "fatal"],
            };
            for action in actions {
                let what = format!("{action} at {point}\n{query}");
                let ready = scene.cluster.times_ready(1);
                let mut client = scene.session();
                scene.arm(1, point, action);
                let rows = Rows::fetch(&mut client, query)
                    .unwrap_or_else(|error| panic!("{what}\n{error:?}"));
                assert_eq!(expected.difference(&rows, false), None, "{what}");
                assert!(scene.is_reached(1, point), "not reached: {what}");
                scene.disarm(1, point);
                if *action == "crash" {
                    scene.cluster.wait_ready_again(1, ready);
                }
                let rows = Rows::fetch(&mut client, query)
                    .unwrap_or_else(|error| panic!("after {what}\n{error:?}"));
                assert_eq!(expected.difference(&rows, false), None, "after {what}");
                drop(client);
                scene.wait_quiet(&what);
            }
        }
    }
    assert!(!scene.cluster.log(1).contains(" leak"));
    damage_check(&scene.cluster);
}

#[test]
#[ignore = "needs the library with test points"]
fn a_coordinator_that_fails_at_any_place_leaves_nothing_on_replicas() {
    let scene = Scene::start();
    let mut alone = scene.cluster.connect(PRIMARY);
    let expected = Rows::fetch(&mut alone, STREAMING).unwrap();
    drop(alone);
    for point in ON_THE_COORDINATOR {
        for action in ["error", "fatal", "cancel", "crash"] {
            let what = format!("{action} at {point}");
            let ready = scene.cluster.times_ready(PRIMARY);
            let mut client = scene.session();
            let token = client.cancel_token();
            scene.arm(
                PRIMARY,
                point,
                if action == "cancel" { "wait" } else { action },
            );
            let state = thread::scope(|scope| {
                let running = scope.spawn(|| match action {
                    "fatal" => scene.last_words(STREAMING),
                    _ => {
                        let error = Rows::fetch(&mut client, STREAMING).expect_err(&what);
                        error.code().map(|code| code.code().to_owned())
                    }
                });
                wait_until(SOON, &format!("{what}: the point is reached"), || {
                    scene.is_reached(PRIMARY, point)
                });
                if action == "cancel" {
                    token.cancel_query(postgres::NoTls).unwrap();
                }
                running.join().unwrap()
            });
            match action {
                "error" | "fatal" => assert_eq!(state.as_deref(), Some("58030"), "{what}"),
                "cancel" => assert_eq!(state.as_deref(), Some("57014"), "{what}"),
                _ => {}
            }
            scene.disarm(PRIMARY, point);
            if action == "crash" {
                scene.cluster.wait_ready_again(PRIMARY, ready);
                client = scene.session();
            }
            scene.wait_quiet(&what);
            let rows = Rows::fetch(&mut client, STREAMING)
                .unwrap_or_else(|error| panic!("after {what}\n{error:?}"));
            assert_eq!(expected.difference(&rows, false), None, "after {what}");
        }
    }
    assert!(!scene.cluster.log(PRIMARY).contains(" leak"));
    damage_check(&scene.cluster);
}

#[test]
#[ignore = "needs the library with test points"]
fn a_session_that_ends_while_it_plans_takes_nobody_with_it() {
    let scene = Scene::start();
    let ready = scene.cluster.times_ready(PRIMARY);
    let mut bystander = scene.session();
    let mut client = scene.session();
    scene.arm(PRIMARY, "plan-offer", "fatal");
    Rows::fetch(&mut client, STREAMING).expect_err("the session ends");
    assert!(scene.is_reached(PRIMARY, "plan-offer"));
    scene.disarm(PRIMARY, "plan-offer");
    Rows::fetch(&mut bystander, STREAMING).expect("its server did not start over");
    assert_eq!(scene.cluster.times_ready(PRIMARY), ready);
}

/// A waiter of the query queue is cancelled, or terminated, when it has seen that it was granted its slot and has
/// not begun to execute: the next one gets the slot.
#[test]
#[ignore = "needs the library with test points"]
fn an_end_at_the_instant_of_a_grant_gives_the_slot_back() {
    let server = QueueServer::start(&[]);
    let folder = server.cluster.data_dir(PRIMARY).join("test_points");
    fs::create_dir(&folder).unwrap();
    installation().give_to_server_user(&folder);
    let point = folder.join("queue-granted");
    let reached = folder.join("queue-granted.reached");
    let mut superuser = server.cluster.connect(PRIMARY);
    for terminates in [false, true] {
        let holder = server.holder();
        let mut client = server.app();
        let victim = pid(&mut client);
        let token = client.cancel_token();
        let waiter = server.waiting(client, "SELECT count(*) FROM t");
        fs::write(&point, "wait").unwrap();
        drop(holder);
        wait_until(SOON, "the point is reached", || reached.exists());
        let next = server.waiting(server.app(), "SELECT count(*) FROM u");
        let granted = text(
            &mut superuser,
            "SELECT string_agg(concat_ws(' ', pid, slots, admitted_by), ', ')
               FROM parallel_replicas.running_queries WHERE state = 'RUNNING'",
        );
        assert_eq!(granted, format!("{victim} 1 scheduler"));
        if terminates {
            let query = format!("SELECT pg_terminate_backend({victim})::text");
            assert_eq!(text(&mut superuser, &query), "true");
        } else {
            token.cancel_query(postgres::NoTls).unwrap();
        }
        let failed = waiter.join().unwrap().expect_err("it has ended");
        let code = failed.as_db_error().map(|error| error.code().code());
        if terminates {
            // The client forgets the error if the end of the connection comes with it.
            assert!(matches!(code, None | Some("57P01")), "{failed:?}");
        } else {
            assert_eq!(code, Some("57014"), "{failed:?}");
        }
        // The next one may have come to the same point.
        fs::remove_file(&point).unwrap();
        assert_eq!(value(next), "1000");
        server.wait_empty();
        fs::remove_file(&reached).unwrap();
    }
}
