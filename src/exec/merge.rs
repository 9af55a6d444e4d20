//! The ordered form: merges the participants' sorted rows, as Gather Merge does.
//!
//! Two steps. First everybody finishes reading: links deliver their whole sorted run, local workers
//! produce their first row, and whatever a lost replica left undone is executed by the leader, each
//! round into a sorted run of its own. Only then is it known which runs there are, and a binary
//! heap merges them. Ties go to the stream with the lower number.

#![allow(ffi_unwind_calls)]

use super::parallel_replicas::{
    self, ParallelReplicasState, finish, lead, link_row, service, wait_for_events,
};
use super::state::{Next, State};
use crate::pg::{executor, ffi};
use pgrx::pg_sys;
use std::cmp::Ordering;

enum Source {
    Worker(*mut ffi::TupleQueueReader),
    Link(usize),
    Run(*mut pg_sys::Tuplestorestate),
}

struct Stream {
    source: Source,
    slot: *mut pg_sys::TupleTableSlot,
    /// The slot holds the stream's next row.
    filled: bool,
    ended: bool,
}

/// What the node keeps for merging.
pub struct Merge {
    streams: Vec<Stream>,
    /// Streams with a row, smallest first.
    heap: Vec<usize>,
    keys: *mut pg_sys::SortSupportData,
    key_count: usize,
    runs: Vec<*mut pg_sys::Tuplestorestate>,
    merging: bool,
    /// The first stream of the heap has given its row away.
    advance_first: bool,
}

/// The next row in order; null at the end. Unguarded; see `parallel_replicas`.
///
/// # Safety
/// The state is ours and started.
pub unsafe fn next(node: *mut ParallelReplicasState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        let state = (*node).state;
        if (*state).finished {
            return std::ptr::null_mut();
        }
        if (*state).merge.is_none() {
            begin(node);
        }
        if !is_merging(state) {
            gather_runs(node);
            check_read(node);
            open_streams(node);
            build_heap(state);
        } else if take_advance(state) {
            advance_first(node);
        }
        match first_slot(state) {
            Some(slot) => {
                set_advance(state);
                slot
            }
            None => {
                if (*state).active_readers() > 0 {
                    parallel_replicas::workers_done(node);
                }
                finish(node);
                std::ptr::null_mut()
            }
        }
    }
}

/// Gives back what merging has used; the slots are kept for the next execution.
///
/// # Safety
/// The state is ours.
pub unsafe fn end(state: &mut State) {
    if let Some(merge) = state.merge.take() {
        for run in merge.runs {
            // SAFETY: made by `new_run`, not used again.
            unsafe { pg_sys::tuplestore_end(run) };
        }
        for stream in merge.streams {
            // SAFETY: the executor frees the slot with the query.
            unsafe { executor::clear_slot(stream.slot) };
            state.spare_slots.push(stream.slot);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn begin(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours; sort support lives as long as the query.
    unsafe {
        let state = &mut *(*node).state;
        let context = (*(*node).css.ss.ps.state).es_query_cxt;
        let key_count = state.private.merge.len();
        let keys = pg_sys::MemoryContextAllocZero(
            context,
            key_count * size_of::<pg_sys::SortSupportData>(),
        )
        .cast::<pg_sys::SortSupportData>();
        for (index, key) in state.private.merge.iter().enumerate() {
            let support = keys.add(index);
            (*support).ssup_cxt = context;
            (*support).ssup_collation = pg_sys::Oid::from(key.collation);
            (*support).ssup_nulls_first = key.nulls_first;
            (*support).ssup_attno = key.column;
            pg_sys::PrepareSortSupportFromOrderingOp(pg_sys::Oid::from(key.operator), support);
        }
        let mut merge = Merge {
            streams: Vec::new(),
            heap: Vec::new(),
            keys,
            key_count,
            runs: Vec::new(),
            merging: false,
            advance_first: false,
        };
        for reader in state.readers() {
            merge.streams.push(stream(node, Source::Worker(*reader)));
        }
        state.merge = Some(merge);
    }
}

/// # Safety
/// The state is ours.
unsafe fn stream(node: *mut ParallelReplicasState, source: Source) -> Stream {
    // SAFETY: as the caller says; the executor frees the slot with the query.
    let slot = unsafe {
        if let Some(slot) = (*(*node).state).spare_slots.pop() {
            return Stream {
                source,
                slot,
                filled: false,
                ended: false,
            };
        }
        let estate = (*node).css.ss.ps.state;
        pg_sys::ExecInitExtraTupleSlot(
            estate,
            pg_sys::ExecGetResultType((*node).css.ss.ps.lefttree),
            &pg_sys::TTSOpsMinimalTuple,
        )
    };
    Stream {
        source,
        slot,
        filled: false,
        ended: false,
    }
}

/// First step: until nobody has anything left to read.
///
/// # Safety
/// The state is ours.
unsafe fn gather_runs(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        let state = (*node).state;
        loop {
            ffi::check_for_interrupts();
            let workers_pending = fill_workers(state);
            if service(node) {
                continue;
            }
            match ordered_step(node, workers_pending) {
                Next::Lead => lead_one_run(node),
                Next::Wait => wait_for_events(node),
                Next::Finished => return,
            }
        }
    }
}

/// Everything has been read, and is checked now: who wants the first rows only never gets to the end.
/// What a worker has read counts as delivered, since its rows are this merge's to take.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn check_read(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        let state = &*(*node).state;
        state.deliver_local(1..1 + state.workers_launched as u16);
        state.verify();
    }
}

