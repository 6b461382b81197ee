//! The interface of a recorder for control.

use std::any::Any;
use std::{io, thread};

/// Facts about a recorded process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The command line.
    pub command: String,
    /// The number of its threads.
    pub n_threads: u32,
    /// The size of its bank, or of its own buffer, in bytes.
    pub buffer_bytes: u64,
    /// The kind of the buffer.
    pub kind: BufferKind,
    /// The number of chunks in the buffer.
    pub n_chunks: u64,
    /// The number of chunks with records.
    pub n_chunks_used: u64,
    /// In a ring, the number of overwritten chunks.
    pub n_overwritten: u64,
    /// The number of calls and returns without room.
    pub n_dropped: u64,
    /// The number of calls and returns on the disk, of all processes; with an own buffer those in the buffer.
    pub n_records: u64,
    /// The size of these records in bytes.
    pub n_bytes: u64,
}

/// The kind of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferKind {
    /// A collector empties it while the program runs.
    #[default]
    Stream,
    /// New records overwrite the oldest ones.
    Ring,
    /// The program saves it at its end.
    Own {
        /// True if recording has stopped because the buffer is full.
        is_full: bool,
    },
}

/// A function that can be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The function's name, or its address.
    pub name: String,
    /// The file name of its module.
    pub module: String,
    /// True if the filter lets it pass.
    pub is_recorded: bool,
}

/// An event that causes dumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The trigger's number, never used again.
    pub number: usize,
    /// The user's text for it.
    pub text: String,
    /// The task of the processes for this trigger.
    pub watched: Watched,
}

/// The task of a process for a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// No task: the recorder notices the event.
    ByRecorder,
    /// Calls are watched, by this value of the key `watch` in the process's filter.
    Calls(String),
    /// Panics and exceptions are reported.
    Raised,
}

/// A text, or a stream in pieces.
pub type Text = Box<dyn Iterator<Item = Vec<u8>>>;

/// The work of a thread.
pub type Work = Box<dyn FnOnce() + Send>;

/// A recorder. Functions with a process's number fail for an unrecorded process.
pub trait Recording: Send + Sync {
    /// Returns the recorder's own process.
    fn recorder(&self) -> u32;

    /// Returns the processes being recorded.
    fn processes(&self) -> Vec<u32>;

    /// Returns the facts about a process.
    ///
    /// # Errors
    ///
    /// The process has ended, or does not answer.
    fn facts(&self, pid: u32) -> Result<Facts, String>;

    /// Returns true if a process has a thread with this number.
    fn has_thread(&self, pid: u32, id: u32) -> bool;

    /// Returns true while recording is on; `None` if that is unknown.
    fn is_on(&self, pid: u32) -> Option<bool>;

    /// Returns the rules of the filter in force.
    fn rules(&self, pid: u32) -> Option<String>;

    /// Sends a process a request: `on`, `off`, `filter RULES`, `patch`, `unpatch` or `patched`.
    ///
    /// # Errors
    ///
    /// The reason why the process did nothing.
    fn ask(&self, pid: u32, request: &str) -> Result<String, String>;

    /// Returns the functions that can be recorded.
    ///
    /// # Errors
    ///
    /// The errors of [`ask`](Self::ask).
    fn functions(&self, pid: u32) -> Result<Vec<Function>, String>;

    /// Returns the calls of a process, or of all, as text: with `goes_on` all calls from now on, otherwise those in
    /// memory.
    ///
    /// # Errors
    ///
    /// The errors of [`ask`](Self::ask).
    fn pipe(&self, pid: Option<u32>, goes_on: bool) -> Result<Text, String>;

    /// Returns the records of a process, or of all, as a stream for a receiver, from the beginning of the recording.
    ///
    /// # Errors
    ///
    /// The errors of [`ask`](Self::ask); the records are not written while the program runs.
    fn stream(&self, pid: Option<u32>) -> Result<Text, String>;

    /// Marks the present moment in the trace of a process with a text.
    ///
    /// # Errors
    ///
    /// The trace has no mark.
    fn mark(&self, pid: u32, text: &str) -> Result<String, String>;

    /// Writes the records so far to the disk, except those in partly filled chunks.
    ///
    /// # Errors
    ///
    /// The disk cannot be written.
    fn flush(&self, pid: u32) -> Result<String, String>;

    /// Ends the recording of a process for good.
    ///
    /// # Errors
    ///
    /// The errors of [`ask`](Self::ask).
    fn stop(&self, pid: u32) -> Result<String, String>;

    /// Returns the events that cause dumps.
    fn triggers(&self) -> Vec<Trigger>;

    /// Adds an event that causes dumps, in the form of `--dump-on`. The caller informs the processes.
    ///
    /// # Errors
    ///
    /// The fault in `spec`.
    fn add_trigger(&self, spec: &str) -> Result<Trigger, String>;

    /// Removes such an event by its number.
    fn remove_trigger(&self, number: usize);

    /// Removes the dumps of a process made through ftrace's name `snapshot`. Returns their number.
    fn forget_snapshots(&self, pid: u32) -> usize;

    /// Makes a trace of the records so far.
    ///
    /// # Errors
    ///
    /// The reason why there is no trace.
    fn dump(&self, pid: u32, reason: &str) -> Result<String, String>;

    /// Returns a value that prevents forks of this process while it lives; `None` if the process never forks.
    fn hold_forks(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// Starts a detached thread. In a program that records itself, the thread is unrecorded.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    fn spawn(&self, name: &str, work: Work) -> io::Result<()> {
        thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }
}
