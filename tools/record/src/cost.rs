//! The tracer's overhead per recorded call. The library measures it in a separate process after the end of the recorded
//! program.
//!
//! Not here: the measurement (`rftrace-preload`), and its use (`rftrace-views`).

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rftrace_format::cost::{CallCost, HookKind, INSIDE, OUTSIDE};
use rftrace_format::files;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::COST;
use rftrace_format::store;

/// Has the library measure the overhead. For several kinds of hooks it is the smallest, as the kind of a function's
/// hook is unknown. `None` if it cannot be measured.
#[must_use]
pub fn measure(library: &Path, kinds: &[HookKind]) -> Option<CallCost> {
    let of_kind = |kind: &HookKind| {
        // No variable of this process is meant for it.
        let told = Command::new(library).arg(kind.to_string()).env_clear().stdin(Stdio::null()).output().ok()?;
        CallCost::parse(&told.stdout).filter(|_| told.status.success())
    };
    kinds.iter().map(of_kind).reduce(|one, other| Some(one?.least(other?)))?
}

/// Makes room for it in a folder.
pub(crate) fn reserve(work: &Path) -> io::Result<()> {
    store::reserve(&work.join(COST))
}

/// Keeps it with a recording, for a later trace.
pub(crate) fn keep_in(work: &Path, cost: CallCost) -> Result<()> {
    let path = work.join(COST);
    store::fill(&path, &cost.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the overhead kept by [`keep_in`].
pub(crate) fn kept_in(work: &Path) -> Option<CallCost> {
    CallCost::parse(&opener::read(&work.join(COST), MOST_TEXT).ok()?)
}

/// Writes the overhead into a trace, and replaces an earlier value.
///
/// # Errors
///
/// The trace's `clock.txt` cannot be read or written.
pub fn add_to(dir: &Path, cost: CallCost) -> Result<()> {
    let path = dir.join(files::CLOCK);
    let mut text = opener::read_text(&path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
    let is_other = |line: &&str| ![INSIDE, OUTSIDE].iter().any(|key| line.starts_with(key));
    text = text.split_inclusive('\n').filter(is_other).collect();
    text += &cost.to_string();
    // The file may be a part's. It is whole at any time.
    let new = path.with_extension("part");
    store::write(&new, text)
        .and_then(|()| fs::rename(&new, &path))
        .inspect_err(|_| {
            // It is of no use; its presence matters less than the error.
            let _ = fs::remove_file(&new);
        })
        .with_context(|| format!("cannot write {}", path.display()))
}
