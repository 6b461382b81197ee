//! The errors of this crate.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[cfg(feature = "std")]
use crate::PatchedSites;

/// An error of this crate.
///
/// `Debug` prints the message too, for `expect` and for a `main` that returns the error.
#[non_exhaustive]
pub enum Error {
    /// Records cannot go to the disk as a stream, or no longer; see `Config::stream`.
    NoStream {
        /// The cause and the remedy.
        problem: String,
    },
    /// The program cannot create the socket for `rftrace ctl`, see `Config::control`.
    NoControl {
        /// The error of the system.
        source: io::Error,
    },
    /// The tracer already has a buffer. On systems other than Linux it takes one buffer in the life of a program.
    AlreadyInitialized,
    /// Recording is on, so another buffer cannot replace the present one.
    Recording,
    /// The buffer has unsaved events: another buffer would discard them. See `Config::discard_unsaved`.
    Unsaved {
        /// The number of unsaved events.
        events: u64,
    },
    /// A thread has stood inside a hook for a second, so another buffer cannot replace the present one.
    Busy,
    /// The thread has a shadow stack (CET of Intel and AMD). The processor kills a program after a change of return
    /// addresses, and the tracer changes them.
    ShadowStack,
    /// A later call of `init` or `Config::install` gave the tracer another buffer.
    Replaced,
    /// The buffer is smaller than the minimum.
    BufferTooSmall {
        /// The requested size in bytes.
        bytes: usize,
        /// The minimum in bytes.
        minimum: usize,
    },
    /// The size of the buffer exceeds the address space.
    BufferTooLarge {
        /// The requested size in records of 16 bytes.
        records: usize,
    },
    /// The system has no memory for the buffer.
    OutOfMemory {
        /// The requested size in bytes.
        bytes: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// `Config::patched` was set, and no call site could be patched. The code is unchanged.
    #[cfg(feature = "std")]
    CannotPatch {
        /// The number of call sites, by reason.
        sites: PatchedSites,
    },
    /// An environment variable has a value other than 0 and 1.
    BadVariable {
        /// The variable's name.
        name: &'static str,
        /// The variable's value.
        value: String,
    },
    /// The tracer has no buffer. Call `init` or `Config::install` first.
    NotInitialized,
    /// A C program passed NULL as a path.
    MissingPath,
    /// A filter rule has a syntax error, or this system does not support it.
    BadFilter {
        /// The rule and its source.
        place: String,
        /// The problem, and a correct rule.
        problem: String,
    },
    /// A rule for functions or modules matches none, so nothing would be recorded.
    NothingMatches {
        /// The rule.
        rule: String,
        /// The name of a matching function that calls no hook.
        untraced: Option<String>,
        /// A similar name of a function or module that can be recorded.
        similar: Option<String>,
    },
    /// The choice of threads names more than 256 threads.
    TooManyThreads {
        /// The number of threads in the longer of the two lists.
        n_threads: usize,
    },
    /// The buffer holds no events.
    NoEvents {
        /// The most likely reason.
        cause: NoEventsCause,
    },
    /// A file could not be read: an image, or its binary.
    Read {
        /// The file's path.
        path: PathBuf,
        /// The error of the system, or the fault in the file.
        source: io::Error,
    },
    /// A file holds no image, or a damaged one.
    BadImage {
        /// The file's path.
        path: PathBuf,
        /// The offset of the fault in bytes from the file's beginning.
        offset: u64,
        /// The fault and the remedy.
        problem: String,
    },
    /// A file of the trace could not be written. The buffer keeps the records: save them elsewhere.
    Write {
        /// The file's or directory's path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Reasons for a recording without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoEventsCause {
    /// No function of the program or its libraries calls the tracer.
    NoHooks,
    /// Recording was not switched on since the last save.
    NeverOn,
    /// The filter excludes all called functions.
    Filtered,
    /// The guard of `Tracer::record` was dropped before any function was called.
    GuardGone,
    /// Recording was on, but no function with a hook was called.
    NoCalls,
    /// One of these reasons, on a system without a list of functions.
    Unknown,
}

impl fmt::Display for NoEventsCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHooks => {
                "no function of this program calls the tracer; build it with -Z instrument-mcount (Rust) or -pg (C)"
            }
            Self::NeverOn => "the program has not switched recording on since the last save; call `enable` or `record` first",
            Self::Filtered => "the filter excludes all called functions; `Tracer::functions` lists its choice",
            Self::GuardGone => {
                "the program dropped the guard of `record` before it called an instrumented function; keep the guard with \
                 `let _recording = tracer.record();` (`let _ = ` drops it at once)"
            }
            Self::NoCalls => {
                "the program called no instrumented function while recording was on, or the filter excludes them all"
            }
            Self::Unknown => {
                "build the program with -Z instrument-mcount (Rust) or -pg (C), and switch recording on"
            }
        })
    }
}

