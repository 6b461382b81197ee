//! Where no code is changed: all but Linux on x86-64.

#[cfg(target_os = "linux")]
use std::sync::atomic::AtomicBool;
#[cfg(target_os = "linux")]
use std::sync::atomic::Ordering::Relaxed;

#[cfg(target_os = "linux")]
use super::entry_outcome::{EntryBranches, EntryWay};
use super::outcome::PatchedSites;
#[cfg(target_os = "linux")]
use crate::Error;

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

/// Whether functions that call no hook were to be recorded.
#[cfg(target_os = "linux")]
pub(crate) struct EntryChoice(bool);

#[cfg(target_os = "linux")]
impl EntryChoice {
    pub(crate) fn parse<'p>(mut patterns: impl Iterator<Item = &'p str>, _except: Vec<String>) -> Result<Self, Error> {
        Ok(Self(patterns.next().is_some()))
    }

    pub(crate) fn patchable(self, has_patchable: bool) -> Self {
        Self(self.0 || has_patchable)
    }

    pub(crate) fn library_calls(self, has_library_calls: bool) -> Self {
        Self(self.0 || has_library_calls)
    }
}

/// Whether any [`EntryChoice`] was one.
#[cfg(target_os = "linux")]
static ARE_ENTRIES_WANTED: AtomicBool = AtomicBool::new(false);

#[cfg(target_os = "linux")]
pub(crate) fn install_entries(choice: EntryChoice, _way: EntryWay) {
    ARE_ENTRIES_WANTED.fetch_or(choice.0, Relaxed);
}

#[cfg(target_os = "linux")]
pub(crate) fn entries() -> EntryBranches {
    let mut outcome = EntryBranches::nothing();
    let are_wanted = ARE_ENTRIES_WANTED.load(Relaxed);
    outcome.refusal = are_wanted.then(|| "functions that call no hook: x86-64 Linux only so far".to_owned());
    outcome
}

pub(crate) fn select(_selection: impl Fn(&Site) -> bool + Send + 'static) {}

pub(crate) fn counts() -> PatchedSites {
    PatchedSites::default()
}
