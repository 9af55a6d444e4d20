//! The unsafe room: what PostgreSQL exports and pgrx does not bind, and thin wrappers over the
//! rest. Everything that differs between majors lives here. No business rules.

pub mod attempt;
pub mod catalog;
pub mod collation;
pub mod executor;
pub mod ffi;
pub mod guc;
pub mod heap;
pub mod library;
pub mod plan;
pub mod proc;
pub mod process_local;
pub mod stack;
pub mod statement;
pub mod syscache;
pub mod timezone;
pub mod wait;
