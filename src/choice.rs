//! Which replicas of a cluster a query uses: what the monitor knows, and the order of preference.
//!
//! Not here: how the order is made (`core::balance`, `core::rendezvous`) and who looks at replicas
//! (`monitor`). The planner counts the replicas that could be used; the first execution chooses.
//!
//! Invariants: a replica that the monitor has not looked at, or not lately, counts as usable. One that
//! was only discovered is used by nobody before it has answered the monitor as a standby of this system.

use crate::cluster::{DEFAULT_PRIORITY, DEFAULT_WEIGHT, Replica};
use crate::pg::proc;
use crate::settings::replicas as settings;
use crate::shm::monitor::{self, Entry, Key, Outcome, ServerState, pool_key, replica_key};
use parallel_replicas_core::balance::{self, Algorithm, Candidate, Rules};
use parallel_replicas_core::rendezvous::{Rendezvous, ReplicaSpec};
use pgrx::pg_sys;
use std::collections::BTreeSet;

/// Intervals after which a finding is too old to tell anything.
const INTERVALS_MAX: u64 = 4;

pub fn key(replica: &Replica) -> Key {
    replica_key(&replica.address, replica.port)
}

/// What a replica is compared with: this server now.
pub struct Here {
    system_identifier: u64,
    instance_id: [u8; 16],
    timeline: u32,
    server_version: u32,
    now: i64,
    /// Findings from before this time do not count; None: the monitor is off.
    oldest: Option<i64>,
}

impl Here {
    pub fn new() -> Self {
        let now = monitor::now();
        Here {
            // SAFETY: reads the control file's copy in shared memory.
            system_identifier: unsafe { pg_sys::GetSystemIdentifier() },
            instance_id: crate::shm::instance_id(),
            timeline: proc::own_timeline(),
            server_version: proc::server_version(),
            now,
            oldest: settings::monitor_interval_ms()
                .map(|interval_ms| now - (interval_ms * INTERVALS_MAX * 1000) as i64),
        }
    }

    /// Does the last look at a replica still count?
    pub fn is_recent(&self, entry: &Entry) -> bool {
        entry.probe.outcome != Outcome::NotProbed
            && self.oldest.is_some_and(|oldest| {
                (oldest..=self.now + 60_000_000).contains(&entry.probe.probed_at)
            })
    }

    /// Is the replica this server itself? None if nobody knows.
    pub fn is_itself(&self, entry: Option<&Entry>) -> Option<bool> {
        let entry = entry.filter(|entry| entry.probe.answered_at != 0)?;
        Some(entry.probe.state.instance_id == self.instance_id)
    }

    /// May anybody but the monitor log in there? A server that was defined, yes. One that was only
    /// discovered could be anybody's, who would be shown passwords.
    fn is_trusted(&self, replica: &Replica, entry: Option<&Entry>) -> bool {
        !replica.is_discovered
            || entry.is_some_and(|entry| {
                let state = &entry.probe.state;
                entry.probe.answered_at != 0
                    && state.system_identifier == self.system_identifier
                    && state.in_recovery
            })
    }

    /// Why no query uses a replica; None if it may be used, as far as is known.
    pub fn obstacle(&self, replica: &Replica, entry: Option<&Entry>) -> Option<&'static str> {
        self.known_obstacle(entry).or_else(|| {
            (!self.is_trusted(replica, entry))
                .then_some("discovered, but has not answered the monitor")
        })
    }

    fn known_obstacle(&self, entry: Option<&Entry>) -> Option<&'static str> {
        let entry = entry?;
        if self.is_itself(Some(entry)) == Some(true) {
            return Some("this server itself");
        }
        if !self.is_recent(entry) {
            return None;
        }
        let state = &entry.probe.state;
        match entry.probe.outcome {
            Outcome::NoAnswer => Some("does not answer"),
            Outcome::Answered if state.system_identifier != self.system_identifier => {
                Some("belongs to another system")
            }
            Outcome::Answered if !state.in_recovery => Some("not in recovery"),
            Outcome::Answered if state.timeline != self.timeline => Some("on another timeline"),
            Outcome::Answered if state.server_version != self.server_version => {
                Some("another server version")
            }
            _ => None,
        }
    }
}

