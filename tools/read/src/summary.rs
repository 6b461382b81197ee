//! The counts and flaws of a reading.

use serde::{Deserialize, Serialize};

use crate::warning::Warnings;

/// The amount of records read, and their flaws.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The number of records.
    pub records: u64,
    /// The number of calls beyond the deepest recorded level.
    pub deep_calls: u64,
    /// True if the beginning of a task was overwritten, as in a ring buffer.
    pub overwritten: bool,
    /// The number of calls of functions without names in the trace.
    pub nameless_calls: u64,
    /// The flaws in the records. Flaws in the metadata are in [`Trace::warnings`](crate::Trace::warnings).
    pub warnings: Warnings,
}

impl Summary {
    /// Creates a summary from a number of records and their flaws.
    pub fn new(records: u64, warnings: Warnings) -> Self {
        Self { records, warnings, ..Self::default() }
    }
}
