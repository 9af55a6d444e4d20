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

/// The first column of what a statement answers, as lines.
fn text_of(client: &mut Client, statement: &str) -> String {
    let rows = client.simple_query(statement).expect("it succeeds");
    let lines: Vec<&str> = rows
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    lines.join("\n")
}

/// What becomes of a replica.
#[derive(Clone, Copy)]
enum Fate {
    /// While it works.
    Lost,
    /// Before it gets work.
    Unavailable,
}

/// The rows are right, and the replica went without delivering any, for this reason.
#[track_caller]
fn assert_gone(
    cluster: &Cluster,
    client: &mut Client,
    query: &str,
    expected: &Rows,
    fate: Fate,
    why: &str,
) {
    let (counter, word) = match fate {
        Fate::Lost => ("LostCount", "lost"),
        Fate::Unavailable => ("UnavailableCount", "unavailable"),
    };
    let before = cluster.event(PRIMARY, counter);
    let rows = Rows::fetch(client, query).expect("the query succeeds");
    assert_eq!(rows.rows, expected.rows);
    let gone = cluster.event(PRIMARY, counter) - before;
    let plan = text_of(
        client,
        &format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {query}"),
    );
    assert!(gone > 0, "no link was {word}\n{plan}");
    let shown = plan
        .split_once(&format!(" {word}: "))
        .and_then(|(_, reason)| reason.lines().next());
    assert!(shown.is_some_and(|reason| reason.contains(why)), "{plan}");
    let log = cluster.log(PRIMARY);
    let logged = log
        .lines()
        .any(|line| line.contains(&format!(" was {word}: ")) && line.contains(why));
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
fn with_damage(damage: impl FnOnce(&Path), fate: Fate, why: &str) {
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
    assert_gone(&cluster, &mut client, QUERY, &expected, fate, why);

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
    with_damage(flip, Fate::Lost, "invalid page in block 5 of relation");
}

#[test]
fn a_file_that_is_gone_is_read_elsewhere() {
    with_damage(
        |path| fs::remove_file(path).unwrap(),
        Fate::Unavailable,
        "(SQLSTATE 58P01)",
    );
}

#[test]
fn a_file_that_cannot_be_opened_is_read_elsewhere() {
    let forbid = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    };
    // The code is the one for missing rights, but no right on the table is missing.
    with_damage(
        forbid,
        Fate::Unavailable,
        "Permission denied (SQLSTATE 42501)",
    );
}

/// Its two rows take 900 MB each.
const LARGE: &str = "SELECT sum(length(repeat(pad, 9000000))) FROM t WHERE id % 30000 = 1";

#[test]
fn a_replica_without_memory_costs_the_query_nothing() {
    let mut cluster = scene();
    let mut client = session(&cluster);
    let plan = text_of(&mut client, &format!("EXPLAIN {LARGE}"));
    assert!(plan.contains("Partial Aggregate"), "{plan}");
    let expected = Rows::fetch(&mut client, LARGE).unwrap();
    assert!(cluster.event(PRIMARY, "UsedCount") > 0, "no replica reads");
    cluster.stop(STANDBY, StopMode::Fast);
    // Enough for everything but these rows.
    cluster.start_with_memory(STANDBY, 400 << 20);
    cluster.wait_streaming(STANDBY);
    let why = "out of memory (SQLSTATE 53200)";
    assert_gone(&cluster, &mut client, LARGE, &expected, Fate::Lost, why);
    // The process goes on to serve.
    let before = cluster.event(PRIMARY, "UsedCount");
    Rows::fetch(&mut client, QUERY).unwrap();
    assert!(cluster.event(PRIMARY, "UsedCount") > before);
    damage_check(&cluster);
}

/// Of a scan that is divided, and of one that each process makes for itself.
const JOIN: &str = "SELECT count(*), sum(many.id + t.id) FROM many JOIN t ON t.id = many.id";

/// An ordinary query on such a standby finds fewer rows, and no error.
#[test]
fn a_file_that_has_lost_its_end_is_read_elsewhere() {
    let mut cluster = scene();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE many AS SELECT i % {ROWS} + 1 AS id FROM generate_series(1, 200000) i;
             ANALYZE many"
        ),
    );
    cluster.wait_all_caught_up();
    let planned = "SET enable_parallel_hash = off; SET enable_mergejoin = off;
                   SET enable_nestloop = off";
    let mut client = session(&cluster);
    client.batch_execute(planned).unwrap();
    let expected = [QUERY, JOIN].map(|query| {
        let before = cluster.event(PRIMARY, "UsedCount");
        let rows = Rows::fetch(&mut client, query).unwrap();
        assert!(cluster.event(PRIMARY, "UsedCount") > before, "{query}");
        rows
    });
    let path = file(&cluster);
    cluster.stop(STANDBY, StopMode::Fast);
    let whole = OpenOptions::new().write(true).open(&path).unwrap();
    let bytes = whole.metadata().unwrap().len();
    whole.set_len(bytes - 3 * BLOCK_BYTES).unwrap();
    cluster.start(STANDBY);
    cluster.wait_streaming(STANDBY);

    let alone = Rows::fetch(&mut cluster.connect(STANDBY), QUERY).unwrap();
    assert_ne!(alone.rows, expected[0].rows, "the standby has all rows");
    let mut client = session(&cluster);
    client.batch_execute(planned).unwrap();
    for (query, expected) in [QUERY, JOIN].iter().zip(&expected) {
        let before = cluster.event(PRIMARY, "RefusedCount");
        let rows = Rows::fetch(&mut client, query).unwrap();
        assert_eq!(rows.rows, expected.rows, "{query}");
        assert!(cluster.event(PRIMARY, "RefusedCount") > before, "{query}");
    }
    let blocks = bytes / BLOCK_BYTES;
    let why = format!(
        "ends at block {}, on the coordinator block {} holds rows",
        blocks - 3,
        blocks - 1
    );
    assert!(cluster.log(PRIMARY).contains(&why), "the log does not tell");
    let known = "SELECT coalesce(last_error, '') FROM parallel_replicas.replicas";
    let known = text(&mut client, known);
    assert!(known.contains(&why), "not counted: {known}");

    cluster.stop(STANDBY, StopMode::Fast);
    whole.set_len(bytes).unwrap();
    cluster.start(STANDBY);
    cluster.wait_streaming(STANDBY);
}

/// Empty blocks are added to a table without WAL, so a standby may never have had them.
#[test]
fn empty_blocks_at_the_end_are_missed_nowhere() {
    let mut cluster = scene();
    let expected = Rows::fetch(&mut session(&cluster), QUERY).unwrap();
    let path = text(
        &mut cluster.connect(PRIMARY),
        "SELECT pg_relation_filepath('t')",
    );
    let path = cluster.data_dir(PRIMARY).join(path);
    // As many as an extension under contention makes, and more than are looked at.
    for more in [512, 1024] {
        cluster.stop(PRIMARY, StopMode::Fast);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes + more * BLOCK_BYTES).unwrap();
        cluster.start(PRIMARY);
        cluster.wait_streaming(STANDBY);
        let before = cluster.event(PRIMARY, "UsedCount");
        let rows = Rows::fetch(&mut session(&cluster), QUERY).unwrap();
        assert_eq!(rows.rows, expected.rows);
        assert!(
            cluster.event(PRIMARY, "UsedCount") > before,
            "the replica was left out"
        );
    }
    damage_check(&cluster);
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
