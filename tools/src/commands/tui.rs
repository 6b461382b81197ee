//! `rftrace tui`.

use anyhow::Result;
use clap::Args;

use super::choice::{CorrectionArg, NamesArg, ShownArgs};
use super::common::{DirArg, PlainArgs, print_warnings};

const EXAMPLES: &str = "\
Examples:
  rftrace tui mytrace                       graph, report and calls; the key ? lists keys
  rftrace tui -F app::work -t 10us mytrace  a part of the trace";

/// Browses a trace in the terminal: call graph, functions, calls of a thread.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TuiArgs {
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    correction: CorrectionArg,
    #[command(flatten)]
    _plain: PlainArgs,
}

/// Runs it.
pub(crate) fn run(args: TuiArgs) -> Result<()> {
    let mut trace = args.shown.open(&args.dir.path())?;
    args.correction.apply(&mut trace);
    args.names.apply(&mut trace);
    // The screen has a line of its own for that.
    trace.on_index(None);
    match rftrace_tui::run(&mut trace)? {
        Some(summary) => print_warnings(&trace, &summary),
        None => Ok(()),
    }
}
