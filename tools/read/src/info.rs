//! Reading the file `info`.

use std::io;
use std::path::Path;

use rftrace_format::files::RESOURCES;
use rftrace_format::info::Info;

use crate::error::{Error, Result};
use crate::files;

/// The maximum size of the file in bytes. One line has the numbers of all tasks.
pub const MAX_BYTES: u64 = 32 << 20;

/// Reads an `info` file.
///
/// # Errors
///
/// The file is missing, is not of a 64-bit little-endian trace of version 4, or its sections do not match its mask.
pub fn read(path: &Path) -> Result<Info> {
    let bytes = files::read(path, MAX_BYTES).map_err(|error| match error {
        Error::Io { path, source }
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            let resources = path.with_file_name(RESOURCES);
            if resources.is_file() {
                return Error::OnlyResources { path: resources };
            }
            let missing = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists());
            Error::NotATrace { path: missing.map_or_else(|| path.clone(), Path::to_owned) }
        }
        error => error,
    })?;
    Info::parse(&bytes).map_err(|malformed| Error::of_format(path, malformed))
}
