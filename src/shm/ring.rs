//! A bounded ring of entries in shared memory: the newest overwrite the oldest.
//!
//! What an entry means is its owner's affair (`logs`). Locking contract: one lock per ring, held to
//! copy bytes and to move one number; nobody allocates, waits or raises while holding it.

use pgrx::pg_sys;
use std::collections::TryReserveError;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What lies before the entries.
#[repr(C)]
struct Header {
    lock: pg_sys::LWLock,
    tranche: i32,
    capacity: u32,
    /// Entries ever written since the ring was made.
    written: u64,
}

/// Entries that are copied at once; writers have to wait so long.
const CHUNK_ENTRIES: usize = 64;

const HEADER_BYTES: usize = size_of::<Header>().next_multiple_of(8);

/// A ring of `T`, which is plain bytes: no pointers, no destructor.
pub struct Ring<T: Copy> {
    name: &'static CStr,
    area: AtomicPtr<Header>,
    entries: PhantomData<fn() -> T>,
}

impl<T: Copy> Ring<T> {
    /// `name` is that of the memory and of its lock.
    pub const fn new(name: &'static CStr) -> Self {
        Ring {
            name,
            area: AtomicPtr::new(std::ptr::null_mut()),
            entries: PhantomData,
        }
    }

    fn bytes(capacity: u32) -> usize {
        HEADER_BYTES + capacity as usize * size_of::<T>()
    }

    /// Asks for the memory. Only from the shared memory request hook.
    pub(super) fn request(&self, capacity: u32) {
        // SAFETY: the postmaster is the only process.
        unsafe { pg_sys::RequestAddinShmemSpace(Self::bytes(capacity)) };
    }

    /// Makes the ring, empty. Only from the shared memory startup hook.
    pub(super) fn create(&self, capacity: u32) {
        let mut found = false;
        // SAFETY: the postmaster is the only process; the memory has the size that was asked for.
        unsafe {
            let area =
                pg_sys::ShmemInitStruct(self.name.as_ptr(), Self::bytes(capacity), &mut found)
                    .cast::<Header>();
            if !found {
                (*area).tranche = pg_sys::LWLockNewTrancheId();
                (*area).capacity = capacity;
                (*area).written = 0;
                pg_sys::LWLockInitialize(&raw mut (*area).lock, (*area).tranche);
            }
            pg_sys::LWLockRegisterTranche((*area).tranche, self.name.as_ptr());
            self.area.store(area, Ordering::Relaxed);
        }
    }

    /// The memory, unless the library was not preloaded or the ring has no room at all.
    fn area(&self) -> Option<*mut Header> {
        let area = self.area.load(Ordering::Relaxed);
        // SAFETY: set once, to memory that lives as long as the process.
        (!area.is_null() && unsafe { (*area).capacity } > 0).then_some(area)
    }

    /// # Safety
    /// `area` is this ring's, `index` below its capacity.
    unsafe fn slot(area: *mut Header, index: u64) -> *mut T {
        // SAFETY: as the caller says; the entries follow the header.
        unsafe {
            area.cast::<u8>()
                .add(HEADER_BYTES)
                .cast::<T>()
                .add(index as usize)
        }
    }

    /// Writes an entry; answers whether it took the place of another.
    pub fn push(&self, entry: &T) -> bool {
        let Some(area) = self.area() else {
            return false;
        };
        // SAFETY: the lock makes header and entries ours.
        unsafe {
            let lock = &raw mut (*area).lock;
            pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
            let index = (*area).written % u64::from((*area).capacity);
            std::ptr::copy_nonoverlapping(entry, Self::slot(area, index), 1);
            let overwrites = (*area).written >= u64::from((*area).capacity);
            (*area).written += 1;
            pg_sys::LWLockRelease(lock);
            overwrites
        }
    }

    /// Copies of the entries that are to be kept, oldest first. What is overwritten while this goes on is
    /// left out, and so is what is written meanwhile.
    pub fn entries(&self, mut keep: impl FnMut(&T) -> bool) -> Result<Vec<T>, TryReserveError> {
        let mut entries = Vec::new();
        let Some(area) = self.area() else {
            return Ok(entries);
        };
        let mut chunk: Vec<T> = Vec::new();
        chunk.try_reserve_exact(CHUNK_ENTRIES)?;
        // Numbers of entries, counted from the first ever written.
        let mut next = 0;
        let mut end = None;
        loop {
            pgrx::check_for_interrupts!();
            // SAFETY: the lock keeps entries whole while they are copied, and what is copied was
            // written and lies in a row. There is room for it.
            unsafe {
                let capacity = u64::from((*area).capacity);
                let lock = &raw mut (*area).lock;
                pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
                let written = (*area).written;
                let end = *end.get_or_insert(written);
                next = written.saturating_sub(capacity).max(next);
                let index = next % capacity;
                let count = end
                    .saturating_sub(next)
                    .min(capacity - index)
                    .min(CHUNK_ENTRIES as u64);
                std::ptr::copy_nonoverlapping(
                    Self::slot(area, index),
                    chunk.as_mut_ptr(),
                    count as usize,
                );
                pg_sys::LWLockRelease(lock);
                chunk.set_len(count as usize);
                next += count;
            }
            if chunk.is_empty() {
                return Ok(entries);
            }
            for entry in chunk.drain(..).filter(|entry| keep(entry)) {
                entries.try_reserve(1)?;
                entries.push(entry);
            }
        }
    }
}
