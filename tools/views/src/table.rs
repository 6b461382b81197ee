//! Reports as tables, and their columns.
//!
//! Not here: the comparison with other reports (`difference`).

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use rftrace_read::{CallCost, Error, Result, ShownNames};

use crate::correction::Unsure;
use crate::duration::Duration;
use crate::report::Report;
use crate::rows::{CallTimes, Row};
use crate::words::{count, tenths};

/// A column of a report, by uftrace's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// [`Row::total_ns`].
    Total,
    /// The mean of [`CallTimes::total`].
    TotalAvg,
    /// The minimum of [`CallTimes::total`].
    TotalMin,
    /// The maximum of [`CallTimes::total`].
    TotalMax,
    /// The median of [`CallTimes::total`]: half of the calls take no longer.
    TotalP50,
    /// The 99th percentile of [`CallTimes::total`]: 99 of 100 calls take no longer.
    TotalP99,
    /// [`Row::self_ns`].
    Own,
    /// The mean of [`CallTimes::own`].
    OwnAvg,
    /// The minimum of [`CallTimes::own`].
    OwnMin,
    /// The maximum of [`CallTimes::own`].
    OwnMax,
    /// A function's share of all functions' own time, in hundredths of a percent: times without a processor have none.
    Percent,
    /// [`Row::calls`].
    Calls,
}

impl Field {
    /// All columns, in the order of a table with all of them.
    pub const ALL: [Self; 12] = [
        Self::Total,
        Self::TotalAvg,
        Self::TotalMin,
        Self::TotalMax,
        Self::TotalP50,
        Self::TotalP99,
        Self::Own,
        Self::OwnAvg,
        Self::OwnMin,
        Self::OwnMax,
        Self::Percent,
        Self::Calls,
    ];

    /// The default columns.
    pub const USUAL: [Self; 3] = [Self::Total, Self::Own, Self::Calls];

    /// Returns the column's name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::TotalAvg => "total-avg",
            Self::TotalMin => "total-min",
            Self::TotalMax => "total-max",
            Self::TotalP50 => "total-p50",
            Self::TotalP99 => "total-p99",
            Self::Own => "self",
            Self::OwnAvg => "self-avg",
            Self::OwnMin => "self-min",
            Self::OwnMax => "self-max",
            Self::Percent => "percent",
            Self::Calls => "call",
        }
    }

    /// Returns the column's heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Total => "Total time",
            Self::TotalAvg => "Total avg",
            Self::TotalMin => "Total min",
            Self::TotalMax => "Total max",
            Self::TotalP50 => "Total p50",
            Self::TotalP99 => "Total p99",
            Self::Own => "Self time",
            Self::OwnAvg => "Self avg",
            Self::OwnMin => "Self min",
            Self::OwnMax => "Self max",
            Self::Percent => "Self %",
            Self::Calls => "Calls",
        }
    }

    /// Returns true if the column needs [`Report::read_spread`].
    pub fn needs_spread(self) -> bool {
        !matches!(self, Self::Total | Self::Own | Self::Percent | Self::Calls)
    }

    /// Returns the column's value in a row: nanoseconds, calls, or hundredths of a percent of [`Report::self_ns`].
    pub fn value(self, row: &Row, all_self_ns: u128) -> u64 {
        let times = |value: fn(&CallTimes) -> u64| row.times.as_deref().map_or(0, value);
        match self {
            Self::Total => row.total_ns,
            Self::TotalAvg => times(|times| times.total.average_ns()),
            Self::TotalMin => times(|times| times.total.min_ns()),
            Self::TotalMax => times(|times| times.total.max_ns()),
            Self::TotalP50 => times(|times| times.total.percentile_ns(50)),
            Self::TotalP99 => times(|times| times.total.percentile_ns(99)),
            Self::Own => row.self_ns,
            Self::OwnAvg => times(|times| times.own.average_ns()),
            Self::OwnMin => times(|times| times.own.min_ns()),
            Self::OwnMax => times(|times| times.own.max_ns()),
            Self::Percent if !row.is_function() => 0,
            Self::Percent => share(row.self_ns, all_self_ns),
            Self::Calls => row.calls,
        }
    }

    /// The largest error of the value, as far as the [correction](rftrace_read::Trace::correct_times) makes it.
    pub(crate) fn unsure(self, row: &Row, all_self_ns: u128) -> u64 {
        let (Unsure { total_ns, own_ns }, calls) = (row.unsure, row.calls.max(1));
        match self {
            Self::Total => total_ns,
            Self::TotalAvg | Self::TotalMin | Self::TotalMax | Self::TotalP50 | Self::TotalP99 => total_ns / calls,
            Self::Own => own_ns,
            Self::OwnAvg | Self::OwnMin | Self::OwnMax => own_ns / calls,
            Self::Percent => share(own_ns, all_self_ns),
            Self::Calls => 0,
        }
    }

    /// Returns the column's value in a row as text. A time without a processor has no share.
    pub fn cell(self, row: &Row, all_self_ns: u128) -> String {
        if self == Self::Percent && !row.is_function() {
            return " ".repeat(10);
        }
        self.shown(self.value(row, all_self_ns))
    }

    /// Returns a value as text, at least 10 columns wide.
    pub fn shown(self, value: u64) -> String {
        match self {
            Self::Percent => format!("{:6}.{:02}%", value / 100, value % 100),
            Self::Calls => format!("{value:10}"),
            _ => Duration(value).to_string(),
        }
    }

    /// A difference: with a sign, in as many columns as a value with its sign.
    pub(crate) fn shown_change(self, change: i128) -> String {
        let sign = if change < 0 { '-' } else { '+' };
        let size = u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX);
        let text = self.shown(size);
        format!("{:>12}", format!("{sign}{}", text.trim_start()))
    }

    /// Returns the difference beside the values: of times in percent, of counts as a number. Empty without a
    /// difference.
    pub(crate) fn shown_ratio(self, before: u64, after: u64) -> String {
        match self {
            _ if before == after => String::new(),
            Self::Calls | Self::Percent => {
                self.shown_change(i128::from(after) - i128::from(before)).trim_start().to_owned()
            }
            _ if before == 0 => String::new(),
            _ => format!("{:+.1}%", 100.0 * (after as f64 - before as f64) / before as f64),
        }
    }
}

