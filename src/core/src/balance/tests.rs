//! The documented examples, and properties of the order.

use super::hostname::{common_prefix, common_suffix, differences, levenshtein_distance};
use super::*;
use proptest::prelude::*;

/// A small generator (xorshift), so that the tests repeat themselves.
fn generator(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn candidates<'a>(hosts: &[&'a str]) -> Vec<Candidate<'a>> {
    let one = |host: &&'a str| Candidate {
        host,
        errors: 0,
        priority: 1,
    };
    hosts.iter().map(one).collect()
}

fn rules(algorithm: Algorithm) -> Rules<'static> {
    Rules {
        algorithm,
        local_host: "",
        first_offset: 0,
        turn: 0,
    }
}

fn first(algorithm: Algorithm, local_host: &str, hosts: &[&str], seed: u64) -> usize {
    let rules = Rules {
        local_host,
        ..rules(algorithm)
    };
    order(&candidates(hosts), &rules, generator(seed))[0]
}

/// How often each candidate came first in 10,000 selections.
fn shares(candidates: &[Candidate<'_>], rules: &Rules<'_>) -> Vec<u32> {
    let mut random = generator(0x9e37_79b9_7f4a_7c15);
    let mut shares = vec![0; candidates.len()];
    for turn in 0..10_000 {
        let rules = Rules { turn, ..*rules };
        shares[order(candidates, &rules, &mut random)[0]] += 1;
    }
    shares
}

const FOUR: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn differences_of_host_names() {
    assert_eq!(differences("example01-01-1", "example01-01-2"), 1);
    assert_eq!(differences("example01-01-1", "example01-02-2"), 2);
    // Only up to the shorter length.
    assert_eq!(differences("example01", "example01-01-1"), 0);
    assert_eq!(differences("", "anything"), 0);
    let hosts = ["example01-02-2", "example01-01-2"];
    for seed in 1..100 {
        let local = "example01-01-1";
        assert_eq!(first(Algorithm::NearestHostname, local, &hosts, seed), 1);
    }
}

#[test]
fn common_prefixes() {
    let local = "sfe301";
    let hosts = ["sde301", "sfe10101", "sde505"];
    assert_eq!(hosts.map(|host| common_prefix(local, host)), [1, 3, 1]);
    for seed in 1..100 {
        let algorithm = Algorithm::HostnameLongestCommonPrefix;
        assert_eq!(first(algorithm, local, &hosts, seed), 1);
    }
}

#[test]
fn common_suffixes() {
    let local = "et46gtghn.qc.localdomain";
    let hosts = ["tr676ddgh.td.localdomain", "ab999.qc.localdomain"];
    assert_eq!(hosts.map(|host| common_suffix(local, host)), [12, 15]);
    for seed in 1..100 {
        let algorithm = Algorithm::HostnameLongestCommonSuffix;
        assert_eq!(first(algorithm, local, &hosts, seed), 1);
    }
}

#[test]
fn edit_distances() {
    let local = "example-clickhouse-0-0";
    let hosts = [
        "ample-clickhouse-0-0",
        "example-clickhouse-1-10",
        "example-clickhouse-12-0",
    ];
    let distances = hosts.map(|host| levenshtein_distance(local, host));
    assert_eq!(distances, [2, 2, 2]);
    assert_eq!(levenshtein_distance("kitten", "sitting"), 3);
    assert_eq!(levenshtein_distance("", "abc"), 3);
    assert_eq!(levenshtein_distance("abc", ""), 3);
    let algorithm = Algorithm::HostnameLevenshteinDistance;
    for seed in 1..100 {
        let hosts = ["example-clickhouse-1-1", "example-clickhouse-0-1"];
        assert_eq!(first(algorithm, local, &hosts, seed), 1);
    }
}

/// Nothing in common anywhere, or everything: the random number decides.
#[test]
fn ties_are_spread_evenly() {
    let even = |shares: &[u32]| shares.iter().all(|share| (2300..2700).contains(share));
    for algorithm in [
        Algorithm::Random,
        Algorithm::NearestHostname,
        Algorithm::HostnameLevenshteinDistance,
        Algorithm::HostnameLongestCommonPrefix,
        Algorithm::HostnameLongestCommonSuffix,
    ] {
        let rules = Rules {
            local_host: "z",
            ..rules(algorithm)
        };
        let shares = shares(&candidates(&FOUR), &rules);
        assert!(even(&shares), "{algorithm:?}: {shares:?}");
    }
}

/// With one replica down in_order doubles the load of the next; first_or_random does not.
#[test]
fn a_failing_replica_moves_its_load() {
    let mut four = candidates(&FOUR);
    assert_eq!(shares(&four, &rules(Algorithm::InOrder)), [10_000, 0, 0, 0]);
    let all = shares(&four, &rules(Algorithm::FirstOrRandom));
    assert_eq!(all, [10_000, 0, 0, 0]);
    four[0].errors = 1;
    assert_eq!(shares(&four, &rules(Algorithm::InOrder)), [0, 10_000, 0, 0]);
    let rest = shares(&four, &rules(Algorithm::FirstOrRandom));
    assert_eq!(rest[0], 0);
    let even = rest[1..].iter().all(|share| (3000..3700).contains(share));
    assert!(even, "{rest:?}");
}

#[test]
fn first_or_random_has_an_offset() {
    for (offset, expected) in [(0, 0), (1, 1), (3, 3), (4, 0), (7, 3), (u64::MAX, 3)] {
        let rules = Rules {
            first_offset: offset,
            ..rules(Algorithm::FirstOrRandom)
        };
        let mut all = [0; 4];
        all[expected] = 10_000;
        assert_eq!(shares(&candidates(&FOUR), &rules), all, "offset {offset}");
    }
    // Behind the first, everything is random.
    let mut random = generator(7);
    let mut second = [0; 4];
    for _ in 0..9000 {
        let order = order(
            &candidates(&FOUR),
            &rules(Algorithm::FirstOrRandom),
            &mut random,
        );
        second[order[1]] += 1;
    }
    let even = second[1..].iter().all(|share| (2700..3300).contains(share));
    assert!(second[0] == 0 && even, "{second:?}");
}

#[test]
fn round_robin_goes_backwards_from_the_first() {
    let four = candidates(&FOUR);
    let turns: Vec<Vec<usize>> = (0..5)
        .map(|turn| {
            let rules = Rules {
                turn,
                ..rules(Algorithm::RoundRobin)
            };
            order(&four, &rules, generator(3))
        })
        .collect();
    let expected = [
        [0, 1, 2, 3],
        [3, 0, 1, 2],
        [2, 3, 0, 1],
        [1, 2, 3, 0],
        [0, 1, 2, 3],
    ];
    assert_eq!(turns, expected);
    assert_eq!(shares(&four, &rules(Algorithm::RoundRobin)), [2500; 4]);
}

/// Errors come before the priority, the priority before the algorithm.
#[test]
fn errors_then_priority_then_algorithm() {
    let mut four = candidates(&FOUR);
    four[0].errors = 2;
    four[1].priority = 5;
    four[2].errors = 1;
    let order = order(&four, &rules(Algorithm::InOrder), generator(1));
    assert_eq!(order, [3, 1, 2, 0]);
}

const MINUTE: ErrorRules = ErrorRules {
    half_life_s: 60,
    cap: 1000,
    ignored: 0,
};

#[test]
fn five_errors_with_a_half_life_of_a_second_are_gone_after_three() {
    let rules = ErrorRules {
        half_life_s: 1,
        ..MINUTE
    };
    let mut count = ErrorCount::default();
    for _ in 0..5 {
        count.fail(100, &rules);
    }
    assert_eq!((count.errors, count.recovery_s(100, &rules)), (5, 3));
    let left = [101, 102, 103].map(|now| {
        count.decay(now, &rules);
        count.errors
    });
    assert_eq!(left, [2, 1, 0]);
    assert_eq!(count.recovery_s(103, &rules), 0);
    // The same, if nobody looked in between.
    let mut late = ErrorCount::default();
    for _ in 0..5 {
        late.fail(100, &rules);
    }
    late.decay(103, &rules);
    assert_eq!(late.errors, 0);
}

#[test]
fn a_remainder_of_the_half_life_is_dropped() {
    let mut count = ErrorCount::default();
    for _ in 0..8 {
        count.fail(1000, &MINUTE);
    }
    count.decay(1059, &MINUTE);
    assert_eq!(count.errors, 8);
    assert_eq!(count.recovery_s(1059, &MINUTE), 4 * 60 - 59);
    count.decay(1119, &MINUTE);
    assert_eq!(count.errors, 4);
    count.decay(1178, &MINUTE);
    assert_eq!(count.errors, 4);
    count.decay(1179, &MINUTE);
    assert_eq!(count.errors, 2);
    // Hours later, and with a clock that was put back.
    count.decay(500, &MINUTE);
    assert_eq!(count.errors, 2);
    count.decay(1_000_000, &MINUTE);
    assert_eq!(count.errors, 0);
}

#[test]
fn errors_are_capped_and_some_are_ignored() {
    let rules = ErrorRules {
        half_life_s: 60,
        cap: 10,
        ignored: 3,
    };
    let mut count = ErrorCount::default();
    let effective: Vec<u32> = (0..12)
        .map(|_| {
            count.fail(5, &rules);
            count.effective(&rules)
        })
        .collect();
    assert_eq!(effective, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7]);
    assert_eq!(count.errors, 10);
    let zero = ErrorRules {
        half_life_s: 0,
        ..rules
    };
    count.decay(5, &zero);
    assert_eq!(count.errors, 0);
}

