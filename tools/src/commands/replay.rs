//! `rftrace replay`.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};
use clap::Args;
use rftrace_format::files::INFO;
use rftrace_read::{Summary, Trace, info};
use rftrace_views::{ReplayOptions, replay};

use super::choice::ShownArgs;
use super::common::{
    DirArg, Names, find_program, losses, open_named, print, print_missing, print_warnings, shell_word,
};

const EXAMPLES: &str = "\
Examples:
  rftrace replay mytrace                         everything that was recorded in the directory `mytrace`
  rftrace replay -F app::work -D 3 mytrace       the calls of a function, and two levels in them
  rftrace replay --from 1.5s --to 1.6s mytrace   a tenth of a second of it
  rftrace replay --uftrace mytrace               by uftrace, which shows arguments, and functions of the kernel, that it recorded";

/// Shows every call, in order of time.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Let uftrace show it, which has to be installed.
    #[arg(long, conflicts_with_all = ["fold_inlined", "demangle", "srcline", "filter", "notrace", "depth", "time_filter", "from", "to", "time_range", "tid"])]
    uftrace: bool,
    /// What is done without `--uftrace` anyway.
    #[arg(long, hide = true, conflicts_with = "uftrace")]
    builtin: bool,
    /// Say afterwards where the trace lies and what else can be done with it.
    #[arg(long)]
    hints: bool,
    #[command(flatten)]
    shown: ShownArgs,
}

/// Runs it.
pub(crate) fn run(args: ReplayArgs) -> Result<()> {
    let dir = args.dir.path();
    if args.uftrace {
        replay_with_uftrace(&dir)?;
    } else {
        print_replay(&args.shown.open(&dir)?)?;
    }
    if args.hints {
        print_hints(&dir);
    }
    Ok(())
}

/// Shows a trace on stdout.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn show(dir: &Path) -> Result<()> {
    print_replay(&open_named(dir, Names::Simple)?)
}

fn print_replay(trace: &Trace) -> Result<()> {
    let mut options = ReplayOptions::default();
    options.color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let summary = print(|out| replay(trace, &options, out))?;
    print_warnings(trace, &summary)
}

/// Lets uftrace show the trace.
fn replay_with_uftrace(dir: &Path) -> Result<()> {
    let Some(uftrace) = find_program("uftrace") else {
        bail!(
            "uftrace is not in PATH: apt install uftrace, see https://github.com/namhyung/uftrace, or leave out --uftrace"
        );
    };
    if !dir.join(INFO).is_file() {
        // Says what to do with what is there.
        open_named(dir, Names::Simple)?;
    }
    // Its message for a directory that is none does not help, ours does.
    info::read(&dir.join(INFO))?;
    let status = Command::new(&uftrace)
        .args([OsStr::new("replay"), OsStr::new("--no-pager"), OsStr::new("-d"), dir.as_os_str()])
        .status()
        .with_context(|| format!("cannot run {}; try without --uftrace", uftrace.display()))?;
    if !status.success() && !is_closed_pipe(status) {
        bail!("{} replay -d {}: {status}; try without --uftrace", uftrace.display(), dir.display());
    }
    // uftrace reads some traces that are an error here.
    let Ok(trace) = Trace::open(dir) else { return Ok(()) };
    for line in losses(&Summary::default(), &trace.gaps()?) {
        say!("rftrace: {line}");
    }
    let has_names = trace.modules().iter().any(|module| module.symbols > 0);
    print_missing(&trace, !has_names);
    Ok(())
}

fn print_hints(dir: &Path) {
    let whole = dir.canonicalize();
    say!("\nThe trace lies in {}", whole.as_deref().unwrap_or(dir).display());
    // As it was called, so that the line can be copied.
    let program = std::env::args_os().next().unwrap_or_else(|| "rftrace".into());
    let (program, dir) = (shell_word(Path::new(&program)), shell_word(dir));
    say!(
        "Try also:\n  {program} report {dir}  # time of each function\n  \
         {program} graph {dir}  # which functions call which\n  \
         {program} replay -t 10us {dir}  # calls that took 10 us at least"
    );
    if cfg!(feature = "full") {
        say!("  {program} dump --flamegraph {dir}  # a picture for any browser");
    }
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
