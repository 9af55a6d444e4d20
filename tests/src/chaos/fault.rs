//! What can happen to a standby, and how it ends.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, PRIMARY, StopMode, text};
use crate::proxy::{Fault, Proxy};
use crate::system::{Signal, signal};
use crate::wait::wait_for;
use fastrand::Rng;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// kill -9 of the whole server.
    Kill,
    /// kill -9 of one process that works for a query: its server restarts by itself.
    KillProcess,
    /// Fast shutdown.
    Stop,
    /// SIGSTOP to the whole server.
    Freeze,
    /// SIGSTOP to one process that works for a query.
    FreezeProcess,
    /// pg_cancel_backend of the processes that work for queries.
    Cancel,
    /// pg_terminate_backend of them.
    Terminate,
    /// The network is slow.
    Delay,
    /// The network is silent.
    Stall,
    /// Connections end after some bytes.
    Cut,
    /// One direction of connections ends after some bytes.
    HalfClose,
    /// Connections carry noise after some bytes.
    Garbage,
    /// All connections end now.
    CutAll,
    /// No new connections.
    Refuse,
    /// Replay is paused.
    Pause,
    /// It becomes a primary with a history of its own.
    Promote,
}

use Trouble::*;

/// Each as often as it stands here: what takes long to heal less often.
const CHANCES: &[(Trouble, u32)] = &[
    (Kill, 2),
    (KillProcess, 2),
    (Stop, 1),
    (Freeze, 3),
    (FreezeProcess, 4),
    (Cancel, 4),
    (Terminate, 4),
    (Delay, 3),
    (Stall, 4),
    (Cut, 5),
    (HalfClose, 5),
    (Garbage, 5),
    (CutAll, 4),
    (Refuse, 2),
    (Pause, 4),
    (Promote, 1),
];

impl Trouble {
    pub fn random(rng: &mut Rng) -> Self {
        let all: u32 = CHANCES.iter().map(|(_, chance)| chance).sum();
        let mut place = rng.u32(..all);
        for (trouble, chance) in CHANCES {
            match place.checked_sub(*chance) {
                Some(rest) => place = rest,
                None => return *trouble,
            }
        }
        unreachable!("the place is below the sum")
    }

    pub fn name(self) -> &'static str {
        match self {
            Kill => "server killed with -9",
            KillProcess => "process killed with -9",
            Stop => "server stopped",
            Freeze => "server frozen",
            FreezeProcess => "process frozen",
            Cancel => "process cancelled",
            Terminate => "process terminated",
            Delay => "network slow",
            Stall => "network silent",
            Cut => "connections cut after some bytes",
            HalfClose => "connections half closed",
            Garbage => "noise on connections",
            CutAll => "all connections cut",
            Refuse => "connections refused",
            Pause => "replay paused",
            Promote => "promoted",
        }
    }
}

/// What has to be undone.
enum Undo {
    Continue(i32),
    /// The server has been ready so often before it began to restart.
    Restart(usize),
    Trouble(Trouble),
}

/// A cluster whose replicas are reached through proxies.
pub struct Scene {
    pub cluster: Cluster,
    /// Of standby 1 and so on.
    proxies: Vec<Proxy>,
    /// What is wrong with each standby now.
    active: Vec<Option<Undo>>,
}

/// How long to wait for a process that can be hit.
const SERVING_MOST: Duration = Duration::from_secs(1);

const SERVING: &str = "FROM pg_stat_activity
    WHERE query LIKE 'fragment of query %' AND state = 'active'";

impl Scene {
    pub fn new(cluster: Cluster) -> Self {
        cluster.psql(PRIMARY, "CREATE EXTENSION parallel_replicas");
        let mut proxies = Vec::new();
        for node in cluster.standbys() {
            let proxy = Proxy::start(cluster.port(node));
            cluster.register_replica(cluster.name(node), proxy.port());
            proxies.push(proxy);
        }
        let active = proxies.iter().map(|_| None).collect();
        Self {
            cluster,
            proxies,
            active,
        }
    }

