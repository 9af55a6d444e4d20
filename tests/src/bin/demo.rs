//! `make demo`: TPC-H on a primary and two standbys, with and without parallel replicas.
//!
//! Environment: `SCALE` is the TPC-H scale factor (1 when not set; only at 1 there are published
//! answers to compare with); `KEEP=1` leaves the servers running. Ends with SUCCESS or FAILED and
//! the exit status 0 or 1.

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use parallel_replicas_tests::system::installation;
use parallel_replicas_tests::tpch::{self, Indexes, Progress};
use parallel_replicas_tests::{Cluster, PRIMARY, Rows, StopMode};
use postgres::Client;

const STANDBYS: usize = 2;

/// Scans and aggregates (1, 6), joins with a large result below the aggregate (3, 12).
const QUERIES: [usize; 4] = [1, 6, 3, 12];

/// How often each query is timed in each mode; the best time counts.
const RUNS: usize = 2;

fn main() -> ExitCode {
    match panic::catch_unwind(AssertUnwindSafe(demo)) {
        Ok(()) => {
            println!("\nSUCCESS");
            ExitCode::SUCCESS
        }
        // The panic's own message is on stderr already.
        Err(_) => {
            println!("\nFAILED");
            ExitCode::FAILURE
        }
    }
}

fn demo() {
    let scale = scale_factor();
    let keep = std::env::var("KEEP").is_ok_and(|value| value == "1");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);

    step("A primary");
    let mut cluster = Cluster::builder()
        .autovacuum(false)
        .shared_buffers("512MB")
        .setting("max_wal_size", "16GB")
        .setting("checkpoint_timeout", "1h")
        .setting("work_mem", "64MB")
        // Without standbys nobody needs WAL yet: the load is faster without it.
        .setting("wal_level", "minimal")
        .setting("max_wal_senders", "0")
        .start();
    println!(
        "    in {}, port {}",
        cluster.base().display(),
        cluster.port(PRIMARY)
    );

    step(&format!("TPC-H data at scale factor {scale}"));
    let start = Instant::now();
    tpch::load(
        &cluster.config(PRIMARY),
        scale,
        Indexes::PrimaryKeys,
        |progress| {
            draw(progress, start.elapsed());
        },
    );
    let mut client = cluster.connect(PRIMARY);
    show_tables(&mut client);

    step("The queries on the primary alone, before there is any replica");
    check_answers(&mut client, scale);

    step(&format!("{STANDBYS} streaming standbys, by pg_basebackup"));
    for (name, value) in [("wal_level", "replica"), ("max_wal_senders", "10")] {
        cluster.configure(PRIMARY, name, value);
    }
    cluster.restart(PRIMARY, StopMode::Fast);
    let start = Instant::now();
    cluster.add_standbys(STANDBYS);
    for node in cluster.standbys() {
        println!("    {}, port {}", cluster.name(node), cluster.port(node));
    }
    println!("    made in {:.1} s", start.elapsed().as_secs_f64());

    step("The extension, and the standbys as its replicas");
    println!("    CREATE EXTENSION parallel_replicas;");
    for node in cluster.standbys() {
        let (name, port) = (cluster.name(node), cluster.port(node));
        println!("    SELECT parallel_replicas.add_replica('{name}', '127.0.0.1', {port});");
    }
    cluster.register_replicas();
    show(
        &cluster,
        "SELECT * FROM parallel_replicas.check_cluster('default')",
    );

    step("The same queries, by the primary alone and with its replicas");
    println!(
        "    All servers of this demo share the {cores} cores of this machine, so the ratio is not"
    );
    println!("    what standbys on machines of their own would give.");
    let expected = compare(&cluster, scale);

    step("How Q1 was executed");
    let plan = show(
        &cluster,
        &format!(
            "SET enable_parallel_replicas = 1;\nEXPLAIN (ANALYZE, COSTS OFF) {};\n\
             SELECT event, value, description FROM parallel_replicas.events WHERE value <> 0",
            tpch::query(1)
        ),
    );
    assert!(
        plan.contains("(ParallelReplicas)"),
        "Q1 was not planned for the replicas"
    );
    // A query of a few milliseconds may end before a link is up, so the plan says little when the
    // scale is small; over all queries some must have had help.
    assert!(
        scale < 1.0 || !plan.contains("Replicas Used: 0"),
        "no replica took part in Q1"
    );
    let used = cluster.psql(
        PRIMARY,
        "SELECT sum(value) > 0 FROM parallel_replicas.events
         WHERE event = 'ParallelReplicasUsedCount'",
    );
    assert_eq!(used, "t\n", "no replica took part in any query");

    step("The same as a picture");
    draw_timeline(&cluster);

    step("One standby goes down: the answers stay right");
    cluster.stop(1, StopMode::Immediate);
    println!("    {} is down", cluster.name(1));
    // A new session, so that nothing is known yet about the loss.
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET enable_parallel_replicas = 1")
        .expect("the setting exists");
    for (number, expected) in QUERIES.into_iter().zip(&expected) {
        let (rows, elapsed) = timed(&mut client, number);
        assert_same(number, expected, &rows);
        println!("    Q{number}: right, {:.0} ms", millis(elapsed));
    }

    if keep {
        cluster.start(1);
        leave_running(cluster);
    } else {
        step("Servers are stopped and their folder is removed (KEEP=1 leaves them running)");
        drop(cluster);
    }
}

