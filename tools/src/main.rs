//! The `rftrace` command: shows traces, and imports those of kernels.

use std::ffi::OsStr;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

#[cfg(target_os = "linux")]
use anyhow::anyhow;
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
#[cfg(target_os = "linux")]
use rftrace_frontend::{Image, ImportOptions};
use rftrace_tools::{Error, Info, ReplayOptions, Report, SortKey, Summary, Trace, replay};

/// Shows function traces: what rftrace and uftrace recorded.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Shows every call, in order of time.
    ///
    /// If uftrace is installed, it does the work, as it knows more: arguments, source lines, kernel functions.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Shows how much time each function took.
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Makes a trace directory of what a kernel sent.
    ///
    /// The image is what the kernel's `rftrace_frontend::kernel::write_image` wrote to a serial port or the like. What comes
    /// before and behind it in the file is skipped.
    #[cfg(target_os = "linux")]
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
}

const EXAMPLES: &str = "\
Example:
  rftrace replay --hints mytrace";

const REPLAY_EXAMPLES: &str = "\
Examples:
  rftrace replay mytrace                   everything that was recorded in the directory `mytrace`
  rftrace replay --builtin mytrace | head  its first lines, without uftrace";

const REPORT_EXAMPLES: &str = "\
Example:
  rftrace report --sort self --limit 10 mytrace  the ten functions in which most time was spent";

#[cfg(target_os = "linux")]
const IMPORT_EXAMPLES: &str = "\
Examples:
  rftrace import trace.img --binary kernel.elf     to the directory `uftrace.data`
  rftrace import trace.img --binary kernel.elf -o mytrace && rftrace replay mytrace";

#[derive(Args)]
struct ReplayArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Don't use uftrace, even if it is installed.
    #[arg(long)]
    builtin: bool,
    /// Say afterwards where the trace lies and what else can be done with it.
    #[arg(long)]
    hints: bool,
}

#[derive(Args)]
struct ReportArgs {
    #[command(flatten)]
    dir: DirArg,
    /// What to sort by, largest first.
    #[arg(long, value_enum, default_value = "total")]
    sort: Sort,
    /// Show no more than this many functions.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

#[cfg(target_os = "linux")]
#[derive(Args)]
struct ImportArgs {
    /// The file with the image.
    image: PathBuf,
    /// The kernel's ELF file, for the names of its functions.
    #[arg(long, value_name = "ELF")]
    binary: Option<PathBuf>,
    /// Where to write to. A trace that is there is replaced.
    #[arg(short, long, value_name = "DIR", default_value = "uftrace.data")]
    output: PathBuf,
    /// Where the kernel's lowest loadable segment lay in memory, if the image tells it wrong.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    load_address: Option<u64>,
    /// Ticks per second of the time stamp counter, if the kernel did not know it.
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u64).range(1..))]
    tsc_hz: Option<u64>,
}

