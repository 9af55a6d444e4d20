//! Executes a fragment whose guards have passed, and sends its rows.
//!
//! The executor pulls; the granule scan asks for its next task here, which is also where rows leave:
//! between two tasks no page is pinned, so waiting for the network cannot hold up replay.

#![allow(ffi_unwind_calls)]

use super::counted::{bytes_of, instrumentation, jit_usage};
use super::{copy_both, guards, pins, shipped, spent};
use crate::exec::granule_scan::{self, Boundary, GranuleScanState, LinkTask};
use crate::exec::pruning;
use crate::exec::shipment::SHIPPED_SETTINGS;
use crate::log;
use crate::pg::wait::now_micros;
use crate::pg::{executor, ffi, guc, proc};
use crate::shm::events::{self, Event};
use crate::shm::running::Phase;
use parallel_replicas_core::frame::{
    self, Announcement, Begin, FragmentReport, ROWS_TARGET_BYTES, Refusal, TaskReport,
    ToCoordinator, ToReplica,
};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::mem::offset_of;

/// Bytes of rows that are kept until no page of the scan is pinned, which is a few pages later. Only
/// rows that multiply beyond this within those pages leave earlier.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Rows leave at the end of their task, and where no page is pinned as soon as there are so many
/// bytes of them: few enough to be still in the processor's cache. Far below [`HELD_BYTES_MAX`], so that
/// this comes first.
const SEND_BYTES: usize = 256 << 10;
/// Memory of sent frames that is kept for the next ones.
const SPARE_FRAMES: usize = 2 * SEND_BYTES / ROWS_TARGET_BYTES;

/// MINIMAL_TUPLE_OFFSET of htup_details.h: what a heap tuple has more at its front than a minimal tuple.
const MINIMAL_TUPLE_OFFSET: usize = offset_of!(pg_sys::HeapTupleHeaderData, t_infomask2)
    - offset_of!(pg_sys::MinimalTupleData, t_infomask2);

/// Reports of tasks are kept back until so many microseconds after the first of them, if work is at hand.
const KEEP_REPORTS_US: u64 = 10_000;

/// State of the exchange while the executor runs.
#[derive(Default)]
struct Session {
    /// Frames that came while nobody waited for one.
    arrived: VecDeque<ToReplica>,
    /// The timeline that the coordinator is on.
    timeline: u32,
    /// When the request came, in microseconds.
    begun_at: u64,
    /// The plan while it is executed, and its granule scans.
    root: Option<*mut pg_sys::PlanState>,
    scans: Vec<*mut GranuleScanState>,
    /// The task in work.
    current: Option<Current>,
    /// Tasks that were done and not reported, with the times of their ends. No row that has been put since belongs to
    /// another task.
    unreported: Vec<(TaskReport, u64)>,
    /// A task ends early when its rows take so many bytes; 0: never.
    task_bytes: u64,
    stopped: bool,
    /// The rows frame that is being filled, and full ones.
    rows_frame: Vec<u8>,
    full_frames: Vec<Vec<u8>>,
    spare_frames: Vec<Vec<u8>>,
    held_bytes: usize,
    /// Scans that were left in mid-task.
    left: Vec<u32>,
    /// Bytes of rows of the task in work that have left already.
    sent_bytes: u64,
    rows: u64,
    waited_us: u64,
    last_spoke: u64,
}

/// A task in work.
#[derive(Clone, Copy)]
struct Current {
    report: TaskReport,
    /// When it began.
    since: u64,
    start_block: u32,
    /// Others want it from here on.
    keep_until: Option<u32>,
}

thread_local! {
    static SESSION: RefCell<Session> = RefCell::new(Session::default());
}

