//! The replica's side: executes a fragment for a coordinator.
//!
//! `CALL parallel_replicas.serve(challenge)` over the simple protocol turns the connection into a two-way
//! exchange of frames (`copy_both`) for one fragment. The coordinator is not trusted: before a row
//! is looked at, `guards` checks who is calling, whether this server is the right one and has
//! replayed far enough, and whether plan and snapshot can be used here. A snapshot that is applied
//! too early, or is incomplete, would not only give wrong rows: its hint bits would damage this
//! standby for good. No setting overrides a guard.

mod copy_both;
mod counted;
mod fragment;
mod guards;
mod pins;
mod shipped;
mod spent;
pub mod statement;

use crate::exec::granule_scan;
use crate::log;
use crate::pg::guc;
use crate::pg::wait::now_micros;
use crate::plan::state;
use crate::shm::events::{self, Event};
use crate::shm::running::Phase;
use crate::{error, secret, shm};
use parallel_replicas_core::frame::{Begin, Hello, Refusal, ToCoordinator};
use pgrx::{PgSqlErrorCode, pg_sys};

/// Body of the procedure `parallel_replicas.serve()`.
///
/// `atomic`: CALL was used inside a transaction block, where snapshots cannot be dropped.
/// `challenge`: random bytes of the coordinator, from which the first frame is computed.
pub fn serve(challenge: &[u8], atomic: bool) {
    if !shm::is_preloaded() {
        error::not_preloaded();
    }
    // SAFETY: plain globals.
    let (isolation, remote) = unsafe { (pg_sys::XactIsoLevel, pg_sys::whereToSendOutput) };
    if atomic || isolation > pg_sys::XACT_READ_COMMITTED as i32 {
        error::raise(
            PgSqlErrorCode::ERRCODE_INVALID_TRANSACTION_STATE,
            "parallel_replicas.serve() cannot be executed inside a transaction block",
            "It must not hold a snapshot while it waits for replay.",
            "It is called by other servers, with default_transaction_isolation = 'read committed'.",
        );
    }
    if remote != pg_sys::CommandDest::DestRemoteSimple && remote != pg_sys::CommandDest::DestRemote
    {
        error::raise(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "parallel_replicas.serve() needs a client connection",
            "",
            "",
        );
    }
    test_point!("serve-called");
    // Reads a table, so it comes before all snapshots are dropped.
    let secret = secret::read();
    copy_both::start();
    match exchange(secret, challenge) {
        Ok(()) => events::add(Event::ServedCount, 1),
        Err(refusal) => {
            if refusal.reason != guards::STOPPED {
                events::add(Event::ServedRefusedCount, 1);
                pgrx::log!(
                    "refused to execute a fragment: {} ({})",
                    refusal.reason,
                    refusal.detail
                );
            }
            copy_both::send(&ToCoordinator::Refused(refusal));
        }
    }
    test_point!("serve-ending");
    copy_both::end();
}

/// CPU time that one of the caller's backends has used for its work; see `pg::proc`. What it uses while
/// it waits for its coordinator, for timers and signals, is no sign of life.
pub fn cpu_time(process: i32) -> Option<i64> {
    let (backend, used) = crate::pg::proc::cpu_time(process)?;
    Some(shm::running::waits_since(backend).unwrap_or(used))
}

/// Marks this backend as serving until dropped, also by an ERROR on its way through.
struct Serving;

impl Serving {
    fn begin() -> Self {
        state::disable(true);
        shm::monitor::set_serving(true);
        Serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        state::disable(false);
        shm::monitor::set_serving(false);
        granule_scan::set_link_source(None, None);
        fragment::forget();
    }
}

fn exchange(secret: Option<Vec<u8>>, challenge: &[u8]) -> Result<(), Refusal> {
    let Some(secret) = secret else {
        return Err(guards::refusal(
            "not_installed",
            "the extension's secret cannot be read",
        ));
    };
    if !crate::pg::proc::forget_snapshots() {
        return Err(guards::refusal(
            "snapshot_held",
            "the backend holds a snapshot",
        ));
    }
    let mut hello = Hello {
        nonce: secret::nonce(),
        mac: [0; 32],
        identity: crate::exec::shipment::identity(),
        instance_id: shm::instance_id(),
    };
    hello.mac = secret::authenticate_hello(&secret, challenge, &hello)
        .ok_or_else(|| guards::refusal("authentication", "the secret cannot be used"))?;
    let nonce = hello.nonce;
    copy_both::send(&ToCoordinator::Hello(hello));
    test_point!("serve-greeted");
    let begin = guards::authenticated_begin(&secret, &nonce)?;
    drop(secret);
    // From here on whoever looks at this server sees which query it works for.
    let _shown = log::fragment::Serving::begin(begin.query_id, begin.user);
    let nest = guc::nest();
    if let Some(name) = log::fragment::application_name(&begin.query_id) {
        nest.set(c"application_name", &name);
    }
    let result = serve_begun(&begin);
    nest.end();
    result
}

fn serve_begun(begin: &Begin) -> Result<(), Refusal> {
    let arrived = now_micros();
    test_point!("serve-begun");
    guards::server(begin)?;
    let waited = guards::wait_for_replay(begin)?;
    guards::server(begin)?;
    guards::snapshot(begin)?;
    guards::settings_and_libraries(begin)?;
    let _serving = Serving::begin();
    log::fragment::set_phase(Phase::Starting);
    test_point!("serve-admitted");
    fragment::execute(begin, arrived, waited)
}
