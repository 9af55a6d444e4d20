//! Inline functions of the executor's headers, written out: slots, quals, projections, heap scans.
//! All unguarded; the rule about destructors in `ffi` holds for every caller.

#![allow(ffi_unwind_calls)]

use pgrx::pg_sys;

/// ExecClearTuple.
///
/// # Safety
/// `slot` is a valid slot.
#[inline(always)]
pub unsafe fn clear_slot(slot: *mut pg_sys::TupleTableSlot) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: every slot has its operations.
    unsafe {
        if let Some(clear) = (*(*slot).tts_ops).clear {
            clear(slot);
        }
    }
    slot
}

/// TupIsNull.
///
/// # Safety
/// `slot` is null or valid.
#[inline(always)]
pub unsafe fn is_null(slot: *const pg_sys::TupleTableSlot) -> bool {
    // SAFETY: checked for null first.
    slot.is_null() || unsafe { (*slot).tts_flags } & pg_sys::TTS_FLAG_EMPTY as u16 != 0
}

/// ResetExprContext.
///
/// # Safety
/// `context` is valid.
#[inline(always)]
pub unsafe fn reset_expr_context(context: *mut pg_sys::ExprContext) {
    // SAFETY: as the caller says. MemoryContextReset of an untouched context is what the inline
    // check of memutils.h avoids.
    unsafe {
        let memory = (*context).ecxt_per_tuple_memory;
        if !(*memory).isReset || !(*memory).firstchild.is_null() {
            memory_context_reset(memory);
        }
    }
}

unsafe extern "C-unwind" {
    #[link_name = "MemoryContextReset"]
    fn memory_context_reset(context: pg_sys::MemoryContext);
}

/// ExecEvalExprSwitchContext, result as a Datum.
///
/// # Safety
/// Both are valid and belong together.
#[inline(always)]
unsafe fn eval_in_per_tuple_memory(
    state: *mut pg_sys::ExprState,
    context: *mut pg_sys::ExprContext,
    is_null: &mut bool,
) -> pg_sys::Datum {
    // SAFETY: as the caller says.
    unsafe {
        let old = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*context).ecxt_per_tuple_memory;
        let value = match (*state).evalfunc {
            Some(function) => function(state, context, is_null),
            None => pg_sys::Datum::null(),
        };
        pg_sys::CurrentMemoryContext = old;
        value
    }
}

/// ExecQual: does the tuple in the context pass?
///
/// # Safety
/// `state` is null or a qualification, `context` is valid.
#[inline(always)]
pub unsafe fn qual_passes(
    state: *mut pg_sys::ExprState,
    context: *mut pg_sys::ExprContext,
) -> bool {
    if state.is_null() {
        return true;
    }
    let mut is_null = false;
    // SAFETY: as the caller says; a qualification never yields NULL.
    unsafe { eval_in_per_tuple_memory(state, context, &mut is_null) }.value() != 0
}

/// ExecProject.
///
/// # Safety
/// `projection` is valid, its context filled.
#[inline(always)]
pub unsafe fn project(projection: *mut pg_sys::ProjectionInfo) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as the caller says.
    unsafe {
        let context = (*projection).pi_exprContext;
        let state = &raw mut (*projection).pi_state;
        let slot = (*state).resultslot;
        clear_slot(slot);
        let mut is_null = false;
        eval_in_per_tuple_memory(state, context, &mut is_null);
        (*slot).tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
        (*slot).tts_nvalid = (*(*slot).tts_tupleDescriptor).natts as i16;
        slot
    }
}

/// Starts a heap scan that never joins a synchronised scan: ranges must begin where they say.
///
/// # Safety
/// `relation` is open and locked, `snapshot` stays registered for the scan's life.
pub unsafe fn begin_heap_scan(
    relation: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
) -> pg_sys::TableScanDesc {
    let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;
    // SAFETY: as the caller says; the relation is a heap, so the method exists.
    unsafe {
        match (*(*relation).rd_tableam).scan_begin {
            Some(begin) => begin(
                relation,
                snapshot,
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            ),
            None => std::ptr::null_mut(),
        }
    }
}

