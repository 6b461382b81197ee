//! Lines on stderr while the program runs: the progress of a recording, and the sizes that it passes.
//!
//! Not here: the choice of a terminal for it (`rftrace_record::terminal`), and the messages at the end (`summary`).

use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use rftrace_read::RECORD_BYTES;
use rftrace_record::banks::Written;
use rftrace_record::terminal;

use super::summary::{LARGE, LESS};

/// Before the first line, and between two.
const INTERVAL: Duration = Duration::from_secs(1);

/// The line. It goes when this is dropped.
pub(super) struct Progress {
    began: Instant,
    told: Instant,
    is_shown: bool,
    /// The next size of the trace to report; `None` if the records stay packed.
    next_size: Option<u64>,
}

impl Progress {
    pub(super) fn new(is_packed: bool) -> Self {
        let now = Instant::now();
        Self { began: now, told: now, is_shown: false, next_size: (!is_packed).then_some(LARGE) }
    }

    /// Shows the written amount.
    pub(super) fn tell(&mut self, written: Written) {
        if self.told.elapsed() < INTERVAL {
            return;
        }
        self.told = Instant::now();
        self.tell_of_size(written.n_records.saturating_mul(RECORD_BYTES as u64));
        if terminal::is_for_messages() {
            // The cursor stays at the beginning: what the program writes takes the line's place.
            let _ = write!(stderr(), "\r{}\x1b[K\r", line(written, self.began.elapsed()));
            self.is_shown = true;
        }
    }
}

impl Progress {
    /// Reports once each size that the trace passes, four times the one before.
    fn tell_of_size(&mut self, bytes: u64) {
        if self.next_size.is_none_or(|size| bytes < size) {
            return;
        }
        self.next_size = passed_by(bytes).checked_mul(4);
        if terminal::is_for_a_line() {
            self.clear();
            say!("rftrace: the trace has passed {}; {LESS}", HumanBytes(passed_by(bytes)));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) && terminal::is_for_messages() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// The largest of these sizes that a trace has passed, at least the first.
fn passed_by(bytes: u64) -> u64 {
    let sizes = std::iter::successors(Some(LARGE), |size| size.checked_mul(4));
    sizes.take_while(|&size| size <= bytes).last().unwrap_or(LARGE)
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(written: Written, since: Duration) -> String {
    let Written { n_records, n_bytes } = written;
    let since = HumanDuration(Duration::from_secs(since.as_secs()));
    format!("rftrace: {} calls and returns, {}, {since:#}", HumanCount(n_records), HumanBytes(n_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_many_how_much_and_how_long() {
        let written = Written { n_records: 1_234_567, n_bytes: 3 << 20 };
        let line = line(written, Duration::from_millis(3_700));
        assert_eq!(line, "rftrace: 1,234,567 calls and returns, 3.00 MiB, 3s");
    }

    #[test]
    fn sizes_are_four_times_as_large() {
        assert_eq!([0, LARGE, 5 * LARGE, 16 * LARGE].map(passed_by), [1, 1, 4, 16].map(|times| times * LARGE));
    }
}
