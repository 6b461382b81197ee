//! Stacks with names, by the resources that they allocated: chosen, sorted, as text and JSON.

use std::io::{self, Write};

use rftrace_format::resources::Resource;
use rftrace_read::{Error, Pattern, Result, Shown, ShownNames};
use serde_json::{Value, json};

use crate::account::{Account, Held, STANDARD, Sums};
use crate::names::{Name, Names, RUNTIMES, names_of_stacks, of_caller};
use crate::recording::Recording;
use crate::words::{Size, amount, number, one_of, several_of};

/// The order of stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// By unreleased bytes.
    #[default]
    Bytes,
    /// By unreleased blocks.
    Count,
    /// By allocated bytes.
    Allocated,
    /// By temporary blocks.
    Temporary,
}

/// The choice of stacks to show.
#[derive(Debug, Default)]
pub struct Choice {
    /// The order.
    pub sort: Sort,
    /// True to show only unreleased blocks.
    pub is_leaks: bool,
    /// The patterns of functions and modules whose stacks are suppressed.
    pub suppressed: Vec<Pattern>,
    /// The names of a new text.
    pub names: ShownNames,
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

/// A stack with names.
#[derive(Debug)]
pub struct Line {
    /// The stack's sums.
    pub sums: Sums,
    /// Some of the unreleased descriptors and threads.
    pub held: Vec<Held>,
    /// The callers, innermost first.
    pub names: Vec<Name>,
}

/// An account with names.
#[derive(Debug)]
pub struct Report {
    /// The resource.
    pub resource: Resource,
    /// The stacks, largest first.
    pub lines: Vec<Line>,
    /// The sums of stacks that were left out: those of runtime libraries alone, standard streams, and suppressed ones.
    pub suppressed: Sums,
    /// The programs and libraries without names, as their files have changed.
    pub changed: Vec<String>,
    /// The names of a new text.
    pub(crate) names: ShownNames,
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
        let resource = account.resource;
        let mut report = Self {
            resource,
            lines: Vec::new(),
            suppressed: Sums::default(),
            changed: Vec::new(),
            names: choice.names.clone(),
        };
        for (stack, &(mut sums)) in account.stacks.iter().enumerate() {
            let mut held = account.held.get(&(stack as u32)).cloned().unwrap_or_default();
            if choice.is_leaks
                && let Some(&standard) = account.standard.get(&(stack as u32))
            {
                (sums.blocks, sums.bytes) = (sums.blocks - standard, sums.bytes.saturating_sub(standard));
                report.suppressed.blocks += standard;
                report.suppressed.bytes += standard;
                held.retain(|held| !STANDARD.contains(&held.what));
            }
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
            report.lines.push(Line { sums, held, names: found });
        }
        report.lines.sort_by_key(|line| std::cmp::Reverse(key(&line.sums)));
        report.changed = names.changed().to_vec();
        report
    }

    /// Returns the sum of all shown stacks.
    pub fn total(&self) -> Sums {
        self.lines.iter().fold(Sums::default(), |mut total, line| {
            total.add(&line.sums);
            total
        })
    }

    /// Writes the first `limit` stacks with `depth` functions each. In an order by what is unreleased, lines at the end
    /// count the stacks without such blocks, and the blocks that the runtime libraries keep.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(&self, limit: usize, depth: usize, choice: &Choice, out: &mut dyn Write) -> Result<()> {
        let is_leaks = choice.is_leaks;
        // Calls that are only counted leave nothing, so all their stacks are listed.
        let is_held = self.lines.iter().any(|line| line.sums.blocks > 0);
        let is_of_held = !is_leaks && is_held && matches!(choice.sort, Sort::Bytes | Sort::Count);
        let (mut lines, mut kept, mut n_gone) = (Vec::new(), Sums::default(), 0);
        for line in &self.lines {
            if is_of_held && line.sums.blocks == 0 && line.sums.failures == 0 {
                n_gone += 1;
            } else if is_of_held && is_suppressed(&line.names, &[]) {
                kept.add(&line.sums);
            } else {
                lines.push(line);
            }
        }
        let write = |out: &mut dyn Write| -> io::Result<()> {
            let counted = |blocks| number(self.resource, blocks);
            let stacks = || lines.iter().take(limit);
            let shown = names_of_stacks(&self.names, stacks().map(|line| line.names.as_slice()), depth);
            for Line { sums, held, names } in stacks() {
                let there = amount(self.resource, sums.bytes, sums.blocks);
                let taken = counted(sums.allocations);
                if is_leaks {
                    writeln!(out, "\n{there} not given back, of {taken} taken:")?;
                } else if sums.allocations == 0 {
                    writeln!(out, "\n{} without an open {}:", closes(sums.failures), one_of(self.resource))?;
                } else {
                    let all = amount(self.resource, sums.allocated, sums.allocations);
                    let there = if sums.blocks == 0 { "nothing".to_owned() } else { there };
                    writeln!(out, "\n{there} still there; {all} taken, {} temporary:", sums.temporary)?;
                }
                if !matches!(self.resource, Resource::Memory | Resource::Thread) {
                    self.write_held(held, sums.blocks, out)?;
                }
                Self::write_names(names, depth, &shown, out)?;
            }
            if lines.len() > limit {
                writeln!(out, "\n{} more stacks; --limit shows more", lines.len() - limit)?;
            }
            if kept.blocks > 0 {
                let amount = amount(self.resource, kept.bytes, kept.blocks);
                writeln!(out, "\n{amount} kept by the runtime libraries; --sort allocated lists them")?;
            }
            if n_gone > 0 {
                let stacks = if n_gone == 1 { "stack" } else { "stacks" };
                writeln!(out, "\n{n_gone} {stacks} with nothing still there; --sort allocated lists them")?;
            }
            Ok(())
        };
        write(out).map_err(Error::Write)
    }

    /// Returns the same stacks as JSON values.
    #[must_use]
    pub fn json(&self, limit: usize, depth: usize) -> Vec<Value> {
        let line = |line: &Line| {
            let mut value = sums_json(&line.sums);
            value["kind"] = self.resource.name().into();
            if !self.resource.has_bytes() {
                value["held"] =
                    line.held.iter().map(|held| json!({ "id": held.what, "detail": held.detail.as_deref() })).collect();
            }
            value["frames"] = Self::json_of_names(&line.names, depth);
            value
        };
        self.lines.iter().take(limit).map(line).collect()
    }

    /// Writes which descriptors are still there, and of what.
    fn write_held(&self, held: &[Held], all: u64, out: &mut dyn Write) -> io::Result<()> {
        let text = |held: &Held| {
            let detail = Shown::new(held.detail.as_deref()?).to_string();
            // Handles are addresses, which say nothing.
            Some(if self.resource == Resource::Library { detail } else { format!("{} ({detail})", held.what) })
        };
        let texts: Vec<String> = held.iter().map(|held| text(held).unwrap_or_else(|| held.what.to_string())).collect();
        match (all as usize).saturating_sub(texts.len()) {
            _ if texts.is_empty() => Ok(()),
            0 => writeln!(out, "    [{}]", texts.join(", ")),
            more => writeln!(out, "    [{}, … {more} more]", texts.join(", ")),
        }
    }

    pub(crate) fn write_names(names: &[Name], depth: usize, shown: &ShownNames, out: &mut dyn Write) -> io::Result<()> {
        if names.is_empty() {
            writeln!(out, "    unknown caller")?;
        }
        for name in of_caller(names, depth) {
            writeln!(out, "    {}", name.line(shown))?;
        }
        let more = of_caller(names, usize::MAX).len().saturating_sub(depth);
        if more > 0 {
            writeln!(out, "    … {more} more")?;
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
        "releases": sums.releases, "blocks": sums.blocks, "bytes": sums.bytes, "failures": sums.failures,
    })
}

