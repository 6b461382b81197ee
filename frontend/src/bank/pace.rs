//! The pauses of a recorder between two rounds over the banks: the more records, the shorter.

use std::time::Duration;

/// The amount of records in the fullest bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The number of full chunks.
    pub n_taken: usize,
    /// The number of all chunks of a bank.
    pub n_chunks: usize,
}

/// The shortest pause between two rounds, for many records.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// The maximum number of chunks for one look: the chunks in use should stay in the processor's cache.
const MANY_CHUNKS: usize = 16;

impl Fill {
    /// Returns the next pause after a pause of length `pause`. Each round costs time, but no thread should find its
    /// bank full.
    #[must_use]
    pub fn next_pause(self, pause: Duration) -> Duration {
        let longest = if self.n_taken > 0 { LONGEST_BUSY_PAUSE } else { LONGEST_PAUSE };
        match self.n_taken {
            n_taken if n_taken > self.n_chunks / 8 => SHORTEST_PAUSE,
            MANY_CHUNKS.. => (pause / 2).max(SHORTEST_PAUSE),
            n_taken if n_taken > MANY_CHUNKS / 2 => pause,
            _ => (pause * 2).min(longest),
        }
    }
}
