//! What this crate needs from Linux, and what it knows of ELF files.

#![cfg_attr(not(feature = "std"), allow(dead_code, reason = "an import needs a part of it"))]

pub(crate) mod binary;
#[cfg(feature = "std")]
pub(crate) mod functions;
pub(crate) mod modules;
#[cfg(all(feature = "std", target_arch = "x86_64"))]
pub(crate) mod patch;
#[cfg(feature = "std")]
mod process;
pub(crate) mod symbols;
pub(crate) mod sysinfo;
#[cfg(feature = "std")]
mod threads;

#[cfg(feature = "std")]
pub(crate) use self::process::{
    HAS_NAMES, Known, exact_rate, monotonic_nanos, program, reserve, reserve_sites, tsc_hz,
};

/// A module of the running program, with its functions.
pub(crate) type LoadedModule = (modules::Module, Option<symbols::SymbolTable>);
