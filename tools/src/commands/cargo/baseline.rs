//! The file of `cargo rftrace check`: the exact numbers of each target, to be committed.
//!
//! It is JSON with a line for each function, sorted, so that a change of a number is a changed line.
//!
//! Not here: the runs that give the numbers (`check`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_read::Error;
use serde::{Deserialize, Serialize};

use crate::commands::common::write_to;

/// The form of the file.
const VERSION: u32 = 1;

/// All that is in the file.
#[derive(Debug, Deserialize)]
pub(super) struct Baseline {
    version: u32,
    /// In the order of their commands.
    pub(super) targets: Vec<Target>,
}

/// The programs of one command of cargo, and their numbers.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Target {
    /// `run`, `test` or `bench`, and its arguments.
    pub(super) command: Vec<String>,
    /// Options of `rftrace record`.
    pub(super) options: Vec<String>,
    /// The compiler.
    pub(super) built: String,
    /// How many runs it was measured by.
    pub(super) runs: u32,
    /// The numbers of its programs.
    pub(super) programs: Numbers,
}

/// The numbers of all functions of some programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Nested")]
pub(super) struct Numbers(BTreeMap<Key, Number>);

/// The same in the file: by the name of the program, that of the function, and what is counted.
type Nested = BTreeMap<String, BTreeMap<String, BTreeMap<String, Number>>>;

/// The program, the function and the count of a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) program: String,
    /// Its name, or [`WHOLE`].
    pub(super) function: String,
    /// `calls`, `depth`, `allocations` or `bytes`.
    pub(super) what: String,
}

/// The name for numbers of a program as a whole.
pub(super) const WHOLE: &str = "(program)";
/// The number of calls of a function.
pub(super) const CALLS: &str = "calls";
/// The greatest number of functions that are open in a call of it.
pub(super) const DEPTH: &str = "depth";

/// A number in several runs: usually the same in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Spelled", into = "Spelled")]
pub(super) struct Number {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// A number in the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled {
    Same(u64),
    Varied([u64; 2]),
}

impl From<Spelled> for Number {
    fn from(spelled: Spelled) -> Self {
        match spelled {
            Spelled::Same(number) => number.into(),
            Spelled::Varied([a, b]) => Self { least: a.min(b), most: a.max(b) },
        }
    }
}

impl From<Number> for Spelled {
    fn from(number: Number) -> Self {
        if number.varies() { Self::Varied([number.least, number.most]) } else { Self::Same(number.least) }
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self { least: number, most: number }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.varies() { f.pad(&format!("{}…{}", self.least, self.most)) } else { f.pad(&self.least.to_string()) }
    }
}

impl Number {
    /// True if it was not the same in all runs.
    pub(super) fn varies(self) -> bool {
        self.least < self.most
    }

    fn join(&mut self, other: Self) {
        *self = Self { least: self.least.min(other.least), most: self.most.max(other.most) };
    }
}

/// A number that is not as in the baseline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) key: &'a Key,
    pub(super) was: u64,
    pub(super) is: Number,
    /// ` (new)` or ` (gone)`, if one side lacks the function.
    pub(super) note: &'static str,
}

impl From<Nested> for Numbers {
    fn from(programs: Nested) -> Self {
        let mut found = Self::default();
        for (program, functions) in programs {
            for (function, numbers) in functions {
                for (what, number) in numbers {
                    found.0.insert(Key { program: program.clone(), function: function.clone(), what }, number);
                }
            }
        }
        found
    }
}

impl Numbers {
    /// Adds a number of one run.
    pub(super) fn add(&mut self, program: &str, function: &str, what: &str, number: u64) {
        let key = Key { program: program.to_owned(), function: function.to_owned(), what: what.to_owned() };
        self.0.insert(key, number.into());
    }

    /// Adds the numbers of another run. One that a run lacks is 0 there.
    pub(super) fn join(&mut self, other: &Self) {
        for (key, number) in &mut self.0 {
            number.join(other.get(key));
        }
        for (key, &number) in &other.0 {
            self.0.entry(key.clone()).or_insert(Number { least: 0, ..number });
        }
    }

