//! Turns column-free stable expressions (now(), current_user, settings, ...) of a plan that is to be
//! shipped into constants, so that every participant computes with the same value.

use crate::pg::ffi;
use crate::pg::plan::{children, expression_places};
use crate::plan::foldable;
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
            *place = rewritten(*place);
        }
        for place in children(plan) {
            self::plan(*place);
        }
    }
}

/// # Safety
/// `node` is null or a valid expression.
unsafe fn rewritten(node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // Only PostgreSQL calls it: an error that it raises jumps over whoever does.
    #[pgrx::pg_guard]
    unsafe extern "C-unwind" fn mutator(
        node: *mut pg_sys::Node,
        _context: *mut c_void,
    ) -> *mut pg_sys::Node {
        // SAFETY: the mutator only visits valid nodes, and null.
        unsafe { rewritten(node) }
    }
    // SAFETY: as the caller says. The mutator's callback is declared without arguments in PostgreSQL 15's
    // header and called with these two.
    unsafe {
        if node.is_null() {
            return node;
        }
        if foldable::is_foldable(node) {
            return pg_sys::evaluate_expr(
                node.cast(),
                pg_sys::exprType(node),
                pg_sys::exprTypmod(node),
                pg_sys::exprCollation(node),
            )
            .cast();
        }
        ffi::guarded::expression_tree_mutator(node, mutator, std::ptr::null_mut())
    }
}
