//! TCP ports that no other test takes.
//!
//! A port stays reserved for as long as its [`Port`] lives, also across processes and users and
//! also while the server behind it is stopped, by holding the abstract Unix socket
//! `parallel_replicas_port_N`. The kernel frees that name when the process ends in whatever way.
//! Ports lie below Linux's ephemeral range (32768 by default), so that an outgoing connection
//! cannot take one between the probe and the start of the server.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

const FIRST: u16 = 20_000;
const LAST: u16 = 32_000;

/// A reserved port on 127.0.0.1.
pub struct Port {
    number: u16,
    _reservation: UnixListener,
}

impl Port {
    /// Reserves a port on which nobody listens.
    pub fn reserve() -> Self {
        // A random start keeps parallel test processes from trying the same ports in turn.
        let span = LAST - FIRST;
        let start = fastrand::u16(..span);
        for step in 0..span {
            let number = FIRST + (start + step) % span;
            if let Some(port) = Self::try_reserve(number) {
                return port;
            }
        }
        panic!("no free port between {FIRST} and {LAST}");
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let name = format!("parallel_replicas_port_{number}");
        let address = SocketAddr::from_abstract_name(name).expect("the name is short");
        let reservation = UnixListener::bind_addr(&address).ok()?;
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Self {
            number,
            _reservation: reservation,
        })
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}
