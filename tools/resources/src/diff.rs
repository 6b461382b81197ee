//! The difference between two recordings of a resource. Stacks with the same functions are the same.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use rftrace_format::resources::Resource;
use rftrace_read::{Error, Result, ShownNames};
use serde_json::{Value, json};

use crate::account::{Account, Sums};
use crate::names::{Name, names_of_stacks};
use crate::report::{Report, Sort};
use crate::words::{Size, one_of, several_of};

/// The difference between two programs, or between two runs of one.
#[derive(Debug)]
pub struct Difference {
    resource: Resource,
    total: Change,
    /// Of the most bytes that were there at a time.
    peak: i128,
    /// Stacks that are different, the greatest difference first.
    stacks: Vec<(Change, Vec<Name>)>,
    /// The names of a new text.
    names: ShownNames,
}

/// A difference of sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Change {
    allocations: i128,
    allocated: i128,
    temporary: i128,
    releases: i128,
    blocks: i128,
    bytes: i128,
    failures: i128,
}

impl Change {
    fn of(sums: &Sums, sign: i128) -> Self {
        let Sums { allocations, allocated, temporary, releases, blocks, bytes, failures } = *sums;
        let of = |number: u64| sign * i128::from(number);
        Self {
            allocations: of(allocations),
            allocated: of(allocated),
            temporary: of(temporary),
            releases: of(releases),
            blocks: of(blocks),
            bytes: of(bytes),
            failures: of(failures),
        }
    }

    fn add(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.allocated += other.allocated;
        self.temporary += other.temporary;
        self.releases += other.releases;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.failures += other.failures;
    }

    fn json(&self) -> Value {
        let number = |number: i128| i64::try_from(number).map_or(Value::Null, Value::from);
        json!({
            "allocations": number(self.allocations), "allocated_bytes": number(self.allocated),
            "temporary": number(self.temporary), "releases": number(self.releases), "blocks": number(self.blocks),
            "bytes": number(self.bytes), "failures": number(self.failures),
        })
    }
}

impl Difference {
    /// Computes by how much `new` exceeds `old`. The reports must have all stacks. Source lines do not count, as they
    /// change with each build.
    #[must_use]
    pub fn of((old, old_report): (&Account, &Report), (new, new_report): (&Account, &Report), sort: Sort) -> Self {
        /// By functions and modules.
        type Changes<'a> = HashMap<Vec<(&'a str, &'a str)>, (Change, &'a [Name])>;

