//! The query queue: a statement begins when its slots are free.
//!
//! `core`'s queue decides who runs; here are the hooks where statements begin and end, the wait, and
//! the shared memory. In the order of a statement: `hooks`, `frames` (is it the user's own?), `need`
//! (what would it use?), `wait`, `holders` (until when?). `hands` keeps waiters out of deadlocks,
//! `snapshot` keeps their results fresh, `drivers` gives them fewer processes, `alone` is for
//! queries that lost their replicas before they began, `overload` and `measure` look at the machine, `usage`
//! adds up what statements use, `groups` are resource groups.
//!
//! The rule over all: nobody waits with anything in hand. A statement that is part of another one,
//! or of a transaction that has written or locked something, never waits.

mod alone;
mod drivers;
mod frames;
pub mod groups;
mod hands;
mod holders;
mod hooks;
mod measure;
mod need;
mod overload;
mod settings;
pub mod shared;
mod snapshot;
pub mod status;
mod usage;
mod wait;

/// Installs everything. Once, from the library's initialisation, after the planner's hooks.
pub fn init() {
    shared::init();
    hooks::init();
}

/// Slots of the query that is executed in this state, and how long it waited for them, in milliseconds.
/// None if it did not queue.
pub fn granted(estate: *const pgrx::pg_sys::EState) -> Option<(u32, u64)> {
    holders::granted(estate)
}

/// How many of `wanted` workers a query starts that was planned without any and cannot use its replicas,
/// to which it would have had so many `links`.
///
/// # Safety
/// The state is that of a query that is executed.
pub unsafe fn workers_without_replicas(
    estate: *const pgrx::pg_sys::EState,
    wanted: i32,
    links: u32,
) -> i32 {
    // SAFETY: as the caller says.
    unsafe { alone::workers(estate, wanted, links) }
}

/// Processes of this backend's links have used so much CPU time on replicas.
pub fn links_used(cpu_us: u64) {
    usage::links_used(cpu_us);
}

/// Cores that this server may use.
pub fn cores() -> u32 {
    settings::own_capacity().cores
}

/// Defines the settings. Before the library reserves its prefix.
pub fn init_settings() {
    settings::init();
}
