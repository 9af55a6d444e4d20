//! Waiting on the latch and any number of sockets.

use pgrx::pg_sys;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    pub socket: i32,
    pub write: bool,
}

/// Waits until the latch is set, a socket is ready, or `timeout_ms` (at most a minute) has passed.
///
/// The set lives only for this wait: PostgreSQL 15 would leak its descriptor if an ERROR came while
/// it existed, and none can come between here and there. Interrupts are the caller's to check,
/// before and after.
pub fn latch_or_sockets(interests: &[Interest], timeout_ms: u64, wait_event: u32) {
    let timeout = timeout_ms.min(60_000) as std::ffi::c_long;
    // SAFETY: the latch is this process's; the set is freed on every path.
    unsafe {
        let set =
            pg_sys::CreateWaitEventSet(pg_sys::CurrentMemoryContext, interests.len() as i32 + 2);
        pg_sys::AddWaitEventToSet(
            set,
            pg_sys::WL_LATCH_SET,
            pg_sys::PGINVALID_SOCKET,
            pg_sys::MyLatch,
            std::ptr::null_mut(),
        );
        pg_sys::AddWaitEventToSet(
            set,
            pg_sys::WL_EXIT_ON_PM_DEATH,
            pg_sys::PGINVALID_SOCKET,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        );
        for interest in interests {
            let events = if interest.write {
                pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE
            } else {
                pg_sys::WL_SOCKET_READABLE
            };
            pg_sys::AddWaitEventToSet(
                set,
                events,
                interest.socket,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
        }
        let mut event = pg_sys::WaitEvent::default();
        pg_sys::WaitEventSetWait(set, timeout, &mut event, 1, wait_event);
        pg_sys::FreeWaitEventSet(set);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
}

/// Monotonic microseconds.
pub fn now_micros() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // One more than zero, so that zero can mean "never".
    START.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}
