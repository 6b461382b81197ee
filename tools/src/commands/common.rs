//! Parts shared by the subcommands.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use indicatif::HumanCount;
use rftrace_format::files::{INFO, records};
use rftrace_read::{Demangle, Error, Gaps, Pattern, Shown, Summary, Trace};

#[cfg(feature = "full")]
use super::new_file::NewFile;
use super::stand_ins;

/// Writes to a file, or to stdout.
#[cfg(feature = "full")]
pub(crate) fn write_to(
    file: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<()>,
) -> Result<()> {
    let Some(path) = file else { return Ok(print(write)?) };
    NewFile::create(path, &[])?.write(write)
}

/// The version of the values that commands print as JSON. It rises when a key changes its meaning or goes.
#[cfg(feature = "full")]
pub(crate) const JSON_VERSION: u32 = 1;

/// The group in `--help` of options that few people need.
pub(crate) const MORE: &str = "More";

#[derive(Args, Clone)]
pub(crate) struct DirArg {
    /// Trace directory [default: the current directory if it is a trace, else `uftrace.data`, else the newest of `cargo rftrace`].
    dir: Option<PathBuf>,
    /// Trace directory, in uftrace's syntax.
    #[arg(short, long, value_name = "DIR", conflicts_with = "dir", help_heading = MORE)]
    data: Option<PathBuf>,
}

impl DirArg {
    /// Its path.
    pub(crate) fn path(self) -> PathBuf {
        self.dir.or(self.data).unwrap_or_else(default_dir)
    }
}

/// The directory of traces that nobody has named.
const USUAL: &str = "uftrace.data";
/// The directory of the traces of `cargo rftrace`.
const OF_CARGO: &str = "target/rftrace/traces";

/// The trace directory where none is named.
pub(crate) fn default_dir() -> PathBuf {
    if Path::new(INFO).is_file() {
        return ".".into();
    }
    let newest = || {
        let within = |dir: PathBuf| dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        // Those of `run`, `test` and `bench`.
        let dirs = within(OF_CARGO.into()).flat_map(within);
        let written = |dir: &PathBuf| dir.join(INFO).metadata().and_then(|info| info.modified()).ok();
        let dir = dirs.filter_map(|dir| Some((written(&dir)?, dir))).max()?.1;
        say!("rftrace: the newest trace is {}", shell_word(&dir));
        Some(dir)
    };
    Some(USUAL.into()).filter(|dir: &PathBuf| dir.exists()).or_else(newest).unwrap_or_else(|| USUAL.into())
}

/// The words on a trace that cannot be opened.
pub(crate) fn cannot_open(dir: &Path) -> String {
    let usual = if dir == Path::new(USUAL) && !dir.exists() {
        format!(", and there is none in {OF_CARGO}")
    } else {
        String::new()
    };
    format!("cannot open the trace {}{usual}", dir.display())
}

/// Options of uftrace's commands that ask for the default behaviour here.
#[derive(Args)]
pub(crate) struct PlainArgs {
    /// Only `replay` and `report` go through a pager.
    #[arg(long = "no-pager", hide = true)]
    _no_pager: bool,
    #[command(flatten)]
    _color: PlainColorArg,
}

/// The same for colours alone.
#[derive(Args)]
pub(crate) struct PlainColorArg {
    /// Only `replay` has colours.
    #[arg(long = "color", hide = true, value_name = "WHEN", value_parser = ["auto", "no", "never", "yes", "always"])]
    _color: Option<String>,
}

/// How to name functions, in uftrace's words.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Names {
    /// Without the parameters of C++ functions, without Rust's hashes.
    Simple,
    /// With parameters and hashes: overloads, and instances of generic functions, are told apart.
    Full,
    /// As the linker sees them.
    No,
}

impl From<Names> for Demangle {
    fn from(names: Names) -> Self {
        match names {
            Names::Simple => Self::Simple,
            Names::Full => Self::Full,
            Names::No => Self::No,
        }
    }
}

