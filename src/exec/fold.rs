//! Turns column-free stable expressions (now(), current_user, settings, ...) of a plan that is to be
//! shipped into constants, so that every participant computes with the same value.

use crate::pg::ffi;
use crate::pg::plan::{children, expression_places};
use crate::plan::shippable;
use pgrx::pg_sys;
use std::ffi::c_void;

/// Rewrites `plan`, which must be a copy of its own.
///
/// # Safety
/// `plan` is a valid plan that nobody else refers to.
pub unsafe fn plan(plan: *mut pg_sys::Plan) {
    // SAFETY: as the caller says.
    unsafe {
        for place in expression_places(plan) {
            *place = mutate(*place, std::ptr::null_mut());
        }
        for place in children(plan) {
            self::plan(*place);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn mutate(
    node: *mut pg_sys::Node,
    context: *mut c_void,
) -> *mut pg_sys::Node {
    if node.is_null() {
        return node;
    }
    // SAFETY: the mutator only visits valid nodes. Its callback is declared without arguments in
    // PostgreSQL 15's header and called with these two.
    unsafe {
        if shippable::is_foldable(node) {
            return pg_sys::evaluate_expr(
                node.cast(),
                pg_sys::exprType(node),
                pg_sys::exprTypmod(node),
                pg_sys::exprCollation(node),
            )
            .cast();
        }
        ffi::guarded::expression_tree_mutator(node, mutate, context)
    }
}
