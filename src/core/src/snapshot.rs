//! The wire form of an MVCC snapshot.
//!
//! Not PostgreSQL's own serialised struct, which differs between majors and can say
//! "overflowed": a shipped snapshot names every transaction that was in progress, sub-transactions
//! and the coordinator's own included, so that a replica decides visibility by list membership and
//! its commit log alone. Built by `exec`, checked and installed by `serve`.

use serde::{Deserialize, Serialize};

/// Transaction ids below this are special (invalid, bootstrap, frozen).
pub const FIRST_NORMAL_XID: u32 = 3;

/// A complete snapshot: no overflow flag exists, on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSnapshot {
    /// Every transaction id before this one had ended.
    pub xmin: u32,
    /// No transaction id from this one on had started.
    pub xmax: u32,
    /// Epoch of `xmax`: upper half of the 64-bit transaction id.
    pub xmax_epoch: u32,
    /// All transactions in progress in `[xmin, xmax)`, sub-transactions included, ascending in
    /// transaction-id order, without duplicates.
    pub in_progress: Vec<u32>,
    /// Ids of lazy VACUUMs in progress. PostgreSQL leaves them out of all snapshots, because they
    /// write no rows; a standby takes them for transactions in progress like any other.
    pub vacuums: Vec<u32>,
    /// The coordinator had a transaction id of its own that the snapshot does not take for running.
    pub own_xid_assigned: bool,
    /// The coordinator's snapshot had lost sub-transactions and could not be completed. Always
    /// refused by a replica; carried so that the refusal does not rest on the sender alone.
    pub incomplete: bool,
}

/// Why a snapshot cannot be used on a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot's transaction ids are not normal ids in order")]
    Malformed,
    #[error("the snapshot does not list every sub-transaction in progress")]
    Incomplete,
    #[error("the coordinator's transaction has a transaction id of its own")]
    OwnXid,
}

/// Is `a` older than `b`, in PostgreSQL's modulo-2^32 order of normal transaction ids?
pub fn xid_precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl WireSnapshot {
    /// Drops ids outside `[xmin, xmax)`: PostgreSQL lists sub-transactions that started after the
    /// snapshot's end too.
    pub fn keep_in_range(&mut self) {
        let (xmin, span) = (self.xmin, self.xmax.wrapping_sub(self.xmin));
        self.in_progress.retain(|xid| xid.wrapping_sub(xmin) < span);
    }

    /// Must a transaction that this server still takes to be running be known to the snapshot as
    /// running, and is it not? Everything that the snapshot takes to have ended has been replayed as
    /// ended, so a running one that is missing shows that the snapshot is incomplete.
    pub fn misses(&self, running: u32) -> bool {
        if self.vacuums.contains(&running) {
            return false;
        }
        let offset = running.wrapping_sub(self.xmin);
        if xid_precedes(running, self.xmin) {
            return true;
        }
        offset < self.xmax.wrapping_sub(self.xmin)
            && self
                .in_progress
                .binary_search_by_key(&offset, |xid| xid.wrapping_sub(self.xmin))
                .is_err()
    }

    /// Sorts and deduplicates the list, which the caller collected in any order.
    pub fn normalise(&mut self) {
        let base = self.xmin;
        self.in_progress
            .sort_unstable_by_key(|xid| xid.wrapping_sub(base));
        self.in_progress.dedup();
    }

    /// The replica's half of the rules: it does not trust the coordinator's word.
    pub fn check(&self) -> Result<(), SnapshotError> {
        if self.incomplete {
            return Err(SnapshotError::Incomplete);
        }
        if self.own_xid_assigned {
            return Err(SnapshotError::OwnXid);
        }
        if self.xmin < FIRST_NORMAL_XID
            || self.xmax < FIRST_NORMAL_XID
            || xid_precedes(self.xmax, self.xmin)
        {
            return Err(SnapshotError::Malformed);
        }
        let span = self.xmax.wrapping_sub(self.xmin);
        let mut previous = None;
        for &xid in &self.in_progress {
            let offset = xid.wrapping_sub(self.xmin);
            if xid < FIRST_NORMAL_XID || offset >= span || previous.is_some_and(|p| p >= offset) {
                return Err(SnapshotError::Malformed);
            }
            previous = Some(offset);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(xmin: u32, xmax: u32, in_progress: &[u32]) -> WireSnapshot {
        WireSnapshot {
            xmin,
            xmax,
            xmax_epoch: 0,
            in_progress: in_progress.to_vec(),
            vacuums: Vec::new(),
            own_xid_assigned: false,
            incomplete: false,
        }
    }

    #[test]
    fn order_holds_across_the_wrap_of_transaction_ids() {
        let mut wrapped = snapshot(u32::MAX - 1, 10, &[5, u32::MAX, 5, u32::MAX - 1]);
        wrapped.normalise();
        assert_eq!(wrapped.in_progress, vec![u32::MAX - 1, u32::MAX, 5]);
        assert_eq!(wrapped.check(), Ok(()));
    }

    #[test]
    fn a_running_transaction_that_is_not_listed_is_noticed() {
        let mut snapshot = snapshot(u32::MAX - 5, 10, &[u32::MAX, 4, 12, u32::MAX - 7]);
        snapshot.keep_in_range();
        snapshot.normalise();
        assert_eq!(snapshot.in_progress, vec![u32::MAX, 4]);
        assert_eq!(snapshot.check(), Ok(()));
        for (xid, misses) in [
            (u32::MAX, false),
            (4, false),
            (5, true),
            (10, false),
            (11, false),
            (u32::MAX - 9, true),
        ] {
            assert_eq!(snapshot.misses(xid), misses, "{xid}");
        }
        snapshot.vacuums = vec![5];
        assert!(!snapshot.misses(5));
    }

    #[test]
    fn a_replica_refuses_what_would_damage_it() {
        let good = snapshot(10, 20, &[11, 12]);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(
            WireSnapshot {
                incomplete: true,
                ..good.clone()
            }
            .check(),
            Err(SnapshotError::Incomplete)
        );
        assert_eq!(
            WireSnapshot {
                own_xid_assigned: true,
                ..good.clone()
            }
            .check(),
            Err(SnapshotError::OwnXid)
        );
        for bad in [
            snapshot(20, 10, &[]),
            snapshot(2, 10, &[]),
            snapshot(10, 20, &[20]),
            snapshot(10, 20, &[9]),
            snapshot(10, 20, &[12, 11]),
            snapshot(10, 20, &[11, 11]),
        ] {
            assert_eq!(bad.check(), Err(SnapshotError::Malformed), "{bad:?}");
        }
    }
}
