//! A TCP proxy before one server that can spoil its connections.
//!
//! Plain threads: one that accepts, and two pumps for each connection. A fault that is set applies
//! to open connections at their next chunk and to all later ones.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use crate::ports::Port;

/// Bytes that a pump moves at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// What the proxy does with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Passes everything on.
    None,
    /// Holds each chunk, in either direction, for this time.
    Delay(Duration),
    /// Passes nothing on until another fault is set; nothing is lost.
    Stall,
    /// After this many more bytes to the client, closes the connection both ways.
    Cut { after_bytes: u64 },
    /// After this many more bytes to the client, ends that direction and goes on with the other.
    HalfClose { after_bytes: u64 },
    /// After this many more bytes to the client, sends noise in place of what the server said.
    /// Noise may announce a huge message, for which a reader without a deadline waits for ever.
    Garbage { after_bytes: u64 },
    /// Closes new connections at once; open ones live on.
    Refuse,
}

/// A running proxy; it ends its connections when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    port: Port,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    to_client_bytes: AtomicU64,
    to_server_bytes: AtomicU64,
    connections: AtomicU64,
}

struct State {
    fault: Fault,
    stopping: bool,
    open: Vec<TcpStream>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToClient,
    ToServer,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream_port` there.
    pub fn start(upstream_port: u16) -> Self {
        let port = Port::reserve();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).expect("the port is free");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                fault: Fault::None,
                stopping: false,
                open: Vec::new(),
            }),
            changed: Condvar::new(),
            to_client_bytes: AtomicU64::new(0),
            to_server_bytes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, upstream_port, &accepting));
        Self { shared, port }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sets what happens from now on.
    pub fn set(&self, fault: Fault) {
        self.shared.lock().fault = fault;
        self.shared.changed.notify_all();
    }

    /// Closes all open connections now, both ways.
    pub fn cut_all(&self) {
        self.shared.close_all();
    }

    /// Bytes sent to clients so far, noise included.
    pub fn to_client_bytes(&self) -> u64 {
        self.shared.to_client_bytes.load(Ordering::Relaxed)
    }

    /// Bytes sent to the server so far.
    pub fn to_server_bytes(&self) -> u64 {
        self.shared.to_server_bytes.load(Ordering::Relaxed)
    }

    /// Connections accepted so far, refused ones included.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        self.shared.close_all();
        // Wakes the accepting thread, which then sees that it is to end.
        let _ = TcpStream::connect(("127.0.0.1", self.port.number()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no pump panics while it holds the lock")
    }

    fn close_all(&self) {
        for stream in self.lock().open.drain(..) {
            // A stream that the peer has closed already gives an error.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The fault in force, once it is not `Stall`.
    fn fault_after_stall(&self) -> Fault {
        let state = self.lock();
        let stalled = |state: &mut State| state.fault == Fault::Stall && !state.stopping;
        self.changed
            .wait_while(state, stalled)
            .expect("no pump panics with the lock")
            .fault
    }
}

fn accept(listener: &TcpListener, upstream_port: u16, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let Ok(client) = client else { return };
        let fault = {
            let state = shared.lock();
            if state.stopping {
                return;
            }
            state.fault
        };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        if fault == Fault::Refuse {
            continue;
        }
        // A server that is down looks to the client like one that closes at once.
        let Ok(server) = TcpStream::connect(("127.0.0.1", upstream_port)) else {
            continue;
        };
        // Without this Nagle's algorithm would add delays that nobody asked for.
        let ready = client
            .set_nodelay(true)
            .and_then(|()| server.set_nodelay(true));
        let copies = (
            client.try_clone(),
            server.try_clone(),
            client.try_clone(),
            server.try_clone(),
        );
        let (Ok(()), (Ok(client2), Ok(server2), Ok(client3), Ok(server3))) = (ready, copies) else {
            continue;
        };
        shared.lock().open.extend([client3, server3]);
        let (up, down) = (Arc::clone(shared), Arc::clone(shared));
        thread::spawn(move || pump(client, server, Direction::ToServer, &up));
        thread::spawn(move || pump(server2, client2, Direction::ToClient, &down));
    }
}

/// Moves bytes until one side ends or a fault ends it.
fn pump(mut from: TcpStream, mut to: TcpStream, direction: Direction, shared: &Shared) {
    let mut buffer = vec![0; CHUNK_BYTES];
    // Bytes to the client since the fault in force was set.
    let mut counted = (Fault::None, 0_u64);
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => length,
        };
        let fault = shared.fault_after_stall();
        if counted.0 != fault {
            counted = (fault, 0);
        }
        let mut chunk = &mut buffer[..length];
        let mut last = None;
        match (fault, direction) {
            (Fault::Delay(time), _) => thread::sleep(time),
            (
                Fault::Cut { after_bytes } | Fault::HalfClose { after_bytes },
                Direction::ToClient,
            ) => {
                let left = after_bytes.saturating_sub(counted.1);
                if left <= length as u64 {
                    chunk = &mut chunk[..left as usize];
                    last = Some(if matches!(fault, Fault::Cut { .. }) {
                        Shutdown::Both
                    } else {
                        Shutdown::Write
                    });
                }
            }
            (Fault::Garbage { after_bytes }, Direction::ToClient) => {
                let left = after_bytes.saturating_sub(counted.1).min(length as u64);
                fastrand::fill(&mut chunk[left as usize..]);
            }
            _ => {}
        }
        // Counted before it is sent, so that whoever has received it finds it counted.
        let sent = chunk.len() as u64;
        counted.1 += sent;
        match direction {
            Direction::ToClient => shared.to_client_bytes.fetch_add(sent, Ordering::Relaxed),
            Direction::ToServer => shared.to_server_bytes.fetch_add(sent, Ordering::Relaxed),
        };
        if to.write_all(chunk).is_err() {
            // Nobody reads any more: the other side must not wait for that for ever.
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
        match last {
            Some(Shutdown::Write) => {
                let _ = to.shutdown(Shutdown::Write);
                swallow(&mut from);
                return;
            }
            Some(_) => {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
            None => {}
        }
    }
    // One side's end of file is passed on; the other direction may still have something to say.
    let _ = to.shutdown(Shutdown::Write);
}

/// Reads and drops what the server still says, so that it does not block.
fn swallow(from: &mut TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
