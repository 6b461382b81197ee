//! The exact numbers of a trace: how often each function was called, and how deep. Another run of a program without chance has the same.
//!
//! Not here: times (`report`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use rftrace_read::{Error, Functions, Result, Summary, Trace};

use crate::collect::{MAX_ROWS, OTHERS};
use crate::stack::Step;
use crate::walk::walk;

/// The calls of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of calls, in all tasks.
    pub calls: u64,
    /// The maximum number of functions open in a call, itself included.
    pub depth: u64,
}

/// The calls of all functions.
#[derive(Debug, Default)]
pub struct Counts {
    /// By the functions' names.
    pub functions: BTreeMap<String, Count>,
    /// The number of records read, and the flaws in them.
    pub summary: Summary,
}

impl Counts {
    /// Counts the recorded entries of all functions.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn read(trace: &Trace) -> Result<Self> {
        let mut found = Self::default();
        let mut by_name: HashMap<Cow<'_, str>, Count> = HashMap::new();
        for task in trace.tasks() {
            let functions = Functions::new(trace, task);
            let mut depth = 0_u64;
            let walked = walk(trace, task, |step, _| {
                match *step {
                    Step::Assume { .. } => depth += 1,
                    Step::Enter { addr, time_ns } => {
                        depth += 1;
                        let name = functions.name(time_ns, addr);
                        found.summary.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
                        let is_full = by_name.len() >= MAX_ROWS && !by_name.contains_key(&name);
                        let count = by_name.entry(if is_full { OTHERS.into() } else { name }).or_default();
                        count.calls += 1;
                        count.depth = count.depth.max(depth);
                    }
                    Step::Leave(_) => depth = depth.saturating_sub(1),
                    Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
                }
                Ok::<_, Error>(())
            })?;
            walked.add_to(&mut found.summary);
        }
        found.functions = by_name.into_iter().map(|(name, count)| (name.into_owned(), count)).collect();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rftrace_read::{Demangle, OffCpu};

    use super::*;
    use crate::report::Report;

    /// The counts of a trace in the folder of golden ones.
    fn counts(name: &str) -> (Counts, Report) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let trace = Trace::open_named(&folder, Demangle::Simple).unwrap();
        (Counts::read(&trace).unwrap(), Report::read(&trace).unwrap())
    }

    #[test]
    fn calls_are_those_of_the_report() {
        for name in ["recursion/deep", "threads", "rust", "signals"] {
            let (counts, report) = counts(name);
            assert!(!counts.functions.is_empty(), "{name}");
            let calls = counts.functions.iter().map(|(name, count)| (name.clone(), count.calls));
            let rows = report.rows().iter().filter(|row| OffCpu::of_name(&row.name).is_none());
            let expected: BTreeMap<_, _> = rows.map(|row| (row.name.clone(), row.calls)).collect();
            assert_eq!(calls.collect::<BTreeMap<_, _>>(), expected, "{name}");
            assert_eq!(counts.summary.records, report.summary().records);
        }
    }

    #[test]
    fn the_deepest_call_of_each() {
        let (counts, _) = counts("difference/before");
        let count = |name: &str| counts.functions[name];
        assert_eq!(count("main"), Count { calls: 1, depth: 1 });
        assert_eq!(count("a"), Count { calls: 1, depth: 2 });
    }
}
