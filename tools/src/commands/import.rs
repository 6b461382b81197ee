//! `rftrace import`.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use rftrace_frontend::{Image, ImportOptions};

use super::common::{parse_address, shell_word};

const EXAMPLES: &str = "\
Examples:
  rftrace import trace.img --binary kernel.elf     to the directory `uftrace.data`
  rftrace import trace.img --binary kernel.elf -o mytrace && rftrace replay mytrace
  rftrace import trace.raw --binary prog --tsc-hz 2400000000    from `dump_trace` of rftrace-frontend 0.3";

/// Makes a trace directory of what a kernel sent, or `dump_trace` wrote.
///
/// An image is what the kernel's `rftrace_frontend::kernel::write_image` sent by a serial port or the like; what comes before
/// and behind it in the file is skipped. Raw records are what `rftrace_frontend::dump_trace` wrote, also that of version 0.3.
/// Which of both a file is, its content says.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// The file with the image or the raw records.
    #[arg(value_name = "RAW")]
    raw: PathBuf,
    /// The ELF file of the kernel or program, for the names of its functions.
    #[arg(long, value_name = "ELF")]
    binary: Option<PathBuf>,
    /// Where to write to. A trace that is there is replaced.
    #[arg(short, long, value_name = "DIR", default_value = "uftrace.data")]
    output: PathBuf,
    /// Where its lowest loadable segment lay in memory, if the image tells it wrong. Raw records do not tell it; it is found by
    /// the addresses in them.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    load_address: Option<u64>,
    /// Ticks per second of the time stamp counter, if the kernel did not know it, or for raw records of version 0.3.
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u64).range(1..))]
    tsc_hz: Option<u64>,
}

/// Runs it.
pub(crate) fn run(args: &ImportArgs) -> Result<()> {
    super::stream_file::refuse(&args.raw)?;
    // These errors' texts have those of their sources.
    let whole = |error: rftrace_frontend::Error| anyhow!("{error}");
    let image = Image::read(&args.raw).map_err(whole)?;
    let mut options = ImportOptions::default();
    options.binary.clone_from(&args.binary);
    options.load_address = args.load_address;
    options.tsc_hz = args.tsc_hz;
    let imported = image.write_directory(&args.output, &options).map_err(whole)?;
    for warning in &imported.warnings {
        say!("rftrace: {}: {warning}", args.raw.display());
    }
    say!(
        "{}: {} events of {} threads; look at it with: rftrace replay {}",
        args.output.display(),
        imported.events,
        imported.threads,
        shell_word(&args.output)
    );
    Ok(())
}