    pub fn random_standby(&self, rng: &mut Rng) -> usize {
        rng.usize(1..=self.proxies.len())
    }

    pub fn is_healthy(&self, node: usize) -> bool {
        self.active[node - 1].is_none()
    }

    /// False if there was nothing to hit.
    pub fn hit(&mut self, node: usize, trouble: Trouble, rng: &mut Rng) -> bool {
        let after_bytes = rng.u64(..40_000);
        let proxy = &self.proxies[node - 1];
        let mut undo = Some(Undo::Trouble(trouble));
        match trouble {
            Kill => self.cluster.kill_9(node),
            Stop => self.cluster.stop(node, StopMode::Fast),
            Freeze => self.cluster.sigstop(node),
            Pause => self.cluster.pause_replay(node),
            Promote => self.promote(node),
            Delay => proxy.set(Fault::Delay(Duration::from_millis(rng.u64(1..30)))),
            Stall => proxy.set(Fault::Stall),
            Cut => proxy.set(Fault::Cut { after_bytes }),
            HalfClose => proxy.set(Fault::HalfClose { after_bytes }),
            Garbage => proxy.set(Fault::Garbage { after_bytes }),
            Refuse => proxy.set(Fault::Refuse),
            CutAll => {
                proxy.cut_all();
                undo = None;
            }
            Cancel | Terminate => {
                undo = None;
                let function = match trouble {
                    Cancel => "pg_cancel_backend",
                    _ => "pg_terminate_backend",
                };
                let query = format!("SELECT count({function}(pid))::text {SERVING}");
                if self.serving(node, &query).is_none() {
                    return false;
                }
            }
            KillProcess | FreezeProcess => {
                let query = format!("SELECT coalesce(min(pid), 0)::text {SERVING}");
                let Some(pid) = self.serving(node, &query) else {
                    return false;
                };
                if trouble == KillProcess {
                    undo = Some(Undo::Restart(self.cluster.times_ready(node)));
                    signal(pid, Signal::KILL);
                } else {
                    signal(pid, Signal::STOP);
                    undo = Some(Undo::Continue(pid));
                }
            }
        }
        self.active[node - 1] = undo;
        true
    }

    /// The first answer to the query that is not 0, if there is one soon.
    fn serving(&self, node: usize, query: &str) -> Option<i32> {
        let mut client = self.cluster.connect(node);
        let deadline = Instant::now() + SERVING_MOST;
        wait_for(SERVING_MOST * 2, "an answer", || {
            let answer: i32 = text(&mut client, query).parse().expect("a number");
            match answer {
                0 if Instant::now() < deadline => None,
                0 => Some(None),
                some => Some(Some(some)),
            }
        })
    }

    /// A primary whose rows are not those of the other.
    fn promote(&self, node: usize) {
        self.cluster.promote(node);
        self.cluster.psql(
            node,
            "DELETE FROM t WHERE id % 3 = 0; UPDATE quiet SET v = v + 1 WHERE id % 5 = 0",
        );
    }

    /// Ends what is wrong with the standby.
    pub fn heal(&mut self, node: usize) {
        match self.active[node - 1].take() {
            None => {}
            Some(Undo::Continue(pid)) => signal(pid, Signal::CONT),
            Some(Undo::Restart(before)) => self.cluster.wait_ready_again(node, before),
            Some(Undo::Trouble(trouble)) => match trouble {
                Kill | Stop => self.cluster.start(node),
                Freeze => self.cluster.sigcont(node),
                Pause => self.cluster.resume_replay(node),
                Promote => self.cluster.remake_standby(node),
                _ => self.proxies[node - 1].set(Fault::None),
            },
        }
    }

    pub fn heal_all(&mut self) {
        for node in 1..=self.proxies.len() {
            self.heal(node);
            self.cluster.wait_streaming(node);
        }
    }
}
