//! The errors of this crate.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[cfg(feature = "std")]
use crate::PatchedSites;

/// An error of this crate.
///
/// Its `Debug` output is the message too: it is what `expect` and a `main` that returns it show.
#[non_exhaustive]
pub enum Error {
    /// The records cannot go to a stream (any more), see `Config::stream`.
    NoStream {
        /// Why, and what to do about it.
        problem: String,
    },
    /// The program cannot listen to `rftrace ctl`, see `Config::control`.
    NoControl {
        /// Error of the system.
        source: io::Error,
    },
    /// The tracer has a buffer already; without Linux it takes one in the life of a program.
    AlreadyInitialized,
    /// Recording is on: its buffer cannot be replaced.
    Recording,
    /// A thread has been amid a hook for a second: the buffer cannot be replaced.
    Busy,
    /// The thread has a shadow stack (Intel's and AMD's CET): the processor kills programs whose return addresses change, which is
    /// what a tracer does.
    ShadowStack,
    /// A later `init` or `Config::install` has given the tracer another buffer.
    Replaced,
    /// The buffer holds too few records.
    BufferTooSmall {
        /// Requested size in bytes.
        bytes: usize,
        /// Least size in bytes.
        minimum: usize,
    },
    /// The size in records does not fit into the address space.
    BufferTooLarge {
        /// Requested size in records.
        records: usize,
    },
    /// The memory for the buffer is not to be had.
    OutOfMemory {
        /// Requested size in bytes.
        bytes: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// No call site could be patched, as `Config::patched` asks for. Nothing was changed.
    #[cfg(feature = "std")]
    CannotPatch {
        /// Counts of the sites that stay as they are, by reason.
        sites: PatchedSites,
    },
    /// An environment variable has a value that is none of those it may have.
    BadVariable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// There is no initialised tracer: `init` or `Config::install` comes first.
    NotInitialized,
    /// A C program passed NULL for a path.
    MissingPath,
    /// A rule of a filter cannot be read, or not be obeyed here.
    BadFilter {
        /// The rule, and where it is.
        place: String,
        /// Fault of the rule, and a correct one instead.
        problem: String,
    },
    /// A rule that chooses functions, or modules, matches none: nothing would be recorded because of it.
    NothingMatches {
        /// The rule.
        rule: String,
        /// A function that it matches, but that calls no hook.
        untraced: Option<String>,
        /// A similar name of a function, or module, that can be recorded.
        similar: Option<String>,
    },
    /// More threads are named than can be chosen one by one.
    TooManyThreads {
        /// How many.
        n_threads: usize,
    },
    /// Nothing was recorded.
    NoEvents {
        /// True if any instrumented function was called while tracing was on, since the program began.
        hook_called: bool,
    },
    /// A file could not be read: an image, or the binary that it is of.
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system, or fault of the file.
        source: io::Error,
    },
    /// A file holds no image, or a damaged one.
    BadImage {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from its beginning.
        offset: u64,
        /// Fault at that place, and the remedy.
        problem: String,
    },
    /// A file of the trace could not be written. The records are kept: they can be saved elsewhere.
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Returns the message, with a remedy for the user of a program that cannot save once more.
    #[must_use]
    pub fn with_remedy(&self) -> String {
        /// `EMFILE`, which has no kind.
        const TOO_MANY_FILES: i32 = 24;

        let (Self::Write { path, source } | Self::Read { path, source }) = self else { return self.to_string() };
        let remedy = match source.kind() {
            _ if source.raw_os_error() == Some(TOO_MANY_FILES) => "the number of open files is limited (ulimit -n)",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some room, or choose another directory",
            io::ErrorKind::FileTooLarge => "the size of files is limited (ulimit -f)",
            io::ErrorKind::OutOfMemory => "memory is limited (ulimit -v); `rftrace symbols` adds names",
            _ => "choose another directory",
        };
        let what = if matches!(self, Self::Write { .. }) { "write" } else { "read the names of functions of" };
        format!("cannot {what} {}: {source}: {remedy}", path.display())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStream { problem } => write!(f, "{problem}"),
            Self::NoControl { source } => write!(
                f,
                "there is no socket at which `rftrace ctl` could reach this program: {source}; XDG_RUNTIME_DIR names the folder for it, otherwise it is in /tmp"
            ),
            Self::AlreadyInitialized => write!(
                f,
                "rftrace is initialised already; use the first Events (or Tracer) for all recordings of this program"
            ),
            Self::Recording => write!(f, "recording is on; switch it off before you give the tracer another buffer"),
            Self::Busy => write!(
                f,
                "a thread is stopped inside the tracer, which cannot take another buffer meanwhile; try again when it runs"
            ),
            Self::ShadowStack => write!(
                f,
                "this program runs with a shadow stack (CET), with which returns cannot be traced; start it with \
                 GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, or build it with -fcf-protection=none"
            ),
            Self::Replaced => write!(
                f,
                "the buffer of this Events (or Tracer) was replaced by a later one; use what the last init (or install) returned"
            ),
            Self::BufferTooSmall { bytes, minimum } => {
                let events = minimum / 16;
                write!(f, "a trace buffer of {bytes} bytes is too small, it takes at least {minimum} ({events} events)")
            }
            Self::BufferTooLarge { records } => {
                write!(f, "a trace buffer of {records} events exceeds the address space")
            }
            Self::OutOfMemory { bytes, .. } => {
                write!(f, "no memory for a trace buffer of {bytes} bytes; ask for fewer events")
            }
            #[cfg(feature = "std")]
            Self::CannotPatch { sites } => write!(f, "no call site can be patched: {sites}"),
            Self::BadVariable { name, value } => {
                write!(f, "the environment variable {name} is {value:?}; it must be 0, 1 or not set")
            }
            Self::NotInitialized => write!(f, "rftrace is not initialised: call init first"),
            Self::MissingPath => write!(f, "no path to write to was given"),
            Self::BadFilter { place, problem } => write!(f, "bad filter: {place}: {problem}"),
            Self::TooManyThreads { n_threads } => {
                write!(
                    f,
                    "{n_threads} threads are named, and 256 can be chosen one by one; name those that are not to be recorded"
                )
            }
            Self::NothingMatches { rule, untraced: Some(name), .. } => write!(
                f,
                "{rule} matches no function that can be recorded; `{name}` was not built with -Z instrument-mcount (Rust) or \
                 -pg (C), or was inlined"
            ),
            Self::NothingMatches { rule, similar: Some(name), .. } => {
                write!(f, "{rule} matches nothing; did you mean `{name}`?")
            }
            Self::NothingMatches { rule, .. } => {
                write!(
                    f,
                    "{rule} matches nothing that is loaded; names are those of the trace, `*` stands for any characters"
                )
            }
            Self::NoEvents { hook_called: false } => write!(
                f,
                "0 events: was the program built with -Z instrument-mcount (Rust) or -pg (C), and was tracing enabled?"
            ),
            Self::NoEvents { hook_called: true } => {
                write!(
                    f,
                    "0 events since the last dump: no instrumented function was called while tracing was enabled, or none that the filter lets pass"
                )
            }
            Self::Read { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::BadImage { path, offset, problem } => write!(f, "{}: byte {offset}: {problem}", path.display()),
            Self::Write { path, source } => write!(
                f,
                "cannot write {}: {source}; the recorded events are kept, save them elsewhere",
                path.display()
            ),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::OutOfMemory { source, .. }
            | Self::Read { source, .. }
            | Self::Write { source, .. }
            | Self::NoControl { source } => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
            Error::Read { source, .. } | Error::Write { source, .. } | Error::NoControl { source } => source.kind(),
            Error::BadImage { .. } => io::ErrorKind::InvalidData,
            Error::BufferTooSmall { .. }
            | Error::BufferTooLarge { .. }
            | Error::BadVariable { .. }
            | Error::BadFilter { .. }
            | Error::NothingMatches { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
