//! Opens what a command shows: a trace, or what is no trace yet (`unfinished`).

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context, Result};
use rftrace_read::Trace;

use super::common::{Names, cannot_open};
use super::unfinished;

/// Opens a trace.
pub(crate) fn open(dir: &Path) -> Result<Trace> {
    open_named(dir, Names::Simple)
}

/// Opens a trace, with functions named in a chosen way.
pub(crate) fn open_named(dir: &Path, names: Names) -> Result<Trace> {
    let shown = unfinished::shown(dir).with_context(|| cannot_open(dir))?;
    let mut trace = Trace::open_named(&shown, names.into()).with_context(|| cannot_open(dir))?;
    if io::stderr().is_terminal() {
        trace.on_index(Some(tell_of_index));
    }
    Ok(trace)
}

fn tell_of_index() {
    say!("rftrace: reading the whole trace, for an index that the next command uses");
}