/// How many of a cluster's replicas a query could use.
pub fn count_usable(replicas: &[Replica]) -> usize {
    monitor::want_this_database();
    let keys: Vec<Key> = replicas.iter().map(key).collect();
    let here = Here::new();
    replicas
        .iter()
        .zip(monitor::look(&keys))
        .filter(|(replica, entry)| here.obstacle(replica, entry.as_ref()).is_none())
        .count()
}

/// What is known of the replicas of this system that are alive, of all databases, each server once.
pub fn live_replicas() -> Vec<ServerState> {
    let here = Here::new();
    let mut seen = BTreeSet::new();
    monitor::known()
        .into_iter()
        .filter(|entry| entry.probe.outcome == Outcome::Answered && here.is_recent(entry))
        .filter(|entry| here.known_obstacle(Some(entry)).is_none())
        .map(|entry| entry.probe.state)
        .filter(|state| seen.insert(state.instance_id))
        .collect()
}

/// Those that may be logged in to, usable or not.
pub fn trusted(replicas: &[Replica]) -> Vec<&Replica> {
    let keys: Vec<Key> = replicas.iter().map(key).collect();
    let here = Here::new();
    replicas
        .iter()
        .zip(monitor::look(&keys))
        .filter(|(replica, entry)| here.is_trusted(replica, entry.as_ref()))
        .map(|(replica, _)| replica)
        .collect()
}

/// The servers that a query is to use.
pub struct Chosen {
    /// Positions, ascending: as all of them are used, preference does not matter any more, and EXPLAIN
    /// is easier to read in one order.
    pub replicas: Vec<usize>,
    /// This server scans, too.
    pub local: bool,
    /// This server's share of the work.
    pub local_weight: u32,
}

/// Chooses at most `most` replicas; of those and this server, if it is to be no better than they.
/// At least one replica, if any can be used. `despite`: if none can be used as far as is known, all are
/// tried. `local`: this server may scan.
pub fn choose(
    cluster: &str,
    replicas: &[Replica],
    most: usize,
    despite: bool,
    local: bool,
) -> Chosen {
    let own = own_position(replicas);
    let own_replica = own.map(|position| &replicas[position]);
    let competes = local && !crate::settings::prefer_local_replica();
    let own_candidate = competes.then_some(Own {
        position: own.unwrap_or(replicas.len()),
        priority: own_replica.map_or(DEFAULT_PRIORITY, |replica| replica.priority),
    });
    let order = preferred(cluster, replicas, despite, own_candidate);
    let mut chosen: Vec<usize> = order.iter().copied().take(most).collect();
    let is_own = |position: &usize| own_candidate.is_some_and(|own| own.position == *position);
    if most > 0 && chosen.iter().all(is_own) {
        // Somebody has to be used, or it would not be a query over replicas.
        chosen = order
            .iter()
            .copied()
            .filter(|p| !is_own(p))
            .take(1)
            .collect();
    }
    let local = local && (!competes || chosen.iter().any(is_own));
    chosen.retain(|position| !is_own(position));
    chosen.sort_unstable();
    Chosen {
        replicas: chosen,
        local,
        local_weight: own_replica.map_or(DEFAULT_WEIGHT, |replica| replica.weight),
    }
}

/// This server among those that it has to compete with.
#[derive(Clone, Copy)]
struct Own {
    /// Of its definition, or after all others.
    position: usize,
    priority: i32,
}

/// Where the cluster lists this server itself, as far as the monitor knows.
fn own_position(replicas: &[Replica]) -> Option<usize> {
    let keys: Vec<Key> = replicas.iter().map(key).collect();
    let here = Here::new();
    monitor::look(&keys)
        .iter()
        .position(|entry| here.is_itself(entry.as_ref()) == Some(true))
}

/// Positions of the replicas that a query would use, the preferred first.
pub fn order(cluster: &str, replicas: &[Replica]) -> Vec<usize> {
    preferred(cluster, replicas, false, None)
}

