//! `make test-regress`: PostgreSQL's own regression and isolation suites, on a server without the
//! extension, then on a primary with two replicas, with replicas off, then with everything shipped
//! that can be.
//!
//! The one argument is the folder of the suites, which `scripts/test-regress.sh` makes. Each run must
//! give what the run before gave, except that rows may come in another order; what else differs
//! stands in `suite/known.txt` with its reason. (The expected output belongs to the suite's version,
//! which may be a little older than the server's.) At the end no standby may be damaged.
//! Environment: `TESTS` names the regression tests to run, all when it is not set; `ONLY=isolation`
//! or `ONLY=regress` leaves one suite out.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use parallel_replicas_tests::cluster::Options;
use parallel_replicas_tests::suite::{self, Hunk, Known};
use parallel_replicas_tests::system::{installation, test_programs};
use parallel_replicas_tests::{Cluster, PRIMARY, SOON, damage_check, text, wait_until};

/// One of the two suites.
struct Suite {
    name: &'static str,
    program: &'static str,
    schedule: &'static str,
    /// Seconds after which a run counts as hanging.
    limit: &'static str,
    /// Least number of fragments that replicas must have taken part in.
    least_used: u64,
}

const REGRESS: Suite = Suite {
    name: "regress",
    program: "regress/pg_regress",
    schedule: "parallel_schedule",
    limit: "1800",
    least_used: 3000,
};

const ISOLATION: Suite = Suite {
    name: "isolation",
    program: "isolation/pg_isolation_regress",
    schedule: "isolation_schedule",
    limit: "1800",
    least_used: 300,
};

fn main() -> ExitCode {
    let folder = PathBuf::from(env::args().nth(1).expect("the folder of the suites"));
    let only = env::var("ONLY").unwrap_or_default();
    let suites: Vec<Suite> = [REGRESS, ISOLATION]
        .into_iter()
        .filter(|suite| only.is_empty() || only == suite.name)
        .collect();
    let plain = options().preload(false).start();
    for suite in &suites {
        run(&plain, &folder, suite, Run::Plain);
    }
    drop(plain);
    let cluster = options()
        .standbys(2)
        // Small tables are divided too.
        .setting("parallel_replicas.granule_blocks", "1")
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .setting("parallel_replicas.stall_timeout", "60s")
        .start();
    let mut unknown = 0;
    for suite in &suites {
        unknown += run_both_ways(&cluster, &folder, suite);
    }
    for node in cluster.standbys().chain([PRIMARY]) {
        let log = folder.join(format!("{}.log", cluster.name(node)));
        fs::write(log, cluster.log(node)).expect("a file can be written");
    }
    println!("Comparing the standbys with the primary");
    damage_check(&cluster);
    check_logs(&cluster);
    println!("\n{unknown} differences that are not known");
    ExitCode::from(u8::from(unknown > 0))
}

fn options() -> Options {
    Cluster::builder()
        .locale("C")
        .setting("max_connections", "400")
        .setting("shared_buffers", "128MB")
        .setting("max_wal_size", "4GB")
}

/// How a suite is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    /// The library is not loaded.
    Plain,
    /// The extension is there and switched off.
    Off,
    /// Everything is shipped that can be, and read by replicas alone.
    Forced,
}

impl Run {
    fn name(self) -> &'static str {
        match self {
            Run::Plain => "plain",
            Run::Off => "off",
            Run::Forced => "forced",
        }
    }

    /// Of its output.
    fn folder(self, folder: &Path, suite: &Suite) -> PathBuf {
        folder.join(format!("{}-{}", suite.name, self.name()))
    }
}

