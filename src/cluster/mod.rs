//! The replicas of a cluster, as the catalog defines them.
//!
//! A replica is a foreign server of the foreign-data wrapper `parallel_replicas`; its options say
//! where it is and to which cluster it belongs, user mappings say how to log in there. Physical
//! standbys therefore all hold the same definition.
//!
//! What it is not: it knows nothing about the state of a replica (that is the monitor's), opens no
//! connection and chooses nothing.
//!
//! Who calls it: `plan` and `exec` for every query that may use replicas, `monitor`, `api`.
//!
//! Invariants:
//! - [`replicas`] costs one hash lookup while nothing has changed, also in a database without the
//!   extension, and never fails: outside a transaction it answers what it knew last.
//! - The cached definitions hold no secret: the validator accepts those in user mappings only, and
//!   these are read anew for each connection.

mod catalog;
mod credentials;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use pgrx::pg_sys;
use pgrx::prelude::*;

pub use credentials::{Purpose, connect_parameters, parse_boolean};

/// Name of the foreign-data wrapper.
pub const WRAPPER: &std::ffi::CStr = c"parallel_replicas";
/// Cluster of a server that names none.
pub const DEFAULT_CLUSTER: &str = "default";
pub const DEFAULT_PORT: u16 = 5432;
pub const DEFAULT_WEIGHT: u32 = 1;
pub const DEFAULT_PRIORITY: i32 = 1;

/// One server of a cluster, as defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    pub server_oid: pg_sys::Oid,
    pub name: String,
    pub cluster: String,
    /// The option `host`, else `hostaddr`.
    pub host: String,
    /// The option `hostaddr`, else `host`: where connections go.
    pub address: String,
    pub port: u16,
    /// Share of work relative to the others, 1 to 1000.
    pub weight: u32,
    /// Lower is preferred; 0 or more.
    pub priority: i32,
}

#[derive(Default)]
struct Cache {
    /// The generation that `clusters` was read at; `None` before the first read.
    read_at: Option<u64>,
    /// Sorted by name within each cluster.
    clusters: HashMap<String, Rc<[Replica]>>,
}

thread_local! {
    static GENERATION: Cell<u64> = const { Cell::new(0) };
    static CALLBACKS_REGISTERED: Cell<bool> = const { Cell::new(false) };
    // Without a destructor, since nothing has to happen at process exit.
    static CACHE: ManuallyDrop<RefCell<Cache>> = ManuallyDrop::new(RefCell::default());
}

/// Counts the catalog changes that may have changed a cluster.
pub fn generation() -> u64 {
    ensure_callbacks();
    GENERATION.get()
}

/// The replicas of a cluster, sorted by name; empty if there is no such cluster, or no extension in
/// this database, or no transaction to look in the catalog with.
pub fn replicas(cluster: &str) -> Rc<[Replica]> {
    refresh();
    CACHE
        .with(|cache| cache.borrow().clusters.get(cluster).cloned())
        .unwrap_or_default()
}

/// All replicas of all clusters, sorted by cluster and name.
pub fn all_replicas() -> Vec<Replica> {
    refresh();
    let mut all: Vec<Replica> = CACHE.with(|cache| {
        cache
            .borrow()
            .clusters
            .values()
            .flat_map(|replicas| replicas.iter().cloned())
            .collect()
    });
    all.sort_by(|a, b| (&a.cluster, &a.name).cmp(&(&b.cluster, &b.name)));
    all
}

/// Reads the catalog if something may have changed and a transaction allows it.
fn refresh() {
    let generation = generation();
    if CACHE.with(|cache| cache.borrow().read_at == Some(generation)) || !catalog::is_readable() {
        return;
    }
    let mut clusters: HashMap<String, Vec<Replica>> = HashMap::new();
    // The cache is not borrowed here: reading takes locks and may raise an error.
    for server in catalog::servers(WRAPPER) {
        let replica = Replica::from_server(server);
        clusters
            .entry(replica.cluster.clone())
            .or_default()
            .push(replica);
    }
    let clusters = clusters.into_iter().map(|(cluster, mut replicas)| {
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        (cluster, Rc::from(replicas))
    });
    let clusters = clusters.collect();
    // A change that arrived while reading has moved the generation on, so the next call reads again.
    CACHE.with(|cache| {
        *cache.borrow_mut() = Cache {
            read_at: Some(generation),
            clusters,
        }
    });
}

impl Replica {
    /// Takes the options apart. The validator has seen them, yet somebody may have made the wrapper
    /// by hand without one, so what cannot be read counts as not given.
    fn from_server(server: catalog::Server) -> Replica {
        let options = &server.options;
        let host = options
            .text("host")
            .or_else(|| options.text("hostaddr"))
            .unwrap_or_default();
        let address = options.text("hostaddr").unwrap_or(host);
        Replica {
            server_oid: server.oid,
            address: address.to_owned(),
            cluster: options
                .text("cluster")
                .unwrap_or(DEFAULT_CLUSTER)
                .to_owned(),
            host: host.to_owned(),
            port: options.number("port").unwrap_or(DEFAULT_PORT),
            weight: options
                .number("weight")
                .unwrap_or(DEFAULT_WEIGHT)
                .clamp(1, 1000),
            priority: options
                .number("priority")
                .unwrap_or(DEFAULT_PRIORITY)
                .max(0),
            name: server.name,
        }
    }
}

fn ensure_callbacks() {
    if CALLBACKS_REGISTERED.get() {
        return;
    }
    use pg_sys::SysCacheIdentifier::*;
    for cache in [FOREIGNSERVEROID, FOREIGNDATAWRAPPEROID, USERMAPPINGOID] {
        // SAFETY: main thread; the callback lives as long as the library, which is never unloaded.
        unsafe {
            pg_sys::CacheRegisterSyscacheCallback(
                cache as i32,
                Some(at_catalog_change),
                pg_sys::Datum::from(0_usize),
            );
        }
    }
    CALLBACKS_REGISTERED.set(true);
}

#[pg_guard]
unsafe extern "C-unwind" fn at_catalog_change(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    GENERATION.set(GENERATION.get() + 1);
}
