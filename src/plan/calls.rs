//! Functions that an expression calls, and the types of what it calls them with.

use super::extensions;
use super::functions;
use super::operators;
use super::private::Refused;
use super::relations;
use super::shippable::{FIRST_NORMAL_OBJECT_ID, Findings, collations};
use super::types::{self, Use};
use crate::pg::plan::{Walk, items};
use parallel_replicas_core::reason::Reason;
use pgrx::pg_sys;
use std::ffi::c_void;

/// Everything that the node itself calls.
///
/// # Safety
/// `node` is a valid expression node.
pub unsafe fn check(node: *mut pg_sys::Node, findings: &mut Findings) -> Result<Walk, Refused> {
    let mut called = Vec::new();
    #[pgrx::pg_guard]
    unsafe extern "C-unwind" fn collect(function: pg_sys::Oid, context: *mut c_void) -> bool {
        // SAFETY: `context` is the vector below.
        unsafe { (*context.cast::<Vec<pg_sys::Oid>>()).push(function) };
        false
    }
    // SAFETY: the walker only visits valid nodes; the vector outlives the call.
    unsafe {
        pg_sys::check_functions_in_node(node, Some(collect), (&raw mut called).cast());
        if called.is_empty() {
            return Ok(Walk::Down);
        }
        for function in called {
            self::function(function, findings)?;
            // Of the functions that ship, those that take values of any type and convert them are stable, or
            // an extension's, which may make such values, too.
            let used: &[Use] = match function.to_u32() < FIRST_NORMAL_OBJECT_ID {
                true if !functions::is_stable_from_settings(&function_name(function)) => {
                    &[Use::Compared]
                }
                true => &[Use::Written],
                false if makes_values_inside(function) => &[Use::Written, Use::Read],
                false => &[Use::Written],
            };
            for used in used {
                argument_types(node, *used, findings)?;
            }
        }
        // It may be what is joined or looked for by hash.
        match (*node).type_ {
            pg_sys::NodeTag::T_OpExpr => {
                operators::check((*node.cast::<pg_sys::OpExpr>()).opno, findings)?;
            }
            pg_sys::NodeTag::T_ScalarArrayOpExpr => {
                operators::check_hashed_array(node.cast(), findings)?;
            }
            _ => {}
        }
    }
    Ok(Walk::Down)
}

/// Is its result of a type that has others inside, or not known beforehand?
///
/// # Safety
/// In a transaction.
unsafe fn makes_values_inside(function: pg_sys::Oid) -> bool {
    // SAFETY: catalog cache lookups.
    unsafe {
        let result = pg_sys::get_func_rettype(function);
        pg_sys::get_typtype(result) as u8 != b'b'
            || pg_sys::get_element_type(result) != pg_sys::InvalidOid
    }
}

/// A function is known to give the same result everywhere if it is built in and depends on nothing
/// but its arguments and the settings that are shipped, or if the administrator says so of its extension.
///
/// # Safety
/// In a transaction.
pub unsafe fn function(oid: pg_sys::Oid, findings: &mut Findings) -> Result<(), Refused> {
    // SAFETY: catalog cache lookups.
    unsafe {
        let name = function_name(oid);
        let built_in = oid.to_u32() < FIRST_NORMAL_OBJECT_ID;
        let known = match pg_sys::func_volatile(oid) as u8 {
            _ if !built_in => extensions::function(oid, findings),
            b'i' => !functions::is_server_specific(&name),
            b's' => functions::is_stable_from_settings(&name),
            _ => false,
        };
        if !known {
            return Err(Refused::new(Reason::Function, name));
        }
        findings.time_zone |= built_in && functions::reads_time_zone(&name);
    }
    Ok(())
}

/// Functions on arrays, ranges and rows call those of the element types.
///
/// # Safety
/// `node` is an expression that calls functions.
unsafe fn argument_types(
    node: *mut pg_sys::Node,
    used: Use,
    findings: &mut Findings,
) -> Result<(), Refused> {
    use pg_sys::NodeTag;
    // SAFETY: tags tell types; the operator expressions have one layout.
    unsafe {
        let arguments = match (*node).type_ {
            NodeTag::T_FuncExpr => {
                let call = node.cast::<pg_sys::FuncExpr>();
                let name = function_name((*call).funcid);
                if functions::is_input_of_any_type(&name) {
                    return Err(Refused::new(Reason::Function, name));
                }
                (*call).args
            }
            NodeTag::T_OpExpr | NodeTag::T_DistinctExpr | NodeTag::T_NullIfExpr => {
                (*node.cast::<pg_sys::OpExpr>()).args
            }
            NodeTag::T_ScalarArrayOpExpr => (*node.cast::<pg_sys::ScalarArrayOpExpr>()).args,
            NodeTag::T_CoerceViaIO => {
                let coercion = node.cast::<pg_sys::CoerceViaIO>();
                types::check((*coercion).resulttype, Use::Read, findings)?;
                let from = pg_sys::exprType((*coercion).arg.cast());
                return types::check(from, Use::Written, findings);
            }
            NodeTag::T_RowCompareExpr => {
                let compare = node.cast::<pg_sys::RowCompareExpr>();
                for argument in items::<pg_sys::Node>((*compare).rargs) {
                    types::check(pg_sys::exprType(argument), used, findings)?;
                }
                (*compare).largs
            }
            NodeTag::T_Aggref => {
                // It may sort them.
                let arguments = (*node.cast::<pg_sys::Aggref>()).args;
                for entry in items::<pg_sys::TargetEntry>(arguments) {
                    let collation = pg_sys::exprCollation((*entry).expr.cast());
                    collations(&raw const collation, 1, findings);
                }
                arguments
            }
            NodeTag::T_WindowFunc => (*node.cast::<pg_sys::WindowFunc>()).args,
            _ => return Ok(()),
        };
        for mut argument in items::<pg_sys::Node>(arguments) {
            if (*argument).type_ == NodeTag::T_TargetEntry {
                argument = (*argument.cast::<pg_sys::TargetEntry>()).expr.cast();
            }
            types::check(pg_sys::exprType(argument), used, findings)?;
        }
    }
    Ok(())
}

/// # Safety
/// In a transaction.
pub unsafe fn function_name(oid: pg_sys::Oid) -> String {
    // SAFETY: get_func_name answers null or a C string.
    unsafe { relations::name_or_oid(pg_sys::get_func_name(oid), oid) }
}
