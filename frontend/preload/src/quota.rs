//! How much all processes of a run may write together.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::WRITTEN;

/// True if so many bytes or more were written. Each save checks before it begins, so the last one may go beyond.
pub(crate) fn is_used_up(folder: &Path, most_bytes: u64) -> bool {
    let text = opener::read_text(&folder.join(WRITTEN), MOST_TEXT).unwrap_or_default();
    let written = text.lines().filter_map(|line| line.parse::<u64>().ok()).fold(0, u64::saturating_add);
    written >= most_bytes
}

/// So many bytes more were written.
pub(crate) fn add(folder: &Path, bytes: u64) {
    let file = File::options().create(true).append(true).open(folder.join(WRITTEN));
    // Bytes that cannot be noted do not count.
    let _ = file.and_then(|mut file| file.write_all(format!("{bytes}\n").as_bytes()));
}
