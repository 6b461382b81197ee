//! Makes a directory of the collected data of a process: a part of the trace, or a snapshot.
//!
//! Not here: how records become files (`rftrace_frontend::bank`), and the places of parts (`parts`).

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rftrace_format::files::GAPS;
use rftrace_format::gaps;
use rftrace_format::recording::{Counts, Fork, PART_FILE, Part, Saved};
use rftrace_format::store::{self, Owned};
use rftrace_frontend::Error;
use rftrace_frontend::bank::{Collected, SavedBank, Symbols};

/// The behaviour of threads that find no room in their bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// They wait for the recorder while it works.
    Wait,
    /// They go on, and their calls are not recorded.
    Drop,
}

/// The longest wait of a thread for an idle recorder, such as a stopped one.
const PATIENCE: Duration = Duration::from_secs(1);

impl OnFull {
    /// The longest wait of a thread for an idle recorder.
    pub(crate) fn patience(self) -> Duration {
        if self == Self::Wait { PATIENCE } else { Duration::ZERO }
    }
}

/// Removes the sources of a directory, once it is saved.
pub(crate) fn discard(collected: Collected, is_saved: bool) -> Result<()> {
    if is_saved {
        collected.discard().context("cannot remove the sources of the trace")?;
    }
    Ok(())
}

/// Makes a directory of the collected records, with a file of the facts returned here. A dump's has the reason for it.
///
/// # Errors
///
/// A file cannot be written. The records of a process stay where they are then; those of a dump are in the running program, and the file
/// of facts tells of it.
pub(crate) fn save_to(
    part: &Path,
    collected: &Collected,
    reason: Option<&str>,
    on_full: OnFull,
    symbols: &mut Symbols,
) -> Result<Part> {
    let result = collected.write_directory(part, symbols);
    let mut problems = Vec::new();
    let saved = match &result {
        Ok(SavedBank { left_out: Some(left_out), .. }) => {
            // A part of it would take the place of all.
            let _ = fs::remove_dir_all(part);
            if reason.is_none() {
                return Err(anyhow!("{left_out}"));
            }
            problems.push(format!("nothing was saved: {left_out}; make room for the next dump"));
            Saved::Failed
        }
        Ok(saved) => {
            if saved.damaged_chunks > 0 {
                problems.push(format!(
                    "{} chunks of records are damaged, and their calls are missing",
                    saved.damaged_chunks
                ));
            }
            Saved::Trace(Counts {
                events: saved.events,
                threads: saved.threads as u64,
                lost: saved.lost,
                full: false,
                chunks_overwritten: collected.n_overwritten,
                untraced_threads: saved.untraced_threads.into(),
                dropped: collected.n_dropped,
                too_large: collected.is_too_large,
                cut: !collected.is_over(),
                damaged: saved.damaged_chunks as u64,
                unwritten: collected.failed.is_some(),
            })
        }
        Err(Error::NoEvents { .. }) => Saved::Trace(Counts::default()),
        Err(Error::Read { path, source }) if source.kind() == ErrorKind::InvalidData => {
            problems.push(format!("cannot read {}: {source}", path.display()));
            Saved::Failed
        }
        Err(error @ Error::Write { .. }) if reason.is_none() => {
            let _ = fs::remove_dir_all(part);
            return Err(anyhow!("{}", error.with_remedy()));
        }
        Err(error) => {
            problems.push(format!("nothing was saved: {}", error.with_remedy()));
            Saved::Failed
        }
    };
    // The summary of all processes tells of the limit.
    let is_limited = collected.is_too_large && collected.failed.is_none();
    problems.extend(missing(collected, on_full).filter(|_| !is_limited));
    problems.extend(untold(collected));
    let told = Part {
        pid: collected.own_pid,
        program: collected.program_nanos,
        fork: collected.fork.map(|(parent, nanos)| Fork { parent, nanos }),
        saved,
        problem: (!problems.is_empty()).then(|| problems.join("; ").replace('\n', " ")),
        status: collected.status,
    };
    let path = part.join(PART_FILE);
    Owned::within(part)
        .and_then(|_| store::write(&path, told.to_string()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    if let Some(reason) = reason.filter(|_| matches!(told.saved, Saved::Trace(_))) {
        let path = part.join(GAPS);
        let file = File::options().append(true).open(&path);
        file.and_then(|mut file| file.write_all(gaps::dump_line(reason).as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(told)
}

/// Returns a message on the marks and unloaded libraries of a process that are not in its trace.
pub(crate) fn untold(collected: &Collected) -> Option<String> {
    let n_untold = collected.n_untold;
    let what = "marks and unloaded libraries are missing in the trace: they were too many, or came too fast";
    (n_untold > 0).then(|| format!("{n_untold} {what}"))
}

/// Returns a message on the losses of a process, with the reason.
pub(crate) fn missing(collected: &Collected, on_full: OnFull) -> Option<String> {
    if collected.problem.is_some() {
        return collected.problem.clone();
    }
    let n_dropped = collected.n_dropped;
    let why = match &collected.failed {
        Some(error) => format!("rftrace cannot write {}: {error}", collected.shown_spool().display()),
        None if collected.is_too_large => "the trace has reached its --max-size".to_owned(),
        None if n_dropped > 0 && collected.has_many_threads => {
            "it has more threads than its buffer has chunks; make the buffer larger with --buffer".to_owned()
        }
        None if n_dropped > 0 && on_full == OnFull::Wait => {
            "the recorder did not empty its buffer for a second".to_owned()
        }
        None if n_dropped > 0 => {
            "its buffer was full; make it larger with --buffer, or let the program wait with --on-full wait".to_owned()
        }
        None => return None,
    };
    let what = if n_dropped > 0 {
        format!("{n_dropped} calls and returns were not recorded")
    } else {
        "the trace is incomplete".to_owned()
    };
    Some(format!("{what}: {why}"))
}
