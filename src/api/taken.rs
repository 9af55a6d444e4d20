//! Rows that replicas have sent, as values of this server.

use super::everywhere::Trouble;
use crate::net::{NetError, QueryResult};
use pgrx::{AnyElement, FromDatum, pg_sys};
use std::ffi::{CStr, c_char};

/// Memory that the rows of all replicas may take.
pub const BYTES_MAX: usize = 64 << 20;
/// What a row takes beside its values: its place in the list.
const ROW_BYTES: usize = size_of::<Row>();

/// Name of the replica, its host's name, and the row.
pub type Row = (Option<AnyElement>, Option<AnyElement>, Option<AnyElement>);

/// Of one type, in the memory context in which this was made.
pub struct Rows {
    pub taken: Vec<Row>,
    bytes: usize,
    row_type: pg_sys::Oid,
    shape: pg_sys::TupleDesc,
    context: pg_sys::MemoryContext,
}

impl Rows {
    pub fn of(row_type: pg_sys::Oid) -> Self {
        Rows {
            taken: Vec::new(),
            bytes: 0,
            row_type,
            // SAFETY: main thread, inside a transaction; the type is that of a relation.
            shape: unsafe { pg_sys::lookup_rowtype_tupdesc_copy(row_type, -1) },
            // SAFETY: plain global.
            context: unsafe { pg_sys::CurrentMemoryContext },
        }
    }

    fn columns(&self) -> &[pg_sys::FormData_pg_attribute] {
        // SAFETY: a description of that many columns, which lives as long as the rows.
        unsafe {
            let columns = (*self.shape).natts.max(0) as usize;
            (*self.shape).attrs.as_slice(columns)
        }
    }

    /// The columns of `r`, to be selected.
    pub fn names(&self) -> Vec<u8> {
        let columns = self.columns().iter().filter(|column| !column.attisdropped);
        let names = columns.map(|column| {
            // SAFETY: zero-terminated, as is the answer.
            let name = unsafe {
                let name = pg_sys::quote_identifier(column.attname.data.as_ptr());
                CStr::from_ptr(name).to_bytes()
            };
            [b"r.", name].concat()
        });
        names.collect::<Vec<_>>().join(&b", "[..])
    }

    /// Keeps a row of so many bytes.
    ///
    /// # Errors
    /// [`Trouble::TooMuch`], also on account of rows that have been dropped from `taken`.
    pub fn keep(&mut self, row: Row, bytes: usize) -> Result<(), Trouble> {
        self.bytes += bytes + ROW_BYTES;
        if self.bytes > BYTES_MAX {
            return Err(Trouble::TooMuch);
        }
        self.taken
            .try_reserve(1)
            .map_err(|_| NetError::OutOfMemory)?;
        self.taken.push(row);
        Ok(())
    }
}

/// Makes values of the texts of one replica.
pub struct Form {
    row_type: pg_sys::Oid,
    shape: pg_sys::TupleDesc,
    /// Places of the columns that have not been dropped.
    present: Vec<usize>,
    /// The functions that read the columns.
    readers: *mut pg_sys::AttInMetadata,
    texts: Vec<*mut c_char>,
    /// For what is made on the way.
    scratch: pg_sys::MemoryContext,
    /// For what stays.
    context: pg_sys::MemoryContext,
}

impl Form {
    /// Types may have functions of their own: they are executed with the rights of `reads_as`, or else the
    /// user's, and may not do everything, until the subtransaction ends. Domains are not checked: the values
    /// come from a column of the domain.
    ///
    /// # Safety
    /// Main thread, in a subtransaction that will be undone before another `Form` is made, and in its
    /// memory context; `rows` outlives this.
    pub unsafe fn new(rows: &Rows, reads_as: Option<pg_sys::Oid>) -> Self {
        let columns = rows.columns();
        let present = (0..columns.len()).filter(|place| !columns[*place].attisdropped);
        // SAFETY: as the caller says.
        let (readers, scratch) = unsafe {
            let (mut user, mut context) = (pg_sys::InvalidOid, 0);
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            let restricted = pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
            pg_sys::SetUserIdAndSecContext(reads_as.unwrap_or(user), context | restricted);
            let scratch = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"row of a replica".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            (
                pg_sys::TupleDescGetAttInMetadata(without_domains(rows.shape)),
                scratch,
            )
        };
        Form {
            row_type: rows.row_type,
            shape: rows.shape,
            texts: vec![std::ptr::null_mut(); columns.len()],
            present: present.collect(),
            readers,
            scratch,
            context: rows.context,
        }
    }

    /// A row of an answer, and its size. Raises what the values are not good for.
    pub fn row(&mut self, answer: &QueryResult) -> (Option<AnyElement>, usize) {
        for (column, place) in (0..).zip(&self.present) {
            self.texts[*place] = answer
                .c_text(0, column)
                .map_or(std::ptr::null_mut(), |text| {
                    verify(text.to_bytes());
                    text.as_ptr().cast_mut()
                });
        }
        // SAFETY: a text or null for each column; they are read only, and alive meanwhile. After an
        // error the subtransaction ends, and with it the scratch.
        unsafe {
            let before = pg_sys::CurrentMemoryContext;
            pg_sys::MemoryContextReset(self.scratch);
            pg_sys::CurrentMemoryContext = self.scratch;
            let tuple = pg_sys::BuildTupleFromCStrings(self.readers, self.texts.as_mut_ptr());
            pg_sys::CurrentMemoryContext = self.context;
            let row = pg_sys::heap_copy_tuple_as_datum(tuple, self.shape);
            pg_sys::CurrentMemoryContext = before;
            let bytes = pg_sys::GetMemoryChunkSpace(row.cast_mut_ptr());
            (value(row, self.row_type), bytes as usize)
        }
    }

    /// A text that stays.
    pub fn text(&self, bytes: &[u8]) -> Option<AnyElement> {
        verify(bytes);
        // SAFETY: so many bytes are there; the context outlives the subtransaction.
        unsafe {
            let before = pg_sys::CurrentMemoryContext;
            pg_sys::CurrentMemoryContext = self.context;
            let text = pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as i32);
            pg_sys::CurrentMemoryContext = before;
            value(pg_sys::Datum::from(text), pg_sys::TEXTOID)
        }
    }
}

/// A description of the same rows with the types below domains, which have the same form.
///
/// # Safety
/// `shape` is valid; inside a transaction.
unsafe fn without_domains(shape: pg_sys::TupleDesc) -> pg_sys::TupleDesc {
    // SAFETY: as the caller says; the copy is ours.
    unsafe {
        let copy = pg_sys::CreateTupleDescCopy(shape);
        for column in (*copy).attrs.as_mut_slice((*copy).natts.max(0) as usize) {
            if !column.attisdropped {
                column.atttypid =
                    pg_sys::getBaseTypeAndTypmod(column.atttypid, &mut column.atttypmod);
            }
        }
        copy
    }
}

/// Raises 22021 if the bytes are no text in this database's encoding.
fn verify(bytes: &[u8]) {
    // SAFETY: main thread; so many bytes are there.
    unsafe { pg_sys::pg_verifymbstr(bytes.as_ptr().cast(), bytes.len() as i32, false) };
}

fn value(datum: pg_sys::Datum, of: pg_sys::Oid) -> Option<AnyElement> {
    // SAFETY: a value that is not null, of this type.
    unsafe { AnyElement::from_polymorphic_datum(datum, false, of) }
}
