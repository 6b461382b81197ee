//! `rftrace tui`.

use anyhow::Result;
use clap::Args;

use super::choice::{CallsArgs, RangeArgs, choose};
use super::common::{DirArg, NamesArg, PlainArgs, open_named};

const EXAMPLES: &str = "\
Examples:
  rftrace tui mytrace                       graph, report and calls; the key ? lists keys
  rftrace tui -F app::work -t 10us mytrace  a part of the trace";

/// Lets you look around in a trace: which functions call which, how long each took, and the calls of a thread.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TuiArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Merge calls of inlined functions into that of the function around them.
    #[arg(long)]
    fold_inlined: bool,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    calls: CallsArgs,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    _plain: PlainArgs,
}

/// Runs it.
pub(crate) fn run(args: TuiArgs) -> Result<()> {
    let mut trace = open_named(&args.dir.path(), args.names.demangle)?;
    trace.fold_inlined(args.fold_inlined);
    choose(&mut trace, args.calls, &args.range)?;
    Ok(rftrace_tui::run(trace)?)
}