        let mut changes = Changes::new();
        let mut total = Change::default();
        for (account, report, sign) in [(old, old_report, -1), (new, new_report, 1)] {
            total.add(Change::of(&account.total, sign));
            for line in &report.lines {
                let key = line.names.iter().map(|name| (name.function.as_str(), name.module.as_str())).collect();
                let (change, names) = changes.entry(key).or_default();
                change.add(Change::of(&line.sums, sign));
                *names = &line.names;
            }
        }
        let mut stacks: Vec<(Change, Vec<Name>)> = changes
            .into_values()
            .filter(|(change, _)| *change != Change::default())
            .map(|(change, names)| (change, names.to_vec()))
            .collect();
        let key = |change: &Change| match sort {
            Sort::Bytes => (change.bytes, change.allocated),
            Sort::Count => (change.blocks, change.allocations),
            Sort::Allocated => (change.allocated, change.allocations),
            Sort::Temporary => (change.temporary, change.allocated),
        };
        let function = |names: &[Name]| names.first().map(|name| name.function.clone());
        stacks.sort_by_cached_key(|(change, names)| {
            let (first, second) = key(change);
            (Reverse((first.abs(), second.abs())), function(names))
        });
        let (peak, names) = (i128::from(new.peak) - i128::from(old.peak), new_report.names.clone());
        Self { resource: new.resource, total, peak, stacks, names }
    }

    /// Writes the totals, and the first `limit` stacks with `depth` functions each.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(&self, limit: usize, depth: usize, out: &mut dyn Write) -> Result<()> {
        let write = |out: &mut dyn Write| -> io::Result<()> {
            let Change { allocations, allocated, releases, blocks, bytes, temporary, failures } = self.total;
            let counted = |blocks| number(self.resource, blocks);
            let has_bytes = self.resource.has_bytes();
            let there = |bytes, blocks| {
                if has_bytes { format!("{} in {}", size(bytes), counted(blocks)) } else { counted(blocks) }
            };
            let taken = if has_bytes { format!(", {} in all", size(allocated)) } else { String::new() };
            let name = self.resource.name();
            let indent = " ".repeat(name.len() + 1);
            writeln!(out, "{name}: {} taken{taken}; {temporary:+} temporary", counted(allocations))?;
            writeln!(out, "{indent} {} given back", counted(releases))?;
            writeln!(out, "{indent} {} at the most", if has_bytes { size(self.peak) } else { counted(self.peak) })?;
            writeln!(out, "{indent} {} still there", there(bytes, blocks))?;
            if failures != 0 {
                writeln!(out, "{indent} {failures:+} closes without an open {}", one_of(self.resource))?;
            }
            let stacks = || self.stacks.iter().take(limit);
            let shown = names_of_stacks(&self.names, stacks().map(|(_, names)| names.as_slice()), depth);
            for (change, names) in stacks() {
                let (is, all) = (there(change.bytes, change.blocks), there(change.allocated, change.allocations));
                writeln!(out, "\n{is} still there; {all} taken, {:+} temporary:", change.temporary)?;
                Report::write_names(names, depth, &shown, out)?;
            }
            if self.stacks.len() > limit {
                writeln!(out, "\n{} more stacks are different; --limit shows more", self.stacks.len() - limit)?;
            }
            Ok(())
        };
        write(out).map_err(Error::Write)
    }

    /// Returns the same as JSON values: the totals, and the stacks.
    #[must_use]
    pub fn json(&self, limit: usize, depth: usize) -> (Value, Vec<Value>) {
        let mut total = self.total.json();
        total["peak_bytes"] = i64::try_from(self.peak).map_or(Value::Null, Value::from);
        let stacks = self.stacks.iter().take(limit).map(|(change, names)| {
            let mut value = change.json();
            value["kind"] = self.resource.name().into();
            value["frames"] = Report::json_of_names(names, depth);
            value
        });
        (total, stacks.collect())
    }
}

fn size(bytes: i128) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", Size(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}

fn number(resource: Resource, blocks: i128) -> String {
    let things = if blocks.abs() == 1 { one_of(resource).to_owned() } else { several_of(resource) };
    format!("{blocks:+} {things}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Line;

    fn name(function: &str, line: u32) -> Name {
        Name { function: function.into(), place: Some(("a.c".into(), line)), is_inlined: false, module: "a".into() }
    }

    fn taken(stacks: &[(u64, &str, u32)]) -> (Account, Report) {
        let sums = |bytes| Sums { allocations: 1, allocated: bytes, blocks: 1, bytes, ..Sums::default() };
        let lines: Vec<Line> = stacks
            .iter()
            .map(|&(bytes, function, line)| Line {
                sums: sums(bytes),
                held: Vec::new(),
                names: vec![name(function, line)],
            })
            .collect();
        let bytes = stacks.iter().map(|stack| stack.0).sum();
        let total = Sums { allocations: lines.len() as u64, allocated: bytes, bytes, ..Sums::default() };
        let account = Account { total, peak: bytes, ..Account::empty(Resource::Memory) };
        let resource = Resource::Memory;
        let (suppressed, names) = (Sums::default(), ShownNames::default());
        (account, Report { resource, lines, suppressed, changed: Vec::new(), names })
    }

    #[test]
    fn stacks_are_the_same_by_their_functions() {
        let old = taken(&[(10, "same", 1), (20, "less", 2), (5, "gone", 3)]);
        let new = taken(&[(10, "same", 7), (12, "less", 2), (100, "more", 4), (1, "more", 5)]);
        let change = Difference::of((&old.0, &old.1), (&new.0, &new.1), Sort::Bytes);
        let found: Vec<(i128, &str)> =
            change.stacks.iter().map(|(change, names)| (change.bytes, names[0].function.as_str())).collect();
        assert_eq!(found, [(101, "more"), (-8, "less"), (-5, "gone")]);
        assert_eq!((change.total.bytes, change.total.allocations, change.peak), (88, 1, 88));
        let mut text = Vec::new();
        change.write(1, 1, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("\n+101 bytes in +2 blocks still there; ") && text.contains("\n    more  a.c:5\n"),
            "{text}"
        );
        assert!(text.ends_with("\n2 more stacks are different; --limit shows more\n"), "{text}");
        assert_eq!(change.json(2, 1).1[1]["bytes"], -8);
    }
}
