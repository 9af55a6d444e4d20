//! Smooth weighted round robin over eight size classes.
//!
//! The smaller a query, the higher its class' weight, so that small ones are picked often and large
//! ones regularly. The pick is kept until it is taken or leaves, so that what fits next does not
//! change with every look. A class that was passed over because it was empty is compensated when
//! somebody arrives, and may then replace the pick.

/// Number of size classes; 0 has the smallest queries.
pub const CLASSES: usize = 8;

/// Picks per class in one period.
pub const WEIGHTS: [i64; CLASSES] = [467, 187, 75, 30, 12, 5, 2, 1];

/// Sum of the weights.
const PERIOD: i64 = 779;

/// Above this the states are brought down, so that they never overflow.
const STATE_HIGH: i64 = 1000;

/// Class of a query that needs `slots` of `total`, over `servers`.
pub fn class_of(slots: u32, total: u32, servers: u32) -> usize {
    let servers = servers.max(1);
    let largest = (total / servers).max(1).ilog2() as i64;
    // -1 for less than one slot per server.
    let size = (slots / servers)
        .checked_ilog2()
        .map_or(-1, |log| log as i64);
    (7 - (largest - size)).clamp(0, 7) as usize
}

/// The scheduler's memory. All zeroes to begin with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swrr {
    states: [i64; CLASSES],
    /// How often a class was passed over while it was empty.
    skips: [i64; CLASSES],
    /// The pick that is kept, plus 1; 0 if there is none.
    kept: u32,
    kept_class: u32,
}

impl Swrr {
    /// What is kept: entry and class.
    pub fn kept(&self) -> Option<(usize, usize)> {
        let entry = self.kept.checked_sub(1)?;
        Some((entry as usize, self.kept_class as usize))
    }

    pub fn keep(&mut self, entry: usize, class: usize) {
        self.kept = entry as u32 + 1;
        self.kept_class = class as u32;
    }

    /// The kept pick was taken, or has left.
    pub fn forget(&mut self) {
        self.kept = 0;
    }

    /// Credit of each class.
    pub fn states(&self) -> [i64; CLASSES] {
        self.states
    }

    pub fn skips(&self) -> [i64; CLASSES] {
        self.skips
    }

    /// The next class with anybody in it.
    pub fn next_class(&mut self, occupied: [bool; CLASSES]) -> Option<usize> {
        if !occupied.contains(&true) {
            return None;
        }
        let picked = loop {
            for (state, weight) in self.states.iter_mut().zip(WEIGHTS) {
                *state += weight;
            }
            let class = self.richest();
            self.states[class] -= PERIOD;
            if occupied[class] {
                break class;
            }
            self.skips[class] += 1;
            self.skip_ahead(class);
        };
        let least = self.states.iter().copied().min().unwrap_or(0);
        if least > STATE_HIGH {
            for state in &mut self.states {
                *state -= least;
            }
        }
        Some(picked)
    }

    /// The greatest state; the lower class of equals.
    fn richest(&self) -> usize {
        let mut best = 0;
        for class in 1..CLASSES {
            if self.states[class] > self.states[best] {
                best = class;
            }
        }
        best
    }

    /// Does at once the rounds in which the empty class `skipped` would be chosen again.
    fn skip_ahead(&mut self, skipped: usize) {
        let rounds = (0..CLASSES)
            .filter(|class| *class != skipped)
            .map(|class| {
                let weight_lead = WEIGHTS[skipped] - WEIGHTS[class];
                let state_lead = self.states[class] - self.states[skipped];
                if state_lead >= weight_lead {
                    0
                } else {
                    (weight_lead - state_lead + PERIOD - weight_lead - 1) / (PERIOD - weight_lead)
                }
            })
            .min()
            .unwrap_or(0);
        self.skips[skipped] += rounds;
        for (state, weight) in self.states.iter_mut().zip(WEIGHTS) {
            *state += weight * rounds;
        }
        // What was chosen pays a period each time.
        self.states[skipped] -= PERIOD * rounds;
    }

    /// `entry` is the first of a class that was empty: compensates the class for having been passed
    /// over, and makes `entry` the pick if its class is now far ahead of the kept one's.
    pub fn arrived_in_empty(&mut self, entry: usize, class: usize) {
        let bonus = (PERIOD - WEIGHTS[class]) * self.skips[class];
        self.states[class] += bonus.min(2 * PERIOD);
        self.skips[class] = 0;
        if let Some((_, kept_class)) = self.kept()
            && kept_class != class
            && self.states[kept_class] + PERIOD < self.states[class]
        {
            self.states[class] -= PERIOD;
            self.states[kept_class] += PERIOD;
            self.keep(entry, class);
        }
    }
}