/// Writes the timeline of Q1, on warm links, to a file.
fn draw_timeline(cluster: &Cluster) {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET enable_parallel_replicas = 1; SET parallel_replicas.log_level = trace")
        .expect("settings");
    for _ in 0..2 {
        timed(&mut client, 1);
    }
    let page: String = client
        .query_one(
            "SELECT parallel_replicas.query_timeline(parallel_replicas.last_query_id())",
            &[],
        )
        .expect("a timeline")
        .get(0);
    let file = PathBuf::from("target/timeline.html");
    fs::create_dir_all("target").expect("a folder for the picture");
    fs::write(&file, page).expect("a file for the picture");
    println!("    what every process did when in Q1: {}", file.display());
}

fn scale_factor() -> f64 {
    let text = std::env::var("SCALE").unwrap_or_else(|_| String::from("1"));
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 100.0 => scale,
        _ => panic!("SCALE must be a number above 0 and at most 100, not \"{text}\""),
    }
}

fn step(title: &str) {
    println!("\n==> {title}");
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The progress bar: redrawn in place on a terminal, only its end elsewhere.
fn draw(progress: Progress, elapsed: Duration) {
    const WIDTH: usize = 40;
    let Progress {
        rows,
        expected_rows,
        finished,
    } = progress;
    let share = if finished {
        1.0
    } else {
        (rows as f64 / expected_rows as f64).min(1.0)
    };
    let full = (share * WIDTH as f64) as usize;
    let bar = "#".repeat(full) + &".".repeat(WIDTH - full);
    let note = if share >= 1.0 && !finished {
        ", keys and statistics"
    } else {
        ""
    };
    let line = format!(
        "    [{bar}] {rows} rows, {:.0} s{note}                    ",
        elapsed.as_secs_f64()
    );
    if stdout().is_terminal() {
        print!("\r{line}");
        stdout().flush().expect("the terminal can be written");
    }
    if finished {
        println!(
            "{}{}",
            if stdout().is_terminal() { "\r" } else { "" },
            line.trim_end()
        );
    }
}

/// At scale factor 1 the answers must be the published ones.
fn check_answers(client: &mut Client, scale: f64) {
    for number in QUERIES {
        let (rows, elapsed) = timed(client, number);
        assert_published(number, &rows, scale);
        let verdict = if scale == 1.0 {
            "as published"
        } else {
            "no published answer"
        };
        println!(
            "    Q{number}: {} rows, {verdict}, {:.0} ms",
            rows.rows.len(),
            millis(elapsed)
        );
    }
}

/// Times all queries in both modes and returns their answers.
fn compare(cluster: &Cluster, scale: f64) -> Vec<Rows> {
    let mut client = cluster.connect(PRIMARY);
    println!("\n    query   alone ms   with replicas ms   ratio   answer");
    QUERIES
        .into_iter()
        .map(|number| {
            let (alone, alone_time) = best(&mut client, 0, number);
            let (together, together_time) = best(&mut client, 1, number);
            assert_same(number, &alone, &together);
            assert_published(number, &together, scale);
            println!(
                "    Q{number:<5} {:>9.0} {:>18.0} {:>7.2}   equal{}",
                millis(alone_time),
                millis(together_time),
                alone_time.as_secs_f64() / together_time.as_secs_f64(),
                if scale == 1.0 { ", as published" } else { "" }
            );
            alone
        })
        .collect()
}

fn best(client: &mut Client, enable: i32, number: usize) -> (Rows, Duration) {
    client
        .batch_execute(&format!("SET enable_parallel_replicas = {enable}"))
        .expect("the setting exists");
    let runs: Vec<_> = (0..RUNS).map(|_| timed(client, number)).collect();
    runs.into_iter()
        .min_by_key(|(_, time)| *time)
        .expect("there was a run")
}

fn timed(client: &mut Client, number: usize) -> (Rows, Duration) {
    let start = Instant::now();
    match Rows::fetch(client, tpch::query(number)) {
        Ok(rows) => (rows, start.elapsed()),
        Err(error) => panic!("Q{number} failed: {error:?}"),
    }
}

/// The four queries have a total order, so the order of rows counts.
fn assert_same(number: usize, expected: &Rows, rows: &Rows) {
    if let Some(difference) = expected.difference(rows, true) {
        panic!("the answer of Q{number} differs with replicas: {difference}");
    }
}

fn assert_published(number: usize, rows: &Rows, scale: f64) {
    if scale != 1.0 {
        return;
    }
    if let Some(difference) = tpch::check_published_answer(number, rows) {
        panic!("Q{number} differs from the published answer: {difference}");
    }
}

/// Runs a script through psql on the primary, prints both and returns the output.
fn show(cluster: &Cluster, script: &str) -> String {
    println!("{}", indented(script, "    => "));
    let output = cluster.psql_output(PRIMARY, &["-q", "-v", "ON_ERROR_STOP=1"], script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql failed: {errors}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{}", indented(text.trim_end(), "    "));
    text
}

fn indented(text: &str, with: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("{with}{line}")).collect();
    lines.join("\n")
}

fn show_tables(client: &mut Client) {
    for table in &tpch::TABLES {
        let query = format!(
            "SELECT to_char(count(*), '999,999,999'), pg_size_pretty(pg_table_size('{name}'))
             FROM {name}",
            name = table.name
        );
        let row = client.query_one(&query, &[]).expect("the table was loaded");
        let (rows, size): (String, String) = (row.get(0), row.get(1));
        println!("    {:<10} {rows} rows {size:>10}", table.name);
    }
}

/// Tells how to reach and how to stop the servers, and leaves them running.
fn leave_running(cluster: Cluster) {
    step("The servers keep running");
    let base = PathBuf::from(cluster.base());
    let mut script =
        String::from("#!/bin/sh\n# Stops the demo's servers and removes their folder.\n");
    for node in (PRIMARY..=STANDBYS).rev() {
        let (name, port) = (cluster.name(node), cluster.port(node));
        println!("    {name:>8}: psql -h 127.0.0.1 -p {port} -U postgres postgres");
        let stop = installation().shell_command("pg_ctl");
        script.push_str(&format!(
            "{stop} -D {} -m immediate stop\n",
            cluster.data_dir(node).display()
        ));
    }
    let path = base.join("stop.sh");
    script.push_str(&format!("cd / && rm -rf {}\n", base.display()));
    fs::write(&path, script).expect("the folder can be written");
    println!("    Stop them by: sh {}", path.display());
    cluster.keep();
}
