//! The choice of recorded functions.
//!
//! - `rules`: the API; `parse`: rules in text.
//! - `catalogue`: the functions that can be recorded; `own`: the functions of this crate, for no trace.
//! - `select`: rules and functions → actions of call sites; `table`: the actions for the hooks.
//! - `values`: recorded values of a call; `watches`: conditions of calls; `asking`: facts about values, from a recorder.
//! - `control`: the filter in force; `outside`: that of another process.
//!
//! Not here: patterns of names (the crate `rftrace-pattern`).

#[cfg(all(feature = "std", target_os = "linux"))]
mod asking;
#[cfg(feature = "std")]
mod catalogue;
#[cfg(feature = "std")]
pub(crate) mod control;
#[cfg(all(feature = "std", target_os = "linux"))]
mod outside;
pub(crate) mod own;
#[cfg(feature = "std")]
mod parse;
#[cfg(feature = "std")]
mod rules;
#[cfg(feature = "std")]
mod select;
#[cfg(feature = "std")]
mod table;
#[cfg(feature = "std")]
mod values;
#[cfg(feature = "std")]
mod watches;

#[cfg(all(feature = "std", target_os = "linux"))]
pub use self::asking::ask_values;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use self::outside::{OutsideChoice, outside_functions};
#[cfg(feature = "std")]
pub use self::rules::{Filter, Function, Selected};
#[cfg(feature = "std")]
pub use self::values::AskValues;
