//! Flaws that do not stop a reader, with their counts.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A flaw in a trace that does not stop the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Warning {
    /// A malformed line of a text file; it was ignored.
    UnknownLine,
    /// A task of `info` without a line in `task.txt`; its functions have no names.
    UnknownTask,
    /// A symbol file without mangled names, although their form was chosen.
    NoMangledNames,
    /// A record cut off by the end of its file.
    CutRecord,
    /// A stretch of a `.dat` file without valid records; it was skipped.
    CorruptStretch,
    /// A record earlier than the one before it; it got the time of that one.
    TimeBackwards,
    /// A record with arguments, a return value or event data that are not shown.
    PayloadSkipped,
    /// A function exit without an entry; it was ignored.
    StrayExit,
    /// A function without a recorded exit; later records show its end.
    MissingExit,
    /// A call of a function inlined into the recorded one.
    InlinedCall,
    /// A function entered in more than 524,288 open ones; it was left out.
    TooDeep,
    /// A record reported as lost by the tracer.
    LostRecord,
    /// A context switch reported as lost by the kernel.
    LostSwitch,
    /// A record of the kernel reported as lost by the kernel.
    LostKernelRecord,
}

impl Warning {
    /// The message for so many flaws of this kind.
    fn text(self, count: u64) -> &'static str {
        let (one, several) = match self {
            Self::UnknownLine => (
                "line of a text file has an unknown form and was ignored",
                "lines of text files have an unknown form and were ignored",
            ),
            Self::UnknownTask => (
                "task of `info` is not in `task.txt`, so its functions have no names",
                "tasks of `info` are not in `task.txt`, so their functions have no names",
            ),
            Self::NoMangledNames => (
                "symbol file has no mangled names, so its functions keep the simple ones: `rftrace symbols` writes both",
                "symbol files have no mangled names, so their functions keep the simple ones: `rftrace symbols` writes both",
            ),
            Self::CutRecord => {
                ("record was cut off by the end of its file", "records were cut off by the end of their file")
            }
            Self::CorruptStretch => (
                "stretch of a `.dat` file holds no valid records and was skipped",
                "stretches of `.dat` files hold no valid records and were skipped",
            ),
            Self::TimeBackwards => {
                ("record was earlier than the one before it", "records were earlier than the one before them")
            }
            Self::PayloadSkipped => (
                "record carries arguments or other data, which are not shown",
                "records carry arguments or other data, which are not shown",
            ),
            Self::StrayExit => {
                ("function exit had no entry and was ignored", "function exits had no entry and were ignored")
            }
            Self::MissingExit => ("function ended without a recorded exit", "functions ended without a recorded exit"),
            Self::InlinedCall => (
                "call of an inlined function counts as a call of the function around it; --fold-inlined merges it into that \
                 call",
                "calls of inlined functions count as calls of the function around them; --fold-inlined merges them into that \
                 call",
            ),
            Self::TooDeep => (
                "function was left out: more than 524288 open calls enclose it, more than in the trace of any program",
                "functions were left out: more than 524288 open calls enclose them, more than in the trace of any program",
            ),
            Self::LostSwitch => (
                "context switch was lost, as its buffer was full: waiting counts as self time there",
                "context switches were lost, as their buffer was full: waiting counts as self time there",
            ),
            Self::LostKernelRecord => (
                "record of the kernel was lost, as its buffer was full: record fewer of the kernel's functions (--kernel=GLOBS)",
                "records of the kernel were lost, as their buffer was full: record fewer of the kernel's functions (--kernel=GLOBS)",
            ),
            Self::LostRecord => (
                "record was lost while tracing: give the tracer a larger buffer",
                "records were lost while tracing: give the tracer a larger buffer",
            ),
        };
        if count == 1 { one } else { several }
    }
}

/// The number of flaws of each kind.
///
/// `Display` writes one line for each kind, without a newline at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warnings(BTreeMap<Warning, u64>);

impl Warnings {
    /// Returns the number of flaws of the kind `warning`.
    pub fn count(&self, warning: Warning) -> u64 {
        self.0.get(&warning).copied().unwrap_or(0)
    }

    /// Returns true if there are no flaws.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each kind of flaw with its number, if that is not 0.
    pub fn iter(&self) -> impl Iterator<Item = (Warning, u64)> + '_ {
        self.0.iter().map(|(&warning, &count)| (warning, count))
    }

    /// Adds `count` to the number of flaws of a kind.
    #[inline]
    pub fn add(&mut self, warning: Warning, count: u64) {
        if count > 0 {
            self.add_some(warning, count);
        }
    }

    /// Apart, as most records have no flaws.
    #[cold]
    fn add_some(&mut self, warning: Warning, count: u64) {
        let sum = self.0.entry(warning).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds the flaws of another reader.
    pub fn merge(&mut self, other: &Self) {
        for (warning, count) in other.iter() {
            self.add(warning, count);
        }
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, (warning, count)) in self.iter().enumerate() {
            let newline = if idx == 0 { "" } else { "\n" };
            write!(f, "{newline}{count} {}", warning.text(count))?;
        }
        Ok(())
    }
}
