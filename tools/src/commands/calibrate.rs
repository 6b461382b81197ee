//! `rftrace calibrate`.

use anyhow::{Context, Result, bail};
use clap::Args;
use rftrace_format::cost::HookKind;
use rftrace_format::info::key as info;
use rftrace_frontend::processor;
use rftrace_record::cost;
use rftrace_record::preload::{self, Preload};

use super::common::DirArg;
use super::open::open;

const EXAMPLES: &str = "\
Example:
  rftrace calibrate trace    once, after the run of a program that records itself";

/// Measures the overhead of a call and stores it in a trace.
///
/// `rftrace record` does it by itself. `report`, `graph` and `tui` then subtract the overhead from sums of times.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    dir: DirArg,
    /// The program's calls of the tracer were patched (`Config::patched`, `RFTRACE_PATCHED=1`).
    #[arg(long)]
    patched: bool,
    /// Measure even if the trace has an overhead, or is of a machine with another processor.
    #[arg(long)]
    force: bool,
}

/// Runs it.
pub(crate) fn run(args: CalibrateArgs) -> Result<()> {
    let dir = args.dir.path();
    let trace = open(&dir)?;
    let shown = dir.display();
    if trace.clock()?.is_empty() {
        bail!(
            "cannot calibrate {shown}: the trace has no clock.txt; rftrace writes it on a machine with a time stamp counter"
        );
    }
    if trace.info().get(info::PROCESSOR) != Some(&processor()) && !args.force {
        let other = trace.info().get(info::PROCESSOR).unwrap_or("another processor");
        bail!(
            "cannot calibrate {shown} here: the trace is of a machine with {other}; run the command there, or add --force"
        );
    }
    if trace.measured_cost().is_some() && !args.force {
        bail!("{shown} has an overhead already; --force measures it again");
    }
    let kind = if args.patched { HookKind::Patched } else { HookKind::Call };
    let library = Preload::find(preload::TRACER)?;
    let measured = cost::measure(library.path(), &[kind]).context("cannot measure the overhead of a call here")?;
    cost::add_to(&dir, measured)?;
    let ps = measured.all_ps();
    say!("rftrace: the overhead is {}.{} ns a call; reports of {shown} subtract it", ps / 1000, ps % 1000 / 100);
    Ok(())
}
