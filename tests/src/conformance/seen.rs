//! The contents of a trace, and faults found in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use rftrace_read::{Trace, Warning};
use rftrace_views::{Call, CallTree};

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In a few words, for a table.
    pub words: String,
    /// Details for finding the reason.
    pub detail: String,
}

impl Fault {
    /// A fault.
    #[must_use]
    pub fn new(words: &str, detail: impl Into<String>) -> Self {
        Self { words: words.to_owned(), detail: detail.into() }
    }
}

/// The calls in all traces that a program left, also those of its children.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The program's output.
    pub printed: String,
    /// The threads that called something.
    pub tasks: Vec<Task>,
}

/// The calls of a thread.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its number.
    pub tid: u32,
    /// How deep each call is nested, and the function.
    pub calls: Vec<(usize, String)>,
}

/// The functions that bind a program to its tracer, and those that the compiler and the C library add.
const NOT_OF_THE_PROGRAM: [&str; 14] = [
    "trace_begin",
    "trace_on",
    "trace_off",
    "trace_end",
    "_GLOBAL__",
    "__static_initialization",
    "__cxx_global_var_init",
    "atexit",
    "_init",
    "_fini",
    "frame_dummy",
    "register_tm_clones",
    "deregister_tm_clones",
    "__do_global_dtors_aux",
];

impl Seen {
    /// Adds what is in `trace`, but for functions `of_libraries`, of which what they called counts as called by their callers. Adds to
    /// `n_left_out` how many such calls there are. Returns what is wrong with the records. If the program `may_end_open`, that does not
    /// include functions that have no exit because it ended in them.
    pub fn add(
        &mut self,
        trace: &Trace,
        may_end_open: bool,
        of_libraries: &BTreeSet<String>,
        n_left_out: &mut usize,
    ) -> Vec<Fault> {
        let mut faults = Vec::new();
        for task in trace.tasks() {
            match CallTree::read(trace, task) {
                Ok(tree) => {
                    faults.extend(flaws(&tree, may_end_open, of_libraries));
                    *n_left_out +=
                        tree.calls().filter(|(_, call)| of_libraries.contains(plain_name(&call.name))).count();
                    let calls = calls(&tree, of_libraries);
                    if !calls.is_empty() {
                        self.tasks.push(Task { tid: tree.tid, calls });
                    }
                }
                Err(error) => faults.push(Fault::new("unreadable trace", error.to_string())),
            }
        }
        faults
    }

    /// Only the functions that stand at the top of one crate, without its name, its `main` and closures, which are
    /// functions of their own only where nothing is optimised.
    #[must_use]
    pub fn functions_of(&self, name: &str) -> Self {
        let prefix = format!("{name}::");
        let own = |name: &str| {
            let name = name.strip_prefix(&prefix)?;
            // Generic functions may have their parameters behind their names.
            let plain = name.split("::<").next().unwrap_or(name);
            (plain != "main" && !plain.contains([':', '{'])).then(|| plain.to_owned())
        };
        let mut tasks = self.tasks.clone();
        for task in &mut tasks {
            task.calls = filter(task.calls.iter().map(|(depth, name)| (*depth, own(name))));
        }
        tasks.retain(|task| !task.calls.is_empty());
        Self { printed: self.printed.clone(), tasks }
    }

    /// Without the functions of one crate, or namespace, and tasks that call nothing else.
    #[must_use]
    pub fn without(&self, prefix: &str) -> Self {
        let mut tasks: Vec<Task> = self.tasks.iter().map(|task| task.without(prefix)).collect();
        tasks.retain(|task| !task.calls.is_empty());
        Self { printed: self.printed.clone(), tasks }
    }

    /// The only task.
    ///
    /// # Errors
    ///
    /// A fault, if it is not the only one.
    pub fn task(&self) -> Result<&Task, Fault> {
        match &self.tasks[..] {
            [task] => Ok(task),
            [] => Err(Fault::new("empty trace", "no task has calls")),
            tasks => {
                let shown: Vec<_> = tasks.iter().map(Task::summary).collect();
                Err(Fault::new("wrong threads", format!("{} tasks:\n{}", tasks.len(), shown.join("\n"))))
            }
        }
    }

    /// Compares the calls of the only task with an outline: one function a line, two spaces deeper for each level.
    ///
    /// # Errors
    ///
    /// A fault that shows the first difference.
    pub fn outline(&self, expected: &str) -> Result<(), Fault> {
        self.task()?.outline(expected)
    }

    /// How often each function was called by each other, in all tasks together; by `-` at the outermost level.
    #[must_use]
    pub fn edges(&self) -> BTreeMap<(&str, &str), u64> {
        let mut edges = BTreeMap::new();
        for task in &self.tasks {
            let mut open: Vec<&str> = Vec::new();
            for (depth, name) in &task.calls {
                open.truncate(*depth);
                *edges.entry((open.last().copied().unwrap_or("-"), name.as_str())).or_default() += 1;
                open.push(name);
            }
        }
        edges
    }

