//! `rftrace diff`: two versions of a program, by one or more runs of each.
//!
//! Not here: the comparison (`rftrace_views::Difference`). `report --diff` is the same with uftrace's table.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use rftrace_read::{Error, Shown, Summary, Trace};
#[cfg(feature = "full")]
use rftrace_views::Compared;
use rftrace_views::{Difference, Field, Graph, Report, ReportOptions, Side};

use super::choice::{CorrectionArg, NamesArg, ShownArgs, with_order};
use super::common::{check_shown, print_losses};
use super::markdown;
use super::pager;
use super::stand_ins;

const EXAMPLES: &str = "\
Examples:
  rftrace diff old new                           what became faster or slower
  rftrace diff old1 new1 old2 new2 old3 new3     the same by three runs of each
  rftrace diff old* --with new*                  the same, all old ones first
  rftrace diff --paths --limit 20 old new        call paths instead of functions
  rftrace diff --format markdown old new         for a comment in a pull request";

/// The most runs on a side.
const MAX_RUNS: usize = 100;

/// Compares two versions: what became faster or slower, and how certain that is.
///
/// Counts of calls are exact. Times are medians of the runs; with several runs on each side, p is the probability of such a difference
/// by chance (the test of Mann and Whitney). Record the versions by turns: then both have the same disturbances.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Traces before and after a change, by turns.
    #[arg(value_name = "BEFORE AFTER", required = true)]
    dirs: Vec<PathBuf>,
    /// Traces after the change. All others are from before it.
    #[arg(long, value_name = "AFTER", num_args = 1..)]
    with: Vec<PathBuf>,
    /// Compare call paths: a function called from elsewhere is another row.
    #[arg(long)]
    paths: bool,
    /// Columns to sort by, with commas [default: the first column]. The largest differences come first.
    #[arg(short, long, value_name = "FIELD", value_delimiter = ',')]
    sort: Vec<Field>,
    /// Columns, with commas; those of `rftrace report`.
    #[arg(
        short = 'f',
        long = "output-fields",
        visible_alias = "fields",
        value_name = "FIELD",
        value_delimiter = ',',
        default_value = "self,total,call"
    )]
    fields: Vec<Field>,
    /// Output format. In json, times are nanoseconds, one for each run.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Highest number of rows: those with the largest differences.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    correction: CorrectionArg,
    /// Write straight to the terminal, without `$PAGER` or `less`.
    #[arg(long)]
    no_pager: bool,
}

/// How the comparison is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For a comment on GitHub.
    Markdown,
    /// An object for each row, with the values of all runs.
    #[cfg(feature = "full")]
    Json,
}

impl Format {
    fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Markdown)
    }
}

/// Runs it.
pub(crate) fn run(args: DiffArgs) -> Result<()> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let sort = if args.sort.is_empty() { args.fields[..1].to_vec() } else { args.sort };
    let columns: Vec<Field> = args.fields.iter().chain(&sort).copied().collect();
    let mut options = ReportOptions::default();
    options.spread = columns.iter().any(|field| field.needs_spread());
    if let Some(field) = columns.iter().find(|field| args.paths && field.needs_spread()) {
        bail!("--paths has no column {field}: its columns are total, self, percent and call");
    }
    let traces = sides(args.dirs, args.with)?;
    let traces = opened(traces, |dir| {
        let mut trace = args.shown.open(dir)?;
        args.names.apply(&mut trace);
        args.correction.apply(&mut trace);
        Ok(trace)
    })?;
    let mut comparison = Comparison::read(traces, &columns, |difference, side, trace| {
        let report = Report::read_with(trace, &options)?;
        if !args.paths {
            difference.add_report(side, &report);
            return Ok(report);
        }
        let graph = Graph::read(trace, None)?;
        if graph.left_out() > 0 {
            say!(
                "rftrace: {}: the comparison leaves out {} calls, as the paths are too many",
                stand_ins::of_user(trace.dir()).display(),
                graph.left_out()
            );
        }
        difference.add_graph(side, &graph, &report);
        Ok(report)
    })?;
    comparison.difference.sort(&sort);
    let fields = if args.format.is_for_people() { with_order(args.fields, &sort) } else { args.fields };
    pager::print(!args.no_pager, |out| match args.format {
        Format::Table => {
            comparison.write_head(out).map_err(Error::Write)?;
            writeln!(out, "# {}", comparison.difference.confidence()).map_err(Error::Write)?;
            comparison.difference.write(&fields, limit, out)
        }
        Format::Markdown => write_markdown(&comparison, &fields, limit, out).map_err(Error::Write),
        #[cfg(feature = "full")]
        Format::Json => write_json(&comparison.difference, &fields, limit, out).map_err(Error::Write),
    })?;
    comparison.print_warnings()
}

