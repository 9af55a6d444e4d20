//! All links of one fragment: starting them, serving them in one loop, stopping them.
//!
//! A backend has no threads: everything happens when the executor calls `service`, which never
//! waits. Connections belong to the session's registry (`net::pool`), which closes them if the
//! (sub)transaction aborts, so that nothing here needs a destructor.

use super::give_back::Demands;
use super::granule_scan::{self, GranuleScanState};
use super::health;
use super::link::Link;
use super::memory;
use super::tasks::{self, Participants};
use super::watch::Watch;
use crate::cluster::{self, Replica};
use crate::log::steps::{self, Process};
use crate::log::{Scope, query};
use crate::net::Connection;
use crate::net::pool::{self, PoolLimits};
use crate::pg::wait::{self, Interest, Ready, now_micros};
use crate::plan::private::PlannedReplica;
use crate::settings::replicas::error_rules;
use crate::shm::events::{self, Event};
use crate::shm::logs::Step;
use crate::shm::monitor;
use crate::{choice, secret, settings};
use parallel_replicas_core::frame::Identity;
use parallel_replicas_core::link::Fate;
use parallel_replicas_core::task_state::Task;
use pgrx::pg_sys;
use std::rc::Rc;
use std::time::Duration;

/// What the links of a fragment have in common.
pub struct Shared {
    /// The encoded Begin frame.
    pub begin: Rc<Vec<u8>>,
    pub secret: Vec<u8>,
    pub identity: Identity,
    pub instance_id: [u8; 16],
    pub streaming: bool,
    /// One link has the fragment for itself.
    pub whole: bool,
    /// What links are asked to give back for others.
    pub demands: Demands,
    /// Scans that a replica's fragment ended without.
    pub unneeded: Vec<u32>,
    /// The fragment's granule scans in order.
    pub scans: Vec<*mut GranuleScanState>,
    /// Bytes of undelivered rows that a link may hold in memory.
    pub memory_limit: usize,
    /// The query's memory context.
    pub context: pg_sys::MemoryContext,
    pub pool_limits: PoolLimits,
    stall_us: u64,
    replay_wait_us: u64,
    first_replica: u16,
    names: Vec<String>,
    /// Blocks that each replica owns.
    owned_blocks: Vec<u64>,
    /// Whom to tell what happens.
    scope: Scope,
}

impl Shared {
    /// The name of the replica with this number, for messages.
    pub fn replica_name(&self, number: u16) -> &str {
        let index = usize::from(number.saturating_sub(self.first_replica));
        self.names.get(index).map_or("", String::as_str)
    }

    /// Blocks of all scans that the replica with this number owns.
    pub fn owned_blocks(&self, number: u16) -> u64 {
        let index = usize::from(number.saturating_sub(self.first_replica));
        self.owned_blocks.get(index).copied().unwrap_or(0)
    }

    /// Tells the log about a step of a link.
    pub fn step(&self, link: &Link, step: Step, count: u64, amount: u64, detail: &str) {
        steps::process(&self.scope, self.who(link), step, count, amount, detail);
    }

    /// Tells the log that a link got a task.
    pub fn given(&self, link: &Link, scan: u32, task: &Task) {
        steps::given(&self.scope, self.who(link), scan, task);
    }

    /// Tells the log that a link worked through a task, so many microseconds ago.
    pub fn done(&self, link: &Link, scan: u32, task: &Task, ago_us: u64) {
        steps::done(&self.scope, self.who(link), scan, task, ago_us);
    }

    fn who(&self, link: &Link) -> Process<'_> {
        Process {
            number: link.process,
            replica: self.replica_name(link.replica),
        }
    }

    /// The query, for messages.
    pub fn query_label(&self) -> String {
        query::label(&self.scope.origin.query_id)
    }

    /// From now, when silence is a failure.
    pub fn silence_deadline(&self) -> u64 {
        now_micros() + self.stall_us
    }

    /// Watches a process that works from now on.
    pub fn watch(&self) -> Watch {
        Watch::new(self.stall_us)
    }

    /// From now, when a replica must have caught up.
    pub fn announcement_deadline(&self) -> u64 {
        now_micros() + self.replay_wait_us + self.stall_us
    }
}

pub struct Dispatch {
    pub links: Vec<Link>,
    pub shared: Shared,
}

/// How long links may take to end in order.
const END_WAIT_MS: u64 = 50;

