//! Weighted rendezvous hashing: which replica owns a segment, and which one may steal it.
//!
//! A pure function of (database oid, relfilenode, first block of the segment, replica names and
//! weights). It keeps no state, knows no load and no liveness; `task_state` calls it once per
//! segment when a scan starts.
//!
//! Invariants:
//! - The owner has the highest score, the stealer the second highest, so they never coincide; with
//!   one replica there is no stealer.
//! - A replica's score depends on nothing but its own name, its own weight and the segment. Hence
//!   adding a replica moves only the segments it wins, removing one moves only the segments it had,
//!   and those go to their former stealer, whose cache is warm.
//! - The order in which replicas are listed does not matter.
//! - Integers only: a logarithm in floating point may differ in the last bit between two C
//!   libraries, and two servers that disagree about one owner read the same cold segment twice.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::task_state::TaskError;

/// Most replicas that one scan can be spread over. The (owner, stealer) buckets of the task state
/// grow with its square: 1 MiB at this size.
pub const MAX_REPLICAS: usize = 256;

/// A replica as the hash sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSpec<'a> {
    /// Stable name, the same on every coordinator; unique within one scan.
    pub name: &'a str,
    /// Relative share, 1 by default; a replica of weight 0 owns nothing while another has more.
    pub weight: u32,
}

/// Where one segment belongs: indices into the list of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub owner: u16,
    /// None when there is only one replica.
    pub stealer: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    seed: u64,
    weight: u32,
    /// 2^64 / weight: a multiplication in place of a division per segment.
    inverse: u64,
}

/// The replicas of one scan, with everything precomputed that does not depend on the segment.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    nodes: Vec<Node>,
    equal_weights: bool,
}

/// Higher wins. For equal weights `closeness` orders exactly as `hash` does, and ties in it fall
/// through to `hash`; so comparing hashes alone, as the fast path does, gives the same order.
type Score = (u64, u64, u64);

