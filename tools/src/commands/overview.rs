//! The overview of a trace on the first screen of commands.
//!
//! Not here: its content (`rftrace-views`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use rftrace_format::files::INFO;
use rftrace_format::info::key::EXE_NAME;
use rftrace_format::store;
use rftrace_read::{Result, Trace, info};
use rftrace_views::{Graph, Overview, Report, TableBelow};

use super::common::shell_word;

/// Writes the overview of a trace in `dir` with this report and its whole graph. Returns true if that is more than times and ends of processes, and
/// the command to go on with. `ends`: the status of `wait` of processes.
pub(crate) fn write(
    (trace, dir): (&Trace, &Path),
    report: &Report,
    graph: &Graph,
    ends: &BTreeMap<u32, i32>,
    below: TableBelow,
    out: &mut dyn Write,
) -> Result<(bool, String)> {
    let overview = Overview::new(trace, report, graph, ends);
    let has_more = overview.write(below, quoted, out)?;
    Ok((has_more, next_command(&overview, trace, dir)))
}

/// The command to go on with: what has changed, then who calls what takes longest.
fn next_command(overview: &Overview<'_>, trace: &Trace, dir: &Path) -> String {
    let (word, old) = (shell_word(dir), store::older(dir.components().as_path()));
    let program = trace.info().get(EXE_NAME);
    if program.is_some() && info::read(&old.join(INFO)).is_ok_and(|old| old.get(EXE_NAME) == program) {
        return format!("rftrace diff {} {word}", shell_word(&old));
    }
    match overview.off_path() {
        Some(function) => format!("rftrace graph {word} {}", quoted(&function)),
        // Without the other features there is no interactive view.
        None if cfg!(feature = "full") => format!("rftrace tui {word}"),
        None => format!("rftrace graph {word}"),
    }
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    // Only a NUL cannot be quoted, which no name has.
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), Cow::into_owned)
}
