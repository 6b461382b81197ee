//! The overview of a trace on the first screen of commands.
//!
//! Not here: its content (`rftrace-views`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use rftrace_read::{Result, Trace};
use rftrace_views::{Graph, Overview, Report, TableBelow};

use super::common::shell_word;

/// Writes the overview of a trace with this report and its whole graph. Returns true if that is more than times and ends of processes. `ends`: the status of
/// `wait` of processes.
pub(crate) fn write(
    trace: &Trace,
    report: &Report,
    graph: &Graph,
    ends: &BTreeMap<u32, i32>,
    below: TableBelow,
    out: &mut dyn Write,
) -> Result<bool> {
    Overview::new(trace, report, graph, ends).write(below, quoted, out)
}

/// The command to go on with.
pub(crate) fn next_command(dir: &Path) -> String {
    // Without the other features there is no interactive view.
    let command = if cfg!(feature = "full") { "tui" } else { "graph" };
    format!("rftrace {command} {}", shell_word(dir))
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    // Only a NUL cannot be quoted, which no name has.
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), Cow::into_owned)
}
