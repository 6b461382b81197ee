//! A row of a report: the sums of a function.
//!
//! Not here: the summing (`sums`), and the table (`table`).

use std::borrow::Cow;

use rftrace_read::OffCpu;
use serde::{Deserialize, Serialize};

use crate::by_value::ByValue;
use crate::correction::{Costs, Share, Unsure};
use crate::lines::Values;
use crate::spread::Spread;

/// The times and calls of one function, over all tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// The function's name.
    pub name: String,
    /// The values common to all calls of the row, if rows are [told apart by values](ReportOptions::by_value).
    pub values: Option<Box<Values>>,
    /// The source line, as `path:line`, if it [was read](rftrace_read::Trace::read_sources) and is known.
    pub source: Option<String>,
    /// The time in the function and its calls in nanoseconds. Of recursive calls only the outermost ones count.
    pub total_ns: u64,
    /// The time in the function alone in nanoseconds.
    pub self_ns: u64,
    /// The number of calls.
    pub calls: u64,
    /// The number of calls without a return: open at the end of the recording, they count until then.
    pub did_not_return: u64,
    /// The times of single calls, also of recursive ones, if they were [requested](crate::Report::read_spread).
    pub times: Option<Box<CallTimes>>,
    pub(crate) unsure: Unsure,
}

impl Row {
    /// Returns the arguments and the result common to all calls of the row.
    pub fn texts(&self) -> [Option<&str>; 2] {
        let values = self.values.as_deref();
        let arguments = values.and_then(|values| values.arguments.as_deref());
        [arguments, values.and_then(|values| values.result.as_deref())]
    }

    /// Returns false for a time without a processor.
    pub fn is_function(&self) -> bool {
        is_function(&self.name)
    }

    /// Returns the label of the row: the function's name, or a call with the values.
    pub fn label(&self) -> Cow<'_, str> {
        self.label_of(&self.name)
    }

    /// The same with the displayed name.
    pub(crate) fn label_of<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match &self.values {
            None => Cow::Borrowed(name),
            Some(values) => Cow::Owned(values.call(name)),
        }
    }
}

/// False for the name of a time without a processor.
pub(crate) fn is_function(name: &str) -> bool {
    OffCpu::of_name(name).is_none()
}

/// The options of a report.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReportOptions {
    /// True to collect the times of single calls, in [`Row::times`].
    pub spread: bool,
    /// The functions with a row for each of their values. If several match a function, the first one counts.
    pub by_value: Vec<ByValue>,
}

/// The times of a function's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimes {
    /// The times including the calls' own calls.
    pub total: Spread,
    /// The times in the function alone.
    pub own: Spread,
}

impl CallTimes {
    /// Adds a call: its time with callees, and its own time.
    pub(crate) fn add(&mut self, [total_ns, self_ns]: [u64; 2], costs: Costs) {
        self.total.add(total_ns, costs.total);
        self.own.add(self_ns, costs.own);
    }

    /// Limits the subtracted overhead to this share.
    pub(crate) fn limit(&mut self, share: Share) {
        self.total.limit(share);
        self.own.limit(share);
    }

    /// Adds calls counted elsewhere.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.total.merge(&other.total);
        self.own.merge(&other.own);
    }
}
