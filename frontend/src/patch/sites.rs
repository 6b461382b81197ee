//! The places in a module's code where functions are hooked: calls of the hooks, and entries. How they are found there is each processor's.

#[cfg_attr(target_arch = "x86_64", path = "sites_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "sites_aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "sites_riscv64.rs")]
mod processor;

pub(super) use self::processor::{Call, Hook, SLOT_RELOCATIONS, find};

/// A call of a hook, or the entry of a function, for a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Where it is.
    pub(crate) address: usize,
    /// Behind it: what records and filters name a function by.
    pub(crate) child_ip: usize,
    /// Where its module was mapped, as [`Module::start`](crate::host::linux::modules::Module::start).
    pub(crate) module: usize,
    /// True if the hook finds the function's arguments where the calling convention has them.
    pub(crate) has_arguments: bool,
}

/// Which sites are switched on.
#[cfg_attr(target_arch = "riscv64", allow(dead_code, reason = "there all stay calls"))]
pub(super) type Selection = Box<dyn Fn(&Site) -> bool + Send>;

/// Addresses that a call of a hook may name.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// Hooks, and entries of the procedure linkage table that jump there.
    pub(super) functions: Vec<(usize, Hook)>,
    /// Slots of the global offset table.
    pub(super) slots: Vec<(usize, Hook)>,
}

/// Sites that were found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) calls: Vec<Call>,
    /// Places that look like a call, and lie in no function, or within an instruction.
    pub(super) n_unconfirmed: usize,
}
