//! A row of a report: the sums of a function.
//!
//! Not here: how it is summed up (`sums`), and how it is shown (`table`).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::by_value::ByValue;
use crate::correction::{Costs, Share};
use crate::lines::Values;
use crate::spread::Spread;

/// The times and calls of one function, over all tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// The function's name.
    pub name: String,
    /// The values that its calls have in common, where they are [told apart by these](ReportOptions::by_value).
    pub values: Option<Box<Values>>,
    /// Where it is in the source, as `path:line`, if [that was read](rftrace_read::Trace::read_sources) and is known.
    pub source: Option<String>,
    /// Time in the function and what it called; for a recursive one, only its outermost calls count.
    pub total_ns: u64,
    /// Time in the function alone.
    pub self_ns: u64,
    /// How often it was called.
    pub calls: u64,
    /// How many of these did not return: they were open at the end of what was recorded, and count until then.
    pub did_not_return: u64,
    /// The times of single calls, recursive ones too, where they were [asked for](crate::Report::read_spread).
    pub times: Option<Box<CallTimes>>,
}

impl Row {
    /// The arguments and the result that its calls have in common.
    pub fn texts(&self) -> [Option<&str>; 2] {
        let values = self.values.as_deref();
        let arguments = values.and_then(|values| values.arguments.as_deref());
        [arguments, values.and_then(|values| values.result.as_deref())]
    }

    /// The label of the row: the function's name, or a call with the values.
    pub fn label(&self) -> Cow<'_, str> {
        match &self.values {
            None => Cow::Borrowed(&self.name),
            Some(values) => Cow::Owned(values.call(&self.name)),
        }
    }
}

/// Contents of a report.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReportOptions {
    /// True to have the times of single calls, in [`Row::times`].
    pub spread: bool,
    /// Functions whose calls have several rows. Of more than one that is for a function the first counts.
    pub by_value: Vec<ByValue>,
}

/// The times of a function's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimes {
    /// With what they called.
    pub total: Spread,
    /// In the function alone.
    pub own: Spread,
}

impl CallTimes {
    /// Adds a call: what it took with what it called, and in itself.
    pub(crate) fn add(&mut self, [total_ns, self_ns]: [u64; 2], costs: Costs) {
        self.total.add(total_ns, costs.total);
        self.own.add(self_ns, costs.own);
    }

    /// Has no more than this share of the overhead subtracted from means.
    pub(crate) fn limit(&mut self, share: Share) {
        self.total.limit(share);
        self.own.limit(share);
    }

    /// Adds calls that were counted elsewhere.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.total.merge(&other.total);
        self.own.merge(&other.own);
    }
}