/// A number, hexadecimal with `0x`.
#[cfg(target_os = "linux")]
fn parse_address(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

#[derive(Args)]
struct DirArg {
    /// The trace directory [default: the current directory if it is one, else `uftrace.data`].
    dir: Option<PathBuf>,
}

impl DirArg {
    fn path(self) -> PathBuf {
        self.dir.unwrap_or_else(|| if Path::new("info").is_file() { ".".into() } else { "uftrace.data".into() })
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Sort {
    /// Time in the function and what it called.
    Total,
    /// Time in the function alone.
    #[value(name = "self")]
    Own,
    /// Number of calls.
    Calls,
}

impl From<Sort> for SortKey {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Total => Self::Total,
            Sort::Own => Self::Own,
            Sort::Calls => Self::Calls,
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Subcommands::Replay(args) => run_replay(args),
        Subcommands::Report(args) => run_report(args),
        #[cfg(target_os = "linux")]
        Subcommands::Import(args) => run_import(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(Error::is_closed_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rftrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_replay(args: ReplayArgs) -> Result<()> {
    let dir = args.dir.path();
    let uftrace = find_program("uftrace");
    match &uftrace {
        Some(uftrace) if !args.builtin => replay_with(uftrace, &dir)?,
        _ => replay_builtin(&dir)?,
    }
    if args.hints {
        print_hints(&dir, uftrace.is_some());
    }
    Ok(())
}

fn replay_builtin(dir: &Path) -> Result<()> {
    let trace = open(dir)?;
    let mut options = ReplayOptions::default();
    options.color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let summary = print(|out| replay(&trace, &options, out))?;
    print_warnings(&trace, &summary);
    Ok(())
}

/// Lets uftrace show the trace.
fn replay_with(uftrace: &Path, dir: &Path) -> Result<()> {
    // Its message for a directory that is none does not help, ours does.
    Info::read(&dir.join("info"))?;
    let status = Command::new(uftrace)
        .args([OsStr::new("replay"), OsStr::new("--no-pager"), OsStr::new("-d"), dir.as_os_str()])
        .status()
        .with_context(|| format!("cannot run {}; try --builtin", uftrace.display()))?;
    if !status.success() && !is_closed_pipe(status) {
        bail!("{} replay -d {}: {status}; try --builtin", uftrace.display(), dir.display());
    }
    Ok(())
}

fn run_report(args: ReportArgs) -> Result<()> {
    let trace = open(&args.dir.path())?;
    let mut report = Report::read(&trace)?;
    report.sort(args.sort.into());
    print(|out| report.write(args.limit.unwrap_or(usize::MAX), out))?;
    print_warnings(&trace, report.summary());
    Ok(())
}

#[cfg(target_os = "linux")]
fn run_import(args: &ImportArgs) -> Result<()> {
    // These errors' texts have those of their sources.
    let whole = |error: rftrace_frontend::Error| anyhow!("{error}");
    let image = Image::read(&args.image).map_err(whole)?;
    let mut options = ImportOptions::default();
    options.binary.clone_from(&args.binary);
    options.load_address = args.load_address;
    options.tsc_hz = args.tsc_hz;
    let imported = image.write_directory(&args.output, &options).map_err(whole)?;
    for warning in &imported.warnings {
        eprintln!("rftrace: {}: {warning}", args.image.display());
    }
    eprintln!(
        "{}: {} events of {} threads; look at it with: rftrace replay {0}",
        args.output.display(),
        imported.events,
        imported.threads
    );
    Ok(())
}

fn open(dir: &Path) -> Result<Trace> {
    Trace::open(dir).with_context(|| format!("cannot open the trace {}", dir.display()))
}

/// Writes to stdout through a buffer.
fn print<T>(write: impl FnOnce(&mut dyn Write) -> rftrace_tools::Result<T>) -> rftrace_tools::Result<T> {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = write(&mut out);
    // What was read before an error is worth showing.
    out.flush().map_err(Error::Write).and(result)
}

fn print_warnings(trace: &Trace, summary: &Summary) {
    if summary.records == 0 {
        eprintln!(
            "rftrace: the trace holds no records: was tracing enabled, and the program built with `mcount` calls?"
        );
    }
    for warnings in [trace.warnings(), &summary.warnings] {
        for line in warnings.to_string().lines() {
            eprintln!("rftrace: {line}");
        }
    }
}

fn print_hints(dir: &Path, has_uftrace: bool) {
    let whole = dir.canonicalize();
    eprintln!("\nThe trace lies in {}", whole.as_deref().unwrap_or(dir).display());
    // As it was called, so that the line can be copied.
    let program = std::env::args_os().next().unwrap_or_else(|| "rftrace".into());
    let (program, dir) = (program.display(), dir.display());
    eprintln!("Try also:\n  {program} report {dir}");
    if has_uftrace {
        eprintln!(
            "  uftrace report -d {dir}           time of each function, with filters\n  \
             uftrace graph -d {dir}            call graph\n  \
             uftrace tui -d {dir}              call graph to browse\n  \
             uftrace dump --chrome -d {dir}    JSON for https://ui.perfetto.dev"
        );
    } else {
        eprintln!(
            "uftrace has more views (graph, tui, dump --chrome) and is not installed: apt install uftrace, or see \
             https://github.com/namhyung/uftrace"
        );
    }
}

/// Looks for an executable file in `PATH`.
fn find_program(name: &str) -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(|path| is_executable(path))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// Whether a program ended because nobody reads its output any more.
#[cfg(unix)]
fn is_closed_pipe(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGPIPE: i32 = 13;
    status.signal() == Some(SIGPIPE)
}

#[cfg(not(unix))]
fn is_closed_pipe(_: ExitStatus) -> bool {
    false
}
