//! Every message that a user can meet, with SQLSTATE, detail and hint: those of the SQL functions and
//! of definitions are in `pg_test/expected`, all others in `tests/golden/messages.txt`.
//!
//! `GOLDEN=write` writes that file anew.

use std::path::{Path, PathBuf};
use std::thread;

use parallel_replicas_tests::queue_server::QueueServer;
use parallel_replicas_tests::{Cluster, PRIMARY};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn golden_path() -> PathBuf {
    root().join("tests/golden/messages.txt")
}

/// Messages that no test provokes here, and why.
const NOT_PROVOKED: &[(&str, &str)] = &[
    ("out of memory", "the machine's affair"),
    ("could not generate random bytes", "the machine's affair"),
    (
        "a whole query was not executed exactly once",
        "the code's own check",
    ),
    (
        "could not generate a random instance id",
        "the machine's affair",
    ),
    ("could not get host name: ", "the machine's affair"),
    (
        "monitor of parallel_replicas could not start its threads: ",
        "the machine's affair",
    ),
    (
        "could not read rows of a replica back from a temporary file",
        "a broken disk",
    ),
    (
        "table cannot be divided into granules",
        "a table of terabytes",
    ),
    (
        "parallel_replicas must be loaded via shared_preload_libraries",
        "tests/preload.rs",
    ),
    (
        "parallel_replicas.serve() needs a client connection",
        "a single-user server",
    ),
    // Told to another server of the cluster, which turns it into a reason of its own; guards.rs.
    ("connection to the coordinator was lost", "told to a server"),
    ("coordinator sent a damaged frame", "told to a server"),
    ("coordinator sent a frame out of turn", "told to a server"),
    ("unexpected message type 0x", "told to a server"),
    (
        "server is no longer a standby of the coordinator",
        "told to a server",
    ),
    // Damage is noticed when rows arrive.
    ("replica sent a damaged row", "a defect"),
    // `error::internal`: no correct program gets there.
    ("GranuleScan has no private data", "a defect"),
    ("ParallelReplicas has no private data", "a defect"),
    (
        "the leader's execution of the fragment made no progress",
        "a defect",
    ),
    ("plan cannot be shipped: ", "a defect"),
    ("frame cannot be sent: ", "a defect"),
    ("task state: ", "a defect"),
    ("a waiting statement has lost its place", "a defect"),
    ("test point ", "not in the installed library"),
    (
        "no background worker slot is free for the monitor",
        "for the log",
    ),
    ("statement is waiting in the query queue", "queue.rs"),
    // For the server's log.
    (" ms in the query queue for ", "tests/queue.rs"),
];

struct Sheet {
    text: String,
}

impl Sheet {
    /// Runs a script in psql and notes what it says beside rows.
    #[track_caller]
    fn note(&mut self, cluster: &Cluster, title: &str, script: &str) {
        let output = cluster.psql_output(
            PRIMARY,
            &["-q", "-v", "VERBOSITY=verbose", "-v", "SHOW_CONTEXT=never"],
            script,
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.is_empty(), "{title}: nothing was said");
        self.text += &format!("== {title}\n");
        for line in said.lines().filter(|line| !line.starts_with("LOCATION:")) {
            self.text += &normal(line);
            self.text.push('\n');
        }
        self.text.push('\n');
    }
}

/// Numbers that differ from run to run become N: those after these words.
fn normal(line: &str) -> String {
    let line = line.strip_prefix("psql:<stdin>:").map_or(line, |rest| {
        rest.split_once(": ").map_or(rest, |(_, rest)| rest)
    });
    let mut result = String::new();
    let mut rest = line;
    while let Some(place) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, after) = rest.split_at(place);
        let end = after
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(after.len());
        result += before;
        let varies = [" port ", "rocess ", "waited ", "in "];
        let number = &after[..end];
        result += match varies.iter().any(|word| before.ends_with(word)) && number != "1" {
            true => "N",
            false => number,
        };
        rest = &after[end..];
    }
    result + rest
}

