//! `rftrace functracer`: functracer's options, files and texts.
//!
//! The program is recorded as by `rftrace record --resources`, and followed by ptrace for functracer's other events: processes, threads,
//! signals. `sections` has the text from one switching signal to the next.
//!
//! Not here: the form of lines (`rftrace-resources`).

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::slice;

use anyhow::{Context, Result, bail};
use clap::{Args, Command};
use rftrace_format::files::RESOURCES;
use rftrace_format::resources::Resource;
use rftrace_record::follow::{Fate, Happened, follow};
use rftrace_record::preload::{self, Preload};
use rftrace_record::program::{self, Recorded};
use rftrace_record::resources::ResourceRecorder;
use rftrace_record::specification::Specification;
use rftrace_record::track;
use rftrace_resources::FunctracerText;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use tempfile::TempDir;

use super::record::attach::tell_of_end;
use super::record::resources::{
    Backtraces, Kind, check, environment, libraries, of_running, parse, plan, tell_of_allocator, tell_of_left_out,
    tell_of_losses,
};

mod sections;

use sections::{Place, Sections};

const EXAMPLES: &str = "\
Examples:
  rftrace functracer -s ./program           on stdout, at the end
  rftrace functracer -s -p 4711             a running program, until Ctrl-C
  rftrace functracer -f -l /tmp ./program   `kill -USR1 PID` begins and ends /tmp/allocs-PID.0.trace
  rftrace functracer -s -r -e file ./program
  rftrace functracer -s -a 'getenv;str*dup;@names' ./program
  rftrace functracer-postproc -l -c allocs-4711.0.trace

Plugins are memory, file, thread-resource, memtransfer, gobject, audit (with -a), mmap, shmposix
and shmsysv. docs/resources.md lists the differences to functracer.";

/// The most backtraces that functracer has on x86.
const MAX_DEPTH: usize = 64;
/// The most processes that it attaches to.
const MAX_PIDS: usize = 20;
/// Most bytes of calls that are kept on the disk.
const MOST_BYTES: u64 = 4 << 30;

/// Tracks resources of a program, with the options and the text of functracer.
///
/// SIGUSR1 to the program, which does not get it, begins and ends a trace. The exit status is that of the program.
#[derive(Args)]
#[command(after_help = EXAMPLES, version = concat!("functracer 0.18, by rftrace ", env!("CARGO_PKG_VERSION")))]
pub(crate) struct FunctracerArgs {
    /// Track these functions (the plugin audit): names for fnmatch, with semicolons; @FILE has one a line.
    #[arg(short = 'a', long, value_name = "SYMBOLS", value_parser = audit, overrides_with = "audit")]
    audit: Option<Kind>,
    /// Enable backtraces for freeing functions.
    #[arg(short = 'b', long, action = clap::ArgAction::Count)]
    free_backtraces: u8,
    /// Print the events of the program on stderr.
    #[arg(short, long, action = clap::ArgAction::Count)]
    debug: u8,
    /// Set of functions to track: a plugin's name or path, or FILE.toml.
    #[arg(short = 'e', long, value_name = "PLUGIN", default_value = "memory", value_parser = plugin, overrides_with = "track")]
    track: Kind,
    /// Save to a file instead of stdout.
    #[arg(short, long, action = clap::ArgAction::Count)]
    file: u8,
    /// Print the time of every event.
    #[arg(short = 'i', long, action = clap::ArgAction::Count)]
    time: u8,
    /// With -f: save to this directory instead of the home directory.
    #[arg(short = 'l', long, value_name = "DIR", value_parser = directory, overrides_with = "path")]
    path: Option<PathBuf>,
    /// Track running processes, with commas.
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Resolve names of functions.
    #[arg(short, long, action = clap::ArgAction::Count)]
    resolve_name: u8,
    /// Track from the beginning.
    #[arg(short, long, action = clap::ArgAction::Count)]
    start: u8,
    /// Highest number of functions in a backtrace.
    #[arg(short = 't', long, value_name = "NUMBER", default_value_t = MAX_DEPTH, value_parser = depth, overrides_with = "depth")]
    depth: usize,
    /// Print the beginning and the end of a trace.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Give a short usage message.
    #[arg(long)]
    usage: bool,
    /// The program and its arguments.
    #[arg(required_unless_present_any = ["pid", "usage"], conflicts_with = "pid", trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// A plugin by its name, or the path of functracer's.
fn plugin(text: &str) -> Result<Kind, String> {
    let name = Path::new(text).file_name().and_then(OsStr::to_str).unwrap_or(text);
    match name.strip_suffix(".so").unwrap_or(name) {
        "thread-resource" => Ok(Kind::BuiltIn(Resource::Thread)),
        "audit" => Err("the plugin audit needs names of functions; use -a 'SYMBOL;SYMBOL'".to_owned()),
        name if name.ends_with(".toml") => parse(text),
        name if parse(name).is_ok() => parse(name),
        name => {
            let others: Vec<&str> = Specification::built_in().collect();
            Err(format!(
                "no plugin has the name {name}; plugins are memory, file, thread-resource, {}, and FILE.toml",
                others.join(", ")
            ))
        }
    }
}

fn audit(symbols: &str) -> Result<Kind, String> {
    parse(&format!("audit:{symbols}"))
}

fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err("Path must be a valid directory path".to_owned()) }
}

