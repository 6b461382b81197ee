//! The rows of a table: functions by name, for the last interval or for all, sorted and filtered.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use rftrace_read::{Pattern, PatternError, ShownNames};
use rftrace_tui::text::{clean, count};
use rftrace_views::Duration;

use crate::sums::Sum;
use crate::tick::Tick;

/// The column by which rows are sorted: names ascending, numbers descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// The number of calls.
    Calls,
    /// The time in the function alone.
    #[default]
    Own,
    /// The time in the function and its calls.
    Total,
    /// The mean duration of the calls that ended.
    Average,
    /// The function's name.
    Name,
}

/// A function, or several of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: Arc<str>,
    /// As it may reach a terminal.
    pub(crate) shown: String,
    pub(crate) sum: Sum,
}

/// Sums by name.
#[derive(Clone, Debug, Default)]
struct Sums {
    tick: Tick,
    functions: HashMap<Arc<str>, Sum>,
}

/// All recorded sums, and the choice of rows to show.
#[derive(Debug, Default)]
pub struct Table {
    last: Sums,
    whole: Sums,
    n_ticks: usize,
    sort: Column,
    /// The pattern that was typed in to choose functions, and its meaning; `None` for all.
    chosen: Option<(String, Choice)>,
    /// All since the beginning, instead of the last interval.
    is_whole: bool,
    rows: Vec<Row>,
    names: ShownNames,
}

#[derive(Debug)]
enum Choice {
    /// Names that have this in them.
    Part(String),
    Pattern(Pattern),
}

impl Choice {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Part(part) => name.contains(part.as_str()),
            Self::Pattern(pattern) => pattern.matches(name),
        }
    }
}

/// The widths of the columns: calls, calls a second, then times and a percentage.
const COUNT_WIDTH: usize = 13;
const TIME_WIDTH: usize = 11;
const PERCENT_WIDTH: usize = 8;

impl Table {
    /// Creates an empty table, sorted by a column, which shows `names`.
    #[must_use]
    pub fn new(sort: Column, names: ShownNames) -> Self {
        Self { sort, names, ..Self::default() }
    }

    /// Adds an interval. `name` returns the name of the function at an address. The rows stay the same until
    /// [`update`](Self::update).
    pub fn add(&mut self, tick: Tick, mut name: impl FnMut(u64) -> Arc<str>) {
        self.n_ticks += 1;
        let mut functions: HashMap<Arc<str>, Sum> = HashMap::new();
        for &(address, sum) in &tick.interval.functions {
            let name = name(address);
            *functions.entry(Arc::clone(&name)).or_default() += sum;
            *self.whole.functions.entry(name).or_default() += sum;
        }
        let mut tick = tick;
        // They are in the map.
        tick.interval.functions = Vec::new();
        self.whole.tick.append(tick.clone());
        self.last = Sums { tick, functions };
    }

    /// Updates the rows.
    pub fn update(&mut self) {
        let Self { sort, is_whole, chosen, names, .. } = self;
        let functions = if *is_whole { &self.whole.functions } else { &self.last.functions };
        let is_chosen = |name: &str| chosen.as_ref().is_none_or(|(_, choice)| choice.matches(name));
        let rows = functions.iter().filter(|(name, _)| is_chosen(name));
        let row = |(name, &sum): (&Arc<str>, &Sum)| Row {
            name: Arc::clone(name),
            shown: names.next(&clean(name)).to_owned(),
            sum,
        };
        self.rows = rows.map(row).collect();
        let key = |row: &Row| match sort {
            Column::Calls => row.sum.calls,
            Column::Own => row.sum.own_time,
            Column::Total => row.sum.total_time,
            Column::Average => average(&row.sum).unwrap_or(0),
            Column::Name => 0,
        };
        self.rows.sort_unstable_by(|a, b| Reverse(key(a)).cmp(&Reverse(key(b))).then_with(|| a.name.cmp(&b.name)));
    }

    /// Sorts by a column.
    pub fn sort_by(&mut self, column: Column) {
        self.sort = column;
        self.update();
    }

    /// Shows the sums of all intervals, or of the last one.
    pub fn show_whole(&mut self, is_whole: bool) {
        self.is_whole = is_whole;
        self.update();
    }

    /// Shows only functions whose names match a glob or `/regex/`, or contain a text; an empty text stands for all
    /// functions.
    ///
    /// # Errors
    ///
    /// The pattern is malformed. The shown rows stay the same.
    pub fn choose(&mut self, text: &str) -> Result<(), PatternError> {
        self.chosen = match text.trim() {
            "" => None,
            text if text.contains(['*', '?', '[', '\\']) || text.starts_with('/') => {
                Some((text.to_owned(), Choice::Pattern(Pattern::new(text)?)))
            }
            text => Some((text.to_owned(), Choice::Part(text.to_owned()))),
        };
        self.update();
        Ok(())
    }

    /// Returns the number of added intervals.
    #[must_use]
    pub fn n_ticks(&self) -> usize {
        self.n_ticks
    }

    pub(crate) fn chosen(&self) -> &str {
        self.chosen.as_ref().map_or("", |(text, _)| text)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The tick that is shown: the last interval, or all.
    pub(crate) fn shown(&self) -> &Tick {
        if self.is_whole { &self.whole.tick } else { &self.last.tick }
    }

    /// All since the beginning.
    pub(crate) fn whole(&self) -> &Tick {
        &self.whole.tick
    }

    /// Calls that began in what is shown, of all functions.
    pub(crate) fn n_calls(&self) -> u64 {
        let functions = if self.is_whole { &self.whole.functions } else { &self.last.functions };
        functions.values().map(|sum| sum.calls).sum()
    }

    /// The columns' titles, with a mark at the one that rows are sorted by.
    pub(crate) fn title(&self) -> String {
        let mark = |column, title: &str| format!("{}{title}", if self.sort == column { "\u{25be}" } else { "" });
        format!(
            "{:>COUNT_WIDTH$}{:>COUNT_WIDTH$} {:>TIME_WIDTH$}{:>PERCENT_WIDTH$} {:>TIME_WIDTH$} {:>TIME_WIDTH$}  {}",
            mark(Column::Calls, "Calls"),
            "Calls/s",
            mark(Column::Own, "Self time"),
            "Self %",
            mark(Column::Total, "Total time"),
            mark(Column::Average, "Average"),
            mark(Column::Name, "Function")
        )
    }

    /// A row but for its name.
    pub(crate) fn columns(&self, row: &Row) -> String {
        let Sum { calls, own_time, total_time, .. } = row.sum;
        let nanos = self.shown().interval.nanos;
        format!(
            "{:>COUNT_WIDTH$}{:>COUNT_WIDTH$} {:>TIME_WIDTH$}{:>PERCENT_WIDTH$} {:>TIME_WIDTH$} {:>TIME_WIDTH$}  ",
            count(calls),
            count(a_second(calls, nanos)),
            Duration(own_time).to_string(),
            percent(own_time, nanos),
            Duration(total_time).to_string(),
            average(&row.sum).map_or("-".to_owned(), |nanos| Duration(nanos).to_string()),
        )
    }
}

/// How long the calls took that ended.
fn average(sum: &Sum) -> Option<u64> {
    sum.ended_time.checked_div(sum.ended)
}

/// So many in a time, in a second.
pub(crate) fn a_second(number: u64, nanos: u64) -> u64 {
    let nanos = u128::from(nanos.max(1));
    ((u128::from(number) * 1_000_000_000 + nanos / 2) / nanos) as u64
}

/// A share, as `12.3`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let thousandths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{}", thousandths / 10, thousandths % 10)
}
