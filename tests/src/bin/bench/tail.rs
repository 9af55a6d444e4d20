//! How long a query waits for the slowest server.

use crate::options::number;
use crate::report::Row;
use parallel_replicas_tests::confine::Confinement;
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, text, wait_until};
use postgres::Client;
use std::thread;
use std::time::{Duration, Instant};

const STANDBYS: usize = 2;
/// The standby that is slow, or stands still.
const VICTIM: usize = 2;
const PAUSE: Duration = Duration::from_secs(2);

/// Much work per row, so that a table that fits into the buffers takes long enough.
const QUERY: &str =
    "SELECT count(*)::text || sum((v % 97)::numeric * 1.07) || sum(sqrt(v) * ln(v + 1))
       FROM t WHERE v % 11 <> 5";

/// An aggregate on three servers with the same share of a CPU each, against the time that their summed
/// speed allows. One of them has a tenth of that share; or stands still for two seconds in the middle.
/// What the speed is, the primary alone shows in the same round. Bar: 1.15.
pub fn run() -> Vec<Row> {
    let rounds: usize = number("ROUNDS", 5);
    let share: f64 = number("SHARE", 0.2);
    let rows: u64 = number("ROWS", 12_000_000);
    println!("{rows} rows, {share} of a CPU per server, {rounds} rounds");
    let mut cluster = Cluster::builder()
        .standbys(STANDBYS)
        .autovacuum(false)
        .shared_buffers("1536MB")
        .setting("jit", "off")
        .setting("parallel_replicas.connect_timeout", "30s")
        .start();
    cluster.register_replicas();
    cluster.psql(
        PRIMARY,
        &format!(
            "CREATE EXTENSION pg_prewarm;
             CREATE TABLE t AS SELECT i AS v, repeat('x', 40) AS pad FROM generate_series(1, {rows}) i;
             VACUUM (FREEZE, ANALYZE) t"
        ),
    );
    cluster.wait_all_caught_up();
    for node in 0..=STANDBYS {
        cluster.psql(node, "SELECT pg_prewarm('t')");
    }
    let confine = |cluster: &Cluster, node: usize, share: f64| {
        let pid = cluster.postmaster_pid(node).expect("the server runs");
        Confinement::new(cluster.name(node), pid, share).expect("servers can be confined")
    };
    let mut confined: Vec<Confinement> = (0..=STANDBYS)
        .map(|node| confine(&cluster, node, share))
        .collect();
    let mut client = cluster.connect(PRIMARY);

    let (mut equal, mut stopped) = (Sides::default(), Sides::default());
    for round in 0..=rounds {
        let alone = time(&mut client, 0);
        let together = time(&mut client, 2);
        let paused;
        (client, paused) = time_with_pause(&mut cluster, client);
        let pause = PAUSE.as_secs_f64() * 1000.0;
        assert!(
            alone > 4.0 * pause,
            "the pause has to be a part: raise ROWS or lower SHARE"
        );
        // The first round fills caches and makes connections.
        if round > 0 {
            equal.add(alone / 3.0, together);
            stopped.add((alone + pause) / 3.0, paused);
        }
    }

    print_throttled(&cluster, &confined);
    confined.truncate(VICTIM);
    confined.push(confine(&cluster, VICTIM, share / 10.0));
    let mut slow = Sides::default();
    for round in 0..=rounds {
        let alone = time(&mut client, 0);
        let together = time(&mut client, 2);
        if round > 0 {
            slow.add(alone / 2.1, together);
        }
    }
    print_throttled(&cluster, &confined);
    vec![
        equal.row("three servers alike"),
        stopped.row("one of three stands still for 2 s"),
        slow.row("one of three at a tenth of its speed"),
    ]
}

/// A server that has often used up its share was held up by nothing else.
fn print_throttled(cluster: &Cluster, confined: &[Confinement]) {
    for (node, confinement) in confined.iter().enumerate() {
        let part = confinement.throttled().unwrap_or(0.0) * 100.0;
        println!(
            "{} used up its share in {part:.0}% of all periods",
            cluster.name(node)
        );
    }
}

#[derive(Default)]
struct Sides {
    allowed: Vec<f64>,
    measured: Vec<f64>,
}

impl Sides {
    fn add(&mut self, allowed: f64, measured: f64) {
        self.allowed.push(allowed);
        self.measured.push(measured);
    }

    fn row(self, what: &str) -> Row {
        Row::new(what, "ms", self.allowed, self.measured)
    }
}

fn time(client: &mut Client, mode: u8) -> f64 {
    client
        .batch_execute(&format!(
            "SET enable_parallel_replicas = {mode}; SET max_parallel_workers_per_gather = 2"
        ))
        .expect("settings");
    let start = Instant::now();
    text(client, QUERY);
    start.elapsed().as_secs_f64() * 1000.0
}

/// The standby stands still once it works for the query.
fn time_with_pause(cluster: &mut Cluster, mut client: Client) -> (Client, f64) {
    let mut observer = cluster.connect(VICTIM);
    let query = thread::spawn(move || {
        let took = time(&mut client, 2);
        (client, took)
    });
    wait_until(SOON, "the standby works", || {
        text(
            &mut observer,
            "SELECT count(*)::text FROM parallel_replicas.running_fragments",
        ) != "0"
    });
    cluster.sigstop(VICTIM);
    thread::sleep(PAUSE);
    cluster.sigcont(VICTIM);
    query.join().expect("the query succeeds")
}
