//! Safe reading of files that a directory, a peer or a user names: only regular files, and only up to a limit.
//!
//! A pipe can block a reader, a device may be endless, and a sparse file may be much longer than its data on the disk.

extern crate std;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The maximum size in bytes of a text file in a trace. A million tasks and modules need less.
pub const MOST_TEXT: u64 = 256 << 20;
/// The maximum size in bytes of a program, a library or their debug information. The largest browsers with all of it
/// have a quarter.
pub const MOST_PROGRAM: u64 = 32 << 30;

/// Opens a regular file.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] for other kinds of files, [`ErrorKind::InvalidData`] for a file that is nearly all hole;
/// and those of the system.
pub fn open(path: &Path) -> Result<File> {
    // Opening a pipe waits already.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        let reason = "not a regular file but a folder, a pipe or a device; give a regular file, or a copy of it";
        return Err(Error::new(ErrorKind::InvalidInput, reason));
    }
    if is_hole(&metadata) {
        let reason = format!(
            "the file is damaged: nearly all of its {} bytes are a hole; remove the file, or restore it from a copy",
            metadata.len()
        );
        return Err(Error::new(ErrorKind::InvalidData, reason));
    }
    #[allow(clippy::disallowed_methods, reason = "the only place where such a file is opened")]
    File::open(path)
}

/// True if a large file has less than a thousandth of its length on the disk. Compressing file systems do not get so far with records.
#[cfg(unix)]
fn is_hole(metadata: &fs::Metadata) -> bool {
    /// Reading so much takes no time.
    const LARGE: u64 = 1 << 30;

    metadata.len() > LARGE && std::os::unix::fs::MetadataExt::blocks(metadata) < metadata.len() >> 19
}

#[cfg(not(unix))]
fn is_hole(_: &fs::Metadata) -> bool {
    false
}

/// Reads a whole file.
///
/// # Errors
///
/// The errors of [`open`], and [`ErrorKind::InvalidData`] for a file of more than `most` bytes.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let reason = format!(
            "the file is longer than {most} bytes, the limit for such a file of a trace; was another file put here?"
        );
        return Err(Error::new(ErrorKind::InvalidData, reason));
    }
    Ok(bytes)
}

/// Reads a whole text file.
///
/// # Errors
///
/// The errors of [`read`], and [`ErrorKind::InvalidData`] for a file that is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    let invalid = |_| Error::new(ErrorKind::InvalidData, "the file is no UTF-8 text");
    String::from_utf8(read(path, most)?).map_err(invalid)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_that_are_there() {
        let folder = std::env::temp_dir().join(format!("rftrace-opener-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "text");
        assert_eq!(read(&path, 3).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(open(&folder).unwrap_err().kind(), ErrorKind::InvalidInput);
        std::os::unix::fs::symlink("/dev/zero", folder.join("zero")).unwrap();
        assert_eq!(read(&folder.join("zero"), 10).unwrap_err().kind(), ErrorKind::InvalidInput);
        let sparse = File::create(folder.join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let error = open(&folder.join("sparse")).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidData && format!("{error}").contains("hole"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
