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

use super::common::{
    DirArg, Names, NamesArg, find_program, losses, open_named, print, print_missing, print_warnings, shell_word,
};

const EXAMPLES: &str = "\
Examples:
  rftrace replay mytrace                   everything that was recorded in the directory `mytrace`
  rftrace replay --builtin mytrace | head  its first lines, without uftrace";

/// Shows every call, in order of time.
///
/// If uftrace is installed, it does the work, as it knows more: arguments, source lines, kernel functions. It does not know
/// other names than the simple ones.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Don't use uftrace, even if it is installed.
    #[arg(long)]
    builtin: bool,
    /// Merge calls of inlined functions into that of the function around them. Without uftrace, which cannot.
    #[arg(long)]
    fold_inlined: bool,
    /// Say afterwards where the trace lies and what else can be done with it.
    #[arg(long)]
    hints: bool,
    #[command(flatten)]
    names: NamesArg,
}

/// Runs it.
pub(crate) fn run(args: ReplayArgs) -> Result<()> {
    let dir = args.dir.path();
    let uftrace = find_program("uftrace");
    match &uftrace {
        Some(uftrace) if !args.builtin && !args.fold_inlined && args.names.demangle == Names::Simple => {
            replay_with(uftrace, &dir)?
        }
        _ => replay_builtin(&dir, args.names.demangle, args.fold_inlined)?,
    }
    if args.hints {
        print_hints(&dir, uftrace.is_some());
    }
    Ok(())
}

/// Shows a trace on stdout.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn show(dir: &Path) -> Result<()> {
    match find_program("uftrace") {
        Some(uftrace) => replay_with(&uftrace, dir),
        None => replay_builtin(dir, Names::Simple, false),
    }
}

fn replay_builtin(dir: &Path, names: Names, fold_inlined: bool) -> Result<()> {
    let mut trace = open_named(dir, names)?;
    trace.fold_inlined(fold_inlined);
    let mut options = ReplayOptions::default();
    options.color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let summary = print(|out| replay(&trace, &options, out))?;
    print_warnings(&trace, &summary)
}

/// Lets uftrace show the trace.
fn replay_with(uftrace: &Path, dir: &Path) -> Result<()> {
    if !dir.join(INFO).is_file() {
        // Says what to do with what is there.
        open_named(dir, Names::Simple)?;
    }
    // Its message for a directory that is none does not help, ours does.
    info::read(&dir.join(INFO))?;
    let status = Command::new(uftrace)
        .args([OsStr::new("replay"), OsStr::new("--no-pager"), OsStr::new("-d"), dir.as_os_str()])
        .status()
        .with_context(|| format!("cannot run {}; try --builtin", uftrace.display()))?;
    if !status.success() && !is_closed_pipe(status) {
        bail!("{} replay -d {}: {status}; try --builtin", uftrace.display(), dir.display());
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

fn print_hints(dir: &Path, has_uftrace: bool) {
    let whole = dir.canonicalize();
    say!("\nThe trace lies in {}", whole.as_deref().unwrap_or(dir).display());
    // As it was called, so that the line can be copied.
    let program = std::env::args_os().next().unwrap_or_else(|| "rftrace".into());
    let (program, dir) = (shell_word(Path::new(&program)), shell_word(dir));
    say!("Try also:\n  {program} report {dir}");
    if has_uftrace {
        say!(
            "  uftrace report -d {dir}           time of each function, with filters\n  \
             uftrace graph -d {dir}            call graph\n  \
             uftrace tui -d {dir}              call graph to browse\n  \
             uftrace dump --chrome -d {dir}    JSON for https://ui.perfetto.dev"
        );
    } else {
        say!(
            "uftrace has more views (graph, tui, dump --chrome) and is not installed: apt install uftrace, or see \
             https://github.com/namhyung/uftrace"
        );
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
