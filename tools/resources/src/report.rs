//! Stacks by what they took, with names: chosen, in an order, as text and JSON.

use std::io::{self, Write};

use rftrace_read::{Error, Pattern, Result};
use serde_json::{Value, json};

use crate::account::{Account, Sums};
use crate::names::{Name, Names};
use crate::recording::Recording;

/// In which order stacks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// By bytes that are still there.
    #[default]
    Bytes,
    /// By blocks that are still there.
    Count,
    /// By all bytes that were taken.
    Allocated,
    /// By blocks that were given back at once.
    Temporary,
}

/// What is shown.
#[derive(Debug, Default)]
pub struct Choice {
    /// The order.
    pub sort: Sort,
    /// Only what is still there.
    pub is_leaks: bool,
    /// What is not shown: stacks with such a function or module.
    pub suppressed: Vec<Pattern>,
}

/// Functions by which the C library, and Rust's, take memory for themselves that they keep until the end.
const KEEPING: [&str; 4] = [
    // The buffers of stdout and its like.
    "_IO_file_doallocate",
    // Storage of threads whose stacks are kept for others.
    "_dl_allocate_tls",
    // The handle of Rust's first thread.
    "std::rt::init",
    // The buffer of Rust's stdout.
    "std::io::stdio::stdout",
];

/// What is taken where only these run is their own, as the memory in which C++ makes exceptions when there is no other.
const RUNTIMES: [&str; 4] = ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

/// A stack with names.
#[derive(Debug)]
pub struct Line {
    /// What it took.
    pub sums: Sums,
    /// Who has called, the innermost first.
    pub names: Vec<Name>,
}

/// What an account has, with names.
#[derive(Debug)]
pub struct Report {
    /// Stacks, the greatest first.
    pub lines: Vec<Line>,
    /// What was left out, as it is of libraries or was suppressed.
    pub suppressed: Sums,
    /// Programs and libraries that have no names, as they have changed.
    pub changed: Vec<String>,
}

impl Report {
    /// Finds names for the stacks of an account.
    pub fn of(recording: &Recording, account: &Account, choice: &Choice, names: &mut Names) -> Self {
        let key = |sums: &Sums| match choice.sort {
            Sort::Bytes => (sums.bytes, sums.allocated),
            Sort::Count => (sums.blocks, sums.allocations),
            Sort::Allocated => (sums.allocated, sums.allocations),
            Sort::Temporary => (sums.temporary, sums.allocated),
        };
        let mut report = Self { lines: Vec::new(), suppressed: Sums::default(), changed: Vec::new() };
        for (stack, &sums) in account.stacks.iter().enumerate() {
            if sums == Sums::default() || (choice.is_leaks && sums.blocks == 0) {
                continue;
            }
            let frames = recording.stack(stack as u32).iter();
            let found: Vec<Name> = frames.flat_map(|&frame| names.of(recording.modules(), frame).to_vec()).collect();
            if choice.is_leaks && is_suppressed(&found, &choice.suppressed) {
                report.suppressed.blocks += sums.blocks;
                report.suppressed.bytes = report.suppressed.bytes.saturating_add(sums.bytes);
                continue;
            }
            report.lines.push(Line { sums, names: found });
        }
        report.lines.sort_by_key(|line| std::cmp::Reverse(key(&line.sums)));
        report.changed = names.changed().to_vec();
        report
    }

    /// The sums of all that is shown.
    pub fn total(&self) -> Sums {
        self.lines.iter().fold(Sums::default(), |mut total, Line { sums, .. }| {
            total.allocations += sums.allocations;
            total.allocated = total.allocated.saturating_add(sums.allocated);
            total.temporary += sums.temporary;
            total.releases += sums.releases;
            total.blocks += sums.blocks;
            total.bytes = total.bytes.saturating_add(sums.bytes);
            total
        })
    }

