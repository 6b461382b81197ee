//! Files of a recorder that other processes open through its PID and descriptor number.
//!
//! The recorder may have ended, and another process may have its PID and a file at that descriptor. So device and inode
//! identify the file too, and no other file is read or written. A file in memory keeps its inode as long as it is open.
//!
//! Not here: the content of such files.

extern crate std;

use alloc::format;
use core::fmt;
use core::str::FromStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The identity of a file that one process has open and another one opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    device: u64,
    inode: u64,
    path: PathBuf,
}

impl Passed {
    /// Returns the identity of a file that this process has open.
    ///
    /// # Errors
    ///
    /// The system cannot report device and inode.
    pub fn of(file: &File) -> io::Result<Self> {
        Self::at(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(), file)
    }

    /// Returns the identity of a file that was opened at a path.
    ///
    /// # Errors
    ///
    /// The system cannot report device and inode.
    pub fn at(path: PathBuf, file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { device: meta.dev(), inode: meta.ino(), path })
    }

    /// Opens the file, in another process or in this one.
    ///
    /// # Errors
    ///
    /// The file cannot be reached, or another file has its place.
    pub fn open(&self, options: &OpenOptions) -> io::Result<File> {
        let file = options.open(&self.path)?;
        if self.is(&file.metadata()?) {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the recorder has ended, and another process has its number"))
    }

    /// Returns true if the file still exists, `None` if that is unknown.
    #[must_use]
    pub fn is_there(&self) -> Option<bool> {
        match fs::metadata(&self.path) {
            Ok(meta) => Some(self.is(&meta)),
            Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(false),
        }
    }

    /// Returns the file's path, which is valid as long as its recorder lives.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is(&self, meta: &fs::Metadata) -> bool {
        (meta.dev(), meta.ino()) == (self.device, self.inode)
    }
}

/// The device, the inode, and the path.
impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.device, self.inode, self.path.display())
    }
}

impl FromStr for Passed {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, ':');
        let (Some(device), Some(inode), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(());
        };
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self { device: number(device)?, inode: number(inode)?, path: path.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn another_file_is_not_opened() {
        let own = File::open("/proc/self/exe").unwrap();
        let passed = Passed::of(&own).unwrap();
        let options = || File::options().read(true).clone();
        assert!(passed.open(&options()).is_ok() && passed.is_there() == Some(true));
        let other = Passed { inode: passed.inode ^ 1, ..passed.clone() };
        let error = other.open(&options()).unwrap_err();
        assert!(error.kind() == io::ErrorKind::NotFound && error.to_string().contains("its number"), "{error}");
        assert_eq!(other.is_there(), Some(false));
        assert_eq!(passed.to_string().parse(), Ok(passed));
        assert!(["", "1:2", "1:x:/", "/proc/1/fd/2"].iter().all(|text| text.parse::<Passed>().is_err()));
    }
}
