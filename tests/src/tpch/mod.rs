//! TPC-H: schema, generated data, the 22 queries and the published answers at scale factor 1.
//!
//! Data come from the crate `tpchgen`, which generates what TPC's dbgen does, byte for byte; the
//! published answers are TPC's own, as that crate carries them.

mod answers;
mod load;
mod queries;
mod schema;

pub use answers::check_published_answer;
pub use load::{Indexes, Progress, load};
pub use queries::{QUERY_NUMBERS, query};
pub use schema::{TABLES, Table, table};