    fn get(&self, key: &Key) -> Number {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// All of them, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, Number)> {
        self.0.iter().map(|(key, &number)| (key, number))
    }

    /// The functions whose numbers are not the same in all runs.
    pub(super) fn varying(&self) -> BTreeSet<&str> {
        self.iter().filter(|(_, number)| number.varies()).map(|(key, _)| key.function.as_str()).collect()
    }

    /// Compares measured numbers with these, the largest change first. Numbers that vary here are not compared, nor is the depth of a
    /// function that one side lacks.
    pub(super) fn changes<'a>(&'a self, measured: &'a Self) -> Vec<Change<'a>> {
        let keys: BTreeSet<&Key> = self.0.keys().chain(measured.0.keys()).collect();
        let changed = keys.into_iter().filter_map(|key| {
            let note = match (self.0.contains_key(key), measured.0.contains_key(key)) {
                (false, _) => " (new)",
                (_, false) => " (gone)",
                _ => "",
            };
            let (was, is) = (self.get(key), measured.get(key));
            let is_as_before = was.varies() || (is.least..=is.most).contains(&was.least);
            let is_known = is_as_before || !note.is_empty() && key.what == DEPTH;
            (!is_known).then_some(Change { key, was: was.least, is, note })
        });
        let mut changed: Vec<_> = changed.collect();
        changed.sort_by_key(|change| Reverse(change.was.abs_diff(change.is.least)));
        changed
    }
}

impl Baseline {
    /// Reads a file; `None` if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let cannot = || format!("cannot read {}", path.display());
        let text = opener::read_text(path, MOST_TEXT).with_context(cannot)?;
        let found: Self = serde_json::from_str(&text).with_context(cannot)?;
        if found.version != VERSION {
            bail!("cannot read {}: it has version {}, and this rftrace reads {VERSION}", path.display(), found.version);
        }
        Ok(Some(found))
    }

    /// One without targets.
    pub(super) fn empty() -> Self {
        Self { version: VERSION, targets: Vec::new() }
    }

    /// The target of a command.
    pub(super) fn target(&self, command: &[String]) -> Option<&Target> {
        self.targets.iter().find(|target| target.command == command)
    }

    /// Has a target take the place of the one with its command.
    pub(super) fn replace(&mut self, target: Target) {
        self.targets.retain(|other| other.command != target.command);
        self.targets.push(target);
        self.targets.sort_by(|a, b| a.command.cmp(&b.command));
    }

    /// Writes the file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_to(Some(path), |out| self.write_text(out).map_err(Error::Write))
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{{\n  \"version\": {},\n  \"targets\": [", self.version)?;
        for (idx, target) in self.targets.iter().enumerate() {
            target.write_text(out)?;
            writeln!(out, "    }}{}", if idx + 1 < self.targets.len() { "," } else { "" })?;
        }
        writeln!(out, "  ]\n}}")
    }
}

