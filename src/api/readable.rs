//! What a user may have read on replicas with the rights of the link's account, and how.
//!
//! The functions of a view run as that account, a foreign table is reached as it, and policies on rows
//! are applied to it. So superusers get at everything, and users at what is the same for whoever reads it.

use super::monitor::has_privs_of;
use super::type_owners::owners_inside;
use crate::error;
use crate::pg::ffi;
use pgrx::{PgSqlErrorCode, pg_sys};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};

/// The extension's views that tell everybody the same.
const FOR_ALL: [&CStr; 4] = [
    c"events",
    c"query_queue",
    c"query_queue_classes",
    c"resource_groups",
];
/// Those that tell each user his own, by their column `user`.
const BY_USER: [&CStr; 4] = [
    c"query_log",
    c"text_log",
    c"query_progress",
    c"running_fragments",
];
/// Those that hide fields, rather than rows, from all but members of pg_monitor.
const FOR_MONITORS: [&CStr; 2] = [c"replicas", c"running_queries"];

/// A relation that may be read.
pub struct Readable {
    pub relation: pg_sys::Oid,
    /// Qualified and quoted.
    pub name: CString,
    /// A condition on its rows, `r`, that starts with WHERE; or nothing.
    pub condition: Vec<u8>,
    /// Whose rights its values are taken in with, if not the user's: types may have functions.
    pub reads_as: Option<pg_sys::Oid>,
}

impl Readable {
    pub fn shown(&self) -> Cow<'_, str> {
        self.name.to_string_lossy()
    }

    /// The question whether the relation of this name is this one. Servers of one cluster give the
    /// same numbers.
    pub fn is_same(&self) -> Vec<u8> {
        // SAFETY: main thread; a copy of PostgreSQL's, zero-terminated.
        let name = unsafe { CStr::from_ptr(pg_sys::quote_literal_cstr(self.name.as_ptr())) };
        let number = self.relation.to_u32().to_string();
        let parts = [
            name.to_bytes(),
            b"::pg_catalog.regclass = ",
            number.as_bytes(),
            b"::pg_catalog.oid",
        ];
        parts.concat()
    }
}

struct Class {
    name: CString,
    kind: u8,
    owner: pg_sys::Oid,
    qualified: CString,
}

/// Raises 42809 if the type is not that of a table's or view's rows, and 42501 if the user may not
/// read it so. The relation stays as it is until the end of the transaction.
pub fn readable(row_type: pg_sys::Oid) -> Readable {
    let class = class(row_type);
    let Some((relation, class)) = class else {
        error::raise(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            format!(
                "type {} is not the row type of a table or view",
                type_name(row_type)
            ),
            "",
            "Name the relation as a null value of its row type, such as \
             NULL::parallel_replicas.events.",
        );
    };
    // SAFETY: main thread, inside a transaction; the relation is locked, its name is zero-terminated.
    let (user, is_superuser, is_safe, has_policy) = unsafe {
        let user = pg_sys::GetUserId();
        let allowed = pg_sys::pg_class_aclcheck(relation, user, pg_sys::ACL_SELECT);
        if allowed != pg_sys::AclResult::ACLCHECK_OK {
            let kind = pg_sys::get_relkind_objtype(class.kind as c_char);
            pg_sys::aclcheck_error(allowed, kind, class.name.as_ptr());
        }
        let policy = pg_sys::check_enable_rls(relation, user, true);
        (
            user,
            pg_sys::superuser_arg(user),
            pg_sys::superuser_arg(class.owner) && is_in_schema_of_superuser(relation),
            policy == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32,
        )
    };
    let condition = match is_superuser {
        true => Some(Vec::new()),
        false if !is_safe || has_policy => None,
        false => condition(relation, &class),
    };
    let Some(condition) = condition else {
        refuse(
            &class,
            "It would be read there with the rights of the link's account. Users who are not superusers \
             may read so only tables and materialized views that belong to a superuser, as their schema \
             and parts do, and have no row-level security for them, and views of this extension that show them no more than \
             they may see.",
            "Let a superuser read it, or keep what is to be read in a table or materialized view of a \
             superuser.",
        );
    };
    // SAFETY: main thread, inside a transaction; the relation is locked.
    let (mut owners, is_superusers) =
        unsafe { (owners_inside(row_type), pg_sys::superuser_arg(class.owner)) };
    owners.remove(&user);
    if !is_superusers {
        owners.insert(class.owner);
    }
    // There is one role with whose rights values are made. A superuser can lend himself any other's.
    if owners.len() > usize::from(is_superuser) {
        refuse(
            &class,
            "Functions of the domains, ranges and composite types inside its columns would be executed with the \
             rights of somebody else than their owner.",
            "Let a superuser own these types, or keep what is to be read in columns of other types.",
        );
    }
    Readable {
        relation,
        name: class.qualified,
        condition,
        reads_as: owners.into_iter().next(),
    }
}

fn refuse(class: &Class, detail: &str, hint: &str) -> ! {
    error::raise(
        PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        format!(
            "permission denied to read {} on replicas",
            class.qualified.to_string_lossy()
        ),
        detail,
        hint,
    )
}

fn type_name(oid: pg_sys::Oid) -> String {
    // SAFETY: main thread, inside a transaction; answers a zero-terminated text for every number.
    unsafe { CStr::from_ptr(pg_sys::format_type_be(oid)) }
        .to_string_lossy()
        .into_owned()
}