impl Rendezvous {
    /// Fails on no replica, on more than [`MAX_REPLICAS`], and on a name that occurs twice.
    pub fn new(replicas: &[ReplicaSpec<'_>]) -> Result<Self, TaskError> {
        if replicas.is_empty() || replicas.len() > MAX_REPLICAS {
            return Err(TaskError::ReplicaCount {
                given: replicas.len(),
                max: MAX_REPLICAS,
            });
        }
        let nodes: Vec<Node> = replicas
            .iter()
            .map(|r| Node {
                seed: xxh3_64(r.name.as_bytes()),
                weight: r.weight,
                inverse: u64::MAX.checked_div(u64::from(r.weight)).unwrap_or(0),
            })
            .collect();
        for (i, node) in nodes.iter().enumerate() {
            if nodes[..i].iter().any(|other| other.seed == node.seed) {
                return Err(TaskError::DuplicateReplica { replica: i });
            }
        }
        let equal_weights = nodes.iter().all(|n| n.weight == nodes[0].weight);
        Ok(Self {
            nodes,
            equal_weights,
        })
    }

    /// All replicas for a key, the preferred one first. A replica that goes away moves only the keys
    /// that it was first for, and moves them to the next in this order.
    pub fn ranked(&self, key: &[u8]) -> Vec<u16> {
        let mut scored: Vec<(Score, u16)> = (0u16..)
            .zip(&self.nodes)
            .map(|(index, node)| {
                let hash = xxh3_64_with_seed(key, node.seed);
                ((closeness(hash, node), hash, node.seed), index)
            })
            .collect();
        scored.sort_unstable_by(|a, b| b.cmp(a));
        scored.into_iter().map(|(_, index)| index).collect()
    }

    /// Owner and stealer of the segment that starts at block `start_block`.
    pub fn place(&self, database: u32, relfilenode: u32, start_block: u32) -> Placement {
        let mut key = [0u8; 12];
        key[0..4].copy_from_slice(&database.to_le_bytes());
        key[4..8].copy_from_slice(&relfilenode.to_le_bytes());
        key[8..12].copy_from_slice(&start_block.to_le_bytes());

        let mut best: Option<(Score, u16)> = None;
        let mut second: Option<(Score, u16)> = None;
        // Hash and weight of the second: who has no more of either cannot pass it. That spares
        // most logarithms and divisions.
        let mut bar = (0, 0);
        for (index, node) in (0u16..).zip(&self.nodes) {
            let hash = xxh3_64_with_seed(&key, node.seed);
            if hash < bar.0 && node.weight <= bar.1 {
                continue;
            }
            let closeness = match self.equal_weights {
                true => 0,
                false => closeness(hash, node),
            };
            let entry = Some(((closeness, hash, node.seed), index));
            if entry > best {
                second = best;
                best = entry;
            } else if entry > second {
                second = entry;
            }
            if let Some(((_, hash, _), index)) = second {
                bar = (hash, self.nodes[usize::from(index)].weight);
            }
        }
        Placement {
            owner: best.map_or(0, |(_, index)| index),
            stealer: second.map(|(_, index)| index),
        }
    }
}

/// Fraction bits of [`minus_log2`].
const FRACTION_BITS: u32 = 40;
const TABLE_BITS: u32 = 8;

/// log2(1 + i/256) in `FRACTION_BITS` fixed point.
const LOG2_TABLE: [u64; (1 << TABLE_BITS) + 1] = log2_table();

/// The weighted score -w / ln(u), as something integer that grows with it: the complement of
/// -log2(u) / w, where u = hash / 2^64.
fn closeness(hash: u64, node: &Node) -> u64 {
    if node.weight == 0 {
        return 0;
    }
    // minus_log2 is at most 64 * 2^40 = 2^46, so 16 more bits of precision fit.
    let distance = u128::from(minus_log2(hash) << 16) * u128::from(node.inverse);
    u64::MAX - (distance >> 64) as u64
}

/// -log2(hash / 2^64) in fixed point. Never increases with `hash`; its relative error is below
/// 0.3%, far below what anybody can tell from the share of a replica.
fn minus_log2(hash: u64) -> u64 {
    let hash = hash.max(1);
    let zeros = hash.leading_zeros();
    // The bits after the leading one: the mantissa's fraction, as a 64-bit fixed-point number.
    let fraction = (hash << zeros) << 1;
    let cell = (fraction >> (64 - TABLE_BITS)) as usize;
    let within = (fraction << TABLE_BITS) >> (64 - FRACTION_BITS);
    let (low, high) = (LOG2_TABLE[cell], LOG2_TABLE[cell + 1]);
    let log2_mantissa =
        low + ((u128::from(high - low) * u128::from(within)) >> FRACTION_BITS) as u64;
    // log2(hash) = 63 - zeros + log2_mantissa
    (u64::from(zeros + 1) << FRACTION_BITS) - log2_mantissa
}

/// Built by repeated squaring, one result bit per step, at compile time.
const fn log2_table() -> [u64; (1 << TABLE_BITS) + 1] {
    let mut table = [0u64; (1 << TABLE_BITS) + 1];
    let mut i = 0;
    while i < 1 << TABLE_BITS {
        // 1.63 fixed point, in [1, 2)
        let mut x: u128 = (1 << 63) + ((i as u128) << (63 - TABLE_BITS));
        let mut bit = 0;
        while bit < FRACTION_BITS {
            x = (x * x) >> 63;
            table[i] <<= 1;
            if x >> 64 != 0 {
                x >>= 1;
                table[i] |= 1;
            }
            bit += 1;
        }
        i += 1;
    }
    table[1 << TABLE_BITS] = 1 << FRACTION_BITS;
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_point_logarithm_is_close_and_monotone() {
        let mut last = u64::MAX;
        for i in 1..=1_000_000u64 {
            let hash = i * (u64::MAX / 1_000_000);
            let exact = -(hash as f64 / 2f64.powi(64)).log2();
            let got = minus_log2(hash);
            assert!(got <= last, "not monotone at {hash}");
            last = got;
            let got = got as f64 / 2f64.powi(FRACTION_BITS as i32);
            assert!(
                (got - exact).abs() <= exact * 0.003 + 1e-9,
                "{hash}: {got} for {exact}"
            );
        }
        assert_eq!(minus_log2(1), 64 << FRACTION_BITS);
        assert_eq!(minus_log2(0), 64 << FRACTION_BITS);
        assert!(minus_log2(u64::MAX) < 2);
    }

    #[test]
    fn weights_scale_shares() {
        let replicas = [("a", 1), ("b", 1), ("c", 2), ("d", 4), ("e", 0)]
            .map(|(name, weight)| ReplicaSpec { name, weight });
        let map = Rendezvous::new(&replicas).unwrap();
        let mut owned = [0u32; 5];
        for segment in 0..80_000u32 {
            owned[usize::from(map.place(5, 16_400, segment * 8192).owner)] += 1;
        }
        for (share, expected) in owned.iter().zip([10_000i64, 10_000, 20_000, 40_000, 0]) {
            let off = (i64::from(*share) - expected).abs();
            assert!(off <= 600.min(expected), "{owned:?}");
        }
    }

    #[test]
    fn listing_order_does_not_matter_and_bad_lists_are_refused() {
        let forward = ["x", "y", "z"].map(|name| ReplicaSpec { name, weight: 1 });
        let backward = ["z", "y", "x"].map(|name| ReplicaSpec { name, weight: 1 });
        let (f, b) = (
            Rendezvous::new(&forward).unwrap(),
            Rendezvous::new(&backward).unwrap(),
        );
        for start in 0..1000 {
            let (pf, pb) = (f.place(1, 2, start), b.place(1, 2, start));
            assert_eq!(pf.owner, 2 - pb.owner);
            assert_eq!(pf.stealer.unwrap(), 2 - pb.stealer.unwrap());
            assert_ne!(Some(pf.owner), pf.stealer);
        }
        assert!(Rendezvous::new(&[]).is_err());
        assert!(Rendezvous::new(&[forward[0], forward[0]]).is_err());
        assert_eq!(
            Rendezvous::new(&forward[..1])
                .unwrap()
                .place(1, 2, 3)
                .stealer,
            None
        );
    }

    #[test]
    fn keys_are_spread_evenly_and_only_those_of_a_removed_replica_move() {
        let four = ["a", "b", "c", "d"].map(|name| ReplicaSpec { name, weight: 1 });
        let all = Rendezvous::new(&four).unwrap();
        let rest = Rendezvous::new(&four[..3]).unwrap();
        let mut shares = [0u32; 4];
        for number in 0..100_000 {
            let key = format!("tag_{number}");
            let ranked = all.ranked(key.as_bytes());
            shares[usize::from(ranked[0])] += 1;
            let without: Vec<u16> = ranked.into_iter().filter(|index| *index != 3).collect();
            assert_eq!(rest.ranked(key.as_bytes()), without);
        }
        assert!(
            shares.iter().all(|share| (22_500..27_500).contains(share)),
            "{shares:?}"
        );
    }

    #[test]
    fn keys_follow_the_weights() {
        let replicas =
            [("a", 1), ("b", 2), ("c", 1)].map(|(name, weight)| ReplicaSpec { name, weight });
        let map = Rendezvous::new(&replicas).unwrap();
        let mut shares = [0i64; 3];
        for number in 0..40_000 {
            shares[usize::from(map.ranked(format!("tag_{number}").as_bytes())[0])] += 1;
        }
        for (share, expected) in shares.iter().zip([10_000, 20_000, 10_000]) {
            assert!((share - expected).abs() <= expected / 10, "{shares:?}");
        }
    }

    /// Pinned, because a changed value would quietly make every cache of every cluster cold.
    #[test]
    fn placement_is_frozen() {
        let replicas = ["alpha", "beta", "gamma"].map(|name| ReplicaSpec { name, weight: 1 });
        let map = Rendezvous::new(&replicas).unwrap();
        let owners: Vec<u16> = (0..16)
            .map(|s| map.place(5, 16_384, s * 8192).owner)
            .collect();
        assert_eq!(owners, FROZEN_OWNERS);
    }

    const FROZEN_OWNERS: [u16; 16] = [2, 1, 1, 2, 0, 2, 1, 1, 0, 1, 2, 2, 1, 1, 0, 1];
}
