//! The words of the task state: what lies where, how it is made and how it is checked.
//!
//! Order: header, replicas, processes, buckets, segments, orphan bitmap, one word per granule.
//! Everything about the sizes follows from the header's first part, which never changes after
//! `init` and carries a checksum; `attach` checks it and then trusts the rest.
//!
//! Not here: any rule about who gets what. Called by the rest of `task_state`.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ahead::Ahead;
use super::orphans::{Orphans, orphan_words};
use super::{PART_BLOCKS, ReplicaSpec, ScanSpec, Stage, TaskError};
use crate::rendezvous::{MAX_REPLICAS, Rendezvous};

/// Most processes of one scan: what 13 bits of a granule's word can name.
pub const MAX_PROCESSES: usize = 1 << 13;
/// Most granules of one scan: PostgreSQL's largest table (32 TiB) in granules of 64 blocks.
pub const MAX_GRANULES: u32 = 1 << 26;

const MAGIC: u64 = u64::from_le_bytes(*b"PRtasks\0");
/// Raise it with every change of the structs below.
const LAYOUT_VERSION: u32 = 3;

/// No segment, no granule.
pub(super) const NONE: u32 = u32::MAX;
/// No replica.
pub(super) const NO_REPLICA: u16 = u16::MAX;

/// Never changes after `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Fixed {
    magic: u64,
    layout_version: u32,
    pub(super) granules: u32,
    pub(super) segment_granules: u32,
    pub(super) segments: u32,
    pub(super) replicas: u32,
    pub(super) processes: u32,
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub(super) fixed: Fixed,
    fixed_checksum: u64,
    /// Sum of the `counted_rate` of all processes.
    pub(super) rate: u64,
    pub(super) next_task: u32,
    /// Granules in no task: remaining ranges of segments, and orphans.
    pub(super) unassigned: u32,
    pub(super) delivered: u32,
    /// Granules handed out and not yet worked through, over all processes.
    pub(super) unworked: u32,
    pub(super) live_processes: u32,
    pub(super) ramp: u32,
    /// Granules worked through at the last `take_progress`.
    shown: u32,
    padding: u32,
}

/// Head and tail of a list of segments, and the granules that remain in them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Queue {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) granules: u32,
    padding: u32,
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ReplicaSlot {
    pub(super) queue: Queue,
    /// Sum of the `counted_rate` of its processes.
    pub(super) rate: u64,
    pub(super) live: u32,
    padding: u32,
}

/// A task that a process has not worked through; `granules` is 0 when there is none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(super) struct Run {
    pub(super) id: u32,
    pub(super) start: u32,
    pub(super) granules: u32,
}

impl Run {
    pub(super) fn end(self) -> u32 {
        self.start.saturating_add(self.granules)
    }
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ProcessSlot {
    /// When it began to work on `current`.
    pub(super) work_start_micros: u64,
    /// Measured work, decaying: 1/1024 granules and the microseconds that they took.
    pub(super) measured_granules: u64,
    pub(super) measured_micros: u64,
    /// Its part in the sums of rates: its rate while it takes part, 0 while it is idle or lost.
    pub(super) counted_rate: u64,
    pub(super) current: Run,
    pub(super) ahead: Ahead,
    /// The granule of `current` that it is reading, as far as is known.
    pub(super) position: u32,
    /// The task that it has been asked to shrink, 0 for none.
    pub(super) shrinking: u32,
    /// Tasks with a lower id that it holds are delivered (`deliver_all` in one step).
    pub(super) delivered_before: u32,
    pub(super) held: u32,
    pub(super) ramp: u32,
    pub(super) requests: u32,
    pub(super) tasks: u32,
    pub(super) lost_granules: u32,
    pub(super) given_back: u32,
    /// Granules held or delivered, by stage.
    pub(super) by_stage: [u32; 3],
    pub(super) replica: u16,
    pub(super) lost: u8,
    /// It asks `may_continue`, so it can be stopped at once.
    pub(super) polls: u8,
    /// Most granules of its next task, because of what its rows take; 0: no limit.
    pub(super) most: u32,
    padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Links {
    pub(super) previous: u32,
    pub(super) next: u32,
}

/// `next .. end` is what remains of the segment for its first assignment.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Segment {
    pub(super) next: u32,
    pub(super) end: u32,
    pub(super) owner: u16,
    pub(super) stealer: u16,
    padding: u32,
    /// In the owner's queue and in the bucket of (owner, stealer).
    pub(super) links: [Links; 2],
}

/// The word of a granule that a task starts at; all other granules have 0.
/// Bits: task id 32, granules - 1 in 16, delivered 1, stage 2 (1..=3), process 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: u32,
    pub(super) granules: u32,
    pub(super) delivered: bool,
    pub(super) stage: Stage,
    pub(super) process: u16,
}

