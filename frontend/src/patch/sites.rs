//! The places of hooks in a module's code: calls of the hooks, and entries. Each processor has its own way to find
//! them.

#[cfg_attr(target_arch = "x86_64", path = "sites_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "sites_aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "sites_riscv64.rs")]
mod processor;

pub(super) use self::processor::{Call, Hook, SLOT_RELOCATIONS, find};

/// A call of a hook, or the entry of a function, for a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Its address.
    pub(crate) address: usize,
    /// The address behind it: the function's identity in records and filters.
    pub(crate) child_ip: usize,
    /// The address of its module, like [`Module::start`](crate::host::linux::modules::Module::start).
    pub(crate) module: usize,
    /// True if the hook finds the function's arguments in the places of the calling convention.
    pub(crate) has_arguments: bool,
}

/// The choice of sites to switch on.
#[cfg_attr(target_arch = "riscv64", allow(dead_code, reason = "there all stay calls"))]
pub(super) type Selection = Box<dyn Fn(&Site) -> bool + Send>;

/// The possible targets of a call of a hook.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// Hooks, and entries of the procedure linkage table with a jump there.
    pub(super) functions: Vec<(usize, Hook)>,
    /// Slots of the global offset table.
    pub(super) slots: Vec<(usize, Hook)>,
}

/// The sites found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) calls: Vec<Call>,
    /// Places that look like a call, outside of functions, or within an instruction.
    pub(super) n_unconfirmed: usize,
}