/// The directories with their sides.
fn sides(dirs: Vec<PathBuf>, with: Vec<PathBuf>) -> Result<Vec<(Side, PathBuf)>> {
    let is_by_turns = with.is_empty();
    if is_by_turns && !dirs.len().is_multiple_of(2) {
        bail!(
            "{} has no counterpart: name traces in pairs, BEFORE AFTER, or as BEFORE… --with AFTER…",
            dirs[dirs.len() - 1].display()
        );
    }
    if dirs.len().max(with.len()) > MAX_RUNS * if is_by_turns { 2 } else { 1 } {
        bail!("too many traces: each side takes at most {MAX_RUNS} runs");
    }
    let side = |idx: usize| if is_by_turns && idx % 2 == 1 { Side::After } else { Side::Before };
    let dirs = dirs.into_iter().enumerate().map(|(idx, dir)| (side(idx), dir));
    Ok(dirs.chain(with.into_iter().map(|dir| (Side::After, dir))).collect())
}

/// Opens all traces. Times of one kind are compared: if one trace cannot be corrected, none is.
pub(crate) fn opened(dirs: Vec<(Side, PathBuf)>, open: impl Fn(&Path) -> Result<Trace>) -> Result<Vec<(Side, Trace)>> {
    let traces = dirs.into_iter().map(|(side, dir)| Ok((side, open(&dir)?)));
    let mut traces = traces.collect::<Result<Vec<_>>>()?;
    if traces.iter().any(|(_, trace)| trace.cost().is_none()) {
        traces.iter_mut().for_each(|(_, trace)| trace.correct_times(false));
    }
    Ok(traces)
}

/// A comparison, and what is to be said of its runs.
pub(crate) struct Comparison {
    pub(crate) difference: Difference,
    runs: Vec<Run>,
}

struct Run {
    side: Side,
    trace: Trace,
    /// The conditions of its times.
    conditions: String,
    summary: Summary,
}

impl Comparison {
    /// Reads all traces. `add` adds one, and returns its report.
    pub(crate) fn read(
        traces: Vec<(Side, Trace)>,
        columns: &[Field],
        add: impl Fn(&mut Difference, Side, &Trace) -> Result<Report>,
    ) -> Result<Self> {
        let mut difference = Difference::new(columns);
        let mut runs = Vec::new();
        let names = traces.first().map(|(_, trace)| trace.shown_names());
        for (side, trace) in traces {
            let report = add(&mut difference, side, &trace)?;
            runs.push(Run { side, trace, conditions: report.conditions(), summary: report.summary().clone() });
        }
        difference.show_names(names.unwrap_or_default());
        Ok(Self { difference, runs })
    }

    /// Writes the verdict, and a line for each run.
    pub(crate) fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# {}", self.difference.verdict())?;
        for run in &self.runs {
            let word = match run.side {
                Side::Before => "from",
                Side::After => "to  ",
            };
            writeln!(out, "# {word} {}; {}", described(&run.trace), run.conditions)?;
        }
        Ok(())
    }

    /// Says what is missing in the traces. A function to show may be new, or gone.
    pub(crate) fn print_warnings(&self) -> Result<()> {
        self.runs.iter().try_for_each(|run| print_losses(&run.trace, &run.summary))?;
        let checks = self.runs.iter().map(|run| check_shown(&run.trace, &run.summary));
        checks.reduce(Result::or).unwrap_or(Ok(()))
    }
}

/// The directory and the command that was recorded.
fn described(trace: &Trace) -> String {
    let command = trace.info().command_line().unwrap_or_default();
    Shown::new(&format!("{} ({})", stand_ins::of_user(trace.dir()).display(), command.trim())).to_string()
}

fn write_markdown(comparison: &Comparison, fields: &[Field], limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let difference = &comparison.difference;
    writeln!(out, "{}\n", difference.verdict())?;
    markdown::write_head(&difference.headings(fields), difference.subject(), out)?;
    for row in difference.rows().take(limit) {
        let name = format!("{}{}", markdown::code(&row.label()), row.note());
        markdown::write_row(&row.cells(fields), &name, out)?;
    }
    writeln!(out, "\n{}", difference.confidence().replace('~', "\\~"))?;
    let notes = difference.notes(limit);
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "- {}", markdown::code(note)))
}

#[cfg(feature = "full")]
fn write_json(difference: &Difference, fields: &[Field], limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let object = |row: Compared<'_>| {
        let mut object = serde_json::json!({ "function": row.name(), "path": row.names() });
        for &field in fields {
            let change = i64::try_from(row.change(field)).ok();
            object[field.name()] = serde_json::json!({
                "before": row.values(Side::Before, field), "after": row.values(Side::After, field), "change": change, "p": row.p(field),
            });
        }
        object
    };
    // Paths may be many and long: one row at a time is held.
    writeln!(out, "[")?;
    for (idx, row) in difference.rows().take(limit).enumerate() {
        write!(out, "{}", if idx > 0 { ",\n" } else { "" })?;
        serde_json::to_writer(&mut *out, &object(row))?;
    }
    writeln!(out, "\n]")
}
