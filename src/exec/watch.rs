//! Is the process at the other end of a working link alive? Told by what it sends, and while it is
//! silent by a `probe`. The rules are the core's.

use super::probe::Probe;
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
        let mut result = match &mut self.probe {
            Some(probe) => probe.turn(),
            None => Ok(None),
        };
        if let Ok(Some(cpu_time)) = result {
            verdict = self.liveness.answered(cpu_time);
        }
        if verdict == Verdict::Wait {
            verdict = self.liveness.check(now_micros());
        }
        if verdict == Verdict::Ask {
            self.no_answer = None;
            result = match &mut self.probe {
                Some(probe) => probe.ask().map(|()| None),
                None => Probe::start(link, limits).map(|probe| {
                    self.probe = Some(probe);
                    None
                }),
            };
        }
        if let Err(why) = result {
            // Whether it is alive stays open until the time for the answer is over.
            self.probe = None;
            self.no_answer = Some(why);
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

    pub fn end(self, limits: PoolLimits) {
        if let Some(probe) = self.probe {
            probe.end(limits);
        }
    }
}
