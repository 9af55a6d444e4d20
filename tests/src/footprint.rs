//! What a process holds: to see that it does not grow.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

/// Resources of one process at one moment; see proc(5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Open file descriptors but those of relations, of which PostgreSQL keeps a cache.
    pub descriptors: usize,
    /// Mapped segments of PostgreSQL's dynamic shared memory.
    pub segments: usize,
    /// Kilobytes of private memory in use.
    pub private_kb: u64,
}

impl Footprint {
    /// Of a process that exists.
    #[track_caller]
    pub fn of(pid: i32) -> Self {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{pid}/{file}"))
                .unwrap_or_else(|error| panic!("process {pid}: {error}"))
        };
        let maps = read("maps");
        let segments: BTreeSet<&str> = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .filter(|path| path.starts_with("/dev/shm/PostgreSQL."))
            .collect();
        let status = read("status");
        let private = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .and_then(|rest| rest.split_whitespace().next());
        Self {
            descriptors: descriptors(pid),
            segments: segments.len(),
            private_kb: private.and_then(|kb| kb.parse().ok()).unwrap_or(0),
        }
    }
}

#[track_caller]
fn descriptors(pid: i32) -> usize {
    let folder = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("process {pid}: {error}"));
    // A server's processes work in its data directory.
    let data = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let is_of_relation = |target: &Path| {
        ["base", "global", "pg_tblspc"]
            .iter()
            .any(|folder| target.starts_with(data.join(folder)))
            && !target
                .components()
                .any(|part| part.as_os_str() == "pgsql_tmp")
    };
    entries
        .flatten()
        // One that has been closed meanwhile has no target.
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| !is_of_relation(target))
        .count()
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} descriptors, {} segments, {} kB",
            self.descriptors, self.segments, self.private_kb
        )
    }
}
