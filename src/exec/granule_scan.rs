//! GranuleScan: a heap scan that asks for its blocks.
//!
//! In a local process the blocks come from the task state that all local processes share; on a
//! replica they come over the link, through the source that `serve` installs. Nothing here knows
//! which replicas there are. The tuple loop is PostgreSQL's own sequential scan, written out on
//! the table's own slot type, so that a row costs what it costs there.

#![allow(ffi_unwind_calls)]

use super::tasks::{self, Participants, SharedTasks};
use crate::log::fragment;
use crate::log::steps::{self, Process};
use crate::pg::{executor, ffi, heap};
use crate::plan::private::{GRANULE_SCAN_NAME, GranuleScanPrivate, from_list};
use crate::settings::{self, Assignment};
use crate::shm::logs::Step;
use parallel_replicas_core::task_state::{LocalWork, ScanSpec, Task};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

/// State of the node. PostgreSQL allocates and frees it with the query; no field owns heap.
#[repr(C)]
pub struct GranuleScanState {
    pub css: pg_sys::CustomScanState,
    scan: pg_sys::TableScanDesc,
    /// Rows of the present range remain.
    in_range: bool,
    /// The scan has been told that there is nothing left for it.
    ended: bool,
    /// Task state of a local process, null on a replica.
    tasks: *mut SharedTasks,
    /// Bytes of `tasks` in private memory; 0 if it is shared.
    private_bytes: usize,
    /// Which process this is, for the task state.
    process: u16,
    work: LocalWork,
    /// The blocks of the task in work are to stay in this server's buffers.
    stays: bool,
    /// Blocks of the task that a link gave.
    link_blocks_left: u32,
    /// Blocks of the granule that is being read.
    next_block: u32,
    granule_left: u32,
    granule_blocks: u32,
    /// 0: by the size of the table. Fixed for the node's life, since shared memory is sized by it.
    segment_granules: u32,
    /// Position among the fragment's scans.
    pub scan_index: u32,
    /// A ParallelReplicas node above decides when tasks are laid out.
    managed: bool,
    /// Participants that it has chosen; null for this server alone. Owned by that node.
    participants: *const Participants,
    /// Blocks of the relation, counted by the leader once the snapshot was taken.
    blocks: u32,
    blocks_known: bool,
    /// Called in the leader before each task and, with `false`, within one, so that links do not wait
    /// for it.
    between_pieces: Option<LeaderHook>,
    between_pieces_context: *mut c_void,
    /// Granules read, for the counters of a replica.
    pub granules_read: u64,
}

/// A piece of work that a link gave.
#[derive(Clone, Copy, Debug)]
pub struct LinkTask {
    pub start_block: u32,
    pub blocks: u32,
    /// As in the Task frame.
    pub cached_blocks: u64,
}

/// Waits for the next task of a scan, given by its number; None at its end.
pub type LinkSource = fn(u32) -> Option<LinkTask>;

/// What a process that serves a link does before it goes on with a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    GoOn,
    /// The rest of the task is for others.
    EndTask,
    /// The rest of the answer is unwanted.
    Stop,
}

/// Asked with the scan's number and the next block; `at_granule`: a task may end here. No page is
/// pinned by the scan then.
pub type LinkBoundary = fn(u32, u32, bool) -> Boundary;

/// What the leader does between two pieces of its work; true: it is about to ask for a task.
pub type LeaderHook = unsafe fn(*mut c_void, bool);

/// Blocks that a process reads between two looks at what others want of it: one that serves a link, and the
/// leader.
const PIECE_BLOCKS: u32 = 16;

thread_local! {
    /// On a replica: where tasks come from.
    static LINK_SOURCE: Cell<Option<LinkSource>> = const { Cell::new(None) };
    static LINK_BOUNDARY: Cell<Option<LinkBoundary>> = const { Cell::new(None) };
}

/// Makes this process take its tasks from a link, or no longer.
pub fn set_link_source(source: Option<LinkSource>, boundary: Option<LinkBoundary>) {
    LINK_SOURCE.set(source);
    LINK_BOUNDARY.set(boundary);
}