/// Executes the fragment. The caller has checked server, WAL position and snapshot.
/// `arrived`: when the request came, in microseconds; `replay_wait_us`: how much since then was
/// spent on waiting for replay.
pub fn execute(begin: &Begin, arrived: u64, replay_wait_us: u64) -> Result<(), Refusal> {
    SESSION.set(Session {
        timeline: begin.timeline,
        begun_at: arrived,
        task_bytes: begin.task_bytes,
        ..Session::default()
    });
    spent::begin();
    // now(), and texts like 'today', mean the coordinator's time.
    // SAFETY: sets two times of this backend, which the next statement sets anew.
    unsafe {
        pg_sys::SetParallelStartTimestamps(begin.transaction_start, begin.statement_start);
    }
    // From here on the snapshot protects what it sees, and is protected.
    proc::install_xmin(begin.snapshot.xmin);
    push_snapshot(begin);
    test_point!("serve-snapshot");
    let nest = guc::nest();
    let result = with_settings(begin, &nest, replay_wait_us);
    nest.end();
    // SAFETY: the one that push_snapshot pushed.
    unsafe { pg_sys::PopActiveSnapshot() };
    events::add(
        Event::ReadRequestMicroseconds,
        SESSION.with_borrow(|session| session.waited_us),
    );
    result
}

/// Drops what an exchange has left in memory.
pub fn forget() {
    SESSION.set(Session::default());
}

/// Makes the shipped snapshot the active one. All of its transactions go into the one list that
/// decides visibility, so the commit log is all that is asked besides.
fn push_snapshot(begin: &Begin) {
    let wire = &begin.snapshot;
    let mut xids: Vec<pg_sys::TransactionId> = wire
        .in_progress
        .iter()
        .map(|xid| pg_sys::TransactionId::from(*xid))
        .collect();
    let mut snapshot = pg_sys::SnapshotData {
        snapshot_type: pg_sys::SnapshotType::SNAPSHOT_MVCC,
        xmin: pg_sys::TransactionId::from(wire.xmin),
        xmax: pg_sys::TransactionId::from(wire.xmax),
        xip: xids.as_mut_ptr(),
        xcnt: xids.len() as u32,
        curcid: pg_sys::FirstCommandId,
        ..Default::default()
    };
    // SAFETY: PushActiveSnapshot copies a snapshot that is not marked as copied, with its list.
    unsafe { pg_sys::PushActiveSnapshot(&mut snapshot) };
}

fn with_settings(begin: &Begin, nest: &guc::Nest, replay_wait_us: u64) -> Result<(), Refusal> {
    for (name, value) in &begin.settings {
        let known = SHIPPED_SETTINGS
            .iter()
            .any(|known| known.to_bytes() == name.as_bytes());
        if !known {
            return Err(guards::refusal(
                "setting",
                format!("setting {name} is not one to take over"),
            ));
        }
        let (Ok(name), Ok(value)) = (CString::new(name.as_str()), CString::new(value.as_str()))
        else {
            return Err(guards::refusal(
                "setting",
                "a setting's name or value has a zero byte",
            ));
        };
        nest.set(&name, &value);
    }
    guards::time_zone(begin)?;
    guards::lock_relations(begin)?;
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // Nothing in a fragment may change roles. The allow-list has nothing that does; should it miss something,
    // the link's account, which is the session's user here, is still out of its reach.
    let restricted = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
    // SAFETY: reads and sets this backend's user; an ERROR restores it with the transaction.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(
            pg_sys::Oid::from(begin.user),
            begin.security_context | restricted as i32,
        );
    }
    let result = as_user(begin, replay_wait_us);
    // SAFETY: as above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result
}

