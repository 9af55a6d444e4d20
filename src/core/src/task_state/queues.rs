//! Lists of segments that still have something unassigned: one queue per owner, one bucket per
//! (owner, stealer).
//!
//! Doubly linked by index, so that a segment leaves both lists in constant time, from either end or
//! from the middle. Called by `assign` (and `layout` when it fills them); knows no process.
//!
//! Invariants: a segment is in both its lists exactly while `next < end`; a list's `granules` is
//! the sum over its segments; lists keep block order.

use super::layout::{Links, NO_REPLICA, NONE, Queue, Segment, TaskState};

#[derive(Clone, Copy)]
pub(super) enum Chain {
    Owner = 0,
    Bucket = 1,
}

/// Which end of a segment's remaining range a task is cut from. Owners read forward from the
/// front; stealers cut at the back, so that both keep one contiguous range each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

impl Queue {
    fn append(&mut self, segments: &mut [Segment], chain: Chain, index: u32) {
        let links = Links {
            previous: self.tail,
            next: NONE,
        };
        segments[index as usize].links[chain as usize] = links;
        match self.tail {
            NONE => self.head = index,
            tail => segments[tail as usize].links[chain as usize].next = index,
        }
        self.tail = index;
    }

    fn unlink(&mut self, segments: &mut [Segment], chain: Chain, index: u32) {
        let Links { previous, next } = segments[index as usize].links[chain as usize];
        match previous {
            NONE => self.head = next,
            previous => segments[previous as usize].links[chain as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => segments[next as usize].links[chain as usize].previous = previous,
        }
    }
}

impl TaskState<'_> {
    pub(super) fn bucket_index(&self, stealer: u16, owner: u16) -> usize {
        usize::from(stealer) * self.replicas.len() + usize::from(owner)
    }

    /// Puts a segment with its whole range at the end of its two lists.
    pub(super) fn append_segment(&mut self, index: u32) {
        let Segment {
            next,
            end,
            owner,
            stealer,
            ..
        } = self.segments[index as usize];
        let queue = &mut self.replicas[usize::from(owner)].queue;
        queue.append(self.segments, Chain::Owner, index);
        queue.granules += end - next;
        if stealer != NO_REPLICA {
            let bucket = self.bucket_index(stealer, owner);
            let bucket = &mut self.buckets[bucket];
            bucket.append(self.segments, Chain::Bucket, index);
            bucket.granules += end - next;
        }
    }

    /// Cuts up to `want` granules off the segment's remaining range; returns (first, how many).
    pub(super) fn cut_segment(&mut self, index: u32, want: u32, from: End) -> (u32, u32) {
        let segment = &mut self.segments[index as usize];
        let granules = want.min(segment.end - segment.next);
        let start = match from {
            End::Front => {
                segment.next += granules;
                segment.next - granules
            }
            End::Back => {
                segment.end -= granules;
                segment.end
            }
        };
        let empty = segment.next == segment.end;
        let (owner, stealer) = (segment.owner, segment.stealer);
        let queue = &mut self.replicas[usize::from(owner)].queue;
        queue.granules -= granules;
        if empty {
            queue.unlink(self.segments, Chain::Owner, index);
        }
        if stealer != NO_REPLICA {
            let bucket = self.bucket_index(stealer, owner);
            let bucket = &mut self.buckets[bucket];
            bucket.granules -= granules;
            if empty {
                bucket.unlink(self.segments, Chain::Bucket, index);
            }
        }
        self.header.unassigned -= granules;
        (start, granules)
    }
}
