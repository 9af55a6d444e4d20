//! The executor's side: GranuleScan, ParallelReplicas, and the dispatch loop of the coordinator.
//!
//! Policy (who reads which granule) is the core's; this room carries it out.

mod account;
pub mod dispatch;
pub mod explain;
pub mod failure;
mod fold;
mod give_back;
pub mod granule_scan;
mod health;
mod held_rows;
mod link;
mod local;
mod memory;
mod merge;
pub mod parallel_replicas;
mod probe;
pub mod pruning;
pub mod shipment;
mod start;
mod state;
pub mod tasks;
mod watch;
