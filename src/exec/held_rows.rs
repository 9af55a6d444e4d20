//! Rows from a link that wait for their turn: for their task's end marker, or for the merge.
//!
//! They stay in the buffers in which libpq delivered them, up to work_mem; beyond that they go to
//! a temporary file, which temp_file_limit counts. Rows are handed out in place. The file belongs
//! to PostgreSQL's resource owner, so an ERROR removes it; `clear` does so in good order.

use crate::net::CopyBuffer;
use parallel_replicas_core::frame::{FRAME_HEADER_BYTES, next_row};
use pgrx::pg_sys;
use std::collections::VecDeque;
use std::ops::Deref;

/// Bytes of a minimal tuple before its data (htup_details.h SizeofMinimalTupleHeader).
pub const LEAST_TUPLE_BYTES: usize = std::mem::offset_of!(pg_sys::MinimalTupleData, t_bits);

/// One rows frame.
enum Batch {
    Buffer(CopyBuffer),
    /// Read back from the file. Words, because tuples want eight-byte alignment.
    Words {
        words: Vec<u64>,
        bytes: usize,
    },
}

impl Deref for Batch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Batch::Buffer(buffer) => buffer,
            Batch::Words { words, bytes } => {
                // SAFETY: the vector has at least so many bytes, initialised.
                unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), *bytes) }
            }
        }
    }
}

/// A damaged rows frame.
#[derive(Debug)]
pub struct Damaged;

/// First in, first out.
#[derive(Default)]
pub struct HeldRows {
    batches: VecDeque<CopyBuffer>,
    bytes: usize,
    /// Frames in the file come after those in memory.
    file: Option<Spill>,
    current: Option<(Batch, usize)>,
}

struct Spill {
    file: *mut pg_sys::BufFile,
    sizes: VecDeque<usize>,
    bytes: usize,
    /// Where the next frame is to be read.
    read_at: (i32, i64),
    at_end: bool,
}

impl HeldRows {
    /// Bytes in memory and in the file.
    pub fn total_bytes(&self) -> usize {
        self.bytes + self.file.as_ref().map_or(0, |spill| spill.bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.current.is_none()
            && self.batches.is_empty()
            && self
                .file
                .as_ref()
                .is_none_or(|spill| spill.sizes.is_empty())
    }

    /// Adds a rows frame. Beyond `memory_limit` bytes it goes to disk, in files that `context`
    /// keeps track of.
    pub fn push(&mut self, frame: CopyBuffer, memory_limit: usize, context: pg_sys::MemoryContext) {
        if self.file.is_none() && self.bytes + frame.len() <= memory_limit {
            self.bytes += frame.len();
            self.batches.push_back(frame);
            return;
        }
        let spill = self.file.get_or_insert_with(|| Spill::new(context));
        spill.write(&frame);
    }

    /// Takes over all of `other`, in order, and leaves it empty. Only frames in memory can be
    /// appended to something that is not empty; the rest is read back.
    pub fn append(
        &mut self,
        other: &mut HeldRows,
        memory_limit: usize,
        context: pg_sys::MemoryContext,
    ) {
        if self.is_empty() {
            self.clear();
            std::mem::swap(self, other);
            return;
        }
        for frame in other.batches.drain(..) {
            self.push(frame, memory_limit, context);
        }
        other.bytes = 0;
        if let Some(mut spill) = other.file.take() {
            let target = self.file.get_or_insert_with(|| Spill::new(context));
            while let Some(batch) = spill.read() {
                target.write(&batch);
            }
            spill.close();
        }
    }

    /// The next row, valid until the next call; None if there is none left.
    pub fn next(&mut self) -> Result<Option<*mut pg_sys::MinimalTupleData>, Damaged> {
        loop {
            if let Some((batch, offset)) = &mut self.current {
                let found = next_row(batch, *offset, LEAST_TUPLE_BYTES).map_err(|_| Damaged)?;
                if let Some((_, next)) = found {
                    let tuple = batch[*offset..].as_ptr().cast_mut().cast();
                    *offset = next;
                    return Ok(Some(tuple));
                }
                self.current = None;
            }
            if let Some(frame) = self.batches.pop_front() {
                self.bytes -= frame.len();
                self.current = Some((Batch::Buffer(frame), FRAME_HEADER_BYTES));
            } else if let Some(batch) = self.file.as_mut().and_then(Spill::read) {
                self.current = Some((batch, FRAME_HEADER_BYTES));
            } else {
                if let Some(spill) = self.file.take() {
                    spill.close();
                }
                return Ok(None);
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
        self.current = None;
        if let Some(spill) = self.file.take() {
            spill.close();
        }
    }
}

impl Spill {
    fn new(context: pg_sys::MemoryContext) -> Self {
        // SAFETY: the file object is allocated in the query's context and belongs to its resource
        // owner.
        let file = unsafe {
            let old = pg_sys::MemoryContextSwitchTo(context);
            pg_sys::PrepareTempTablespaces();
            let file = pg_sys::BufFileCreateTemp(false);
            pg_sys::MemoryContextSwitchTo(old);
            file
        };
        Spill {
            file,
            sizes: VecDeque::new(),
            bytes: 0,
            read_at: (0, 0),
            at_end: true,
        }
    }

    fn write(&mut self, frame: &[u8]) {
        // SAFETY: the file is open; the frame's bytes are valid.
        unsafe {
            if !self.at_end {
                pg_sys::BufFileSeek(self.file, 0, 0, libc::SEEK_END);
                self.at_end = true;
            }
            pg_sys::BufFileWrite(self.file, frame.as_ptr().cast_mut().cast(), frame.len());
        }
        self.sizes.push_back(frame.len());
        self.bytes += frame.len();
    }

    fn read(&mut self) -> Option<Batch> {
        let bytes = self.sizes.pop_front()?;
        self.bytes -= bytes;
        let mut words = vec![0_u64; bytes.div_ceil(8)];
        // SAFETY: the file is open; the vector has room.
        unsafe {
            pg_sys::BufFileSeek(self.file, self.read_at.0, self.read_at.1, libc::SEEK_SET);
            self.at_end = false;
            let got = pg_sys::BufFileRead(self.file, words.as_mut_ptr().cast(), bytes);
            if got != bytes {
                crate::error::raise(
                    pgrx::PgSqlErrorCode::ERRCODE_IO_ERROR,
                    "could not read rows of a replica back from a temporary file",
                    &format!("Read {got} of {bytes} bytes."),
                    "",
                );
            }
            pg_sys::BufFileTell(self.file, &mut self.read_at.0, &mut self.read_at.1);
        }
        Some(Batch::Words { words, bytes })
    }

    fn close(self) {
        // SAFETY: open, and not used again.
        unsafe { pg_sys::BufFileClose(self.file) };
    }
}
