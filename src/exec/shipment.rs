//! What the coordinator ships: the guards of its side, snapshot, WAL position, plan, parameters.
//!
//! Made when the node is first executed, not when it is planned, because a plan may be executed
//! much later and more than once. The order is part of the proof that the answer is exact: locks
//! are held from planning on, the snapshot is active and registered, blocks are counted, and only
//! then is the WAL position read and flushed.

use super::fold;
use super::state::{OwnWrites, State};
use crate::pg::{collation, ffi, guc, heap, library, plan, proc, stack, timezone};
use crate::plan::extensions;
use crate::plan::private::{ParallelReplicasPrivate, Refused};
use crate::settings;
use parallel_replicas_core::frame::{
    Begin, CollationIdentity, ExecParameter, ExtensionIdentity, Identity, PROTOCOL_VERSION,
    Relation, RelationIdentity,
};
use parallel_replicas_core::reason::Reason;
use parallel_replicas_core::snapshot::WireSnapshot;
use pgrx::{PgMemoryContexts, pg_sys};
use std::collections::BTreeMap;
use std::ffi::CStr;

/// Settings that expressions or the executor read.
pub const SHIPPED_SETTINGS: &[&CStr] = &[
    c"TimeZone",
    c"timezone_abbreviations",
    c"DateStyle",
    c"IntervalStyle",
    c"extra_float_digits",
    c"bytea_output",
    c"xmlbinary",
    c"xmloption",
    c"lc_monetary",
    c"lc_numeric",
    c"lc_time",
    c"gin_fuzzy_search_limit",
    c"search_path",
    c"quote_all_identifiers",
    c"array_nulls",
    c"work_mem",
    c"hash_mem_multiplier",
    // So that the sums of EXPLAIN and pg_stat_statements are of one kind.
    c"track_io_timing",
];

/// Most transaction ids between xmin and xmax for which an overflowed snapshot is completed by
/// asking pg_subtrans; about 0.1 us each when cached.
const MAX_EXPANDED_XIDS: u32 = 1_000_000;

/// Most bytes of what one link is sent to begin with; a frame has room for more.
pub const MAX_BODY_BYTES: usize = 48 << 20;

/// Who this server is.
pub fn identity() -> Identity {
    Identity {
        protocol_version: PROTOCOL_VERSION,
        build_id: env!("PARALLEL_REPLICAS_BUILD_ID").to_owned(),
        server_version: proc::server_version(),
        // SAFETY: reads the control file's copy in shared memory.
        system_identifier: unsafe { pg_sys::GetSystemIdentifier() },
        // SAFETY: plain global.
        database: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        block_bytes: pg_sys::BLCKSZ,
    }
}

/// Checks everything that must hold on the coordinator before anything is shipped.
///
/// `parallel`: the fragment is executed by several at once.
/// `own_writes`: what the transaction had written when the executor started. An id that it has got
/// since, by CREATE TABLE AS for its new table, does no harm: it is not before the snapshot's xmax, so
/// a replica takes it for running, and the snapshot sees nothing that it wrote here either.
///
/// # Safety
/// `estate` is the executor state of a running query.
pub unsafe fn check(
    estate: *mut pg_sys::EState,
    parallel: bool,
    own_writes: OwnWrites,
) -> Result<(), Refused> {
    let refuse = |reason| Err(Refused::new(reason, ""));
    // SAFETY: as the caller says; the rest are plain globals and shared-memory reads.
    unsafe {
        if settings::mode() == settings::Mode::Off {
            return refuse(Reason::SwitchedOff);
        }
        if pg_sys::RecoveryInProgress() {
            return refuse(Reason::InRecovery);
        }
        // What was not too deep when it was planned may be by now, in a function that calls itself.
        if stack::is_deep() {
            return Err(Refused::new(Reason::Expression, "too little stack left"));
        }
        if proc::own_xid().is_some() && own_writes == OwnWrites::Any {
            return refuse(Reason::OwnXid);
        }
        if pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as i32 {
            return refuse(Reason::Serializable);
        }
        if pg_sys::old_snapshot_threshold >= 0 {
            return refuse(Reason::OldSnapshotThreshold);
        }
        let snapshot = (*estate).es_snapshot;
        if snapshot.is_null()
            || (*snapshot).snapshot_type != pg_sys::SnapshotType::SNAPSHOT_MVCC
            || (*snapshot).takenDuringRecovery
        {
            return refuse(Reason::NotMvccSnapshot);
        }
        if parallel && !(*estate).es_use_parallel_mode {
            return refuse(Reason::NotParallelMode);
        }
    }
    Ok(())
}

