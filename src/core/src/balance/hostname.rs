//! How near two host names are, in four ways. Characters, not bytes, although host names have only
//! ASCII ones.

/// Positions with different characters, up to the length of the shorter name.
pub fn differences(a: &str, b: &str) -> u64 {
    a.chars().zip(b.chars()).filter(|(a, b)| a != b).count() as u64
}

/// Characters of the longest common beginning.
pub fn common_prefix(a: &str, b: &str) -> u64 {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count() as u64
}

/// Characters of the longest common end.
pub fn common_suffix(a: &str, b: &str) -> u64 {
    let pairs = a.chars().rev().zip(b.chars().rev());
    pairs.take_while(|(a, b)| a == b).count() as u64
}

/// Fewest insertions, removals and replacements of single characters that make one the other.
pub fn levenshtein_distance(a: &str, b: &str) -> u64 {
    let other: Vec<char> = b.chars().collect();
    // Distances of the beginnings of `b` to the beginning of `a` that was looked at last.
    let mut row: Vec<u64> = (0..=other.len() as u64).collect();
    for (length, character) in (1_u64..).zip(a.chars()) {
        let mut diagonal = row[0];
        row[0] = length;
        for (index, candidate) in other.iter().enumerate() {
            let replaced = diagonal + u64::from(character != *candidate);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(row[index] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
