//! Systems without changes of code: all except Linux.

use super::outcome::PatchedSites;

pub(crate) fn install() -> PatchedSites {
    PatchedSites { refusal: Some("rftrace patches call sites only on Linux".to_owned()), ..Default::default() }
}

pub(crate) fn undo() {}

pub(crate) fn register_fork_handlers() {}

/// A call of a hook.
pub(crate) struct Site {
    pub(crate) child_ip: usize,
}

pub(crate) fn select(_selection: impl Fn(&Site) -> bool + Send + 'static) {}

pub(crate) fn counts() -> PatchedSites {
    PatchedSites::default()
}
