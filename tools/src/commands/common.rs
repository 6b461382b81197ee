//! What the subcommands share.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use rftrace_tools::{Error, Summary, Trace};

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