/// Runs a suite off and forced; answers how many differences are not known.
fn run_both_ways(cluster: &Cluster, folder: &Path, suite: &Suite) -> usize {
    run(cluster, folder, suite, Run::Off);
    let mut unknown = report(folder, suite, Run::Plain, Run::Off);
    let before = counters(cluster);
    run(cluster, folder, suite, Run::Forced);
    let after = counters(cluster);
    unknown += report(folder, suite, Run::Off, Run::Forced);
    let counted: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    println!(
        "    {}: {} fragments were started with replicas, to which {} replicas contributed; {} \
         links refused, {} lost; {} planned with replicas and executed without",
        suite.name, counted[0], counted[1], counted[2], counted[3], counted[4]
    );
    if env::var_os("TESTS").is_none() {
        assert!(
            counted[0] >= suite.least_used,
            "only {} fragments used replicas",
            counted[0]
        );
        assert!(
            counted[1] * 2 >= counted[0],
            "only {} replicas contributed",
            counted[1]
        );
    }
    unknown
}

/// Prints how a run differs from another where that is not known, and answers in how many places.
fn report(folder: &Path, suite: &Suite, before: Run, run: Run) -> usize {
    let results = |run: Run| run.folder(folder, suite).join("results");
    let hunks = suite::compare(&results(before), &results(run));
    let known = suite::known();
    let explains = |entry: &&Known| hunks.iter().any(|hunk| entry.explains(run.name(), hunk));
    let other_suite = |entry: &&Known| {
        entry.run != run.name() || !results(run).join(format!("{}.out", entry.test)).exists()
    };
    for entry in known
        .iter()
        .filter(|entry| !other_suite(entry) && !explains(entry))
    {
        println!(
            "    no difference for {} | {} | {}",
            entry.run, entry.test, entry.text
        );
    }
    let (explained, unknown): (Vec<Hunk>, Vec<Hunk>) = hunks
        .into_iter()
        .partition(|hunk| known.iter().any(|entry| entry.explains(run.name(), hunk)));
    for hunk in &unknown {
        println!("--- {}: {}\n{}", run.name(), hunk.test, hunk.text);
    }
    println!(
        "    against {}: {} known differences, {} others",
        before.name(),
        explained.len(),
        unknown.len()
    );
    unknown.len()
}

/// Runs a suite in a database of its own.
fn run(cluster: &Cluster, folder: &Path, suite: &Suite, run: Run) {
    println!("{}, {}", suite.name, run.name());
    let output = run.folder(folder, suite);
    let _ = fs::remove_dir_all(&output);
    fs::create_dir(&output).expect("a folder can be made");
    // Servers write files of the tests there, too.
    installation().give_to_server_user(&output);
    let database = match suite.name {
        "regress" => "regression",
        _ => "isolation_regression",
    };
    if run != Run::Plain {
        set_force(cluster, "off");
    }
    make_database(cluster, database, run);
    if run == Run::Forced {
        set_force(cluster, "regress");
    }
    let start = Instant::now();
    let input = folder.join(suite.name);
    let mut command = installation().server_command("/usr/bin/timeout", &output);
    command
        .args(["-k", "10", suite.limit])
        .arg(test_programs().join(suite.program))
        .arg(format!("--inputdir={}", input.display()))
        .arg(format!("--outputdir={}", output.display()))
        .arg(format!("--bindir={}", folder.join("bin").display()))
        .args(["--use-existing", "--user=postgres", "--host=127.0.0.1"])
        .arg(format!("--dbname={database}"))
        .arg(format!("--port={}", cluster.port(PRIMARY)));
    if suite.name == "regress" {
        command
            .arg(format!("--dlpath={}", folder.join("lib").display()))
            .arg("--max-concurrent-tests=20");
    }
    match env::var("TESTS") {
        Ok(tests) if suite.name == "regress" => {
            command.args(tests.split_whitespace());
        }
        _ => {
            command.arg(format!(
                "--schedule={}",
                input.join(suite.schedule).display()
            ));
        }
    }
    let result = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("could not run {}: {error}", suite.program));
    let printed = String::from_utf8_lossy(&result.stdout);
    fs::write(output.join("printed"), &result.stdout).expect("a file can be written");
    let count = |verdict: &str| {
        printed
            .lines()
            .filter(|line| line.contains(verdict))
            .count()
    };
    let (ok, failed) = (count("... ok"), count("... FAILED"));
    println!(
        "    {ok} tests as its version expects, {failed} not, {} s; output in {}",
        start.elapsed().as_secs(),
        output.display()
    );
    assert!(
        ok + failed > 0 && !matches!(result.status.code(), None | Some(124 | 137)),
        "the suite did not come to its end ({}):\n{printed}{}",
        result.status,
        String::from_utf8_lossy(&result.stderr)
    );
}

