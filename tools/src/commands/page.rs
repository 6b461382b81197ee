//! The page that `rftrace view` serves and `rftrace dump --html` writes.

use std::io::{self, IsTerminal};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rftrace_page::{Counter, Error, MAX_CALLS, Page, Server, Zoom};
use rftrace_read::{RECORD_BYTES, Reading, Trace};

use super::common::{losses, print_warnings};
use super::counters::Counters;
use super::stand_ins;

/// Serves what is chosen of a trace, of these tasks if there are any: with more calls than that the page asks for what is seen.
pub(crate) fn serve(trace: &mut Trace, tids: &[u32], port: u16, max_calls: u64) -> Result<Server> {
    // A call has two records.
    let is_long = !trace.is_chosen() && trace.records_bytes() / (2 * RECORD_BYTES as u64) > max_calls;
    if !is_long {
        match read_up_to(trace, tids, max_calls.min(MAX_CALLS)) {
            Ok(page) => {
                print_warnings(trace, page.summary())?;
                return Ok(Server::bind(page, port)?);
            }
            Err(error) if matches!(error.downcast_ref(), Some(Error::TooManyCalls { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    let title = title(trace);
    let mut zoom = match Zoom::kept(trace, &title) {
        Some(zoom) => zoom,
        None => make_index(trace, &title)?,
    };
    zoom.set_notes(losses(zoom.summary(), &trace.gaps()?));
    zoom.set_counters(counters(trace, tids));
    print_warnings(trace, zoom.summary())?;
    Ok(Server::bind_zoom(zoom, port)?)
}

/// Makes the index of a long trace, and says how far it is.
fn make_index(trace: &mut Trace, title: &str) -> Result<Zoom> {
    match trace.is_chosen() {
        true => say!("rftrace: reading the chosen part, for an index of it"),
        false => say!("rftrace: reading the whole trace, for an index that the next `rftrace view` uses"),
    }
    let reading = Arc::new(Reading::default());
    trace.watch(Arc::clone(&reading));
    let style = ProgressStyle::with_template("{bar:40} {percent} % of the records, {eta} left");
    let n_records = trace.records_bytes() / RECORD_BYTES as u64;
    let progress = if io::stderr().is_terminal() && !trace.is_chosen() {
        ProgressBar::new(n_records).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    } else {
        ProgressBar::hidden()
    };
    let trace = &*trace;
    let zoom = thread::scope(|scope| {
        let making = scope.spawn(|| Zoom::make(trace, title));
        while !making.is_finished() {
            progress.set_position(reading.n_records().min(n_records));
            thread::sleep(Duration::from_millis(20));
        }
        making.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    progress.finish_and_clear();
    zoom.with_context(|| format!("cannot make a page of {}", stand_ins::of_user(trace.dir()).display()))
}

/// Reads what is chosen of a trace, of these tasks if there are any.
pub(crate) fn read_page(trace: &Trace, tids: &[u32]) -> Result<Page> {
    read_up_to(trace, tids, MAX_CALLS)
}

/// A page of what was recorded of a program that does not call the tracer.
pub(crate) fn page_without_calls(recorded: &Counters) -> Result<Page> {
    Ok(Page::without_calls(recorded.title(), recorded.of_page(&[], &[])?))
}

/// Returns the resources of processes over time. If they cannot be read the calls are shown without them.
fn counters(trace: &Trace, tids: &[u32]) -> Vec<Counter> {
    let read = Counters::open(trace.dir()).and_then(|counters| match counters {
        Some(counters) => counters.of_page(trace.tasks(), tids),
        None => Ok(Vec::new()),
    });
    read.unwrap_or_else(|error| {
        say!("rftrace: the page lacks the resources of the processes: {error}");
        Vec::new()
    })
}

/// The same, if it has no more calls than that.
fn read_up_to(trace: &Trace, tids: &[u32], max_calls: u64) -> Result<Page> {
    let progress = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    progress.set_message("Reading the trace");
    progress.enable_steady_tick(Duration::from_millis(100));
    let page = Page::read(trace, &title(trace), max_calls);
    progress.finish_and_clear();
    let mut page =
        page.with_context(|| format!("cannot make a page of {}", stand_ins::of_user(trace.dir()).display()))?;
    page.set_notes(losses(page.summary(), &trace.gaps()?));
    page.set_counters(counters(trace, tids));
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
