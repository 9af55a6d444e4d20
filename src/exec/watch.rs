//! Is the process at the other end of a working link alive? Told by what it sends, and while it is
//! silent by a `probe`. The rules are the core's.

use super::probe::{Probe, Trouble};
use crate::net::pool::{LeaseId, PoolLimits};
use crate::pg::wait::{Interest, now_micros};
use parallel_replicas_core::link::{Liveness, Verdict};

pub struct Watch {
    liveness: Liveness,
    probe: Option<Probe>,
    /// Why the last probe gave no answer.
    no_answer: Option<String>,
}

impl Watch {
    /// Watches a process that has just spoken.
    pub fn new(tolerated_us: u64) -> Self {
        Watch {
            liveness: Liveness::new(tolerated_us, now_micros()),
            probe: None,
            no_answer: None,
        }
    }

    /// It has been silent for so long that its CPU time was asked for.
    pub fn suspects(&self) -> bool {
        self.liveness.suspects()
    }

    /// It has spoken, or is not expected to.
    pub fn heard(&mut self) {
        self.liveness.heard(now_micros());
    }

    /// This side was busy for so long.
    pub fn postpone(&mut self, by_us: u64) {
        self.liveness.postpone(by_us);
    }

    /// When to look again, even if nothing comes.
    pub fn due(&self) -> u64 {
        self.liveness.due()
    }

    /// A socket to wait for.
    pub fn interest(&self) -> Option<Interest> {
        self.probe.as_ref()?.interest()
    }

    /// Does what can be done without waiting. An error tells why the process, or its server, must
    /// be taken for frozen.
    pub fn look(&mut self, link: LeaseId, limits: PoolLimits) -> Result<(), String> {
        let mut verdict = Verdict::Wait;
        match self.probe.as_mut().map(Probe::turn) {
            Some(Ok(Some(cpu_time))) => verdict = self.liveness.answered(cpu_time),
            Some(Err(trouble)) => self.probe_failed(trouble, link, limits),
            Some(Ok(None)) | None => {}
        }
        if verdict == Verdict::Wait {
            verdict = self.liveness.check(now_micros());
        }
        if verdict == Verdict::Ask {
            self.no_answer = None;
            match self.probe.as_mut().map(Probe::ask) {
                Some(Ok(())) => {}
                Some(Err(trouble)) => self.probe_failed(trouble, link, limits),
                None => self.start_probe(link, limits),
            }
        }
        let why = match verdict {
            Verdict::Wait | Verdict::Ask => return Ok(()),
            Verdict::Frozen => "its process does not work",
            Verdict::Unanswered => self
                .no_answer
                .as_deref()
                .unwrap_or("its server does not answer"),
        };
        Err(format!("replica was silent for too long: {why}"))
    }

    fn start_probe(&mut self, link: LeaseId, limits: PoolLimits) {
        match Probe::start(link, limits) {
            Ok(probe) => self.probe = Some(probe),
            Err(trouble) => self.probe_failed(trouble, link, limits),
        }
    }

    /// Whether the process is alive stays open until the time for the answer is over.
    fn probe_failed(&mut self, trouble: Trouble, link: LeaseId, limits: PoolLimits) {
        let answered_before = self.probe.take().is_some_and(|probe| {
            let answered = probe.has_answered();
            probe.end(limits);
            answered
        });
        match trouble {
            Trouble::NoRoom => self.liveness.not_answered_now(),
            // Closed while it was idle, perhaps for that: a new one tells.
            Trouble::Failed(_) if answered_before => self.start_probe(link, limits),
            Trouble::Failed(why) => self.no_answer = Some(why),
        }
    }

    pub fn end(self, limits: PoolLimits) {
        if let Some(probe) = self.probe {
            probe.end(limits);
        }
    }
}
