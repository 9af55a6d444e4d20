//! The planner's side: which queries may use replicas, and what their plans look like.
//!
//! Two interventions. `paths` offers a partial GranuleScan path for each eligible table, and
//! PostgreSQL's own code builds partial aggregation, joins, sorts and Gather over it. `hook` then
//! replaces each Gather or Gather Merge whose subtree is `shippable` by a ParallelReplicas node.
//! Nothing here opens a connection.

mod calls;
mod candidate;
pub mod explain;
pub mod extensions;
pub mod foldable;
pub mod functions;
pub mod hook;
pub mod operators;
pub mod paths;
pub mod private;
pub mod refresh;
pub mod relations;
pub mod replace;
pub mod shippable;
pub mod state;
mod types;
pub mod whole;
