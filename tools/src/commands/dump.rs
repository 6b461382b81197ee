//! `rftrace dump`.

use std::io::{self, BufRead as _, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use rftrace_export::{
    Chrome, ExportOptions, Firefox, Folded, Perfetto, Sink, Track, WallClock, export, export_with, write_directory,
};
use rftrace_format::files::records;
use rftrace_page::Page;
use rftrace_read::{Error, RECORD_BYTES, SourcePlace, Summary, Trace};

use super::anonymous::{self, Copy};
use super::choice::{NamesArg, ShownArgs, SourcesArg};
use super::common::{DirArg, PlainArgs, print, print_warnings};
use super::counters::Counters;
use super::new_file::NewFile;
use super::page::{page_without_calls, read_page, title};

const EXAMPLES: &str = "\
Examples:
  rftrace dump --flamegraph mytrace -o flame.svg       for any browser
  rftrace dump --html mytrace -o trace.html            one file to send to others
  rftrace dump --perfetto mytrace -o trace.pftrace     for https://ui.perfetto.dev
  rftrace dump --firefox mytrace -o profile.json       for https://profiler.firefox.com
  rftrace dump --chrome mytrace > trace.json           for chrome://tracing and Tracy
  rftrace dump --chrome --from 1.5s --to 1.6s mytrace  100 ms of it
  rftrace dump --uftrace --tid 7 mytrace -o part       one thread as a trace of its own";

/// Writes a trace in the format of another tool.
///
/// The output is valid even with lost records or missing exits. Functions that are open at --from are entered there; functions that are open at
/// --to end there.
///
/// --chrome and --perfetto also have counters of --resources: bytes, descriptors and threads of each process.
///
/// A trace contains the command line with its secrets, the name of the machine, paths, and texts of arguments; never the environment. Use
/// --anonymous before you pass it on.
#[derive(Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("format").required(true))]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    dir: DirArg,
    /// JSON of Chrome's trace events.
    #[arg(long, group = "format")]
    chrome: bool,
    /// Perfetto's protobuf.
    #[arg(long, group = "format")]
    perfetto: bool,
    /// A flame graph (SVG): the width of a function is its time.
    #[arg(long, group = "format", visible_alias = "flame-graph")]
    flamegraph: bool,
    /// Folded stacks with nanoseconds of self time.
    #[arg(long, group = "format")]
    folded: bool,
    /// JSON of the Firefox Profiler, one nanosecond a sample; it is built in memory.
    #[arg(long, group = "format")]
    firefox: bool,
    /// The page of `rftrace view` with the trace inside: one file for any browser, without network.
    #[arg(long, group = "format")]
    html: bool,
    /// A trace directory with the selected part.
    #[arg(long, group = "format", requires = "output")]
    uftrace: bool,
    /// Output file [default: stdout; on a terminal `DIR.svg`, `DIR.html` or `DIR.pftrace`].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Give each thread its own stack, in flame graphs and folded stacks.
    #[arg(long)]
    by_thread: bool,
    /// Leave out personal facts: command line, host, folders of files, texts of arguments and marks.
    ///
    /// Names of functions, threads and files stay. Fields of structures show as `?`.
    #[arg(long)]
    anonymous: bool,
    /// Show no progress and no size beforehand, and ask nothing.
    ///
    /// Otherwise `dump` estimates the size of a large output, and asks in a terminal above 1 GiB.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    sources: SourcesArg,
    #[command(flatten)]
    _plain: PlainArgs,
}

