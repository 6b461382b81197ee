//! Interface of a recorder for control.

use std::any::Any;
use std::{io, thread};

/// Facts about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its command line.
    pub command: String,
    /// Threads that it has.
    pub n_threads: u32,
    /// Bytes of its bank, or its own buffer.
    pub buffer_bytes: u64,
    /// Kind of its buffer.
    pub kind: BufferKind,
    /// Pieces that it is cut into.
    pub n_chunks: u64,
    /// Those that hold something.
    pub n_chunks_used: u64,
    /// Those of a ring whose records others have taken the place of.
    pub n_overwritten: u64,
    /// Calls and returns that found no room.
    pub n_dropped: u64,
    /// Calls and returns of all processes that were written to the disk; those that its own buffer holds.
    pub n_records: u64,
    /// Bytes that they take there.
    pub n_bytes: u64,
}

/// Kind of a buffer, by the fate of its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferKind {
    /// It is taken out while the program runs.
    #[default]
    Stream,
    /// It is there until other records take its place.
    Ring,
    /// The program saves it at its end.
    Own {
        /// Nothing more is recorded, as there is no room.
        is_full: bool,
    },
}

/// A function that can be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, or its address.
    pub name: String,
    /// The file name of its module.
    pub module: String,
    /// True if the filter lets it pass.
    pub is_recorded: bool,
}

/// An event on which dumps are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Its number; no other one ever has it.
    pub number: usize,
    /// As it was written.
    pub text: String,
    /// Task of the processes for it, if any.
    pub watched: Watched,
}

/// Task of a process for a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Nothing: the recorder sees it.
    ByRecorder,
    /// It looks for calls, by this value of the key `watch` of its filter.
    Calls(String),
    /// It tells of panics and exceptions.
    Raised,
}

/// Text, or a stream, as it comes.
pub type Text = Box<dyn Iterator<Item = Vec<u8>>>;

/// Work of a thread.
pub type Work = Box<dyn FnOnce() + Send>;

/// A recorder. A function with a process's number fails where that process is not recorded.
pub trait Recording: Send + Sync {
    /// Its own process.
    fn recorder(&self) -> u32;

    /// The processes that are recorded now.
    fn processes(&self) -> Vec<u32>;

    /// Returns the facts about a process.
    ///
    /// # Errors
    ///
    /// It has ended, or would have to be asked and does not answer.
    fn facts(&self, pid: u32) -> Result<Facts, String>;

    /// Returns true if a process has a thread with this number.
    fn has_thread(&self, pid: u32, id: u32) -> bool;

    /// Returns true while recording is on; `None` if that cannot be told.
    fn is_on(&self, pid: u32) -> Option<bool>;

    /// The rules of the filter in force.
    fn rules(&self, pid: u32) -> Option<String>;

    /// Has the process do something: `on`, `off`, `filter RULES`, `patch`, `unpatch`, `patched`.
    ///
    /// # Errors
    ///
    /// Why nothing was done.
    fn ask(&self, pid: u32, request: &str) -> Result<String, String>;

    /// The functions that can be recorded.
    ///
    /// # Errors
    ///
    /// As of [`ask`](Self::ask).
    fn functions(&self, pid: u32) -> Result<Vec<Function>, String>;

    /// The calls of a process, or of all, as text: those from now on, or what is in memory now.
    ///
    /// # Errors
    ///
    /// As of [`ask`](Self::ask).
    fn pipe(&self, pid: Option<u32>, goes_on: bool) -> Result<Text, String>;

    /// Returns the records of a process, or of all, as a stream for a receiver, from the beginning on.
    ///
    /// # Errors
    ///
    /// As of [`ask`](Self::ask); the records are not written while it runs.
    fn stream(&self, pid: Option<u32>) -> Result<Text, String>;

    /// Shows a text at this moment in the trace of a process.
    ///
    /// # Errors
    ///
    /// It is not shown.
    fn mark(&self, pid: u32, text: &str) -> Result<String, String>;

    /// Writes the records so far to the disk, but for those in pieces that threads are filling.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn flush(&self, pid: u32) -> Result<String, String>;

    /// Ends the recording of a process for good.
    ///
    /// # Errors
    ///
    /// As of [`ask`](Self::ask).
    fn stop(&self, pid: u32) -> Result<String, String>;

    /// Returns the events on which dumps are made.
    fn triggers(&self) -> Vec<Trigger>;

    /// Has dumps made on something more, as `--dump-on` has it. Processes are to be told.
    ///
    /// # Errors
    ///
    /// The fault of the event.
    fn add_trigger(&self, spec: &str) -> Result<Trigger, String>;

    /// Has no more dumps made on it.
    fn remove_trigger(&self, number: usize);

    /// Removes the dumps of a process that were made by ftrace's `snapshot`. Returns how many they were.
    fn forget_snapshots(&self, pid: u32) -> usize;

    /// Makes a trace of what was recorded so far.
    ///
    /// # Errors
    ///
    /// Why there is none.
    fn dump(&self, pid: u32, reason: &str) -> Result<String, String>;

    /// Where the process may fork: it does not as long as what this returns is there.
    fn hold_forks(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// Starts a thread, which nobody joins. A recorder of its own process does not record that.
    ///
    /// # Errors
    ///
    /// There is none.
    fn spawn(&self, name: &str, work: Work) -> io::Result<()> {
        thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }
}
