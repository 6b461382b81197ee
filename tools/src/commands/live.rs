//! `rftrace live`: runs a program, and shows its calls as they come.
//!
//! Not here: how it is recorded (`record`), and how records become text (`rftrace-record`).

use anyhow::Result;
use clap::Args;

use super::record::{self, RecordArgs};

const EXAMPLES: &str = "\
Examples:
  rftrace live ./program --its-options
  rftrace live -F 'app::parse*' -t 10us ./app | less
  rftrace live ./app 2>/dev/null | grep -m 1 connect
  rftrace ctl 4711 pipe                  the same of a program that `rftrace record` runs";

/// Runs a program and shows its calls as they come. Nothing is kept.
///
/// The program does not wait for who reads: what he does not take in time is left out, and a line says how much. What the program itself writes
/// to stdout comes between. The options are those of `rftrace record`, but for those of traces.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    record: RecordArgs,
}

/// Runs it.
pub(crate) fn run(args: LiveArgs) -> Result<()> {
    record::run_live(args.record)
}
