//! How often a recorder looks at banks: more often the more there is to be taken.

use std::time::Duration;

/// How much there was to be taken of the fullest bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Chunks that were full.
    pub n_taken: usize,
    /// All of a bank.
    pub n_chunks: usize,
}

/// Between two looks at banks, while there is much to be taken, something, and nothing.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// Chunks that are to be taken at a look, at the most: what goes round in a bank is to stay in the processor's cache.
const MANY_CHUNKS: usize = 16;

impl Fill {
    /// How long to wait after the last `pause`: each look costs something, but no thread is to find its bank full.
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
