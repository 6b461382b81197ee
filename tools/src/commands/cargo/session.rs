//! Files in a temporary directory by which `cargo rftrace` and the programs that cargo runs for it communicate.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rftrace_format::opener::{self, MOST_TEXT};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::hooks::Hooks;

/// The name under which this program is cargo's runner.
pub(super) const RUNNER: &str = "rftrace-runner";

const ORDERS: &str = "orders.json";
const RUNS: &str = "runs.json";

/// Orders for the runner.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Where traces go.
    pub(super) traces: PathBuf,
    /// True if that is the trace itself.
    pub(super) one_trace: bool,
    pub(super) quiet: bool,
    pub(super) hooks: Hooks,
    /// True to record resources, and no calls.
    pub(super) is_leaks: bool,
    /// The triple that programs are built for; others are a part of the compiler.
    pub(super) target: String,
    /// Options for `rftrace record`.
    pub(super) record: Vec<OsString>,
    /// Bytes that all traces may have together.
    pub(super) max_size: u64,
    /// The user's own runner, and its arguments.
    pub(super) user_runner: Vec<OsString>,
    /// Variables as the user has set them.
    pub(super) variables: Vec<(String, Option<OsString>)>,
}

/// A program that was run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProgramRun {
    pub(super) program: PathBuf,
    /// Where its trace should be; none, if it was not recorded.
    pub(super) trace: Option<PathBuf>,
}

/// The directory, which goes with this.
#[derive(Debug)]
pub(super) struct Session(TempDir);

impl Session {
    pub(super) fn create() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("rftrace-").tempdir().context("cannot make a temporary directory")?;
        if dir.path().to_string_lossy().contains(char::is_whitespace) {
            bail!(
                "{} has a space in its path, and cargo cannot run programs there; set TMPDIR to another directory",
                dir.path().display()
            );
        }
        let this = std::env::current_exe().context("cannot find the path of this program")?;
        let link = dir.path().join(RUNNER);
        std::os::unix::fs::symlink(&this, &link).with_context(|| format!("cannot make the link {}", link.display()))?;
        Ok(Self(dir))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of the runner of cargo's programs.
    pub(super) fn runner_path(&self) -> PathBuf {
        self.0.path().join(RUNNER)
    }

    pub(super) fn give(&self, orders: &Orders) -> Result<()> {
        let path = self.0.path().join(ORDERS);
        fs::write(&path, serde_json::to_vec(orders)?).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The programs that were run.
    pub(super) fn runs(&self) -> Result<Vec<ProgramRun>> {
        runs(self.0.path())
    }

    /// The trace with the most in it, if there is any.
    pub(super) fn largest_trace(&self) -> Result<Option<PathBuf>> {
        Ok(self
            .runs()?
            .into_iter()
            .filter_map(|run| run.trace)
            .filter(|trace| trace.exists())
            .max_by_key(|trace| bytes_of(trace)))
    }
}

/// Bytes of the files in a trace's directory, as far as there are any.
pub(super) fn bytes_of(trace: &Path) -> u64 {
    let sizes = fs::read_dir(trace).into_iter().flatten().flatten().filter_map(|entry| entry.metadata().ok());
    sizes.filter(fs::Metadata::is_file).map(|meta| meta.len()).sum()
}

/// Reads the orders of `cargo rftrace` for a runner in `dir`.
pub(super) fn orders(dir: &Path) -> Result<Orders> {
    let path = dir.join(ORDERS);
    let text = opener::read(&path, MOST_TEXT)
        .with_context(|| format!("cannot read {}: only `cargo rftrace` starts this program", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))
}

/// The programs that were run up to now.
pub(super) fn runs(dir: &Path) -> Result<Vec<ProgramRun>> {
    let path = dir.join(RUNS);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = opener::read_text(&path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("cannot read {}", path.display())))
        .collect()
}

/// Adds a program.
pub(super) fn add_run(dir: &Path, run: &ProgramRun) -> Result<()> {
    let path = dir.join(RUNS);
    let line = serde_json::to_string(run)? + "\n";
    let write = || File::options().create(true).append(true).open(&path)?.write_all(line.as_bytes());
    write().with_context(|| format!("cannot write {}", path.display()))
}