fn of_replicas(sheet: &mut Sheet) {
    let cluster = Cluster::builder()
        .standbys(1)
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.monitor_interval", "0")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE t AS SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 10000) i;
         CREATE VIEW v AS SELECT 1;
         CREATE VIEW large AS SELECT repeat('x', 1 << 20) AS x FROM generate_series(1, 70);
         CREATE ROLE anybody; GRANT USAGE ON SCHEMA public TO anybody;
         GRANT CREATE ON SCHEMA public TO anybody;
         SET ROLE anybody; CREATE TABLE own(i int); RESET ROLE;
         ANALYZE t;
         SELECT parallel_replicas.add_replica('nobody', '127.0.0.1', 1, 'broken')",
    );
    cluster.wait_all_caught_up();
    for (title, script) in [
        (
            "no replica can be reached, and this server was not to read itself",
            "SET cluster_for_parallel_replicas = 'broken'; SET parallel_replicas_local_plan = off;
             SET enable_parallel_replicas = force; DO 'BEGIN PERFORM count(*) FROM t; END';",
        ),
        (
            "the same under force",
            "SET cluster_for_parallel_replicas = 'broken'; SET parallel_replicas_local_plan = off;
             SET enable_parallel_replicas = force; SELECT count(*) FROM t;",
        ),
        (
            "no replica at all under force",
            "SET cluster_for_parallel_replicas = 'empty';
             SET enable_parallel_replicas = force; SELECT count(*) FROM t;",
        ),
        (
            "a replica that cannot be read",
            "SELECT replica FROM parallel_replicas.cluster_all_replicas('broken', NULL::v);",
        ),
        (
            "no relation",
            "SELECT replica FROM parallel_replicas.cluster_all_replicas('default', 1);",
        ),
        (
            "no relation that has rows",
            "CREATE TYPE s AS (i int);
             SELECT replica FROM parallel_replicas.rows_of_replicas('default', NULL::s);",
        ),
        (
            "rows of replicas that are too many",
            "SELECT replica FROM parallel_replicas.rows_of_replicas('default', NULL::large);",
        ),
        (
            "rights of somebody else",
            "SET ROLE anybody;
             SELECT replica FROM parallel_replicas.cluster_all_replicas('default', NULL::own);",
        ),
        (
            "prewarming without rights",
            "SET ROLE anybody; SELECT * FROM parallel_replicas.prewarm('t');",
        ),
        (
            "prewarming what is not there on disk",
            "SELECT parallel_replicas.prewarm_blocks('v'::regclass, 0, 1);",
        ),
        (
            "prewarming nothing",
            "SELECT parallel_replicas.prewarm_blocks(999999, 0, 1);",
        ),
        (
            "no such query",
            "SELECT parallel_replicas.query_timeline('00000000-0000-0000-0000-000000000001');",
        ),
        (
            "a template of an unknown kind",
            "CREATE SERVER x FOREIGN DATA WRAPPER parallel_replicas
                 OPTIONS (discover 'guess', port '1');",
        ),
        (
            "an exchange of frames inside a transaction",
            "BEGIN; CALL parallel_replicas.serve('\\x00');",
        ),
    ] {
        sheet.note(&cluster, title, script);
    }
}

