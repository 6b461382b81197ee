//! The comparison of two versions of a program, by one or more runs of each.
//!
//! Rows are functions, or call paths. Each has its values in every run. The difference is that of the medians, and
//! several runs show its certainty.
//!
//! Not here: the columns (`table`), and the test of differences (`confidence`).

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{self, Write};

use rftrace_read::{Error, Result, ShownNames};

use crate::confidence::MannWhitney;
use crate::duration::Duration;
use crate::graph::{Graph, GraphNode};
use crate::keys::{Key, Keys, Last};
use crate::report::Report;
use crate::rows::{Row, is_function};
use crate::table::Field;

/// A difference of several runs counts if its probability by chance is less.
const LEVEL: f64 = 0.05;

/// The number of functions of a path in its label: the last ones.
const LABEL_DEPTH: usize = 6;

/// The number of functions named in a line below the table.
const NAMED: usize = 10;

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The version to compare with.
    Before,
    /// The changed version.
    After,
}

/// A comparison of functions, or of call paths.
#[derive(Debug)]
pub struct Difference {
    fields: Vec<Field>,
    n_runs: [usize; 2],
    /// The functions, or the paths.
    keys: Keys,
    /// For each key and side: the values of all fields, run by run. It ends with the key's last run.
    values: Vec<[Vec<Value>; 2]>,
    /// Of each run of a side.
    times: [Vec<Times>; 2],
    /// The keys in the order of the table.
    order: Vec<u32>,
    /// Keys of calls with values.
    with_values: HashSet<u32>,
    /// The names of the table.
    names: ShownNames,
    /// For these numbers of runs, if there are several.
    test: Option<MannWhitney>,
}

/// A value of a row.
#[derive(Debug, Clone, Copy, Default)]
struct Value {
    value: u64,
    /// Its largest error by the correction.
    unsure: u64,
}

/// The times of a run.
#[derive(Debug)]
struct Times {
    wall_ns: u64,
    cpu_ns: Option<u64>,
}

/// A row of a comparison: a function, or a call path.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'d> {
    difference: &'d Difference,
    key: u32,
}

impl Difference {
    /// Begins a comparison of these columns.
    pub fn new(fields: &[Field]) -> Self {
        let (keys, values, order) = (Keys::default(), Vec::new(), Vec::new());
        // Other numbers of calls are told in any case.
        let fields = [fields, &[Field::Calls]].concat();
        Self {
            fields,
            n_runs: [0; 2],
            keys,
            values,
            times: Default::default(),
            order,
            with_values: HashSet::new(),
            names: ShownNames::new(true),
            test: None,
        }
    }

    /// Adds a run, with a row for each function. Rows with the same label belong together.
    pub fn add_report(&mut self, side: Side, report: &Report) {
        let all_self_ns = report.self_ns();
        for row in report.rows() {
            let key = self.keys.number(None, Last::Called { name: &row.label(), addr: 0 });
            if row.values.is_some() {
                self.with_values.insert(key);
            }
            self.add(side, key, row, all_self_ns);
        }
        self.end_run(side, report);
    }

    /// Adds a run, with a row for each call path of the program's graph. The report is that of the same trace.
    pub fn add_graph(&mut self, side: Side, graph: &Graph, report: &Report) {
        let all_self_ns = report.self_ns();
        let called = |number: usize, around| graph.node(number).children.iter().map(move |&child| (child, around));
        let mut rest: Vec<(usize, Option<u32>)> = called(0, None).collect();
        while let Some((number, around)) = rest.pop() {
            let node = graph.node(number);
            let key = self.keys.number(around, Last::Called { name: node.name, addr: 0 });
            let GraphNode { total_ns, self_ns, calls, unsure, .. } = node;
            let name = node.name.to_owned();
            self.add(side, key, &Row { name, total_ns, self_ns, calls, unsure, ..Row::default() }, all_self_ns);
            rest.extend(called(number, Some(key)));
        }
        self.end_run(side, report);
    }

    fn end_run(&mut self, side: Side, report: &Report) {
        self.times[side as usize].push(Times { wall_ns: report.wall_ns(), cpu_ns: report.cpu_ns() });
        self.n_runs[side as usize] += 1;
    }

