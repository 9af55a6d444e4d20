//! The decisions of parallel replicas, without PostgreSQL.
#![forbid(unsafe_code)]

pub mod rendezvous;
pub mod task_state;
pub mod frame;
pub mod reason;
pub mod snapshot;