/// What 16 bits of a granule's word can count.
pub(super) const MAX_TASK_GRANULES: u32 = 1 << 16;

impl Head {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.id) << 32
            | u64::from((self.granules - 1) & 0xffff) << 16
            | u64::from(self.delivered) << 15
            | (self.stage as u64 + 1) << 13
            | u64::from(self.process & 0x1fff)
    }

    pub(super) fn unpack(word: u64) -> Option<Self> {
        let stage = match word >> 13 & 3 {
            1 => Stage::Own,
            2 => Stage::StolenByHash,
            3 => Stage::StolenRest,
            _ => return None,
        };
        Some(Self {
            id: (word >> 32) as u32,
            granules: (word >> 16 & 0xffff) as u32 + 1,
            delivered: word >> 15 & 1 == 1,
            stage,
            process: (word & 0x1fff) as u16,
        })
    }
}

/// The state of one scan, laid over memory of the caller.
#[derive(Debug)]
pub struct TaskState<'a> {
    pub(super) header: &'a mut Header,
    pub(super) replicas: &'a mut [ReplicaSlot],
    pub(super) processes: &'a mut [ProcessSlot],
    /// Segments by (stealer, owner): index stealer * replicas + owner.
    pub(super) buckets: &'a mut [Queue],
    pub(super) segments: &'a mut [Segment],
    pub(super) orphans: Orphans<'a>,
    pub(super) heads: &'a mut [u64],
}

/// Words of memory that the state of this scan needs: 8 bytes per granule and a little more.
pub fn size_words(scan: &ScanSpec, replicas: usize, processes: usize) -> Result<usize, TaskError> {
    Ok(Fixed::new(scan, replicas, processes)?.words())
}

/// Granules per segment when nobody sets it. By table size alone, so that the map of a table is the same
/// in every query, and in steps of four, so that a growing table changes its map seldom.
///
/// Many segments divide a table evenly: with s of them each, a replica is off by sqrt(s), and some
/// 0.4 / sqrt(s) of the granules are stolen. But a task is never larger than a segment, and one of a
/// single granule may be shorter than the round trip that fetches the next, and than what the operating
/// system reads ahead. So a table gets 1024 segments before they grow to 16 and 64 granules, and
/// 4 granules as soon as that leaves 128.
fn automatic_segment_granules(granules: u32) -> u32 {
    [(64, 1024), (16, 1024), (4, 128)]
        .into_iter()
        .find(|(size, segments)| granules / size >= *segments)
        .map_or(1, |(size, _)| size)
}

impl Fixed {
    fn new(scan: &ScanSpec, replicas: usize, processes: usize) -> Result<Self, TaskError> {
        if !scan.granule_blocks.is_power_of_two() || scan.granule_blocks > PART_BLOCKS {
            return Err(TaskError::GranuleBlocks(scan.granule_blocks));
        }
        if scan.segment_granules != 0 && !scan.segment_granules.is_power_of_two() {
            return Err(TaskError::SegmentGranules(scan.segment_granules));
        }
        if replicas == 0 || replicas > MAX_REPLICAS {
            return Err(TaskError::ReplicaCount {
                given: replicas,
                max: MAX_REPLICAS,
            });
        }
        if processes == 0 || processes > MAX_PROCESSES {
            return Err(TaskError::ProcessCount {
                given: processes,
                max: MAX_PROCESSES,
            });
        }
        let granules = scan.blocks.div_ceil(scan.granule_blocks);
        if granules > MAX_GRANULES {
            return Err(TaskError::GranuleCount {
                granules,
                max: MAX_GRANULES,
            });
        }
        let segment_granules = match scan.segment_granules {
            0 => automatic_segment_granules(granules),
            given => given,
        }
        .min(PART_BLOCKS / scan.granule_blocks);
        Ok(Self {
            magic: MAGIC,
            layout_version: LAYOUT_VERSION,
            granules,
            segment_granules,
            segments: granules.div_ceil(segment_granules),
            replicas: replicas as u32,
            processes: processes as u32,
        })
    }