impl Error {
    /// Returns the message with a remedy, for a program that ends and cannot save again.
    #[must_use]
    pub fn with_remedy(&self) -> String {
        /// `EMFILE`, which has no kind.
        const TOO_MANY_FILES: i32 = 24;

        let (Self::Write { path, source } | Self::Read { path, source }) = self else { return self.to_string() };
        let remedy = match source.kind() {
            _ if source.raw_os_error() == Some(TOO_MANY_FILES) => "raise the limit of open files (ulimit -n)",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or choose another directory",
            io::ErrorKind::FileTooLarge => "raise the limit of file sizes (ulimit -f)",
            io::ErrorKind::OutOfMemory => {
                "raise the limit of memory (ulimit -v), or add the names with `rftrace symbols`"
            }
            _ => "choose another directory",
        };
        let what = if matches!(self, Self::Write { .. }) { "write" } else { "read the function names of" };
        format!("cannot {what} {}: {source}; {remedy}", path.display())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStream { problem } => write!(f, "{problem}"),
            Self::NoControl { source } => write!(
                f,
                "cannot create the socket for `rftrace ctl`: {source}; set XDG_RUNTIME_DIR to a folder that this user may write (default: /tmp)"
            ),
            Self::AlreadyInitialized => write!(
                f,
                "rftrace is initialised already; use the first Events (or Tracer) for all recordings of this program"
            ),
            Self::Recording => write!(f, "recording is on; switch it off before you give the tracer another buffer"),
            Self::Unsaved { events } => write!(
                f,
                "{events} recorded events are in no trace yet; save them first, or call `Config::discard_unsaved`"
            ),
            Self::Busy => write!(
                f,
                "the tracer cannot take another buffer: a thread is stopped inside the tracer; try again when the thread runs"
            ),
            Self::ShadowStack => write!(
                f,
                "the tracer cannot record returns of a program with a shadow stack (CET); start the program with \
                 GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, or build it with -fcf-protection=none"
            ),
            Self::Replaced => write!(
                f,
                "a later buffer has replaced that of this Events (or Tracer); use the result of the last init (or install)"
            ),
            Self::BufferTooSmall { bytes, minimum } => {
                let events = minimum / 16;
                write!(f, "a trace buffer of {bytes} bytes is too small; the minimum is {minimum} ({events} events)")
            }
            Self::BufferTooLarge { records } => {
                write!(f, "a trace buffer of {records} events exceeds the address space; ask for fewer events")
            }
            Self::OutOfMemory { bytes, .. } => {
                write!(f, "no memory for a trace buffer of {bytes} bytes; ask for fewer events")
            }
            #[cfg(feature = "std")]
            Self::CannotPatch { sites } => write!(f, "cannot patch any call site: {sites}"),
            Self::BadVariable { name, value } => {
                write!(f, "the environment variable {name} is {value:?}; set it to 0 or 1, or unset it")
            }
            Self::NotInitialized => write!(f, "rftrace is not initialised: call init first"),
            Self::MissingPath => write!(f, "the path of the trace is NULL; give a path"),
            Self::BadFilter { place, problem } => write!(f, "bad filter: {place}: {problem}"),
            Self::TooManyThreads { n_threads } => {
                write!(f, "the choice has {n_threads} threads, but the maximum is 256; exclude threads instead")
            }
            Self::NothingMatches { rule, untraced: Some(name), .. } => write!(
                f,
                "{rule} matches no function that can be recorded; the compiler has inlined `{name}`, or had no -Z instrument-mcount \
                 (Rust) or -pg (C)"
            ),
            Self::NothingMatches { rule, similar: Some(name), .. } => {
                write!(f, "{rule} matches nothing; did you mean `{name}`?")
            }
            Self::NothingMatches { rule, .. } => {
                write!(f, "{rule} matches nothing; write names as in a trace, and `*` for any characters")
            }
            Self::NoEvents { cause } => write!(f, "0 events: {cause}"),
            Self::Read { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::BadImage { path, offset, problem } => write!(f, "{}: byte {offset}: {problem}", path.display()),
            Self::Write { path, source } => {
                write!(f, "cannot write {}: {source}; the buffer keeps the events; save them elsewhere", path.display())
            }
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
