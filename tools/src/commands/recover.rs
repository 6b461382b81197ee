//! `rftrace recover`.

use anyhow::{Result, bail};
use clap::Args;
use rftrace_record::join;
use rftrace_record::output::Output;

use super::common::DirArg;
use super::record::summary;

const EXAMPLES: &str = "\
Example:
  rftrace recover uftrace.data    a trace of what was saved before `rftrace record` was killed, or the machine stopped
  rftrace recover uftrace.data    what `rftrace record --keep-stream` has recorded, as a trace";

/// Makes a trace of what an interrupted `rftrace record` has left, or of a stream that it has kept.
///
/// Processes save what they have recorded when they end, or execute another program; `rftrace record` makes one trace of all
/// when the last one has ended. If it is killed before, what was saved until then lies in the folder `.recording` of its
/// directory. With `--keep-stream` it makes no trace at all.
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
        bail!("there is nothing to recover in {}: no recording was interrupted there", dir.display());
    };
    let joined = join::recover(&output)?;
    if joined.is_empty() {
        joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
        bail!("there is nothing to recover in {}: no process had saved what it had recorded", dir.display());
    }
    // What cannot be read stays.
    let n_left = joined.left_over;
    if n_left == 0 {
        output.finish()?;
    }
    summary::print_found(&joined, &dir);
    if n_left > 0 {
        say!("rftrace: what is in no trace stays in {}", output.work().display());
    }
    Ok(())
}
