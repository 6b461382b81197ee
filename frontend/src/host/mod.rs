//! The system below the program: memory, threads, modules and facts, from `linux` or, without Linux, from `hermit`.
//!
//! Not here: clocks (`clock`), and functions with hooks (`filter::catalogue`).

#[cfg(all(feature = "std", not(target_os = "linux")))]
mod hermit;
#[cfg(target_os = "linux")]
pub(crate) mod linux;
pub(crate) mod machine;
pub(crate) mod program;

#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) use self::hermit::{
    AtWork, HAS_NAMES, HAS_VALUES, Known, at_work, constant_memory, discard, program, reserve, reserve_sites,
};
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) use self::linux::{
    AtWork, HAS_NAMES, HAS_VALUES, Known, MAX_SITES, at_work, constant_memory, constant_memory_of, discard, program,
    reserve, reserve_sites,
};

/// A variable of the environment. None in a program with more rights than its caller (setuid, file capabilities): there the
/// environment is the caller's, and not to be trusted.
#[cfg(feature = "std")]
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    // SAFETY: the call takes no pointer.
    #[cfg(target_os = "linux")]
    let is_trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    #[cfg(not(target_os = "linux"))]
    let is_trusted = true;
    if is_trusted { std::env::var_os(name) } else { None }
}
