//! What a Begin frame carries in PostgreSQL's own forms: the plan and the values of its parameters.

use super::guards;
use crate::pg::{self, ffi};
use crate::plan::extensions::Extensions;
use crate::plan::shippable::{self, Side};
use parallel_replicas_core::frame::{Begin, Refusal};
use parallel_replicas_core::plan_text;
use pgrx::pg_sys;
use std::ffi::CString;

/// Words after a plan's text for a reader that misses some.
const READER_SLACK_WORDS: usize = 1 << 16;

/// Parses the plan and puts it to the same test as the coordinator did.
///
/// # Safety
/// The plan was authenticated.
pub unsafe fn plan(begin: &Begin) -> Result<*mut pg_sys::PlannedStmt, Refusal> {
    plan_text::check(&begin.plan).map_err(|error| guards::refusal("plan", error.to_string()))?;
    // PostgreSQL's reader takes what it misses from what follows, and a null pointer for more than
    // there is. In a whole text it misses nothing; in one that lacks fields it comes to an error here.
    let mut text = begin.plan.clone();
    text.extend(b" 0".repeat(READER_SLACK_WORDS));
    let text =
        CString::new(text).map_err(|_| guards::refusal("plan", "the plan has a zero byte"))?;
    // SAFETY: as the caller says.
    unsafe {
        let statement = pg_sys::stringToNode(text.as_ptr()).cast::<pg_sys::PlannedStmt>();
        if statement.is_null()
            || (*statement).type_ != pg_sys::NodeTag::T_PlannedStmt
            || (*statement).commandType != pg_sys::CmdType::CMD_SELECT
            || (*statement).planTree.is_null()
            || !(*statement).subplans.is_null() && !begin.whole
            || !(*statement).rowMarks.is_null()
        {
            return Err(guards::refusal("plan", "the plan is not a plain SELECT"));
        }
        let types = (*statement).paramExecTypes;
        let count = if types.is_null() {
            0
        } else {
            (*types).length as u32
        };
        if begin
            .exec_parameters
            .iter()
            .any(|parameter| parameter.id >= count)
        {
            return Err(guards::refusal("plan", "a parameter has an unknown number"));
        }
        let fragment = (*statement).planTree;
        let extensions = Extensions::listed(begin.extensions.iter().map(|listed| listed.oid));
        let rtable = (*statement).rtable;
        let findings = match begin.whole {
            true => shippable::whole(
                Side::Replica,
                fragment,
                (*statement).subplans,
                rtable,
                extensions,
            ),
            false => {
                let params: Vec<i32> = pg::plan::members((*fragment).extParam);
                shippable::fragment(Side::Replica, fragment, rtable, &params, -1, extensions)
            }
        };
        let findings = findings.map_err(|refused| guards::refusal("plan", refused.describe()))?;
        if findings.fold {
            return Err(guards::refusal(
                "plan",
                "an expression was not evaluated beforehand",
            ));
        }
        let locked = |oid: &u32| {
            begin
                .relations
                .iter()
                .any(|relation| relation.identity.oid == *oid)
        };
        if !findings.relations.values().all(locked) {
            return Err(guards::refusal(
                "plan",
                "the plan reads a relation that is not listed",
            ));
        }
        let listed = |oid: &u32| {
            begin
                .collations
                .iter()
                .any(|collation| collation.oid == *oid)
        };
        if !findings.collations.iter().all(listed) {
            return Err(guards::refusal(
                "plan",
                "the plan uses a collation that is not listed",
            ));
        }
        guards::extensions(begin, &findings.extensions)?;
        Ok(statement)
    }
}

/// Values of the query's own parameters; null if it has none.
///
/// # Safety
/// The parameters were authenticated.
pub unsafe fn parameters(begin: &Begin) -> pg_sys::ParamListInfo {
    if begin.parameters.is_empty() {
        return std::ptr::null_mut();
    }
    let mut bytes = begin.parameters.clone();
    let mut cursor = bytes.as_mut_ptr().cast();
    // SAFETY: as the caller says; values are copied into palloc'd memory.
    unsafe { pg_sys::RestoreParamList(&mut cursor) }
}

/// Sets parameters that the coordinator's executor had computed.
///
/// # Safety
/// `query` has been started; the parameters' numbers were checked against its plan.
pub unsafe fn set_exec_parameters(begin: &Begin, query: *mut pg_sys::QueryDesc) {
    // SAFETY: as the caller says.
    unsafe {
        for parameter in &begin.exec_parameters {
            let mut bytes = parameter.datum.clone();
            let mut cursor = bytes.as_mut_ptr().cast();
            let value = (*(*query).estate)
                .es_param_exec_vals
                .add(parameter.id as usize);
            let old = pg_sys::MemoryContextSwitchTo((*(*query).estate).es_query_cxt);
            (*value).value = ffi::guarded::datumRestore(&mut cursor, &raw mut (*value).isnull);
            (*value).execPlan = std::ptr::null_mut();
            pg_sys::MemoryContextSwitchTo(old);
        }
    }
}
