//! Debug information: `files` finds it, `sections` and `object` read it, and `units` are its entries.

pub(crate) mod files;
pub(crate) mod object;
pub(crate) mod sections;
pub(crate) mod units;
