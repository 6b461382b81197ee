//! Timelines in the formats of other tools.
//!
//! [`export`] reads a trace and passes it to a [`Sink`]; each format is a sink. [`write_directory`] writes a part of a
//! trace as a directory of its own.
//!
//! Not here: reading (`rftrace-read`), and timelines of several machines (`rftrace-guest`).
//!
//! # Example
//!
//! This program converts a trace to Chrome's format:
//!
//! ```
//! # fn main() -> Result<(), rftrace_read::Error> {
//! use rftrace_export::{Chrome, ExportOptions, export};
//! use rftrace_read::Trace;
//!
//! # let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/directory"));
//! let trace = Trace::open(dir)?;
//! let mut sink = Chrome::new(Vec::new());
//! export(&trace, &ExportOptions::default(), &mut sink)?;
//! let json = sink.into_inner();
//! # assert!(json.starts_with(b"{"));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod anonymous;
mod chrome;
mod directory;
mod estimate;
mod extent;
mod firefox;
mod folded;
mod perfetto;
mod walk;
mod wall_clock;

pub use anonymous::{copy_anonymous, make_anonymous, make_snapshots_anonymous};
pub use chrome::Chrome;
pub use directory::write_directory;
pub use firefox::Firefox;
pub use folded::Folded;
pub use perfetto::Perfetto;
pub use walk::{ExportOptions, export, export_with};
pub use wall_clock::WallClock;

use rftrace_read::{Result, SourcePlace};

/// A thread, or another source of events with a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Track {
    /// The id of its process.
    pub pid: u32,
    /// Its id, unique within the process.
    pub tid: u32,
}

/// The receiver of a timeline, a writer of some format.
///
/// Times are nanoseconds of one clock, and do not decrease within a track. Entries and exits are balanced: an exit ends
/// the innermost open function of its track, and none is open when [`Sink::finish`] is called.
pub trait Sink {
    /// Names a process, before its first event.
    ///
    /// # Errors
    ///
    /// As for all methods: the output cannot be written, or the format cannot hold more data.
    fn process(&mut self, pid: u32, name: &str) -> Result<()>;

    /// Names a track, before its first event.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn thread(&mut self, track: Track, name: &str) -> Result<()>;

    /// Sets the source line of the functions with a name, before the first entry. Formats without source lines ignore
    /// it.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn source(&mut self, name: &str, place: SourcePlace<'_>) -> Result<()> {
        let _ = (name, place);
        Ok(())
    }

    /// Adds the entry of a function.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()>;

    /// Adds the exit of the track's innermost open function.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()>;

    /// Adds the entry of a function with its arguments as text ([`Trace::values`](rftrace_read::Trace::values)).
    /// Formats without arguments ignore these.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn enter_with(&mut self, track: Track, time_ns: u64, name: &str, arguments: &[String]) -> Result<()> {
        let _ = arguments;
        self.enter(track, time_ns, name)
    }

    /// Adds the exit of the track's innermost open function with its result as text. Formats without results ignore it.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn exit_with(&mut self, track: Track, time_ns: u64, result: &str) -> Result<()> {
        let _ = result;
        self.exit(track, time_ns)
    }

    /// Adds an event without duration.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()>;

    /// Sets the value of a process's counter from this time on.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn counter(&mut self, pid: u32, time_ns: u64, name: &str, value: f64) -> Result<()>;

    /// Writes the remaining data. No other method may be called after this.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn finish(&mut self) -> Result<()>;
}
