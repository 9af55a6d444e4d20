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

use crate::shm::monitor;
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
    /// The option `hostaddr`, else `host`, or what a template was found to stand for: where
    /// connections go.
    pub address: String,
    /// One of those that a template stands for.
    pub is_discovered: bool,
    pub port: u16,
    /// Share of work relative to the others, 1 to 1000.
    pub weight: u32,
    /// Lower is preferred; 0 or more.
    pub priority: i32,
}

/// A server that stands for replicas which the monitor finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub server_oid: pg_sys::Oid,
    pub source: Source,
}

/// The option `discover`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The servers that stream from this one.
    Streaming,
    /// All addresses of a host name.
    Dns(String),
}

impl Source {
    pub const NAMES: [&str; 2] = ["pg_stat_replication", "dns"];
}

#[derive(Default)]
struct Cache {
    /// The generations that `clusters` was read at; `None` before the first read.
    read_at: Option<(u64, u32)>,
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

/// The template servers of this database.
pub fn templates() -> Vec<Template> {
    let servers = catalog::servers(WRAPPER).into_iter();
    servers
        .filter_map(|server| {
            Some(Template {
                source: source(&server)?,
                server_oid: server.oid,
            })
        })
        .collect()
}

fn source(server: &catalog::Server) -> Option<Source> {
    let options = &server.options;
    match options.text("discover")? {
        "pg_stat_replication" => Some(Source::Streaming),
        "dns" => Some(Source::Dns(options.text("host")?.to_owned())),
        _ => None,
    }
}

/// Reads the catalog if something may have changed and a transaction allows it.
fn refresh() {
    let generation = (generation(), monitor::discoveries());
    if CACHE.with(|cache| cache.borrow().read_at == Some(generation)) || !catalog::is_readable() {
        return;
    }
    let mut clusters: HashMap<String, Vec<Replica>> = HashMap::new();
    let discovered = monitor::discovered();
    // The cache is not borrowed here: reading takes locks and may raise an error.
    for server in catalog::servers(WRAPPER) {
        let is_template = source(&server).is_some();
        let defined = Replica::from_server(server);
        let cluster = defined.cluster.clone();
        let replicas = match is_template {
            false => vec![defined],
            true => discovered
                .iter()
                .filter(|(template, _)| *template == defined.server_oid)
                .map(|(_, address)| defined.at(address))
                .collect(),
        };
        clusters.entry(cluster).or_default().extend(replicas);
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
            is_discovered: false,
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

impl Replica {
    /// The replica at an address that this definition, a template, stands for.
    fn at(&self, address: &str) -> Replica {
        Replica {
            name: format!("{}/{address}", self.name),
            host: match self.host.is_empty() {
                true => address.to_owned(),
                false => self.host.clone(),
            },
            address: address.to_owned(),
            is_discovered: true,
            ..self.clone()
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
