//! Looking at a run, and at its trace, as a scenario says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rftrace_read::{Kind, Trace};

use super::ways::{By, Way};
use super::{Scenario, Values};
use crate::recorder::replay_of;
use crate::traces::{self, edges_where, uftrace};
use crate::{Run, assert_same_lines, require};

/// Numbers by names: `leaf 4, middle 2`.
fn numbers(text: &str) -> Result<BTreeMap<&str, u64>, String> {
    let number = |word| {
        let (name, number) = str::rsplit_once(word, ' ')?;
        Some((name, number.parse().ok()?))
    };
    text.split(", ").map(|word| number(word).ok_or_else(|| format!("`{word}` is no name with a number"))).collect()
}

/// The calls of a trace: the number of the task, the depth and the name of each.
fn entries(trace: &Trace) -> Vec<(usize, usize, String)> {
    let of_task = |(number, task)| {
        let entries = trace.records(task).map(|record| record.expect("a record"));
        let entries = entries.filter(|record| record.kind == Kind::Entry);
        entries.map(move |record| {
            let name = trace.function_name(task, record.time_ns, record.addr);
            (number, usize::from(record.depth), name.to_string())
        })
    };
    trace.tasks().iter().enumerate().flat_map(of_task).collect()
}

impl Scenario {
    /// Fails by a text without a meaning.
    pub(super) fn check_words(&self) -> Result<(), String> {
        let texts = [&self.calls, &self.counts, &self.edges];
        texts.into_iter().flatten().try_for_each(|text| numbers(text).map(drop))
    }

    /// Looks at a finished run.
    pub(super) fn check_run(&self, run: &Run, way: &Way, program: &Path) {
        if way.by == By::Recorder {
            assert_eq!(run.status.code(), Some(self.status), "{}", run.stderr);
        }
        let untraced = || {
            let plain = Run::of_any(way.plain(program).args(&self.arguments));
            let status = plain.status.code().unwrap_or_else(|| 128 + plain.status.signal().unwrap_or_default());
            assert_eq!(status, self.status, "by itself: {}", plain.stderr);
            plain.stdout
        };
        match &self.output {
            Some(output) => assert_same_lines(&run.stdout, output, "the program's output"),
            None if way.by == By::Recorder && self.values.is_none() => {
                assert_same_lines(&run.stdout, &untraced(), "the program's output")
            }
            None => {}
        }
        for words in &self.says {
            assert!(way.by != By::Recorder || run.stderr.contains(words), "no `{words}` in {}", run.stderr);
        }
        let trace = run.path("trace");
        if self.untraced {
            assert!(!trace.join("info").exists(), "{}", run.stderr);
            return;
        }
        assert!(trace.join("info").exists(), "no trace: {}", run.stderr);
        if let Some(values) = &self.values {
            let printed: String = run.stdout.lines().map(|line| line.trim_end_matches(';').to_owned() + "\n").collect();
            self.check_values(&replay_of(&trace), &printed, values, "rftrace replay");
            if require(&["uftrace"]) {
                self.check_values(&uftrace(&["replay", "-f", "none"], &trace), &printed, values, "uftrace replay");
            }
        }
        self.check_trace(&trace, way);
    }