struct ScanMethods(pg_sys::CustomScanMethods);
struct ExecMethods(pg_sys::CustomExecMethods);

// SAFETY: read only, pointers to static data.
unsafe impl Sync for ScanMethods {}
// SAFETY: as above.
unsafe impl Sync for ExecMethods {}

static SCAN_METHODS: ScanMethods = ScanMethods(pg_sys::CustomScanMethods {
    CustomName: GRANULE_SCAN_NAME.as_ptr(),
    CreateCustomScanState: Some(create_custom_scan_state),
});

static EXEC_METHODS: ExecMethods = ExecMethods(pg_sys::CustomExecMethods {
    CustomName: GRANULE_SCAN_NAME.as_ptr(),
    BeginCustomScan: Some(begin_custom_scan),
    ExecCustomScan: Some(exec_custom_scan),
    EndCustomScan: Some(end_custom_scan),
    ReScanCustomScan: Some(rescan_custom_scan),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: Some(estimate_dsm_custom_scan),
    InitializeDSMCustomScan: Some(initialize_dsm_custom_scan),
    ReInitializeDSMCustomScan: Some(reinitialize_dsm_custom_scan),
    InitializeWorkerCustomScan: Some(initialize_worker_custom_scan),
    ShutdownCustomScan: None,
    ExplainCustomScan: None,
});

/// Tells PostgreSQL the node's name, so that a plan that names it can be read.
pub fn init() {
    // SAFETY: static data; once, from the library's initialisation.
    unsafe { pg_sys::RegisterCustomScanMethods(&SCAN_METHODS.0) };
}

/// # Safety
/// `state` is a plan state.
pub unsafe fn from_plan_state(state: *mut pg_sys::PlanState) -> Option<*mut GranuleScanState> {
    // SAFETY: as the caller says; the tag tells the type, the methods whose it is.
    unsafe {
        if (*state).type_ != pg_sys::NodeTag::T_CustomScanState {
            return None;
        }
        let css = state.cast::<pg_sys::CustomScanState>();
        std::ptr::eq((*css).methods, &EXEC_METHODS.0).then(|| css.cast())
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn create_custom_scan_state(
    scan: *mut pg_sys::CustomScan,
) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory is a valid state; the tag and methods are what PostgreSQL wants set.
    unsafe {
        let node = pg_sys::palloc0(size_of::<GranuleScanState>()).cast::<GranuleScanState>();
        (*node).css.ss.ps.type_ = pg_sys::NodeTag::T_CustomScanState;
        (*node).css.methods = &EXEC_METHODS.0;
        let Some(private) = from_list::<GranuleScanPrivate>((*scan).custom_private) else {
            crate::error::internal("GranuleScan has no private data");
        };
        (*node).granule_blocks = private.granule_blocks.clamp(1, 131_072);
        (*node).segment_granules = settings::mark_segment_size();
        node.cast()
    }
}

/// Redoes what nodeCustom.c did for a virtual slot, now for the table's own slot type: rows are
/// then read in place instead of being copied.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn begin_custom_scan(
    css: *mut pg_sys::CustomScanState,
    estate: *mut pg_sys::EState,
    _eflags: c_int,
) {
    // SAFETY: PostgreSQL's own arguments.
    unsafe {
        let ss = &raw mut (*css).ss;
        let relation = (*ss).ss_currentRelation;
        pg_sys::ExecInitScanTupleSlot(
            estate,
            ss,
            (*relation).rd_att,
            pg_sys::table_slot_callbacks(relation),
        );
        pg_sys::ExecAssignScanProjectionInfo(ss);
        (*ss).ps.qual = pg_sys::ExecInitQual((*(*ss).ps.plan).qual, &raw mut (*ss).ps);
        (*ss).ps.ExecProcNode = Some(exec_granule_scan);
    }
}

/// Never reached: `begin_custom_scan` sets a function of its own.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn exec_custom_scan(
    css: *mut pg_sys::CustomScanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the state is ours.
    unsafe { exec_granule_scan(&raw mut (*css).ss.ps) }
}

