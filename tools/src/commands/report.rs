//! `rftrace report`.

use std::io::{self, IsTerminal, Write};
#[cfg(feature = "full")]
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use rftrace_read::{Error, Trace};
#[cfg(feature = "full")]
use rftrace_views::Row;
use rftrace_views::{ByValue, Field, Graph, Report, ReportOptions, Side, TableBelow};

use super::choice::{CorrectionArg, NamesArg, ShownArgs, SourcesArg, with_order};
use super::common::{DirArg, Format, PlainColorArg, cell, check_shown, print, print_warnings};
use super::diff::{Comparison, opened};
use super::overview;
use super::pager;
use super::stand_ins;
use super::waits;

const EXAMPLES: &str = "\
Examples:
  rftrace report mytrace                         an overview, and the time of each function
  rftrace report --sort self --limit 10 mytrace  the ten functions with most self time
  rftrace report -f self,percent,call mytrace    other columns
  rftrace report --by-value 'open_file@arg1'     a row for each first argument
  rftrace report --waits mytrace                 who waited where, and who ended that
  rftrace report before --diff after             differences between two traces
  rftrace report -F 'app::*' -t 10us mytrace     calls of some functions, of at least 10 us
  rftrace report --demangle full mytrace         C++ functions with parameters";

/// The group in `--help` of these options.
const COLUMNS: &str = "Columns and format: --avg-total --format csv";

/// Shows an overview of a trace, and the time of each function.
///
/// In a terminal an overview comes first: the hot path, the functions with most self time, how processes ended, and what makes the trace
/// large. With options for columns, order, rows or format there is only the table.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Columns to sort by, largest first, with commas [default: the first column].
    #[arg(short, long, value_name = "FIELD", value_delimiter = ',')]
    sort: Vec<Field>,
    /// Columns, with commas [default: total,self,call].
    ///
    /// They are total, total-avg, total-min, total-max, total-p50, total-p99, self, self-avg, self-min, self-max, percent (of all
    /// functions' self time) and call.
    #[arg(short = 'f', long = "output-fields", visible_alias = "fields", value_name = "FIELD", value_delimiter = ',')]
    fields: Vec<Field>,
    /// The columns total-avg, total-min and total-max.
    #[arg(long, conflicts_with = "fields", help_heading = COLUMNS)]
    avg_total: bool,
    /// The columns self-avg, self-min and self-max.
    #[arg(long, conflicts_with_all = ["fields", "avg_total"], help_heading = COLUMNS)]
    avg_self: bool,
    /// Show one row for each value of this function's arguments: `open@arg1`.
    ///
    /// The function is a glob or `/regex/`. Behind `@` are the values, such as `open@arg1,retval`; without it all arguments count. Can
    /// be given several times.
    #[arg(long, value_name = "FUNC[@VALUES]")]
    by_value: Vec<ByValue>,
    /// Begin with the overview in a file or pipe, too.
    #[arg(long, conflicts_with_all = ["sort", "fields", "avg_total", "avg_self", "by_value", "diff", "format", "limit"])]
    overview: bool,
    /// Show the waits of 1 ms or longer: the waiting function, and the function and thread that ended the wait.
    ///
    /// It takes context switches. The ends of waits are known if root made the recording.
    #[arg(long, conflicts_with_all = ["sort", "fields", "avg_total", "avg_self", "by_value", "diff", "overview"])]
    waits: bool,
    /// Show the differences to another trace.
    #[arg(long, value_name = "DIR", conflicts_with = "format")]
    diff: Option<PathBuf>,
    /// Output format. In csv and json, times are nanoseconds, and percents hundredths.
    #[arg(long, value_enum, default_value = "table", help_heading = COLUMNS)]
    format: Format,
    /// Highest number of rows.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    correction: CorrectionArg,
    #[command(flatten)]
    sources: SourcesArg,
    /// Write straight to the terminal, without `$PAGER` or `less`.
    #[arg(long, help_heading = COLUMNS)]
    no_pager: bool,
    #[command(flatten)]
    _color: PlainColorArg,
}

impl ReportArgs {
    /// True if the overview comes first: nobody has said what the table should be like, and a person reads it.
    fn has_overview(&self) -> bool {
        let has_columns = !self.fields.is_empty() || self.avg_total || self.avg_self || !self.by_value.is_empty();
        !has_columns
            && self.sort.is_empty()
            && self.limit.is_none()
            && self.format == Format::Table
            && self.diff.is_none()
            && !self.waits
            && (self.overview || io::stdout().is_terminal())
    }
}

