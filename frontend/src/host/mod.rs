//! The system that the program runs on: what the rest of the crate asks it for. `linux` answers on Linux, `hermit` where there
//! is no Linux. The clocks are in `clock`.

#[cfg(all(feature = "std", not(target_os = "linux")))]
mod hermit;
#[cfg(target_os = "linux")]
pub(crate) mod linux;
pub(crate) mod machine;
pub(crate) mod program;

#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) use self::hermit::{
    AtWork, Catalogue, HAS_NAMES, HAS_VALUES, Known, TracedFunction, at_work, constant_memory, discard, program,
    reserve, reserve_sites,
};
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) use self::linux::functions::{Catalogue, TracedFunction};
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) use self::linux::{
    AtWork, HAS_NAMES, HAS_VALUES, Known, MAX_SITES, at_work, constant_memory, constant_memory_of, discard, program,
    reserve, reserve_sites,
};

/// A variable of the environment. None in a program that has rights which its caller has not (setuid, file capabilities): there
/// the environment is the caller's, and not to be trusted.
#[cfg(feature = "std")]
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    // SAFETY: the call takes no pointer.
    #[cfg(target_os = "linux")]
    let is_trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    #[cfg(not(target_os = "linux"))]
    let is_trusted = true;
    if is_trusted { std::env::var_os(name) } else { None }
}
