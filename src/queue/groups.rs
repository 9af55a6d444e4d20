//! Resource groups.
//!
//! Definitions are rows of `parallel_replicas.resource_group`, so they are dumped and replicated.
//! Limits and use are in shared memory, in a place that is taken when somebody first uses the group,
//! or when its definition is committed. A group belongs to its database.
//!
//! Whoever defines bumps a version when the definition has been committed; whoever reads a definition
//! and finds another version afterwards reads again, so no place keeps an old one. Definitions that come
//! by replication, or go with the extension, nobody applies: so a session trusts a place only when
//! it has read the definition itself, and reads again when the table's relation cache entry has been
//! invalidated, which every change does.

use super::shared::{self, GROUPS_MAX, GroupDetails, View};
use super::{overload, settings, usage};
use crate::error::raise;
use crate::pg::catalog::open_own_table;
use parallel_replicas_core::queue::Group;
use pgrx::{PgSqlErrorCode, pg_sys};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_void};

const NAME_SIZE: usize = pg_sys::NAMEDATALEN as usize;

/// Types of the table's columns.
const COLUMNS: [pg_sys::Oid; 4] = [
    pg_sys::NAMEOID,
    pg_sys::INT4OID,
    pg_sys::FLOAT8OID,
    pg_sys::FLOAT8OID,
];

/// A group's name, padded with zeroes.
pub type Name = [u8; NAME_SIZE];

/// A group as it is defined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Definition {
    pub name: Name,
    /// 0: no limit, as for the others.
    pub concurrency: u32,
    pub max_cpu_cores: f64,
    pub mem_used_pct_limit: f64,
}

/// What a transaction has done to a definition.
#[derive(Clone, Copy)]
struct Change {
    subtransaction: pg_sys::SubTransactionId,
    definition: Definition,
    dropped: bool,
}

thread_local! {
    static CHANGES: RefCell<Vec<Change>> = const { RefCell::new(Vec::new()) };
    /// The name that was looked for in vain, and the definitions' version then.
    static MISSING: Cell<Option<(Name, u64)>> = const { Cell::new(None) };
    /// The name whose definition was read last, and how many changes had been noticed before.
    static CURRENT: Cell<Option<(Name, u64)>> = const { Cell::new(None) };
    static CHANGES_NOTICED: Cell<u64> = const { Cell::new(0) };
    /// How many of them had been noticed when a waiter last looked.
    static FOLLOWED: Cell<u64> = const { Cell::new(0) };
    /// The table that was read last; none if the extension was not there.
    static TABLE: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
    /// The callback for invalidations is there: it is a process's own.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    /// Those for the ends of transactions are there.
    static CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

/// Has the ends of this backend's transactions noticed, from its first change on.
fn watch_ends() {
    if CALLBACKS.get() {
        return;
    }
    // SAFETY: the functions live as long as the process.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_event), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut());
    }
    CALLBACKS.set(true);
}

/// None if it is too long for a name.
pub fn name(text: &[u8]) -> Option<Name> {
    let mut name = [0; NAME_SIZE];
    (text.len() < NAME_SIZE && !text.is_empty()).then(|| {
        name[..text.len()].copy_from_slice(text);
        name
    })
}

/// As text.
pub fn text(name: &Name) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_SIZE);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

