//! A rogue coordinator: speaks the protocol of links, but says what no coordinator would say.
//!
//! It speaks PostgreSQL's wire protocol (version 3, simple queries, no TLS, trust or a password by SCRAM)
//! by itself rather than through libpq, because it must also send what libpq would not: messages
//! of impossible lengths, halves of messages, and noise. [`crate::rogue_recorder`] gives it a real
//! Begin to start from.

use std::io::{Read, Write};
use std::net::TcpStream;

use hmac::{Hmac, Mac as _};
use parallel_replicas_core::frame::{
    self, Begin, FragmentReport, Hello, Mac, Nonce, Refusal, ToCoordinator, ToReplica,
};
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use sha2::Sha256;

use crate::wait::SOON;

/// Version 3.0 of the wire protocol, as it stands in a StartupMessage.
pub const PROTOCOL_3_0: u32 = 196_608;

/// More blocks than any table of these tests has.
const WHOLE_BLOCKS: u32 = 100_000;

/// What a session on a replica said.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// A control frame.
    Frame(ToCoordinator),
    /// A rows frame.
    Rows(Vec<u8>),
    /// CopyBothResponse.
    CopyBoth,
    /// CopyDone: its direction of the exchange has ended.
    CopyDone,
    /// ErrorResponse.
    Error(ServerError),
    /// ReadyForQuery.
    Ready,
    /// The connection was closed.
    Closed,
}

/// The fields of an ErrorResponse that tests look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    /// Severity, not translated.
    pub severity: String,
    /// Five letters.
    pub sqlstate: String,
    /// Primary message.
    pub message: String,
}

/// How an attempt to have a fragment executed ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was executed to the end.
    Done {
        /// Rows that came.
        rows: u64,
        /// The replica's own account.
        report: Box<FragmentReport>,
    },
    /// A guard refused.
    Refused(Refusal),
    /// An error ended the exchange.
    Error(ServerError),
    /// The connection was closed without a word.
    Closed,
}

impl Outcome {
    /// The refusal's reason; panics if it was not refused.
    #[track_caller]
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused(refusal) => &refusal.reason,
            other => panic!("a refusal was expected, this came: {other:?}"),
        }
    }
}

/// One session.
pub struct Rogue {
    stream: TcpStream,
    /// Process id of the backend.
    pub pid: i32,
}

impl Rogue {
    /// Logs in to a server of 127.0.0.1, database `postgres`. `options` are as in PGOPTIONS.
    #[track_caller]
    pub fn connect(port: u16, user: &str, options: &str) -> Self {
        Self::log_in(port, user, None, options)
    }

    /// The same, to a server that asks for the password.
    #[track_caller]
    pub fn connect_with_password(port: u16, user: &str, password: &str, options: &str) -> Self {
        let scram = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
        Self::log_in(port, user, Some(scram), options)
    }

    #[track_caller]
    fn log_in(port: u16, user: &str, mut scram: Option<ScramSha256>, options: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream
            .set_read_timeout(Some(SOON))
            .expect("a deadline is possible");
        stream.set_nodelay(true).expect("Nagle can be switched off");
        let mut body = PROTOCOL_3_0.to_be_bytes().to_vec();
        for (name, value) in [
            ("user", user),
            ("database", "postgres"),
            ("options", options),
        ] {
            body.extend(name.bytes().chain([0]).chain(value.bytes()).chain([0]));
        }
        body.push(0);
        let mut rogue = Self { stream, pid: 0 };
        let length = (body.len() + 4) as u32;
        rogue.raw(&length.to_be_bytes());
        rogue.raw(&body);
        loop {
            match rogue.message() {
                Some((b'Z', _)) => {
                    assert!(scram.is_none(), "nobody asked for the password");
                    return rogue;
                }
                Some((b'R', body)) => rogue.authenticate(&body, &mut scram),
                Some((b'K', body)) => {
                    let pid = body[..4].try_into().expect("four bytes");
                    rogue.pid = i32::from_be_bytes(pid);
                }
                Some((b'E', body)) => panic!("could not log in: {:?}", server_error(&body)),
                Some(_) => {}
                None => panic!("the server closed the connection"),
            }
        }
    }

