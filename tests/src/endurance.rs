//! Many queries, most of which end early in one way or another: what sessions hold must not grow.
//!
//! First all of them in one session, then as many in all sessions together.

use std::thread;

use fastrand::Rng;
use postgres::Client;

use crate::cluster::{Cluster, PRIMARY, text};
use crate::damage::damage_check;
use crate::footprint::Footprint;
use crate::wait::{SOON, wait_until};

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// In the one session, and again in all of the others together.
    pub queries: usize,
    pub sessions: usize,
    /// Whether growth counts: valgrind takes memory and descriptors of its own for what it watches, and
    /// makes servers so slow that links are lost.
    pub growth: bool,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Report {
    /// How queries ended: in order, or by which error.
    pub ended: usize,
    pub failed: usize,
    /// The process and what it held after a tenth of its queries and after the last.
    pub footprints: Vec<(String, Footprint, Footprint)>,
    /// Granules that replicas read, and all.
    pub by_replicas: u64,
    pub granules: u64,
    /// What must not be.
    pub wrong: Vec<String>,
}

const ROWS: u64 = 4000;
/// Private memory that caches and malloc's arenas may still take after a tenth of the queries.
const PRIVATE_KB: u64 = 8 * 1024;
const LINKS: usize = 2;

/// Statements of [`statement`], all and those after which a session still has its links.
const ALL: [u32; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const KEEPING: [u32; 4] = [0, 1, 2, 8];

/// A statement, and the errors that it may end with; without any it must succeed.
fn statement(rng: &mut Rng, kinds: &[u32]) -> (String, &'static [&'static str]) {
    let count = rng.u32(1..200);
    let timeout = rng.u32(1..30);
    match kinds[rng.usize(..kinds.len())] {
        0 => (String::from("SELECT count(*), sum(id) FROM t"), &[]),
        1 => (format!("SELECT id, pad FROM t LIMIT {count}"), &[]),
        2 => (String::from("SELECT id, pad FROM t WHERE id % 5 = 0"), &[]),
        3 => (
            format!(
                "BEGIN; DECLARE c CURSOR FOR SELECT id, pad FROM t; FETCH {count} FROM c; CLOSE c;
                 COMMIT"
            ),
            &[],
        ),
        4 => (
            format!(
                "SET statement_timeout = {timeout};
                 SELECT sum(length(repeat(pad, 20000))) FROM t"
            ),
            &["57014"],
        ),
        5 => (String::from("SELECT sum(1 / (id - 77)) FROM t"), &["22012"]),
        6 => (String::from("SELECT boom(id, 0) FROM t"), &["P0001"]),
        7 => (
            format!(
                "DO $$BEGIN
                     PERFORM boom(id, {count}) FROM t;
                 EXCEPTION WHEN raise_exception THEN NULL;
                 END$$"
            ),
            &[],
        ),
        _ => (
            String::from("SELECT id FROM t ORDER BY pad, id LIMIT 10"),
            &[],
        ),
    }
}

/// Runs the plan on a cluster of its own.
pub fn run(plan: Plan) -> Report {
    let cluster = Cluster::builder()
        .standbys(1)
        .autovacuum(false)
        .setting("jit", "off")
        .setting("max_connections", "300")
        .setting("parallel_replicas.connect_timeout", "10s")
        .setting("parallel_replicas.links_per_replica", &LINKS.to_string())
        .setting("parallel_replicas.granule_blocks", "1")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE TABLE t AS SELECT i AS id, 'row ' || i % 100 AS pad
                 FROM generate_series(1, {ROWS}) i;
             CREATE FUNCTION boom(int, int) RETURNS int LANGUAGE plpgsql PARALLEL RESTRICTED AS
                 $$BEGIN
                     IF $1 > $2 THEN RAISE EXCEPTION 'enough'; END IF; RETURN $1;
                 END$$;
             ANALYZE t"
        ),
    );
    cluster.wait_all_caught_up();
    let mut report = Report::default();
    let mut rng = Rng::with_seed(plan.seed);
    one_session(&cluster, plan, &mut rng, &mut report);
    many_sessions(&cluster, plan, &mut rng, &mut report);
    wait_until(SOON, "all links end with their sessions", || {
        links(&cluster).is_empty()
    });
    for (name, before, after) in report.footprints.iter().filter(|_| plan.growth) {
        if after.descriptors > before.descriptors + 2 * LINKS
            || after.segments > before.segments
            || after.private_kb > before.private_kb + PRIVATE_KB
        {
            report
                .wrong
                .push(format!("{name} grew from {before} to {after}"));
        }
    }
    prove(&cluster, &mut report);
    damage_check(&cluster);
    report
}

/// What replicas do not do they cannot leave behind.
fn prove(cluster: &Cluster, report: &mut Report) {
    let counted = |name| cluster.event(PRIMARY, name);
    report.by_replicas = counted("ReadByReplicasMarks");
    report.granules = counted("ReadAssignedMarks")
        + counted("ReadAssignedForStealingMarks")
        + counted("ReadUnassignedMarks");
    if report.by_replicas * 2 < report.granules || report.by_replicas == 0 {
        report.wrong.push(format!(
            "replicas read {} granules of {}",
            report.by_replicas, report.granules
        ));
    }
}

