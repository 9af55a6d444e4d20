//! Waiting on the latch and any number of sockets.

use pgrx::pg_sys;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    pub socket: i32,
    pub write: bool,
    /// A number that no other connection of this process has had or will have, of one whose socket stays the
    /// same until it is closed; None of one that may still change it. That makes it safe to keep a set.
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

/// The latch, the postmaster's death, and sockets. PostgreSQL 15 knows no owner of such a set.
struct WaitSet {
    set: *mut pg_sys::WaitEventSet,
    /// Of a set that is complete.
    interests: Vec<Interest>,
}

thread_local! {
    /// The set of the last wait. Kept until the transaction's end, as long as the sockets are the same, because
    /// making it costs as much as waiting. At most one, because waits do not nest. Without a destructor: at
    /// process exit nothing may run here.
    static KEPT: ManuallyDrop<RefCell<WaitSet>> = const {
        ManuallyDrop::new(RefCell::new(WaitSet {
            set: std::ptr::null_mut(),
            interests: Vec::new(),
        }))
    };
}

/// Which sockets can be read from or written to, or have been closed.
#[derive(Debug)]
pub enum Ready {
    /// Not known, so all may be.
    Any,
    These(Vec<i32>),
}

impl Ready {
    pub fn may_have(&self, socket: i32) -> bool {
        match self {
            Ready::Any => true,
            Ready::These(sockets) => sockets.contains(&socket),
        }
    }
}

/// Places in the set before the sockets.
const FIRST_SOCKET: usize = 2;

/// Waits until the latch is set, a socket is ready, or `timeout_ms` (at most a minute) has passed. Answers
/// which sockets are ready. Interrupts are the caller's to check, before and after.
///
/// Where a socket lasts, within a transaction, whose end calls [`forget_set`]; other sets are not kept.
pub fn latch_or_sockets(interests: &[Interest], timeout_ms: u64, wait_event: u32) -> Ready {
    let timeout = timeout_ms.min(60_000) as std::ffi::c_long;
    KEPT.with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.watch(interests);
        let most = FIRST_SOCKET + interests.len();
        let mut events = vec![pg_sys::WaitEvent::default(); most];
        // SAFETY: the set is made, the latch is this process's; there is room for `most` events. Neither call
        // raises an ERROR, and nothing else runs meanwhile; with the postmaster gone the process ends in here.
        let count = unsafe {
            let count = pg_sys::WaitEventSetWait(
                kept.set,
                timeout,
                events.as_mut_ptr(),
                most as i32,
                wait_event,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
            count
        };
        events.truncate(count.max(0) as usize);
        if interests.is_empty() || interests.iter().any(|interest| interest.lasting.is_none()) {
            kept.free();
        }
        // With the latch set the sockets may not have been looked at.
        match events
            .iter()
            .any(|event| event.events & pg_sys::WL_LATCH_SET != 0)
        {
            true => Ready::Any,
            false => Ready::These(events.iter().map(|event| event.fd).collect()),
        }
    })
}

/// The sockets that are ready this moment. The latch is not touched.
pub fn ready_now(interests: &[Interest]) -> Ready {
    let mut sockets: Vec<libc::pollfd> = interests
        .iter()
        .map(|interest| libc::pollfd {
            fd: interest.socket,
            events: match interest.write {
                true => libc::POLLIN | libc::POLLOUT,
                false => libc::POLLIN,
            },
            revents: 0,
        })
        .collect();
    // SAFETY: so many valid entries; does not wait.
    let count = unsafe { libc::poll(sockets.as_mut_ptr(), sockets.len() as libc::nfds_t, 0) };
    if count < 0 {
        return Ready::Any;
    }
    sockets.retain(|socket| socket.revents != 0);
    Ready::These(sockets.iter().map(|socket| socket.fd).collect())
}

/// At the end of a transaction: no idle session keeps a descriptor.
pub fn forget_set() {
    KEPT.with(|kept| {
        if let Ok(mut kept) = kept.try_borrow_mut() {
            kept.free();
        }
    });
}

impl WaitSet {
    fn watch(&mut self, interests: &[Interest]) {
        let same = !self.set.is_null()
            && !interests.is_empty()
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

    /// Should an ERROR come in here, the set is freed by whoever waits next, or at the transaction's end. Its
    /// memory is not the transaction's, which may be gone by then.
    fn make(&mut self, interests: &[Interest]) {
        self.interests.clear();
        // SAFETY: the latch is this process's; the sockets are open.
        unsafe {
            let most = (FIRST_SOCKET + interests.len()) as i32;
            self.set = pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, most);
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
        self.interests.extend_from_slice(interests);
    }

    fn free(&mut self) {
        self.interests.clear();
        let set = std::mem::replace(&mut self.set, std::ptr::null_mut());
        if !set.is_null() {
            // SAFETY: made by `make`, freed once; closes a descriptor and frees memory.
            unsafe { pg_sys::FreeWaitEventSet(set) };
        }
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