/// Runs it.
pub(crate) fn run(args: DumpArgs) -> Result<()> {
    let dir = args.dir.clone().path();
    let copy = args.anonymous.then(|| anonymous::copy(&dir)).transpose()?;
    let from = copy.as_ref().map_or(&dir, Copy::dir);
    if (args.chrome || args.perfetto || args.html)
        && let Some(counters) = Counters::alone(from, &args.shown.range)?
    {
        if args.html {
            return write_page(&page_without_calls(&counters)?, &dir, args.output, args.quiet).map(drop);
        }
        return write_counters(&counters, &dir, args.chrome, args.output);
    }
    // The exports choose times and tasks themselves: functions that are open at --from are entered there.
    let mut trace = args.shown.open_whole_time(from)?;
    args.sources.read(&mut trace)?;
    let times = args.shown.range.times(&trace)?;
    let mut options = ExportOptions::default();
    options.from_ns = Some(times.start).filter(|&ns| ns > 0);
    options.to_ns = Some(times.end).filter(|&ns| ns < u64::MAX);
    options.tids = args.shown.range.tids().to_vec();
    options.check(&trace)?;
    if args.html {
        args.shown.choose_range(&mut trace)?;
        args.names.apply(&mut trace);
        let page = read_page(&trace, args.shown.range.tids())?;
        let summary = write_page(&page, &dir, args.output, args.quiet)?;
        return print_warnings(&trace, &summary);
    }
    if args.firefox {
        Firefox::<Vec<u8>>::check(&trace, &options)?;
    }
    if !args.quiet
        && let Some(bytes) = args.estimate(&trace, &options)
    {
        tell_of_size(bytes, "about ")?;
    }

    let summary = match &args.output {
        Some(output) if args.uftrace => write_directory(&trace, &options, output)?,
        _ => {
            let extension = if args.flamegraph { "svg" } else { "pftrace" };
            let is_for_terminals = args.chrome || args.folded || args.firefox;
            let output = args.output.clone();
            let derived = (!is_for_terminals).then(|| derived_name(&dir, extension));
            let counters = (args.chrome || args.perfetto).then(|| Counters::open(trace.dir())).transpose()?.flatten();
            write_output(output, &dir, derived, |out| {
                let mut sink = args.sink(&trace, &options, out)?;
                export_with_progress(&trace, &options, sink.as_mut(), args.quiet, counters.as_ref())
            })?
        }
    };
    print_warnings(&trace, &summary)
}

impl DumpArgs {
    /// Returns the writer of the format; not for pages and directories.
    fn sink<'s>(
        &self,
        trace: &Trace,
        options: &ExportOptions,
        out: &'s mut dyn Write,
    ) -> rftrace_read::Result<Box<dyn Sink + 's>> {
        let title = title(trace);
        let wall_clock = WallClock::of(trace);
        Ok(if self.chrome {
            Box::new(Chrome::new(out))
        } else if self.perfetto {
            Box::new(Perfetto::new(out, wall_clock))
        } else if self.flamegraph {
            Box::new(Folded::flame_graph(out, self.by_thread, &title))
        } else if self.folded {
            Box::new(Folded::new(out, self.by_thread))
        } else {
            let start_ns = trace.start_ns()?.unwrap_or(0).max(options.from_ns.unwrap_or(0));
            Box::new(Firefox::new(out, &title, start_ns, wall_clock))
        })
    }

    /// Estimates the bytes of the output; `None` for a small one, and for sums of stacks. Errors are those of the output too.
    fn estimate(&self, trace: &Trace, options: &ExportOptions) -> Option<u64> {
        if self.flamegraph || self.folded {
            return None;
        }
        let write = |part: &ExportOptions| {
            if self.uftrace {
                let dir = tempfile::tempdir().map_err(Error::Write)?;
                write_directory(trace, part, dir.path())?;
                let sizes = part.tids.iter().filter_map(|&tid| dir.path().join(records(tid)).metadata().ok());
                return Ok(sizes.map(|file| file.len()).sum());
            }
            let mut counted = Counted(0);
            export(trace, part, self.sink(trace, part, &mut counted)?.as_mut())?;
            Ok(counted.0)
        };
        options.estimate(trace, write).ok().flatten()
    }
}

/// Counts the bytes of an output.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells the size of a large output beforehand, and asks a person about a huge one.
fn tell_of_size(bytes: u64, how: &str) -> Result<()> {
    const LARGE: u64 = 256 << 20;
    const HUGE: u64 = 1 << 30;

    if bytes < LARGE {
        return Ok(());
    }
    say!("rftrace: the output will have {how}{}; less: --from and --to, --tid, -F, -D, -t", HumanBytes(bytes));
    if bytes < HUGE || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    let _ = io::stderr().write_all(b"rftrace: write all of it? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        bail!("nothing is written");
    }
    Ok(())
}

/// Writes what was recorded of a program that does not call the tracer.
fn write_counters(counters: &Counters, dir: &Path, is_chrome: bool, output: Option<PathBuf>) -> Result<()> {
    write_output(output, dir, (!is_chrome).then(|| derived_name(dir, "pftrace")), |out| {
        let mut sink: Box<dyn Sink + '_> =
            if is_chrome { Box::new(Chrome::new(out)) } else { Box::new(Perfetto::new(out, None)) };
        counters.write(&[], &ExportOptions::default(), sink.as_mut()).and_then(|()| sink.finish())
    })
}

