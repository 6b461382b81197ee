//! A line on stderr with the progress of a recording while the program runs.
//!
//! Not here: the choice of a terminal for it (`rftrace_record::terminal`), and the messages at the end (`summary`).

use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use rftrace_record::banks::Written;
use rftrace_record::terminal;

/// Before the first line, and between two.
const INTERVAL: Duration = Duration::from_secs(1);

/// The line. It goes when this is dropped.
pub(super) struct Progress {
    began: Instant,
    told: Instant,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { began: now, told: now, is_shown: false }
    }

    /// Shows the written amount.
    pub(super) fn tell(&mut self, written: Written) {
        if self.told.elapsed() < INTERVAL {
            return;
        }
        self.told = Instant::now();
        if terminal::is_for_messages() {
            // The cursor stays at the beginning: what the program writes takes the line's place.
            let _ = write!(stderr(), "\r{}\x1b[K\r", line(written, self.began.elapsed()));
            self.is_shown = true;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown && terminal::is_for_messages() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
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
}
