//! The columns of a replay, in uftrace's words and widths.

use std::fmt;
use std::str::FromStr;

/// A column before the functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplayField {
    /// How long a call or wait took.
    Duration,
    /// The thread's number.
    Tid,
    /// The address that was recorded.
    Addr,
    /// When it happened, by the trace's clock.
    Time,
    /// The time since the line before of the same thread.
    Delta,
    /// The time since the trace's start.
    Elapsed,
    /// The thread's name.
    Task,
    /// The file that the function is in.
    Module,
}

impl ReplayField {
    /// All, in the order in which they stand in a line.
    pub const ALL: [Self; 8] =
        [Self::Duration, Self::Tid, Self::Addr, Self::Time, Self::Delta, Self::Elapsed, Self::Task, Self::Module];

    /// Those of a replay for which nothing is said.
    pub const USUAL: [Self; 2] = [Self::Duration, Self::Tid];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::Tid => "tid",
            Self::Addr => "addr",
            Self::Time => "time",
            Self::Delta => "delta",
            Self::Elapsed => "elapsed",
            Self::Task => "task",
            Self::Module => "module",
        }
    }

    /// Its title, as wide as the column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Duration => " DURATION ",
            Self::Tid => "   TID  ",
            Self::Addr => "   ADDRESS  ",
            Self::Time => "     TIMESTAMP    ",
            Self::Delta => " TIMEDELTA",
            Self::Elapsed => "  ELAPSED ",
            Self::Task => "      TASK NAME",
            Self::Module => "     MODULE NAME",
        }
    }
}

impl FromStr for ReplayField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|field| field.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|field| field.name()).collect();
            format!("there is no column `{text}`, but {}", names.join(", "))
        })
    }
}

impl fmt::Display for ReplayField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