/// As pg_regress makes its own, and with the extension and the replicas.
fn make_database(cluster: &Cluster, name: &str, run: Run) {
    cluster.psql(
        PRIMARY,
        &format!(
            "DROP DATABASE IF EXISTS {name} WITH (FORCE);
             CREATE DATABASE {name} TEMPLATE template0;
             ALTER DATABASE {name} SET lc_messages TO 'C';
             ALTER DATABASE {name} SET lc_monetary TO 'C';
             ALTER DATABASE {name} SET lc_numeric TO 'C';
             ALTER DATABASE {name} SET lc_time TO 'C';
             ALTER DATABASE {name} SET bytea_output TO 'hex';
             ALTER DATABASE {name} SET timezone_abbreviations TO 'Default';"
        ),
    );
    if run == Run::Plain {
        return;
    }
    let mut client = cluster.connect_db(PRIMARY, name);
    // Whatever can be read by a replica is.
    cluster.psql(
        PRIMARY,
        &format!("ALTER DATABASE {name} SET parallel_replicas_local_plan TO off"),
    );
    client
        .batch_execute("CREATE EXTENSION parallel_replicas")
        .expect("the extension can be created");
    for node in cluster.standbys() {
        client
            .batch_execute(&format!(
                "SELECT parallel_replicas.add_replica('{}', '127.0.0.1', {})",
                cluster.name(node),
                cluster.port(node)
            ))
            .expect("a replica can be added");
    }
    cluster.wait_all_caught_up();
}

/// For every session that begins from now on.
fn set_force(cluster: &Cluster, force: &str) {
    cluster.configure(PRIMARY, "parallel_replicas.debug_force", force);
    cluster.reload(PRIMARY);
    let mut client = cluster.connect(PRIMARY);
    wait_until(SOON, "the setting is read", || {
        text(&mut client, "SHOW parallel_replicas.debug_force") == force
    });
}

/// Fragments with replicas, replicas that contributed, refusals, losses, fallbacks.
fn counters(cluster: &Cluster) -> Vec<u64> {
    let mut client = cluster.connect(PRIMARY);
    client
        .batch_execute("CREATE EXTENSION IF NOT EXISTS parallel_replicas")
        .expect("the extension can be created");
    [
        "QueryCount",
        "UsedCount",
        "RefusedCount",
        "LostCount",
        "LocalFallbackCount",
    ]
    .map(|event| {
        let query = format!(
            "SELECT value::text FROM parallel_replicas.events
             WHERE event = 'ParallelReplicas{event}'"
        );
        text(&mut client, &query)
            .parse()
            .expect("a counter is a number")
    })
    .to_vec()
}

/// No server may have crashed, failed an internal check or left a resource behind.
fn check_logs(cluster: &Cluster) {
    for node in cluster.standbys().chain([PRIMARY]) {
        let log = cluster.log(node);
        let bad: Vec<&str> = log
            .lines()
            .filter(|line| {
                line.contains("PANIC")
                    || line.contains("was terminated by signal")
                    || line.contains("reference leak")
                    || line.contains("This is a defect of parallel_replicas")
            })
            .collect();
        assert!(
            bad.is_empty(),
            "{}:\n{}",
            cluster.name(node),
            bad.join("\n")
        );
    }
}
