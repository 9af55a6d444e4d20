//! Errors on replicas. Its own, which are not the query's: a page whose checksum fails, a file that
//! is gone or cannot be opened; the replica is lost, and what it held is read elsewhere.
//! And errors of rows, which the query has in the same words as without replicas.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use parallel_replicas_tests::system::installation;
use parallel_replicas_tests::{
    Cluster, Differential, PRIMARY, Rows, SOON, StopMode, damage_check, text, wait_until,
};
use postgres::{Client, SimpleQueryMessage};

const STANDBY: usize = 1;

const ROWS: i64 = 60_000;

const QUERY: &str = "SELECT count(*), sum(id), min(pad) FROM t";

const BLOCK_BYTES: u64 = 8192;

/// A primary and a standby, both with everything in their files.
fn scene() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(1)
        .checksums(true)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "20s")
        .setting("parallel_replicas.replay_wait_timeout", "20s")
        .setting("parallel_replicas.granule_blocks", "8")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT i AS id, repeat('x', 100) AS pad
                 FROM generate_series(1, {ROWS}) i"
        ),
    );
    // Leaves nothing for a reader to write.
    cluster.psql(PRIMARY, "VACUUM (FREEZE, ANALYZE) t");
    // So that the standby, once restarted, does not replay its pages anew.
    cluster.psql(PRIMARY, "CHECKPOINT");
    cluster.wait_all_caught_up();
    cluster.psql(STANDBY, "CHECKPOINT");
    cluster
}

/// A session whose queries are left to the replica as long as it is there.
fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute(
            "SET parallel_replicas.debug_force = on; SET parallel_replicas_local_plan = off;
             SET client_min_messages = error",
        )
        .unwrap();
    client
}

/// The rows are right, and the replica that began with them was lost for this reason.
#[track_caller]
fn assert_lost(cluster: &Cluster, client: &mut Client, query: &str, expected: &Rows, why: &str) {
    let before = cluster.event(PRIMARY, "LostCount");
    let rows = Rows::fetch(client, query).expect("the query succeeds");
    assert_eq!(rows.rows, expected.rows);
    let lost = cluster.event(PRIMARY, "LostCount") - before;
    let plan: Vec<String> = client
        .simple_query(&format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {query}"))
        .expect("the query succeeds")
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(String::from),
            _ => None,
        })
        .collect();
    let plan = plan.join("\n");
    assert!(lost > 0, "no link was lost\n{plan}");
    let shown = plan
        .split_once(" lost: ")
        .and_then(|(_, reason)| reason.lines().next());
    assert!(shown.is_some_and(|reason| reason.contains(why)), "{plan}");
    let log = cluster.log(PRIMARY);
    let logged = log
        .lines()
        .any(|line| line.contains(" was lost: ") && line.contains(why));
    assert!(logged, "the log does not tell");
}

/// The file of table `t` on the standby.
fn file(cluster: &Cluster) -> PathBuf {
    let path = text(
        &mut cluster.connect(STANDBY),
        "SELECT pg_relation_filepath('t')",
    );
    cluster.data_dir(STANDBY).join(path)
}

/// The standby restarts with a file that was damaged while it was down; afterwards it is whole again.
#[track_caller]
fn with_damage(damage: impl FnOnce(&Path), why: &str) {
    let mut cluster = scene();
    let expected = Rows::fetch(&mut session(&cluster), QUERY).unwrap();
    let used = cluster.event(PRIMARY, "UsedCount");
    assert!(used > 0, "no replica was used before the damage");
    let path = file(&cluster);
    cluster.stop(STANDBY, StopMode::Fast);
    let whole = fs::read(&path).unwrap();
    damage(&path);
    cluster.start(STANDBY);
    cluster.wait_streaming(STANDBY);

    // An ordinary query there meets it, too.
    let error = Rows::fetch(&mut cluster.connect(STANDBY), QUERY).expect_err("it is damaged");
    let error = error.as_db_error().expect("an error of the server");
    let met = format!("{} (SQLSTATE {})", error.message(), error.code().code());
    assert!(met.contains(why), "{met}");

    let mut client = session(&cluster);
    assert_lost(&cluster, &mut client, QUERY, &expected, why);

    cluster.stop(STANDBY, StopMode::Fast);
    let _ = fs::remove_file(&path);
    fs::write(&path, whole).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    installation().give_to_server_user(&path);
    cluster.start(STANDBY);
    cluster.wait_streaming(STANDBY);
    damage_check(&cluster);
    let before = cluster.event(PRIMARY, "UsedCount");
    wait_until(SOON, "the replica is used again", || {
        let rows = Rows::fetch(&mut session(&cluster), QUERY).unwrap();
        assert_eq!(rows.rows, expected.rows);
        cluster.event(PRIMARY, "UsedCount") > before
    });
}

