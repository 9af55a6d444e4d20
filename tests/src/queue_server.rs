//! A server for tests of the query queue: with one slot, for which role `app` queues.
//!
//! A client that holds the slot does so with an open cursor, so that nothing depends on how long a
//! query takes.

use std::thread::{self, JoinHandle};

use postgres::Client;
use postgres::error::DbError;

use crate::{Cluster, PRIMARY, SOON, text, wait_until};

/// A server whose role `app` queues for the only slot.
pub struct QueueServer {
    pub cluster: Cluster,
}

/// A query's last row's first value.
pub type Answer = Result<String, postgres::Error>;

impl QueueServer {
    /// A server with these settings besides.
    #[track_caller]
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let cluster = Cluster::builder()
            .autovacuum(false)
            .setting("parallel_replicas.enable_query_queue_select", "on")
            .setting("parallel_replicas.enable_query_queue_load", "on")
            .setting("parallel_replicas.enable_query_queue_statistic", "on")
            .setting("parallel_replicas.query_queue_cores", "1")
            .setting("max_parallel_workers_per_gather", "0")
            .setting("deadlock_timeout", "100ms")
            .settings(settings)
            .start();
        cluster.psql(
            PRIMARY,
            "CREATE EXTENSION parallel_replicas;
             CREATE ROLE app LOGIN;
             GRANT ALL ON SCHEMA public TO app;
             SET ROLE app;
             CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
             CREATE TABLE u AS SELECT generate_series(1, 1000) AS i;
             ALTER TABLE u ADD PRIMARY KEY (i);
             RESET ROLE;
             VACUUM ANALYZE t, u;",
        );
        QueueServer { cluster }
    }

    /// A session of `app`.
    #[track_caller]
    pub fn app(&self) -> Client {
        let mut client = self.cluster.connect_as(PRIMARY, "app");
        // Whoever waits although nobody should fails by this.
        client
            .batch_execute("SET statement_timeout = '60s'")
            .unwrap();
        client
    }

    /// A client that holds the slot until it is dropped or ends its transaction.
    #[track_caller]
    pub fn holder(&self) -> Client {
        let mut client = self.app();
        client
            .batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c")
            .expect("the slot is free");
        client
    }

    /// The same with a query of one process.
    #[track_caller]
    pub fn serial_holder(&self) -> Client {
        let mut client = self.app();
        client
            .batch_execute(
                "SET max_parallel_workers_per_gather = 0;
                 BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c",
            )
            .expect("a slot is free");
        client
    }

    /// Starts a query in a thread and returns when it waits in the queue. Its answer is the last
    /// row's first value.
    #[track_caller]
    pub fn waiting(&self, mut client: Client, query: &str) -> JoinHandle<Answer> {
        let before = self.gauge("pending");
        let query = query.to_owned();
        let thread = thread::spawn(move || {
            let rows = client.simple_query(&query)?;
            Ok(rows
                .iter()
                .filter_map(|message| match message {
                    postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                })
                .next_back()
                .unwrap_or_default())
        });
        wait_until(SOON, "the query waits", || {
            assert!(
                !thread.is_finished() || self.gauge("pending") > before,
                "the query did not wait"
            );
            self.gauge("pending") > before
        });
        thread
    }

    /// A value of the view `query_queue`.
    #[track_caller]
    pub fn gauge(&self, metric: &str) -> i64 {
        let mut client = self.cluster.connect(PRIMARY);
        let query = format!(
            "SELECT value::bigint::text FROM parallel_replicas.query_queue WHERE metric = '{metric}'"
        );
        text(&mut client, &query).parse().expect("a number")
    }

    /// Waits until the view shows this.
    #[track_caller]
    pub fn wait_gauge(&self, metric: &str, value: i64) {
        wait_until(SOON, &format!("{metric} is {value}"), || {
            self.gauge(metric) == value
        });
    }

    /// Waits until nothing is left behind.
    #[track_caller]
    pub fn wait_empty(&self) {
        for metric in ["running", "pending", "used_slots"] {
            self.wait_gauge(metric, 0);
        }
        let mut client = self.cluster.connect(PRIMARY);
        let rows = text(
            &mut client,
            "SELECT count(*)::text FROM parallel_replicas.running_queries",
        );
        assert_eq!(rows, "0");
    }

    /// Changes a setting on the running server, and returns when it is in force in new sessions.
    #[track_caller]
    pub fn set(&self, name: &str, value: &str) {
        self.cluster.configure(PRIMARY, name, value);
        self.cluster.reload(PRIMARY);
        wait_until(SOON, "the setting is in force", || {
            let mut client = self.cluster.connect(PRIMARY);
            text(&mut client, &format!("SHOW {name}")) == value
        });
    }
}

/// The session's process id.
pub fn pid(client: &mut Client) -> i32 {
    text(client, "SELECT pg_backend_pid()::text")
        .parse()
        .expect("a process id")
}

/// The server's error.
#[track_caller]
pub fn error(answer: Answer) -> DbError {
    let error = answer.expect_err("an error");
    error.as_db_error().expect("the server's own error").clone()
}

/// What the thread's query answered.
#[track_caller]
pub fn value(thread: JoinHandle<Answer>) -> String {
    thread
        .join()
        .expect("no panic")
        .unwrap_or_else(|error| panic!("{error:?}"))
}