    /// Answers a message of SCRAM; its last one has been checked when `scram` is none.
    #[track_caller]
    fn authenticate(&mut self, body: &[u8], scram: &mut Option<ScramSha256>) {
        let (kind, data) = body.split_first_chunk().expect("four bytes");
        let kind = u32::from_be_bytes(*kind);
        if kind == 0 {
            return;
        }
        let exchange = scram.as_mut().expect("there is a password");
        match kind {
            // AuthenticationSASL, with the names of methods.
            10 => {
                let first = exchange.message();
                let mut answer = SCRAM_SHA_256.as_bytes().to_vec();
                answer.push(0);
                answer.extend((first.len() as u32).to_be_bytes());
                answer.extend(first);
                self.put(b'p', &answer);
            }
            // AuthenticationSASLContinue.
            11 => {
                exchange.update(data).expect("the server's first message");
                let answer = exchange.message().to_vec();
                self.put(b'p', &answer);
            }
            // AuthenticationSASLFinal.
            12 => {
                exchange.finish(data).expect("the server knows it, too");
                *scram = None;
            }
            _ => panic!("authentication of kind {kind} is not known here"),
        }
    }

    /// Sends bytes as they are. A server that has hung up is no error: what it said before is
    /// still to be read.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends one message.
    pub fn put(&mut self, kind: u8, body: &[u8]) {
        let length = (body.len() + 4) as u32;
        let mut message = vec![kind];
        message.extend(length.to_be_bytes());
        message.extend(body);
        self.raw(&message);
    }

    /// Sends one control frame.
    pub fn send(&mut self, frame: &ToReplica) {
        let bytes = frame::encode(frame).expect("the frame is not too long");
        self.put(b'd', &bytes);
    }

    /// Sends a statement in the simple protocol.
    pub fn query(&mut self, statement: &str) {
        let mut body = statement.as_bytes().to_vec();
        body.push(0);
        self.put(b'Q', &body);
    }

    /// What comes next; messages without meaning here are passed over.
    #[track_caller]
    pub fn said(&mut self) -> Said {
        loop {
            let Some((kind, body)) = self.message() else {
                return Said::Closed;
            };
            return match kind {
                b'd' if frame::is_rows(&body) => Said::Rows(body),
                b'd' => Said::Frame(frame::decode(&body).expect("the replica's frames are whole")),
                b'W' => Said::CopyBoth,
                b'c' => Said::CopyDone,
                b'E' => Said::Error(server_error(&body)),
                b'Z' => Said::Ready,
                _ => continue,
            };
        }
    }

    /// Passes over everything until the session can take a statement; false if it was closed.
    #[track_caller]
    pub fn until_ready(&mut self) -> bool {
        loop {
            match self.said() {
                Said::Ready => return true,
                Said::Closed => return false,
                _ => {}
            }
        }
    }

    /// Runs a statement to its end; its error if it had one.
    #[track_caller]
    pub fn execute(&mut self, statement: &str) -> Result<(), ServerError> {
        self.query(statement);
        let mut result = Ok(());
        loop {
            match self.said() {
                Said::Error(error) => result = Err(error),
                Said::Ready => return result,
                Said::Closed => panic!("the server closed the connection after {result:?}"),
                _ => {}
            }
        }
    }

    /// Calls serve() and waits for the greeting, or for what came in its place.
    #[track_caller]
    pub fn call(&mut self) -> Result<Hello, Outcome> {
        self.query(&format!(
            "CALL parallel_replicas.serve('\\x{}')",
            "5a".repeat(32)
        ));
        loop {
            match self.said() {
                Said::CopyBoth => {}
                Said::Frame(ToCoordinator::Hello(hello)) => return Ok(hello),
                Said::Frame(ToCoordinator::Refused(refusal)) => {
                    self.put(b'c', &[]);
                    self.until_ready();
                    return Err(Outcome::Refused(refusal));
                }
                Said::Error(error) => {
                    self.until_ready();
                    return Err(Outcome::Error(error));
                }
                Said::Closed => return Err(Outcome::Closed),
                other => panic!("a greeting was expected, this came: {other:?}"),
            }
        }
    }