/// Not guarded itself: `next_range`, the only Rust code in here that can panic, is.
unsafe extern "C-unwind" fn exec_granule_scan(
    ps: *mut pg_sys::PlanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the state is ours. No value with a destructor lives in this frame.
    unsafe {
        let node = ps.cast::<GranuleScanState>();
        let slot = (*node).css.ss.ss_ScanTupleSlot;
        let context = (*ps).ps_ExprContext;
        let qual = (*ps).qual;
        let projection = (*ps).ps_ProjInfo;
        executor::reset_expr_context(context);
        loop {
            if !(*node).in_range {
                executor::clear_slot(slot);
                if !next_range(node) {
                    return if projection.is_null() {
                        slot
                    } else {
                        executor::clear_slot((*projection).pi_state.resultslot)
                    };
                }
            }
            let scan = (*node).scan;
            while executor::next_tuple(scan, slot) {
                (*context).ecxt_scantuple = slot;
                if executor::qual_passes(qual, context) {
                    return if projection.is_null() {
                        slot
                    } else {
                        executor::project(projection)
                    };
                }
                if !(*ps).instrument.is_null() {
                    (*(*ps).instrument).nfiltered1 += 1.0;
                }
                executor::reset_expr_context(context);
            }
            (*node).in_range = false;
        }
    }
}

/// Moves on to the next granule that has blocks here. False at the end of the scan.
///
/// # Safety
/// The state is ours.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn next_range(node: *mut GranuleScanState) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        // The scan's beginning takes its predicate lock, which an empty table needs as well.
        if (*node).scan.is_null() && pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int {
            begin_scan(node);
        }
        loop {
            ffi::check_for_interrupts();
            let Some((start, blocks)) = next_granule(node) else {
                (*node).ended = true;
                return false;
            };
            if (*node).scan.is_null() {
                begin_scan(node);
            } else {
                // Each range is a rescan to heapam.c, which counts it as another scan.
                let statistics = (*(*node).css.ss.ss_currentRelation).pgstat_info;
                if !statistics.is_null() {
                    (*statistics).t_counts.t_numscans -= 1;
                }
            }
            // What the scan keeps must live as long as it.
            let context = (*(*node).css.ss.ps.state).es_query_cxt;
            let before = pg_sys::MemoryContextSwitchTo(context);
            (*node).in_range =
                executor::set_heap_range((*node).scan, start, blocks, !(*node).stays);
            pg_sys::MemoryContextSwitchTo(before);
            if (*node).in_range {
                return true;
            }
        }
    }
}

/// # Safety
/// The state is ours.
unsafe fn begin_scan(node: *mut GranuleScanState) {
    // SAFETY: the relation is open, the snapshot is the query's.
    unsafe {
        let ss = &raw mut (*node).css.ss;
        (*node).scan =
            executor::begin_heap_scan((*ss).ss_currentRelation, (*(*ss).ps.state).es_snapshot);
        (*ss).ss_currentScanDesc = (*node).scan;
        let statistics = (*(*ss).ss_currentRelation).pgstat_info;
        if !statistics.is_null() {
            (*statistics).t_counts.t_numscans -= 1;
        }
    }
}

/// First block and number of blocks of the next granule of this process.
///
/// # Safety
/// The state is ours.
unsafe fn next_granule(node: *mut GranuleScanState) -> Option<(u32, u32)> {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(source) = LINK_SOURCE.get() {
            return next_link_granule(node, source);
        }
        if (*node).tasks.is_null() {
            init_private_tasks(node);
        }
        if (*node).granule_left == 0 {
            let (tasks, granule) = ((*node).tasks, next_local_granule(node)?);
            let size = (*tasks).granule_blocks;
            (*node).next_block = granule * size;
            (*node).granule_left = size.min((*tasks).blocks - (*node).next_block);
        } else {
            call_leader_hook(node, false);
        }
        Some(match (*node).between_pieces {
            Some(_) => next_piece(node, PIECE_BLOCKS),
            None => next_piece(node, (*node).granule_left),
        })
    }
}

