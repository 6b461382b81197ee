//! Progress of a reader.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of all readers of a trace since it was [watched](crate::Trace::watch), and a switch to stop them.
#[derive(Debug, Default)]
pub struct Reading {
    n_steps: AtomicU64,
    is_stopped: AtomicBool,
}

impl Reading {
    /// The number of records between two checks.
    pub(crate) const STEP: u64 = 1 << 14;

    /// Makes all readers end soon, with [`Error::Stopped`](crate::Error::Stopped).
    pub fn stop(&self) {
        // Only a wish: nothing else is passed on with it.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the approximate number of records read.
    pub fn n_records(&self) -> u64 {
        self.n_steps.load(Ordering::Relaxed) * Self::STEP
    }

    /// Counts a step of records. Returns true if reading goes on.
    pub(crate) fn goes_on(&self) -> bool {
        self.n_steps.fetch_add(1, Ordering::Relaxed);
        !self.is_stopped.load(Ordering::Relaxed)
    }
}