    /// Calls serve() and asks for `begin`, with the message authentication code that goes with it.
    #[track_caller]
    pub fn attempt(&mut self, secret: &[u8], begin: &Begin) -> Outcome {
        let body = frame::encode_body(begin).expect("the frame can be encoded");
        self.attempt_with(&body, |nonce| authenticate(secret, nonce, &body))
    }

    /// Calls serve() and sends `body` with the code that `mac` makes of the replica's nonce. If
    /// the fragment is accepted, its scans get the whole of their tables as one task.
    #[track_caller]
    pub fn attempt_with(&mut self, body: &[u8], mac: impl FnOnce(&Nonce) -> Mac) -> Outcome {
        let hello = match self.call() {
            Ok(hello) => hello,
            Err(outcome) => return outcome,
        };
        self.send(&ToReplica::Begin {
            mac: mac(&hello.nonce),
            body: body.to_vec(),
        });
        self.work(&[(0, WHOLE_BLOCKS)])
    }

    /// Gives the tasks (first block, number of blocks), then finishes every scan.
    #[track_caller]
    pub fn work(&mut self, tasks: &[(u32, u32)]) -> Outcome {
        let mut tasks: Vec<(u32, u32)> = tasks.iter().rev().copied().collect();
        let mut id = 0;
        let mut rows = 0;
        let mut outcome = Outcome::Closed;
        loop {
            match self.said() {
                Said::Frame(ToCoordinator::Refused(refusal)) => {
                    outcome = Outcome::Refused(refusal);
                    self.put(b'c', &[]);
                }
                Said::Frame(
                    ToCoordinator::Request { scan }
                    | ToCoordinator::TaskDone(frame::TaskReport { scan, .. }),
                ) => match tasks.pop() {
                    Some((start_block, blocks)) => {
                        self.send(&ToReplica::Task {
                            scan,
                            id,
                            start_block,
                            blocks,
                            cached_blocks: 0,
                        });
                        id += 1;
                    }
                    None => self.send(&ToReplica::Finish { scan }),
                },
                Said::Rows(bytes) => rows += count_rows(&bytes),
                Said::Frame(ToCoordinator::FragmentDone(report)) => {
                    outcome = Outcome::Done { rows, report };
                    self.put(b'c', &[]);
                }
                Said::Error(error) => outcome = Outcome::Error(error),
                Said::Ready | Said::Closed => return outcome,
                Said::Frame(_) | Said::CopyBoth | Said::CopyDone => {}
            }
        }
    }

    /// The next message; `None` at the end of the connection.
    #[track_caller]
    fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        if !self.read(&mut header) {
            return None;
        }
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let mut body = vec![0; length as usize - 4];
        self.read(&mut body).then_some((header[0], body))
    }

    /// Fills the buffer; false at the end of the connection. Panics after a minute of silence.
    #[track_caller]
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        match self.stream.read_exact(buffer) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), TimedOut | WouldBlock) => {
                panic!("the server has been silent for {SOON:?}")
            }
            Err(_) => false,
        }
    }
}

/// The code by which a coordinator proves that it knows the secret.
pub fn authenticate(secret: &[u8], nonce: &Nonce, body: &[u8]) -> Mac {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key may have any length");
    // Which side it speaks for.
    mac.update(b"coordinator");
    mac.update(nonce);
    mac.update(body);
    mac.finalize().into_bytes().into()
}

/// Rows of a rows frame. A minimal tuple is at least 16 bytes (htup_details.h).
fn count_rows(bytes: &[u8]) -> u64 {
    let mut offset = frame::FRAME_HEADER_BYTES;
    let mut rows = 0;
    while let Some((_, next)) = frame::next_row(bytes, offset, 16).expect("rows are whole") {
        rows += 1;
        offset = next;
    }
    rows
}

fn server_error(body: &[u8]) -> ServerError {
    let mut error = ServerError::default();
    for field in body
        .split(|byte| *byte == 0)
        .filter(|field| !field.is_empty())
    {
        let value = String::from_utf8_lossy(&field[1..]).into_owned();
        match field[0] {
            b'V' => error.severity = value,
            b'C' => error.sqlstate = value,
            b'M' => error.message = value,
            _ => {}
        }
    }
    error
}
