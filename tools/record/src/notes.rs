//! Where recorded processes say what they cannot write to the directory: why that is.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rftrace_format::passed::Passed;

/// Room for some dozens.
const BYTES: usize = 16 << 10;

/// Memory that all recorded processes share: text, each note with a NUL behind it.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// Makes it, empty.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn create() -> Result<Self> {
        let memory = memfd_create("rftrace-notes", MFdFlags::MFD_CLOEXEC).context("no memory for notes")?;
        let mut file = File::from(memory);
        // All of it is there from now on, whatever becomes of the machine's memory.
        file.write_all(&[0; BYTES]).context("no memory for notes")?;
        Ok(Self(file))
    }

    /// Where other processes find it, as long as this one lives.
    ///
    /// # Errors
    ///
    /// The system tells nothing of it.
    pub fn passed(&self) -> Result<Passed> {
        Passed::of(&self.0).context("cannot pass the notes on")
    }

    /// Reads the notes.
    ///
    /// # Errors
    ///
    /// The memory cannot be read.
    pub fn read(&self) -> Result<Vec<String>> {
        let mut bytes = [0; BYTES];
        self.0.read_exact_at(&mut bytes, 0).context("cannot read the notes")?;
        let notes = bytes.split(|&byte| byte == 0).filter(|note| !note.is_empty());
        Ok(notes.map(|note| String::from_utf8_lossy(note).into_owned()).collect())
    }
}