/// The next blocks of the granule that is being read, at most so many.
///
/// # Safety
/// The state is ours.
unsafe fn next_piece(node: *mut GranuleScanState, most: u32) -> (u32, u32) {
    // SAFETY: as the caller says.
    unsafe {
        let start = (*node).next_block;
        let blocks = most.min((*node).granule_left);
        (*node).next_block += blocks;
        (*node).granule_left -= blocks;
        (start, blocks)
    }
}

/// The number of the next granule of this local process.
///
/// # Safety
/// The state is ours, and has its tasks.
unsafe fn next_local_granule(node: *mut GranuleScanState) -> Option<u32> {
    // SAFETY: as the caller says.
    unsafe {
        let (tasks, process) = ((*node).tasks, (*node).process);
        if (*node).work.has_more() {
            call_leader_hook(node, false);
            let granule = tasks::with(tasks, |state| Ok((*node).work.go_on(state, process)));
            if granule.is_some() {
                return granule;
            }
        }
        call_leader_hook(node, true);
        let task = tasks::request_local(tasks, process);
        report(tasks, process, task.as_ref());
        let task = task?;
        let cached = tasks::cached_blocks(&task, (*tasks).owned_blocks);
        (*node).stays = tasks::stays_in_buffers(cached);
        Some((*node).work.begin(task))
    }
}

/// # Safety
/// The state is ours.
unsafe fn call_leader_hook(node: *mut GranuleScanState, before_task: bool) {
    // SAFETY: as the caller says; whoever set the hook says that it may be called.
    unsafe {
        if let Some(hook) = (*node).between_pieces {
            hook((*node).between_pieces_context, before_task);
        }
    }
}

/// Tells the log what a local process got.
///
/// # Safety
/// `tasks` is laid out.
unsafe fn report(tasks: *mut SharedTasks, process: u16, task: Option<&Task>) {
    let who = Process {
        number: process,
        replica: "",
    };
    // SAFETY: as the caller says; both are fixed since then.
    let (scope, scan) = unsafe { ((*tasks).scope, (*tasks).scan) };
    match task {
        Some(task) => steps::given(&scope, who, scan, task),
        None => steps::process(&scope, who, Step::NothingLeft, 0, 0, ""),
    }
}

/// # Safety
/// The state is ours, in a process that serves a link.
unsafe fn next_link_granule(node: *mut GranuleScanState, source: LinkSource) -> Option<(u32, u32)> {
    // SAFETY: as the caller says.
    unsafe {
        let at_granule = (*node).granule_left == 0;
        if let Some(boundary) = LINK_BOUNDARY.get() {
            match boundary((*node).scan_index, (*node).next_block, at_granule) {
                Boundary::GoOn => {}
                Boundary::EndTask => (*node).link_blocks_left = 0,
                Boundary::Stop => return None,
            }
        }
        if (*node).link_blocks_left == 0 {
            let task = source((*node).scan_index)?;
            // Beyond this server's own end of the table is no row that the snapshot sees: `serve::guards`.
            let present = heap::blocks((*node).css.ss.ss_currentRelation);
            (*node).stays = tasks::stays_in_buffers(task.cached_blocks);
            (*node).next_block = task.start_block;
            (*node).link_blocks_left = task.blocks.min(present.saturating_sub(task.start_block));
        }
        if at_granule {
            (*node).granules_read += 1;
            fragment::granule_read();
            (*node).granule_left = (*node).granule_blocks.min((*node).link_blocks_left);
        }
        let (start, blocks) = next_piece(node, PIECE_BLOCKS);
        (*node).link_blocks_left -= blocks;
        Some((start, blocks))
    }
}

/// Takes the node under a ParallelReplicas, which lays out tasks for these participants.
///
/// # Safety
/// The state is ours; `participants` outlives the query.
pub unsafe fn manage(node: *mut GranuleScanState, participants: *const Participants) {
    // SAFETY: as the caller says.
    unsafe {
        (*node).managed = true;
        (*node).participants = participants;
        count_blocks(node);
    }
}

/// Did the fragment read the scan to its end?
///
/// # Safety
/// The state is ours.
pub unsafe fn has_ended(node: *mut GranuleScanState) -> bool {
    // SAFETY: as the caller says.
    unsafe { (*node).ended }
}