/// A share in hundredths of a percent.
fn share(part_ns: u64, all_ns: u128) -> u64 {
    u64::try_from(u128::from(part_ns) * 10_000 / all_ns.max(1)).unwrap_or(u64::MAX)
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found =
            Self::ALL.into_iter().find(|field| field.name() == text || (text == "calls" && *field == Self::Calls));
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|field| field.name()).collect();
            format!("there is no column `{text}`; the columns are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Report {
    /// Sorts the rows by these columns, largest first, then by name. The first column counts most.
    pub fn sort(&mut self, by: &[Field]) {
        let all_self_ns = self.self_ns();
        self.order(|a, b| {
            let larger_first = |field: &Field| field.value(b, all_self_ns).cmp(&field.value(a, all_self_ns));
            by.iter().map(larger_first).find(|order| order.is_ne()).unwrap_or_else(|| a.label().cmp(&b.label()))
        });
    }

    /// Writes a line on the total time, and a table of the first `limit` rows.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&self, fields: &[Field], limit: usize, out: &mut dyn Write) -> Result<()> {
        self.write_head(out).map_err(Error::Write)?;
        self.write_rows(fields, limit, out)
    }

    /// Writes the table without the line on the total time.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write_rows(&self, fields: &[Field], limit: usize, out: &mut dyn Write) -> Result<()> {
        self.write_table(fields, limit, out).map_err(Error::Write)
    }

    /// Writes a line on the total time.
    pub(crate) fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let n_tasks = self.tasks().iter().filter(|task| task.records > 0).count();
        let threads = if n_tasks == 1 { "thread" } else { "threads" };
        let cpu = match self.cpu_ns() {
            Some(cpu_ns) => {
                let (cpu, off_cpu) = (Duration(cpu_ns).text(), self.off_cpu());
                format!("CPU {cpu} of {n_tasks} {threads}{}{off_cpu}", self.tracing())
            }
            None => format!("{n_tasks} {threads}; waiting counts as self time, as context switches were not recorded"),
        };
        // Neither of the two is corrected.
        let of_functions = if self.cost().is_some() { "functions' times " } else { "" };
        writeln!(out, "  Wall {}, {cpu}; {of_functions}{}", Duration(self.wall_ns()).text(), self.correction())
    }

    /// The part of the processor time that recording took, in parentheses, if it was measured.
    fn tracing(&self) -> String {
        let n_calls = self.tasks().iter().map(|task| task.calls).fold(0, u64::saturating_add);
        match self.tracing_ps().map(|ps| ps.saturating_mul(n_calls) / 1000) {
            Some(ns) if ns > 0 => format!(" (about {} of it for tracing)", Duration(ns).text()),
            _ => String::new(),
        }
    }

    fn write_table(&self, fields: &[Field], limit: usize, out: &mut dyn Write) -> io::Result<()> {
        for field in fields {
            write!(out, "  {:>10}", field.title())?;
        }
        writeln!(out, "  Function{}", if self.has_sources() { " [Source]" } else { "" })?;
        writeln!(out, "{}  ====================", "  ==========".repeat(fields.len()))?;
        let all_self_ns = self.self_ns();
        let names = self.shown_names(self.rows().iter().take(limit).chain(self.open_rows()));
        for row in self.rows().iter().take(limit) {
            for field in fields {
                write!(out, "  {}", field.cell(row, all_self_ns))?;
            }
            write!(out, "  {}", row.label_of(names.get(&row.name)))?;
            match &row.source {
                Some(source) => writeln!(out, " [{source}]")?,
                None => writeln!(out)?,
            }
        }
        self.write_open(&names, out)?;
        self.short_calls().map_or(Ok(()), |text| writeln!(out, "\n  {text}"))
    }

    /// Returns a text about short calls, if recording them cost a large part of the self time: nobody knows how it divides between
    /// them and their callers.
    pub(crate) fn short_calls(&self) -> Option<String> {
        /// The mean duration of a short call.
        const SHORT_NS: u64 = 50;
        /// Fewer short calls are a small part of any time.
        const MANY: u64 = 1000;
        /// A large part, in tenths of a percent.
        const LARGE_PART: u64 = 100;
        /// The cost of recording a call where it was not measured.
        const USUAL: CallCost = CallCost { inside_ps: 10_000, outside_ps: 10_000 };

        let functions = || self.rows().iter().filter(|row| row.is_function());
        let short = functions().filter(|row| row.total_ns < SHORT_NS * row.calls);
        let n_calls = short.map(|row| row.calls).fold(0, u64::saturating_add);
        let all_ns = functions().map(|row| row.self_ns).fold(0, u64::saturating_add);
        let unsure_ns = n_calls.saturating_mul(self.cost().unwrap_or(USUAL).all_ps()) / 1000;
        if n_calls < MANY || tenths(unsure_ns, all_ns) < LARGE_PART {
            return None;
        }
        Some(format!(
            "{} calls take less than {SHORT_NS} ns on average: their number is exact, their times and those of their callers may be wrong \
             by {}",
            count(n_calls),
            Duration(unsure_ns).text()
        ))
    }

    /// Returns the rows with calls open at the end.
    fn open_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows().iter().filter(|row| row.did_not_return > 0)
    }

    /// Writes the calls open at the end, if there are any.
    fn write_open(&self, names: &ShownNames, out: &mut dyn Write) -> io::Result<()> {
        /// The number of named functions.
        const MOST: usize = 10;

        let n_rows = self.open_rows().count();
        let n_calls: u64 = self.open_rows().map(|row| row.did_not_return).sum();
        if n_calls == 0 {
            return Ok(());
        }
        let names: Vec<_> = self.open_rows().take(MOST).map(|row| row.label_of(names.get(&row.name))).collect();
        let more = if n_rows > MOST { format!(", and {} other functions", n_rows - MOST) } else { String::new() };
        let calls = if n_calls == 1 { "call" } else { "calls" };
        let ends = if self.lacks_end {
            "had not returned at the last record, and count until there"
        } else {
            "did not return, and count until the end"
        };
        writeln!(out, "\n  {n_calls} {calls} {ends}: {}{more}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::trace;

    #[test]
    fn wall_and_processor_time_have_the_part_of_tracing() {
        let head = |calls: &str| {
            let (dir, trace) = trace(&[calls]);
            std::fs::write(dir.path().join("clock.txt"), "hook_inside_ps=2000\nhook_outside_ps=1000\n").unwrap();
            let mut trace = rftrace_read::Trace::open(trace.dir()).unwrap();
            trace.correct_times(true);
            let mut out = Vec::new();
            Report::read(&trace).unwrap().write_head(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let expected = "  Wall 0.090 us, CPU 0.060 us of 1 thread (about 0.006 us of it for tracing), waiting 0.030 us; functions' times less \
                        3.0 ns a call for tracing\n";
        assert_eq!(head("main( 20 a( 40 w30 ) )"), expected);
        let expected = "  Wall 0.060 us, 1 thread; waiting counts as self time, as context switches were not recorded; functions' times less \
                        3.0 ns a call for tracing\n";
        assert_eq!(head("main( 20 a( 40 ) )"), expected);
    }

    #[test]
    fn shares_are_of_functions_alone() {
        let (_dir, trace) = trace(&["main( 10 w60 p30 a( 30 ) )"]);
        let mut report = Report::read(&trace).unwrap();
        report.sort(&[Field::Percent]);
        let cells: Vec<_> = report.rows().iter().map(|row| Field::Percent.cell(row, report.self_ns())).collect();
        assert_eq!(cells, ["    75.00%", "    25.00%", "          ", "          "]);
    }

    #[test]
    fn many_short_calls_are_told_of() {
        let told = |n_calls: usize, each: &str, own: &str| {
            let (_dir, trace) = trace(&[&format!("main( {own} {} )", format!("leaf( {each} ) ").repeat(n_calls))]);
            let mut out = Vec::new();
            Report::read(&trace).unwrap().write(&Field::USUAL, 9, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.split_once("\n\n").map(|(_, below)| below.to_owned())
        };
        let expected = "  1,000 calls take less than 50 ns on average: their number is exact, their times and those of their callers may be wrong \
                        by 20.000 us\n";
        assert_eq!(told(1000, "1", "9000").as_deref(), Some(expected));
        assert_eq!(told(999, "1", "9000"), None, "few calls");
        assert_eq!(told(1000, "50", "9000"), None, "long calls");
        assert_eq!(told(1000, "1", "500000"), None, "a small part");
    }
}
