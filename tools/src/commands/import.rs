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
  rftrace import trace.raw --binary prog --tsc-hz 2400000000    records of version 0.3";

/// Makes a trace directory from an image of a kernel or of `dump_trace`.
///
/// A kernel sends its image by `rftrace_frontend::kernel::write_image`, through a serial port or the like; other text before and behind it in
/// the file is skipped. Raw records come from `rftrace_frontend::dump_trace`, also of version 0.3. The content of the file tells its kind.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// File with the image or the raw records.
    #[arg(value_name = "RAW")]
    raw: PathBuf,
    /// ELF file of the kernel or program, for names of functions.
    #[arg(long, value_name = "ELF")]
    binary: Option<PathBuf>,
    /// Directory for the trace; an older trace there is replaced.
    #[arg(short, long, value_name = "DIR", default_value = "uftrace.data")]
    output: PathBuf,
    /// Address of its lowest loadable segment in memory, if the image is wrong. For raw records the address is found by itself.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    load_address: Option<u64>,
    /// Frequency of the time stamp counter, if the kernel did not know it, or for raw records of version 0.3.
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
