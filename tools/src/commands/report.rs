//! `rftrace report`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use rftrace_tools::{Report, SortKey};

use super::common::{DirArg, open, print, print_warnings};

const EXAMPLES: &str = "\
Example:
  rftrace report --sort self --limit 10 mytrace  the ten functions in which most time was spent";

/// Shows how much time each function took.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    dir: DirArg,
    /// What to sort by, largest first.
    #[arg(long, value_enum, default_value = "total")]
    sort: Sort,
    /// Show no more than this many functions.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
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
    let trace = open(&args.dir.path())?;
    let mut report = Report::read(&trace)?;
    report.sort(args.sort.into());
    print(|out| report.write(args.limit.unwrap_or(usize::MAX), out))?;
    print_warnings(&trace, report.summary());
    Ok(())
}
