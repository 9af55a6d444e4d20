//! Why a query, or a part of it, is executed without replicas.
//!
//! Each reason has a stable code, which EXPLAIN, the log and the documentation use, and a sentence
//! for people. `enable_parallel_replicas = force` makes an error of it.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($name:ident, $code:literal, $text:literal, $hint:literal;)*) => {
        /// See the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Reason { $($name,)* }

        impl Reason {
            /// All of them, for the documentation's test.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// Stable word.
            pub fn code(self) -> &'static str {
                match self { $(Reason::$name => $code,)* }
            }

            /// One sentence without a full stop.
            pub fn text(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// What the user can do, as a full sentence; empty where nothing sensible can be said.
            pub fn hint(self) -> &'static str {
                match self { $(Reason::$name => $hint,)* }
            }
        }
    };
}

reasons! {
    // Planning: the cluster.
    NoReplica, "no_replica", "the cluster has no replica",
        "Add one with parallel_replicas.add_replica(name, host, port).";
    NoReplicaUsable, "no_replica_usable", "no replica can be used at the moment",
        "The view parallel_replicas.replicas tells why.";
    NoReplicaAllowed, "no_replica_allowed", "max_parallel_replicas or parallel_replicas_min_number_of_rows_per_replica leaves no replica",
        "Raise max_parallel_replicas, or lower parallel_replicas_min_number_of_rows_per_replica.";
    // Planning: the query.
    NotParallelSafe, "not_parallel_safe", "the query cannot be executed in parallel",
        "Volatile, parallel-unsafe or parallel-restricted functions keep PostgreSQL from it, and so do row locks.";
    TableSample, "tablesample", "TABLESAMPLE is executed locally", "";
    TemporaryTable, "temporary_table", "the table is temporary", "Standbys cannot see temporary tables.";
    UnloggedTable, "unlogged_table", "the table is unlogged", "Standbys have no rows of unlogged tables; ALTER TABLE ... SET LOGGED changes that.";
    AccessMethod, "access_method", "the table's access method is not heap", "";
    ForeignTable, "foreign_table", "a foreign table is part of the fragment", "";
    CatalogTable, "catalog_table", "a system catalog is part of the fragment", "";
    PlannerChoice, "planner_choice", "the planner found another plan", "";
    TooSmall, "too_small", "the table is smaller than min_parallel_table_scan_size", "";
    PlanNode, "plan_node", "the parallel part of the plan has a node that is not shipped", "";
    Expression, "expression", "an expression is of a kind that is not shipped", "";
    SubPlan, "subplan", "the parallel part of the plan has a subplan", "";
    Function, "function", "a function is not known to give the same result on every server",
        "Only built-in functions, and those of parallel_replicas.shippable_extensions, are shipped.";
    CorrelatedParameter, "correlated_parameter", "the parallel part of the plan depends on a value from outside", "";
    RecordOutput, "record_output", "a column has an anonymous row type", "Name a composite type.";
    // Dispatch.
    SwitchedOff, "switched_off", "enable_parallel_replicas was switched off after the query was planned", "";
    NoTag, "no_tag", "parallel_replicas.replica_tag was reset after the query was planned", "";
    Nested, "nested", "the query is part of another one", "";
    NotParallelMode, "not_parallel_mode", "the query is not executed to its end at once",
        "Cursors, row limits of the client and some callers keep PostgreSQL from parallel execution.";
    InRecovery, "in_recovery", "this server is itself a standby", "Connect to the primary.";
    OwnXid, "own_xid", "the transaction has written", "Run the query in a transaction of its own.";
    Serializable, "serializable", "the transaction is SERIALIZABLE", "Use REPEATABLE READ.";
    SubtransactionOverflow, "subtransaction_overflow", "too many transactions have run since the oldest one in progress to list their subtransactions",
        "Look for long transactions with many subtransactions.";
    OldSnapshotThreshold, "old_snapshot_threshold", "old_snapshot_threshold is set", "Set old_snapshot_threshold to -1.";
    NotMvccSnapshot, "not_mvcc_snapshot", "the query does not use an MVCC snapshot", "";
    // Execution.
    NoReplicaLeft, "no_replica_left", "no replica is left, and this server was not to read itself",
        "Look into its log for what became of the replicas, or set parallel_replicas_local_plan to on.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_words() {
        let mut codes: Vec<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        assert!(codes.iter().all(|code| {
            code.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        }));
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Reason::ALL.len());
    }
}
