//! The exchange of frames with the coordinator, from inside a procedure.
//!
//! Reading never blocks inside a message boundary that interrupts could not reach: between messages
//! the process waits for latch and socket, so that a recovery conflict, a cancel or the end of the
//! postmaster is served at once. A blocking read would keep replay from going on.
//!
//! Writing appends to PostgreSQL's send buffer; `flush` empties it while serving interrupts. No
//! buffer pin may be held by the caller then, see `fragment`.

#![allow(ffi_unwind_calls)]

use crate::pg::ffi;
use crate::pg::proc::{self, comm_methods};
use crate::shm::running;
use parallel_replicas_core::frame::{self, ToReplica};
use pgrx::{PgSqlErrorCode, pg_sys};
use serde::Serialize;
use std::ffi::{c_char, c_int};

/// Answers CALL with CopyBothResponse: from now on both sides send CopyData.
pub fn start() {
    // Overall format binary, no columns.
    put(b'W', &[1, 0, 0]);
    flush();
}

/// Ends this side's direction.
pub fn end() {
    put(b'c', &[]);
    flush();
}

/// Sends a control frame.
pub fn send<T: Serialize>(frame: &T) {
    put_frame(frame);
    flush();
}

/// Sends a control frame without waiting for it to leave.
pub fn put_frame<T: Serialize>(frame: &T) {
    match frame::encode(frame) {
        Ok(bytes) => send_bytes(&bytes),
        Err(error) => crate::error::internal(format!("frame cannot be sent: {error}")),
    }
}

/// Sends an encoded frame without waiting for it to leave.
pub fn send_bytes(bytes: &[u8]) {
    put(b'd', bytes);
}

fn put(kind: u8, bytes: &[u8]) {
    // SAFETY: copies into the send buffer; may raise out of memory, with no destructor alive here.
    unsafe {
        (comm_methods().putmessage_noblock)(
            kind as c_char,
            bytes.as_ptr().cast::<c_char>(),
            bytes.len(),
        );
    }
}

/// Waits until everything is sent.
pub fn flush() {
    let methods = comm_methods();
    let mut waits = false;
    loop {
        // SAFETY: plain calls on the backend's own connection.
        let pending = unsafe {
            if (methods.flush_if_writable)() != 0 {
                lost();
            }
            (methods.is_send_pending)()
        };
        if !pending {
            break;
        }
        begin_to_wait(&mut waits);
        wait(pg_sys::WL_SOCKET_WRITEABLE, -1);
    }
    work_again(waits);
}

/// Whoever asks whether this process works is told how much CPU time it had used until now. After an
/// error that stands until the next fragment begins.
fn begin_to_wait(waits: &mut bool) {
    if !std::mem::replace(waits, true) {
        running::set_waits_since(proc::own_cpu_time());
    }
}

fn work_again(waits: bool) {
    if waits {
        running::set_waits_since(0);
    }
}

/// The next frame; None if `wait` is false and none has come.
pub fn receive(wait_for_it: bool) -> Option<ToReplica> {
    let mut waits = false;
    loop {
        pgrx::check_for_interrupts!();
        let mut kind = 0_u8;
        // SAFETY: begins a message, and ends it again if nothing has come.
        let got = unsafe {
            ffi::pq_startmsgread();
            ffi::pq_getbyte_if_available(&mut kind)
        };
        match got {
            1 => {
                let frame = body(kind);
                work_again(waits);
                return Some(frame);
            }
            0 => {
                // SAFETY: nothing of the message was read.
                unsafe { ffi::pq_endmsgread() };
                if !wait_for_it {
                    return None;
                }
                begin_to_wait(&mut waits);
                wait(pg_sys::WL_SOCKET_READABLE, -1);
            }
            _ => lost(),
        }
    }
}

/// Reads the message that follows its type byte.
fn body(kind: u8) -> ToReplica {
    // SAFETY: a half-read message must not be interrupted by a cancel, since the connection could
    // not be used any more; hence the hold count, which an ERROR resets.
    let bytes = unsafe {
        let buffer = pg_sys::makeStringInfo();
        pg_sys::QueryCancelHoldoffCount += 1;
        let failed = ffi::pq_getmessage(buffer, frame::MAX_CONTROL_BYTES as c_int) != 0;
        pg_sys::QueryCancelHoldoffCount -= 1;
        if failed {
            lost();
        }
        let bytes = std::slice::from_raw_parts((*buffer).data.cast::<u8>(), (*buffer).len as usize)
            .to_vec();
        pg_sys::pfree((*buffer).data.cast());
        pg_sys::pfree(buffer.cast());
        bytes
    };
    match kind {
        b'd' => match frame::decode(&bytes) {
            Ok(frame) => frame,
            Err(error) => crate::error::raise(
                PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
                "coordinator sent a damaged frame",
                &format!("{error}."),
                "",
            ),
        },
        // CopyDone or CopyFail: the coordinator wants no more.
        b'c' | b'f' => ToReplica::Stop,
        b'X' => lost(),
        _ => crate::error::raise(
            PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
            format!("unexpected message type 0x{kind:02X} during the exchange of frames"),
            "",
            "",
        ),
    }
}

/// The coordinator is gone: so is the reason for this process.
fn lost() -> ! {
    pgrx::ereport!(
        pgrx::PgLogLevel::FATAL,
        PgSqlErrorCode::ERRCODE_CONNECTION_FAILURE,
        "connection to the coordinator was lost"
    );
    unreachable!("FATAL ends the process");
}

/// Waits for the socket or the latch, at most `timeout_ms` (-1: no limit), and serves interrupts.
fn wait(events: u32, timeout_ms: i64) {
    // SAFETY: the backend's own wait set; its socket is registered at a fixed position.
    unsafe {
        pg_sys::ModifyWaitEvent(
            ffi::FeBeWaitSet,
            ffi::FEBE_SOCKET_POSITION,
            events,
            std::ptr::null_mut(),
        );
        let mut event = pg_sys::WaitEvent::default();
        pg_sys::WaitEventSetWait(
            ffi::FeBeWaitSet,
            timeout_ms as std::ffi::c_long,
            &mut event,
            1,
            pg_sys::PG_WAIT_EXTENSION,
        );
        if event.events & pg_sys::WL_LATCH_SET != 0 {
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        if event.events & pg_sys::WL_SOCKET_CLOSED != 0 {
            lost();
        }
        if event.events & pg_sys::WL_POSTMASTER_DEATH != 0 {
            pg_sys::proc_exit(1);
        }
    }
    pgrx::check_for_interrupts!();
}

/// Lets `milliseconds` pass, or less if something happens, while serving interrupts and noticing
/// that the coordinator is gone.
pub fn pause(milliseconds: i64) {
    wait(pg_sys::WL_SOCKET_CLOSED, milliseconds);
}
