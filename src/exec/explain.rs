//! EXPLAIN of the two nodes, and the sums of what the nodes below did on replicas.

use super::parallel_replicas::ParallelReplicasState;
use super::state::{ReplicaSummary, State};
use crate::log;
use crate::pg::plan::{Walk, every_state};
use parallel_replicas_core::frame::FragmentReport;
use parallel_replicas_core::task_state::ProcessCounters;
use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// A thin cover over PostgreSQL's property functions.
struct Output(*mut pg_sys::ExplainState);

impl Output {
    fn is_text(&self) -> bool {
        // SAFETY: EXPLAIN's own state.
        unsafe { (*self.0).format == pg_sys::ExplainFormat::EXPLAIN_FORMAT_TEXT }
    }

    fn integer(&self, label: &CStr, value: i64) {
        // SAFETY: as above.
        unsafe { pg_sys::ExplainPropertyInteger(label.as_ptr(), std::ptr::null(), value, self.0) };
    }

    fn boolean(&self, label: &CStr, value: bool) {
        // SAFETY: as above.
        unsafe { pg_sys::ExplainPropertyBool(label.as_ptr(), value, self.0) };
    }

    fn milliseconds(&self, label: &CStr, micros: u64) {
        // SAFETY: as above.
        unsafe {
            pg_sys::ExplainPropertyFloat(
                label.as_ptr(),
                c"ms".as_ptr(),
                micros as f64 / 1000.0,
                3,
                self.0,
            );
        }
    }

    fn text(&self, label: &CStr, value: &str) {
        let Ok(value) = CString::new(value) else {
            return;
        };
        // SAFETY: as above.
        unsafe { pg_sys::ExplainPropertyText(label.as_ptr(), value.as_ptr(), self.0) };
    }

    fn open(&self, kind: &CStr, label: Option<&CStr>, labeled: bool) {
        let label = label.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: as above.
        unsafe { pg_sys::ExplainOpenGroup(kind.as_ptr(), label, labeled, self.0) };
    }

    fn close(&self, kind: &CStr, label: Option<&CStr>, labeled: bool) {
        let label = label.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: as above.
        unsafe { pg_sys::ExplainCloseGroup(kind.as_ptr(), label, labeled, self.0) };
    }
}

/// # Safety
/// PostgreSQL's own arguments.
pub unsafe fn parallel_replicas(
    node: *mut ParallelReplicasState,
    _ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: the state is ours.
    let (state, analyze) = unsafe { (&*(*node).state, (*es).analyze) };
    let out = Output(es);
    let private = &state.private;
    let local_workers = if private.local_plan {
        private.local_workers
    } else {
        0
    };
    if private.whole {
        out.boolean(c"Whole Query", true);
    }
    out.integer(c"Replicas Planned", i64::from(private.planned));
    if !out.is_text() {
        out.integer(c"Replicas Available", i64::from(private.available));
        out.integer(c"Links Per Replica", i64::from(private.links_per_replica));
    }
    out.integer(c"Local Workers Planned", i64::from(local_workers));
    if !analyze {
        return;
    }
    let used = state.summary.as_ref().map_or(0, |summary| {
        summary
            .replicas
            .iter()
            .filter(|replica| replica.links_used > 0)
            .count()
    });
    out.integer(c"Replicas Used", used as i64);
    out.integer(c"Local Workers Launched", i64::from(state.workers_launched));
    if let Some(refused) = &state.refused {
        out.text(
            c"Parallel Replicas",
            &format!("not used: {}", refused.describe()),
        );
        if !out.is_text() {
            out.text(c"Parallel Replicas Reason", refused.reason.code());
        }
    }
    if !out.is_text() {
        let id = log::id_text(&state.participants.scope.origin.query_id);
        out.text(c"Query Id", &id);
        out.milliseconds(c"Coordinator Wait", state.waited_us);
    }
    participants(state, &out);
}

fn participants(state: &State, out: &Output) {
    let Some(summary) = &state.summary else {
        return;
    };
    if state.private.whole {
        let mut used = summary.replicas.iter().filter(|one| one.links_used > 0);
        let by = used.next().map_or("local", |replica| replica.name.as_str());
        out.text(c"Executed By", by);
    }
    let whole = state.private.whole;
    if !whole || !out.is_text() {
        out.integer(c"Granules", i64::from(summary.selected));
    }
    let local = ReplicaSummary {
        name: "local".to_owned(),
        counters: summary.local,
        ..ReplicaSummary::default()
    };
    if out.is_text() {
        if !whole {
            out.text(c"Local", &granules_text(&local.counters));
        }
        for replica in &summary.replicas {
            out.text(c"Replica", &replica_text(replica, whole));
        }
        return;
    }
    out.open(c"Participants", Some(c"Participants"), false);
    participant(&local, out, true);
    for replica in &summary.replicas {
        participant(replica, out, false);
    }
    out.close(c"Participants", Some(c"Participants"), false);
}

