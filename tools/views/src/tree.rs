//! The calls of a task as a tree.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;

use rftrace_read::{Error, Result, Task, Trace, Warnings};

use crate::stack::{EndedCall, Step};
use crate::walk::walk;

/// All calls of one task.
///
/// `Display` writes an outline of the functions' names, one a line, two spaces deeper for each level:
///
/// ```text
/// main
///   read_config
///     open
///   run
/// ```
#[derive(Debug)]
pub struct CallTree {
    /// The task's id.
    pub tid: u32,
    /// The outermost calls, in order of time.
    pub roots: Vec<Call>,
    /// The flaws found while reading.
    pub warnings: Warnings,
}

/// A call of a function, with all calls in it.
///
/// `Display` writes the outline described at [`CallTree`]. Trees can be as deep as the traced program's recursion, so
/// no function here recurses, dropping included.
#[non_exhaustive]
pub struct Call {
    /// The function's name, or its address if it has none.
    pub name: String,
    /// The recorded address in the function.
    pub addr: u64,
    /// The time of the entry in nanoseconds; without a recorded entry, the time of the first record after it.
    pub start_ns: u64,
    /// The time of the return in nanoseconds; `None` without a recorded exit.
    pub end_ns: Option<u64>,
    /// True if the entry is recorded.
    pub has_entry: bool,
    /// The calls it made, in order of time.
    pub children: Vec<Call>,
}

impl CallTree {
    /// Reads the calls of one of the trace's tasks.
    ///
    /// # Errors
    ///
    /// The task's `.dat` file cannot be read.
    pub fn read(trace: &Trace, task: &Task) -> Result<Self> {
        let mut builder = Builder { trace, task, roots: Vec::new(), open: Vec::new() };
        let walked = walk(trace, task, |step, _| {
            builder.apply(step);
            Ok::<_, Error>(())
        })?;
        let mut warnings = walked.stats.warnings;
        warnings.merge(&walked.misfits);
        Ok(Self { tid: task.tid(), roots: builder.roots, warnings })
    }

    /// Returns all calls, each before the calls in it, with their depths.
    pub fn calls(&self) -> Calls<'_> {
        Calls { rest: self.roots.iter().rev().map(|call| (0, call)).collect() }
    }

    /// Returns the number of calls of each function.
    pub fn calls_per_function(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (_, call) in self.calls() {
            match counts.get_mut(&call.name) {
                Some(count) => *count += 1,
                None => {
                    counts.insert(call.name.clone(), 1);
                }
            }
        }
        counts
    }
}

impl fmt::Display for CallTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        outline(self.calls(), f)
    }
}

impl Call {
    /// Returns this call and all calls in it, each before the calls in it, with their depths relative to this one.
    pub fn calls(&self) -> Calls<'_> {
        Calls { rest: vec![(0, self)] }
    }

    /// Returns the duration in nanoseconds, or `None` unless both ends are recorded.
    pub fn duration_ns(&self) -> Option<u64> {
        self.end_ns.filter(|_| self.has_entry).map(|end_ns| end_ns.saturating_sub(self.start_ns))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        outline(self.calls(), f)
    }
}

impl fmt::Debug for Call {
    /// Only the number of its children is shown, for want of recursion.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("name", &self.name)
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("start_ns", &self.start_ns)
            .field("end_ns", &self.end_ns)
            .field("has_entry", &self.has_entry)
            .field("children", &self.children.len())
            .finish()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut rest = mem::take(&mut self.children);
        while let Some(mut call) = rest.pop() {
            rest.append(&mut call.children);
        }
    }
}

/// An iterator over calls; see [`CallTree::calls`].
#[derive(Debug)]
pub struct Calls<'t> {
    rest: Vec<(usize, &'t Call)>,
}

impl<'t> Iterator for Calls<'t> {
    type Item = (usize, &'t Call);

    fn next(&mut self) -> Option<Self::Item> {
        let (depth, call) = self.rest.pop()?;
        self.rest.extend(call.children.iter().rev().map(|child| (depth + 1, child)));
        Some((depth, call))
    }
}

fn outline(calls: Calls<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (depth, call) in calls {
        // Not a width: those end at 65535.
        for _ in 0..depth {
            f.write_str("  ")?;
        }
        writeln!(f, "{}", call.name)?;
    }
    Ok(())
}

struct Builder<'t> {
    trace: &'t Trace,
    task: &'t Task,
    roots: Vec<Call>,
    open: Vec<Call>,
}

impl Builder<'_> {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Assume { time_ns } => self.open.push(Call {
                name: String::new(),
                addr: 0,
                start_ns: time_ns,
                end_ns: None,
                has_entry: false,
                children: Vec::new(),
            }),
            Step::Enter { addr, time_ns } => self.open.push(Call {
                name: self.trace.function_name(self.task, time_ns, addr).into_owned(),
                addr,
                start_ns: time_ns,
                end_ns: None,
                has_entry: true,
                children: Vec::new(),
            }),
            Step::Leave(ended) => self.leave(&ended),
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
    }

    fn leave(&mut self, ended: &EndedCall) {
        let Some(mut call) = self.open.pop() else { return };
        let siblings = self.open.last_mut().map_or(&mut self.roots, |parent| &mut parent.children);
        let Some(addr) = ended.addr else {
            // A function that no record names: its calls take its place.
            siblings.append(&mut call.children);
            return;
        };
        if !call.has_entry {
            call.name = self.trace.function_name(self.task, ended.end_ns, addr).into_owned();
            call.addr = addr;
        }
        call.end_ns = ended.has_exit.then_some(ended.end_ns);
        siblings.push(call);
    }
}
