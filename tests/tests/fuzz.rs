//! The short form of `make fuzz-queries`: always the same queries.

use parallel_replicas_tests::fuzz::{self, Plan};
use parallel_replicas_tests::{Cluster, damage_check};

/// Least part of the queries in which replicas contribute.
const LEAST_WITH_REPLICAS: usize = 2;

#[test]
fn random_queries_give_the_same_rows_with_replicas() {
    let cluster = Cluster::builder()
        .standbys(2)
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .setting("parallel_replicas.stall_timeout", "60s")
        .start();
    cluster.register_replicas();
    let plan = Plan {
        seed: 15,
        rounds: (0, 3),
        queries: 60,
    };
    let report = fuzz::run(&cluster, plan, |_, _| {});
    let wrong: Vec<String> = report.wrong.iter().map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(
        report.with_replicas * LEAST_WITH_REPLICAS >= report.equal,
        "replicas took part in {} of {} queries",
        report.with_replicas,
        report.equal
    );
    damage_check(&cluster);
}