/// Positions of the servers that can be used, the preferred first.
fn preferred(cluster: &str, replicas: &[Replica], despite: bool, own: Option<Own>) -> Vec<usize> {
    monitor::want_this_database();
    let rules = settings::error_rules();
    let keys: Vec<Key> = replicas.iter().map(key).collect();
    let known = monitor::entries(&keys, &rules);
    let here = Here::new();
    let mut usable: Vec<usize> = (0..replicas.len())
        .filter(|position| {
            here.obstacle(&replicas[*position], known[*position].as_ref())
                .is_none()
        })
        .collect();
    if usable.is_empty() && despite {
        usable = (0..replicas.len())
            .filter(|position| here.is_trusted(&replicas[*position], known[*position].as_ref()))
            .collect();
    }
    let tag = settings::replica_tag();
    if tag.is_empty() {
        return by_balance(cluster, replicas, &known, &usable, own);
    }
    // Tags lead to replicas; this server comes after them.
    let mut order = by_tag(&tag, replicas, &usable);
    order.extend(own.map(|own| own.position));
    order
}

fn by_balance(
    cluster: &str,
    replicas: &[Replica],
    known: &[Option<Entry>],
    usable: &[usize],
    own: Option<Own>,
) -> Vec<usize> {
    let error_rules = settings::error_rules();
    let local_host = proc::host_name().unwrap_or_default();
    let mut positions = usable.to_vec();
    if let Some(own) = own.filter(|own| !usable.contains(&own.position)) {
        let after = positions.partition_point(|position| *position < own.position);
        positions.insert(after, own.position);
    }
    let is_own = |position: usize| own.filter(|own| own.position == position);
    let candidates: Vec<Candidate<'_>> = positions
        .iter()
        .map(|position| match is_own(*position) {
            Some(own) => Candidate {
                host: &local_host,
                errors: 0,
                priority: own.priority,
            },
            None => Candidate {
                host: &replicas[*position].host,
                errors: known[*position].map_or(0, |entry| entry.count.effective(&error_rules)),
                priority: replicas[*position].priority,
            },
        })
        .collect();
    let algorithm = settings::load_balancing();
    // SAFETY: plain global.
    let database = unsafe { pg_sys::MyDatabaseId };
    let turn = match algorithm {
        Algorithm::RoundRobin => monitor::next_turn(pool_key(database, cluster)),
        _ => 0,
    };
    let rules = Rules {
        algorithm,
        local_host: &local_host,
        first_offset: settings::load_balancing_first_offset(),
        turn,
    };
    // SAFETY: this process's own generator.
    let random = || unsafe { pg_sys::pg_prng_uint64(&raw mut pg_sys::pg_global_prng_state) };
    balance::order(&candidates, &rules, random)
        .into_iter()
        .map(|candidate| positions[candidate])
        .collect()
}

fn by_tag(tag: &str, replicas: &[Replica], usable: &[usize]) -> Vec<usize> {
    let specs: Vec<ReplicaSpec<'_>> = usable
        .iter()
        .map(|position| ReplicaSpec {
            name: &replicas[*position].name,
            weight: replicas[*position].weight,
        })
        .collect();
    // It fails without replicas, or with more than the hash takes.
    let Ok(ring) = Rendezvous::new(
        &specs[..specs
            .len()
            .min(parallel_replicas_core::rendezvous::MAX_REPLICAS)],
    ) else {
        return Vec::new();
    };
    ring.ranked(tag.as_bytes())
        .into_iter()
        .map(|index| usable[usize::from(index)])
        .collect()
}

/// Name of the replica that a tag leads to now; None if no replica can be used.
pub fn replica_for_tag(tag: &str, replicas: &[Replica]) -> Option<String> {
    monitor::want_this_database();
    let keys: Vec<Key> = replicas.iter().map(key).collect();
    let here = Here::new();
    let known = monitor::look(&keys);
    let usable: Vec<usize> = (0..replicas.len())
        .filter(|position| {
            here.obstacle(&replicas[*position], known[*position].as_ref())
                .is_none()
        })
        .collect();
    let first = *by_tag(tag, replicas, &usable).first()?;
    Some(replicas[first].name.clone())
}
