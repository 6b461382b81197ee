//! Timelines in the formats of other tools.
//!
//! [`export`] goes through a trace and gives it to a [`Sink`]; each format is one. [`write_directory`] writes a part of a trace as a
//! directory of its own.
//!
//! Not here: how a trace is read (`rftrace-read`), and timelines of several machines (`rftrace-guest`).

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod chrome;
mod directory;
mod extent;
mod firefox;
mod folded;
mod perfetto;
mod walk;
mod wall_clock;

pub use chrome::Chrome;
pub use directory::write_directory;
pub use firefox::Firefox;
pub use folded::Folded;
pub use perfetto::Perfetto;
pub use walk::{ExportOptions, export, export_with};
pub use wall_clock::WallClock;

use rftrace_read::{Result, SourcePlace};

/// A thread, or something else with a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Track {
    /// The process it belongs to.
    pub pid: u32,
    /// Its number, which no other track of this process has.
    pub tid: u32,
}

/// Takes a timeline and writes it in some format.
///
/// Times are nanoseconds of one clock and do not go back within a track. Entries and exits are balanced: an exit ends its
/// track's innermost open function, and none is open when [`Sink::finish`] is called.
pub trait Sink {
    /// Names a process, before its first event.
    ///
    /// # Errors
    ///
    /// As all methods: the output cannot be written, or the format cannot hold any more.
    fn process(&mut self, pid: u32, name: &str) -> Result<()>;

    /// Names a track, before its first event.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn thread(&mut self, track: Track, name: &str) -> Result<()>;

    /// Tells where the functions of a name are in the source, before they are entered. Formats without a place for it leave it out.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn source(&mut self, name: &str, place: SourcePlace<'_>) -> Result<()> {
        let _ = (name, place);
        Ok(())
    }

    /// A function was entered.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()>;

    /// The track's innermost open function ended.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()>;

    /// A function was entered with these arguments, each as text ([`Trace::values`](rftrace_read::Trace::values)). Formats without a place
    /// for them leave them out.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn enter_with(&mut self, track: Track, time_ns: u64, name: &str, arguments: &[String]) -> Result<()> {
        let _ = arguments;
        self.enter(track, time_ns, name)
    }

    /// The track's innermost open function ended with this result. Formats without a place for it leave it out.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn exit_with(&mut self, track: Track, time_ns: u64, result: &str) -> Result<()> {
        let _ = result;
        self.exit(track, time_ns)
    }

    /// Something happened that has no duration.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()>;

    /// A quantity of a process has this value from now on.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn counter(&mut self, pid: u32, time_ns: u64, name: &str, value: f64) -> Result<()>;

    /// Writes what is left. Nothing may be given to it after this.
    ///
    /// # Errors
    ///
    /// See [`Sink::process`].
    fn finish(&mut self) -> Result<()>;
}
