//! `rftrace symbols`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::error::ErrorKind;
use rftrace_symbols::{SymbolOptions, add_symbols};

use super::common::parse_address;

const EXAMPLES: &str = "\
Examples:
  rftrace symbols mytrace --binary kernel.elf        names of a kernel's functions
  rftrace symbols mytrace -b prog -b libwork.so      a trace from another machine
  rftrace symbols mytrace -b prog && rftrace replay --srcline mytrace";

/// Adds names and source lines of functions to a trace.
///
/// Use it for traces of kernels, and of machines without symbols. A binary is matched with the trace by its build-id, its file name, or the
/// called addresses. Names go to a `.sym` file in the directory, source lines to a `.dbg` file; older ones are replaced.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SymbolsArgs {
    /// Trace directory.
    dir: PathBuf,
    /// ELF file of the traced kernel, program or library. Can be given several times.
    #[arg(short, long = "binary", value_name = "ELF", required = true)]
    binaries: Vec<PathBuf>,
    /// Address of its lowest loadable segment in memory, if the trace is wrong. For one binary.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    load_address: Option<u64>,
    /// Leave out source lines.
    #[arg(long)]
    no_lines: bool,
    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs it.
pub(crate) fn run(args: SymbolsArgs) -> Result<()> {
    if args.load_address.is_some() && args.binaries.len() > 1 {
        let message = "--load-address takes one binary; run `rftrace symbols` once for each\n";
        clap::Error::raw(ErrorKind::ArgumentConflict, message).exit();
    }
    let mut options = SymbolOptions::new(args.binaries);
    options.load_address = args.load_address;
    options.lines = !args.no_lines;
    super::unfinished::refuse(&args.dir)?;
    for written in add_symbols(&args.dir, &options)? {
        let (called, known) = written.called;
        // Calls into other modules have addresses in no function.
        if 2 * known < called && !written.is_same_build {
            say!(
                "rftrace: {}: at the load address {:#x} its functions contain only {known} of {called} called addresses: \
                 is it the traced binary, and is the address right (--load-address)?",
                written.binary.display(),
                written.load_address
            );
        }
        if args.quiet {
            continue;
        }
        if written.with_inlined > 0 {
            say!(
                "rftrace: {}: {} functions have several hooks, those of functions inlined into them: \
                 --fold-inlined of report, replay and dump merges these calls",
                written.binary.display(),
                written.with_inlined
            );
        }
        let lines = match written.lines {
            0 if args.no_lines => String::new(),
            0 => ", no source lines (built without debug information)".to_owned(),
            n => format!(", source lines of {n} (rftrace replay --srcline)"),
        };
        say!("{}: {} functions{lines}", written.file.display(), written.functions);
    }
    Ok(())
}
