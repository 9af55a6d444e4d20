//! What must not be left behind.

use crate::cluster::{Cluster, PRIMARY, text};
use crate::footprint::Footprint;
use crate::wait::{SOON, wait_until};

/// Sockets of one session: links and probes to two replicas, three of each at the most.
const DESCRIPTORS: usize = 12;
/// What malloc and caches of the catalog may take.
const PRIVATE_KB: u64 = 32 * 1024;

/// Compares sessions with what they were at the start.
pub fn grown(footprints: &[(Footprint, Footprint)], leaks: &mut Vec<String>) {
    for (before, after) in footprints {
        if after.descriptors > before.descriptors + DESCRIPTORS
            || after.segments > before.segments + 1
            || after.private_kb > before.private_kb + PRIVATE_KB
        {
            leaks.push(format!("a session grew from {before} to {after}"));
        }
    }
}

/// What the servers hold although no session is left.
const HELD: &[(&str, &str)] = &[
    (
        "connections of links",
        "SELECT count(*)::text FROM pg_stat_activity
         WHERE application_name LIKE 'parallel_replicas%'
           AND application_name <> 'parallel_replicas monitor' AND backend_type = 'client backend'",
    ),
    (
        "parallel workers",
        "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'parallel worker'",
    ),
    (
        "fragments",
        "SELECT count(*)::text FROM parallel_replicas.running_fragments",
    ),
    (
        "queries",
        "SELECT count(*)::text FROM parallel_replicas.query_progress",
    ),
    (
        "locks",
        "SELECT count(*)::text FROM pg_locks
         WHERE locktype = 'relation' AND pid <> pg_backend_pid() AND relation >= 16384",
    ),
    (
        "temporary files",
        "SELECT count(*)::text FROM pg_ls_tmpdir()",
    ),
];

/// Looks at every server once no session is left.
pub fn left_behind(cluster: &Cluster, leaks: &mut Vec<String>) {
    for node in std::iter::once(PRIMARY).chain(cluster.standbys()) {
        let mut client = cluster.connect(node);
        for (what, query) in HELD {
            let mut count = String::new();
            wait_until(SOON, &format!("{what} on {}", cluster.name(node)), || {
                count = text(&mut client, query);
                count == "0"
            });
        }
        let log = cluster.log(node);
        let suspicious = [
            "PANIC:",
            " leak",
            "terminated by signal 6",
            "terminated by signal 11",
            "defect of parallel_replicas",
        ];
        for line in log.lines() {
            let crash_of_primary = node == PRIMARY && line.contains("was terminated by signal");
            if crash_of_primary || suspicious.iter().any(|word| line.contains(word)) {
                leaks.push(format!("{}: {line}", cluster.name(node)));
            }
        }
    }
    let slots = text(
        &mut cluster.connect(PRIMARY),
        "SELECT count(*)::text FROM pg_replication_slots",
    );
    if slots != cluster.standbys().count().to_string() {
        leaks.push(format!("{slots} replication slots"));
    }
}
