//! `rftrace replay`.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rftrace_format::files::INFO;
use rftrace_read::{Summary, Trace, info};
use rftrace_views::{ReplayField, ReplayOptions, replay};

use super::choice::{NamesArg, ShownArgs, SourcesArg};
use super::common::{DirArg, find_program, losses, print_missing, print_warnings, shell_word};
use super::pager;

/// The group in `--help` of these options.
const COLUMNS: &str = "Columns and terminal: --column-view --no-pager";

const EXAMPLES: &str = "\
Examples:
  rftrace replay mytrace                         every call in the directory `mytrace`
  rftrace replay -F app::work -D 3 mytrace       calls of a function, and two levels in them
  rftrace replay --from 1.5s --to 1.6s mytrace   a tenth of a second
  rftrace replay --last 50 mytrace               the end, such as the calls before a crash
  rftrace replay -f +elapsed,delta mytrace       with times since the start and since the last line
  rftrace replay --uftrace mytrace               shown by uftrace";

/// Shows every call in time order.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Let uftrace show the trace; it has to be installed.
    #[arg(long, conflicts_with_all = ["fields", "flat", "last", "column_view", "color", "fold_inlined", "demangle", "full_names", "srcline", "inlined", "filter", "notrace", "depth", "time_filter", "from", "to", "time_range", "tid"], help_heading = COLUMNS)]
    uftrace: bool,
    /// The default: rftrace shows the trace.
    #[arg(long, hide = true, conflicts_with = "uftrace")]
    builtin: bool,
    /// Columns, with commas [default: duration,tid].
    ///
    /// They are duration, tid, addr, time, delta (since the previous line of the thread), elapsed (since the start of the trace), task
    /// and module; or `all`, or `none`. A `+` in front keeps the default columns.
    #[arg(short = 'f', long = "output-fields", visible_alias = "fields", value_name = "FIELD", value_parser = parse_fields)]
    fields: Option<Fields>,
    /// Show one line for each record, with times as recorded.
    #[arg(long, conflicts_with_all = ["fields", "column_view"])]
    flat: bool,
    /// Show only this number of lines at the end, with the calls that did not return.
    #[arg(long, value_name = "N", conflicts_with = "flat")]
    last: Option<usize>,
    /// Indent each thread further than the thread before.
    #[arg(long, help_heading = COLUMNS)]
    column_view: bool,
    /// Indentation of --column-view.
    #[arg(long, value_name = "LEVELS", default_value = "8", requires = "column_view", conflicts_with_all = ["uftrace", "flat"], help_heading = COLUMNS)]
    column_offset: usize,
    /// Colours; `auto` has them in a terminal, unless NO_COLOR is set.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = COLUMNS)]
    color: Color,
    /// Write straight to the terminal, without `$PAGER` or `less`.
    #[arg(long, help_heading = COLUMNS)]
    no_pager: bool,
    /// Show the trace's path and next commands at the end.
    #[arg(long)]
    hints: bool,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    sources: SourcesArg,
}

/// When to use colours.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Color {
    /// In a terminal.
    Auto,
    /// Always.
    #[value(alias = "always")]
    Yes,
    /// Never.
    #[value(alias = "never")]
    No,
}

impl Color {
    fn is_wanted(self) -> bool {
        match self {
            Self::Auto => {
                io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
            Self::Yes => true,
            Self::No => false,
        }
    }
}

/// Columns, in any order.
#[derive(Clone)]
struct Fields(Vec<ReplayField>);

fn parse_fields(text: &str) -> Result<Fields, String> {
    let listed = |text: &str| text.split(',').map(str::parse).collect::<Result<Vec<ReplayField>, String>>();
    Ok(Fields(match text {
        "none" => Vec::new(),
        "all" => ReplayField::ALL.to_vec(),
        _ => match text.strip_prefix('+') {
            Some(more) => [ReplayField::USUAL.to_vec(), listed(more)?].concat(),
            None => listed(text)?,
        },
    }))
}

/// Runs it.
pub(crate) fn run(args: ReplayArgs) -> Result<()> {
    let dir = args.dir.path();
    if args.uftrace {
        replay_with_uftrace(&dir)?;
    } else {
        let mut options = ReplayOptions::default();
        options.color = args.color.is_wanted();
        options.fields = args.fields.map_or(options.fields, |Fields(fields)| fields);
        options.is_flat = args.flat;
        options.last = args.last;
        options.task_indent = if args.column_view { args.column_offset } else { 0 };
        let mut trace = args.shown.open_whole_time(&dir)?;
        args.sources.read(&mut trace)?;
        args.names.apply(&mut trace);
        if options.fields.contains(&ReplayField::Elapsed) {
            options.start_ns = trace.start_ns()?.unwrap_or(0);
        }
        args.shown.choose_range(&mut trace)?;
        print_replay(&trace, &options, !args.no_pager)?;
    }
    if args.hints {
        print_hints(&dir);
    }
    Ok(())
}

/// Shows a trace on stdout.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn show(dir: &Path) -> Result<()> {
    use super::common::Names;
    use super::open::open_named;

    let mut options = ReplayOptions::default();
    options.color = Color::Auto.is_wanted();
    print_replay(&open_named(dir, Names::Simple)?, &options, false)
}

fn print_replay(trace: &Trace, options: &ReplayOptions, is_paged: bool) -> Result<()> {
    let summary = pager::print(is_paged, |out| replay(trace, options, out))?;
    print_warnings(trace, &summary)
}

/// Lets uftrace show the trace.
fn replay_with_uftrace(dir: &Path) -> Result<()> {
    let Some(uftrace) = find_program("uftrace") else {
        bail!(
            "uftrace is not in PATH: apt install uftrace, see https://github.com/namhyung/uftrace, or leave out --uftrace"
        );
    };
    let dir = &*super::unfinished::shown(dir)?;
    // Its message for a directory that is none does not help, ours does.
    info::read(&dir.join(INFO))?;
    let status = Command::new(&uftrace)
        .args([OsStr::new("replay"), OsStr::new("--no-pager"), OsStr::new("-d"), dir.as_os_str()])
        .status()
        .with_context(|| format!("cannot run {}; try without --uftrace", uftrace.display()))?;
    if !status.success() && !is_closed_pipe(status) {
        bail!("`{} replay -d {}` has failed: {status}; try without --uftrace", uftrace.display(), dir.display());
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

/// True if a program ended because nobody reads its output any more.
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
