//! Differences between processors, and features of only some of them.
//!
//! - `processor` has the names of hooks, the version of the C library's first functions, and in assembly the way to another stack and functions that are passed on.
//! - `branches` gives functions a branch that call no hook.
//! - `led` gives specified functions branches to the library for resources.
//! - `trigger` begins to record at a function.
//! - `hooked` has functions with each kind of hook, for measuring.
//! - `attach` is for programs that were started without this library, and run.

#[cfg(target_arch = "x86_64")]
mod attach;
pub(crate) mod branches;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_hooked.rs")]
pub(crate) mod hooked;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_led.rs")]
pub(crate) mod led;
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_trigger.rs")]
pub(crate) mod trigger;

pub(crate) use processor::{FIRST_VERSION, HOOKS, MACHINE, go_back, passed_on, switch};