/// Sets the scan to `blocks` blocks from `start`, clamped to what the relation has here: a heap
/// scan would go on at block 0 when it passes the end. Returns whether any block is left.
///
/// `ring`: a table that is large for the buffers is read through a few of them only, as PostgreSQL does
/// in sequential scans. May allocate, in the current memory context, what the scan keeps.
///
/// # Safety
/// `scan` came from [`begin_heap_scan`].
pub unsafe fn set_heap_range(
    scan: pg_sys::TableScanDesc,
    start: u32,
    blocks: u32,
    ring: bool,
) -> bool {
    // SAFETY: as the caller says. The rescan takes the relation's present size into rs_nblocks.
    unsafe {
        if let Some(rescan) = (*(*(*scan).rs_rd).rd_tableam).scan_rescan {
            rescan(scan, std::ptr::null_mut(), true, ring, false, true);
        }
        let present = (*scan.cast::<pg_sys::HeapScanDescData>()).rs_nblocks;
        if start >= present || blocks == 0 {
            return false;
        }
        heap_set_scan_limits(scan, start, blocks.min(present - start));
        true
    }
}

/// Drops the place of an index scan, and the pages that it holds. Of other indexes than
/// b-trees and hashes the place stays: they hold no page of their own between two rows of a plain scan.
///
/// # Safety
/// `scan` is null or valid, and is rescanned before it is used again.
pub unsafe fn forget_index_position(scan: pg_sys::IndexScanDesc) {
    // SAFETY: as the caller says; the keys are as many as the scan says.
    unsafe {
        if scan.is_null() {
            return;
        }
        let fetch = (*scan).xs_heapfetch;
        if !fetch.is_null()
            && let Some(reset) = (*(*(*fetch).rel).rd_tableam).index_fetch_reset
        {
            reset(fetch);
        }
        // The rescan keeps its keys. It looks into those that are arrays, which may have been values
        // of the outer row that is gone.
        let (keys, count) = ((*scan).keyData, (*scan).numberOfKeys.max(0) as usize);
        let has_array =
            (0..count).any(|key| (*keys.add(key)).sk_flags & pg_sys::SK_SEARCHARRAY as i32 != 0);
        let access_method = (*(*(*scan).indexRelation).rd_rel).relam;
        if matches!(access_method, pg_sys::BTREE_AM_OID | pg_sys::HASH_AM_OID) && !has_array {
            index_rescan(
                scan,
                std::ptr::null_mut(),
                (*scan).numberOfKeys,
                std::ptr::null_mut(),
                (*scan).numberOfOrderBys,
            );
        }
    }
}

unsafe extern "C-unwind" {
    fn index_rescan(
        scan: pg_sys::IndexScanDesc,
        keys: pg_sys::ScanKey,
        key_count: std::ffi::c_int,
        order_bys: pg_sys::ScanKey,
        order_by_count: std::ffi::c_int,
    );
    #[link_name = "heap_setscanlimits"]
    fn heap_set_scan_limits(scan: pg_sys::TableScanDesc, start: u32, blocks: u32);
}

/// The scan's next visible tuple into `slot`; false at the end of the range.
///
/// # Safety
/// `scan` came from [`begin_heap_scan`], `slot` is of the table's own slot type.
#[inline(always)]
pub unsafe fn next_tuple(scan: pg_sys::TableScanDesc, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: as the caller says; heap tables have the method.
    unsafe {
        (*slot).tts_tableOid = (*(*scan).rs_rd).rd_id;
        match (*(*(*scan).rs_rd).rd_tableam).scan_getnextslot {
            Some(next) => next(scan, pg_sys::ScanDirection::ForwardScanDirection, slot),
            None => false,
        }
    }
}

/// Ends the scan.
///
/// # Safety
/// `scan` came from [`begin_heap_scan`] and is not used again.
pub unsafe fn end_heap_scan(scan: pg_sys::TableScanDesc) {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(end) = (*(*(*scan).rs_rd).rd_tableam).scan_end {
            end(scan);
        }
    }
}