/// The query's snapshot with every transaction in progress named.
///
/// # Safety
/// `snapshot` is a registered MVCC snapshot of this session.
unsafe fn wire_snapshot(snapshot: pg_sys::Snapshot) -> Result<WireSnapshot, Refused> {
    // SAFETY: as the caller says; the arrays have the lengths that go with them.
    unsafe {
        let snapshot = &*snapshot;
        let list = |xids: *const pg_sys::TransactionId, count: usize| -> Vec<u32> {
            (0..count)
                .map(|index| (*xids.add(index)).into_inner())
                .collect()
        };
        let mut in_progress = list(snapshot.xip, snapshot.xcnt as usize);
        let xmin = snapshot.xmin.into_inner();
        let xmax = snapshot.xmax.into_inner();
        if snapshot.suboverflowed {
            expand(&mut in_progress, xmin, xmax)?;
        } else {
            in_progress.extend(list(snapshot.subxip, snapshot.subxcnt.max(0) as usize));
        }
        let next = pg_sys::ReadNextFullTransactionId().value;
        let mut epoch = (next >> 32) as u32;
        if xmax > next as u32 {
            epoch = epoch.wrapping_sub(1);
        }
        let mut wire = WireSnapshot {
            xmin,
            xmax,
            xmax_epoch: epoch,
            in_progress,
            vacuums: vacuums(),
            own_xid_assigned: proc::own_xid().is_some_and(|xid| precedes(xid, xmax)),
            incomplete: false,
        };
        wire.keep_in_range();
        wire.normalise();
        Ok(wire)
    }
}

/// As TransactionIdPrecedes for normal ids: in a circle.
fn precedes(xid: u32, other: u32) -> bool {
    (xid.wrapping_sub(other) as i32) < 0
}

/// Transaction ids of lazy VACUUMs that are in progress now. One that had an id before the snapshot
/// was taken and has ended since has its end in the WAL before the position that is read next.
fn vacuums() -> Vec<u32> {
    // SAFETY: the process array lives as long as the server; flags and ids are read one by one, and
    // an id that changes meanwhile belongs to a transaction that the snapshot does not reach.
    unsafe {
        let all = &*pg_sys::ProcGlobal;
        (0..all.allProcCount as usize)
            .map(|index| all.allProcs.add(index))
            .filter(|proc| {
                let flags = std::ptr::read_volatile(&raw const (**proc).statusFlags);
                u32::from(flags) & pg_sys::PROC_IN_VACUUM != 0
            })
            .map(|proc| std::ptr::read_volatile(&raw const (*proc).xid).into_inner())
            .filter(|xid| *xid >= parallel_replicas_core::snapshot::FIRST_NORMAL_XID)
            .collect()
    }
}

/// Adds the sub-transactions that the snapshot had no room for: every id between xmin and xmax whose
/// top-level parent is in progress, and every one that has neither committed nor aborted by now. The
/// latter have just been assigned, and their parent is not known yet (varsup.c hands out the id
/// before xact.c records the parent), or were lost in a crash, which does no harm in the list.
///
/// # Safety
/// The snapshot with these bounds is registered, so that pg_subtrans still has its range.
unsafe fn expand(in_progress: &mut Vec<u32>, xmin: u32, xmax: u32) -> Result<(), Refused> {
    let span = xmax.wrapping_sub(xmin);
    if span > MAX_EXPANDED_XIDS {
        return Err(Refused::new(Reason::SubtransactionOverflow, ""));
    }
    let known: std::collections::HashSet<u32> = in_progress.iter().copied().collect();
    for offset in 0..span {
        let xid = xmin.wrapping_add(offset);
        if xid < parallel_replicas_core::snapshot::FIRST_NORMAL_XID || known.contains(&xid) {
            continue;
        }
        if offset % 4096 == 0 {
            pgrx::check_for_interrupts!();
        }
        let id = pg_sys::TransactionId::from(xid);
        // SAFETY: as the caller says; the commit log reaches as far back as any snapshot.
        let running = unsafe {
            // The commit log first: a transaction that has ended by then has its parent recorded.
            let ended = pg_sys::TransactionIdDidCommit(id) || pg_sys::TransactionIdDidAbort(id);
            let top = pg_sys::SubTransGetTopmostTransaction(id).into_inner();
            !ended || known.contains(&top)
        };
        if running {
            in_progress.push(xid);
        }
    }
    Ok(())
}

