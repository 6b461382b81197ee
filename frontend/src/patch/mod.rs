//! Patched call sites: calls of the hooks become NOPs while recording is off, and jumps to stubs while it is on (on
//! aarch64 the original calls). This file has the switch of recording; every start and stop goes through them.
//!
//! - `outcome`: the outcome for the API; `entry_outcome`: the same for functions without a hook; `elsewhere`: stand-ins
//!   without Linux.
//! - `control`: the entry point: all sites, under the one lock of `lock`.
//! - `sites` and `finding`: find the calls in a module, read by `module`. `only_found`: a stand-in for changes on
//!   processors without safe changes of running code.
//! - `rooms`: finds entries for switching like calls: on aarch64.
//! - `code`: the possible bytes of a call, and the order of their changes; `states`: the states of a site.
//! - `stubs`: targets of the sites, and `entry_stubs` those of entries; `unwind` and `debugger` announce them.
//!   `shapes`: the stubs for a site. `memory`: places for code; `unwinder`: registration with unwinders.
//! - `poke`: writes code while threads run it.
//! - `switches`: the bytes and words read by stubs.
//! - `frames`: finds functions by their unwind information, `landings` the landing places of exceptions in them,
//!   `named` their names in the module's file, `wanted` the chosen ones.
//! - `entry`: gives branches to functions without a hook. `library`: leads the slots for other modules' functions to
//!   its stubs, unless `pointers` finds other uses than calls, by all `ways` of the code; `installed`: the stubs of
//!   both.
//! - `instructions`: reads aarch64's.
//! - `redirect`: makes a running program, started without the hooks, call them; `slots`: writes the slots for it and
//!   `library`.
//! - `change`: takes one site from state to state; `engine`: goes through all sites of all modules.
//!
//! Not here: a filter's choice of sites (`filter`).

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod change;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(target_arch = "aarch64", path = "code_aarch64.rs")]
mod code;
#[cfg(target_os = "linux")]
#[cfg_attr(target_arch = "riscv64", path = "only_found.rs")]
mod control;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod debugger;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod engine;
#[cfg(target_os = "linux")]
#[cfg_attr(target_arch = "aarch64", path = "entry_aarch64/mod.rs")]
#[cfg_attr(target_arch = "riscv64", path = "no_entries.rs")]
mod entry;
#[cfg(target_os = "linux")]
mod entry_outcome;
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod entry_stubs;
#[cfg(target_os = "linux")]
mod finding;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod frames;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some is for who comes from outside"))]
mod installed;
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod instructions;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod landings;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod library;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod lock;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod memory;
#[cfg(target_os = "linux")]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some is for functions that call no hook"))]
mod module;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some is for others"))]
mod named;
mod outcome;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(target_arch = "aarch64", path = "pointers_aarch64.rs")]
mod pointers;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod poke;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod redirect;
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod rooms;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(target_arch = "aarch64", path = "shapes_aarch64.rs")]
mod shapes;
#[cfg(target_os = "linux")]
mod sites;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod slots;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod states;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stubs;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some is for other hooks"))]
mod switches;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod unwind;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwinder;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some is for who comes from outside"))]
mod wanted;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod ways;

#[cfg(all(target_os = "linux", target_arch = "riscv64"))]
pub(crate) use self::control::register_fork_handlers;
#[cfg(target_os = "linux")]
pub(crate) use self::control::{abandon, counts, install, select, undo};
#[cfg(not(target_os = "linux"))]
pub(crate) use self::elsewhere::{counts, install, register_fork_handlers, select, undo};
#[cfg(target_os = "linux")]
pub(crate) use self::entry::{
    Choice as EntryChoice, functions_in as hooked_functions, install as install_entries, outcome as entries,
};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use self::entry::{
    Lead, Libgcc, Llvm, OutsideArea, OutsideBranches, OutsideStubs, Unnamed, UnnamedUnwinder, lead_functions,
    prepare_branches, prepared_branches,
};
#[cfg(target_os = "linux")]
pub use self::entry_outcome::Ends;
#[cfg(target_os = "linux")]
pub(crate) use self::entry_outcome::EntryWay;
#[cfg(target_os = "linux")]
pub use self::entry_outcome::{EntryBranches, LeftOut, WholeReason};
#[cfg(target_os = "linux")]
pub(crate) use self::finding::sites_of_process;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use self::lock::register_fork_handlers;
pub use self::outcome::{PatchedSites, PlainReason};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use self::redirect::{hook_library_calls, release_library_calls};
#[cfg(target_os = "linux")]
pub(crate) use self::sites::Site;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
use crate::backend;

/// Returns all present sites, patched or not, the functions with entry branches, and the slots of library calls.
#[cfg(target_os = "linux")]
pub(crate) fn sites() -> Vec<Site> {
    let mut sites = control::sites();
    sites.extend(entry::sites());
    sites
}

/// Starts recording; patched sites and stubs are switched on before. Inlined, as [`backend::enable`]: nothing of this
/// crate runs recorded behind it.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
pub(crate) fn enable() {
    if !control::has_switches() {
        backend::enable();
        // Stubs may have been made meanwhile.
        if !control::has_switches() {
            return;
        }
    }
    let held = backend::unrecorded(control::switch_on);
    backend::enable();
    held.release();
}

/// Stops recording like [`backend::end_disable`], then switches patched sites and stubs off. Returns true if it
/// stopped.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
pub(crate) fn end_disable(stopping: backend::Stopping) -> bool {
    let is_off = backend::end_disable(stopping);
    if is_off && control::has_switches() {
        control::switch_off();
    }
    is_off
}

#[cfg(any(not(target_os = "linux"), target_arch = "riscv64"))]
pub(crate) use crate::backend::{enable, end_disable};
