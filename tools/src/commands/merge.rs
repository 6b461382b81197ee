//! `rftrace merge`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use rftrace_export::{Chrome, Perfetto, Sink};
use rftrace_guest::{Merge, MergeOptions};
use rftrace_read::{Summary, read_clock};

use super::new_file::NewFile;

const EXAMPLES: &str = "\
Examples:
  rftrace merge -o both.json guest.trace host.trace --kvm kvm-events.txt
  rftrace merge -o both guest.trace host.trace --tsc-offset=-38491779229228
  rftrace merge -o all.pftrace guest.trace --kvm trace.dat --perf counters.csv --perf perf.data

Recording (docs/merge.md has more):
  tools/setup_kvm_tracing.sh run qemu-system-x86_64 -accel kvm …        KVM's events, TSC offset
  trace-cmd record -C x86-tsc -e kvm qemu-system-x86_64 -accel kvm …    the same as trace.dat
  perf stat -I 100 -x, -o counters.csv -p PID                           counters
  perf sched record -k CLOCK_MONOTONIC -o perf.data                     context switches";

/// Brings the traces of a guest and its host onto one timeline.
///
/// KVM's events give the offset of the guest's time stamp counter; ticks become nanoseconds of the host's clock. Without KVM's events both wall
/// clocks decide, exact to milliseconds at best; a line on stderr names the method.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MergeArgs {
    /// The guest's trace directory.
    guest: PathBuf,
    /// Trace directories of programs on the host, such as the hypervisor.
    hosts: Vec<PathBuf>,
    /// Output: `*.json` for Chrome's trace events, `*.pftrace` for Perfetto, else a directory for uftrace and rftrace.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Output format, whatever the name of the output.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// KVM's events in ticks: `trace.dat` of trace-cmd, its text or that of tracefs, or the folder of a tracefs instance.
    #[arg(long, value_name = "FILE")]
    kvm: Vec<PathBuf>,
    /// Counters (`perf stat -I MS -x SEP`) or context switches (`perf.data` or the text of `perf script`).
    #[arg(long, value_name = "FILE")]
    perf: Vec<PathBuf>,
    /// Frequency of the host's time stamp counter [default: that of the directories; auto: that of this machine].
    #[arg(long, value_name = "N|auto", value_parser = parse_khz)]
    tsc_khz: Option<Khz>,
    /// Guest's ticks minus host's ticks [default: auto: by KVM's events, else by the wall clocks].
    #[arg(long, value_name = "N|auto", value_parser = parse_offset, allow_hyphen_values = true)]
    tsc_offset: Option<Offset>,
    /// Leave out time before the guest's first record and after its last one.
    #[arg(long)]
    cut: bool,
    /// Print warnings and errors only.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Chrome,
    Perfetto,
    Uftrace,
}

impl Format {
    fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Self::Chrome,
            Some("pftrace" | "perfetto-trace" | "perfetto") => Self::Perfetto,
            _ => Self::Uftrace,
        }
    }
}

#[derive(Clone, Copy)]
enum Khz {
    Auto,
    Given(u64),
}

fn parse_khz(text: &str) -> Result<Khz, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Khz::Auto),
        Ok(khz @ 1..=1_000_000_000) => Ok(Khz::Given(khz)),
        _ => Err("it must be `auto` or a number of kilohertz".to_owned()),
    }
}

#[derive(Clone, Copy)]
enum Offset {
    Auto,
    Given(i64),
}

/// A signed number, or one of 64 bits without sign as KVM's events have it.
fn parse_offset(text: &str) -> Result<Offset, String> {
    let number = || text.parse::<i64>().ok().or_else(|| text.parse::<u64>().ok().map(u64::cast_signed));
    match text {
        "auto" => Ok(Offset::Auto),
        _ => number().map(Offset::Given).ok_or_else(|| "it must be `auto` or a number of ticks of 64 bits".to_owned()),
    }
}

/// Runs it.
pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let mut options = MergeOptions::default();
    options.guest.clone_from(&args.guest);
    options.hosts.clone_from(&args.hosts);
    options.kvm.clone_from(&args.kvm);
    options.perf.clone_from(&args.perf);
    options.cut = args.cut;
    options.tsc_offset = match args.tsc_offset {
        Some(Offset::Given(offset)) => Some(offset),
        Some(Offset::Auto) | None => None,
    };
    options.tsc_khz = match args.tsc_khz {
        Some(Khz::Given(khz)) => Some(khz),
        Some(Khz::Auto) => khz_of_this_machine(args)?,
        None => None,
    };
    for dir in options.hosts.iter().chain([&options.guest]) {
        super::unfinished::refuse(dir)?;
    }
    let mut merge = Merge::open(&options)?;
    for note in merge.notes() {
        say!("rftrace: {note}");
    }
    let bar = (!args.quiet && std::io::stderr().is_terminal()).then(|| {
        let style = ProgressStyle::with_template("{spinner} {human_pos} events, {elapsed}, {per_sec}");
        ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
    });
    if let Some(bar) = bar.clone() {
        merge.on_progress(move |count| bar.set_position(count));
    }
    let result = match args.format.unwrap_or_else(|| Format::of(&args.output)) {
        Format::Uftrace => merge.write_directory(&args.output).map_err(anyhow::Error::from),
        Format::Chrome => to_file(args, |out| merge.export(&mut Chrome::new(out) as &mut dyn Sink)),
        Format::Perfetto => to_file(args, |out| merge.export(&mut Perfetto::new(out, None) as &mut dyn Sink)),
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let summary = result?;
    let of_metadata =
        merge.traces().flat_map(|trace| trace.warnings().to_string().lines().map(str::to_owned).collect::<Vec<_>>());
    for line in of_metadata.chain(summary.warnings.to_string().lines().map(str::to_owned)) {
        say!("rftrace: {line}");
    }
    if summary.records == 0 {
        bail!("the traces have no events");
    }
    if !args.quiet {
        say!("{}: {} events", args.output.display(), summary.records);
    }
    Ok(())
}

/// Returns the clock frequency of this machine, if no directory tells it.
fn khz_of_this_machine(args: &MergeArgs) -> Result<Option<u64>> {
    for dir in args.hosts.iter().chain([&args.guest]) {
        if read_clock(dir)?.is_some() {
            return Ok(None);
        }
    }
    let khz = tsc_khz();
    khz.map(Some)
        .ok_or_else(|| anyhow!("cannot find the frequency of this machine's time stamp counter: give --tsc-khz N"))
}

#[cfg(target_os = "linux")]
fn tsc_khz() -> Option<u64> {
    rftrace_frontend::machine_tsc_hz().map(|hz| hz / 1000)
}

#[cfg(not(target_os = "linux"))]
fn tsc_khz() -> Option<u64> {
    None
}

/// Writes a file; one that is not whole is not there.
fn to_file(args: &MergeArgs, write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<Summary>) -> Result<Summary> {
    let sources: Vec<&Path> = args.hosts.iter().chain([&args.guest]).map(PathBuf::as_path).collect();
    NewFile::create(&args.output, &sources)?.write(write)
}
