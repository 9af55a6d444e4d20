//! One link between coordinator and replica, as far as it is a matter of rules: pure, without
//! clock, sockets or PostgreSQL. Times are microseconds of any monotonic clock.
//!
//! What a link is doing: `machine`. Whether the other end is alive: `liveness`. Which tasks it has:
//! `tasks`. Whose fault an error of it is: `blame`.

mod blame;
mod liveness;
mod machine;
mod tasks;

pub use blame::is_of_the_query;
pub use liveness::{Liveness, Verdict};
pub use machine::{Action, Event, Fate, Machine, OutOfTurn, Patience, Phase};
pub use tasks::{GivenTasks, Misreport};