    /// Words of each section, in their order.
    fn sections(&self) -> [usize; 7] {
        let (replicas, processes) = (self.replicas as usize, self.processes as usize);
        [
            words_of::<Header>(1),
            words_of::<ReplicaSlot>(replicas),
            words_of::<ProcessSlot>(processes),
            words_of::<Queue>(replicas * replicas),
            words_of::<Segment>(self.segments as usize),
            orphan_words(self.granules),
            self.granules as usize,
        ]
    }

    fn words(&self) -> usize {
        self.sections().iter().sum()
    }

    fn checksum(&self) -> u64 {
        xxh3_64(self.as_bytes())
    }

    /// Whether `sections` may be computed from it at all.
    fn plausible(&self) -> bool {
        (1..=MAX_REPLICAS as u32).contains(&self.replicas)
            && (1..=MAX_PROCESSES as u32).contains(&self.processes)
            && self.granules <= MAX_GRANULES
            && self.segment_granules.is_power_of_two()
            && self.segments == self.granules.div_ceil(self.segment_granules)
    }
}

const fn words_of<T>(count: usize) -> usize {
    // Every struct here is a whole number of words: see the assertions below.
    count * size_of::<T>() / size_of::<u64>()
}

const _: () = {
    assert!(size_of::<Header>() == 80);
    assert!(size_of::<ReplicaSlot>() == 32);
    assert!(size_of::<ProcessSlot>() == 296);
    assert!(size_of::<Queue>() == 16);
    assert!(size_of::<Segment>() == 32);
};

impl Queue {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        granules: 0,
        padding: 0,
    };
}

/// Cuts `count` words off the front of `rest`.
fn cut<'a>(rest: &mut &'a mut [u64], count: usize) -> Result<&'a mut [u64], TaskError> {
    let given = rest.len();
    let (front, back) =
        std::mem::take(rest)
            .split_at_mut_checked(count)
            .ok_or(TaskError::MemoryTooSmall {
                given,
                needed: count,
            })?;
    *rest = back;
    Ok(front)
}

/// Words as structs; both are aligned to 8 at most, and sizes were computed by `words_of`.
fn typed<T>(words: &mut [u64]) -> Result<&mut [T], TaskError>
where
    T: FromBytes + IntoBytes + KnownLayout,
{
    <[T]>::mut_from_bytes(words.as_mut_bytes()).map_err(|_| TaskError::Damaged("section size"))
}