impl Dispatch {
    /// Opens links to `replicas`, `per_replica` to each, and returns without waiting. `first_replica`
    /// and `first_process` are the numbers of the first for the task states.
    #[allow(clippy::too_many_arguments)]
    pub fn start(
        replicas: &[PlannedReplica],
        per_replica: usize,
        first_replica: u16,
        first_process: u16,
        begin: Vec<u8>,
        scans: Vec<*mut GranuleScanState>,
        streaming: bool,
        context: pg_sys::MemoryContext,
        participants: &Participants,
    ) -> Self {
        // SAFETY: plain setting, in kilobytes.
        let work_mem = unsafe { pg_sys::work_mem }.max(64) as usize * 1024;
        let shared = Shared {
            begin: Rc::new(begin),
            secret: secret::cached().unwrap_or_default(),
            identity: super::shipment::identity(),
            instance_id: crate::shm::instance_id(),
            streaming,
            whole: scans.is_empty(),
            demands: Demands::default(),
            unneeded: Vec::new(),
            scans,
            memory_limit: work_mem,
            context,
            pool_limits: PoolLimits {
                idle_max: if settings::idle_link_timeout_s() == 0 {
                    0
                } else {
                    256
                },
                idle_lifetime: Duration::from_secs(settings::idle_link_timeout_s()),
                links_max: settings::max_links(),
            },
            stall_us: settings::stall_timeout_ms() * 1000,
            replay_wait_us: settings::replay_wait_timeout_ms() * 1000,
            first_replica,
            names: replicas
                .iter()
                .map(|replica| replica.name.clone())
                .collect(),
            owned_blocks: (first_replica..)
                .take(replicas.len())
                .map(|replica| participants.owned_blocks(replica))
                .collect(),
            scope: participants.scope,
        };
        memory::keep();
        let known = cluster::all_replicas();
        let mut links = Vec::with_capacity(replicas.len() * per_replica);
        // Round by round, so that replicas have their fair share where there are too few.
        for number in 0..per_replica {
            for (index, planned) in replicas.iter().enumerate() {
                let replica = known.iter().find(|known| {
                    known.server_oid.to_u32() == planned.server && choice::key(known) == planned.key
                });
                let process = first_process + (index * per_replica + number) as u16;
                let replica_number = first_replica + index as u16;
                let opened = match replica {
                    Some(replica) if !shared.secret.is_empty() => {
                        open(replica, replica_number, process, &shared)
                    }
                    Some(_) => Err("the extension is not installed in this database".to_owned()),
                    None => Err("the server was dropped".to_owned()),
                };
                let link = match opened {
                    Ok(link) => {
                        let reused = u64::from(link.was_connected);
                        shared.step(&link, Step::Connecting, 0, reused, "");
                        link
                    }
                    Err(why) => {
                        let link = Link::unavailable(replica_number, process, &why);
                        shared.step(&link, Step::Unavailable, 0, 0, &why);
                        link
                    }
                };
                links.push(link);
            }
        }
        Dispatch { links, shared }
    }

    /// Serves every link without waiting. Answers whether anything happened. What has come since the last wait
    /// or `poll` need not be noticed: the next wait ends at once.
    pub fn service(&mut self) -> bool {
        let mut progress = false;
        let mut ended = false;
        for link in &mut self.links {
            let was_live = link.is_live();
            progress |= link.service(&mut self.shared);
            if was_live && !link.is_live() {
                ended = true;
                self.shared.demands.settle_process(link.process);
            }
        }
        if ended {
            self.release_queues();
        }
        self.pass_demands_on();
        progress
    }

    /// Sends what links are asked to give back, and lets those that wait for it ask anew.
    fn pass_demands_on(&mut self) {
        loop {
            while let Some(demand) = self.shared.demands.next_unsent() {
                let of = |link: &&mut Link| link.process == demand.shrink.process;
                match self.links.iter_mut().find(of) {
                    Some(link) if link.is_live() => link.ask_back(&demand, &mut self.shared),
                    // A local process, or a link that has just ended.
                    _ => {
                        let demanded = demand.shrink.task;
                        self.shared.demands.settle_task(demand.scan, demanded);
                    }
                }
            }
            if !self.shared.demands.take_settled() {
                return;
            }
            let (last, first): (Vec<_>, Vec<_>) =
                self.links.iter_mut().partition(|link| link.gave_back);
            for link in first.into_iter().chain(last) {
                link.ask_anew(&mut self.shared);
            }
        }
    }

    /// Lets anybody take the granules of a replica that no link will ask for any more.
    fn release_queues(&mut self) {
        for link in &self.links {
            let replica = link.replica;
            if self
                .links
                .iter()
                .any(|other| other.replica == replica && other.is_live())
            {
                continue;
            }
            for node in &self.shared.scans {
                // SAFETY: the scan's state lives as long as the query.
                unsafe {
                    let memory = granule_scan::task_memory(*node);
                    tasks::with(memory, |state| {
                        state.set_replica_live(replica, false);
                        Ok(())
                    });
                }
            }
        }
    }

    /// Remembers which servers could not be reached, so that the next queries do not try at once.
    fn remember_health(&self, replicas: &[PlannedReplica]) {
        for (index, planned) in replicas.iter().enumerate() {
            let number = self.shared.first_replica + index as u16;
            let mut links = self
                .links
                .iter()
                .filter(|link| link.replica == number)
                .peekable();
            if links.peek().is_none() {
                continue;
            }
            count_trouble(planned, links.clone());
            if links.clone().any(|link| link.was_connected) {
                health::succeeded(planned.key);
            } else if links.any(|link| link.connect_failed) {
                health::failed(planned.key);
            }
        }
    }

