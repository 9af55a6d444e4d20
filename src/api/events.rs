//! The server's counters.

use crate::shm::events::{DESCRIPTIONS, values};
use pgrx::iter::TableIterator;
use pgrx::{name, pg_extern};

/// One row per counter, since the server started. Raises 55000 without preload.
#[pg_extern(volatile, strict, parallel_safe)]
fn get_events() -> TableIterator<
    'static,
    (
        name!(event, &'static str),
        name!(value, i64),
        name!(description, &'static str),
    ),
> {
    if !crate::shm::is_preloaded() {
        crate::error::not_preloaded();
    }
    let rows = DESCRIPTIONS
        .iter()
        .zip(values())
        .map(|((event, description), value)| (*event, value as i64, *description));
    TableIterator::new(rows)
}