/// Makes the frame that starts work on a replica. InitPlan outputs have been evaluated.
///
/// # Safety
/// `estate` is the state of a running query that passed [`check`]; `fragment` is its plan.
pub unsafe fn begin(
    state: &State,
    fragment: *mut pg_sys::Plan,
    estate: *mut pg_sys::EState,
    query_id: [u8; 16],
) -> Result<Begin, Refused> {
    let private = &state.private;
    // SAFETY: as the caller says.
    unsafe {
        let mut relations = private.relations.iter();
        let least = match state.own_writes {
            // It keeps out everybody else, is replayed, and held on every replica until this
            // transaction ends.
            OwnWrites::None | OwnWrites::Any => pg_sys::AccessExclusiveLock,
            // Whoever writes a row, or locks it, holds this or more until the transaction's end.
            OwnWrites::Refresh => pg_sys::RowShareLock,
        };
        if proc::own_xid().is_some() && relations.any(|(_, oid)| is_locked_by_us(*oid, least)) {
            return Err(Refused::new(Reason::OwnXid, ""));
        }
        // May load libraries, so it comes before the position is read.
        let extensions = extensions(&private.extensions)?;
        // What fills the last of these blocks is in the WAL by then, too.
        let read_to_end = state.live.read_to_end.iter();
        let filled: BTreeMap<u32, u32> = read_to_end.map(|oid| (*oid, filled(*oid))).collect();
        let relations = private.relations.iter();
        let relations = relations
            .map(|(_, oid)| relation(*oid, filled.get(oid).copied().unwrap_or(0)))
            .collect();
        let snapshot = wire_snapshot((*estate).es_snapshot)?;
        let lsn = proc::flushed_insert_end();
        let (mut user, mut security_context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut user, &mut security_context);
        Ok(Begin {
            query_id,
            timeline: pg_sys::GetWALInsertionTimeLine(),
            lsn,
            replay_wait_ms: settings::replay_wait_timeout_ms().min(u64::from(u32::MAX)) as u32,
            snapshot,
            transaction_start: pg_sys::GetCurrentTransactionStartTimestamp(),
            statement_start: pg_sys::GetCurrentStatementStartTimestamp(),
            user: user.to_u32(),
            security_context,
            settings: shipped_settings(),
            time_zone_fingerprint: private.time_zone.then(timezone::fingerprint),
            collations: collations(&private.collations),
            extensions,
            relations,
            whole: private.whole,
            plan: in_passing(|| serialize_plan(state, fragment, estate)),
            parameters: in_passing(|| external_parameters(estate)),
            exec_parameters: in_passing(|| exec_parameters(private, estate)),
            instrument: (*estate).es_instrument,
            // Half, so that the rows of the granule in which it is passed find room as well.
            task_bytes: match private.streaming {
                true => pg_sys::work_mem.max(64) as u64 * 1024 / 2,
                false => 0,
            },
        })
    }
}

/// What PostgreSQL allocates meanwhile is freed: a fragment may be executed many times in a query.
fn in_passing<R>(make: impl FnOnce() -> R) -> R {
    // SAFETY: what is made is Rust's, and refers to nothing in there.
    unsafe { PgMemoryContexts::new("parallel_replicas shipment").switch_to(|_| make()) }
}

fn shipped_settings() -> Vec<(String, String)> {
    SHIPPED_SETTINGS
        .iter()
        .filter_map(|name| Some((name.to_string_lossy().into_owned(), guc::value(name)?)))
        .collect()
}

fn collations(oids: &[u32]) -> Vec<CollationIdentity> {
    oids.iter()
        .filter_map(|oid| {
            // SAFETY: in a transaction.
            let version = unsafe { collation::version(*oid) }?;
            Some(CollationIdentity { oid: *oid, version })
        })
        .collect()
}

/// The setting may have changed since the query was planned.
///
/// # Safety
/// In a transaction.
unsafe fn extensions(used: &[(u32, Vec<u32>)]) -> Result<Vec<ExtensionIdentity>, Refused> {
    used.iter()
        .map(|(oid, functions)| {
            // SAFETY: as the caller says; the plan that calls the functions is valid.
            unsafe {
                let allowed = extensions::is_allowed(*oid);
                let libraries = library::fingerprint(functions.iter().copied());
                match libraries.filter(|_| allowed) {
                    Some(libraries) => Ok(ExtensionIdentity {
                        oid: *oid,
                        libraries,
                    }),
                    None => Err(Refused::new(Reason::Function, extensions::name(*oid))),
                }
            }
        })
        .collect()
}

