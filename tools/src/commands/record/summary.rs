//! Summary of `rftrace record`.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread;
#[cfg(attaching)]
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use indicatif::{HumanBytes, HumanCount};

use rftrace_format::ending;
use rftrace_format::files::GAPS;
use rftrace_format::gaps;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::store::{self, Owned};
use rftrace_read::maps::Mapping;
use rftrace_read::{Reading, Trace};
use rftrace_record::ScheduleEvents;
use rftrace_record::dumps::NotThere;
use rftrace_record::entries::Told;
use rftrace_record::join::KeptStream;
use rftrace_record::kernel::InKernel;
use rftrace_record::output::Output;
use rftrace_record::parts::Joined;
use rftrace_record::run::Ended;
use rftrace_views::{Graph, Report, TableBelow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::commands::choice::source_lines;
use crate::commands::common::{of, shell_word};
use crate::commands::overview;

use super::values::similar_name;

/// The error of a recording that is not a trace yet.
pub(super) fn not_made(cause: &anyhow::Error, output: Output) -> anyhow::Error {
    let dir = shell_word(output.dir());
    let work = output.keep();
    anyhow!(
        "cannot make the trace: {cause:#}; the records stay in {}: when the cause is gone, run `rftrace recover {dir}`, or make the trace \
         elsewhere by `rftrace recover {dir} -o OTHER`",
        work.display()
    )
}

/// Reports that the directory was moved during the recording.
pub(super) fn tell_of_move(moved: Option<&(PathBuf, PathBuf)>) {
    if let Some((from, to)) = moved {
        say!("rftrace: {} was moved to {}; the records are there", shell_word(from), shell_word(to));
    }
}

/// Returns the events of context switches, or says why there are none.
pub(super) fn told_of_schedule(events: rftrace_read::Result<ScheduleEvents>, is_quiet: bool) -> Option<ScheduleEvents> {
    let told = events.inspect_err(|error| {
        if !is_quiet {
            say!("rftrace: {error}; waiting counts as self time (--no-schedule hides this note)");
        }
    });
    told.ok()
}

/// The least bytes of a trace that takes seconds to read.
pub(super) const LARGE: u64 = 256 << 20;
/// The options against its size.
pub(super) const LESS: &str = "to record less: -F, -N, -D, -t";

/// The words on a trace's directory.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// None.
    Nowhere,
    /// Its path.
    Named(&'a Path),
    /// Its path, and the overview of the trace for a person at a terminal.
    Shown(&'a Path),
}

impl<'a> Place<'a> {
    /// Returns the words on a directory. Another machine shows a sent trace.
    pub(super) fn of(dir: &'a Path, is_kept: bool, is_sent: bool) -> Self {
        match (is_kept, is_sent) {
            (false, _) => Self::Nowhere,
            (true, false) if io::stderr().is_terminal() => Self::Shown(dir),
            (true, _) => Self::Named(dir),
        }
    }
}

/// Reports the end of the program, unless it is a usual one: by itself, with a status of 0, or with another one and no function open but
/// the outermost ones, of which one has called `exit`.
pub(super) fn print_end(trace: &Path, ended: &Ended) {
    if ended.status.success() {
        return;
    }
    let open = Trace::open(trace).and_then(|mut trace| open_calls(&mut trace, ended.pid)).unwrap_or_default();
    if ended.status.signal().is_some() || open.n_nested > 0 {
        say!("rftrace: {}{open}", ending::in_words(ended.status.into_raw()));
    }
}

/// Names the other processes that a signal has killed.
pub(super) fn print_killed(trace: &Path, main: u32, ends: &BTreeMap<u32, i32>) {
    /// More lines tell nothing new.
    const MOST: usize = 5;

    let is_killed = |&(&pid, &end): &(&u32, &i32)| pid != main && ExitStatus::from_raw(end).signal().is_some();
    let killed: Vec<_> = ends.iter().filter(is_killed).collect();
    let Some(mut read) = (!killed.is_empty()).then(|| Trace::open(trace).ok()).flatten() else { return };
    for &(&pid, &end) in killed.iter().take(MOST) {
        let open = open_calls(&mut read, pid).unwrap_or_default();
        say!("rftrace: process {pid}: {}{open}", ending::in_words(end));
    }
    if killed.len() > MOST {
        let n_more = (killed.len() - MOST) as u64;
        let trace = shell_word(trace);
        say!("rftrace: signals killed {}; see\n  rftrace info {trace}", of(n_more, "more process", "more processes"));
    }
}

/// The calls of a process that did not return.
#[derive(Default)]
struct OpenCalls {
    n_calls: u64,
    /// Those of them that are not the outermost ones of their threads.
    n_nested: u64,
    /// ` in FUNCTION (FILE:LINE)`, where but one thread has such calls: of several nobody has said which one it was.
    place: String,
}

impl fmt::Display for OpenCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        match self.n_calls {
            0 => Ok(()),
            n_calls => write!(f, "; {} did not return", of(n_calls, "call", "calls")),
        }
    }
}

