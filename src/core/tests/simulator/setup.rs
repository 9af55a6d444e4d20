//! What is simulated: the participants with their speeds and mishaps, the best that anybody could
//! do with them, and the seeded generator. No state of a run: that is `cluster`.

use parallel_replicas_core::task_state::{ProcessCounters, ReplicaSpec};

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Debug)]
pub struct Participant {
    pub replica: u16,
    /// A link with this latency one way, or a local process.
    pub link_micros: Option<u64>,
    pub granule_micros: u64,
    pub start_at: u64,
    /// Stops for a while (from, how long) and resumes, as after SIGSTOP and SIGCONT.
    pub pause: Option<(u64, u64)>,
    pub dies_at: Option<u64>,
}

impl Participant {
    /// When it is through with `work` that it begins now, its pause included.
    pub fn finish(&self, now: u64, work: u64) -> u64 {
        match self.pause {
            Some((from, length)) if now < from + length && now + work > from => {
                now + work + from + length - now.max(from)
            }
            _ => now + work,
        }
    }

    /// Time it has for work until `end`.
    fn available(&self, end: u64) -> u64 {
        let end = end.min(self.dies_at.unwrap_or(u64::MAX));
        let paused = self.pause.map_or(0, |(from, length)| {
            end.min(from + length)
                .saturating_sub(from.max(self.start_at))
        });
        end.saturating_sub(self.start_at).saturating_sub(paused)
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub granules: u32,
    /// 0: automatic.
    pub segment_granules: u32,
    pub replicas: usize,
    pub participants: Vec<Participant>,
    /// Rows are passed on task by task, not at the end.
    pub streaming: bool,
    pub ramp: bool,
    /// Granules take granule_micros give or take this many percent.
    pub jitter_percent: u64,
    /// Links may repeat their TaskDone frames.
    pub duplicates: bool,
    pub cancel_at: Option<u64>,
    /// Print every event.
    pub trace: bool,
}

#[derive(Debug)]
pub struct Outcome {
    pub makespan: u64,
    /// Least possible makespan with these participants, the lost work included.
    pub ideal: u64,
    pub counters: Vec<ProcessCounters>,
    pub cancelled: bool,
}

impl Outcome {
    pub fn ratio(&self) -> f64 {
        self.makespan as f64 / self.ideal as f64
    }

    pub fn own_share(&self) -> f64 {
        let own: u32 = self.counters.iter().map(|c| c.own).sum();
        let all: u32 = self
            .counters
            .iter()
            .map(|c| c.own + c.by_hash + c.rest)
            .sum();
        f64::from(own) / f64::from(all.max(1))
    }
}

impl Setup {
    /// The earliest time by which the participants could have read every granule, and what was
    /// wasted with lost ones, if work could be split at will.
    pub fn ideal(&self, wasted: u32, makespan: u64) -> u64 {
        let total = f64::from(self.granules + wasted);
        let capacity = |end: u64| -> f64 {
            let participants = self.participants.iter();
            participants
                .map(|p| p.available(end) as f64 / p.granule_micros as f64)
                .sum()
        };
        let (mut low, mut high) = (0, makespan.max(1) * 2);
        while low < high {
            let middle = (low + high) / 2;
            if capacity(middle) < total {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("replica-{i}")).collect()
}

pub fn specs(names: &[String]) -> Vec<ReplicaSpec<'_>> {
    names
        .iter()
        .map(|name| ReplicaSpec { name, weight: 1 })
        .collect()
}
