//! What becomes a constant before a plan is shipped: what all rows of a statement see alike, and the session
//! alone knows.

use super::functions;
use super::shippable::{self, FIRST_NORMAL_OBJECT_ID};
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
            pg_sys::NodeTag::T_SQLValueFunction => true,
            pg_sys::NodeTag::T_FuncExpr => {
                let call = node.cast::<pg_sys::FuncExpr>();
                (*call).funcid.to_u32() < FIRST_NORMAL_OBJECT_ID
                    && functions::is_of_the_session(&shippable::function_name((*call).funcid))
                    && ((*call).args.is_null() || names_a_setting((*call).args))
            }
            _ => false,
        }
    }
}

/// Is it the argument of current_setting, and is there such a setting?
///
/// # Safety
/// `arguments` is a list of expressions.
unsafe fn names_a_setting(arguments: *mut pg_sys::List) -> bool {
    // SAFETY: as the caller says; a constant text is detoasted into a copy.
    unsafe {
        let Some(first) = items::<pg_sys::Node>(arguments).next() else {
            return false;
        };
        if (*first).type_ != pg_sys::NodeTag::T_Const {
            return false;
        }
        let constant = first.cast::<pg_sys::Const>();
        if (*constant).constisnull || (*constant).consttype != pg_sys::TEXTOID {
            return false;
        }
        let name = pg_sys::text_to_cstring((*constant).constvalue.cast_mut_ptr());
        guc::value(CStr::from_ptr(name)).is_some()
    }
}
