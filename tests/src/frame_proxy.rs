//! A proxy before one standby that understands what passes, and does harm at exactly one message.
//!
//! It takes PostgreSQL's wire protocol (version 3, no TLS) apart into messages and names each of them;
//! the first one with the armed name, in either direction, meets the armed harm.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use parallel_replicas_core::frame::{self, ToCoordinator, ToReplica};

use crate::ports::Port;
use crate::rogue::PROTOCOL_3_0;

/// What happens to the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// The connection ends before it.
    CutBefore,
    /// The connection ends in the middle of it.
    CutInside,
    /// Neither it nor anything later comes through in this direction; the connection stays.
    Stall,
    /// Its direction ends before it, the other stays.
    HalfClose,
    /// It has its length, and noise in it.
    Garble,
    /// The server says that it is about to shut down, and closes.
    Error,
    /// It comes through; what follows it in this direction does so a while later.
    Pause,
    /// It says that it has so many bytes, its length included, and comes through as it is otherwise.
    Claim(u32),
}

/// Longer than a reader needs to have read everything that has come.
const PAUSE: Duration = Duration::from_millis(150);

#[derive(Default)]
struct State {
    armed: Option<(&'static str, Harm)>,
    /// Of connections that were harmed or are open.
    open: Vec<TcpStream>,
    stopping: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    hits: AtomicU64,
}

/// A running proxy; it ends its connections when dropped.
pub struct FrameProxy {
    shared: Arc<Shared>,
    port: Port,
}

impl FrameProxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream` there.
    pub fn start(upstream: u16) -> Self {
        let port = Port::reserve();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).expect("the port is free");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.lock().stopping {
                    return;
                }
                pass_on(client, upstream, &accepting);
            }
        });
        Self { shared, port }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Harms the next message of this name, once.
    pub fn arm(&self, name: &'static str, harm: Harm) {
        self.shared.lock().armed = Some((name, harm));
    }

    /// How many messages were harmed.
    pub fn hits(&self) -> u64 {
        self.shared.hits.load(Ordering::Relaxed)
    }

    /// Closes all connections, stalled ones too, and harms nothing any more.
    pub fn reset(&self) {
        let mut state = self.shared.lock();
        state.armed = None;
        for stream in state.open.drain(..) {
            // The peer may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for FrameProxy {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.reset();
        // Wakes the accepting thread, which then sees that it is to end.
        let _ = TcpStream::connect(("127.0.0.1", self.port()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the lock")
    }

    /// The harm for a message of this name, if it is armed; it is not any more then.
    fn take_harm(&self, name: &str) -> Option<Harm> {
        let mut state = self.lock();
        let (_, harm) = state.armed.take_if(|(armed, _)| *armed == name)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(harm)
    }
}

fn pass_on(client: TcpStream, upstream: u16, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else {
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("descriptors are left");
    shared.lock().open.extend([clone(&client), clone(&server)]);
    let over = Arc::new(AtomicBool::new(false));
    for to_client in [false, true] {
        let (from, to) = match to_client {
            true => (clone(&server), clone(&client)),
            false => (clone(&client), clone(&server)),
        };
        let pump = Pump {
            from,
            to,
            to_client,
            in_exchange: Arc::clone(&over),
            shared: Arc::clone(shared),
        };
        thread::spawn(move || pump.run());
    }
}

struct Pump {
    from: TcpStream,
    to: TcpStream,
    to_client: bool,
    /// The replica has answered CopyBothResponse.
    in_exchange: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Pump {
    fn run(mut self) {
        let mut started = self.to_client;
        while let Some(message) = self.message(started) {
            let name = match started {
                true => self.name(&message),
                false => "StartupMessage",
            };
            started |= message.get(4..8) == Some(&PROTOCOL_3_0.to_be_bytes()[..]);
            if !self.deliver(message, name) {
                return;
            }
        }
        // Whoever is gone already does not mind.
        let _ = self.to.shutdown(Shutdown::Write);
    }

    /// The next whole message, header included. Before the startup message there is no type.
    fn message(&mut self, typed: bool) -> Option<Vec<u8>> {
        let kind_bytes = usize::from(typed);
        let mut message = vec![0; kind_bytes + 4];
        self.from.read_exact(&mut message).ok()?;
        // The answer to a request for encryption is one byte; such requests are not made here.
        let length: [u8; 4] = message[kind_bytes..].try_into().expect("four bytes");
        message.resize(kind_bytes + u32::from_be_bytes(length) as usize, 0);
        self.from.read_exact(&mut message[kind_bytes + 4..]).ok()?;
        Some(message)
    }

    fn name(&self, message: &[u8]) -> &'static str {
        let body = &message[5..];
        let exchanging = self.in_exchange.load(Ordering::Relaxed);
        match (message[0], self.to_client) {
            (b'W', true) => {
                self.in_exchange.store(true, Ordering::Relaxed);
                "CopyBothResponse"
            }
            (b'd', true) if frame::is_rows(body) => "Rows",
            (b'd', true) => match frame::decode(body) {
                Ok(ToCoordinator::Hello(_)) => "Hello",
                Ok(ToCoordinator::Refused(_)) => "Refused",
                Ok(ToCoordinator::Announcement(_)) => "Announcement",
                Ok(ToCoordinator::Request { .. }) => "Request",
                Ok(ToCoordinator::TaskDone(_)) => "TaskDone",
                Ok(ToCoordinator::GaveBack { .. }) => "GaveBack",
                Ok(ToCoordinator::Progress) => "Progress",
                Ok(ToCoordinator::Used { .. }) => "Used",
                Ok(ToCoordinator::FragmentDone(_)) => "FragmentDone",
                Err(_) => "damaged frame",
            },
            (b'd', false) => match frame::decode(body) {
                Ok(ToReplica::Begin { .. }) => "Begin",
                Ok(ToReplica::Task { .. }) => "Task",
                Ok(ToReplica::Shrink { .. }) => "Shrink",
                Ok(ToReplica::Finish { .. }) => "Finish",
                Ok(ToReplica::Stop) => "Stop",
                Err(_) => "damaged frame",
            },
            (b'R', true) => "Authentication",
            (b'Q', false) if body.starts_with(b"CALL") => "CALL",
            (b'c', true) => "CopyDone of the replica",
            (b'c', false) => "CopyDone of the coordinator",
            (b'C', true) if exchanging => "CommandComplete",
            (b'C', true) => "CommandComplete of a question",
            (b'Z', true) if exchanging => "ReadyForQuery",
            _ => "other",
        }
    }

    /// Passes the message on, or harms it. False if this direction is over.
    fn deliver(&mut self, mut message: Vec<u8>, name: &str) -> bool {
        let Some(harm) = self.shared.take_harm(name) else {
            return self.to.write_all(&message).is_ok() || self.close();
        };
        match harm {
            Harm::CutBefore => self.close(),
            Harm::CutInside => {
                let _ = self.to.write_all(&message[..message.len() / 2]);
                self.close()
            }
            Harm::Garble => {
                fastrand::fill(&mut message[5..]);
                self.to.write_all(&message).is_ok() || self.close()
            }
            Harm::HalfClose => {
                let _ = self.to.shutdown(Shutdown::Write);
                self.swallow();
                false
            }
            Harm::Stall => {
                self.swallow();
                false
            }
            Harm::Claim(bytes) => {
                message[1..5].copy_from_slice(&bytes.to_be_bytes());
                self.to.write_all(&message).is_ok() || self.close()
            }
            Harm::Pause => {
                let passed = self.to.write_all(&message).is_ok();
                thread::sleep(PAUSE);
                passed || self.close()
            }
            Harm::Error => {
                let fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0";
                let mut error = vec![b'E'];
                error.extend((fields.len() as u32 + 4).to_be_bytes());
                error.extend(fields);
                let _ = self.to.write_all(&error);
                self.close()
            }
        }
    }

    fn close(&self) -> bool {
        for stream in [&self.from, &self.to] {
            // The peer may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        false
    }

    /// Takes what still comes, so that the sender is not told by a full socket.
    fn swallow(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(1..) = self.from.read(&mut buffer) {}
    }
}
