//! The set of orphans: granules that somebody held and lost or gave back.
//!
//! A bitmap with summary levels: bit i of a level says that word i of the level below is not
//! empty. Finding the first orphan costs one word per level (five for the largest table), so a
//! request never scans. Called by `assign`, `deliver` and `shrink` only.
//!
//! Invariant: a summary bit is set exactly when its word below is not zero.

/// 64^5 granules: more than `MAX_GRANULES`.
const MAX_LEVELS: usize = 5;

/// Words that the set needs for `granules` granules.
pub(super) fn orphan_words(granules: u32) -> usize {
    levels(granules).iter().sum()
}

/// Words per level, lowest first; unused levels are 0.
fn levels(granules: u32) -> [usize; MAX_LEVELS] {
    let mut words = [0; MAX_LEVELS];
    let mut below = granules as usize;
    for level in &mut words {
        *level = below.div_ceil(64);
        below = *level;
        if below <= 1 {
            break;
        }
    }
    words
}

/// A view over the words of the set.
#[derive(Debug)]
pub(super) struct Orphans<'a> {
    levels: [&'a mut [u64]; MAX_LEVELS],
    depth: usize,
}

impl<'a> Orphans<'a> {
    /// `words` must have exactly `orphan_words(granules)` words.
    pub(super) fn over(words: &'a mut [u64], granules: u32) -> Self {
        let mut rest = words;
        let mut depth = 0;
        let levels = levels(granules).map(|count| {
            depth += usize::from(count > 0);
            let (level, tail) = std::mem::take(&mut rest).split_at_mut(count);
            rest = tail;
            level
        });
        Self { levels, depth }
    }

    pub(super) fn insert(&mut self, granule: u32) {
        let mut index = granule as usize;
        for level in &mut self.levels[..self.depth] {
            level[index / 64] |= 1 << (index % 64);
            index /= 64;
        }
    }

    pub(super) fn remove(&mut self, granule: u32) {
        let mut index = granule as usize;
        for level in &mut self.levels[..self.depth] {
            level[index / 64] &= !(1 << (index % 64));
            if level[index / 64] != 0 {
                return;
            }
            index /= 64;
        }
    }

    pub(super) fn contains(&self, granule: u32) -> bool {
        let index = granule as usize;
        self.levels[0]
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// The lowest orphan.
    pub(super) fn first(&self) -> Option<u32> {
        let mut index = 0;
        for level in self.levels[..self.depth].iter().rev() {
            let word = level[index];
            if word == 0 {
                return None;
            }
            index = index * 64 + word.trailing_zeros() as usize;
        }
        (self.depth > 0).then_some(index as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_orphan_through_all_levels() {
        for granules in [1u32, 63, 64, 65, 4096, 4097, 300_000, 1 << 24] {
            let mut words = vec![0; orphan_words(granules)];
            let mut set = Orphans::over(&mut words, granules);
            assert_eq!(set.first(), None);
            let members = [granules - 1, granules / 2, granules / 3, 0];
            for (i, member) in members.iter().enumerate() {
                set.insert(*member);
                assert_eq!(set.first(), members[..=i].iter().min().copied());
            }
            while let Some(first) = set.first() {
                assert!(set.contains(first));
                set.remove(first);
                assert!(!set.contains(first));
            }
            assert!(words.iter().all(|w| *w == 0));
        }
        let mut none = [];
        assert_eq!(Orphans::over(&mut none, 0).first(), None);
    }
}
