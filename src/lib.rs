//! Parallel replicas for PostgreSQL: one query, executed at once by a server's parallel workers and
//! by its streaming standbys. ARCHITECTURE.md is the map.

#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(panic = "unwind"))]
compile_error!("PostgreSQL errors travel through Rust as panics: panic must be \"unwind\"");

#[macro_use]
mod test_points;

mod api;
mod choice;
mod cluster;
mod error;
mod exec;
mod log;
mod monitor;
mod net;
mod pg;
mod plan;
mod prewarm;
mod queue;
mod secret;
mod serve;
mod settings;
mod shm;

use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

/// Called when the library is loaded. Without shared_preload_libraries nothing is set up: the SQL
/// functions that need it say so, and queries are executed as if the library were not there.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: plain global.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        return;
    }
    pg::stack::init();
    queue::init_settings();
    settings::init();
    shm::init();
    exec::granule_scan::init();
    exec::parallel_replicas::init();
    plan::paths::init();
    plan::hook::init();
    plan::explain::init();
    plan::refresh::init();
    monitor::init();
    queue::init();
    serve::statement::init();
}