/// Writes the page of `rftrace view`.
fn write_page(page: &Page, dir: &Path, output: Option<PathBuf>, is_quiet: bool) -> Result<Summary> {
    let html = page.html()?;
    if !is_quiet {
        tell_of_size(html.len() as u64, "")?;
    }
    write_output(output, dir, Some(derived_name(dir, "html")), |out| out.write_all(&html).map_err(Error::Write))?;
    Ok(page.summary().clone())
}

/// The directory's name with an extension, in the current directory.
fn derived_name(dir: &Path, extension: &str) -> PathBuf {
    let whole = dir.canonicalize();
    let name = whole.as_deref().unwrap_or(dir).file_name().unwrap_or("rftrace".as_ref());
    let mut name = PathBuf::from(name);
    name.as_mut_os_string().push(format!(".{extension}"));
    name
}

/// Writes what is shown of the trace in `dir` to `path`; without one, to stdout, or to the file `derived` if stdout is a terminal.
fn write_output<T>(
    path: Option<PathBuf>,
    dir: &Path,
    derived: Option<PathBuf>,
    write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<T>,
) -> Result<T> {
    let derived = derived.filter(|_| path.is_none() && io::stdout().is_terminal());
    let Some(path) = path.as_ref().or(derived.as_ref()) else { return Ok(print(write)?) };
    let written = NewFile::create(path, &[dir])?.write(write)?;
    if let Some(path) = derived {
        say!("{} is written", path.display());
    }
    Ok(written)
}

/// Writes a trace, and shows on a terminal how far that is.
pub(super) fn export_with_progress(
    trace: &Trace,
    options: &ExportOptions,
    sink: &mut dyn Sink,
    quiet: bool,
    counters: Option<&Counters>,
) -> rftrace_read::Result<Summary> {
    let write_counters =
        |sink: &mut dyn Sink| counters.map_or(Ok(()), |counters| counters.write(trace.tasks(), options, sink));
    if quiet || !io::stderr().is_terminal() {
        return export_with(trace, options, sink, write_counters);
    }
    let sizes = trace.tasks().iter().map(|task| trace.dat_file(task));
    let n_bytes: u64 = sizes.filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
    let style = ProgressStyle::with_template("{bar:40} {human_pos} events, {elapsed}");
    let bar = ProgressBar::new(n_bytes / RECORD_BYTES as u64);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut sink = Progress { sink, bar, n_events: 0 };
    let result = export_with(trace, options, &mut sink, write_counters);
    sink.bar.finish_and_clear();
    result
}

/// Passes everything on, and shows how much that was.
struct Progress<'s> {
    sink: &'s mut dyn Sink,
    bar: ProgressBar,
    n_events: u64,
}

impl Progress<'_> {
    fn count(&mut self) {
        self.n_events += 1;
        if self.n_events.is_multiple_of(1 << 16) {
            self.bar.set_position(self.n_events);
        }
    }
}

impl Sink for Progress<'_> {
    fn process(&mut self, pid: u32, name: &str) -> rftrace_read::Result<()> {
        self.sink.process(pid, name)
    }

    fn thread(&mut self, track: Track, name: &str) -> rftrace_read::Result<()> {
        self.sink.thread(track, name)
    }

    fn source(&mut self, name: &str, place: SourcePlace<'_>) -> rftrace_read::Result<()> {
        self.sink.source(name, place)
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> rftrace_read::Result<()> {
        self.count();
        self.sink.enter(track, time_ns, name)
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> rftrace_read::Result<()> {
        self.count();
        self.sink.exit(track, time_ns)
    }

    fn enter_with(&mut self, track: Track, time_ns: u64, name: &str, arguments: &[String]) -> rftrace_read::Result<()> {
        self.count();
        self.sink.enter_with(track, time_ns, name, arguments)
    }

    fn exit_with(&mut self, track: Track, time_ns: u64, result: &str) -> rftrace_read::Result<()> {
        self.count();
        self.sink.exit_with(track, time_ns, result)
    }

    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> rftrace_read::Result<()> {
        self.count();
        self.sink.instant(track, time_ns, name)
    }

    fn counter(&mut self, pid: u32, time_ns: u64, name: &str, value: f64) -> rftrace_read::Result<()> {
        self.sink.counter(pid, time_ns, name, value)
    }

    fn finish(&mut self) -> rftrace_read::Result<()> {
        self.sink.finish()
    }
}