/// How a report is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// A line for each function, values with commas between, times in nanoseconds.
    Csv,
    /// An object for each function, times in nanoseconds.
    #[cfg(feature = "full")]
    Json,
}

/// A text from elsewhere as a cell. A formula of a spreadsheet gets the mark of a text; numbers stay.
pub(crate) fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    let mark = if is_formula { "'" } else { "" };
    format!("\"{mark}{}\"", Shown::new(text).text().replace('"', "\"\""))
}

/// Writes to stdout through a buffer.
pub(crate) fn print<T>(write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<T>) -> rftrace_read::Result<T> {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = write(&mut out);
    // Data read before an error is worth showing.
    out.flush().map_err(Error::Write).and(result)
}

/// Says what is missing in a trace, and what was odd about it. It is an error if no function to show is there.
pub(crate) fn print_warnings(trace: &Trace, summary: &Summary) -> Result<()> {
    print_losses(trace, summary)?;
    check_shown(trace, summary)
}

/// The same without an error.
pub(crate) fn print_losses(trace: &Trace, summary: &Summary) -> Result<()> {
    for line in losses(summary, &trace.gaps()?) {
        say!("rftrace: {line}");
    }
    print_flaws(trace, summary);
    Ok(())
}

/// An error if there are functions to show, and none of them is in the trace.
pub(crate) fn check_shown(trace: &Trace, summary: &Summary) -> Result<()> {
    let [wanted, _] = trace.unknown();
    match wanted.first().filter(|_| summary.records == 0 && trace.has_none_to_show()) {
        Some(pattern) => Err(no_function(trace, pattern)),
        None => Ok(()),
    }
}

/// The error for a function that is not in a trace.
pub(crate) fn no_function(trace: &Trace, pattern: &Pattern) -> anyhow::Error {
    let text = pattern.text();
    match trace.nearest_name(pattern) {
        Some(name) => anyhow!("no function is named `{text}`; did you mean `{name}`?"),
        None => anyhow!("the trace has no call of `{text}`; `rftrace report` lists the called functions"),
    }
}

/// Says what was odd about a trace, but for what was not recorded.
pub(crate) fn print_flaws(trace: &Trace, summary: &Summary) {
    let [wanted, left_out] = trace.unknown();
    // The error names the first one.
    let wanted = wanted.into_iter().skip(trace.has_none_to_show().into());
    // Those may be among the nameless ones.
    for pattern in wanted.chain(left_out).filter(|_| summary.nameless_calls == 0) {
        say!("rftrace: {}", no_function(trace, pattern));
    }
    match summary.records {
        0 if trace.has_none_to_show() => {}
        0 if trace.is_chosen() => {
            say!("rftrace: no recorded call matches the options -F, -N, -D, -t and the time range");
        }
        0 => {
            say!("rftrace: the trace holds no records: was tracing enabled, and the program built with `mcount` calls?")
        }
        _ => {}
    }
    print_missing(trace, summary.nameless_calls > 0);
    for warnings in [trace.warnings(), &summary.warnings] {
        for line in warnings.to_string().lines() {
            say!("rftrace: {line}");
        }
    }
}

/// Says which files and names a trace lacks.
pub(crate) fn print_missing(trace: &Trace, has_nameless: bool) {
    let missing: Vec<String> = trace.tasks_without_file().map(|task| records(task.tid())).collect();
    if let Some(more) = missing.len().checked_sub(1) {
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        say!("rftrace: missing files of threads: {}{others}; the calls of these threads are missing", missing[0]);
    }
    if has_nameless {
        let dir = shell_word(&stand_ins::of_user(trace.dir()));
        say!("rftrace: some functions have no names: `rftrace symbols {dir} --binary ELF` adds those of a binary");
    }
}

/// A number, hexadecimal with `0x`.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn parse_address(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// Looks for an executable file in `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    which::which(name).ok()
}

