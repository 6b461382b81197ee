//! Where it is not known what a recorded call costs.

use rftrace_format::cost::HookKind;

/// True if functions with the hooks are here.
pub(crate) const ARE_KNOWN: bool = false;

pub(crate) fn calls(_kind: Option<HookKind>) -> impl Fn(u64) {
    |_| {}
}
