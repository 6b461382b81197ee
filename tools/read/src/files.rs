//! Files of a trace. They are untrusted: only regular files are read, and text line by line.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use rftrace_format::files::File as TraceFile;
use rftrace_format::opener;

use crate::error::{Error, Result};

/// Opens a regular file, like [`opener::open`].
///
/// # Errors
///
/// [`Error::Io`], also for a file of another kind.
pub fn open(path: &Path) -> Result<File> {
    opener::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// Reads a whole file of at most `most` bytes, for small text files and binaries, never for records.
///
/// # Errors
///
/// The errors of [`open`], and [`Error::Malformed`] for a longer file.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    if bytes.len() as u64 > most {
        let reason = format!(
            "the file is longer than {most} bytes, the limit for such a file of a trace; was another file put here?"
        );
        return Err(Error::malformed(path, most, reason));
    }
    Ok(bytes)
}

/// Returns true if the file begins with these bytes.
///
/// # Errors
///
/// The errors of [`open`].
pub fn begins_with(path: &Path, bytes: &[u8]) -> Result<bool> {
    let mut start = Vec::new();
    let read = open(path)?.take(bytes.len() as u64).read_to_end(&mut start);
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(start == bytes)
}

/// Converts the error of a missing file to `None`.
///
/// # Errors
///
/// All other errors of `result`.
pub fn if_present<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the files of one kind in a directory, one for each processor, in order of processors.
pub(crate) fn of_processors(dir: &Path, processor: impl Fn(TraceFile) -> Option<u32>) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(processor) = TraceFile::of(&name).and_then(&processor) {
            found.push((processor, path));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}