impl Account {
    /// Writes the totals, and a note on irregular events.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(&self, recording: &Recording, out: &mut dyn Write) -> Result<()> {
        let write = |out: &mut dyn Write| -> io::Result<()> {
            let Sums { allocations, allocated, temporary, releases, blocks, bytes, failures } = self.total;
            let resource = self.resource;
            let counted = |blocks| number(resource, blocks);
            let taken = if resource.has_bytes() {
                format!("{} taken, {} in all", counted(allocations), Size(allocated))
            } else {
                format!("{} taken", counted(allocations))
            };
            let name = resource.name();
            let indent = " ".repeat(name.len() + 1);
            writeln!(out, "{name}: {taken}; {temporary} temporary")?;
            writeln!(out, "{indent} {} given back", counted(releases))?;
            let at = recording.since_start(self.peak_at.0) as f64 / 1e9;
            let peak = if resource.has_bytes() { Size(self.peak).to_string() } else { counted(self.peak) };
            writeln!(out, "{indent} {peak} at the most, after {at:.3} s")?;
            writeln!(out, "{indent} {} still there", amount(resource, bytes, blocks))?;
            if failures > 0 {
                writeln!(out, "{indent} {} without an open {}", closes(failures), one_of(resource))?;
            }
            let unseen = match resource {
                _ if recording.is_attached() => "opened before the attach",
                Resource::File => "inherited, as stdin is, or opened unseen",
                _ => "opened unseen",
            };
            if recording.is_attached() && self.unknown > 0 && !matches!(resource, Resource::File | Resource::Library) {
                writeln!(out, "{indent} {} given back, taken before the attach", counted(self.unknown))?;
            }
            if matches!(resource, Resource::File | Resource::Library) && self.unknown > 0 {
                writeln!(out, "{indent} {} of {} {unseen}", closes(self.unknown), several_of(resource))?;
            }
            if self.processes.len() > 1 {
                let mut processes: Vec<_> = self.processes.iter().collect();
                processes.sort_by_key(|&(&number, _)| number);
                writeln!(out, "\n  PROCESS      TAKEN      STILL THERE  PROGRAM")?;
                for (number, sums) in processes {
                    let Some(process) = recording.processes().get(number) else { continue };
                    let there =
                        if resource.has_bytes() { Size(sums.bytes).to_string() } else { sums.blocks.to_string() };
                    writeln!(out, "{:9} {:10} {there:>16}  {}", process.pid, sums.allocations, process.program)?;
                }
            }
            Ok(())
        };
        write(out).map_err(Error::Write)
    }

    /// Returns the same totals as a JSON value.
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
        value["attached"] = recording.is_attached().into();
        value["processes"] = processes.into_iter().filter_map(process).collect();
        value
    }
}

fn closes(number: u64) -> String {
    if number == 1 { "1 close".to_owned() } else { format!("{number} closes") }
}

/// True if a stack is not to be shown.
pub(crate) fn is_suppressed(stack: &[Name], patterns: &[Pattern]) -> bool {
    let is_wanted_away = |name: &Name| {
        let matches = |pattern: &Pattern| pattern.matches(&name.function) || pattern.matches(&name.module);
        KEEPING.contains(&name.function.as_str()) || patterns.iter().any(matches)
    };
    // A stack of these alone is their own, as the memory in which C++ makes exceptions when there is no other.
    let is_runtime = |name: &Name| RUNTIMES.contains(&name.module.as_str());
    stack.iter().any(is_wanted_away) || (!stack.is_empty() && stack.iter().all(is_runtime))
}
