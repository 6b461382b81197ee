//! The columns of a replay, in uftrace's words and widths.

use std::fmt;
use std::str::FromStr;

/// A column of a replay, to the left of the functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplayField {
    /// The duration of a call or wait.
    Duration,
    /// The thread's id.
    Tid,
    /// The recorded address.
    Addr,
    /// The time of the line, by the trace's clock.
    Time,
    /// The time since the previous line of the same thread.
    Delta,
    /// The time since the trace's start.
    Elapsed,
    /// The thread's name.
    Task,
    /// The file name of the function's module.
    Module,
}

impl ReplayField {
    /// All columns, in the order of a line.
    pub const ALL: [Self; 8] =
        [Self::Duration, Self::Tid, Self::Addr, Self::Time, Self::Delta, Self::Elapsed, Self::Task, Self::Module];

    /// The default columns.
    pub const USUAL: [Self; 2] = [Self::Duration, Self::Tid];

    /// Returns the column's name in options.
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
            format!("there is no column `{text}`; the columns are {}", names.join(", "))
        })
    }
}

impl fmt::Display for ReplayField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
