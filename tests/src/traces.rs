//! Looking at traces.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use rftrace_read::{Kind, Task, Trace};
use rftrace_views::CallTree;

/// Opens a trace and checks that it is well-formed; see [`try_open`].
///
/// # Panics
///
/// When it is not.
#[must_use]
pub fn open(dir: &Path) -> Trace {
    try_open(dir).unwrap_or_else(|flaw| panic!("{}: {flaw}", dir.display()))
}

/// Opens a trace and checks that it is well-formed.
///
/// That is: nothing in it needs a warning; every task has records; in every task times do not go back, an exit belongs to
/// the innermost open entry and has its address, depths are the numbers of open functions, and no function stays open.
///
/// # Errors
///
/// The first violation of this.
pub fn try_open(dir: &Path) -> Result<Trace, String> {
    let trace = Trace::open(dir).map_err(|error| error.to_string())?;
    if !trace.warnings().is_empty() {
        return Err(trace.warnings().to_string());
    }
    if trace.tasks().is_empty() {
        return Err("no tasks".to_owned());
    }
    for task in trace.tasks() {
        check_task(&trace, task).map_err(|flaw| format!("task {}: {flaw}", task.tid()))?;
    }
    Ok(trace)
}

fn check_task(trace: &Trace, task: &Task) -> Result<(), String> {
    let mut records = trace.records(task);
    let mut open = Vec::new();
    let mut last_ns = 0;
    let mut n_records = 0;
    for record in &mut records {
        let record = record.map_err(|error| error.to_string())?;
        let here = |what: &str| Err(format!("{what} at record {n_records}: {record:?}"));
        if record.time_ns < last_ns {
            return here("time goes back");
        }
        last_ns = record.time_ns;
        match record.kind {
            Kind::Entry => {
                if usize::from(record.depth) != open.len() {
                    return here("a wrong depth");
                }
                open.push(record.addr);
            }
            Kind::Exit => {
                if open.pop() != Some(record.addr) {
                    return here("an exit of another function");
                }
                if usize::from(record.depth) != open.len() {
                    return here("a wrong depth");
                }
            }
            Kind::Lost => return here("a LOST record, which uftrace's Chrome output cannot take,"),
            Kind::Event => {}
        }
        n_records += 1;
    }
    if !records.warnings().is_empty() {
        return Err(records.warnings().to_string());
    }
    if !open.is_empty() {
        return Err(format!("{} functions stay open", open.len()));
    }
    if n_records == 0 {
        return Err("no records".to_owned());
    }
    Ok(())
}

/// All calls of each task, in the order of the tasks.
///
/// # Panics
///
/// When a task's records cannot be read, or not without a warning.
#[must_use]
pub fn trees(trace: &Trace) -> Vec<CallTree> {
    let tree = |task| CallTree::read(trace, task).unwrap_or_else(|error| panic!("{error}"));
    let trees: Vec<CallTree> = trace.tasks().iter().map(tree).collect();
    for tree in &trees {
        assert!(tree.warnings.is_empty(), "task {}: {}", tree.tid, tree.warnings);
    }
    trees
}

/// The calls of a trace that has one task: one name a line, two spaces deeper for each level.
///
/// # Panics
///
/// When there are more tasks.
#[must_use]
pub fn outline(trace: &Trace) -> String {
    outline_of(trace, "")
}

/// Like [`outline`], with only the functions of one crate: those whose names begin with `prefix`, which is left out. What
/// such functions are called by through others counts as called directly.
///
/// # Panics
///
/// As [`outline`].
#[must_use]
pub fn outline_of(trace: &Trace, prefix: &str) -> String {
    let trees = trees(trace);
    assert_eq!(trees.len(), 1, "one task is expected");
    outline_of_tree(&trees[0], prefix)
}

/// Like [`outline_of`], for one task.
#[must_use]
pub fn outline_of_tree(tree: &CallTree, prefix: &str) -> String {
    outline_where(tree, |name| name.strip_prefix(prefix))
}

/// Like [`outline_of_tree`], with what `shown` makes of the functions' names; `None` leaves a function out.
#[must_use]
pub fn outline_where<'t>(tree: &'t CallTree, shown: impl Fn(&'t str) -> Option<&'t str>) -> String {
    let mut text = String::new();
    // The depths of the shown functions that are open.
    let mut open: Vec<usize> = Vec::new();
    for (depth, call) in tree.calls() {
        while open.last().is_some_and(|&above| above >= depth) {
            open.pop();
        }
        let Some(name) = shown(&call.name) else { continue };
        let _ = writeln!(text, "{:indent$}{name}", "", indent = 2 * open.len());
        open.push(depth);
    }
    text
}

/// How often each function was called by each other, or by `-` at the outermost level, in all tasks. Functions that
/// `shown` makes nothing of are left out.
#[must_use]
pub fn edges_where(trace: &Trace, shown: impl Fn(&str) -> Option<&str>) -> BTreeMap<(String, String), u64> {
    let mut edges = BTreeMap::new();
    for tree in trees(trace) {
        // The depths and names of the shown functions that are open.
        let mut open: Vec<(usize, &str)> = Vec::new();
        for (depth, call) in tree.calls() {
            while open.last().is_some_and(|&(above, _)| above >= depth) {
                open.pop();
            }
            let Some(name) = shown(&call.name) else { continue };
            let caller = open.last().map_or("-", |&(_, name)| name);
            *edges.entry((caller.to_owned(), name.to_owned())).or_default() += 1;
            open.push((depth, name));
        }
    }
    edges
}

/// Compares two outlines, or other texts, line by line.
///
/// # Panics
///
/// When they differ; the message is about `what` and shows the first difference.
pub fn assert_same_lines(actual: &str, expected: &str, what: &str) {
    if actual == expected {
        return;
    }
    let n_equal = actual.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| {
        let shown = text.lines().enumerate().skip(n_equal.saturating_sub(5)).take(10);
        shown.map(|(idx, line)| format!("{:6} {line}\n", idx + 1)).collect::<String>()
    };
    panic!("{what}: line {} differs. It is\n{}and must be\n{}", n_equal + 1, around(actual), around(expected));
}

/// How often each function was called in each task, in the order of the tasks.
#[must_use]
pub fn calls_per_task(trace: &Trace) -> Vec<BTreeMap<String, u64>> {
    trees(trace).iter().map(CallTree::calls_per_function).collect()
}

/// Returns the output of `uftrace` for a trace.
///
/// # Panics
///
/// When it fails or has anything to say on stderr.
#[must_use]
pub fn uftrace(command: &[&str], dir: &Path) -> String {
    let (name, arguments) = command.split_first().expect("a command");
    let mut uftrace = Command::new("uftrace");
    // A name of a function ends the options.
    uftrace.arg(name).arg("--no-pager").arg("-d").arg(dir).args(arguments);
    let output = crate::tools::run(&mut uftrace);
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert_eq!(warnings, "", "uftrace {command:?} warns");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
