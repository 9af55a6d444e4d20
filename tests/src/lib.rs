//! Harness for tests that need real servers: a primary, its streaming standbys and faults.
//!
//! A cluster test reads like this:
//!
//! ```no_run
//! use parallel_replicas_tests::{Cluster, Differential, PRIMARY, damage_check};
//!
//! let cluster = Cluster::builder().standbys(2).start();
//! cluster.register_replicas();
//! let mut client = cluster.connect(PRIMARY);
//! client.batch_execute("CREATE TABLE t AS SELECT generate_series(1, 1000000) AS i").unwrap();
//! cluster.wait_all_caught_up();
//! Differential::new(&mut client).check("SELECT count(*), sum(i) FROM t");
//! damage_check(&cluster);
//! ```
//!
//! Nothing here is a mock: servers are made by initdb and pg_basebackup and run by pg_ctl. Nothing
//! here sleeps for a fixed time either: tests wait for conditions, through [`wait_until`].

pub mod browser;
pub mod chaos;
pub mod cluster;
pub mod confine;
pub mod corpus;
mod damage;
mod differential;
pub mod endurance;
pub mod footprint;
pub mod frame_proxy;
pub mod fuzz;
pub mod pgbench;
mod ports;
mod proxy;
pub mod queue_server;
pub mod rogue;
pub mod rogue_recorder;
pub mod rows;
pub mod scene;
pub mod suite;
pub mod system;
pub mod tpch;
mod wait;
mod writers;

pub use cluster::{Cluster, PRIMARY, StopMode, text};
pub use damage::{Damage, damage_check, damage_on};
pub use differential::{Differential, Replicas, Told};
pub use ports::Port;
pub use proxy::{Fault, Proxy};
pub use rows::Rows;
pub use wait::{SOON, wait_for, wait_until};
pub use writers::{WriterTable, Writers};
