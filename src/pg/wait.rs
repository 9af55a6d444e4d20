//! Waiting on the latch and any number of sockets.

use pgrx::pg_sys;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    pub socket: i32,
    pub write: bool,
    /// A number that no other socket has, as long as this one is open; None of a socket that another may
    /// take the place of any time, as happens while a connection is made.
    pub lasting: Option<u64>,
}

impl Interest {
    fn events(self) -> u32 {
        match self.write {
            true => pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE,
            false => pg_sys::WL_SOCKET_READABLE,
        }
    }

    fn is_same_socket(&self, other: &Interest) -> bool {
        self.lasting.is_some() && self.lasting == other.lasting && self.socket == other.socket
    }
}

/// The latch, the postmaster's death, and sockets. Kept from wait to wait as long as the sockets are the same,
/// because making it costs as much as waiting. PostgreSQL 15 knows no owner of such a set, so it lives as long
/// as this value.
pub struct WaitSet {
    set: *mut pg_sys::WaitEventSet,
    interests: Vec<Interest>,
}

/// Places in the set before the sockets.
const FIRST_SOCKET: usize = 2;

impl WaitSet {
    pub const fn new() -> Self {
        WaitSet {
            set: std::ptr::null_mut(),
            interests: Vec::new(),
        }
    }

    /// Waits until the latch is set, a socket is ready, or `timeout_ms` (at most a minute) has passed.
    /// Interrupts are the caller's to check, before and after.
    pub fn wait(&mut self, interests: &[Interest], timeout_ms: u64, wait_event: u32) {
        self.watch(interests);
        let timeout = timeout_ms.min(60_000) as std::ffi::c_long;
        let mut event = pg_sys::WaitEvent::default();
        // SAFETY: the set is made, the latch is this process's.
        unsafe {
            pg_sys::WaitEventSetWait(self.set, timeout, &mut event, 1, wait_event);
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        if interests.iter().any(|interest| interest.lasting.is_none()) {
            self.free();
        }
    }

    fn watch(&mut self, interests: &[Interest]) {
        let same = !self.set.is_null()
            && self.interests.len() == interests.len()
            && std::iter::zip(&self.interests, interests).all(|(old, new)| old.is_same_socket(new));
        if !same {
            self.free();
            self.make(interests);
            return;
        }
        for (place, interest) in interests.iter().enumerate() {
            if self.interests[place].write != interest.write {
                let place = (FIRST_SOCKET + place) as i32;
                // SAFETY: the set has this socket at this place.
                unsafe {
                    pg_sys::ModifyWaitEvent(
                        self.set,
                        place,
                        interest.events(),
                        std::ptr::null_mut(),
                    );
                }
            }
        }
        self.interests.copy_from_slice(interests);
    }

    fn make(&mut self, interests: &[Interest]) {
        self.interests.clear();
        self.interests.extend_from_slice(interests);
        // SAFETY: the latch is this process's; the sockets are open. Should an ERROR come in here, the set
        // is freed with this value.
        unsafe {
            self.set = pg_sys::CreateWaitEventSet(
                pg_sys::TopMemoryContext,
                (FIRST_SOCKET + interests.len()) as i32,
            );
            let add = |events, socket, latch| {
                pg_sys::AddWaitEventToSet(self.set, events, socket, latch, std::ptr::null_mut());
            };
            let none = pg_sys::PGINVALID_SOCKET;
            add(pg_sys::WL_LATCH_SET, none, pg_sys::MyLatch);
            add(pg_sys::WL_EXIT_ON_PM_DEATH, none, std::ptr::null_mut());
            for interest in interests {
                add(interest.events(), interest.socket, std::ptr::null_mut());
            }
        }
    }

    fn free(&mut self) {
        let set = std::mem::replace(&mut self.set, std::ptr::null_mut());
        if !set.is_null() {
            // SAFETY: made by `make`, freed once; closes a descriptor and frees memory.
            unsafe { pg_sys::FreeWaitEventSet(set) };
        }
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        self.free();
    }
}

/// Waits once.
pub fn latch_or_sockets(interests: &[Interest], timeout_ms: u64, wait_event: u32) {
    WaitSet::new().wait(interests, timeout_ms, wait_event);
}

/// Monotonic microseconds.
pub fn now_micros() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // One more than zero, so that zero can mean "never".
    START.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}
