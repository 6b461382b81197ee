//! What `rftrace record` says at the end.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use anyhow::{Context, Result};
use indicatif::HumanCount;

use super::merge::Merged;
use super::{Ended, RecordArgs};

/// Says it on stderr.
pub(crate) fn print(merged: &Merged, args: &RecordArgs, dir: &Path, ended: &Ended) {
    for error in &merged.errors {
        eprintln!("rftrace: {error}");
    }
    if let Some(signal) = ended.status.signal() {
        eprintln!("rftrace: the program was killed by signal {signal}");
    }
    let of = |number: usize, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    eprintln!(
        "rftrace: {} calls of {} in {}",
        HumanCount(merged.events / 2),
        of(merged.threads, "thread", "threads"),
        of(merged.processes, "process", "processes"),
    );
    if merged.full > 0 {
        eprintln!(
            "rftrace: the buffer of {} was full before the end, the rest is not recorded: --buffer {} or more, --ring to keep \
             the end, or -F, -N, -D, -t to record less",
            of(merged.full, "process", "processes"),
            size(args.buffer.saturating_mul(4)),
        );
    }
    if merged.overwritten > 0 {
        eprintln!("rftrace: the buffer keeps the end of what happened; for more of it: --buffer");
    }
    if merged.lost > 0 {
        eprintln!(
            "rftrace: {} calls deeper than 1023 levels were not recorded; the trace shows where",
            HumanCount(merged.lost)
        );
    }
    if merged.untraced_threads > 0 {
        eprintln!("rftrace: {} threads were too many at one time, and were not recorded", merged.untraced_threads);
    }
    for snapshot in &merged.snapshots {
        eprintln!("rftrace: a snapshot lies in {}", shown(snapshot));
    }
    if args.live && args.output.is_none() {
        return;
    }
    let dir = shown(dir);
    eprintln!("rftrace: the trace lies in {dir}; look at it with\n  rftrace report {dir}\n  rftrace replay {dir}");
}

/// Writes into the trace what was not recorded, for those who look at it later.
pub(crate) fn keep(merged: &Merged, dir: &Path) -> Result<()> {
    let path = dir.join("record.txt");
    let Merged { full, overwritten, untraced_threads, .. } = merged;
    let text = format!("full={full}\noverwritten={overwritten}\nuntraced_threads={untraced_threads}\n");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A path below the working directory, as the user would type it.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// A size as `--buffer` takes it.
fn size(bytes: usize) -> String {
    if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) {
        return format!("{}G", bytes >> 30);
    }
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}