/// Like `next_step`, where a worker that has its first row has finished reading.
unsafe fn ordered_step(node: *mut ParallelReplicasState, workers_pending: bool) -> Next {
    // SAFETY: the state is ours.
    unsafe {
        if workers_pending && !(*(*node).state).leading {
            return Next::Wait;
        }
        guarded_step(node)
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn guarded_step(node: *mut ParallelReplicasState) -> Next {
    // SAFETY: the state is ours.
    unsafe { (*(*node).state).next_step(false) }
}

/// The merge of a node that has begun one.
///
/// # Safety
/// `state` is valid, and no other reference to its merge is alive.
unsafe fn merge_of<'a>(state: *mut State) -> &'a mut Merge {
    // SAFETY: as the caller says.
    match unsafe { &mut (*state).merge } {
        Some(merge) => merge,
        None => unreachable!("begin() has run"),
    }
}

/// Reads the first row of each worker that has one; true if some worker has none yet.
///
/// # Safety
/// `state` is valid.
unsafe fn fill_workers(state: *mut State) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let mut pending = false;
        for stream in &mut merge_of(state).streams {
            if let Source::Worker(reader) = stream.source
                && !stream.filled
                && !stream.ended
            {
                let mut done = false;
                let tuple = ffi::TupleQueueReaderNext(reader, true, &mut done);
                if done {
                    stream.ended = true;
                } else if tuple.is_null() {
                    pending = true;
                } else {
                    ffi::exec_store_minimal_tuple(tuple, stream.slot, false);
                    stream.filled = true;
                }
            }
        }
        pending
    }
}