fn as_user(begin: &Begin, replay_wait_us: u64) -> Result<(), Refusal> {
    // SAFETY: the plan comes from a coordinator of the same build that knows the secret; it is
    // checked against the allow-list before anything of it is executed.
    unsafe {
        let statement = shipped::plan(begin)?;
        // The statement's identifier is the same on all servers.
        pg_sys::pgstat_report_query_id((*statement).queryId, true);
        let parameters = shipped::parameters(begin);
        let store = match begin.whole {
            true => pg_sys::tuplestore_begin_heap(false, false, pg_sys::work_mem),
            false => std::ptr::null_mut(),
        };
        let text = pg_sys::debug_query_string;
        let query = pg_sys::CreateQueryDesc(
            statement,
            text,
            pg_sys::GetActiveSnapshot(),
            std::ptr::null_mut(),
            pg_sys::CreateDestReceiver(pg_sys::CommandDest::DestNone),
            parameters,
            std::ptr::null_mut(),
            begin.instrument,
        );
        pg_sys::ExecutorStart(query, 0);
        shipped::set_exec_parameters(begin, query);
        let scans = pruning::live((*query).planstate, false).scans;
        for (index, scan) in scans.iter().enumerate() {
            (**scan).scan_index = index as u32;
        }
        copy_both::send(&ToCoordinator::Announcement(Announcement {
            replay_wait_us,
        }));
        log::fragment::set_phase(Phase::Working);
        test_point!("serve-announced");
        let begun_at = SESSION.with_borrow(|session| session.begun_at);
        events::add(
            Event::AnnouncementMicroseconds,
            (now_micros() - begun_at).saturating_sub(replay_wait_us),
        );
        SESSION.with_borrow_mut(|session| {
            session.root = Some((*query).planstate);
            session.scans.clone_from(&scans);
        });
        granule_scan::set_link_source(Some(next_task), Some(boundary));
        pg_sys::InstrStartParallelQuery();
        let started = now_micros();
        let total = (*query).totaltime;
        if !total.is_null() {
            pg_sys::InstrStartNode(total);
        }
        pg_sys::ffi::pg_guard_ffi_boundary(|| run(query, store));
        let rows = match store.is_null() {
            true => SESSION.with_borrow(|session| session.rows),
            false => pg_sys::tuplestore_tuple_count(store) as u64,
        };
        (*(*query).estate).es_processed = rows;
        if !total.is_null() {
            pg_sys::InstrStopNode(total, rows as f64);
        }
        let mut buffers = pg_sys::BufferUsage::default();
        let mut wal = pg_sys::WalUsage::default();
        pg_sys::InstrEndParallelQuery(&mut buffers, &mut wal);
        send_rows(true);
        let granules = scans.iter().map(|scan| (**scan).granules_read).sum();
        events::add(Event::ReadMarks, granules);
        let report = SESSION.with_borrow(|session| FragmentReport {
            rows,
            stopped: session.stopped,
            unneeded: Vec::new(),
            instrumentation: Vec::new(),
            buffer_usage: bytes_of(&buffers),
            wal_usage: bytes_of(&wal),
            jit_usage: jit_usage(query, begin.instrument),
            run_us: now_micros() - started,
            request_wait_us: session.waited_us,
        });
        let unneeded = scans.iter().filter(|scan| !granule_scan::has_ended(**scan));
        let report = FragmentReport {
            unneeded: unneeded.map(|scan| (**scan).scan_index).collect(),
            instrumentation: if begin.instrument != 0 {
                instrumentation((*query).planstate)
            } else {
                Vec::new()
            },
            ..report
        };
        let descriptor = pg_sys::CreateTupleDescCopy((*query).tupDesc);
        pg_sys::ExecutorFinish(query);
        pg_sys::ExecutorEnd(query);
        pg_sys::FreeQueryDesc(query);
        if !store.is_null() {
            send_stored(store, descriptor);
        }
        test_point!("serve-executed");
        report_tasks();
        spent::tell(1);
        copy_both::send(&ToCoordinator::FragmentDone(Box::new(report)));
    }
    Ok(())
}

/// Runs the plan to its end. Unguarded inside, so that a row costs no more than it must.
///
/// Rows of a whole query go to `store`: they are delivered at its end anyway, and until then its scans
/// may have pages pinned, with which nobody waits for the network.
///
/// # Safety
/// `query` has been started; `store` is null if it is not a whole query.
unsafe fn run(query: *mut pg_sys::QueryDesc, store: *mut pg_sys::Tuplestorestate) {
    // SAFETY: as the caller says; nothing with a destructor lives here.
    unsafe {
        let estate = (*query).estate;
        let old = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*estate).es_query_cxt;
        let root = (*query).planstate;
        loop {
            if !(*estate).es_per_tuple_exprcontext.is_null() {
                executor::reset_expr_context((*estate).es_per_tuple_exprcontext);
            }
            ffi::check_for_interrupts();
            let slot = ffi::exec_proc_node(root);
            if executor::is_null(slot) {
                break;
            }
            if !store.is_null() {
                ffi::tuplestore_puttupleslot(store, slot);
                continue;
            }
            let full = match heap_tuple(slot) {
                Some(tuple) => push_row(tuple),
                None => {
                    let mut should_free = false;
                    let tuple = ffi::exec_fetch_slot_minimal_tuple(slot, &mut should_free);
                    let bytes = std::slice::from_raw_parts(tuple.cast(), (*tuple).t_len as usize);
                    let full = push_row(bytes);
                    if should_free {
                        ffi::free(tuple.cast());
                    }
                    full
                }
            };
            if full {
                send_rows_guarded();
            }
        }
        pg_sys::CurrentMemoryContext = old;
    }
}