/// Does this transaction hold a lock of this strength, or a stronger one?
///
/// # Safety
/// The relation is locked by this transaction.
unsafe fn is_locked_by_us(oid: u32, least: u32) -> bool {
    // SAFETY: as the caller says; closed again.
    unsafe {
        let relation = pg_sys::relation_open(pg_sys::Oid::from(oid), pg_sys::NoLock as i32);
        let held = pg_sys::CheckRelationLockedByMe(relation, least as i32, true);
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        held
    }
}

/// Blocks that every whole copy of a table has.
///
/// # Safety
/// It is locked by this transaction.
unsafe fn filled(oid: u32) -> u32 {
    // SAFETY: as the caller says; closed again.
    unsafe {
        let opened = pg_sys::relation_open(pg_sys::Oid::from(oid), pg_sys::NoLock as i32);
        let blocks = heap::filled_blocks(opened);
        pg_sys::relation_close(opened, pg_sys::NoLock as i32);
        blocks
    }
}

/// # Safety
/// It is locked by this transaction.
unsafe fn relation(oid: u32, filled_blocks: u32) -> Relation {
    // SAFETY: as the caller says; closed again.
    unsafe {
        let opened = pg_sys::relation_open(pg_sys::Oid::from(oid), pg_sys::NoLock as i32);
        let identity = relation_identity(opened);
        pg_sys::relation_close(opened, pg_sys::NoLock as i32);
        Relation {
            identity,
            filled_blocks,
        }
    }
}

/// As this server's catalog has it.
///
/// # Safety
/// The relation is open.
pub unsafe fn relation_identity(relation: pg_sys::Relation) -> RelationIdentity {
    // SAFETY: as the caller says.
    unsafe {
        let class = &*(*relation).rd_rel;
        RelationIdentity {
            oid: (*relation).rd_id.to_u32(),
            tablespace: (*relation).rd_node.spcNode.to_u32(),
            relfilenode: (*relation).rd_node.relNode.to_u32(),
            relkind: class.relkind as u8,
            persistence: class.relpersistence as u8,
            access_method: class.relam.to_u32(),
            attributes: class.relnatts as u16,
        }
    }
}

/// The fragment as the text of a statement, made in a memory context of its own: a plan may be executed
/// many times in a query.
///
/// # Safety
/// As for [`begin`].
unsafe fn serialize_plan(
    state: &State,
    fragment: *mut pg_sys::Plan,
    estate: *mut pg_sys::EState,
) -> Vec<u8> {
    // SAFETY: as the caller says; the text is copied.
    unsafe {
        let statement = shipped_statement(state, fragment, estate);
        CStr::from_ptr(pg_sys::nodeToString(statement.cast()))
            .to_bytes()
            .to_vec()
    }
}

/// A statement of its own, after PostgreSQL's execParallel.c. A whole query takes the plans of its
/// subqueries along.
///
/// # Safety
/// As for [`begin`].
unsafe fn shipped_statement(
    state: &State,
    fragment: *mut pg_sys::Plan,
    estate: *mut pg_sys::EState,
) -> *mut pg_sys::PlannedStmt {
    let private = &state.private;
    // SAFETY: as the caller says; the copy is ours to change.
    unsafe {
        let mut copy = pg_sys::copyObjectImpl(fragment.cast()).cast::<pg_sys::Plan>();
        // Otherwise the replica's executor would filter these columns away.
        for entry in plan::items::<pg_sys::TargetEntry>((*copy).targetlist) {
            (*entry).resjunk = false;
        }
        state.live.keep(&raw mut copy);
        if private.fold {
            fold::plan(copy);
        }
        let statement =
            pgrx::PgBox::<pg_sys::PlannedStmt>::alloc_node(pg_sys::NodeTag::T_PlannedStmt)
                .into_pg();
        (*statement).commandType = pg_sys::CmdType::CMD_SELECT;
        (*statement).canSetTag = true;
        (*statement).planTree = copy;
        if private.whole {
            let original = (*estate).es_plannedstmt;
            let subplans = pg_sys::copyObjectImpl((*original).subplans.cast()).cast();
            for place in plan::cells::<pg_sys::Plan>(subplans) {
                state.live.keep(place);
                if private.fold && !(*place).is_null() {
                    fold::plan(*place);
                }
            }
            (*statement).subplans = subplans;
            (*statement).rewindPlanIDs = (*original).rewindPlanIDs;
        }
        (*statement).rtable = (*estate).es_range_table;
        (*statement).paramExecTypes = (*(*estate).es_plannedstmt).paramExecTypes;
        (*statement).jitFlags = (*estate).es_jit_flags;
        (*statement).queryId = (*(*estate).es_plannedstmt).queryId;
        (*statement).stmt_location = -1;
        (*statement).stmt_len = -1;
        statement
    }
}

