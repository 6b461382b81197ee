//! Messages of recorded processes about data that they could not write to the directory.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rftrace_format::passed::Passed;

/// Room for some dozens.
const BYTES: usize = 16 << 10;

/// A memory that all recorded processes share, with their messages as text, each with a NUL at its end.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// Makes an empty memory.
    ///
    /// # Errors
    ///
    /// The system has no memory for it.
    pub fn create() -> Result<Self> {
        let memory =
            memfd_create("rftrace-notes", MFdFlags::MFD_CLOEXEC).context("no memory for the program's messages")?;
        let mut file = File::from(memory);
        // All of it is there from now on, whatever becomes of the machine's memory.
        file.write_all(&[0; BYTES]).context("no memory for the program's messages")?;
        Ok(Self(file))
    }

    /// Returns the file for other processes. It is valid while this process lives.
    ///
    /// # Errors
    ///
    /// The system does not report it.
    pub fn passed(&self) -> Result<Passed> {
        Passed::of(&self.0).context("cannot share memory for messages with the program")
    }

    /// Reads the messages.
    ///
    /// # Errors
    ///
    /// The memory cannot be read.
    pub fn read(&self) -> Result<Vec<String>> {
        let mut bytes = [0; BYTES];
        self.0.read_exact_at(&mut bytes, 0).context("cannot read the program's messages")?;
        let notes = bytes.split(|&byte| byte == 0).filter(|note| !note.is_empty());
        Ok(notes.map(|note| String::from_utf8_lossy(note).into_owned()).collect())
    }
}
