//! The short form of `make fuzz-queries`: always the same queries.

use parallel_replicas_tests::fuzz::{self, Plan};
use parallel_replicas_tests::{Cluster, PRIMARY, damage_check};

fn cluster() -> Cluster {
    let cluster = Cluster::builder()
        .standbys(2)
        // So that a slow machine does not turn a replica into one that is left out.
        .setting("parallel_replicas.connect_timeout", "5s")
        .setting("parallel_replicas.replay_wait_timeout", "30s")
        .setting("parallel_replicas.stall_timeout", "60s")
        .start();
    cluster.register_replicas();
    cluster
}

#[test]
fn random_queries_give_the_same_rows_with_replicas() {
    let cluster = cluster();
    let plan = Plan {
        seed: 15,
        rounds: (0, 3),
        queries: 60,
    };
    let report = fuzz::run(&cluster, plan, |_, _| {});
    let wrong: Vec<String> = report.wrong.iter().map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert_eq!(report.shortcoming(), None);
    damage_check(&cluster);
}

/// Replicas are made to leave a granule out: that is found, told with a query that is no longer than
/// the one that found it, and found again in the same round.
#[test]
fn a_fault_is_found_and_found_again() {
    let cluster = cluster();
    cluster.psql(
        PRIMARY,
        "ALTER DATABASE postgres SET parallel_replicas.debug_assignment = incomplete",
    );
    let plan = Plan {
        seed: 16,
        rounds: (1, 2),
        queries: 12,
    };
    let [first, second] = [(); 2].map(|()| fuzz::run(&cluster, plan, |_, _| {}).wrong);
    assert!(!first.is_empty());
    assert_eq!(first[0].number, second[0].number);
    assert_eq!((first[0].seed, first[0].round), (16, 1));
    assert!(first[0].what.contains("defect"), "{}", first[0]);
}