/// A number of things.
pub(crate) fn of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", HumanCount(number), if number == 1 { one } else { many })
}

/// Returns the losses of the recording, with advice: a sentence each.
pub(crate) fn losses(summary: &Summary, gaps: &Gaps) -> Vec<String> {
    // The user of the library has no options of `rftrace record`.
    let (less, ring, wait, limit) = match gaps.library {
        true => (
            "give the program a larger buffer (Config::capacity_events; in C max_event_count), write to the disk (Config::stream, \
             RFTRACE_STREAM=DIR), or record less (Config::filter, RFTRACE_FILTER)",
            "Mode::Ring",
            "make the program wait (StreamOptions::waits), or enlarge the buffer (Config::capacity_bytes, RFTRACE_STREAM=DIR,256M)",
            "its size limit: raise it (StreamOptions::max_bytes), or record less (Config::filter, RFTRACE_FILTER)",
        ),
        false => (
            "enlarge the buffer (--buffer 1G), or record less (--filter, --notrace, --depth, --time-filter)",
            "--ring",
            "make the program wait (--on-full wait), or enlarge the buffer (--buffer 1G)",
            "--max-size: raise it (--max-size 16G), or record less (--filter, --notrace, --depth, --time-filter)",
        ),
    };
    let mut found = Vec::new();
    if gaps.full > 0 {
        found.push(format!("The end is lost, as the buffer was full: {less}, or keep the end ({ring})"));
    }
    if gaps.overwritten > 0 || summary.overwritten {
        found.push(format!("The beginning is lost, overwritten by later records: {less}"));
    }
    let processes = |n_processes| of(n_processes, "process", "processes");
    if gaps.too_much > 0 {
        found.push(format!("The end of {} is lost, as the trace reached {limit}", processes(gaps.too_much)));
    }
    if gaps.unwritten > 0 {
        found.push(format!(
            "Records or names of {} are missing, as a file could not be written: make room on the disk",
            processes(gaps.unwritten)
        ));
    }
    if gaps.damaged > 0 {
        found.push(format!("Damaged chunks, with lost calls: {}", HumanCount(gaps.damaged)));
    }
    if gaps.cut > 0 {
        found.push(format!("The end of {} is lost, as the recorder ended before", processes(gaps.cut)));
    }
    if gaps.dropped > 0 {
        // Otherwise the reason has a remedy of its own.
        let wait = if gaps.lacks_end() { String::new() } else { format!(": {wait}") };
        found
            .push(format!("Calls and returns lost, as there was no room for them: {}{wait}", HumanCount(gaps.dropped)));
    }
    if summary.deep_calls > 0 {
        found.push(format!("Lost calls, nested more than 1023 levels deep: {}", HumanCount(summary.deep_calls)));
    }
    if gaps.untraced_threads > 0 {
        found.push(format!("Lost threads, beyond the limit at a time: {}", HumanCount(gaps.untraced_threads)));
    }
    found
}

/// A path as a word for a shell, relative to the current directory if it lies there.
pub(crate) fn shell_word(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let path = here
        .and_then(|here| path.strip_prefix(here).ok())
        .filter(|rest| rest.components().next().is_some())
        .unwrap_or(path);
    // A path that begins with a dash would be an option.
    let path =
        if path.as_os_str().as_encoded_bytes().starts_with(b"-") { Path::new(".").join(path) } else { path.to_owned() };
    let text = path.to_string_lossy();
    // Only a NUL cannot be quoted, which no path has.
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (path, word) in [("/tmp/a-b_c.d", "/tmp/a-b_c.d"), ("/tmp/a b", "'/tmp/a b'"), ("-x", "./-x"), ("", "''")] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
        let hard = "it's $HOME \"here\"";
        assert_eq!(shlex::split(&shell_word(Path::new(hard))), Some(vec![hard.to_owned()]));
        assert_eq!(shell_word(&std::env::current_dir().unwrap().join("trace")), "trace");
    }
}
