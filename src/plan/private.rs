//! What the planner tells the executor about our two nodes: one JSON text in a String node, which
//! PostgreSQL can copy, print and read back.

use crate::shm::monitor::Key;
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString};

/// The nodes' names: in EXPLAIN, in plans on the wire, and towards PostgreSQL, which finds a node's
/// functions by its name.
pub const GRANULE_SCAN_NAME: &CStr = c"GranuleScan";
pub const PARALLEL_REPLICAS_NAME: &CStr = c"ParallelReplicas";

/// The functions that the executor's side has registered under a name.
pub fn scan_methods(name: &CStr) -> *const pg_sys::CustomScanMethods {
    // SAFETY: a C string; a name that is not registered is an ERROR.
    unsafe { pg_sys::GetCustomScanMethods(name.as_ptr(), false) }
}

/// # Safety
/// `scan` is a CustomScan.
pub unsafe fn is_granule_scan(scan: *const pg_sys::CustomScan) -> bool {
    // SAFETY: as the caller says; every CustomScan has methods, and those a name.
    unsafe { CStr::from_ptr((*(*scan).methods).CustomName) == GRANULE_SCAN_NAME }
}

/// Of a GranuleScan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GranuleScanPrivate {
    /// Workers that PostgreSQL itself would use for this scan on this server.
    pub local_workers: i32,
    pub granule_blocks: u32,
    /// Estimated rows of the table.
    pub rows: f64,
}

/// A replica that was chosen when the plan was first executed.
#[derive(Clone, Debug)]
pub struct PlannedReplica {
    pub server: u32,
    pub name: String,
    pub weight: u32,
    /// Under which this server remembers what it knows about the replica.
    pub key: Key,
}

/// How the ordered output of participants is merged; absent where order does not matter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MergeKey {
    pub column: i16,
    pub operator: u32,
    pub collation: u32,
    pub nulls_first: bool,
}

/// Of a ParallelReplicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParallelReplicasPrivate {
    pub local_workers: i32,
    pub links_per_replica: u32,
    pub cluster: String,
    /// Replicas that the plan counts on.
    pub planned: u32,
    /// Replicas that it may use, should there be more when it is executed.
    pub most: u32,
    /// Replicas that the cluster has, whether or not the limits admit them.
    pub available: u32,
    /// Chosen at the first execution.
    #[serde(skip)]
    pub replicas: Vec<PlannedReplica>,
    /// This server scans, too, unless others are preferred at the first execution.
    pub local_plan: bool,
    /// Everything below goes to one replica, or is executed here: there is nothing to divide.
    pub whole: bool,
    /// Its share of the work; chosen with the replicas.
    #[serde(skip)]
    pub local_weight: u32,
    /// The user typed the query under force: an error if replicas cannot be used.
    pub strict: bool,
    /// A task's rows are complete when the task is.
    pub streaming: bool,
    /// A LIMIT above may need few rows: tasks start small.
    pub ramp: bool,
    pub merge: Vec<MergeKey>,
    /// InitPlan outputs that the fragment reads.
    pub init_params: Vec<i32>,
    pub rescan_param: i32,
    /// Relations that the fragment reads: range table index and object id.
    pub relations: Vec<(u32, u32)>,
    pub collations: Vec<u32>,
    /// Extensions, and their functions in C that the fragment may call.
    pub extensions: Vec<(u32, Vec<u32>)>,
    /// Some expression depends on the session's time zone.
    pub time_zone: bool,
    /// Some expression has to be evaluated before shipping.
    pub fold: bool,
}

/// Why a plan could not use replicas, with what it was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: Reason,
    /// A table, function or node; empty where there is none.
    pub about: String,
}

impl Refused {
    pub fn new(reason: Reason, about: impl Into<String>) -> Self {
        Refused {
            reason,
            about: about.into(),
        }
    }

    /// For EXPLAIN and the detail of errors.
    pub fn describe(&self) -> String {
        if self.about.is_empty() {
            self.reason.text().to_owned()
        } else {
            format!("{} ({})", self.reason.text(), self.about)
        }
    }
}

/// Wraps a value for `custom_private`.
pub fn to_list<T: Serialize>(value: &T) -> *mut pg_sys::List {
    let json = serde_json::to_string(value).unwrap_or_default();
    let json = CString::new(json).unwrap_or_default();
    // SAFETY: pstrdup copies into the current memory context, which the planner chose.
    unsafe {
        let node = pg_sys::makeString(pg_sys::pstrdup(json.as_ptr()));
        pg_sys::lappend(std::ptr::null_mut(), node.cast())
    }
}

/// Reads back what [`to_list`] made; None for anything else.
///
/// # Safety
/// `list` is null or a valid list of nodes.
pub unsafe fn from_list<T: DeserializeOwned>(list: *mut pg_sys::List) -> Option<T> {
    // SAFETY: as the caller says; the node's tag is checked before it is read as a String.
    let text = unsafe {
        if list.is_null() || (*list).length != 1 {
            return None;
        }
        let node = (*(*list).elements).ptr_value.cast::<pg_sys::Node>();
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_String {
            return None;
        }
        CStr::from_ptr((*node.cast::<pg_sys::String>()).sval)
    };
    serde_json::from_slice(text.to_bytes()).ok()
}