    /// Looks at a trace.
    pub(super) fn check_trace(&self, dir: &Path, way: &Way) {
        let trace = match way.by {
            By::Uftrace => Trace::open(dir).unwrap_or_else(|error| panic!("{error}")),
            _ => traces::open(dir),
        };
        let entries = entries(&trace);
        let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
        entries.iter().for_each(|(_, _, name)| *calls.entry(name).or_default() += 1);
        if let Some(expected) = &self.calls {
            let counts: Vec<String> = calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
            assert_eq!(&counts.join(", "), expected, "{:?}", self.arguments);
        }
        if let Some(expected) = &self.counts {
            let expected = numbers(expected).expect("checked before");
            let found = expected.keys().map(|&name| (name, calls.get(name).copied().unwrap_or(0))).collect();
            assert_eq!(expected, found, "{calls:?}");
        }
        if let Some(tree) = &self.tree {
            assert!(entries.iter().all(|&(number, ..)| number == 0), "one task is expected");
            // The depths of open functions.
            let mut open = Vec::new();
            let mut lines = String::new();
            for (_, depth, name) in entries.iter().filter(|(.., name)| self.own.is_empty() || self.own.contains(name)) {
                open.retain(|above| above < depth);
                let _ = writeln!(lines, "{:indent$}{name}", "", indent = 2 * open.len());
                open.push(*depth);
            }
            assert_same_lines(&lines, tree, &self.name);
        }
        if let Some(expected) = &self.edges {
            let edges = edges_where(&trace, |name| Some(name).filter(|name| !name.contains(':')));
            for (edge, number) in numbers(expected).expect("checked before") {
                let found = edges.iter().find(|((outer, inner), _)| edge == format!("{outer} {inner}"));
                assert_eq!(found.map_or(0, |(_, &number)| number), number, "{edge}: {edges:?}");
            }
        }
        if let Some(tasks) = self.tasks {
            assert_eq!(trace.tasks().len(), tasks);
        }
        let list = fs::read_to_string(dir.join("entry-branches.txt")).unwrap_or_default();
        for (name, expected) in &self.left_out {
            let line = list.lines().find(|line| line.split('\t').nth(2) == Some(name));
            let reason = line.and_then(|line| line.split('\t').nth(3)).unwrap_or_default();
            assert_eq!(reason, expected, "{name}: {list}");
        }
        let names = fs::read_to_string(dir.join("task.txt")).unwrap_or_default();
        for name in &self.threads {
            assert!(names.contains(&format!(" comm=\"{name}\"\n")), "{name}: {names}");
        }
        if !self.shows.is_empty() {
            let replayed = replay_of(dir);
            for line in &self.shows {
                assert!(
                    replayed.lines().any(|shown| shown.trim().starts_with(line.as_str())),
                    "no line begins with `{line}` in {replayed}"
                );
            }
        }
        if matches!(way.by, By::Recorder | By::Attach) {
            assert!(!dir.join(".recording").exists() && !dir.join("rftrace-preload.sym").exists());
            // It takes the trace without a word, and knows each function.
            if require(&["uftrace"]) {
                let report = uftrace(&["report"], dir);
                let mut names = report.lines().filter_map(|line| line.split_whitespace().last());
                let is_address = |name: &str| {
                    let digits = name.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
                    digits.is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok())
                };
                assert!(!names.any(is_address), "{report}");
                let has_status = uftrace(&["info"], dir).contains("exit status");
                assert!(has_status || way.by == By::Attach);
            }
        }
    }

    /// Compares the calls in a replay with the program's output.
    fn check_values(&self, replay: &str, printed: &str, values: &Values, what: &str) {
        let chosen = |lines: &str| -> Vec<String> {
            let lines = lines.lines().filter(|line| line.starts_with(&values.of));
            let until = |line: &str| match &values.until {
                Some(until) => line.split(until.as_str()).next().unwrap_or_default().to_owned(),
                None => line.to_owned(),
            };
            lines.map(until).collect()
        };
        let (shown, printed) = (chosen(&calls_with_values(replay)), chosen(printed));
        let n_cut = shown.iter().zip(&printed).filter(|(shown, printed)| is_cut(shown, printed)).count();
        if shown.len() != printed.len() || n_cut > values.cut || n_cut == 0 {
            return assert_same_lines(&shown.join("\n"), &printed.join("\n"), what);
        }
        for (shown, printed) in shown.iter().zip(&printed) {
            assert!(shown == printed || is_cut(shown, printed), "{what}: {shown}, it is {printed}");
        }
    }
}

/// The calls in a replay, as programs print them: without spaces, comments, and functions without values.
#[must_use]
pub fn calls_with_values(replay: &str) -> String {
    let call = |line: &str| {
        let call = line.trim_start().split(" /* ").next()?.trim_end().trim_end_matches(';').to_owned();
        let has_values = call.contains(") = ") || call.starts_with("} = ") || call.ends_with(" {");
        has_values.then_some(call + "\n")
    };
    replay.lines().filter_map(call).collect()
}

/// A line with a text, of which nothing was read, or the bytes in one page of the stack.
fn is_cut(shown: &str, printed: &str) -> bool {
    let Some(text) = shown.strip_prefix("text(\"").and_then(|rest| rest.split_once('"')) else { return false };
    let Some(whole) = printed.strip_prefix("text(\"").and_then(|rest| rest.split_once('"')) else { return false };
    let is_address = text.0.starts_with("<0x");
    (is_address || text.0.strip_suffix("...").is_some_and(|begun| whole.0.starts_with(begun))) && text.1 == whole.1
}