fn depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| *depth <= MAX_DEPTH);
    depth.ok_or_else(|| format!("Depth must be between 0 and {MAX_DEPTH}"))
}

/// Runs it; ends this process with the program's exit status.
pub(crate) fn run(args: FunctracerArgs) -> Result<()> {
    if args.usage {
        let mut command = FunctracerArgs::augment_args(Command::new("rftrace functracer"));
        println!("{}", command.render_usage());
        return Ok(());
    }
    if args.pid.len() > MAX_PIDS {
        bail!("Maximum number of PID exceeded ({MAX_PIDS})");
    }
    let place = match (args.file > 0, &args.path) {
        (false, _) => Place::Stdout,
        (true, Some(path)) => Place::Folder(path.clone()),
        (true, None) => {
            Place::Folder(std::env::home_dir().context("-f without -l saves to $HOME, which is not set; add -l DIR")?)
        }
    };
    let track = args.audit.as_ref().unwrap_or(&args.track);
    let resource = match track {
        Kind::BuiltIn(resource) => Some(*resource),
        Kind::Specified(_) => None,
    };
    let text = FunctracerText {
        resource,
        has_time: args.time > 0,
        has_names: args.resolve_name > 0,
        has_release_stacks: args.free_backtraces > 0,
        depth: args.depth,
    };
    let way = if args.depth == 0 { Backtraces::None } else { Backtraces::Cfi };
    let work = tempfile::Builder::new().prefix("rftrace-").tempdir().context("cannot make a temporary directory")?;
    let sections = Sections::new(text, place, args.start > 0, args.verbose > 0);
    if !args.pid.is_empty() {
        return attach(&args, track, way, work.path(), sections);
    }
    start(&args, track, way, work, sections)
}

/// Takes an event.
fn take(
    args: &FunctracerArgs,
    (sections, recorder, work): (&mut Sections, &ResourceRecorder, &Path),
    happened: Happened,
) -> Result<Fate> {
    if args.debug > 0 {
        say!("functracer: {happened:?}");
    }
    if let Happened::Signal(_, SIGUSR1) = happened {
        sections.switch(recorder, work)?;
        return Ok(Fate::Taken);
    }
    sections.add(happened, recorder)?;
    Ok(Fate::PassedOn)
}

/// Runs the program, and ends this process with its exit status.
fn start(args: &FunctracerArgs, track: &Kind, way: Backtraces, work: TempDir, mut sections: Sections) -> Result<()> {
    rftrace_record::inherited::put_aside()?;
    let program = program::find(&args.command[0])?;
    program::check(&program, Recorded::Resources)?;
    check(&program)?;
    let (wanted, plan) = plan(slice::from_ref(track), &program)?;
    plan.without_branches()?;
    if wanted.contains(&Resource::Memory) {
        tell_of_allocator(&program)?;
    }
    let libraries = libraries(&plan)?;
    let recorder = ResourceRecorder::begin(work.path(), MOST_BYTES, &wanted, &plan, true)?;
    let mut command = Process::new(&program);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0]).args(&args.command[1..]);
    let mut preloaded: Vec<OsString> = libraries.iter().map(|library| library.path().into()).collect();
    preloaded.extend(std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()));
    rftrace_record::inherited::hand_on(&mut command);
    command.env("LD_PRELOAD", preloaded.join(OsStr::new(":"))).envs(environment(&recorder, way)?);
    recorder.pause(args.start == 0);
    let ended =
        follow(command, pass_signals_on()?, |happened| take(args, (&mut sections, &recorder, work.path()), happened));
    sections.end(recorder.now());
    let recorded = recorder.stop();
    let written = sections.write(&work.path().join(RESOURCES));
    tell_of_losses(&recorded, MOST_BYTES as usize, "", None);
    let code = ended?;
    written?;
    drop((work, libraries));
    std::process::exit(code)
}

/// Tracks programs that run, and leaves them as they were.
fn attach(args: &FunctracerArgs, track: &Kind, way: Backtraces, work: &Path, mut sections: Sections) -> Result<()> {
    let mut pids = args.pid.clone();
    // One that is named twice is one.
    pids.sort_unstable();
    pids.dedup();
    let resources = of_running(slice::from_ref(track), way, &pids, true)?;
    let library = Preload::find(preload::TRACER)?.path().to_owned();
    let options = track::Options { pids: &pids, library, resources, work, most_bytes: MOST_BYTES };
    let is_paused = args.start == 0;
    let tracked = track::track(
        &options,
        |recorder| recorder.pause(is_paused),
        |recorder, happened| take(args, (&mut sections, recorder, work), happened),
    )?;
    sections.end(u64::MAX);
    let written = sections.write(&work.join(RESOURCES));
    tell_of_losses(&tracked.recorded, MOST_BYTES as usize, "", None);
    tracked.ends.iter().for_each(|(pid, reason)| tell_of_end(*pid, reason));
    tell_of_left_out(&tracked.left_out);
    tracked.result.and(written)
}

/// Returns a function that passes this process's signals on to the program, as soon as that is there. The program gets the terminal's signals itself.
fn pass_signals_on() -> Result<impl FnOnce(u32)> {
    let mut signals =
        SignalsInfo::<WithOrigin>::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1]).context("cannot handle signals")?;
    Ok(move |pid: u32| {
        std::thread::spawn(move || {
            for origin in signals.forever().filter(|origin| origin.process.is_some()) {
                rftrace_record::follow::send(pid, origin.signal);
            }
        });
    })
}
