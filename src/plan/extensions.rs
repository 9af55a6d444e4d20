//! What of an extension may be executed on replicas: its immutable functions in C, its types and its
//! operator classes, if `parallel_replicas.shippable_extensions` names it.
//!
//! Its catalog entries are replicated, its library is not. So the functions that a fragment calls, or may
//! call for one of its types, are noted, and the replica executes the fragment only if their libraries
//! are the coordinator's (`pg::library`).

use super::calls;
use super::private::Refused;
use super::shippable::{FIRST_NORMAL_OBJECT_ID, Findings};
use crate::settings;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};

/// pg_language.dat: functions of the server itself, and of libraries.
const INTERNAL: u32 = 12;
const C: u32 = 13;

/// pg_aggregate.h: aggtransfn, aggfinalfn, aggcombinefn, aggserialfn, aggdeserialfn, and for frames of
/// windows aggmtransfn, aggminvtransfn and aggmfinalfn, none of which is ever null.
const AGGREGATE_PARTS: [i16; 8] = [4, 5, 6, 7, 8, 9, 10, 11];

/// Which extensions a fragment may use, and what it uses of them.
#[derive(Debug, Default)]
pub struct Extensions {
    /// Those that the coordinator names; None: those of the setting.
    listed: Option<Vec<u32>>,
    /// Functions in C, by extension; of some there are none, only functions of the server's.
    pub used: BTreeMap<u32, BTreeSet<u32>>,
}

impl Extensions {
    pub fn listed(extensions: impl IntoIterator<Item = u32>) -> Self {
        Extensions {
            listed: Some(extensions.into_iter().collect()),
            used: BTreeMap::new(),
        }
    }

    /// For the plan's private data.
    pub fn for_plan(&self) -> Vec<(u32, Vec<u32>)> {
        self.used
            .iter()
            .map(|(extension, functions)| (*extension, functions.iter().copied().collect()))
            .collect()
    }

    fn allow_none(&self) -> bool {
        match &self.listed {
            Some(listed) => listed.is_empty(),
            None => settings::shippable_extensions().is_empty(),
        }
    }

    /// The extension of an object, if it may be used. It is, then.
    ///
    /// # Safety
    /// In a transaction.
    unsafe fn of(&mut self, class: pg_sys::Oid, object: pg_sys::Oid) -> Option<u32> {
        if self.allow_none() {
            return None;
        }
        // SAFETY: as the caller says.
        let extension = unsafe { pg_sys::getExtensionOfObject(class, object) }.to_u32();
        let allowed = extension != 0
            && match &self.listed {
                Some(listed) => listed.contains(&extension),
                // SAFETY: as above.
                None => unsafe { is_allowed(extension) },
            };
        if !allowed {
            return None;
        }
        self.used.entry(extension).or_default();
        Some(extension)
    }
}

/// Does the setting name it?
///
/// # Safety
/// In a transaction.
pub unsafe fn is_allowed(extension: u32) -> bool {
    // SAFETY: as the caller says.
    let name = unsafe { name(extension) };
    settings::shippable_extensions().contains(&name)
}

/// # Safety
/// In a transaction.
pub unsafe fn name(extension: u32) -> String {
    // SAFETY: as the caller says; null or a C string.
    unsafe {
        let name = pg_sys::get_extension_name(pg_sys::Oid::from(extension));
        super::relations::name_or_oid(name, pg_sys::Oid::from(extension))
    }
}

/// May this function of an extension be called? Immutable, safe in parallel workers, in C or built into the
/// server; an aggregate, if all its parts may.
///
/// # Safety
/// In a transaction.
pub unsafe fn function(oid: pg_sys::Oid, findings: &mut Findings) -> bool {
    // SAFETY: as the caller says.
    unsafe { is_plain(oid, true, findings) }
}

