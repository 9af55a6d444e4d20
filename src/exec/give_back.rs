//! Near the end of a scan: links that have nothing to do wait for what slower ones are asked to give
//! back.
//!
//! A link that asks for a task when nothing is left, while another link will be long over its own,
//! is *parked*: its Request stays unanswered. The other link gets a Shrink frame. Whatever comes of
//! that (its task ends early, ends anyway, will not be begun, the link is lost), the parked links ask
//! anew.

use parallel_replicas_core::task_state::Shrink;

/// A link that was, or has to be, asked to give back a part of a task.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub scan: u32,
    pub shrink: Shrink,
    pub sent: bool,
}

/// What is asked of links.
#[derive(Default)]
pub struct Demands {
    demands: Vec<Demand>,
    settled: bool,
}

impl Demands {
    pub fn add(&mut self, scan: u32, shrink: Shrink) {
        self.demands.push(Demand {
            scan,
            shrink,
            sent: false,
        });
    }

    /// Something may yet come back.
    pub fn is_open(&self) -> bool {
        !self.demands.is_empty()
    }

    /// One that has to be sent; it counts as sent from now on.
    pub fn next_unsent(&mut self) -> Option<Demand> {
        let demand = self.demands.iter_mut().find(|demand| !demand.sent)?;
        demand.sent = true;
        Some(*demand)
    }

    /// Was a part of this task asked for?
    pub fn is_asked(&self, scan: u32, task: u32) -> bool {
        let mut demands = self.demands.iter();
        demands.any(|demand| demand.scan == scan && demand.shrink.task == task)
    }

    /// The task is no longer in work.
    pub fn settle_task(&mut self, scan: u32, task: u32) {
        self.settle(|demand| demand.scan == scan && demand.shrink.task == task);
    }

    /// The process is no longer at work: what it held can be had.
    pub fn settle_process(&mut self, process: u16) {
        self.demands
            .retain(|demand| demand.shrink.process != process);
        self.settled = true;
    }

    /// Granules came back, asked for or not.
    pub fn came_back(&mut self) {
        self.settled = true;
    }

    fn settle(&mut self, which: impl Fn(&Demand) -> bool) {
        let before = self.demands.len();
        self.demands.retain(|demand| !which(demand));
        self.settled |= self.demands.len() < before;
    }

    /// Has anything changed since the last call, so that parked links should ask anew?
    pub fn take_settled(&mut self) -> bool {
        std::mem::take(&mut self.settled)
    }
}