    /// Compares how often functions were called by each other with all that there may be.
    ///
    /// # Errors
    ///
    /// A fault that names the first difference.
    pub fn all_edges(&self, expected: &[(&str, &str, u64)]) -> Result<(), Fault> {
        let mut edges = self.edges();
        for &(caller, callee, count) in expected {
            let found = edges.remove(&(caller, callee)).unwrap_or(0);
            if found != count {
                let detail = format!("{caller} called {callee} {found} times, not {count}");
                return Err(Fault::new("wrong tree", detail));
            }
        }
        match edges.pop_first() {
            None => Ok(()),
            Some(((caller, callee), count)) => {
                Err(Fault::new("wrong tree", format!("{caller} called {callee} {count} times, which it never does")))
            }
        }
    }

    /// Compares the outlines of all tasks, in any order, with outlines and how many tasks have each.
    ///
    /// # Errors
    ///
    /// A fault that shows an outline that no task has, or that no task should have.
    pub fn outlines(&self, expected: &[(&str, usize)]) -> Result<(), Fault> {
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for task in &self.tasks {
            *found.entry(task.text()).or_default() += 1;
        }
        for &(outline, count) in expected {
            let count_found = found.remove(outline).unwrap_or(0);
            if count_found != count {
                let others: String =
                    found.keys().take(2).map(|other| format!("another:\n{}", start_of(other))).collect();
                let detail = format!("{count_found} tasks, not {count}, have\n{}{others}", start_of(outline));
                let words = if count_found < count && found.is_empty() { "lost threads" } else { "wrong tree" };
                return Err(Fault::new(words, detail));
            }
        }
        match found.pop_first() {
            None => Ok(()),
            Some((outline, count)) => {
                Err(Fault::new("wrong tree", format!("{count} tasks have\n{}", start_of(&outline))))
            }
        }
    }

    /// Compares the calls of all tasks with these outlines, in any order.
    ///
    /// # Errors
    ///
    /// A fault that shows an outline that no task has, or that no task should have.
    pub fn each_outline(&self, expected: Vec<String>) -> Result<(), Fault> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for outline in expected {
            *counts.entry(outline).or_default() += 1;
        }
        let expected: Vec<_> = counts.iter().map(|(outline, count)| (outline.as_str(), *count)).collect();
        self.outlines(&expected)
    }
}

impl Task {
    /// The calls: one function a line, two spaces deeper for each level.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (depth, name) in &self.calls {
            let _ = writeln!(text, "{:indent$}{name}", "", indent = 2 * depth);
        }
        text
    }

    /// Without the functions of one crate, or namespace; what they called counts as called by their callers.
    #[must_use]
    pub fn without(&self, prefix: &str) -> Self {
        let others = |name: &str| (!name.starts_with(prefix)).then(|| name.to_owned());
        let calls = filter(self.calls.iter().map(|(depth, name)| (*depth, others(name))));
        Self { tid: self.tid, calls }
    }

    /// How often each function was called.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for (_, name) in &self.calls {
            *counts.entry(name.as_str()).or_default() += 1;
        }
        counts
    }

    /// Compares the calls with an outline, as [`Seen::outline`] does.
    ///
    /// # Errors
    ///
    /// A fault that shows the first difference.
    pub fn outline(&self, expected: &str) -> Result<(), Fault> {
        let actual = self.text();
        if actual == expected {
            return Ok(());
        }
        let n_equal = actual.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count();
        let around = |text: &str| {
            let shown = text.lines().enumerate().skip(n_equal.saturating_sub(6)).take(12);
            shown.map(|(idx, line)| format!("{:6} {line}\n", idx + 1)).collect::<String>()
        };
        let detail = format!("it is\n{}and must be\n{}", around(&actual), around(expected));
        let [functions, must] = [&actual, expected].map(|text| sorted_counts(text));
        // A call that is missing says more than that the tree is therefore another.
        let is_lost = must.iter().any(|(name, count)| functions.get(name).copied().unwrap_or(0) < *count);
        Err(Fault::new(if is_lost { "lost calls" } else { "wrong tree" }, detail))
    }

    fn summary(&self) -> String {
        format!("task {}: {:?}", self.tid, self.counts())
    }
}

fn sorted_counts(outline: &str) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for line in outline.lines() {
        *counts.entry(line.trim_start()).or_default() += 1;
    }
    counts
}

fn start_of(text: &str) -> String {
    let mut start: String = text.lines().take(40).map(|line| format!("    {line}\n")).collect();
    if text.lines().nth(40).is_some() {
        start.push_str("    …\n");
    }
    start
}

/// Leaves out what has no name; what it called counts as called by its caller.
fn filter(calls: impl Iterator<Item = (usize, Option<String>)>) -> Vec<(usize, String)> {
    let mut open: Vec<usize> = Vec::new();
    let mut kept = Vec::new();
    for (depth, name) in calls {
        while open.last().is_some_and(|&above| above >= depth) {
            open.pop();
        }
        if let Some(name) = name {
            kept.push((open.len(), name));
            open.push(depth);
        }
    }
    kept
}