/// The leader executes the fragment once, into a run of its own.
///
/// # Safety
/// The state is ours.
unsafe fn lead_one_run(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        let run = new_run(node);
        loop {
            let slot = lead(node);
            if executor::is_null(slot) {
                return;
            }
            put_slot(run, slot);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn new_run(
    node: *mut ParallelReplicasState,
) -> *mut pg_sys::Tuplestorestate {
    // SAFETY: the state is ours; the store is allocated with the query.
    unsafe {
        let context = (*(*node).css.ss.ps.state).es_query_cxt;
        let old = pg_sys::MemoryContextSwitchTo(context);
        let run = pg_sys::tuplestore_begin_heap(false, false, pg_sys::work_mem);
        pg_sys::MemoryContextSwitchTo(old);
        merge_of((*node).state).runs.push(run);
        run
    }
}

unsafe extern "C-unwind" {
    #[link_name = "tuplestore_puttupleslot"]
    fn put_slot(run: *mut pg_sys::Tuplestorestate, slot: *mut pg_sys::TupleTableSlot);
    #[link_name = "tuplestore_gettupleslot"]
    fn get_slot(
        run: *mut pg_sys::Tuplestorestate,
        forward: bool,
        copy: bool,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> bool;
    #[link_name = "slot_getsomeattrs_int"]
    fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, attribute: i32);
}

/// Second step: a stream for each link that has delivered, and for each run of the leader.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn open_streams(node: *mut ParallelReplicasState) {
    // SAFETY: the state is ours.
    unsafe {
        let state = (*node).state;
        for (index, link) in (*state).links().iter().enumerate() {
            if !link.ready.is_empty() {
                let stream = stream(node, Source::Link(index));
                merge_of(state).streams.push(stream);
            }
        }
        for run in merge_of(state).runs.clone() {
            let stream = stream(node, Source::Run(run));
            merge_of(state).streams.push(stream);
        }
        merge_of(state).merging = true;
    }
}

/// # Safety
/// `state` is valid, its merge begun.
unsafe fn is_merging(state: *mut State) -> bool {
    // SAFETY: as the caller says.
    unsafe { merge_of(state).merging }
}

/// # Safety
/// As for [`is_merging`].
unsafe fn take_advance(state: *mut State) -> bool {
    // SAFETY: as the caller says.
    unsafe { std::mem::take(&mut merge_of(state).advance_first) }
}

/// # Safety
/// As for [`is_merging`].
unsafe fn set_advance(state: *mut State) {
    // SAFETY: as the caller says.
    unsafe { merge_of(state).advance_first = true };
}

/// # Safety
/// As for [`is_merging`].
unsafe fn first_slot(state: *mut State) -> Option<*mut pg_sys::TupleTableSlot> {
    // SAFETY: as the caller says.
    unsafe {
        let merge = merge_of(state);
        merge.heap.first().map(|stream| merge.streams[*stream].slot)
    }
}

/// Fills every stream and makes a heap of those that have a row.
///
/// # Safety
/// `state` is valid, its streams open.
unsafe fn build_heap(state: *mut State) {
    // SAFETY: as the caller says; comparisons may raise, and nothing with a destructor lives here.
    unsafe {
        for index in 0..merge_of(state).streams.len() {
            fill(state, index);
            if merge_of(state).streams[index].filled {
                push_heap(state, index);
            }
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn push_heap_entry(state: *mut State, index: usize) {
    // SAFETY: the state is valid.
    unsafe { merge_of(state).heap.push(index) };
}

/// # Safety
/// As for [`build_heap`].
unsafe fn push_heap(state: *mut State, index: usize) {
    // SAFETY: as the caller says.
    unsafe {
        push_heap_entry(state, index);
        let mut at = merge_of(state).heap.len() - 1;
        while at > 0 {
            let parent = (at - 1) / 2;
            let (child, above) = (merge_of(state).heap[at], merge_of(state).heap[parent]);
            if compare(state, child, above) != Ordering::Less {
                break;
            }
            merge_of(state).heap.swap(at, parent);
            at = parent;
        }
    }
}

/// # Safety
/// As for [`build_heap`].
unsafe fn sift_down(state: *mut State) {
    // SAFETY: as the caller says.
    unsafe {
        let length = merge_of(state).heap.len();
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            if left >= length {
                return;
            }
            let right = left + 1;
            let mut smaller = left;
            if right < length
                && compare(
                    state,
                    merge_of(state).heap[right],
                    merge_of(state).heap[left],
                ) == Ordering::Less
            {
                smaller = right;
            }
            if compare(
                state,
                merge_of(state).heap[smaller],
                merge_of(state).heap[at],
            ) != Ordering::Less
            {
                return;
            }
            merge_of(state).heap.swap(at, smaller);
            at = smaller;
        }
    }
}

/// Moves the heap's first stream on to its next row.
///
/// # Safety
/// The state is ours, its heap not empty.
unsafe fn advance_first(node: *mut ParallelReplicasState) {
    // SAFETY: as the caller says.
    unsafe {
        let state = (*node).state;
        let index = merge_of(state).heap[0];
        merge_of(state).streams[index].filled = false;
        fill(state, index);
        if !merge_of(state).streams[index].filled {
            let last = merge_of(state).heap.len() - 1;
            merge_of(state).heap.swap(0, last);
            merge_of(state).heap.truncate(last);
        }
        sift_down(state);
    }
}

/// Gets the stream's next row into its slot, waiting for a worker if need be.
///
/// # Safety
/// `state` is valid.
unsafe fn fill(state: *mut State, index: usize) {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        loop {
            let stream = &raw mut merge_of(state).streams[index];
            if (*stream).filled || (*stream).ended {
                return;
            }
            match (*stream).source {
                Source::Worker(_) => {
                    fill_workers(state);
                    if !(*stream).filled && !(*stream).ended {
                        ffi::check_for_interrupts();
                        wait_latch();
                    }
                }
                Source::Link(link) => {
                    let tuple = link_tuple(state, link);
                    (*stream).ended = tuple.is_null();
                    if !tuple.is_null() {
                        ffi::exec_store_minimal_tuple(tuple, (*stream).slot, false);
                        (*stream).filled = true;
                    }
                }
                Source::Run(run) => {
                    (*stream).filled = get_slot(run, true, false, (*stream).slot);
                    (*stream).ended = !(*stream).filled;
                }
            }
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn link_tuple(
    state: *mut State,
    link: usize,
) -> *mut pg_sys::MinimalTupleData {
    // SAFETY: the state is valid.
    unsafe {
        (*state)
            .dispatch
            .as_mut()
            .and_then(|dispatch| dispatch.links.get_mut(link))
            .and_then(|link| link_row(&mut link.ready))
            .unwrap_or(std::ptr::null_mut())
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn wait_latch() {
    crate::pg::wait::latch_or_sockets(&[], 60_000, pg_sys::WaitEventIPC::WAIT_EVENT_EXECUTE_GATHER);
}

/// Compares the rows of two streams, then their numbers.
///
/// # Safety
/// Both streams are filled.
unsafe fn compare(state: *mut State, left: usize, right: usize) -> Ordering {
    // SAFETY: as the caller says; slots are of the key's row type.
    unsafe {
        let merge = merge_of(state);
        let (a, b) = (merge.streams[left].slot, merge.streams[right].slot);
        for index in 0..merge.key_count {
            let key = merge.keys.add(index);
            let (value_a, null_a) = attribute(a, (*key).ssup_attno);
            let (value_b, null_b) = attribute(b, (*key).ssup_attno);
            let order = match (null_a, null_b) {
                (true, true) => 0,
                (true, false) if (*key).ssup_nulls_first => -1,
                (true, false) => 1,
                (false, true) if (*key).ssup_nulls_first => 1,
                (false, true) => -1,
                (false, false) => match (*key).comparator {
                    Some(comparator) => {
                        let order = comparator(value_a, value_b, key);
                        if (*key).ssup_reverse {
                            -(order.signum())
                        } else {
                            order
                        }
                    }
                    None => 0,
                },
            };
            if order != 0 {
                return order.cmp(&0);
            }
        }
        left.cmp(&right)
    }
}

/// slot_getattr.
///
/// # Safety
/// `slot` is filled and has the attribute.
unsafe fn attribute(slot: *mut pg_sys::TupleTableSlot, number: i16) -> (pg_sys::Datum, bool) {
    // SAFETY: as the caller says.
    unsafe {
        if number > (*slot).tts_nvalid {
            slot_getsomeattrs_int(slot, i32::from(number));
        }
        let index = number as usize - 1;
        (
            *(*slot).tts_values.add(index),
            *(*slot).tts_isnull.add(index),
        )
    }
}