/// Runs it.
pub(crate) fn run(args: ReportArgs) -> Result<()> {
    let has_overview = args.has_overview();
    let dir = args.dir.path();
    let mut fields = match (args.avg_total, args.avg_self) {
        (true, _) => vec![Field::TotalAvg, Field::TotalMin, Field::TotalMax],
        (_, true) => vec![Field::OwnAvg, Field::OwnMin, Field::OwnMax],
        _ if args.fields.is_empty() => Field::USUAL.to_vec(),
        _ => args.fields,
    };
    let sort = if args.sort.is_empty() { fields[..1].to_vec() } else { args.sort };
    if args.format == Format::Table {
        fields = with_order(fields, &sort);
    }
    let limit = args.limit.unwrap_or(usize::MAX);
    let mut options = ReportOptions::default();
    options.spread = fields.iter().chain(&sort).any(|field| field.needs_spread());
    options.by_value = args.by_value;
    let open = |dir: &Path| -> Result<Trace> {
        let mut trace = args.shown.open(dir)?;
        args.sources.read(&mut trace)?;
        args.correction.apply(&mut trace);
        args.names.apply(&mut trace);
        Ok(trace)
    };
    let read = |trace: &Trace| -> Result<Report> {
        let report = Report::read_with(trace, &options)?;
        if !options.by_value.is_empty() && report.rows().iter().all(|row| row.values.is_none()) {
            say!(
                "rftrace: {}: no call has the values of --by-value; `rftrace record` records values with -a or -A",
                stand_ins::of_user(trace.dir()).display()
            );
        }
        Ok(report)
    };
    if let Some(other) = args.diff {
        let traces = opened(vec![(Side::Before, dir), (Side::After, other)], open)?;
        let columns: Vec<Field> = fields.iter().chain(&sort).copied().collect();
        let mut comparison = Comparison::read(traces, &columns, |difference, side, trace| {
            let report = read(trace)?;
            difference.add_report(side, &report);
            Ok(report)
        })?;
        comparison.difference.sort(&sort);
        print(|out| {
            comparison.write_head(out).map_err(Error::Write)?;
            comparison.difference.write_changes(&fields, limit, out)
        })?;
        return comparison.print_warnings();
    }
    let trace = open(&dir)?;
    if args.waits {
        return waits::show(&trace, args.format, limit);
    }
    let mut report = read(&trace)?;
    check_shown(&trace, report.summary())?;
    report.sort(&sort);
    if has_overview {
        let (ends, graph) = (trace.ends()?, Graph::read(&trace, None)?);
        pager::print(!args.no_pager, |out| {
            let shown = (&trace, &*dir);
            let (has_more, next) = overview::write(shown, &report, &graph, &ends, TableBelow::ByTotal, out)?;
            if has_more {
                writeln!(out, "\n  Next: {next}\n").map_err(Error::Write)?;
            }
            report.write_rows(&fields, limit, out)
        })?;
        return print_warnings(&trace, report.summary());
    }
    print(|out| match args.format {
        Format::Table => report.write(&fields, limit, out),
        Format::Csv => write_csv(&report, &fields, limit, out).map_err(Error::Write),
        #[cfg(feature = "full")]
        Format::Json => write_json(&report, &fields, limit, out).map_err(Error::Write),
    })?;
    if let Some(busy) = report.busy_machine() {
        say!("rftrace: {busy}");
    }
    print_warnings(&trace, report.summary())
}

/// As RFC 4180 has it.
fn write_csv(report: &Report, fields: &[Field], limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let names: Vec<_> = fields.iter().map(|field| field.name()).collect();
    let source = if report.has_sources() { "source," } else { "" };
    let has_values = report.rows().iter().any(|row| row.values.is_some());
    let values = if has_values { "arguments,retval," } else { "" };
    let has_open = report.rows().iter().any(|row| row.did_not_return > 0);
    let open = if has_open { ",did-not-return" } else { "" };
    writeln!(out, "function,{values}{source}{}{open}", names.join(","))?;
    let all_self_ns = report.self_ns();
    for row in report.rows().iter().take(limit) {
        write!(out, "{}", cell(&row.name))?;
        if has_values {
            for value in row.texts() {
                write!(out, ",{}", cell(value.unwrap_or_default()))?;
            }
        }
        if report.has_sources() {
            write!(out, ",{}", cell(row.source.as_deref().unwrap_or_default()))?;
        }
        for field in fields {
            write!(out, ",{}", field.value(row, all_self_ns))?;
        }
        if has_open {
            write!(out, ",{}", row.did_not_return)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(feature = "full")]
fn write_json(report: &Report, fields: &[Field], limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let all_self_ns = report.self_ns();
    let object = |row: &Row| {
        let values = fields.iter().map(|field| (field.name().to_owned(), field.value(row, all_self_ns).into()));
        let name = ("function".to_owned(), row.name.as_str().into());
        let [arguments, result] = row.texts();
        let texts = [("arguments", arguments), ("retval", result), ("source", row.source.as_deref())];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
        let open = (row.did_not_return > 0).then(|| ("did-not-return".to_owned(), row.did_not_return.into()));
        serde_json::Value::Object(iter::once(name).chain(texts).chain(values).chain(open).collect())
    };
    let rows: Vec<_> = report.rows().iter().take(limit).map(object).collect();
    serde_json::to_writer_pretty(&mut *out, &rows)?;
    writeln!(out)
}
