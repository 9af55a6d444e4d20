//! One link between coordinator and replica, as far as it is a matter of rules: pure, without
//! clock, sockets or PostgreSQL. Times are microseconds of any monotonic clock.

mod liveness;

pub use liveness::{Liveness, Verdict};
