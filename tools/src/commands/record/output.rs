//! The directory that a recording goes to.

use std::fs;
use std::io::ErrorKind;
use std::mem;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};

/// The folder in it that processes write to while they are recorded.
const WORK: &str = ".recording";

/// A directory that is being written. A temporary one is removed when this is dropped.
pub(crate) struct Output {
    dir: PathBuf,
    work: PathBuf,
    is_temporary: bool,
}

impl Output {
    /// Makes the directory, after moving an older trace away.
    pub(crate) fn prepare(wanted: Option<&Path>, is_live: bool) -> Result<Self> {
        let is_temporary = is_live && wanted.is_none();
        let dir = match wanted {
            Some(dir) => dir.to_owned(),
            None if is_live => std::env::temp_dir().join(format!("rftrace-live-{}", std::process::id())),
            None => PathBuf::from("uftrace.data"),
        };
        // The program may change its working directory.
        let dir = absolute(&dir).with_context(|| format!("{} is no path", dir.display()))?;
        make_room(&dir)?;
        let work = dir.join(WORK);
        fs::create_dir_all(&work).with_context(|| {
            format!("cannot make the directory {}; choose another one with --output", work.display())
        })?;
        Ok(Self { dir, work, is_temporary })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where processes write to.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    /// Removes what is not part of the trace.
    pub(crate) fn finish(&self) -> Result<()> {
        fs::remove_dir_all(&self.work).with_context(|| format!("cannot remove {}", self.work.display()))
    }

    /// Leaves everything as it is, a temporary directory too. Returns where processes have written to.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.is_temporary = false;
        mem::take(&mut self.work)
    }

    /// Nothing was recorded: removes what was made.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_dir_all(&self.work);
        // Only if nothing else is in it.
        let _ = fs::remove_dir(&self.dir);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Moves a trace at `dir` to `dir.old`. What is no trace stays where it is, and is an error.
fn make_room(dir: &Path) -> Result<()> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", dir.display())),
        Ok(entries) => {
            if entries.count() == 0 {
                return Ok(());
            }
        }
    }
    if !is_trace(dir) {
        bail!("{} is there and is no trace; choose another directory with --output", dir.display());
    }
    let mut old = dir.as_os_str().to_owned();
    old.push(".old");
    let old = PathBuf::from(old);
    if old.symlink_metadata().is_ok() {
        if !is_trace(&old) {
            bail!("{} is there and is no trace: the trace before cannot be moved there", old.display());
        }
        fs::remove_dir_all(&old).with_context(|| format!("cannot remove the old trace {}", old.display()))?;
    }
    fs::rename(dir, &old).with_context(|| format!("cannot move the old trace {} to {}", dir.display(), old.display()))
}

/// Whether a directory is a trace, or the beginning of one.
fn is_trace(dir: &Path) -> bool {
    let has_info = fs::read(dir.join("info")).is_ok_and(|info| info.starts_with(b"Ftrace!\0"));
    has_info || dir.join(WORK).is_dir()
}
