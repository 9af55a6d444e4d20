//! Which replicas a query prefers: ClickHouse's `load_balancing`.
//!
//! Pure: a random number and the time come from the caller. The order is ascending by (errors beyond
//! the ignored ones, the replica's own priority, the algorithm's priority, a random number drawn anew
//! for each selection). So a replica that fails is asked last until its errors have decayed, a
//! replica of a worse `priority` only where the better ones do not suffice, and what remains equal is
//! spread evenly.

mod errors;
mod hostname;

pub use errors::{ErrorCount, ErrorRules};

/// The setting `load_balancing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Algorithm {
    /// Every replica alike.
    Random,
    /// Fewest different characters, position by position, up to the shorter name's length.
    NearestHostname,
    /// Smallest edit distance.
    HostnameLevenshteinDistance,
    /// Longest common beginning.
    HostnameLongestCommonPrefix,
    /// Longest common end.
    HostnameLongestCommonSuffix,
    /// As listed.
    InOrder,
    /// The one at the offset if it can be had, else any other.
    FirstOrRandom,
    /// Each in turn.
    RoundRobin,
}

impl Algorithm {
    pub const ALL: [(Algorithm, &'static str); 8] = [
        (Algorithm::Random, "random"),
        (Algorithm::NearestHostname, "nearest_hostname"),
        (
            Algorithm::HostnameLevenshteinDistance,
            "hostname_levenshtein_distance",
        ),
        (
            Algorithm::HostnameLongestCommonPrefix,
            "hostname_longest_common_prefix",
        ),
        (
            Algorithm::HostnameLongestCommonSuffix,
            "hostname_longest_common_suffix",
        ),
        (Algorithm::InOrder, "in_order"),
        (Algorithm::FirstOrRandom, "first_or_random"),
        (Algorithm::RoundRobin, "round_robin"),
    ];
}

/// A replica as the choice sees it; its position in the list is its position in the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub host: &'a str,
    /// Errors that count, after decay and without the ignored ones.
    pub errors: u32,
    /// Lower is preferred.
    pub priority: i32,
}

/// How to choose.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub algorithm: Algorithm,
    /// This server's own name, for the four that compare names.
    pub local_host: &'a str,
    /// For `first_or_random`; taken modulo the number of candidates.
    pub first_offset: u64,
    /// For `round_robin`: how many selections were made before this one.
    pub turn: u64,
}

/// Positions of all candidates, the preferred one first.
pub fn order(
    candidates: &[Candidate<'_>],
    rules: &Rules<'_>,
    mut random: impl FnMut() -> u64,
) -> Vec<usize> {
    let mut keyed: Vec<_> = candidates
        .iter()
        .enumerate()
        .map(|(position, candidate)| {
            let preference = preference(position, candidates.len(), candidate.host, rules);
            let key = (
                candidate.errors,
                candidate.priority,
                preference,
                random(),
                position,
            );
            (key, position)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, position)| position).collect()
}

/// The algorithm's own priority of one candidate: lower first.
fn preference(position: usize, count: usize, host: &str, rules: &Rules<'_>) -> u64 {
    let count = count.max(1) as u64;
    let place = position as u64;
    match rules.algorithm {
        Algorithm::Random => 0,
        Algorithm::NearestHostname => hostname::differences(rules.local_host, host),
        Algorithm::HostnameLevenshteinDistance => {
            hostname::levenshtein_distance(rules.local_host, host)
        }
        Algorithm::HostnameLongestCommonPrefix => {
            u64::MAX - hostname::common_prefix(rules.local_host, host)
        }
        Algorithm::HostnameLongestCommonSuffix => {
            u64::MAX - hostname::common_suffix(rules.local_host, host)
        }
        Algorithm::InOrder => place,
        Algorithm::FirstOrRandom => u64::from(place != rules.first_offset % count),
        // The k-th selection begins at (n - k) mod n and goes upwards from there.
        Algorithm::RoundRobin => (place + rules.turn % count) % count,
    }
}

#[cfg(test)]
mod tests;
