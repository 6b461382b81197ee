//! `rftrace recover`.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use rftrace_record::join;
use rftrace_record::output::Output;

use super::anonymous;
use super::common::{DirArg, shell_word};
use super::record::summary;

const EXAMPLES: &str = "\
Examples:
  rftrace recover uftrace.data    after a kill of `rftrace record`, or a full disk
  rftrace recover uftrace.data    after `rftrace record --keep-stream`
  rftrace recover uftrace.data -o /var/tmp/mytrace
                                  to another disk, which has room";

/// Rebuilds a trace from an interrupted recording or a kept stream.
///
/// During a recording, records lie in the folder `.recording` of the trace directory; `rftrace record` makes a trace of them at the end. If it
/// is killed before, or has the option `--keep-stream`, this command makes the trace.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Other directory for the trace. The records stay where they are.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Recovers a directory.
pub(crate) fn run(args: RecoverArgs) -> Result<()> {
    let dir = args.dir.path();
    super::stream_file::refuse(&dir)?;
    let Some(output) = Output::left_in(&dir)? else {
        bail!("cannot recover {}: the directory has no interrupted recording", dir.display());
    };
    let left = output.work().to_owned();
    let (output, mut joined) = match &args.output {
        None => {
            let joined = join::recover(&output)?;
            (output, joined)
        }
        Some(other) => {
            let other = Output::prepare(Some(other), false)?;
            let joined = join::recover_to(&other, &output)?;
            (other, joined)
        }
    };
    let is_elsewhere = args.output.is_some();
    if let Some(cause) = joined.failed.take() {
        joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
        let elsewhere = if is_elsewhere {
            output.discard();
            String::new()
        } else {
            format!("; `rftrace recover {} -o OTHER` makes the trace elsewhere", shell_word(&dir))
        };
        return Err(anyhow!("cannot make the trace: {cause:#}; the records stay in {}{elsewhere}", left.display()));
    }
    anonymous::finish(&output, &mut joined)?;
    if joined.is_empty() {
        joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
        if is_elsewhere {
            output.discard();
        }
        bail!("cannot recover {}: no process has saved a record", dir.display());
    }
    // Unreadable parts stay.
    let n_left = joined.left_over;
    if n_left == 0 || is_elsewhere {
        output.finish()?;
    }
    summary::print_found(&joined, output.dir());
    if n_left > 0 {
        say!("rftrace: unreadable parts stay in {}", left.display());
    } else if is_elsewhere {
        say!("rftrace: the records stay in {}, too", left.display());
    }
    Ok(())
}