#[test]
fn slowdowns_have_no_cap_and_end_with_a_failure() {
    let rules = ErrorRules { cap: 2, ..MINUTE };
    let mut count = ErrorCount::default();
    for _ in 0..5 {
        count.slow_down(9, &rules);
    }
    assert_eq!((count.errors, count.slowdowns), (0, 5));
    count.decay(69, &rules);
    assert_eq!(count.slowdowns, 2);
    count.fail(70, &rules);
    assert_eq!((count.errors, count.slowdowns), (1, 0));
}

proptest! {
    #[test]
    fn the_order_names_everybody_once_and_obeys_errors_and_priority(
        replicas in prop::collection::vec(("[a-c]{0,6}", 0_u32..3, 0_i32..3), 0..12),
        algorithm in 0_usize..8,
        local_host in "[a-c]{0,6}",
        first_offset: u64,
        turn: u64,
        seed in 1_u64..,
    ) {
        let candidates: Vec<Candidate<'_>> = replicas
            .iter()
            .map(|(host, errors, priority)| Candidate { host, errors: *errors, priority: *priority })
            .collect();
        let algorithm = Algorithm::ALL[algorithm].0;
        let rules = Rules { algorithm, local_host: &local_host, first_offset, turn };
        let order = order(&candidates, &rules, generator(seed));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..candidates.len()).collect::<Vec<_>>());
        for pair in order.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(|position| {
                (candidates[position].errors, candidates[position].priority)
            });
            prop_assert!(a <= b);
        }
    }

    #[test]
    fn edit_distance_is_a_metric(a in "[ab]{0,8}", b in "[ab]{0,8}", c in "[ab]{0,8}") {
        let distance = levenshtein_distance;
        prop_assert_eq!(distance(&a, &b), distance(&b, &a));
        prop_assert_eq!(distance(&a, &b) == 0, a == b);
        prop_assert!(distance(&a, &c) <= distance(&a, &b) + distance(&b, &c));
        prop_assert!(distance(&a, &b) <= a.len().max(b.len()) as u64);
    }

    #[test]
    fn decay_never_raises_a_count(steps in prop::collection::vec((0_u64..200, any::<bool>()), 0..40)) {
        let (mut count, mut now) = (ErrorCount::default(), 1);
        for (seconds, fails) in steps {
            now += seconds;
            let before = count.errors;
            let expected = count.recovery_s(now, &MINUTE);
            let mut later = count;
            later.decay(now + expected, &MINUTE);
            prop_assert!(before == 0 || later.errors == 0);
            count.decay(now, &MINUTE);
            prop_assert!(count.errors <= before);
            if fails {
                let before = count.errors;
                count.fail(now, &MINUTE);
                prop_assert_eq!(count.errors, (before + 1).min(1000));
            }
        }
    }
}
