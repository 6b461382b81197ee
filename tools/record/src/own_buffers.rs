//! State of a program with its records in a buffer of its own (`--stop`), and a dump requested from it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rftrace_format::files::{GAPS, INFO};
use rftrace_format::gaps;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::{Entry, PART_FILE, Part, Saved};

use super::output::publish_snapshot;

/// How far a buffer is filled, as its program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) n_chunks: u64,
    pub(crate) n_chunks_used: u64,
    pub(crate) n_records: u64,
    pub(crate) is_full: bool,
}

impl State {
    /// Of the program's answer: numbers in this order.
    pub(crate) fn read(answer: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = answer.split_whitespace().map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[n_chunks, n_chunks_used, n_records, is_full]) => {
                Ok(Self { n_chunks, n_chunks_used, n_records, is_full: is_full != 0 })
            }
            _ => Err("the answer of the program is malformed: use the version of rftrace that started it".to_owned()),
        }
    }
}

/// Brings a dump made by a process in the folder `work` to its place in the directory of the trace. Returns the place.
pub(crate) fn publish(work: &Path, pid: u32, name: &str, reason: &str) -> Result<PathBuf, String> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot make a dump of process {pid}: {why}");
    // A program's answer may be anything.
    if !matches!(Entry::of(name), Some(Entry::Snapshot { pid: of, .. }) if of == pid) {
        return Err(failed(&"its answer names no directory"));
    }
    let directory = work.join(name);
    let part = opener::read(&directory.join(PART_FILE), MOST_TEXT).ok().and_then(|bytes| Part::parse(&bytes));
    let problem = match part {
        None => Some("the program wrote no description of it".to_owned()),
        Some(Part { saved: Saved::TooMuch, .. }) => Some("the recording has reached its --max-size".to_owned()),
        Some(Part { saved: Saved::Failed, problem, .. }) => Some(problem.unwrap_or_default()),
        Some(Part { saved: Saved::Trace(_), .. }) if directory.join(INFO).is_file() => None,
        Some(_) => Some("nothing was recorded".to_owned()),
    };
    if let Some(problem) = problem {
        let _ = fs::remove_dir_all(&directory);
        return Err(failed(&problem));
    }
    let tell_reason = || -> anyhow::Result<PathBuf> {
        let mut file = File::options().append(true).create(true).open(directory.join(GAPS))?;
        file.write_all(gaps::dump_line(reason).as_bytes())?;
        publish_snapshot(&directory, work.parent().unwrap_or(work))
    };
    tell_reason().map_err(|error| failed(&format_args!("{error:#}")))
}
