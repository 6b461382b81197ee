//! The reports of recorded processes on functions chosen for a branch (`-P`), and on library calls (`--libcalls`).

use std::fs::File;
use std::io::{Read, Seek};

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};

use rftrace_format::passed::Passed;
use rftrace_format::recording::{EntriesLine, Share};

/// A file in memory to which all recorded processes append reports, and reports from other sources.
#[derive(Debug)]
pub struct Entries {
    file: File,
    added: Told,
}

/// The reports of the processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The number of functions with a branch, in all processes.
    pub functions: Share,
    /// The number of library functions whose calls are recorded.
    pub library_calls: Share,
    /// The functions and calls that are not recorded, a line each.
    pub left_out: Vec<String>,
    /// The programs in which return addresses stay in place, as their runtimes read them.
    pub readers: Vec<String>,
}

impl Entries {
    /// Makes an empty file.
    ///
    /// # Errors
    ///
    /// The system has no memory for it.
    pub fn create() -> Result<Self> {
        let memory =
            memfd_create("rftrace-entries", MFdFlags::MFD_CLOEXEC).context("no memory for the list of functions")?;
        Ok(Self { file: File::from(memory), added: Told::default() })
    }

    /// Returns the file for other processes. It is valid while this process lives.
    ///
    /// # Errors
    ///
    /// The system does not report it.
    pub fn passed(&self) -> Result<Passed> {
        Passed::of(&self.file).context("cannot share the list of functions with the program")
    }

    /// Adds a report on a process that cannot write one.
    pub fn add(&mut self, told: Told) {
        let before = std::mem::take(&mut self.added);
        self.added = before.with(told);
    }

    /// Reads the reports of the processes.
    ///
    /// # Errors
    ///
    /// The memory cannot be read.
    pub fn read(&mut self) -> Result<Told> {
        let mut text = Vec::new();
        self.file
            .rewind()
            .and_then(|()| self.file.read_to_end(&mut text))
            .context("cannot read the list of functions")?;
        Ok(Told::parse(&String::from_utf8_lossy(&text)).with(self.added.clone()))
    }
}

impl Told {
    /// Parses reports. Equal reports of several processes of one program count once.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut programs = Vec::new();
        let mut told = Self::default();
        for line in text.lines().filter_map(EntriesLine::parse) {
            match line {
                EntriesLine::Program { name, functions, library_calls } => {
                    if !programs.contains(&name) {
                        programs.push(name);
                        told.functions += functions;
                        told.library_calls += library_calls;
                    }
                }
                EntriesLine::LeftOut(line) => told.left_out.push(line.to_owned()),
                EntriesLine::ReadsReturns(name) => told.readers.push(name.to_owned()),
            }
        }
        told.with(Self::default())
    }

    /// Adds other reports.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.functions += other.functions;
        self.library_calls += other.library_calls;
        self.left_out.extend(other.left_out);
        self.readers.extend(other.readers);
        for lines in [&mut self.left_out, &mut self.readers] {
            lines.sort();
            lines.dedup();
        }
        self
    }

    /// Moves functions from the recorded ones to the others, for which there are lines with the reason.
    pub fn leave_out(&mut self, lines: impl Iterator<Item = String>) {
        let n_before = self.left_out.len();
        self.left_out.extend(lines);
        self.functions.done = self.functions.done.saturating_sub((self.left_out.len() - n_before) as u64);
        self.left_out.sort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_program_that_runs_twice_is_counted_once() {
        let mut entries = Entries::create().unwrap();
        assert_eq!(entries.read().unwrap(), Told::default());
        let (functions, library_calls) = (Share { done: 7, of: 8 }, Share { done: 3, of: 3 });
        let short = "app\t0x10\tf\tshorter than a branch".to_owned();
        for _ in 0..2 {
            let mut file = entries.passed().unwrap().open(File::options().append(true)).unwrap();
            write!(file, "{}", EntriesLine::Program { name: "/bin/an app", functions, library_calls }).unwrap();
            write!(file, "{}{}", EntriesLine::LeftOut(&short), EntriesLine::ReadsReturns("/bin/an app")).unwrap();
        }
        let (left_out, readers) = (vec![short], vec!["/bin/an app".to_owned()]);
        assert_eq!(entries.read().unwrap(), Told { functions, library_calls, left_out, readers });
    }
}
