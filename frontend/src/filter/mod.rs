//! Which functions are recorded: `rules` is the API, which `parse` and `duration` read from text; `select` makes actions of call sites
//! of them, which `table` hands to the hooks, `values` what is to be recorded of a call beside that, and `watches` what is looked for
//! in calls; `control` is the filter in force, and `outside` that of another process. `asking` asks a recorder what values functions have. `own`
//! knows the functions of this crate, which no trace shows. The patterns are those of the crate `rftrace-pattern`.
//!
//! Which functions there are is not here but in `host`.

#[cfg(all(feature = "std", target_os = "linux"))]
mod asking;
#[cfg(feature = "std")]
pub(crate) mod control;
#[cfg(feature = "std")]
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
#[cfg(feature = "std")]
pub(crate) use self::values::KnownValues;
