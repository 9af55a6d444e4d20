//! The shared secret that lets a coordinator prove itself to a replica.
//!
//! A serialised plan is code: whoever may send one can do anything on the server that runs it. The
//! secret is a row of a table that only superusers can read and that replication carries to every
//! standby. A coordinator proves that it knows the secret, and that the frame is its own and meant
//! for now, by a message authentication code over the replica's nonce and the frame. The replica proves
//! itself in the same way over the coordinator's challenge, before it is sent anything. The secret is
//! never logged, shown or sent.

use crate::pg::catalog::open_own_table;
use hmac::{Hmac, Mac as _};
use parallel_replicas_core::frame::{Hello, Mac, Nonce};
use pgrx::pg_sys;
use sha2::Sha256;
use std::cell::RefCell;

thread_local! {
    static CACHED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Which side a code speaks for: one side's code is of no use to the other.
const COORDINATOR: &[u8] = b"coordinator";
const REPLICA: &[u8] = b"replica";

/// Fresh random bytes.
pub fn nonce() -> Nonce {
    let mut nonce = [0; 32];
    // SAFETY: fills the buffer.
    if !unsafe { pg_sys::pg_strong_random(nonce.as_mut_ptr().cast(), nonce.len()) } {
        crate::error::internal("could not generate random bytes");
    }
    nonce
}

fn code(secret: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    for part in parts {
        mac.update(part);
    }
    Some(mac)
}

/// The coordinator's code over the replica's nonce and the body of Begin.
pub fn authenticate(secret: &[u8], nonce: &Nonce, body: &[u8]) -> Option<Mac> {
    Some(
        code(secret, &[COORDINATOR, nonce, body])?
            .finalize()
            .into_bytes()
            .into(),
    )
}

/// Checks it, in constant time.
pub fn verify(secret: &[u8], nonce: &Nonce, body: &[u8], mac: &Mac) -> bool {
    code(secret, &[COORDINATOR, nonce, body]).is_some_and(|code| code.verify_slice(mac).is_ok())
}

/// The replica's code over the coordinator's challenge.
pub fn authenticate_hello(secret: &[u8], challenge: &[u8], hello: &Hello) -> Option<Mac> {
    let parts: &[&[u8]] = &[REPLICA, challenge, &hello.nonce, &hello.instance_id];
    Some(code(secret, parts)?.finalize().into_bytes().into())
}

/// Checks it, in constant time.
pub fn verify_hello(secret: &[u8], challenge: &Nonce, hello: &Hello) -> bool {
    let parts: &[&[u8]] = &[REPLICA, challenge, &hello.nonce, &hello.instance_id];
    code(secret, parts).is_some_and(|code| code.verify_slice(&hello.mac).is_ok())
}

/// The secret, from this session's memory if it has been read before.
pub fn cached() -> Option<Vec<u8>> {
    CACHED.with_borrow_mut(|cached| {
        if cached.is_none() {
            *cached = read();
        }
        cached.clone()
    })
}

/// Forgets what was read: a replica did not accept it.
pub fn forget() {
    CACHED.set(None);
}

/// Reads the secret from its table, whoever the user is, as the active snapshot sees it. None if
/// the extension is not there.
pub fn read() -> Option<Vec<u8>> {
    // SAFETY: in a transaction. The relation is locked while it is read, the snapshot registered
    // while it is used; everything is given back in order.
    unsafe {
        let relation = open_own_table(c"secret", &[pg_sys::BYTEAOID, pg_sys::BOOLOID]);
        if relation.is_null() {
            return None;
        }
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetActiveSnapshot());
        let scan = pg_sys::heap_beginscan(
            relation,
            snapshot,
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE,
        );
        let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
        let secret = if tuple.is_null() {
            None
        } else {
            let mut is_null = false;
            let datum = pg_sys::heap_getattr(tuple, 1, (*relation).rd_att, &mut is_null);
            <Vec<u8> as pgrx::FromDatum>::from_datum(datum, is_null)
        };
        pg_sys::heap_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        secret.filter(|secret| secret.len() >= 32)
    }
}
