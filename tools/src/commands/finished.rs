//! Where no spool can be read: a directory is a trace, or it is none.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rftrace_format::recording::{FOLDER, STREAM};

use super::common::shell_word;
use super::stream_file;

/// The trace of a directory: itself.
pub(crate) fn shown(dir: &Path) -> Result<PathBuf> {
    refuse(dir)?;
    Ok(dir.to_owned())
}

/// An error for a directory that is no trace yet, or a stream.
pub(crate) fn refuse(dir: &Path) -> Result<()> {
    stream_file::refuse(dir)?;
    let is_unfinished =
        !dir.join(rftrace_format::files::INFO).exists() && [FOLDER, STREAM].iter().any(|name| dir.join(name).is_dir());
    if is_unfinished {
        bail!(
            "the directory holds an unfinished recording or a kept stream: `rftrace recover {}` makes a trace of it",
            shell_word(dir)
        );
    }
    Ok(())
}

/// Nothing.
pub(crate) fn description(_: &Path) -> Option<String> {
    None
}

/// Nothing was made.
pub(crate) fn end() {}