/// # Safety
/// As for [`begin`].
unsafe fn external_parameters(estate: *mut pg_sys::EState) -> Vec<u8> {
    // SAFETY: as the caller says; the buffer has the size that was asked for.
    unsafe {
        let parameters = known_parameters((*estate).es_param_list_info);
        if parameters.is_null() {
            return Vec::new();
        }
        let bytes = pg_sys::EstimateParamListSpace(parameters);
        let mut buffer = vec![0_u8; bytes];
        let mut cursor = buffer.as_mut_ptr().cast();
        pg_sys::SerializeParamList(parameters, &mut cursor);
        buffer
    }
}

/// A list of its own of the parameters that have a value: some are computed, and would fail, where nobody
/// reads them.
///
/// # Safety
/// `parameters` is null or those of a running query.
unsafe fn known_parameters(parameters: pg_sys::ParamListInfo) -> pg_sys::ParamListInfo {
    // SAFETY: as the caller says; the list has so many entries, and so has the new one.
    unsafe {
        if parameters.is_null() {
            return parameters;
        }
        let count = (*parameters).numParams;
        let known = pg_sys::makeParamList(count);
        for index in 0..count {
            let mut computed = pg_sys::ParamExternData::default();
            let parameter = match (*parameters).paramFetch {
                Some(fetch) => ffi::fetch_parameter(fetch, parameters, index + 1, &mut computed),
                None => (*parameters).params.as_mut_ptr().add(index as usize),
            };
            let own = (*known).params.as_mut_ptr().add(index as usize);
            *own = *parameter;
            if (*own).ptype != pg_sys::InvalidOid && !(*own).isnull {
                let (mut length, mut by_value) = (0_i16, false);
                pg_sys::get_typlenbyval((*own).ptype, &mut length, &mut by_value);
                (*own).value = self_contained((*own).value, length);
            }
        }
        known
    }
}

/// A value that refers to nothing on this server's disk.
///
/// # Safety
/// `value` is not null, and of a type of that length.
unsafe fn self_contained(value: pg_sys::Datum, length: i16) -> pg_sys::Datum {
    match length {
        // SAFETY: as the caller says: it has a header.
        -1 => unsafe { pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr()) }.into(),
        _ => value,
    }
}

/// # Safety
/// As for [`begin`]; the InitPlans have run.
unsafe fn exec_parameters(
    private: &ParallelReplicasPrivate,
    estate: *mut pg_sys::EState,
) -> Vec<ExecParameter> {
    // SAFETY: as the caller says; parameter numbers come from the plan itself.
    unsafe {
        let types = (*(*estate).es_plannedstmt).paramExecTypes;
        private
            .init_params
            .iter()
            .map(|id| {
                let value = (*estate).es_param_exec_vals.add(*id as usize);
                let kind = (*(*types).elements.add(*id as usize)).oid_value;
                let (mut length, mut by_value) = (0_i16, false);
                if kind == pg_sys::InvalidOid {
                    (length, by_value) = (size_of::<pg_sys::Datum>() as i16, true);
                } else {
                    pg_sys::get_typlenbyval(kind, &mut length, &mut by_value);
                }
                let is_null = (*value).isnull;
                let datum = match is_null {
                    true => (*value).value,
                    false => self_contained((*value).value, length),
                };
                let length = i32::from(length);
                let bytes = ffi::guarded::datumEstimateSpace(datum, is_null, by_value, length);
                let mut buffer = vec![0_u8; bytes];
                let mut cursor = buffer.as_mut_ptr().cast();
                ffi::guarded::datumSerialize(datum, is_null, by_value, length, &mut cursor);
                ExecParameter {
                    id: *id as u32,
                    datum: buffer,
                }
            })
            .collect()
    }
}
