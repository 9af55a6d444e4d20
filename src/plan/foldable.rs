//! What becomes a constant before a plan is shipped: what all rows of a statement see alike, and the session
//! alone knows.

use super::calls;
use super::functions;
use super::shippable::FIRST_NORMAL_OBJECT_ID;
use crate::pg::guc;
use crate::pg::plan::items;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Must this node become a constant before the plan is shipped? Only what cannot fail: it is
/// evaluated also where the query would not have come to it.
///
/// # Safety
/// `node` is a valid expression.
pub unsafe fn is_foldable(node: *mut pg_sys::Node) -> bool {
    // SAFETY: the tag tells the type.
    unsafe {
        match (*node).type_ {
            pg_sys::NodeTag::T_SQLValueFunction => {
                let kind = (*node.cast::<pg_sys::SQLValueFunction>()).op;
                kind != pg_sys::SQLValueFunctionOp::SVFOP_CURRENT_SCHEMA
            }
            pg_sys::NodeTag::T_FuncExpr => {
                let call = node.cast::<pg_sys::FuncExpr>();
                (*call).funcid.to_u32() < FIRST_NORMAL_OBJECT_ID
                    && functions::is_of_the_session(&calls::function_name((*call).funcid))
                    && ((*call).args.is_null() || names_a_setting((*call).args))
            }
            _ => false,
        }
    }
}

/// Are these constant arguments of current_setting, and is there such a setting that anybody may read?
///
/// # Safety
/// `arguments` is a list of expressions.
unsafe fn names_a_setting(arguments: *mut pg_sys::List) -> bool {
    // SAFETY: as the caller says; a constant text is detoasted into a copy.
    unsafe {
        let constant = |argument: *mut pg_sys::Node| (*argument).type_ == pg_sys::NodeTag::T_Const;
        if !items::<pg_sys::Node>(arguments).all(constant) {
            return false;
        }
        let Some(first) = items::<pg_sys::Const>(arguments).next() else {
            return false;
        };
        if (*first).constisnull || (*first).consttype != pg_sys::TEXTOID {
            return false;
        }
        let name = pg_sys::text_to_cstring((*first).constvalue.cast_mut_ptr());
        guc::is_public(CStr::from_ptr(name))
    }
}