impl Target {
    /// All but the last brace.
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { command, options, built, runs, programs } = self;
        writeln!(out, "    {{\n      \"command\": {},", serde_json::to_string(command)?)?;
        writeln!(out, "      \"options\": {},", serde_json::to_string(options)?)?;
        writeln!(out, "      \"built\": {},", serde_json::to_string(built)?)?;
        writeln!(out, "      \"runs\": {runs},\n      \"programs\": {{")?;
        let mut nested = BTreeMap::<&str, BTreeMap<&str, BTreeMap<&str, Number>>>::new();
        for (key, number) in programs.iter() {
            nested.entry(&key.program).or_default().entry(&key.function).or_default().insert(&key.what, number);
        }
        let comma = |idx: usize, all: usize| if idx + 1 < all { "," } else { "" };
        for (idx, (program, functions)) in nested.iter().enumerate() {
            writeln!(out, "        {}: {{", serde_json::to_string(program)?)?;
            for (idx, (function, numbers)) in functions.iter().enumerate() {
                let (function, numbers) = (serde_json::to_string(function)?, serde_json::to_string(numbers)?);
                writeln!(out, "          {function}: {numbers}{}", comma(idx, functions.len()))?;
            }
            writeln!(out, "        }}{}", comma(idx, nested.len()))?;
        }
        writeln!(out, "      }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of functions in the program `p`.
    fn numbers(calls: &[(&str, u64)]) -> Numbers {
        let mut found = Numbers::default();
        for &(function, number) in calls {
            found.add("p", function, CALLS, number);
            found.add("p", function, DEPTH, 2);
        }
        found
    }

    fn changes(before: &Numbers, after: &Numbers) -> Vec<(String, u64, String, &'static str)> {
        let changes = before.changes(after);
        changes
            .iter()
            .map(|change| (change.key.function.clone(), change.was, change.is.to_string(), change.note))
            .collect()
    }

    #[test]
    fn each_change_is_found() {
        let before = numbers(&[("same", 7), ("more", 1), ("gone", 4)]);
        assert_eq!(changes(&before, &before), []);
        let after = numbers(&[("same", 7), ("more", 3), ("new", 9)]);
        let expected = [("new", 0, "9", " (new)"), ("gone", 4, "0", " (gone)"), ("more", 1, "3", "")];
        assert_eq!(changes(&before, &after), expected.map(|(name, was, is, note)| (name.into(), was, is.into(), note)));
        let mut deeper = before.clone();
        deeper.add("p", "same", DEPTH, 3);
        assert_eq!(changes(&before, &deeper), [("same".to_owned(), 2, "3".to_owned(), "")]);
        // Another program has functions of its own.
        let mut other = before.clone();
        other.add("q", "same", CALLS, 7);
        assert_eq!(changes(&before, &other), [("same".to_owned(), 0, "7".to_owned(), " (new)")]);
    }

    #[test]
    fn what_varies_is_no_change() {
        let mut before = numbers(&[("random", 5), ("same", 1)]);
        before.join(&numbers(&[("random", 9), ("seldom", 2), ("same", 1)]));
        assert_eq!(before.varying().into_iter().collect::<Vec<_>>(), ["random", "seldom"]);
        assert_eq!(changes(&before, &numbers(&[("random", 100), ("same", 1)])), []);
        // It turns out only now.
        let before = numbers(&[("random", 5), ("moved", 5)]);
        let mut measured = numbers(&[("random", 8), ("moved", 8)]);
        measured.join(&numbers(&[("random", 4), ("moved", 9)]));
        assert_eq!(changes(&before, &measured), [("moved".to_owned(), 5, "8…9".to_owned(), "")]);
    }

    #[test]
    fn files_have_a_line_for_each_function() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baseline.json");
        assert!(Baseline::read(&path).unwrap().is_none());
        let mut programs = numbers(&[("a::\"b\"", 3), ("<c as d>::e", 1)]);
        programs.join(&numbers(&[("a::\"b\"", 4), ("<c as d>::e", 1)]));
        let target = |word: &str| Target {
            command: vec!["bench".into(), word.into()],
            options: vec!["--filter=a".into()],
            built: "rustc 1".into(),
            runs: 2,
            programs: programs.clone(),
        };
        let mut baseline = Baseline::empty();
        for word in ["y", "x", "y"] {
            baseline.replace(target(word));
        }
        baseline.write(&path).unwrap();
        let text = opener::read_text(&path, MOST_TEXT).unwrap();
        assert!(text.contains("\n          \"a::\\\"b\\\"\": {\"calls\":[3,4],\"depth\":2}\n"), "{text}");
        let read = Baseline::read(&path).unwrap().unwrap();
        let commands: Vec<_> = read.targets.iter().map(|target| target.command[1].as_str()).collect();
        assert_eq!(commands, ["x", "y"]);
        let found = read.target(&["bench".to_owned(), "y".to_owned()]).unwrap();
        assert_eq!((&found.programs, found.runs, &found.options), (&programs, 2, &target("y").options));
        read.write(&path).unwrap();
        assert_eq!(opener::read_text(&path, MOST_TEXT).unwrap(), text, "nothing of it depends on who writes it");

        for (text, error) in [("{", "cannot read"), ("{\"version\": 2, \"targets\": []}", "has version 2")] {
            std::fs::write(&path, text).unwrap();
            assert!(format!("{:#}", Baseline::read(&path).unwrap_err()).contains(error), "{text}");
        }
    }
}
