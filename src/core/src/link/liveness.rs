//! Tells a replica's process that works in silence from one that is frozen.
//!
//! A process that sorts, builds a hash table or reads a slow page cannot speak, so silence alone
//! proves nothing. After half of the tolerated time the process's CPU time is asked for, over
//! another connection, and again after every further half:
//!
//! - it has grown since the last answer by a thousandth of the time or more: the process works,
//!   however silent. Less is what timers cost a process that waits for ever;
//! - it has not, or no answer came for half of the time: the process, or its server, is frozen.
//!
//! A server that has no room for the other connection lives, but cannot tell; it is asked again.
//!
//! So a frozen process is found out after the tolerated time, and one that works never is. A
//! process that waits for something for so long without using CPU time counts as frozen, which
//! costs time and nothing else: its work is done by others.

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Wait,
    /// Ask for the process's CPU time.
    Ask,
    /// It gave no sign of life in time.
    Unanswered,
    /// It has used no CPU time.
    Frozen,
}

/// What is known about one process.
#[derive(Clone, Debug)]
pub struct Liveness {
    half_us: u64,
    due: u64,
    asked: bool,
    cpu_time: Option<u64>,
}

impl Liveness {
    /// A process that spoke at `now`, and may be without a sign of life for `tolerated_us`.
    pub fn new(tolerated_us: u64, now: u64) -> Self {
        let half_us = (tolerated_us / 2).max(1);
        Liveness {
            half_us,
            due: now + half_us,
            asked: false,
            cpu_time: None,
        }
    }

    /// It has spoken, or is not expected to.
    pub fn heard(&mut self, now: u64) {
        self.due = now + self.half_us;
        self.asked = false;
        self.cpu_time = None;
    }

    /// Its CPU time has been asked for since it was last heard.
    pub fn suspects(&self) -> bool {
        self.asked || self.cpu_time.is_some()
    }

    /// Time that passed without this side looking is not the replica's.
    pub fn postpone(&mut self, by_us: u64) {
        self.due += by_us;
    }

    /// When [`Liveness::check`] will have something to say.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// To be called from time to time.
    pub fn check(&mut self, now: u64) -> Verdict {
        if now < self.due {
            return Verdict::Wait;
        }
        if self.asked {
            return Verdict::Unanswered;
        }
        self.asked = true;
        self.due = now + self.half_us;
        Verdict::Ask
    }

    /// The answer: CPU time that the process has used so far, in nanoseconds.
    pub fn answered(&mut self, cpu_time: u64) -> Verdict {
        self.asked = false;
        // In nanoseconds, a thousandth of half_us: more than timers take. A process that reads pages from
        // a disk takes more, unless it gets fewer than some 50 in a second; then others do its work.
        let least = self.half_us;
        match self.cpu_time.replace(cpu_time) {
            Some(before) if cpu_time.saturating_sub(before) < least => Verdict::Frozen,
            _ => Verdict::Wait,
        }
    }

    /// The server answered that it cannot answer now.
    pub fn not_answered_now(&mut self) {
        self.asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_process_is_found_out_after_the_tolerated_time() {
        let mut process = Liveness::new(10, 100);
        assert_eq!(process.check(104), Verdict::Wait);
        assert_eq!(process.check(105), Verdict::Ask);
        assert_eq!(process.answered(7), Verdict::Wait);
        assert_eq!(process.check(109), Verdict::Wait);
        assert_eq!(process.check(110), Verdict::Ask);
        assert_eq!(process.answered(7), Verdict::Frozen);
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up_after_the_tolerated_time() {
        let mut process = Liveness::new(10, 100);
        assert_eq!(process.check(105), Verdict::Ask);
        assert_eq!(process.check(109), Verdict::Wait);
        assert_eq!(process.check(110), Verdict::Unanswered);
    }

    #[test]
    fn a_server_that_has_no_room_for_the_question_is_asked_again() {
        let mut process = Liveness::new(10, 100);
        assert_eq!(process.check(105), Verdict::Ask);
        process.not_answered_now();
        assert_eq!(process.check(109), Verdict::Wait);
        assert_eq!(process.check(110), Verdict::Ask);
        assert_eq!(process.answered(7), Verdict::Wait);
        assert_eq!(process.check(115), Verdict::Ask);
        process.not_answered_now();
        assert_eq!(process.check(120), Verdict::Ask);
        assert_eq!(process.answered(7), Verdict::Frozen);
    }

    #[test]
    fn a_process_that_works_may_be_silent_for_ever() {
        let mut process = Liveness::new(10, 0);
        for round in 1..1000 {
            assert_eq!(process.check(round * 5), Verdict::Ask);
            assert_eq!(process.answered(round * 5), Verdict::Wait);
        }
    }

    #[test]
    fn what_timers_cost_is_no_work() {
        let mut process = Liveness::new(10_000_000, 0);
        assert_eq!(process.check(5_000_000), Verdict::Ask);
        assert_eq!(process.answered(1_000_000_000), Verdict::Wait);
        // Ten wake-ups of 20 microseconds each within five seconds.
        assert_eq!(process.check(10_000_000), Verdict::Ask);
        assert_eq!(process.answered(1_000_200_000), Verdict::Frozen);
    }

    #[test]
    fn whoever_speaks_starts_anew() {
        let mut process = Liveness::new(10, 0);
        assert!(!process.suspects());
        assert_eq!(process.check(5), Verdict::Ask);
        assert!(process.suspects());
        assert_eq!(process.answered(7), Verdict::Wait);
        assert!(process.suspects());
        process.heard(9);
        assert!(!process.suspects());
        assert_eq!(process.check(13), Verdict::Wait);
        assert_eq!(process.check(14), Verdict::Ask);
        // The same CPU time as before it spoke says nothing.
        assert_eq!(process.answered(7), Verdict::Wait);
        // The question may have failed meanwhile: it is asked again before it is held against it.
        assert_eq!(process.check(19), Verdict::Ask);
        process.heard(20);
        assert_eq!(process.check(24), Verdict::Wait);
        assert_eq!(process.check(25), Verdict::Ask);
        assert_eq!(process.check(30), Verdict::Unanswered);
    }

    #[test]
    fn time_of_this_side_does_not_count() {
        let mut process = Liveness::new(10, 0);
        process.postpone(100);
        assert_eq!(process.check(104), Verdict::Wait);
        assert_eq!(process.due(), 105);
    }
}