/// Sends the rows of a whole query, whose executor has ended.
///
/// # Safety
/// `store` has rows of this descriptor, and is not used again.
unsafe fn send_stored(store: *mut pg_sys::Tuplestorestate, descriptor: pg_sys::TupleDesc) {
    // SAFETY: as the caller says.
    unsafe {
        let slot = pg_sys::MakeSingleTupleTableSlot(descriptor, &pg_sys::TTSOpsMinimalTuple);
        while pg_sys::tuplestore_gettupleslot(store, true, false, slot) {
            pgrx::check_for_interrupts!();
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotMinimalTuple(slot, &mut should_free);
            push_row(std::slice::from_raw_parts(
                tuple.cast(),
                (*tuple).t_len as usize,
            ));
            if SESSION.with_borrow(|session| session.unsent_bytes() > SEND_BYTES) {
                send_rows(false);
            }
            if should_free {
                pg_sys::pfree(tuple.cast());
            }
        }
        send_rows(true);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::tuplestore_end(store);
    }
}

/// The part of a table's row that makes a minimal tuple, where it lies; None if the slot holds something
/// else. Saves a copy of every row that passes unchanged.
///
/// # Safety
/// `slot` holds a row, and keeps it as long as the result is used.
unsafe fn heap_tuple<'a>(slot: *mut pg_sys::TupleTableSlot) -> Option<&'a [u8]> {
    // SAFETY: as the caller says; the operations tell the slot's type.
    unsafe {
        if (*slot).tts_ops != &raw const pg_sys::TTSOpsBufferHeapTuple {
            return None;
        }
        let tuple = (*slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple;
        if tuple.is_null() {
            return None;
        }
        let bytes = std::slice::from_raw_parts((*tuple).t_data.cast(), (*tuple).t_len as usize);
        bytes.get(MINIMAL_TUPLE_OFFSET..)
    }
}

/// Adds a row, a minimal tuple but for its length, to the frames; true if so much has gathered that it
/// must leave now.
fn push_row(tuple: &[u8]) -> bool {
    SESSION.with_borrow_mut(|session| {
        if session.rows_frame.is_empty() {
            frame::start_rows(&mut session.rows_frame);
        }
        frame::push_row(&mut session.rows_frame, tuple);
        session.rows += 1;
        if session.rows_frame.len() >= ROWS_TARGET_BYTES {
            session.held_bytes += session.rows_frame.len();
            let next = session
                .spare_frames
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(ROWS_TARGET_BYTES + 4096));
            session
                .full_frames
                .push(std::mem::replace(&mut session.rows_frame, next));
        }
        session.held_bytes > HELD_BYTES_MAX
    })
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn send_rows_guarded() {
    send_rows(false);
}

/// Sends the full frames, and with `all` the one that is being filled.
fn send_rows(all: bool) {
    if SESSION.with_borrow(|session| session.unsent_bytes() == 0) {
        return;
    }
    // Else they would seem to be rows of tasks that are reported after them.
    report_tasks();
    let frames = SESSION.with_borrow_mut(|session| {
        session.held_bytes = 0;
        let mut frames = std::mem::take(&mut session.full_frames);
        if all && !session.rows_frame.is_empty() {
            frames.push(std::mem::take(&mut session.rows_frame));
        }
        session.sent_bytes += frames.iter().map(|rows| rows.len() as u64).sum::<u64>();
        frames
    });
    let mut put = 0;
    for mut rows in frames {
        // PostgreSQL's send buffer grows to whatever is put into it, and never shrinks.
        if put > SEND_BYTES {
            copy_both::flush();
            put = 0;
        }
        put += rows.len();
        copy_both::send_bytes(&rows);
        rows.clear();
        SESSION.with_borrow_mut(|session| {
            if session.spare_frames.len() < SPARE_FRAMES && rows.capacity() <= 2 * ROWS_TARGET_BYTES
            {
                session.spare_frames.push(rows);
            }
        });
    }
    copy_both::flush();
}

/// Reports what has been done and is not known yet.
fn report_tasks() {
    let reports = SESSION.with_borrow_mut(|session| std::mem::take(&mut session.unreported));
    if reports.is_empty() {
        return;
    }
    let now = now_micros();
    for (report, ended) in reports {
        copy_both::put_frame(&ToCoordinator::TaskDone(TaskReport {
            ago_us: now.saturating_sub(ended),
            ..report
        }));
    }
    copy_both::flush();
}

/// The granule scan has done its task: reports that, with the task's rows, and gets the next one.
fn next_task(scan: u32) -> Option<LinkTask> {
    let timeline = SESSION.with_borrow(|session| session.timeline);
    if let Err(refusal) = guards::recovery(timeline) {
        crate::error::raise(
            pgrx::PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "server is no longer a standby of the coordinator",
            &format!("{}.", refusal.detail),
            "",
        );
    }
    // A scan may be left in mid-task, when a join turns out to have an empty inner side. What was
    // left is not done, and what was given of it ahead is nobody's business here any more.
    let done = SESSION.with_borrow_mut(|session| {
        let current = session.current.take();
        if let Some(left) = current.as_ref().map(|current| current.report.scan)
            && left != scan
        {
            session.left.push(left);
        }
        current
    });
    match done.filter(|current| current.report.scan == scan) {
        Some(current) => {
            send_rows(true);
            test_point!("serve-rows-sent");
            let keep_back = SESSION.with_borrow_mut(|session| session.done(current));
            if !keep_back {
                spent::tell(spent::WORTH_TELLING_US);
                report_tasks();
            }
        }
        None => {
            report_tasks();
            copy_both::send(&ToCoordinator::Request { scan });
        }
    }
    let started = now_micros();
    let frame = loop {
        match next_frame() {
            ToReplica::Task { scan: of, .. } if of != scan && has_left(of) => {}
            frame => break frame,
        }
    };
    SESSION.with_borrow_mut(|session| {
        session.waited_us += now_micros() - started;
        session.sent_bytes = 0;
        match frame {
            ToReplica::Task {
                scan: of,
                id,
                start_block,
                blocks,
                cached_blocks,
            } if of == scan => {
                session.current = Some(Current {
                    report: TaskReport {
                        scan,
                        id,
                        blocks,
                        took_us: 0,
                        ago_us: 0,
                    },
                    since: now_micros(),
                    start_block,
                    keep_until: None,
                });
                Some(LinkTask {
                    start_block,
                    blocks,
                    cached_blocks,
                })
            }
            ToReplica::Finish { scan: of } if of == scan => None,
            ToReplica::Stop => {
                session.stopped = true;
                None
            }
            _ => crate::error::raise(
                pgrx::PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
                "coordinator sent a frame out of turn",
                "",
                "",
            ),
        }
    })
}

/// Inner sides of joins keep no page from here on.
fn let_go_of_pins(scan: u32) {
    let state = SESSION.with_borrow(|session| {
        let scan = session.scans.get(scan as usize).copied();
        session.root.zip(scan)
    });
    if let Some((root, scan)) = state {
        // SAFETY: the plan is being executed, since this scan of it is asked for a row.
        unsafe { pins::let_go(root, scan) };
    }
}

fn has_left(scan: u32) -> bool {
    SESSION.with_borrow(|session| session.left.contains(&scan))
}

fn next_frame() -> ToReplica {
    loop {
        if let Some(frame) = SESSION.with_borrow_mut(|session| session.arrived.pop_front()) {
            return frame;
        }
        arrive(copy_both::receive(true).unwrap_or(ToReplica::Stop));
    }
}

/// Takes note of a frame.
fn arrive(frame: ToReplica) {
    if matches!(frame, ToReplica::Shrink { .. }) {
        // Others have nothing to do, and may ask for what is done.
        report_tasks();
    }
    let gave_back = SESSION.with_borrow_mut(|session| match frame {
        ToReplica::Stop => {
            session.stopped = true;
            session.arrived.push_back(ToReplica::Stop);
            None
        }
        ToReplica::Shrink {
            scan,
            id,
            keep_until_block,
        } => session.shrink(scan, id, keep_until_block),
        other => {
            session.arrived.push_back(other);
            None
        }
    });
    if let Some((scan, id)) = gave_back {
        copy_both::send(&ToCoordinator::GaveBack { scan, id });
    }
}

impl Session {
    /// Others want a part of a task. Answers the task if it need not begin at all; one that was done
    /// meanwhile is no matter.
    fn shrink(&mut self, scan: u32, id: u32, keep_until: u32) -> Option<(u32, u32)> {
        if let Some(current) = &mut self.current
            && (current.report.scan, current.report.id) == (scan, id)
        {
            current.keep_until = Some(keep_until);
            return None;
        }
        let position = self.arrived.iter().position(|frame| {
            matches!(frame, ToReplica::Task { scan: of, id: task, .. } if (*of, *task) == (scan, id))
        })?;
        self.arrived.remove(position);
        Some((scan, id))
    }

    fn unsent_bytes(&self) -> usize {
        self.held_bytes + self.rows_frame.len()
    }

    /// A task was done. Answers whether that need not be told now: nobody waits for a part of it, its rows have not
    /// left, and more than half of what was given is still to be done, so that there is time to get more.
    fn done(&mut self, task: Current) -> bool {
        let now = now_micros();
        let report = TaskReport {
            took_us: now.saturating_sub(task.since),
            ..task.report
        };
        self.unreported.push((report, now));
        let first = self.unreported.first().map_or(now, |(_, ended)| *ended);
        task.keep_until.is_none()
            && self.sent_bytes == 0
            && self.unreported.len() < self.arrived.len()
            && now.saturating_sub(first) < KEEP_REPORTS_US
    }

    /// Does the task in work end before this block, which begins a granule?
    fn ends_task(&mut self, scan: u32, next_block: u32) -> bool {
        let bytes = self.sent_bytes + self.unsent_bytes() as u64;
        let full = self.task_bytes > 0 && bytes > self.task_bytes;
        let Some(current) = &mut self.current else {
            return false;
        };
        let done = next_block.saturating_sub(current.start_block);
        let inside = current.report.scan == scan && (1..current.report.blocks).contains(&done);
        let unwanted = current.keep_until.is_some_and(|keep| next_block >= keep);
        if inside && (full || unwanted) {
            current.report.blocks = done;
            return true;
        }
        false
    }
}

/// Tells the coordinator once a second that the work goes on.
fn show_life() {
    const INTERVAL_US: u64 = 1_000_000;
    let now = now_micros();
    let due = SESSION.with_borrow_mut(|session| {
        let due = now.saturating_sub(session.last_spoke) > INTERVAL_US;
        if due {
            session.last_spoke = now;
        }
        due
    });
    if due {
        spent::tell(spent::WORTH_TELLING_US);
        report_tasks();
        copy_both::send(&ToCoordinator::Progress);
    }
}

/// Called between two pieces of a scan, when it has no page pinned.
fn boundary(scan: u32, next_block: u32, at_granule: bool) -> Boundary {
    let (stopped, many) =
        SESSION.with_borrow(|session| (session.stopped, session.unsent_bytes() > SEND_BYTES));
    if stopped {
        return Boundary::Stop;
    }
    if many || at_granule {
        // There may be something to send, or to wait for.
        let_go_of_pins(scan);
    }
    if many {
        send_rows(false);
    }
    if !at_granule {
        return Boundary::GoOn;
    }
    test_point!("serve-granule");
    show_life();
    while let Some(frame) = copy_both::receive(false) {
        arrive(frame);
    }
    SESSION.with_borrow_mut(|session| {
        if session.stopped {
            Boundary::Stop
        } else if session.ends_task(scan, next_block) {
            Boundary::EndTask
        } else {
            Boundary::GoOn
        }
    })
}
