//! The tracer's overhead per call, for the trace.
//!
//! Not here: the measurement (`rftrace-record`, `rftrace-preload`).

use std::iter;

use rftrace_format::cost::{CallCost, HookKind};
use rftrace_record::cost;
use rftrace_record::preload::{self, Preload};

/// Returns the overhead if recorded functions call the tracer, by patched calls or not, or `has_branches`. Without it times are shown as recorded,
/// and a message says so.
pub(super) fn measured(is_patched: bool, has_branches: bool) -> Option<CallCost> {
    let library = Preload::find(preload::TRACER).ok()?;
    let called = if is_patched { HookKind::Patched } else { HookKind::Call };
    // A program may have both.
    let kinds: Vec<_> = iter::once(called).chain(has_branches.then_some(HookKind::Branch)).collect();
    cost::measure(library.path(), &kinds)
}