fn own_database() -> u32 {
    // SAFETY: plain global.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

/// The session's group: its number plus 1, or 0 if it has none, or groups do not count.
pub fn number() -> u32 {
    if !settings::is_by_group() {
        return 0;
    }
    let Some(name) = settings::group().and_then(|text| name(text.as_bytes())) else {
        return 0;
    };
    loop {
        let (found, version) =
            shared::locked(|view| (find(view, own_database(), &name), *view.groups_version));
        // What this transaction has changed is not to be seen by others yet.
        if CHANGES.with_borrow(|changes| !changes.is_empty()) {
            return found.map_or(0, |index| index as u32 + 1);
        }
        let noticed = CHANGES_NOTICED.get();
        if CURRENT.get() == Some((name, noticed)) {
            if let Some(index) = found {
                return index as u32 + 1;
            }
            if MISSING.get() == Some((name, version)) {
                return 0;
            }
        }
        let definition = read(&name);
        CURRENT.set(Some((name, noticed)));
        MISSING.set(definition.is_none().then_some((name, version)));
        let placed = shared::locked(|view| {
            (*view.groups_version == version).then(|| match &definition {
                Some(definition) => place(view, own_database(), definition),
                None => {
                    remove(view, own_database(), &name);
                    None
                }
            })
        });
        // Changes that nobody applies are noticed: whoever had read an older definition, and comes
        // later than those who read the new one, must not have the last word.
        // SAFETY: in a transaction.
        unsafe { pg_sys::AcceptInvalidationMessages() };
        if let Some(index) = placed
            && CHANGES_NOTICED.get() == noticed
        {
            return index.map_or(0, |index| index as u32 + 1);
        }
    }
}

/// A waiter looks whether its group has been changed in a way that nobody applies: by replication,
/// or with the extension. True if it has.
pub fn follow() -> bool {
    if !settings::is_by_group() || settings::group().is_none() {
        return false;
    }
    // SAFETY: in a transaction, between planning and execution.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    let noticed = CHANGES_NOTICED.get();
    if FOLLOWED.replace(noticed) == noticed {
        return false;
    }
    number();
    // SAFETY: as above. What was read is not to hold up the removal of rows.
    unsafe { pg_sys::InvalidateCatalogSnapshot() };
    true
}

fn find(view: &View<'_>, database: u32, name: &Name) -> Option<usize> {
    view.group_details
        .iter()
        .position(|group| group.database == database && group.name == *name && !group.dropped)
}

/// The place of a definition: the one that it has, or a free one. None if there is none.
fn place(view: &mut View<'_>, database: u32, definition: &Definition) -> Option<usize> {
    let index = view
        .group_details
        .iter()
        .position(|group| group.database == database && group.name == definition.name)
        .or_else(|| free_place(view))?;
    if view.group_details[index].name != definition.name
        || view.group_details[index].database != database
    {
        view.queue.groups[index] = Group::default();
        view.group_details[index] = GroupDetails {
            database,
            name: definition.name,
            max_cpu_cores: 0.0,
            mem_used_pct_limit: 0.0,
            dropped: false,
            cpu_cores: 0.0,
            mem_bytes: 0,
            cpu_us: 0,
            cpu_us_measured: 0,
        };
    }
    let details = &mut view.group_details[index];
    details.dropped = false;
    details.max_cpu_cores = definition.max_cpu_cores;
    details.mem_used_pct_limit = definition.mem_used_pct_limit;
    view.queue.groups[index].concurrency = definition.concurrency;
    if definition.max_cpu_cores == 0.0 && definition.mem_used_pct_limit == 0.0 {
        view.queue.groups[index].overloaded = false;
    }
    Some(index)
}

fn free_place(view: &View<'_>) -> Option<usize> {
    (0..GROUPS_MAX).find(|index| {
        let (details, group) = (&view.group_details[*index], &view.queue.groups[*index]);
        details.database == 0 || (details.dropped && group.running == 0 && group.pending == 0)
    })
}

/// Reads a definition from the table; None if there is none, or no extension in this database.
fn read(name: &Name) -> Option<Definition> {
    // SAFETY: in a transaction; the table has the columns (name, integer, double precision, double
    // precision). The newest snapshot is used, whatever the transaction's is.
    unsafe {
        let relation = open_own_table(c"resource_group", &COLUMNS);
        if relation.is_null() {
            watch(pg_sys::InvalidOid);
            return None;
        }
        watch((*relation).rd_id);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            snapshot,
            0,
            std::ptr::null_mut(),
        );
        let mut found = None;
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() || found.is_some() {
                break;
            }
            let mut values = [pg_sys::Datum::null(); 4];
            let mut nulls = [false; 4];
            pg_sys::heap_deform_tuple(
                tuple,
                (*relation).rd_att,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            if nulls != [false; 4] {
                continue;
            }
            let text = CStr::from_ptr(
                (*values[0].cast_mut_ptr::<pg_sys::nameData>())
                    .data
                    .as_ptr(),
            );
            if self::name(text.to_bytes()) == Some(*name) {
                found = Some(Definition {
                    name: *name,
                    concurrency: (values[1].value() as i32).max(0) as u32,
                    max_cpu_cores: f64::from_bits(values[2].value() as u64),
                    mem_used_pct_limit: f64::from_bits(values[3].value() as u64),
                });
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        found
    }
}

/// Notices changes of the table's definitions from now on.
fn watch(table: pg_sys::Oid) {
    TABLE.set(table);
    if !WATCHING.replace(true) {
        // SAFETY: the function lives as long as the process.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::null()) };
    }
}

/// Called while invalidations are processed; InvalidOid stands for all tables.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, table: pg_sys::Oid) {
    if [pg_sys::InvalidOid, table].contains(&TABLE.get()) || table == pg_sys::InvalidOid {
        CHANGES_NOTICED.set(CHANGES_NOTICED.get() + 1);
    }
}

/// Lets all sessions, also those of standbys, know at commit that definitions have changed.
fn announce() {
    // SAFETY: in a transaction; the table is open meanwhile.
    unsafe {
        let table = open_own_table(c"resource_group", &COLUMNS);
        if !table.is_null() {
            pg_sys::CacheInvalidateRelcache(table);
            pg_sys::relation_close(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        }
    }
}

/// Gives the places of databases that are no more to others.
fn forget_dropped_databases() {
    let mut databases = Vec::with_capacity(GROUPS_MAX);
    shared::locked(|view| {
        databases.extend(view.group_details.iter().map(|group| group.database));
    });
    // SAFETY: a catalog look-up in a transaction.
    databases.retain(|database| unsafe { pg_sys::get_database_name((*database).into()).is_null() });
    shared::locked(|view| {
        for group in view.group_details.iter_mut() {
            group.dropped |= databases.contains(&group.database);
        }
    });
}

/// The transaction has written or deleted a definition; it takes effect at its commit.
pub fn change(definition: Definition, dropped: bool) {
    announce();
    let has_room = || {
        shared::locked(|view| {
            find(view, own_database(), &definition.name).is_some() || free_place(view).is_some()
        })
    };
    let mut room = has_room();
    if !room {
        forget_dropped_databases();
        room = has_room();
    }
    if !room && !dropped {
        raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            "too many resource groups",
            &format!("All databases together may have {GROUPS_MAX}."),
            "Drop groups that nobody needs.",
        );
    }
    watch_ends();
    // SAFETY: reads this backend's transaction state.
    let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
    CHANGES.with_borrow_mut(|changes| {
        changes.push(Change {
            subtransaction,
            definition,
            dropped,
        });
    });
}

fn apply(view: &mut View<'_>, change: &Change) {
    let database = own_database();
    if !change.dropped {
        place(view, database, &change.definition);
    } else {
        remove(view, database, &change.definition.name);
    }
}

/// Whoever runs or waits in the group is counted until it ends, and not limited any more.
fn remove(view: &mut View<'_>, database: u32, name: &Name) {
    if let Some(index) = find(view, database, name) {
        view.group_details[index].dropped = true;
        view.queue.groups[index].concurrency = 0;
        view.queue.groups[index].overloaded = false;
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction_event(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_PREPARE};
    if event == XACT_EVENT_PRE_PREPARE && CHANGES.with_borrow(|changes| !changes.is_empty()) {
        raise(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "cannot PREPARE a transaction that has changed resource groups",
            "",
            "Commit it instead.",
        );
    }
    CHANGES.with_borrow_mut(|changes| {
        if changes.is_empty() {
            return;
        }
        match event {
            XACT_EVENT_COMMIT => {
                shared::locked(|view| {
                    for change in changes.iter() {
                        apply(view, change);
                    }
                    *view.groups_version += 1;
                    view.schedule();
                });
                changes.clear();
            }
            XACT_EVENT_ABORT => changes.clear(),
            _ => {}
        }
    });
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction_event(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    CHANGES.with_borrow_mut(|changes| match event {
        SUBXACT_EVENT_ABORT_SUB => {
            changes.retain(|change| change.subtransaction != subtransaction);
        }
        SUBXACT_EVENT_COMMIT_SUB => {
            for change in changes {
                if change.subtransaction == subtransaction {
                    change.subtransaction = parent;
                }
            }
        }
        _ => {}
    });
}

/// What a group uses.
pub struct Use {
    pub name: String,
    pub group: Group,
    pub cpu_cores: f64,
    pub mem_bytes: u64,
    pub cpu_us: u64,
}

/// The groups of this database that somebody has used since the server started.
pub fn uses() -> Vec<Use> {
    overload::measure_groups_if_due();
    usage::count_all();
    let mut found: Vec<(GroupDetails, Group)> = Vec::with_capacity(GROUPS_MAX);
    shared::locked(|view| {
        for (details, group) in view.group_details.iter().zip(view.queue.groups.iter()) {
            if details.database == own_database() && !details.dropped {
                found.push((*details, *group));
            }
        }
    });
    found
        .into_iter()
        .map(|(details, group)| Use {
            name: text(&details.name),
            group,
            cpu_cores: details.cpu_cores,
            mem_bytes: details.mem_bytes,
            cpu_us: details.cpu_us,
        })
        .collect()
}

/// Name of a group by its number plus 1.
pub fn name_of(number: u32) -> Option<String> {
    let index = number.checked_sub(1)? as usize;
    let name = shared::locked(|view| view.group_details.get(index).map(|group| group.name))?;
    Some(text(&name))
}

/// A group's limits on what it uses, which are measured while somebody waits.
pub fn is_measured(view: &View<'_>) -> bool {
    settings::is_by_group()
        && view.group_details.iter().any(|group| {
            group.database != 0
                && !group.dropped
                && (group.max_cpu_cores > 0.0 || group.mem_used_pct_limit > 0.0)
        })
}

/// A name as SQL functions get it; raises if it is empty or too long.
pub fn checked_name(text: &str) -> Name {
    name(text.as_bytes()).unwrap_or_else(|| {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_NAME,
            "invalid name of a resource group",
            "A name has 1 to 63 bytes.",
            "",
        )
    })
}
