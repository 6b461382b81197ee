//! `--anonymous`: traces without personal facts.
//!
//! Not here: what these are (`rftrace_export`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rftrace_export::copy_anonymous;
use rftrace_format::files::INFO;
use tempfile::TempDir;

use super::counters::Counters;
use super::stand_ins;
use super::unfinished;

#[cfg(target_os = "linux")]
pub(crate) use recorded::{finish, finish_recovered, finish_snapshots, finish_trace};

/// An anonymous copy of a trace, as long as this value lives.
pub(crate) struct Copy {
    dir: PathBuf,
    _folder: TempDir,
}

impl Copy {
    /// The copy.
    pub(crate) fn dir(&self) -> &PathBuf {
        &self.dir
    }
}

/// Makes a copy of what is shown of a directory.
pub(crate) fn copy(dir: &Path) -> Result<Copy> {
    let cannot_open = || format!("cannot open the trace {}", dir.display());
    let shown = unfinished::shown(dir).with_context(cannot_open)?;
    if !shown.join(INFO).exists() && Counters::open(&shown)?.is_some() {
        bail!(
            "cannot make {} anonymous: the trace has no calls, and --anonymous needs a trace of calls",
            dir.display()
        );
    }
    let place = std::env::temp_dir();
    let remedy = "the variable TMPDIR chooses another place";
    let folder = tempfile::Builder::new().prefix("rftrace-anonymous-").tempdir_in(&place);
    let folder = folder.with_context(|| format!("cannot make a directory in {} ({remedy})", place.display()))?;
    let copy = folder.path().join("trace");
    std::fs::create_dir(&copy).with_context(|| format!("cannot make the directory {} ({remedy})", copy.display()))?;
    copy_anonymous(&shown, &copy).with_context(|| format!("cannot make an anonymous copy of {}", dir.display()))?;
    stand_ins::stand_in(&copy, dir);
    Ok(Copy { dir: copy, _folder: folder })
}

/// Makes a finished recording anonymous, if its options say so.
#[cfg(target_os = "linux")]
mod recorded {
    use anyhow::{Context, Result};
    use rftrace_export::{make_anonymous, make_snapshots_anonymous};
    use rftrace_format::files::INFO;
    use rftrace_record::output::Output;
    use rftrace_record::parts::Joined;

    use crate::commands::common::shell_word;

    fn failed(output: &Output) -> String {
        let dir = shell_word(output.dir());
        format!("cannot make the trace in {dir} anonymous (remove the cause, then run `rftrace recover {dir}`)")
    }

    /// Changes the snapshots of a recording that is to be anonymous.
    pub(crate) fn finish_snapshots(output: &Output, joined: &mut Joined) -> Result<()> {
        if output.is_anonymous() {
            joined.snapshots = make_snapshots_anonymous(output.dir()).with_context(|| failed(output))?;
        }
        Ok(())
    }

    /// Changes its trace, if there is one.
    pub(crate) fn finish_trace(output: &Output) -> Result<()> {
        if output.is_anonymous() && output.dir().join(INFO).exists() {
            make_anonymous(output.owned()).with_context(|| failed(output))?;
        }
        Ok(())
    }

    /// Changes both.
    pub(crate) fn finish(output: &Output, joined: &mut Joined) -> Result<()> {
        finish_snapshots(output, joined)?;
        finish_trace(output)
    }

    /// The same of a recording that was interrupted.
    pub(crate) fn finish_recovered(output: &Output) -> Result<()> {
        finish(output, &mut Joined::default())
    }
}
