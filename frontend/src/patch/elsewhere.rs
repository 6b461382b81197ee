//! Where no code is changed: all but Linux on x86-64.

use super::outcome::PatchedSites;

pub(crate) fn install() -> PatchedSites {
    PatchedSites { refusal: Some("patched call sites: x86-64 Linux only so far".to_owned()), ..Default::default() }
}

pub(crate) fn undo() {}

pub(crate) fn register_fork_handlers() {}

/// A call of a hook.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Site {
    pub(crate) child_ip: usize,
}
#[cfg(target_os = "linux")]
use super::sites::Site;

#[cfg(target_os = "linux")]
pub(crate) fn abandon() {}

/// What was hooked that does not call the tracer, in the module that begins at an address.
#[cfg(target_os = "linux")]
pub(crate) fn hooked_functions(_module: u64) -> impl Iterator<Item = (u64, u64)> {
    std::iter::empty()
}

pub(crate) fn select(_selection: impl Fn(&Site) -> bool + Send + 'static) {}

pub(crate) fn counts() -> PatchedSites {
    PatchedSites::default()
}