/// `declared`: it must be declared to be immutable and parallel safe.
///
/// # Safety
/// In a transaction.
unsafe fn is_plain(oid: pg_sys::Oid, declared: bool, findings: &mut Findings) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let Some(extension) = findings.extensions.of(pg_sys::ProcedureRelationId, oid) else {
            return false;
        };
        let Some(facts) = Facts::of(oid) else {
            return false;
        };
        match (facts.kind, facts.language) {
            _ if !facts.plain || declared && !facts.constant => false,
            (b'a', _) => aggregate_parts(oid)
                .into_iter()
                .all(|part| calls::function(part, findings).is_ok()),
            (b'f', INTERNAL) => true,
            (b'f', C) => {
                let used = findings.extensions.used.entry(extension).or_default();
                used.insert(oid.to_u32());
                true
            }
            _ => false,
        }
    }
}

/// Of a function's row in the catalog.
struct Facts {
    kind: u8,
    language: u32,
    /// Immutable, and the same in every process.
    constant: bool,
    /// Executed by its caller's rights and settings.
    plain: bool,
}

impl Facts {
    /// # Safety
    /// In a transaction.
    unsafe fn of(oid: pg_sys::Oid) -> Option<Facts> {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        // SAFETY: a catalog cache lookup; the tuple is released.
        unsafe {
            let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
            if tuple.is_null() {
                return None;
            }
            let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>();
            let mut without_settings = false;
            pg_sys::SysCacheGetAttr(
                cache,
                tuple,
                pg_sys::Anum_pg_proc_proconfig as i16,
                &mut without_settings,
            );
            let facts = Facts {
                kind: row.prokind as u8,
                language: row.prolang.to_u32(),
                constant: row.provolatile as u8 == b'i' && row.proparallel as u8 == b's',
                plain: !row.prosecdef && without_settings,
            };
            pg_sys::ReleaseSysCache(tuple);
            Some(facts)
        }
    }
}

/// The functions that an aggregate consists of.
///
/// # Safety
/// `oid` is an aggregate.
unsafe fn aggregate_parts(oid: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    let cache = pg_sys::SysCacheIdentifier::AGGFNOID as i32;
    // SAFETY: as the caller says; the tuple is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return vec![pg_sys::InvalidOid];
        }
        let parts = AGGREGATE_PARTS.map(|attribute| {
            let mut is_null = false;
            let part = pg_sys::SysCacheGetAttr(cache, tuple, attribute, &mut is_null);
            pg_sys::Oid::from(part.value() as u32)
        });
        pg_sys::ReleaseSysCache(tuple);
        let valid = |part: &pg_sys::Oid| *part != pg_sys::InvalidOid;
        parts.into_iter().filter(valid).collect()
    }
}

/// May values of this base type of an extension be converted? By whatever functions PostgreSQL does that.
///
/// # Safety
/// In a transaction.
pub unsafe fn base_type(oid: pg_sys::Oid, findings: &mut Findings) -> Option<Result<(), Refused>> {
    // SAFETY: as the caller says.
    let functions = unsafe {
        findings.extensions.of(pg_sys::TypeRelationId, oid)?;
        let (mut input, mut output) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        let (mut parameter, mut is_varlena) = (pg_sys::InvalidOid, false);
        pg_sys::getTypeInputInfo(oid, &mut input, &mut parameter);
        pg_sys::getTypeOutputInfo(oid, &mut output, &mut is_varlena);
        [input, output]
    };
    let result = functions
        .into_iter()
        // SAFETY: as above.
        .try_for_each(|function| unsafe { calls::function(function, findings) });
    Some(result)
}

/// May an operator family be used, as far as it is for itself to say?
///
/// # Safety
/// In a transaction.
pub unsafe fn operator_family(family: pg_sys::Oid, findings: &mut Findings) -> bool {
    let class = pg_sys::OperatorFamilyRelationId;
    // SAFETY: as the caller says.
    unsafe { findings.extensions.of(class, family) }.is_some()
}

/// May this function of an operator family be called? Whoever calls it takes it for constant, whatever it is
/// declared to be; PostGIS does not declare its own.
///
/// # Safety
/// In a transaction.
pub unsafe fn support_function(oid: pg_sys::Oid, findings: &mut Findings) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        match oid.to_u32() < FIRST_NORMAL_OBJECT_ID {
            true => calls::function(oid, findings).is_ok(),
            false => is_plain(oid, false, findings),
        }
    }
}
