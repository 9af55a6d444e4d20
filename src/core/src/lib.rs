//! The decisions of parallel replicas, without PostgreSQL.
#![forbid(unsafe_code)]

pub mod balance;
pub mod frame;
pub mod link;
pub mod list;
pub mod machine;
pub mod plan_text;
pub mod queue;
pub mod reason;
pub mod rendezvous;
pub mod snapshot;
pub mod task_state;
pub mod timeline;
