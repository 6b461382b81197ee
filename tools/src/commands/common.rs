//! What the subcommands share.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::HumanCount;
use rftrace_tools::{Error, Gaps, Summary, TaskStats, Trace};

#[derive(Args)]
pub(crate) struct DirArg {
    /// The trace directory [default: the current directory if it is one, else `uftrace.data`].
    dir: Option<PathBuf>,
}

impl DirArg {
    /// Its path.
    pub(crate) fn path(self) -> PathBuf {
        self.dir.unwrap_or_else(|| if Path::new("info").is_file() { ".".into() } else { "uftrace.data".into() })
    }
}

/// Opens a trace.
pub(crate) fn open(dir: &Path) -> Result<Trace> {
    Trace::open(dir).with_context(|| format!("cannot open the trace {}", dir.display()))
}

/// Writes to stdout through a buffer.
pub(crate) fn print<T>(write: impl FnOnce(&mut dyn Write) -> rftrace_tools::Result<T>) -> rftrace_tools::Result<T> {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = write(&mut out);
    // What was read before an error is worth showing.
    out.flush().map_err(Error::Write).and(result)
}

/// Says what was odd about a trace.
pub(crate) fn print_warnings(trace: &Trace, summary: &Summary) {
    if summary.records == 0 {
        eprintln!(
            "rftrace: the trace holds no records: was tracing enabled, and the program built with `mcount` calls?"
        );
    }
    for warnings in [trace.warnings(), &summary.warnings] {
        for line in warnings.to_string().lines() {
            eprintln!("rftrace: {line}");
        }
    }
}

/// A number, hexadecimal with `0x`.
#[cfg(target_os = "linux")]
pub(crate) fn parse_address(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// Looks for an executable file in `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(|path| is_executable(path))
}

/// Whether a file may be run.
#[cfg(unix)]
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// What was not recorded, and what to do about it: a sentence each.
pub(crate) fn losses(tasks: &[TaskStats], gaps: &Gaps) -> Vec<String> {
    const REMEDY: &str =
        "give it more room (--buffer 1G), or record less (--filter, --notrace, --depth, --time-filter)";

    let lost = tasks.iter().map(|task| task.lost_calls).fold(0, u64::saturating_add);
    let mut found = Vec::new();
    if gaps.full > 0 {
        found.push(format!(
            "The buffer was full before the end, and the rest was lost: {REMEDY}, or keep the end (--ring)"
        ));
    }
    if gaps.overwritten > 0 || tasks.iter().any(|task| task.overwritten) {
        found.push(format!("The beginning was lost, later records took its place: {REMEDY}"));
    }
    if lost > 0 {
        found.push(format!("Lost calls, nested more than 1023 levels deep: {}", HumanCount(lost)));
    }
    if gaps.untraced_threads > 0 {
        found.push(format!("Lost threads, which were too many at a time: {}", HumanCount(gaps.untraced_threads)));
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
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.into_owned();
    }
    // What begins with a dash would be an option.
    let dash = if text.starts_with('-') { "./" } else { "" };
    format!("'{dash}{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (path, word) in [
            ("/tmp/a-b_c.d", "/tmp/a-b_c.d"),
            ("/tmp/a b", "'/tmp/a b'"),
            ("-x", "'./-x'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
        assert_eq!(shell_word(&std::env::current_dir().unwrap().join("trace")), "trace");
    }
}