    fn add(&mut self, side: Side, key: u32, row: &Row, all_self_ns: u128) {
        if self.values.len() == key as usize {
            self.values.push(Default::default());
            self.order.push(key);
        }
        let values = &mut self.values[key as usize][side as usize];
        values.resize(self.n_runs[side as usize] * self.fields.len(), Value::default());
        let of_field =
            |field: &Field| Value { value: field.value(row, all_self_ns), unsure: field.unsure(row, all_self_ns) };
        values.extend(self.fields.iter().map(of_field));
    }

    /// Sets the displayed names of functions. Calls with values have full ones.
    pub fn show_names(&mut self, mut names: ShownNames) {
        let functions = self.rows().filter(|row| !self.with_values.contains(&row.key));
        names.add_all(functions.map(Compared::name));
        self.names = names;
    }

    /// Sorts the rows: the largest differences in these columns first, in either direction. Those that [count](Compared::counts) in the
    /// first column come before the others. Times without a processor come last.
    pub fn sort(&mut self, by: &[Field]) {
        self.test = (self.n_runs.iter().sum::<usize>() > 2).then(|| MannWhitney::new(self.n_runs));
        let mut order = std::mem::take(&mut self.order);
        order.sort_by_cached_key(|&key| {
            let row = Compared { difference: self, key };
            let changes: Vec<_> = by.iter().map(|&field| Reverse(row.change(field).unsigned_abs())).collect();
            (!is_function(row.name()), by.first().is_some_and(|&field| !row.counts(field)), changes, row.name())
        });
        self.order = order;
    }

    /// Returns the verdict, such as `Wall 488.040 ms → 88.947 ms (-81.8%), CPU 485.557 ms → 55.612 ms (-88.5%)`: medians of the runs.
    /// Processor time is left out, if it is not known of all.
    pub fn verdict(&self) -> String {
        let medians = |ns: fn(&Times) -> Option<u64>| {
            let of_side = |times: &Vec<Times>| Some(median(times.iter().map(ns).collect::<Option<_>>()?));
            let [before, after] = &self.times;
            Some((of_side(before)?, of_side(after)?))
        };
        let part = |word: &str, (before, after): (u64, u64)| {
            let change = Field::Total.shown_ratio(before, after);
            let change = if change.is_empty() { change } else { format!(" ({change})") };
            format!("{word} {} → {}{change}", Duration(before).text(), Duration(after).text())
        };
        let wall = medians(|times| Some(times.wall_ns)).map(|both| part("Wall", both));
        let cpu = medians(|times| times.cpu_ns).map(|both| part("CPU", both));
        wall.into_iter().chain(cpu).collect::<Vec<_>>().join(", ")
    }