    /// Writes so many stacks, of each so many functions.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(&self, limit: usize, depth: usize, is_leaks: bool, out: &mut dyn Write) -> Result<()> {
        let write = |out: &mut dyn Write| -> io::Result<()> {
            for Line { sums, names } in self.lines.iter().take(limit) {
                let there = format!("{} in {}", Size(sums.bytes), blocks(sums.blocks));
                if is_leaks {
                    writeln!(out, "\n{there} not given back, of {} taken:", blocks(sums.allocations))?;
                } else {
                    let (taken, all) = (blocks(sums.allocations), Size(sums.allocated));
                    writeln!(out, "\n{there} still there; {all} in {taken} taken, {} temporary:", sums.temporary)?;
                }
                Self::write_names(names, depth, out)?;
            }
            if self.lines.len() > limit {
                writeln!(out, "\n{} more stacks; --limit shows more", self.lines.len() - limit)?;
            }
            Ok(())
        };
        write(out).map_err(Error::Write)
    }

    /// The same as values.
    #[must_use]
    pub fn json(&self, limit: usize, depth: usize) -> Value {
        let line = |line: &Line| {
            let mut value = sums_json(&line.sums);
            value["frames"] = Self::json_of_names(&line.names, depth);
            value
        };
        self.lines.iter().take(limit).map(line).collect()
    }

    pub(crate) fn write_names(names: &[Name], depth: usize, out: &mut dyn Write) -> io::Result<()> {
        if names.is_empty() {
            writeln!(out, "    nobody knows who has called")?;
        }
        for name in names.iter().take(depth) {
            writeln!(out, "    {name}")?;
        }
        if names.len() > depth {
            writeln!(out, "    … {} more", names.len() - depth)?;
        }
        Ok(())
    }

    pub(crate) fn json_of_names(names: &[Name], depth: usize) -> Value {
        let name = |name: &Name| {
            let (file, line) = name.place.clone().map_or((None, None), |(file, line)| (Some(file), Some(line)));
            json!({
                "function": name.function, "file": file, "line": line, "inlined": name.is_inlined, "module": name.module,
            })
        };
        names.iter().take(depth).map(name).collect()
    }
}

/// Sums as values.
pub(crate) fn sums_json(sums: &Sums) -> Value {
    json!({
        "allocations": sums.allocations, "allocated_bytes": sums.allocated, "temporary": sums.temporary,
        "releases": sums.releases, "blocks": sums.blocks, "bytes": sums.bytes,
    })
}

impl Account {
    /// Writes the totals, and what was odd.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(&self, recording: &Recording, out: &mut dyn Write) -> Result<()> {
        let write = |out: &mut dyn Write| -> io::Result<()> {
            let Sums { allocations, allocated, temporary, releases, blocks: live, bytes } = self.total;
            writeln!(out, "memory: {} taken, {} in all; {temporary} temporary", blocks(allocations), Size(allocated))?;
            writeln!(out, "        {} given back", blocks(releases))?;
            let at = recording.since_start(self.peak_at.0) as f64 / 1e9;
            writeln!(out, "        {} at the most, after {at:.3} s", Size(self.peak))?;
            writeln!(out, "        {} in {} still there", Size(bytes), blocks(live))?;
            if self.processes.len() > 1 {
                let mut processes: Vec<_> = self.processes.iter().collect();
                processes.sort_by_key(|&(&number, _)| number);
                writeln!(out, "\n  PROCESS      TAKEN      STILL THERE  PROGRAM")?;
                for (number, sums) in processes {
                    let Some(process) = recording.processes().get(number) else { continue };
                    let there = Size(sums.bytes).to_string();
                    writeln!(out, "{:9} {:10} {there:>16}  {}", process.pid, sums.allocations, process.program)?;
                }
            }
            Ok(())
        };
        write(out).map_err(Error::Write)
    }

    /// The same as values.
    #[must_use]
    pub fn json(&self, recording: &Recording) -> Value {
        let mut processes: Vec<_> = self.processes.iter().collect();
        processes.sort_by_key(|&(&number, _)| number);
        let process = |(number, sums): (&u32, &Sums)| {
            let process = recording.processes().get(number)?;
            let mut value = sums_json(sums);
            (value["pid"], value["program"]) = (process.pid.into(), process.program.clone().into());
            value["forked"] = (process.parent != 0).into();
            Some(value)
        };
        let mut value = sums_json(&self.total);
        value["peak_bytes"] = self.peak.into();
        value["peak_seconds"] = (recording.since_start(self.peak_at.0) as f64 / 1e9).into();
        value["inherited_releases"] = self.inherited.into();
        value["unknown_releases"] = self.unknown.into();
        value["doubled"] = self.doubled.into();
        value["lost"] = recording.lost.into();
        value["processes"] = processes.into_iter().filter_map(process).collect();
        value
    }
}

/// Whether a stack is of what is not shown.
fn is_suppressed(stack: &[Name], patterns: &[Pattern]) -> bool {
    let is_wanted_away = |name: &Name| {
        let matches = |pattern: &Pattern| pattern.matches(&name.function) || pattern.matches(&name.module);
        KEEPING.contains(&name.function.as_str()) || patterns.iter().any(matches)
    };
    let is_runtime = |name: &Name| RUNTIMES.contains(&name.module.as_str());
    stack.iter().any(is_wanted_away) || (!stack.is_empty() && stack.iter().all(is_runtime))
}

/// Bytes, as they are read best.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(bytes) = *self;
        let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
        match units.into_iter().find(|&(_, unit)| bytes as f64 >= 10.0 * unit) {
            Some((name, unit)) => write!(f, "{:.1} {name}", bytes as f64 / unit),
            None => write!(f, "{bytes} bytes"),
        }
    }
}

fn blocks(number: u64) -> String {
    if number == 1 { "1 block".to_owned() } else { format!("{number} blocks") }
}