fn open_calls(trace: &mut Trace, pid: u32) -> rftrace_read::Result<OpenCalls> {
    let mut found = OpenCalls::default();
    if trace.cut_off()?.contains(&pid) {
        return Ok(found);
    }
    let mut innermost = Vec::new();
    for task in trace.tasks().iter().filter(|task| task.pid() == pid) {
        let open = trace.did_not_return(task)?;
        found.n_calls += open.len() as u64;
        found.n_nested += open.len().saturating_sub(1) as u64;
        innermost.extend(open.last().map(|exit| (task.clone(), exit.time_ns, exit.addr)));
    }
    if let [(task, time_ns, addr)] = &innermost[..] {
        // A file is read once for all processes, and may lie elsewhere in another one.
        let mapped = trace.sessions().iter().flat_map(|session| &session.mappings);
        let files: HashSet<String> = mapped
            .filter(|module| (module.start..module.end).contains(addr))
            .map(|module| module.path.clone())
            .collect();
        let is_wanted = |module: &Mapping| files.contains(&module.path);
        trace.read_sources(|module| is_wanted(module).then(|| source_lines(module, false)).flatten())?;
        let source = trace.source(task, *time_ns, *addr).map_or_else(String::new, |source| format!(" ({source})"));
        found.place = format!(" in {}{source}", trace.function_name(task, *time_ns, *addr));
    }
    Ok(found)
}

/// As [`print_recorded`], for a stream.
pub(crate) fn print_kept(kept: &KeptStream, dir: &str) {
    say!(
        "rftrace: {} calls and returns, {} in {dir}, as a stream; try\n  rftrace report {dir}\n  rftrace recover {dir}  # a trace for \
         uftrace",
        HumanCount(kept.n_records),
        HumanBytes(kept.bytes)
    );
}

/// Reports what was recorded, on stderr. `buffer` is the size for each process, `most_bytes` the limit for all together.
pub(crate) fn print_recorded(joined: &Joined, buffer: usize, most_bytes: usize, place: Place<'_>) {
    print_counts(joined);
    if let Some(kernel) = &joined.kernel {
        print_kernel(kernel);
    }
    if joined.too_much > 0 {
        let n_calls = if joined.dropped > 0 { format!("{} ", joined.dropped) } else { String::new() };
        say!(
            "rftrace: {n_calls}calls and returns of {} were not recorded: the trace has reached its --max-size, {}; use a larger one, or \
             record less (-F, -N, -D, -t)",
            of(joined.too_much as u64, "process", "processes"),
            size(most_bytes),
        );
    }
    if joined.full > 0 {
        say!(
            "rftrace: the buffer of {} was full before the end, and the trace lacks all later calls; leave out --stop, use --buffer {} \
             or more, keep the end with --ring, or record less (-F, -N, -D, -t)",
            of(joined.full as u64, "process", "processes"),
            size(buffer.saturating_mul(4)),
        );
    }
    if joined.bytes >= LARGE {
        say!("rftrace: the trace has {}; {LESS}", HumanBytes(joined.bytes));
    }
    if joined.overwritten > 0 {
        say!("rftrace: the ring has kept only the last calls; for more of them, use a larger --buffer");
    }
    if joined.lost > 0 {
        say!(
            "rftrace: {} not recorded; the trace shows where",
            of(joined.lost, "call deeper than 1023 levels was", "calls deeper than 1023 levels were"),
        );
    }
    if joined.untraced_threads > 0 {
        say!(
            "rftrace: {} not recorded: too many threads ran at one time",
            of(joined.untraced_threads, "thread was", "threads were")
        );
    }
    print_snapshots(joined);
    match place {
        Place::Nowhere => {}
        Place::Named(dir) => print_place(joined, dir),
        Place::Shown(dir) => match read_overview(joined, dir) {
            Some((text, next)) => print_overview(joined, dir, &text, &next),
            None => print_place(joined, dir),
        },
    }
}

