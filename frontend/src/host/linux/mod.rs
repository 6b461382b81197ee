//! The services of Linux for this crate: the running program, its modules and threads, facts about the machine. Reading ELF
//! files is in `elf`.

#![cfg_attr(not(feature = "std"), allow(dead_code, reason = "an import needs a part of it"))]

#[cfg(feature = "std")]
mod arch;
#[cfg(feature = "std")]
pub(crate) mod chosen;
#[cfg(feature = "std")]
pub(crate) mod fork;
pub(crate) mod modules;
#[cfg(feature = "std")]
mod process;
#[cfg(feature = "std")]
pub(crate) mod sizes;
pub(crate) mod sysinfo;
#[cfg(feature = "std")]
pub(crate) mod thread_table;
#[cfg(feature = "std")]
pub(crate) mod threads;

#[cfg(feature = "std")]
pub(crate) use self::arch::HAS_VALUES;
#[cfg(feature = "std")]
pub(crate) use self::fork::{AtWork, abandon, at_work, is_at_work};
#[cfg(feature = "std")]
pub(crate) use self::process::{
    HAS_NAMES, Known, constant_memory, constant_memory_of, discard, program, reserve, reserve_sites,
};
#[cfg(feature = "std")]
pub(crate) use self::sizes::MAX_SITES;