    /// Returns the rows in their order.
    pub fn rows(&self) -> impl Iterator<Item = Compared<'_>> {
        self.order.iter().map(|&key| Compared { difference: self, key })
    }

    /// Writes a table of the differences alone, at most `limit` lines.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write_changes(&self, fields: &[Field], limit: usize, out: &mut dyn Write) -> Result<()> {
        let headings = fields.iter().map(|field| format!("{:>12}", field.title())).collect();
        let cells = |row: Compared<'_>| fields.iter().map(|&field| field.shown_change(row.change(field))).collect();
        self.write_table(headings, cells, limit, out).map_err(Error::Write)
    }

    /// Writes a table of the values before and after, at most `limit` lines, and notes on all rows.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&self, fields: &[Field], limit: usize, out: &mut dyn Write) -> Result<()> {
        let mut write = || {
            let cells = |row: Compared<'_>| row.cells(fields);
            self.write_table(self.headings(fields), cells, limit, out)?;
            let notes = self.notes(limit);
            if !notes.is_empty() {
                writeln!(out)?;
            }
            notes.iter().try_for_each(|note| writeln!(out, "  {note}"))
        };
        write().map_err(Error::Write)
    }

    fn write_table(
        &self,
        headings: Vec<String>,
        cells: impl Fn(Compared<'_>) -> Vec<String>,
        limit: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let lines: Vec<String> = headings.iter().map(|heading| "=".repeat(heading.chars().count())).collect();
        writeln!(out, "  {}  {}", headings.join("  "), self.subject())?;
        writeln!(out, "  {}  ====================", lines.join("  "))?;
        for row in self.rows().take(limit) {
            writeln!(out, "  {}  {}{}", cells(row).join("  "), row.label(), row.note())?;
        }
        Ok(())
    }

    /// Returns the heading of rows: they are functions, or paths.
    pub fn subject(&self) -> &'static str {
        let has_paths = self.keys.all().iter().any(|key| key.around.is_some());
        if has_paths { "Path" } else { "Function" }
    }

    /// Returns the headings of [`Compared::cells`], as wide as these.
    pub fn headings(&self, fields: &[Field]) -> Vec<String> {
        let of_field = |field: &Field| {
            let change = format!("{:>10}", "change");
            let p = self.test.is_some().then(|| format!("{:>6}", "p"));
            [format!("{:>10}", field.title()), format!("{:>10}", "after"), change].into_iter().chain(p)
        };
        fields.iter().flat_map(of_field).collect()
    }

    /// Returns a sentence on the confidence of the differences.
    pub fn confidence(&self) -> String {
        let [before, after] = self.n_runs;
        let Some(test) = &self.test else {
            return "one run each: differences of times may be chance; several runs tell: A B A2 B2 …".to_owned();
        };
        let runs = format!("medians of {before} and {after} runs");
        if test.least() >= LEVEL {
            return format!("{runs}, which are too few: p cannot be less than {:.2}; 4 each are enough", test.least());
        }
        format!("{runs}; p: probability of such a difference by chance (Mann-Whitney); ~: p is at least {LEVEL}")
    }

    /// Returns sentences on all rows: differences of the correction, other numbers of calls, new and vanished functions, and rows beyond
    /// `limit`.
    pub fn notes(&self, limit: usize) -> Vec<String> {
        let left_out = self.order.len().saturating_sub(limit);
        let is_unsure = |row: Compared<'_>| self.fields.iter().any(|&field| row.is_unsure(field));
        let corrected = "~: no larger than the possible error of the times, which are less the time for tracing";
        [
            self.rows().take(limit).any(is_unsure).then(|| corrected.to_owned()),
            self.named("Other numbers of calls", |row| row.has_other_calls(), |row| row.with_calls()),
            self.named("New", |row| row.is_new(), |row| row.label()),
            self.named("Gone", |row| row.is_gone(), |row| row.label()),
            self.named("Not as often in each run", |row| row.varies(), |row| row.label()),
            (left_out > 0).then(|| format!("{left_out} more rows: --limit")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// A line with some of the rows, if there are such.
    fn named(
        &self,
        title: &str,
        is_wanted: impl Fn(&Compared<'_>) -> bool,
        text: impl Fn(Compared<'_>) -> String,
    ) -> Option<String> {
        let mut wanted = self.rows().filter(is_wanted);
        let texts: Vec<String> = wanted.by_ref().take(NAMED).map(text).collect();
        let n_more = wanted.count();
        let more = if n_more > 0 { format!(", and {n_more} others") } else { String::new() };
        (!texts.is_empty()).then(|| format!("{title}: {}{more}", texts.join(", ")))
    }
}

impl<'d> Compared<'d> {
    fn keys(self) -> impl Iterator<Item = &'d Key> {
        let all = self.difference.keys.all();
        std::iter::successors(all.get(self.key as usize), |key| all.get(key.around? as usize))
    }

    fn name_of(self, key: &Key) -> &'d str {
        match self.difference.keys.last(key) {
            Last::Called { name, .. } => name,
            Last::OffCpu(kind) => kind.name(),
            Last::Assumed => "",
        }
    }

    /// Returns the name of the function, the last one of a path.
    pub fn name(self) -> &'d str {
        self.keys().next().map_or("", |key| self.name_of(key))
    }

    /// Returns the functions of a path, outermost first; of a function it alone.
    pub fn names(self) -> Vec<&'d str> {
        let mut names: Vec<_> = self.keys().map(|key| self.name_of(key)).collect();
        names.reverse();
        names
    }

    /// Returns the function, or the end of the path, as text with [shown](Difference::show_names) names.
    pub fn label(self) -> String {
        let shown = |key| self.difference.names.get(self.name_of(key));
        let mut names: Vec<_> = self.keys().take(LABEL_DEPTH + 1).map(shown).collect();
        if let Some(first) = names.get_mut(LABEL_DEPTH) {
            *first = "…";
        }
        names.reverse();
        names.join(" → ")
    }

    /// Returns true if only the version after the change has it.
    pub fn is_new(self) -> bool {
        self.all_values(Side::Before).is_empty()
    }

    /// Returns true if only the version before the change has it.
    pub fn is_gone(self) -> bool {
        self.all_values(Side::After).is_empty()
    }

    /// Returns the mark of a row without one side.
    pub fn note(self) -> &'static str {
        match (self.is_new(), self.is_gone()) {
            (true, _) => "  (new)",
            (_, true) => "  (gone)",
            _ => "",
        }
    }

    fn all_values(self, side: Side) -> &'d [Value] {
        &self.difference.values[self.key as usize][side as usize]
    }

    /// Returns the value of a compared column in each run.
    pub fn values(self, side: Side, field: Field) -> Vec<u64> {
        self.of_runs(side, field).map(|value| value.value).collect()
    }

    fn of_runs(self, side: Side, field: Field) -> impl Iterator<Item = Value> {
        let fields = &self.difference.fields;
        let place = fields.iter().position(|other| *other == field);
        let value = move |run: usize| self.all_values(side).get(run * fields.len() + place?).copied();
        (0..self.difference.n_runs[side as usize]).map(move |run| value(run).unwrap_or_default())
    }

    /// Returns the median of all runs of a side; of an even number of runs, the mean of the middle two.
    pub fn median(self, side: Side, field: Field) -> u64 {
        median(self.values(side, field))
    }

    /// Returns how much larger the median became.
    pub fn change(self, field: Field) -> i128 {
        i128::from(self.median(Side::After, field)) - i128::from(self.median(Side::Before, field))
    }

    /// Returns the probability of such a difference between equal sides, by the test of Mann and Whitney; `None` for
    /// one run on each side, and for equal values in all runs of a side.
    pub fn p(self, field: Field) -> Option<f64> {
        let [before, after] = [Side::Before, Side::After].map(|side| self.values(side, field));
        let is_exact = [&before, &after].into_iter().all(|values| is_constant(values));
        self.difference.test.as_ref().filter(|_| !is_exact).map(|test| test.p(&before, &after))
    }

    /// Returns true if a difference is more than chance: its probability is less than 0.05, or there is nothing to tell it by. And it is
    /// more than the [correction](rftrace_read::Trace::correct_times) may be wrong by.
    pub fn counts(self, field: Field) -> bool {
        self.p(field).is_none_or(|p| p < LEVEL) && !self.is_unsure(field)
    }

    /// True for a difference that the correction alone may make.
    fn is_unsure(self, field: Field) -> bool {
        let unsure = |side| median(self.of_runs(side, field).map(|value| value.unsure).collect());
        let change = self.change(field).unsigned_abs();
        change > 0 && change <= u128::from(unsure(Side::Before)) + u128::from(unsure(Side::After))
    }

    /// Returns true if its number of calls is not the same in all runs of a side.
    pub fn varies(self) -> bool {
        [Side::Before, Side::After].into_iter().any(|side| !is_constant(&self.values(side, Field::Calls)))
    }

    /// True for a function of both sides with other numbers of calls.
    fn has_other_calls(self) -> bool {
        !self.is_new() && !self.is_gone() && !self.varies() && self.change(Field::Calls) != 0
    }

    fn with_calls(self) -> String {
        let [before, after] = [Side::Before, Side::After].map(|side| self.median(side, Field::Calls));
        format!("{} {before} → {after}", self.label())
    }

    /// Returns the columns of a table: of each field the values before and after, the change, and for several runs its probability.
    pub fn cells(self, fields: &[Field]) -> Vec<String> {
        let of_field = |&field: &Field| {
            let [before, after] = [Side::Before, Side::After].map(|side| self.median(side, field));
            let change = if self.counts(field) { field.shown_ratio(before, after) } else { "~".to_owned() };
            let p = self.difference.test.is_some().then(|| match self.p(field) {
                Some(p) if p < 0.001 => "<0.001".to_owned(),
                Some(p) => format!("{p:6.3}"),
                None => format!("{:>6}", "same"),
            });
            [field.shown(before), field.shown(after), format!("{change:>10}")].into_iter().chain(p)
        };
        fields.iter().flat_map(of_field).collect()
    }
}

