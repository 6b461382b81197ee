//! What the tracer takes of a recorded call: measured by the library as a program of its own, when the recorded one has ended.
//!
//! Not here: how it is measured (`rftrace-preload`), and what is done with it (`rftrace-views`).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rftrace_format::cost::{CallCost, HookKind};
use rftrace_format::files;
use rftrace_format::recording::COST;

/// Has the library measure it. Of several kinds of hooks, where nobody knows which one a function has, it is the least. `None` if it
/// cannot be measured.
#[must_use]
pub fn measure(library: &Path, kinds: &[HookKind]) -> Option<CallCost> {
    let of_kind = |kind: &HookKind| {
        // No variable of this process is meant for it.
        let told = Command::new(library).arg(kind.to_string()).env_clear().stdin(Stdio::null()).output().ok()?;
        CallCost::parse(&told.stdout).filter(|_| told.status.success())
    };
    kinds.iter().map(of_kind).reduce(|one, other| Some(one?.least(other?)))?
}

/// Keeps it with a recording of which a trace is made later.
pub(crate) fn keep_in(work: &Path, cost: CallCost) -> Result<()> {
    let path = work.join(COST);
    fs::write(&path, cost.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

/// What was kept so.
pub(crate) fn kept_in(work: &Path) -> Option<CallCost> {
    CallCost::parse(&fs::read(work.join(COST)).ok()?)
}

/// Writes it into a trace.
pub(crate) fn add_to(dir: &Path, cost: CallCost) -> Result<()> {
    let path = dir.join(files::CLOCK);
    let mut text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    text.extend(cost.to_string().into_bytes());
    // The file may be that of a part.
    fs::remove_file(&path)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}