/// The relation whose rows have this type, locked.
fn class(row_type: pg_sys::Oid) -> Option<(pg_sys::Oid, Class)> {
    // SAFETY: main thread, inside a transaction. The row of the catalog is let go before anything can
    // raise an error on purpose; names are copies.
    unsafe {
        let relation = pg_sys::get_typ_typrelid(row_type);
        if relation == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(relation),
        );
        if tuple.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>();
        let name = CStr::from_ptr((*form).relname.data.as_ptr()).to_owned();
        let (kind, owner, schema) = (
            (*form).relkind as u8,
            (*form).relowner,
            (*form).relnamespace,
        );
        pg_sys::ReleaseSysCache(tuple);
        let schema = pg_sys::get_namespace_name(schema);
        let qualified = pg_sys::quote_qualified_identifier(schema, name.as_ptr());
        let qualified = CStr::from_ptr(qualified).to_owned();
        // Of the types that are in pg_class, only composite ones have no rows.
        let class = Class {
            name,
            kind,
            owner,
            qualified,
        };
        (kind != pg_sys::RELKIND_COMPOSITE_TYPE).then_some((relation, class))
    }
}

/// On which condition ordinary users may have a superuser's relation read.
fn condition(relation: pg_sys::Oid, class: &Class) -> Option<Vec<u8>> {
    match class.kind {
        pg_sys::RELKIND_MATVIEW => Some(Vec::new()),
        pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE => {
            (!has_other_parts(relation)).then(Vec::new)
        }
        pg_sys::RELKIND_VIEW if is_own(relation) => {
            let is_one_of = |names: &[&CStr]| names.contains(&class.name.as_c_str());
            if is_one_of(&BY_USER) {
                return Some(seen_by_user());
            }
            let is_shown = is_one_of(&FOR_ALL)
                || (is_one_of(&FOR_MONITORS) && has_privs_of(pg_sys::ROLE_PG_MONITOR));
            is_shown.then(Vec::new)
        }
        _ => None,
    }
}

/// Does the relation belong to this extension?
fn is_own(relation: pg_sys::Oid) -> bool {
    // SAFETY: main thread, inside a transaction; looks in the catalog.
    unsafe {
        let extension = pg_sys::get_extension_oid(c"parallel_replicas".as_ptr(), true);
        extension != pg_sys::InvalidOid
            && pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, relation) == extension
    }
}

/// Is a partition or child a foreign table, or somebody's, whose indexes may have functions?
fn has_other_parts(relation: pg_sys::Oid) -> bool {
    // SAFETY: main thread, inside a transaction; takes the locks that a query would.
    unsafe {
        let lock = pg_sys::AccessShareLock as i32;
        let all = ffi::guarded::find_all_inheritors(relation, lock, std::ptr::null_mut());
        (0..(*all).length as usize).any(|index| {
            let part = (*(*all).elements.add(index)).oid_value;
            pg_sys::get_rel_relkind(part) as u8 == pg_sys::RELKIND_FOREIGN_TABLE
                || !is_of_superuser(pg_sys::SysCacheIdentifier::RELOID, part, |class| {
                    let class: *const pg_sys::FormData_pg_class = class.cast();
                    (*class).relowner
                })
        })
    }
}

/// Who owns a schema can rename it, and make another with a view of the relation's name.
///
/// # Safety
/// Main thread, inside a transaction.
unsafe fn is_in_schema_of_superuser(relation: pg_sys::Oid) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let schema = pg_sys::get_rel_namespace(relation);
        let mut owner = pg_sys::InvalidOid;
        let known = is_of_superuser(pg_sys::SysCacheIdentifier::NAMESPACEOID, schema, |row| {
            let row: *const pg_sys::FormData_pg_namespace = row.cast();
            owner = (*row).nspowner;
            owner
        });
        known
            || owner.to_u32() == pg_sys::ROLE_PG_DATABASE_OWNER
                && is_of_superuser(
                    pg_sys::SysCacheIdentifier::DATABASEOID,
                    pg_sys::MyDatabaseId,
                    |row| {
                        let row: *const pg_sys::FormData_pg_database = row.cast();
                        (*row).datdba
                    },
                )
    }
}

/// Does a superuser own it? `owner` finds the owner in its row of the catalog.
///
/// # Safety
/// Main thread, inside a transaction; `owner` knows what rows the cache has.
unsafe fn is_of_superuser(
    cache: pg_sys::SysCacheIdentifier::Type,
    oid: pg_sys::Oid,
    owner: impl FnOnce(*const c_char) -> pg_sys::Oid,
) -> bool {
    // SAFETY: as the caller says; the row is given back.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache as i32, oid.into());
        if tuple.is_null() {
            return false;
        }
        let owner = owner(pg_sys::GETSTRUCT(tuple));
        pg_sys::ReleaseSysCache(tuple);
        pg_sys::superuser_arg(owner)
    }
}

/// What `log::report::Reader` does, for the user of this server instead of the link's account. Replication
/// carries roles and who is a member of which.
fn seen_by_user() -> Vec<u8> {
    // SAFETY: main thread, inside a transaction; copies of PostgreSQL's, zero-terminated.
    let user = unsafe {
        let user = pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false);
        CStr::from_ptr(pg_sys::quote_literal_cstr(user)).to_bytes()
    };
    let has_role = [b" pg_catalog.pg_has_role(", user, b"::pg_catalog.name, "].concat();
    [
        b" WHERE",
        has_role.as_slice(),
        b"'pg_read_all_stats'::pg_catalog.name, 'USAGE') OR",
        has_role.as_slice(),
        b"r.\"user\", 'USAGE')",
    ]
    .concat()
}
