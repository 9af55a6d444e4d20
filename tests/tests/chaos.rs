//! The short form of `make chaos`.

use std::time::Duration;

use parallel_replicas_tests::chaos::{self, Plan};

#[test]
fn queries_are_right_while_replicas_break() {
    let plan = Plan {
        seed: 4,
        events: 40,
        at_most: Duration::from_secs(40),
        sessions: 2,
    };
    let report = chaos::run(plan, |_, _| {});
    assert!(report.is_clean(), "{report:#?}");
    assert!(report.tally.queries > 15, "{report:#?}");
    assert!(report.total() > 10, "{report:#?}");
}
