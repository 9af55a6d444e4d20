//! What a table's file holds.

use pgrx::pg_sys;

/// Most empty blocks at a table's end that are looked at. What extends a table under contention adds up to
/// 512 at once (`RelationAddExtraBlocks` of hio.c).
const MAX_EMPTY_BLOCKS: u32 = 1024;

/// Blocks up to the last one that holds a row, dead or alive; 0 if the file ends with very many that hold
/// none, and for what is no heap.
///
/// Rows come into a block by WAL, so a standby has these blocks once it has replayed what was written when
/// this returns. Empty ones behind them are added without WAL, and may be missing there.
///
/// # Safety
/// The relation is open and locked.
pub unsafe fn filled_blocks(relation: pg_sys::Relation) -> u32 {
    // SAFETY: as the caller says; locked and pinned while it is looked at.
    unsafe {
        if (*(*relation).rd_rel).relam != pg_sys::HEAP_TABLE_AM_OID {
            return 0;
        }
        let blocks = blocks(relation);
        for filled in (blocks.saturating_sub(MAX_EMPTY_BLOCKS)..=blocks).rev() {
            pgrx::check_for_interrupts!();
            if filled == 0 || holds_rows(relation, filled - 1) {
                return filled;
            }
        }
        0
    }
}

/// Blocks of the file.
///
/// # Safety
/// The relation is open, and has a file.
pub unsafe fn blocks(relation: pg_sys::Relation) -> u32 {
    // SAFETY: as the caller says.
    unsafe { pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM) }
}

/// # Safety
/// The relation is an open heap, which has the block.
unsafe fn holds_rows(relation: pg_sys::Relation, block: u32) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let buffer = pg_sys::ReadBufferExtended(
            relation,
            pg_sys::ForkNumber::MAIN_FORKNUM,
            block,
            pg_sys::ReadBufferMode::RBM_NORMAL,
            std::ptr::null_mut(),
        );
        // Whoever changes it logs the change before letting go of this lock.
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let page = pg_sys::BufferGetPage(buffer);
        let holds = !pg_sys::PageIsNew(page) && pg_sys::PageGetMaxOffsetNumber(page) > 0;
        pg_sys::UnlockReleaseBuffer(buffer);
        holds
    }
}