    /// Waits for the latch, a link's socket or deadline, at most `most_ms`.
    pub fn wait(&mut self, most_ms: u64, wait_event: u32) {
        let interests = self.interests();
        let timeout_ms = self.timeout_ms().min(most_ms);
        let ready = wait::latch_or_sockets(&interests, timeout_ms, wait_event);
        for link in &mut self.links {
            link.has_been_waited_for();
        }
        self.tell(&ready);
    }

    /// Finds out which links have something, where nobody waits for them.
    pub fn poll(&mut self) {
        self.tell(&wait::ready_now(&self.interests()));
    }

    /// Takes every link to have something: while rows come, asking would cost as much as reading.
    pub fn expect_all(&mut self) {
        self.tell(&Ready::Any);
    }

    fn tell(&mut self, ready: &Ready) {
        for link in &mut self.links {
            link.is_told(ready);
        }
    }

    /// Sockets to wait for.
    fn interests(&self) -> Vec<Interest> {
        self.links.iter().flat_map(Link::interests).collect()
    }

    /// Milliseconds until a link has to be looked at even if nothing comes.
    fn timeout_ms(&self) -> u64 {
        let now = now_micros();
        self.links
            .iter()
            .filter_map(Link::deadline)
            .map(|deadline| deadline.saturating_sub(now) / 1000 + 1)
            .min()
            .unwrap_or(60_000)
    }

    /// Ends every link. They get a moment to end in order, so that their connections can be used
    /// again; the rest is closed, which its replica notices at once.
    pub fn stop(&mut self, replicas: &[PlannedReplica]) {
        self.remember_health(replicas);
        for link in &mut self.links {
            link.stop(&mut self.shared);
        }
        let deadline = now_micros() + END_WAIT_MS * 1000;
        while !self.links.iter().all(Link::is_closed) {
            let progress = self.service();
            let now = now_micros();
            if now >= deadline {
                break;
            }
            if !progress {
                self.wait((deadline - now) / 1000 + 1, pg_sys::PG_WAIT_EXTENSION);
            }
        }
        for link in &mut self.links {
            link.abandon(&mut self.shared);
        }
        memory::give_back(self.links.iter().map(|link| link.bytes).sum());
    }

    /// Counts what became of the links' replicas.
    pub fn count_events(&self, available: u32) {
        let mut used = std::collections::BTreeSet::new();
        let mut unavailable = std::collections::BTreeSet::new();
        for link in &self.links {
            match link.fate() {
                _ if link.took_part() => {
                    used.insert(link.replica);
                }
                Fate::Unavailable | Fate::Refused => {
                    unavailable.insert(link.replica);
                }
                _ => {}
            }
        }
        events::add(Event::AvailableCount, u64::from(available));
        events::add(Event::UsedCount, used.len() as u64);
        if self.shared.whole {
            events::add(Event::WholeQueryCount, used.len() as u64);
        }
        events::add(
            Event::UnavailableCount,
            unavailable.difference(&used).count() as u64,
        );
    }
}

/// Adds to the error counts that the next choices obey: one at the most per replica and fragment.
fn count_trouble<'a>(planned: &PlannedReplica, links: impl Iterator<Item = &'a Link>) {
    let mut late = false;
    for link in links {
        let why = link.trouble.as_deref().unwrap_or_default();
        match link.fate() {
            Fate::Unavailable | Fate::Refused
                if link.connect_failed || link.met_error_of_server =>
            {
                return monitor::count_failure(planned.key, &error_rules(), why);
            }
            Fate::Lost if link.met_error_of_query => {}
            Fate::Lost => return monitor::count_failure(planned.key, &error_rules(), why),
            // Connected, but not ready in time.
            Fate::Unavailable => late |= link.was_connected,
            Fate::Refused => late |= link.was_behind,
            _ => {}
        }
    }
    if late {
        monitor::count_slowdown(planned.key, &error_rules());
    }
}

fn open(
    replica: &Replica,
    replica_number: u16,
    process: u16,
    shared: &Shared,
) -> Result<Link, String> {
    // SAFETY: plain global.
    let user = unsafe { pg_sys::GetUserId() };
    let target =
        cluster::connect_parameters(replica, user, "parallel_replicas", cluster::Purpose::Link)
            .map_err(|unusable| unusable.to_string())?;
    let deadline = now_micros() + settings::connect_timeout_ms() * 1000;
    let connection = match pool::take(&target.key, shared.pool_limits) {
        Some(connection) => connection,
        None => {
            if let Some(wait_ms) = health::retry_in_ms(choice::key(replica)) {
                return Err(format!("failed recently, is tried again in {wait_ms} ms"));
            }
            Connection::start_link(&target.parameters, shared.pool_limits.links_max)
                .map_err(|error| error.to_string())?
        }
    };
    let connected = connection.is_connected();
    let lease = pool::lease(target.key, connection);
    Ok(Link::new(
        replica_number,
        process,
        lease,
        connected,
        deadline,
        shared.whole,
    ))
}