/// Has `hook` called in this process between pieces of its work.
///
/// # Safety
/// The state is ours; `context` is what `hook` expects for the rest of the query.
pub unsafe fn call_between_pieces(
    node: *mut GranuleScanState,
    hook: LeaderHook,
    context: *mut c_void,
) {
    // SAFETY: as the caller says.
    unsafe {
        (*node).between_pieces = Some(hook);
        (*node).between_pieces_context = context;
    }
}

/// How many granules the relation has now.
///
/// # Safety
/// `node` is a granule scan of a query that is being executed, and its relation is open.
pub unsafe fn granules(node: *mut GranuleScanState) -> u32 {
    // SAFETY: as the caller says.
    unsafe {
        count_blocks(node);
        (*node).blocks.div_ceil((*node).granule_blocks)
    }
}

/// Blocks of the relation.
///
/// # Safety
/// The state is ours, and managed.
pub unsafe fn blocks(node: *mut GranuleScanState) -> u32 {
    // SAFETY: as the caller says.
    unsafe { (*node).blocks }
}

/// The relation's blocks, counted once per execution, after the snapshot was taken: all rows that
/// it can see are in them.
///
/// # Safety
/// The state is ours, its relation open.
unsafe fn count_blocks(node: *mut GranuleScanState) {
    // SAFETY: as the caller says.
    unsafe {
        if !(*node).blocks_known {
            (*node).blocks = heap::blocks((*node).css.ss.ss_currentRelation);
            (*node).blocks_known = true;
        }
    }
}

/// # Safety
/// The state is ours.
unsafe fn scan_spec(node: *mut GranuleScanState) -> ScanSpec {
    // SAFETY: as the caller says; the relation is open.
    unsafe {
        count_blocks(node);
        let relation = (*node).css.ss.ss_currentRelation;
        ScanSpec {
            database: pg_sys::MyDatabaseId.to_u32(),
            relfilenode: match settings::assignment() {
                // As if it were another table each time.
                Assignment::Random => pg_sys::pg_prng_uint32(&raw mut pg_sys::pg_global_prng_state),
                _ => (*relation).rd_node.relNode.to_u32(),
            },
            blocks: (*node).blocks,
            granule_blocks: (*node).granule_blocks,
            segment_granules: (*node).segment_granules,
        }
    }
}

/// Lays out tasks in this process's own memory: there are no local workers.
///
/// # Safety
/// The state is ours.
pub unsafe fn init_private_tasks(node: *mut GranuleScanState) {
    // SAFETY: as the caller says; the memory is of the size that was asked for.
    unsafe {
        let spec = scan_spec(node);
        let alone;
        let participants = if (*node).participants.is_null() {
            alone = Participants::local(0);
            &alone
        } else {
            &*(*node).participants
        };
        let bytes = check(tasks::size_bytes(&spec, participants));
        if (*node).private_bytes != bytes {
            if (*node).private_bytes > 0 {
                pg_sys::pfree((*node).tasks.cast());
                (*node).private_bytes = 0;
            }
            let context = (*(*node).css.ss.ps.state).es_query_cxt;
            (*node).tasks = pg_sys::MemoryContextAllocHuge(context, bytes).cast();
            (*node).private_bytes = bytes;
        }
        check(tasks::init((*node).tasks, &spec, participants, false));
        (*(*node).tasks).scan = (*node).scan_index;
        reset(node);
    }
}

/// The task state, once it is laid out.
///
/// # Safety
/// The state is ours.
pub unsafe fn task_memory(node: *mut GranuleScanState) -> *mut SharedTasks {
    // SAFETY: as the caller says.
    unsafe { (*node).tasks }
}

/// Makes tasks start at one granule and grow: few rows may be needed.
///
/// # Safety
/// The state is ours, its tasks laid out.
pub unsafe fn start_small(node: *mut GranuleScanState) {
    // SAFETY: as the caller says.
    unsafe {
        tasks::with((*node).tasks, |state| {
            state.set_ramp(true);
            Ok(())
        });
    }
}

