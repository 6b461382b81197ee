//! `rftrace recover`.

use anyhow::{Result, bail};
use clap::Args;
use rftrace_record::join;
use rftrace_record::output::Output;

use super::anonymous;
use super::common::DirArg;
use super::record::summary;

const EXAMPLES: &str = "\
Examples:
  rftrace recover uftrace.data    after a kill of `rftrace record`, or a full disk
  rftrace recover uftrace.data    after `rftrace record --keep-stream`";

/// Rebuilds a trace from an interrupted recording or a kept stream.
///
/// During a recording, records lie in the folder `.recording` of the trace directory; `rftrace record` makes a trace of them at the end. If it
/// is killed before, or has the option `--keep-stream`, this command makes the trace.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    dir: DirArg,
}

/// Recovers a directory.
pub(crate) fn run(args: RecoverArgs) -> Result<()> {
    let dir = args.dir.path();
    super::stream_file::refuse(&dir)?;
    let Some(output) = Output::left_in(&dir)? else {
        bail!("cannot recover {}: the directory has no interrupted recording", dir.display());
    };
    let mut joined = join::recover(&output)?;
    anonymous::finish(&output, &mut joined)?;
    if joined.is_empty() {
        joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
        bail!("cannot recover {}: no process has saved a record", dir.display());
    }
    // Unreadable parts stay.
    let n_left = joined.left_over;
    if n_left == 0 {
        output.finish()?;
    }
    summary::print_found(&joined, &dir);
    if n_left > 0 {
        say!("rftrace: unreadable parts stay in {}", output.work().display());
    }
    Ok(())
}