/// A function's name without the parameters' types, which some tracers show.
pub(super) fn plain_name(name: &str) -> &str {
    name.find('(').filter(|&start| start > 0).map_or(name, |start| &name[..start])
}

fn calls(tree: &CallTree, of_libraries: &BTreeSet<String>) -> Vec<(usize, String)> {
    filter(tree.calls().map(|(depth, call)| {
        let name = plain_name(&call.name);
        let of_the_program =
            !NOT_OF_THE_PROGRAM.iter().any(|prefix| call.name.starts_with(prefix)) && !of_libraries.contains(name);
        // GCC numbers functions in functions.
        let numbered = name.rsplit_once('.').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
        (depth, of_the_program.then(|| numbered.map_or(name, |(name, _)| name).to_owned()))
    }))
}

/// Returns the faults in a task's records.
fn flaws(tree: &CallTree, may_end_open: bool, of_libraries: &BTreeSet<String>) -> Vec<Fault> {
    let mut faults: Vec<Fault> = tree
        .warnings
        .iter()
        .filter_map(|(warning, count)| {
            let words = match warning {
                Warning::TimeBackwards => "time goes back",
                Warning::StrayExit => "unmatched exit",
                Warning::MissingExit => "missing exit",
                Warning::LostRecord => "lost events",
                Warning::CutRecord | Warning::CorruptStretch => "corrupt records",
                _ => return None,
            };
            Some(Fault::new(words, format!("task {}: {count} times", tree.tid)))
        })
        .collect();
    // `exit` does not come back.
    let is_open = |call: &Call| call.end_ns.is_none() && !of_libraries.contains(plain_name(&call.name));
    let mut open = tree.calls().filter(|(_, call)| is_open(call)).map(|(_, call)| call.name.as_str());
    if let Some(first) = open.next().filter(|_| !may_end_open) {
        let detail = format!("task {}: {first} and {} more have none", tree.tid, open.count());
        faults.push(Fault::new("missing exit", detail));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(outlines: &[&str]) -> Seen {
        let calls = |outline: &str| {
            let call = |line: &str| {
                let name = line.trim_start();
                ((line.len() - name.len()) / 2, name.to_owned())
            };
            outline.lines().map(call).collect()
        };
        let tasks = outlines.iter().map(|outline| Task { tid: 1, calls: calls(outline) }).collect();
        Seen { printed: String::new(), tasks }
    }

    fn words(result: Result<(), Fault>) -> String {
        result.map_or_else(|fault| fault.words, |()| "ok".to_owned())
    }

    #[test]
    fn outlines_are_compared_exactly() {
        let expected = "a\n  b\n    c\nb\n";
        let compare = |outlines: &[&str]| words(seen(outlines).outline(expected));
        assert_eq!(compare(&[expected]), "ok");
        assert_eq!(compare(&["a\n  b\n  c\nb\n"]), "wrong tree");
        assert_eq!(compare(&["a\n  b\n    c\nb\nb\n"]), "wrong tree");
        assert_eq!(compare(&["a\n  b\n    c\n"]), "lost calls");
        assert_eq!(compare(&["a\n  b\n", "    c\nb\n"]), "wrong threads");
        assert_eq!(compare(&[]), "empty trace");
    }

    #[test]
    fn tasks_may_come_in_any_order() {
        let compare = |outlines: &[&str]| words(seen(outlines).outlines(&[("a\n", 2), ("b\n  a\n", 1)]));
        assert_eq!(compare(&["a\n", "b\n  a\n", "a\n"]), "ok");
        assert_eq!(compare(&["a\n", "b\n  a\n"]), "wrong tree");
        assert_eq!(compare(&["a\n", "a\n", "b\na\n"]), "wrong tree");
        assert_eq!(compare(&["a\n", "a\n"]), "lost threads");
        assert_eq!(compare(&["a\n", "a\n", "b\n  a\n", "c\n"]), "wrong tree");
    }

    #[test]
    fn edges_are_compared_exactly() {
        let compare = |outline: &str| words(seen(&[outline]).all_edges(&[("-", "a", 1), ("a", "b", 2)]));
        assert_eq!(compare("a\n  b\n  b\n"), "ok");
        assert_eq!(compare("a\n  b\n    b\n"), "wrong tree");
        assert_eq!(compare("a\n  b\n  b\nb\n"), "wrong tree");
    }

    #[test]
    fn what_is_left_out_does_not_indent() {
        let seen = seen(&["main\n  p::main\n    p::a\n      p::b::{closure#0}\n        p::b::<u8>\n  p::a\n"]);
        assert_eq!(seen.functions_of("p").tasks[0].text(), "a\n  b\na\n");
        assert_eq!(seen.without("p::").tasks[0].text(), "main\n");
    }
}
