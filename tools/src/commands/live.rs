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
  rftrace ctl 4711 pipe                  the same for a program of `rftrace record`";

/// Runs a program and shows its calls as they come.
///
/// Nothing is kept. The program does not wait for the reader: a line counts the calls that were left out. The program's own output comes between
/// the calls. The options are those of `rftrace record`, except those about traces.
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
