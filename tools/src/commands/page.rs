//! The page that `rftrace view` serves and `rftrace dump --html` writes.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use rftrace_page::{MAX_CALLS, Page};
use rftrace_read::Trace;

use super::common::losses;

/// Reads what is chosen of a trace.
pub(crate) fn read_page(trace: &Trace) -> Result<Page> {
    let progress = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    progress.set_message("Reading the trace");
    progress.enable_steady_tick(Duration::from_millis(100));
    let page = Page::read(trace, &title(trace), MAX_CALLS);
    progress.finish_and_clear();
    let mut page = page.with_context(|| format!("there is no page of {}", trace.dir().display()))?;
    page.set_notes(losses(page.summary(), &trace.gaps()?));
    Ok(page)
}

/// The traced command, no longer than fits over a picture.
pub(crate) fn title(trace: &Trace) -> String {
    let command = trace.info().command_line().unwrap_or_default();
    let name = || trace.tasks().first().map(|task| task.process_name()).filter(|name| !name.is_empty());
    let whole = Some(command.trim()).filter(|command| !command.is_empty()).or_else(name).unwrap_or("rftrace");
    let (program, arguments) = whole.split_once(' ').unwrap_or((whole, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    let mut title = format!("{program} {arguments}").trim_end().to_owned();
    if let Some((cut, _)) = title.char_indices().nth(MAX_TITLE) {
        title.truncate(cut);
        title.push('…');
    }
    title
}

const MAX_TITLE: usize = 80;
