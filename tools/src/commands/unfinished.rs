//! Directories that are no trace yet: what is shown of them, and what is said of it.
//!
//! Not here: how a trace is made of what is there (`rftrace_record::unfinished`).

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use indicatif::HumanBytes;
use rftrace_record::unfinished::{Lent, Stage};

use super::common::shell_word;
use super::stand_ins::stand_in;
use super::stream_file;

/// Those that were made, by the directories that they are of.
static LENT: Mutex<Vec<(PathBuf, Lent)>> = Mutex::new(Vec::new());

/// More than this is said to be taken.
const MUCH: u64 = 256 << 20;

/// The trace of a directory: itself, or one that is there as long as this process, of what has reached the disk.
pub(crate) fn shown(dir: &Path) -> Result<PathBuf> {
    stream_file::refuse(dir)?;
    let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, lent)) = lent.iter().find(|(of, _)| of == dir) {
        return Ok(lent.dir().to_owned());
    }
    let word = shell_word(dir);
    let stage = Stage::of(dir);
    let tell = |bytes: u64, place: &Path| {
        if bytes >= MUCH {
            say!(
                "rftrace: unpacking {word} takes about {} in {} until this command ends; `rftrace recover {word}` unpacks it once",
                HumanBytes(bytes),
                place.display()
            );
        }
    };
    let Some(made) = Lent::of(dir, tell)? else { return Ok(dir.to_owned()) };
    match stage {
        Some((Stage::Recorded(pid), _)) => {
            say!("rftrace: process {pid} is recording {word}: only the records on the disk are shown");
        }
        Some((Stage::Left, _)) => say!(
            "rftrace: the recording of {word} was interrupted: only the records on the disk are shown; `rftrace recover {word}` \
             makes a trace of them"
        ),
        Some((Stage::Kept, _)) | None => {}
    }
    made.errors().iter().for_each(|error| say!("rftrace: {error}"));
    let shown = made.dir().to_owned();
    stand_in(&shown, dir);
    lent.push((dir.to_owned(), made));
    Ok(shown)
}

/// An error for a directory that is no trace yet, or a stream, of who needs a trace.
pub(crate) fn refuse(dir: &Path) -> Result<()> {
    stream_file::refuse(dir)?;
    let word = shell_word(dir);
    match Stage::of(dir) {
        None => Ok(()),
        Some((Stage::Recorded(pid), _)) => {
            bail!("process {pid} is recording {}: wait for its end", dir.display())
        }
        Some((Stage::Left, _)) => {
            bail!("the recording of {} was interrupted: `rftrace recover {word}` makes a trace of it", dir.display())
        }
        Some((Stage::Kept, _)) => bail!(
            "{} is kept as a stream (--keep-stream): `rftrace recover {word}` makes a trace of it, also for uftrace",
            dir.display()
        ),
    }
}

/// Describes an unfinished directory that is shown: a line for `rftrace info`.
pub(crate) fn description(dir: &Path) -> Option<String> {
    let (stage, work) = Stage::of(dir)?;
    let bytes = rftrace_record::output::bytes_in(&work).unwrap_or(0);
    let what = match stage {
        Stage::Recorded(pid) => format!("a recording in progress, by process {pid}"),
        Stage::Left => "an interrupted recording".to_owned(),
        Stage::Kept => "a stream (--keep-stream)".to_owned(),
    };
    Some(format!("{what}: {} on the disk; no trace for uftrace yet", HumanBytes(bytes)))
}

/// Removes what was made.
pub(crate) fn end() {
    for (_, lent) in LENT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let folder = lent.dir().to_owned();
        if let Err(error) = lent.remove() {
            say!("rftrace: cannot remove {}: {error}", folder.display());
        }
    }
}
