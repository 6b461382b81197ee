//! How large a table is that more than one module knows.
//!
//! Not here: the memory for it (`process`).

/// Slots for call sites: half of them are used at the most. It takes memory for those that are in use.
pub(crate) const MAX_SITES: usize = 1 << 23;
