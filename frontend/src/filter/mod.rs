//! Which functions are recorded: `rules` is the API, which `parse` reads from text; `select` makes actions of call sites of them,
//! which `table` hands to the hooks, and `values` what is to be recorded of a call beside that, `watches` what is looked for in calls; `control` is the filter in force. `own` knows the functions of this crate, which no trace
//! shows. The patterns are those of the crate `rftrace-pattern`.
//!
//! Which functions there are is not here but in `host`.

#[cfg(feature = "std")]
pub(crate) mod control;
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

#[cfg(feature = "std")]
pub use self::rules::{Filter, Function, Selected};
#[cfg(feature = "std")]
pub(crate) use self::values::KnownValues;
