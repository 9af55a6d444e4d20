//! libpq under backend rules: connections to replicas.
//!
//! What it is: owned handles over libpq's C objects ([`Connection`], [`QueryResult`],
//! [`CopyBuffer`]), waits that serve the latch ([`wait`]), and the
//! session's registry of idle and leased connections ([`pool`]).
//!
//! What it is not: it knows no SQL of ours, no frames, no catalog and no policy (which replica, how
//! often, how long). It never raises a PostgreSQL error itself except through an interrupt that is
//! served inside a wait; every other failure is a [`NetError`] value.
//!
//! Who calls it: `exec` (links), `monitor` (probes) and `api` (checks).
//!
//! Invariants:
//! - Nothing here blocks without the process latch. Two exceptions lie in libpq: name resolution
//!   inside [`Connection::start`] (give `hostaddr` to avoid it) and, at worst, TLS or GSSAPI
//!   libraries reading their files.
//! - Every connection is counted as an external file descriptor from before its socket exists until
//!   after it is closed (the rule of `libpq-be-fe-helpers.h`).
//! - No error can jump through a libpq frame: callbacks given to libpq only append to a bounded
//!   list. Destructors may run while a PostgreSQL error unwinds; they call libpq and decrease the
//!   descriptor counter, nothing else.
//! - Texts that come from libpq lose passwords and connection strings before they are returned.
//! - Only functions that libpq 15 has are called; a newer symbol would build and then stop the
//!   server from starting.
//! - Main thread only, except for [`thread`], which touches nothing of PostgreSQL's. The types hold
//!   raw pointers, so they are neither `Send` nor `Sync`.

pub mod connection;
pub mod error;
pub mod options;
pub mod parameters;
pub mod pool;
pub mod result;
pub mod thread;
pub mod wait;

pub use connection::{ConnectPoll, Connection, CopyRead, ResultRead};
pub use error::{NetError, RemoteError};
pub use options::library_options;
pub use parameters::ConnectParameters;
pub use result::{CopyBuffer, QueryResult, ResultStatus};
pub use wait::{answers_wait, connect_all_wait, connect_wait, query_wait, rows_wait, sleep};
