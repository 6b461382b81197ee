//! Counts and flaws of a reading.

use serde::{Deserialize, Serialize};

use crate::warning::Warnings;

/// How much was read, and what was wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The number of records.
    pub records: u64,
    /// Calls that were nested too deeply to be recorded.
    pub deep_calls: u64,
    /// True if the beginning of a task was overwritten, as in a ring that was too small for all.
    pub overwritten: bool,
    /// Calls of functions whose names the trace does not have.
    pub nameless_calls: u64,
    /// The flaws met in the records; those of the metadata are in [`Trace::warnings`](crate::Trace::warnings).
    pub warnings: Warnings,
}

impl Summary {
    /// So many records with these flaws.
    pub fn new(records: u64, warnings: Warnings) -> Self {
        Self { records, warnings, ..Self::default() }
    }
}
