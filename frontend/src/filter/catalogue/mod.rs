//! The recordable functions, each with a call of a hook. `linux` finds them by the files of modules; without Linux (`hermit`) none is
//! known.
//!
//! Not here: the choice among them (`select`).

#[cfg(not(target_os = "linux"))]
mod hermit;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
pub(super) use self::hermit::{Catalogue, TracedFunction};
#[cfg(target_os = "linux")]
pub(super) use self::linux::{Catalogue, TracedFunction};
