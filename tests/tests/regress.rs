//! PostgreSQL's own regression test programs over `pg_test/`, and its tools for dumps and copies,
//! on a primary with two replicas.
//!
//! One cluster serves all parts, one after the other, because pg_regress compares every answer of
//! the server and would see what another test does at the same time.

use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use parallel_replicas_tests::system::{installation, output_of, pg_config, test_programs};
use parallel_replicas_tests::{Cluster, PRIMARY, StopMode, damage_check, text};

/// Under this setting anything that might mind replicas says so.
const FORCE: &str = "-c enable_parallel_replicas=2";

#[test]
fn regression_and_isolation_tests_pass() {
    let mut cluster = Cluster::builder()
        .standbys(2)
        .setting("shared_buffers", "64MB")
        .start();
    cluster.register_replicas();

    run_schedule(&cluster, "regress/pg_regress", "schedule");
    run_schedule(
        &cluster,
        "isolation/pg_isolation_regress",
        "isolation_schedule",
    );
    dumps_do_not_mind_the_setting(&cluster);
    a_base_backup_does_not_mind_the_setting(&cluster);
    a_standby_says_that_it_is_one(&cluster);
    old_snapshot_threshold_is_named(&mut cluster);
    damage_check(&cluster);
    a_bare_name_in_the_file_is_refused_clearly(&mut cluster);
}

/// Runs one of PostgreSQL's test programs and panics with its differences.
#[track_caller]
fn run_schedule(cluster: &Cluster, program: &str, schedule: &str) {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pg_test");
    let output = tempfile::tempdir().expect("a temporary folder");
    let port = cluster.port(PRIMARY).to_string();
    let mut command = Command::new(test_programs().join(program));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    let result = command
        .arg(format!("--inputdir={}", input.display()))
        .arg(format!("--outputdir={}", output.path().display()))
        .arg(format!("--schedule={}", input.join(schedule).display()))
        .arg(format!("--bindir={}", pg_config("--bindir")))
        .args(["--use-existing", "--dbname=postgres", "--user=postgres"])
        .args(["--host=127.0.0.1", &format!("--port={port}")])
        .output()
        .unwrap_or_else(|error| panic!("could not run {program}: {error}"));
    if !result.status.success() {
        let differences = fs::read_to_string(output.path().join("regression.diffs"));
        panic!("{}\n{}", both(&result), differences.unwrap_or_default());
    }
}

/// A client program against the primary, with the setting in PGOPTIONS.
fn client(cluster: &Cluster, program: &str) -> Command {
    let mut command = installation().client_command(program);
    command
        .env("PGOPTIONS", FORCE)
        .args(["-h", "127.0.0.1", "-U", "postgres"])
        .args(["-p", &cluster.port(PRIMARY).to_string()]);
    command
}

fn dumps_do_not_mind_the_setting(cluster: &Cluster) {
    let plain = output_of(client(cluster, "pg_dump").arg("postgres"));
    let without = output_of(
        client(cluster, "pg_dump")
            .env_remove("PGOPTIONS")
            .arg("postgres"),
    );
    assert!(plain.contains("COPY public.fact "), "no data in the dump");
    assert_eq!(comparable(&plain), comparable(&without));
    // The secret belongs to its cluster.
    assert!(!plain.contains("COPY parallel_replicas.secret"));
    output_of(client(cluster, "pg_dump").args([
        "--inserts",
        "--serializable-deferrable",
        "postgres",
    ]));
    output_of(client(cluster, "pg_dump").args(["--format=custom", "postgres"]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    output_of(
        client(cluster, "pg_dump")
            .args(["--format=directory", "--jobs=2", "--file"])
            .arg(folder.path().join("dump"))
            .arg("postgres"),
    );
    let all = output_of(&mut client(cluster, "pg_dumpall"));
    assert!(all.contains("CREATE ROLE parallel_replicas_link"));
    output_of(client(cluster, "vacuumdb").args(["--all", "--analyze"]));
    output_of(client(cluster, "reindexdb").args(["--concurrently", "postgres"]));
}

/// Without the random keys that newer pg_dump writes around the dump.
fn comparable(dump: &str) -> String {
    dump.lines()
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn a_base_backup_does_not_mind_the_setting(cluster: &Cluster) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let backup = folder.path().join("backup");
    output_of(
        client(cluster, "pg_basebackup")
            .args(["--checkpoint=fast", "--wal-method=stream", "-D"])
            .arg(&backup),
    );
    output_of(
        installation()
            .client_command("pg_verifybackup")
            .arg(&backup),
    );
}

fn a_standby_says_that_it_is_one(cluster: &Cluster) {
    cluster.wait_all_caught_up();
    let mut standby = cluster.connect(1);
    standby
        .batch_execute("SET enable_parallel_replicas = 1")
        .expect("the setting can be set");
    let query = "SELECT count(*)::text FROM fact";
    assert_eq!(text(&mut standby, query), "20010");
    standby
        .batch_execute("SET enable_parallel_replicas = 2")
        .expect("the setting can be set");
    let error = standby.query_one(query, &[]).expect_err("force is refused");
    let error = error.as_db_error().expect("the server's own error");
    assert_eq!(error.code().code(), "55000");
    let detail = error.detail().unwrap_or_default();
    assert!(detail.starts_with("Reason in_recovery: "), "{detail}");
    assert!(error.hint().is_some());
}

fn old_snapshot_threshold_is_named(cluster: &mut Cluster) {
    cluster.configure(PRIMARY, "old_snapshot_threshold", "1h");
    cluster.restart(PRIMARY, StopMode::Fast);
    let mut client = cluster.connect(PRIMARY);
    let query = "SELECT count(*)::text FROM fact";
    client
        .batch_execute("SET enable_parallel_replicas = 1")
        .expect("the setting can be set");
    assert_eq!(text(&mut client, query), "20010");
    client
        .batch_execute("SET enable_parallel_replicas = 2")
        .expect("the setting can be set");
    let error = client.query_one(query, &[]).expect_err("force is refused");
    let detail = error
        .as_db_error()
        .and_then(|error| error.detail().map(str::to_owned));
    let detail = detail.unwrap_or_default();
    assert!(
        detail.starts_with("Reason old_snapshot_threshold: "),
        "{detail}"
    );
    drop(client);
    cluster.configure(PRIMARY, "old_snapshot_threshold", "-1");
    cluster.restart(PRIMARY, StopMode::Fast);
    for node in cluster.standbys() {
        cluster.wait_streaming(node);
    }
}

/// The last part: it leaves the primary down.
fn a_bare_name_in_the_file_is_refused_clearly(cluster: &mut Cluster) {
    cluster.configure(PRIMARY, "parallel_replicas.links_per_replica", "1");
    cluster.restart(PRIMARY, StopMode::Fast);
    let mut client = cluster.connect(PRIMARY);
    assert_eq!(
        text(&mut client, "SHOW parallel_replicas.links_per_replica"),
        "1"
    );
    drop(client);
    cluster.configure(PRIMARY, "enable_parallel_replicas", "1");
    cluster.stop(PRIMARY, StopMode::Fast);
    assert!(cluster.try_start(PRIMARY).is_err());
    let log = cluster.log(PRIMARY);
    let wanted = "unrecognized configuration parameter \"enable_parallel_replicas\"";
    assert!(log.contains(wanted), "the log does not say why");
}

fn both(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