/// Forgets the memory that a parallel context takes away.
///
/// # Safety
/// The state is ours.
pub unsafe fn forget_shared_tasks(node: *mut GranuleScanState) {
    // SAFETY: as the caller says.
    unsafe {
        if (*node).private_bytes == 0 {
            (*node).tasks = std::ptr::null_mut();
        }
    }
}

/// # Safety
/// The state is ours.
unsafe fn reset(node: *mut GranuleScanState) {
    // SAFETY: as the caller says.
    unsafe {
        (*node).in_range = false;
        (*node).ended = false;
        (*node).work = LocalWork::default();
        (*node).link_blocks_left = 0;
        (*node).granule_left = 0;
        executor::clear_slot((*node).css.ss.ss_ScanTupleSlot);
    }
}

fn check<T>(result: Result<T, parallel_replicas_core::task_state::TaskError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => crate::error::raise(
            pgrx::PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "table cannot be divided into granules",
            &format!("{error}."),
            "Raise parallel_replicas.granule_blocks.",
        ),
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn end_custom_scan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the state is ours.
    unsafe {
        let node = css.cast::<GranuleScanState>();
        if !(*node).scan.is_null() {
            executor::end_heap_scan((*node).scan);
            (*node).scan = std::ptr::null_mut();
            (*css).ss.ss_currentScanDesc = std::ptr::null_mut();
        }
    }
}

/// Starts over. Under a ParallelReplicas the tasks are that node's affair: its leader also rescans
/// to do what a lost replica left undone.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn rescan_custom_scan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the state is ours.
    unsafe {
        let node = css.cast::<GranuleScanState>();
        reset(node);
        if !(*node).managed && (*node).private_bytes > 0 {
            init_private_tasks(node);
        }
        pg_sys::ExecScanReScan(&raw mut (*css).ss);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn estimate_dsm_custom_scan(
    css: *mut pg_sys::CustomScanState,
    pcxt: *mut pg_sys::ParallelContext,
) -> pg_sys::Size {
    // SAFETY: PostgreSQL's own arguments.
    unsafe {
        let node = css.cast::<GranuleScanState>();
        let spec = scan_spec(node);
        check(with_participants(node, pcxt, |participants| {
            tasks::size_bytes(&spec, participants)
        }))
    }
}

/// # Safety
/// The state is ours.
unsafe fn with_participants<T>(
    node: *mut GranuleScanState,
    pcxt: *mut pg_sys::ParallelContext,
    f: impl FnOnce(&Participants) -> T,
) -> T {
    // SAFETY: as the caller says.
    unsafe {
        if (*node).participants.is_null() {
            f(&Participants::local((*pcxt).nworkers.max(0) as usize))
        } else {
            f(&*(*node).participants)
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn initialize_dsm_custom_scan(
    css: *mut pg_sys::CustomScanState,
    pcxt: *mut pg_sys::ParallelContext,
    coordinate: *mut c_void,
) {
    // SAFETY: PostgreSQL's own arguments; the memory has the size that was estimated.
    unsafe {
        let node = css.cast::<GranuleScanState>();
        let spec = scan_spec(node);
        if (*node).private_bytes > 0 {
            pg_sys::pfree((*node).tasks.cast());
            (*node).private_bytes = 0;
        }
        (*node).tasks = coordinate.cast();
        check(with_participants(node, pcxt, |participants| {
            tasks::init((*node).tasks, &spec, participants, true)
        }));
        (*(*node).tasks).scan = (*node).scan_index;
        reset(node);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn reinitialize_dsm_custom_scan(
    css: *mut pg_sys::CustomScanState,
    pcxt: *mut pg_sys::ParallelContext,
    coordinate: *mut c_void,
) {
    // SAFETY: as for the first initialisation.
    unsafe { initialize_dsm_custom_scan(css, pcxt, coordinate) }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn initialize_worker_custom_scan(
    css: *mut pg_sys::CustomScanState,
    _toc: *mut pg_sys::shm_toc,
    coordinate: *mut c_void,
) {
    // SAFETY: PostgreSQL's own arguments.
    unsafe {
        let node = css.cast::<GranuleScanState>();
        (*node).tasks = coordinate.cast();
        (*node).process = (pg_sys::ParallelWorkerNumber + 1) as u16;
    }
}
