//! Where it is not known what a recorded call costs.

use rftrace_format::cost::HookKind;

pub(crate) fn calls(_kind: Option<HookKind>) -> impl Fn(u64) {
    |_| {}
}