impl<'a> TaskState<'a> {
    /// Lays a fresh state over `memory` (of at least [`size_words`] words, content irrelevant).
    /// `processes[i]` is the replica that process i works for. All replicas start live: one that
    /// has not asked for anything yet is simply the first to be stolen from.
    pub fn init(
        memory: &'a mut [u64],
        scan: &ScanSpec,
        replicas: &[ReplicaSpec<'_>],
        processes: &[u16],
    ) -> Result<Self, TaskError> {
        let fixed = Fixed::new(scan, replicas.len(), processes.len())?;
        if let Some(process) = processes
            .iter()
            .position(|r| usize::from(*r) >= replicas.len())
        {
            let replica = processes[process];
            return Err(TaskError::ProcessReplica { process, replica });
        }
        let map = Rendezvous::new(replicas)?;
        let (given, needed) = (memory.len(), fixed.words());
        let words = memory
            .get_mut(..needed)
            .ok_or(TaskError::MemoryTooSmall { given, needed })?;
        words.fill(0);
        let mut state = Self::over(words, &fixed)?;
        state.fill(fixed, processes);
        state.place_segments(scan, &map);
        Ok(state)
    }

    /// Takes a view of a state that `init` made, perhaps in another process. Costs no more than
    /// the checks of the header, so it may be done for every single call.
    pub fn attach(memory: &'a mut [u64]) -> Result<Self, TaskError> {
        let (header, _) =
            Header::ref_from_prefix(memory.as_bytes()).map_err(|_| TaskError::MemoryTooSmall {
                given: memory.len(),
                needed: words_of::<Header>(1),
            })?;
        let fixed = header.fixed;
        if fixed.magic != MAGIC {
            return Err(TaskError::NotTaskState);
        }
        if fixed.layout_version != LAYOUT_VERSION {
            let (found, expected) = (fixed.layout_version, LAYOUT_VERSION);
            return Err(TaskError::LayoutVersion { found, expected });
        }
        if header.fixed_checksum != fixed.checksum() {
            return Err(TaskError::Damaged("checksum of the header"));
        }
        if !fixed.plausible() {
            return Err(TaskError::Damaged("sizes in the header"));
        }
        let (given, needed) = (memory.len(), fixed.words());
        let words = memory
            .get_mut(..needed)
            .ok_or(TaskError::MemoryTooSmall { given, needed })?;
        Self::over(words, &fixed)
    }

    fn over(words: &'a mut [u64], fixed: &Fixed) -> Result<Self, TaskError> {
        let [
            header,
            replicas,
            processes,
            buckets,
            segments,
            orphans,
            heads,
        ] = fixed.sections();
        let mut rest = words;
        let header = typed::<Header>(cut(&mut rest, header)?)?
            .first_mut()
            .ok_or(TaskError::Damaged("no header"))?;
        Ok(Self {
            header,
            replicas: typed(cut(&mut rest, replicas)?)?,
            processes: typed(cut(&mut rest, processes)?)?,
            buckets: typed(cut(&mut rest, buckets)?)?,
            segments: typed(cut(&mut rest, segments)?)?,
            orphans: Orphans::over(cut(&mut rest, orphans)?, fixed.granules),
            heads: cut(&mut rest, heads)?,
        })
    }

    fn fill(&mut self, fixed: Fixed, processes: &[u16]) {
        self.header.fixed = fixed;
        self.header.fixed_checksum = fixed.checksum();
        self.header.next_task = 1;
        self.header.live_processes = fixed.processes;
        for replica in self.replicas.iter_mut() {
            replica.queue = Queue::EMPTY;
            replica.live = 1;
        }
        self.buckets.fill(Queue::EMPTY);
        for (slot, replica) in self.processes.iter_mut().zip(processes) {
            slot.replica = *replica;
            slot.ramp = 1;
        }
    }

    fn place_segments(&mut self, scan: &ScanSpec, map: &Rendezvous) {
        let Fixed {
            granules,
            segment_granules,
            segments,
            ..
        } = self.header.fixed;
        for index in 0..segments {
            let next = index * segment_granules;
            let start_block = next * scan.granule_blocks;
            let placement = map.place(scan.database, scan.relfilenode, start_block);
            let segment = &mut self.segments[index as usize];
            segment.next = next;
            segment.end = (next + segment_granules).min(granules);
            segment.owner = placement.owner;
            segment.stealer = placement.stealer.unwrap_or(NO_REPLICA);
            self.append_segment(index);
        }
        self.header.unassigned = granules;
    }

    pub(super) fn slot(&mut self, process: u16) -> Result<&mut ProcessSlot, TaskError> {
        let slot = self.processes.get_mut(usize::from(process));
        slot.ok_or(TaskError::UnknownProcess(process))
    }

    /// Granules of the scan.
    pub fn selected(&self) -> u32 {
        self.header.fixed.granules
    }

    /// Granules that nobody holds.
    pub fn unassigned(&self) -> u32 {
        self.header.unassigned
    }

    /// Granules whose rows have not been passed on, held or not.
    pub fn undelivered(&self) -> u32 {
        self.header.fixed.granules - self.header.delivered
    }

    /// Granules that have been read, as far as is known, whether or not their rows were passed on.
    pub fn worked_through(&self) -> u32 {
        let unread = self.header.unassigned + self.header.unworked;
        self.header.fixed.granules.saturating_sub(unread)
    }

    /// Granules worked through since the last call; less than 0 if more were lost.
    pub fn take_progress(&mut self) -> i64 {
        let worked = self.worked_through();
        let before = std::mem::replace(&mut self.header.shown, worked);
        i64::from(worked) - i64::from(before)
    }

    /// Granules per segment of this scan.
    pub fn segment_granules(&self) -> u32 {
        self.header.fixed.segment_granules
    }

    /// Owner and stealer of each segment in turn; for tests and EXPLAIN.
    pub fn placements(&self) -> impl Iterator<Item = (u16, Option<u16>)> + '_ {
        self.segments
            .iter()
            .map(|s| (s.owner, (s.stealer != NO_REPLICA).then_some(s.stealer)))
    }
}