fn of_the_queue(sheet: &mut Sheet) {
    let server = QueueServer::start(&[
        ("parallel_replicas.query_queue_max_queued_queries", "1"),
        ("max_prepared_transactions", "5"),
    ]);
    let cluster = &server.cluster;
    let holder = server.holder();
    let app = |script: &str| format!("SET SESSION AUTHORIZATION app; {script}");
    let waiting = server.waiting(server.app(), "SELECT count(*) FROM t");
    sheet.note(
        cluster,
        "the queue is full",
        &app("SELECT count(*) FROM t;"),
    );
    server.set("parallel_replicas.query_queue_max_queued_queries", "10");
    server.set("parallel_replicas.query_queue_pending_timeout_second", "1s");
    sheet.note(
        cluster,
        "it took too long",
        &app("SET client_min_messages = notice; SELECT count(*) FROM t;"),
    );
    // It may have waited too long itself.
    drop(holder);
    let _ = waiting.join().unwrap();
    server.set("parallel_replicas.query_queue_pending_timeout_second", "0");
    server.set("parallel_replicas.query_queue_blocked_action", "error");
    let mut holder = server.holder();
    thread::scope(|scope| {
        // The holder of the slot needs what the one that waits for it has.
        let blocked = scope.spawn(|| {
            server.wait_gauge("pending", 1);
            holder.batch_execute("ALTER TABLE u ADD COLUMN x int; COMMIT")
        });
        sheet.note(
            cluster,
            "it blocks somebody",
            &app("SELECT count(*) FROM u;"),
        );
        blocked.join().unwrap().expect("nobody blocks it any more");
    });
    for (title, script) in [
        (
            "a name of a resource group",
            "SELECT parallel_replicas.create_resource_group('');",
        ),
        (
            "limits of a resource group",
            "SELECT parallel_replicas.create_resource_group('g', 0, 'NaN');",
        ),
        (
            "resource groups and two phases",
            "BEGIN; SELECT parallel_replicas.create_resource_group('g');
             PREPARE TRANSACTION 'p';",
        ),
        (
            "too many resource groups",
            "DO 'BEGIN FOR i IN 1..1000 LOOP
                 PERFORM parallel_replicas.create_resource_group(''g'' || i); COMMIT;
             END LOOP; END';",
        ),
    ] {
        sheet.note(cluster, title, script);
    }
}

#[test]
fn messages_are_as_they_were() {
    let mut sheet = Sheet {
        text: String::new(),
    };
    of_replicas(&mut sheet);
    of_the_queue(&mut sheet);
    if std::env::var("GOLDEN").as_deref() == Ok("write") {
        std::fs::write(golden_path(), &sheet.text).unwrap();
    }
    let golden = std::fs::read_to_string(golden_path()).unwrap_or_default();
    assert_eq!(sheet.text, golden, "{}", sheet.text);
}

/// A message that is raised somewhere in the source is in one of the golden files.
#[test]
fn every_message_is_golden() {
    let mut golden = std::fs::read_to_string(golden_path()).expect("it was written");
    for entry in std::fs::read_dir(root().join("pg_test/expected")).unwrap() {
        golden += &std::fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let mut sources = Vec::new();
    sources_below(&root().join("src"), &mut sources);
    let mut missing = Vec::new();
    let mut found = 0;
    for (path, source) in &sources {
        for message in messages(source) {
            found += 1;
            // What stands between the parts that vary.
            let mut pieces = message.split(['{', '}']).step_by(2);
            let longest = pieces.by_ref().max_by_key(|piece| piece.len());
            let longest = longest.unwrap_or_default();
            let excused = NOT_PROVOKED
                .iter()
                .any(|(excused, _)| message.contains(excused));
            if !excused && !golden.contains(longest) {
                missing.push(format!("{}: {message}", path.display()));
            }
        }
    }
    assert!(found > 40, "only {found} messages were found");
    assert!(missing.is_empty(), "{missing:#?}");
}

fn sources_below(folder: &Path, sources: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("src/core") {
            sources_below(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path).unwrap();
            sources.push((path, source));
        }
    }
}

/// First text of each call that raises.
fn messages(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for call in [
        "raise(\n",
        "raise(P",
        "warn(\n",
        "internal(",
        "ereport!(",
        "warning!(",
    ] {
        for (place, _) in source.match_indices(call) {
            let rest = &source[place + call.len()..];
            let statement = &rest[..rest.find(';').unwrap_or(rest.len())];
            let Some((_, after)) = statement.split_once('"') else {
                continue;
            };
            let mut message = String::new();
            let mut letters = after.chars();
            while let Some(letter) = letters.next() {
                match letter {
                    '\\' => message.extend(letters.next()),
                    '"' => break,
                    other => message.push(other),
                }
            }
            found.push(message);
        }
    }
    found
}
