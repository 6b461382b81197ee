//! Progress of a reader.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Records of a trace read by all readers since it was [watched](crate::Trace::watch), and whether these go on.
#[derive(Debug, Default)]
pub struct Reading {
    n_steps: AtomicU64,
    is_stopped: AtomicBool,
}

impl Reading {
    /// So many records are read before it is looked at again.
    pub(crate) const STEP: u64 = 1 << 14;

    /// Makes readers end with [`Error::Stopped`](crate::Error::Stopped) soon.
    pub fn stop(&self) {
        // Only a wish: nothing else is passed on with it.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// About how many records were read.
    pub fn n_records(&self) -> u64 {
        self.n_steps.load(Ordering::Relaxed) * Self::STEP
    }

    /// So many more were read; whether to go on.
    pub(crate) fn goes_on(&self) -> bool {
        self.n_steps.fetch_add(1, Ordering::Relaxed);
        !self.is_stopped.load(Ordering::Relaxed)
    }
}