#[test]
fn a_page_whose_checksum_fails_is_read_elsewhere() {
    const BLOCK: u64 = 5;
    let flip = |path: &Path| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut byte = [0];
        let at = BLOCK * BLOCK_BYTES + BLOCK_BYTES - 20;
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    with_damage(flip, "invalid page in block 5 of relation");
}

#[test]
fn a_file_that_is_gone_is_read_elsewhere() {
    with_damage(|path| fs::remove_file(path).unwrap(), "(SQLSTATE 58P01)");
}

#[test]
fn a_file_that_cannot_be_opened_is_read_elsewhere() {
    let forbid = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    };
    // The code is the one for missing rights, but no right on the table is missing.
    with_damage(forbid, "Permission denied (SQLSTATE 42501)");
}

/// A replica meets each of them first, or delivers the rows above which they are met.
#[test]
fn an_error_of_a_row_has_the_same_words_everywhere() {
    let cluster = scene();
    cluster.psql(
        PRIMARY,
        "CREATE TABLE bad AS
             SELECT i AS id, CASE i WHEN 777 THEN '{\"a\": x}' ELSE '{\"a\": 1}' END AS document,
                    i - 777 AS number
             FROM generate_series(1, 2000) i;
         CREATE DOMAIN not_zero AS int CONSTRAINT is_not_zero CHECK (VALUE <> 0);
         CREATE FUNCTION boom(int) RETURNS int LANGUAGE plpgsql PARALLEL RESTRICTED AS
             $$BEGIN
                 IF $1 = 0 THEN
                     RAISE EXCEPTION 'number %', $1 USING DETAIL = 'It is zero.',
                         HINT = 'Take another.', ERRCODE = 'PR001';
                 END IF;
                 RETURN $1;
             END$$;
         ANALYZE bad",
    );
    cluster.wait_all_caught_up();
    let mut client = cluster.connect(PRIMARY);
    for (query, code, message, is_met_there) in [
        (
            "SELECT id FROM bad WHERE document::json ->> 'a' <> ''",
            "22P02",
            "invalid input syntax for type json",
            true,
        ),
        (
            "SELECT id FROM bad WHERE 10 / number > 100",
            "22012",
            "division by zero",
            true,
        ),
        (
            "SELECT sum(number::not_zero) FROM bad WHERE id % 7 = 0",
            "23514",
            "value for domain not_zero violates check constraint \"is_not_zero\"",
            false,
        ),
        (
            "SELECT sum(boom(number)) FROM bad WHERE id % 7 = 0",
            "PR001",
            "number 0",
            false,
        ),
    ] {
        let lost = cluster.event(PRIMARY, "LostCount");
        let asked = cluster.event(PRIMARY, "QueryCount");
        let told = Differential::new(&mut client)
            .between(
                "SET LOCAL enable_parallel_replicas = 0",
                "SET LOCAL enable_parallel_replicas = 2;
                 SET LOCAL parallel_replicas_local_plan = off",
            )
            .check_same_error(query);
        assert_eq!(told.message, message, "{query}");
        assert_eq!(told.sqlstate, code, "{query}");
        assert_eq!(cluster.event(PRIMARY, "QueryCount"), asked + 1, "{query}");
        let lost = cluster.event(PRIMARY, "LostCount") - lost;
        assert_eq!(lost > 0, is_met_there, "{query}");
        match code {
            "22P02" => {
                assert_eq!(told.detail.as_deref(), Some("Token \"x\" is invalid."));
                let context = told.context.expect("JSON tells where");
                assert!(context.starts_with("JSON data, line 1: "), "{context}");
            }
            "PR001" => {
                assert_eq!(told.detail.as_deref(), Some("It is zero."));
                assert_eq!(told.hint.as_deref(), Some("Take another."));
                let context = told.context.expect("PL/pgSQL tells where");
                assert!(context.starts_with("PL/pgSQL function boom"), "{context}");
            }
            _ => {}
        }
    }
    damage_check(&cluster);
}
