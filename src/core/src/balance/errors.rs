//! What a replica has done wrong lately: a count that halves with time.
//!
//! Halving is lazy: whoever looks brings the count up to date first. A remainder of less than a half
//! life is dropped then, as in the model. The very first look only sets the time.

/// The settings that the counts obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRules {
    /// Seconds in which a count halves; 0: at once to zero.
    pub half_life_s: u64,
    /// Most errors that are counted.
    pub cap: u32,
    /// Errors that do not count in the choice.
    pub ignored: u32,
}

/// Counts of one replica. Plain data, all zero when new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ErrorCount {
    pub errors: u32,
    /// Times that it was reached too late to be of use.
    pub slowdowns: u32,
    /// Time of the last halving in seconds; 0 before the first look.
    decayed_at_s: u64,
}

impl ErrorCount {
    /// Brings the counts up to date.
    pub fn decay(&mut self, now_s: u64, rules: &ErrorRules) {
        if self.decayed_at_s == 0 {
            self.decayed_at_s = now_s;
            return;
        }
        // A clock that was put back makes nothing decay.
        let elapsed = now_s.saturating_sub(self.decayed_at_s);
        let halvings = elapsed.checked_div(rules.half_life_s).unwrap_or(u64::MAX);
        if halvings == 0 {
            return;
        }
        let halve = |count: u32| {
            let shift = u32::try_from(halvings).unwrap_or(u32::MAX);
            count.checked_shr(shift).unwrap_or(0)
        };
        self.errors = halve(self.errors);
        self.slowdowns = halve(self.slowdowns);
        self.decayed_at_s = now_s;
    }

    /// One attempt failed. A replica that fails is no longer merely slow.
    pub fn fail(&mut self, now_s: u64, rules: &ErrorRules) {
        self.decay(now_s, rules);
        self.errors = self.errors.saturating_add(1).min(rules.cap);
        self.slowdowns = 0;
    }

    /// One attempt took too long.
    pub fn slow_down(&mut self, now_s: u64, rules: &ErrorRules) {
        self.decay(now_s, rules);
        self.slowdowns = self.slowdowns.saturating_add(1);
    }

    /// Errors that count in the choice.
    pub fn effective(&self, rules: &ErrorRules) -> u32 {
        self.errors.min(rules.cap).saturating_sub(rules.ignored)
    }

    /// Seconds until both counts are zero, if nothing else happens.
    pub fn recovery_s(&self, now_s: u64, rules: &ErrorRules) -> u64 {
        // A count of n is zero after floor(log2(n)) + 1 halvings.
        let halvings = self.errors.max(self.slowdowns).checked_ilog2();
        let halvings = halvings.map_or(0, |log| u64::from(log) + 1);
        let since = now_s.saturating_sub(self.decayed_at_s);
        halvings
            .saturating_mul(rules.half_life_s)
            .saturating_sub(since)
    }
}