fn granules_text(counters: &ProcessCounters) -> String {
    let mut text = format!(
        "granules={} (own={} stolen by hash={} stolen rest={})",
        counters.own + counters.by_hash + counters.rest,
        counters.own,
        counters.by_hash,
        counters.rest
    );
    if counters.lost > 0 {
        text.push_str(&format!(" lost={}", counters.lost));
    }
    if counters.given_back > 0 {
        text.push_str(&format!(" given back={}", counters.given_back));
    }
    text
}

fn replica_text(replica: &ReplicaSummary, whole: bool) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    let mut text = format!(
        "{} links={}/{}",
        replica.name, replica.links_used, replica.links
    );
    if !whole {
        text.push_str(&format!(" {}", granules_text(&replica.counters)));
    }
    text.push_str(&format!(
        " rows={} bytes={} replay wait={:.3} ms run={:.3} ms",
        replica.rows,
        replica.bytes,
        ms(replica.replay_wait_us),
        ms(replica.run_us)
    ));
    if !whole {
        text.push_str(&format!(
            " request wait={:.3} ms",
            ms(replica.request_wait_us)
        ));
    }
    if let Some(trouble) = &replica.trouble {
        text.push_str(&format!(" {trouble}"));
    }
    text
}

fn participant(replica: &ReplicaSummary, out: &Output, local: bool) {
    let counters = &replica.counters;
    out.open(c"Participant", None, true);
    out.text(c"Name", &replica.name);
    out.integer(c"Granules Own", i64::from(counters.own));
    out.integer(c"Granules Stolen By Hash", i64::from(counters.by_hash));
    out.integer(c"Granules Stolen Rest", i64::from(counters.rest));
    out.integer(c"Granules Lost", i64::from(counters.lost));
    out.integer(c"Granules Given Back", i64::from(counters.given_back));
    out.integer(c"Requests", i64::from(counters.requests));
    if !local {
        out.integer(c"Links", i64::from(replica.links));
        out.integer(c"Links Used", i64::from(replica.links_used));
        out.integer(c"Rows", replica.rows as i64);
        out.integer(c"Bytes", replica.bytes as i64);
        out.milliseconds(c"Replay Wait", replica.replay_wait_us);
        out.milliseconds(c"Run Time", replica.run_us);
        out.milliseconds(c"Request Wait", replica.request_wait_us);
        out.text(c"Trouble", replica.trouble.as_deref().unwrap_or(""));
    }
    out.close(c"Participant", None, true);
}

/// Adds what a replica's process did to the fragment's nodes, as PostgreSQL adds what its workers
/// did, and to the session's buffer and WAL usage.
///
/// # Safety
/// `fragment` is the plan state of which the report tells.
pub unsafe fn add_report(
    fragment: *mut pg_sys::PlanState,
    report: &FragmentReport,
    instrumented: bool,
) {
    if instrumented {
        for (id, bytes) in &report.instrumentation {
            // SAFETY: both servers are of the same build, and the length is checked.
            unsafe {
                let Some(mut other) = from_bytes::<pg_sys::Instrumentation>(bytes) else {
                    continue;
                };
                let node = find(fragment, *id);
                if !node.is_null() && !(*node).instrument.is_null() {
                    pg_sys::InstrAggNode((*node).instrument, &mut other);
                }
            }
        }
    }
    // SAFETY: as above; JIT counters of all processes but the leader are summed in one place.
    unsafe {
        if let Some(mut jit) = from_bytes::<pg_sys::JitInstrumentation>(&report.jit_usage) {
            let estate = (*fragment).state;
            if (*estate).es_jit_worker_instr.is_null() {
                (*estate).es_jit_worker_instr = pg_sys::MemoryContextAllocZero(
                    (*estate).es_query_cxt,
                    size_of::<pg_sys::JitInstrumentation>(),
                )
                .cast();
            }
            pg_sys::InstrJitAgg((*estate).es_jit_worker_instr, &mut jit);
        }
    }
    // SAFETY: as above; plain counters.
    unsafe {
        if let (Some(mut buffers), Some(mut wal)) = (
            from_bytes::<pg_sys::BufferUsage>(&report.buffer_usage),
            from_bytes::<pg_sys::WalUsage>(&report.wal_usage),
        ) {
            pg_sys::InstrAccumParallelQuery(&mut buffers, &mut wal);
        }
    }
}

/// # Safety
/// `T` is valid for any bytes.
unsafe fn from_bytes<T>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as the caller says; the length is checked.
    (bytes.len() == size_of::<T>())
        .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// The plan state with this id, or null.
///
/// # Safety
/// `root` is a valid plan state.
unsafe fn find(root: *mut pg_sys::PlanState, id: i32) -> *mut pg_sys::PlanState {
    let mut found = std::ptr::null_mut();
    // SAFETY: as the caller says; the walker only visits valid states.
    unsafe {
        every_state(root, &mut |state| {
            if (*(*state).plan).plan_node_id == id {
                found = state;
                return Walk::Stop;
            }
            Walk::Down
        });
    }
    found
}
