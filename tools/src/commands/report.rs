//! `rftrace report`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use rftrace_views::{Report, SortKey};

use super::common::{DirArg, NamesArg, open_named, print, print_warnings};

const EXAMPLES: &str = "\
Examples:
  rftrace report --sort self --limit 10 mytrace  the ten functions in which most time was spent
  rftrace report --demangle full mytrace         C++ functions with their parameters: a row for each overload";

/// Shows how much time each function took.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    dir: DirArg,
    /// What to sort by, largest first.
    #[arg(long, value_enum, default_value = "total")]
    sort: Sort,
    /// Merge calls of inlined functions into that of the function around them.
    #[arg(long)]
    fold_inlined: bool,
    /// Show no more than this many functions.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    names: NamesArg,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sort {
    /// Time in the function and what it called.
    Total,
    /// Time in the function alone.
    #[value(name = "self")]
    Own,
    /// Number of calls.
    Calls,
}

impl From<Sort> for SortKey {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Total => Self::Total,
            Sort::Own => Self::Own,
            Sort::Calls => Self::Calls,
        }
    }
}

/// Runs it.
pub(crate) fn run(args: ReportArgs) -> Result<()> {
    let mut trace = open_named(&args.dir.path(), args.names.demangle)?;
    trace.fold_inlined(args.fold_inlined);
    let mut report = Report::read(&trace)?;
    report.sort(args.sort.into());
    print(|out| report.write(args.limit.unwrap_or(usize::MAX), out))?;
    print_warnings(&trace, report.summary())
}