pub(crate) use rftrace_format::store::BRANCHES as BRANCHES_FILE;

/// Fewer functions than this are hardly all that a program is about.
const FEW: u64 = 4;

/// Returns the reason for a trace without functions: `patterns` of -P match none of this program.
pub(super) fn no_match(patterns: &[String], program: &Path) -> String {
    if patterns.iter().any(|pattern| pattern == ".") {
        return "-P . matches no function; for all functions: -P '*'".to_owned();
    }
    let similar = patterns.iter().find_map(|pattern| Some((pattern, similar_name(program, pattern)?)));
    match similar {
        Some((pattern, name)) => format!("-P {pattern} matches no function; did you mean `{name}`?"),
        None => "-P matches no function; write names as `rftrace report` shows them".to_owned(),
    }
}

/// Reports the number of functions of the program with a branch (`patterns`: -P) and of recorded library functions. Writes a list of the others
/// into the trace's directory, which is made for it if nothing was recorded.
pub(super) fn tell_of_branches(
    told: &Told,
    (patterns, program): (&[String], &Path),
    dir: &Path,
    is_kept: bool,
    is_quiet: bool,
) -> Result<()> {
    let has_branches = !patterns.is_empty();
    if has_branches && told.functions.of == 0 {
        say!("rftrace: {}", no_match(patterns, program));
    }
    let path = dir.join(BRANCHES_FILE);
    if is_kept && !told.left_out.is_empty() {
        let text = told.left_out.iter().map(|line| format!("{line}\n")).collect::<String>();
        Owned::within(dir)
            .and_then(|_| store::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if is_quiet {
        return Ok(());
    }
    let place = if is_kept { format!(": see {}", shell_word(&path)) } else { String::new() };
    let shares = [
        (told.functions, "functions have entry branches"),
        (told.library_calls, "functions of libraries are recorded"),
    ];
    for (share, what) in shares.into_iter().filter(|(share, _)| share.of > 0) {
        let left_out = match share.of - share.done {
            0 => String::new(),
            n => format!("; {} left out{place}", HumanCount(n)),
        };
        say!("rftrace: {} of {} {what}{left_out}", HumanCount(share.done), HumanCount(share.of));
    }
    for program in &told.readers {
        let name = Path::new(program).file_name().unwrap_or(program.as_ref()).to_string_lossy();
        say!(
            "rftrace: the runtime of {name} reads return addresses; rftrace leaves them, and records exits by branches"
        );
    }
    // Such as an interpreter that only calls its library.
    if has_branches && (1..FEW).contains(&told.functions.of) {
        say!("rftrace: to record functions of a library, name it: -P '*@libNAME'");
    }
    Ok(())
}

/// Reports the time for which all threads were stopped, and the number of threads in changed code.
#[cfg(attaching)]
pub(crate) fn tell_of_stop((n_moved, stopped): (usize, Duration), is_quiet: bool) {
    if is_quiet || stopped.is_zero() {
        return;
    }
    let moved = match n_moved {
        0 => String::new(),
        n => format!(", and moved {} out of changed code", of(n as u64, "thread", "threads")),
    };
    say!("rftrace: stopped all threads for {:.1} ms to write the branches{moved}", stopped.as_secs_f64() * 1e3);
}

/// Reports the trace of an interrupted recording.
pub(crate) fn print_found(joined: &Joined, dir: &Path) {
    for error in &joined.errors {
        say!("rftrace: {error}");
    }
    print_snapshots(joined);
    if joined.processes > 0 {
        print_counts(joined);
        if joined.cut > 0 {
            say!(
                "rftrace: the last calls of {} are missing: the recording was interrupted before",
                of(joined.cut as u64, "process", "processes")
            );
        }
        print_place(joined, dir);
    }
}

/// Names the option that keeps the calls before a panic, for a Rust program that may have ended by one.
pub(super) fn print_panic(ended: &Ended, has_no_dumps: bool) {
    /// Both of `main` and of libtest.
    const STATUS: i32 = 101;

    if has_no_dumps && ended.status.code() == Some(STATUS) {
        say!("rftrace: exit status {STATUS}, as after a panic; --dump-on panic keeps the calls before one");
    }
}

/// Reports the snapshots and their events.
pub(crate) fn print_snapshots(joined: &Joined) {
    for snapshot in &joined.snapshots {
        let told = opener::read(&snapshot.join(GAPS), MOST_TEXT).unwrap_or_default();
        let reason = gaps::dump_reason(&told).map(|reason| format!(" ({reason})")).unwrap_or_default();
        say!("rftrace: a snapshot lies in {}{reason}", shell_word(snapshot));
    }
    let NotThere { n_more, n_removed, n_without_room } = joined.dumps_not_there;
    let dumps = |number: usize| of(number as u64, "dump was", "dumps were");
    if n_more > 0 {
        say!("rftrace: {} due and not made; --dumps N makes more", dumps(n_more));
    }
    if n_without_room > 0 {
        say!(
            "rftrace: {} due and not made, as the others fill --dumps-size; --dumps-size SIZE makes room",
            dumps(n_without_room)
        );
    }
    if n_removed > 0 {
        say!("rftrace: {} replaced by others; --dumps N keeps more", dumps(n_removed));
    }
}

fn print_counts(joined: &Joined) {
    say!(
        "rftrace: {} of {} in {}",
        of(joined.events / 2, "call", "calls"),
        of(joined.threads as u64, "thread", "threads"),
        of(joined.processes as u64, "process", "processes"),
    );
}

fn print_kernel(kernel: &InKernel) {
    let &InKernel { n_calls, n_events, n_lost, n_dropped_pages, n_wrong_pages, .. } = kernel;
    say!("rftrace: {} in the kernel, and {}", of(n_calls, "call", "calls"), of(n_events, "event", "events"));
    if n_lost > 0 {
        say!(
            "rftrace: the trace lacks {} or more records of the kernel: they came faster than rftrace read them; record fewer \
             functions (--kernel=GLOBS)",
            HumanCount(n_lost)
        );
    }
    if n_dropped_pages > 0 {
        say!(
            "rftrace: the trace lacks the last {} pages of kernel records: use a larger --max-size (with --stop: --buffer), or record \
             fewer functions (--kernel=GLOBS)",
            HumanCount(n_dropped_pages)
        );
    }
    if n_wrong_pages > 0 {
        say!("rftrace: cannot read {} pages of kernel records to their end", HumanCount(n_wrong_pages));
    }
}

/// The ends of processes for the overview of a recording. Killed processes have their lines already.
pub(crate) fn ends_to_show(trace: &Trace) -> rftrace_read::Result<BTreeMap<u32, i32>> {
    let mut ends = trace.ends()?;
    ends.retain(|_, &mut end| ExitStatus::from_raw(end).signal().is_none());
    Ok(ends)
}

/// The overview of a trace, and the command to go on with; none if reading takes long, fails, or a signal stops it.
fn read_overview(joined: &Joined, dir: &Path) -> Option<(String, String)> {
    /// More records take some seconds.
    const MOST_RECORDS: u64 = 20_000_000;

    if joined.events > MOST_RECORDS {
        return None;
    }
    let mut trace = Trace::open(dir).ok()?;
    trace.use_index().ok()?;
    trace.correct_times(true);
    let ends = ends_to_show(&trace).ok()?;
    let reading = Arc::new(Reading::default());
    trace.watch(Arc::clone(&reading));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).ok()?;
    let handle = signals.handle();
    let watch = move || signals.forever().for_each(|_| reading.stop());
    let watcher = thread::Builder::new().spawn(watch).ok()?;
    let mut text = Vec::new();
    let written = Report::read(&trace).and_then(|report| {
        overview::write((&trace, dir), &report, &Graph::read(&trace, None)?, &ends, TableBelow::None, &mut text)
    });
    handle.close();
    let _ = watcher.join();
    let (_, next) = written.ok()?;
    Some((String::from_utf8(text).ok()?, next))
}

fn print_overview(joined: &Joined, dir: &Path, text: &str, next: &str) {
    let (place, size) = (shell_word(dir), HumanBytes(joined.bytes));
    say!("rftrace: the trace lies in {place} ({size})\n\n{text}\n  Next: {next}");
}

fn print_place(joined: &Joined, dir: &Path) {
    let (dir, size) = (shell_word(dir), HumanBytes(joined.bytes));
    say!("rftrace: the trace lies in {dir} ({size}); look at it with\n  rftrace report {dir}\n  rftrace replay {dir}");
}

/// A size as `--buffer` takes it.
fn size(bytes: usize) -> String {
    if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) {
        return format!("{}G", bytes >> 30);
    }
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0, 1, 1_500].map(|number| of(number, "call", "calls")), ["0 calls", "1 call", "1,500 calls"]);
    }
}