/// Nearly all is left to the replica, which would come too late for such small queries.
fn where_to(rng: &mut Rng) -> &'static str {
    match rng.u32(..10) {
        0 => "SET parallel_replicas_local_plan = on",
        _ => "SET parallel_replicas_local_plan = off",
    }
}

fn one_session(cluster: &Cluster, plan: Plan, rng: &mut Rng, report: &mut Report) {
    let mut client = session(cluster);
    let pid = process(&mut client);
    execute(&mut client, plan.queries / 10, &ALL, rng, report);
    let before = Footprint::of(pid);
    execute(&mut client, plan.queries, &ALL, rng, report);
    let after = Footprint::of(pid);
    report
        .footprints
        .push((String::from("one session"), before, after));
    let kept = links(cluster);
    if kept.len() > 2 * LINKS {
        report
            .wrong
            .push(format!("{} links of one session", kept.len()));
    }
    one_sessions_links(cluster, &mut client, plan, rng, report);
}

/// The processes on the replica that serve a session, as long as it keeps its links.
fn one_sessions_links(
    cluster: &Cluster,
    client: &mut Client,
    plan: Plan,
    rng: &mut Rng,
    report: &mut Report,
) {
    execute(client, (plan.queries / 10).max(50), &KEEPING, rng, report);
    let before: Vec<(i32, Footprint)> = links(cluster)
        .into_iter()
        .map(|pid| (pid, Footprint::of(pid)))
        .collect();
    execute(client, plan.queries / 4, &KEEPING, rng, report);
    let kept = links(cluster);
    let lost = before.is_empty() || before.iter().any(|(pid, _)| !kept.contains(pid));
    if lost && plan.growth {
        let text = format!("the links {before:?} became {kept:?}");
        report.wrong.push(text);
    }
    if lost {
        return;
    }
    for (pid, footprint) in before {
        let name = String::from("process of a link");
        report
            .footprints
            .push((name, footprint, Footprint::of(pid)));
    }
}

fn many_sessions(cluster: &Cluster, plan: Plan, rng: &mut Rng, report: &mut Report) {
    let each = plan.queries / plan.sessions;
    let seeds: Vec<u64> = (0..plan.sessions).map(|_| rng.u64(..)).collect();
    let all: Vec<(Report, Client)> = thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    let mut report = Report::default();
                    let mut client = session(cluster);
                    let pid = process(&mut client);
                    execute(
                        &mut client,
                        (each / 10).max(10),
                        &ALL,
                        &mut rng,
                        &mut report,
                    );
                    let before = Footprint::of(pid);
                    execute(&mut client, each, &ALL, &mut rng, &mut report);
                    let name = String::from("one of many sessions");
                    report.footprints.push((name, before, Footprint::of(pid)));
                    (report, client)
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    let links = links(cluster).len();
    if links > plan.sessions * 2 * LINKS {
        report
            .wrong
            .push(format!("{links} links of {} sessions", plan.sessions));
    }
    for (one, client) in all {
        report.ended += one.ended;
        report.failed += one.failed;
        report.footprints.extend(one.footprints);
        report.wrong.extend(one.wrong);
        drop(client);
    }
}

fn session(cluster: &Cluster) -> Client {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("SET parallel_replicas.debug_force = on; SET client_min_messages = error")
        .expect("settings can be made");
    client
}

fn process(client: &mut Client) -> i32 {
    let pid = text(client, "SELECT pg_backend_pid()::text");
    pid.parse().expect("a process id")
}

fn execute(client: &mut Client, count: usize, kinds: &[u32], rng: &mut Rng, report: &mut Report) {
    for _ in 0..count {
        let (script, expected) = statement(rng, kinds);
        let outcome = client
            .batch_execute(where_to(rng))
            .and_then(|()| client.batch_execute(&script));
        match &outcome {
            Ok(()) if expected.is_empty() || expected == ["57014"] => report.ended += 1,
            Err(error)
                if error
                    .code()
                    .is_some_and(|code| expected.contains(&code.code())) =>
            {
                report.failed += 1;
            }
            _ => report.wrong.push(format!("{script}\n{outcome:?}")),
        }
        if let Err(error) = client.batch_execute("RESET statement_timeout") {
            report.wrong.push(format!("{script}\n{error:?}"));
            return;
        }
    }
}

/// Processes of links on the standby.
fn links(cluster: &Cluster) -> Vec<i32> {
    let mut client = cluster.connect(1);
    let query = "SELECT pid FROM pg_stat_activity
                 WHERE application_name LIKE 'parallel_replicas%'
                   AND application_name <> 'parallel_replicas monitor'
                   AND backend_type = 'client backend'";
    let rows = client.query(query, &[]).expect("the view can be read");
    rows.iter().map(|row| row.get(0)).collect()
}