/// The median of values; of an even number of them, the mean of the middle two.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values.get(middle.saturating_sub(1)..=middle) {
        Some(&[below, above]) if values.len().is_multiple_of(2) => below.midpoint(above),
        _ => values.get(middle).copied().unwrap_or(0),
    }
}

fn is_constant(values: &[u64]) -> bool {
    values.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::Unsure;

    const FIELDS: [Field; 2] = [Field::Own, Field::Calls];

    /// Adds a run of functions with these own times and calls.
    fn add(difference: &mut Difference, side: Side, rows: &[(&str, u64, u64)]) {
        for &(name, self_ns, calls) in rows {
            let key = difference.keys.number(None, Last::Called { name, addr: 0 });
            difference.add(side, key, &Row { self_ns, calls, ..Row::default() }, 0);
        }
        difference.n_runs[side as usize] += 1;
    }

    fn names(difference: &Difference) -> Vec<&str> {
        difference.rows().map(Compared::name).collect()
    }

    #[test]
    fn what_is_certain_comes_first_and_the_largest_difference_of_that() {
        let mut difference = Difference::new(&FIELDS);
        for run in 0..5 {
            let noise = run * 1_000;
            add(
                &mut difference,
                Side::Before,
                &[("steady", 100, 1), ("fast", 900 + run, 1), ("noisy", 9_000 - noise, 1)],
            );
            add(
                &mut difference,
                Side::After,
                &[("steady", 160, 1), ("fast", 500 + run, 1), ("noisy", 5_500 + noise, 1)],
            );
        }
        difference.sort(&[Field::Own]);
        assert_eq!(names(&difference), ["fast", "steady", "noisy"]);
        let row = |name: &str| difference.rows().find(|row| row.name() == name).unwrap();
        assert_eq!((row("fast").change(Field::Own), row("fast").counts(Field::Own)), (-400, true));
        assert_eq!((row("noisy").change(Field::Own), row("noisy").counts(Field::Own)), (500, false));
        assert_eq!((row("steady").p(Field::Own), row("steady").counts(Field::Own)), (None, true), "no run differs");
        let cells = row("noisy").cells(&FIELDS).concat();
        assert!(cells.contains('~') && cells.ends_with("  same"), "{cells}");
    }

    #[test]
    fn what_the_correction_may_have_made_is_marked_and_comes_last() {
        let mut difference = Difference::new(&FIELDS);
        for (side, self_ns) in [(Side::Before, 1_000), (Side::After, 4_000)] {
            for (name, self_ns, own_ns) in
                [("short", self_ns, 1_500), ("longer", self_ns, 1_499), ("long", self_ns / 2, 9)]
            {
                let key = difference.keys.number(None, Last::Called { name, addr: 0 });
                let unsure = Unsure { total_ns: 0, own_ns };
                difference.add(side, key, &Row { self_ns, calls: 7, unsure, ..Row::default() }, 0);
            }
            difference.n_runs[side as usize] += 1;
        }
        difference.sort(&[Field::Own]);
        assert_eq!(names(&difference), ["longer", "long", "short"]);
        let cells: Vec<_> = difference.rows().map(|row| row.cells(&FIELDS)[2].trim().to_owned()).collect();
        assert_eq!(cells, ["+300.0%", "+300.0%", "~"]);
        assert!(difference.notes(3)[0].starts_with("~: no larger than"), "{:?}", difference.notes(3));
        assert_eq!(difference.notes(2), ["1 more rows: --limit"], "of what is shown");
    }

    #[test]
    fn verdicts() {
        let verdict = |runs: [&[(u64, Option<u64>)]; 2]| {
            let mut difference = Difference::new(&FIELDS);
            let times = |&(wall_ns, cpu_ns): &(u64, Option<u64>)| Times { wall_ns, cpu_ns };
            difference.times = runs.map(|runs| runs.iter().map(times).collect());
            difference.verdict()
        };
        let before = [(8_000, Some(6_000))];
        let both = "Wall 8.000 us → 2.000 us (-75.0%), CPU 6.000 us → 6.000 us";
        assert_eq!(verdict([&before, &[(2_000, Some(6_000))]]), both);
        let after = [(1_000, Some(1)), (9_000, None), (4_000, Some(1))];
        assert_eq!(verdict([&before, &after]), "Wall 8.000 us → 4.000 us (-50.0%)", "not known of all");
    }

    #[test]
    fn medians_of_all_runs() {
        let mut difference = Difference::new(&FIELDS);
        for self_ns in [10, 1_000, 20, 40] {
            add(&mut difference, Side::Before, &[("f", self_ns, 1)]);
        }
        // A run without it is a run.
        for rows in [&[("f", 7, 1)][..], &[], &[("f", 9, 1)]] {
            add(&mut difference, Side::After, rows);
        }
        difference.sort(&[Field::Own]);
        let row = difference.rows().next().unwrap();
        assert_eq!((row.median(Side::Before, Field::Own), row.median(Side::After, Field::Own)), (30, 7));
        assert_eq!(row.values(Side::After, Field::Own), [7, 0, 9]);
        assert_eq!(row.values(Side::After, Field::Total), [0; 3], "no such column is compared");
        assert!(row.varies() && !row.is_new() && !row.is_gone());
    }

    #[test]
    fn notes_name_functions_with_other_calls() {
        let mut difference = Difference::new(&[Field::Own]);
        add(&mut difference, Side::Before, &[("same", 1, 5), ("more", 1, 5), ("gone", 1, 5)]);
        add(&mut difference, Side::After, &[("same", 9, 5), ("more", 1, 7), ("new", 1, 5)]);
        difference.sort(&[Field::Own]);
        assert_eq!(difference.notes(4), ["Other numbers of calls: more 5 → 7", "New: new", "Gone: gone"]);
        assert_eq!(difference.notes(1).last().unwrap(), "3 more rows: --limit");
        assert!(difference.confidence().contains("may be chance"), "{}", difference.confidence());
        // They are in the summary only where they are the same in all runs.
        add(&mut difference, Side::After, &[("same", 9, 5), ("more", 1, 8), ("new", 1, 5)]);
        difference.sort(&[Field::Own]);
        assert_eq!(difference.notes(4), ["New: new", "Gone: gone", "Not as often in each run: more"]);
        assert!(difference.confidence().contains("too few"), "{}", difference.confidence());
        let names = (0..13).map(|number| format!("f{number:02}")).collect::<Vec<_>>();
        let rows: Vec<_> = names.iter().map(|name| (name.as_str(), 1, 1)).collect();
        add(&mut difference, Side::After, &rows);
        difference.sort(&[Field::Own]);
        assert!(difference.notes(99)[0].ends_with(", and 4 others"), "{:?}", difference.notes(99));
    }

    #[test]
    fn labels_of_paths_have_their_ends() {
        let mut difference = Difference::new(&FIELDS);
        let mut around = None;
        for name in ["main", "a", "b", "c", "d", "e", "f"] {
            around = Some(difference.keys.number(around, Last::Called { name, addr: 0 }));
            difference.add(Side::Before, around.unwrap(), &Row { self_ns: 1, ..Row::default() }, 0);
        }
        difference.n_runs = [1, 1];
        let labels: Vec<_> = difference.rows().map(Compared::label).collect();
        assert_eq!(labels[..2], ["main", "main → a"]);
        assert_eq!(labels[5..], ["main → a → b → c → d → e", "… → a → b → c → d → e → f"]);
        assert_eq!(difference.rows().last().unwrap().names(), ["main", "a", "b", "c", "d", "e", "f"]);
        assert_eq!(difference.subject(), "Path");
    }
}
