//! The size of a table, known in several modules.
//!
//! Not here: the memory for it (`process`).

/// The number of slots for call sites: at most half of them are used. Only used ones take memory.
pub(crate) const MAX_SITES: usize = 1 << 23;
