//! `rftrace resources`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rftrace_format::files::RESOURCES;
use rftrace_read::Pattern;
use rftrace_resources::{Account, Choice, Difference, Names, Recording, Report, Sort, Sums, Until, write_heaptrack};
use serde_json::json;

use super::choice::parse_pattern;
use super::common::{DirArg, print};
use super::time::parse_ns;

const EXAMPLES: &str = "\
Examples:
  rftrace record --resources memory -o mytrace ./app   records it; the program need not be built for it
  rftrace resources mytrace                            who took what is still there at the end
  rftrace resources --sort allocated -n 5 mytrace      who took most
  rftrace resources --at 1.5s mytrace                  what was there then
  rftrace resources --leaks mytrace                    for CI: exit status 1 if something was not given back
  rftrace resources --flamegraph peak -o peak.svg mytrace
  rftrace resources --diff newtrace mytrace            what was taken more there
  rftrace resources --heaptrack -o mytrace.heap mytrace && heaptrack_gui mytrace.heap";

/// Shows who took memory and did not give it back, as `rftrace record --resources memory` records it.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct ResourcesArgs {
    #[command(flatten)]
    dir: DirArg,
    /// The order of stacks: by bytes or blocks that are still there, by all bytes that were taken, by blocks that were given back at
    /// once.
    #[arg(short, long, value_name = "ORDER", default_value = "bytes", value_enum)]
    sort: SortArg,
    /// Show so many stacks; 0 for all.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 10)]
    limit: usize,
    /// Show so many functions of each stack, the innermost ones; 0 for all.
    #[arg(short = 'D', long, value_name = "NUMBER", default_value_t = 16)]
    depth: usize,
    /// What was there so long after the recording began: 500ms, 1.5s.
    #[arg(long, value_name = "TIME", value_parser = parse_ns)]
    at: Option<u64>,
    /// Only what this process took.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Show only what was not given back. The exit status is 1 if there is such. What C and C++ libraries and Rust's keep until the end
    /// does not count.
    #[arg(long)]
    leaks: bool,
    /// With --leaks: what has such a function or module in its stack does not count. A name, a glob, or a regex between slashes.
    #[arg(long, value_name = "PATTERN", requires = "leaks", value_parser = parse_pattern)]
    suppress: Vec<Pattern>,
    /// Draw a flame graph, of what is still there, was there at the peak, or was taken in all.
    #[arg(long, value_name = "OF", value_enum, conflicts_with_all = ["json", "leaks"])]
    flamegraph: Option<Flame>,
    /// Show what another trace has more, or less, than this one.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["flamegraph", "leaks", "pid", "heaptrack"])]
    diff: Option<PathBuf>,
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
    /// Write the file that heaptrack_gui and heaptrack_print read, of all that was taken and given back.
    #[arg(long, conflicts_with_all = ["json", "leaks", "flamegraph", "sort", "limit", "depth"])]
    heaptrack: bool,
    /// Where to write to instead of stdout.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortArg {
    Bytes,
    Count,
    Allocated,
    Temporary,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Flame {
    Live,
    Peak,
    Allocated,
}

impl From<SortArg> for Sort {
    fn from(arg: SortArg) -> Self {
        match arg {
            SortArg::Bytes => Self::Bytes,
            SortArg::Count => Self::Count,
            SortArg::Allocated => Self::Allocated,
            SortArg::Temporary => Self::Temporary,
        }
    }
}

fn open(dir: &Path) -> Result<Recording> {
    let path = dir.join(RESOURCES);
    if !path.exists() {
        bail!(
            "{} is not there: it is recorded by `rftrace record --resources memory`, and lies in the directory of the trace",
            path.display()
        );
    }
    Ok(Recording::open(&path)?)
}

/// Runs it; ends this process with status 1 where `--leaks` has found some.
pub(crate) fn run(args: ResourcesArgs) -> Result<()> {
    let recording = open(&args.dir.path())?;
    if args.pid.is_some_and(|pid| !recording.processes().values().any(|process| process.pid == pid)) {
        let mut pids: Vec<String> = recording.processes().values().map(|process| process.pid.to_string()).collect();
        pids.dedup();
        bail!("--pid: no such process was recorded; there are {}", pids.join(", "));
    }
    let mut until = args.at.map_or(Until::End, Until::Nanos);
    if args.heaptrack {
        let mut names = Names::default();
        write_to(args.output.as_deref(), |out| write_heaptrack(&recording, until, args.pid, &mut names, out))?;
        warn_of_recording(&recording, names.changed());
        return Ok(());
    }
    let mut account = Account::of(&recording, until, args.pid)?;
    if args.flamegraph == Some(Flame::Peak) {
        until = Until::Events(account.peak_at.1);
        account = Account::of(&recording, until, args.pid)?;
    }
    let choice = Choice { sort: args.sort.into(), is_leaks: args.leaks, suppressed: args.suppress };
    let report = Report::of(&recording, &account, &choice, &mut Names::default());
    let all = |number: usize| if number == 0 { usize::MAX } else { number };
    let (limit, depth) = (all(args.limit), all(args.depth));
    if let Some(dir) = args.diff {
        let other = open(&dir)?;
        let other_account = Account::of(&other, until, None)?;
        let other_report = Report::of(&other, &other_account, &choice, &mut Names::default());
        let difference = Difference::of((&account, &report), (&other_account, &other_report), choice.sort);
        write_to(args.output.as_deref(), |out| {
            if args.json {
                writeln!(out, "{:#}", difference.json(limit, depth)).map_err(rftrace_read::Error::Write)
            } else {
                difference.write(limit, depth, out)
            }
        })?;
        warn_of_recording(&recording, &report.changed);
        warn_of_recording(&other, &other_report.changed);
        return Ok(());
    }
    let write = |out: &mut dyn Write| {
        if let Some(of) = args.flamegraph {
            let (title, bytes): (_, fn(&Sums) -> u64) = match of {
                Flame::Live => ("Memory that is still there", |sums| sums.bytes),
                Flame::Peak => ("Memory at the peak", |sums| sums.bytes),
                Flame::Allocated => ("Memory that was taken", |sums| sums.allocated),
            };
            report.flame_graph(title, bytes, out)
        } else if args.json {
            let value = json!({ "memory": account.json(&recording), "stacks": report.json(limit, depth) });
            writeln!(out, "{value:#}").map_err(rftrace_read::Error::Write)
        } else {
            if !args.leaks {
                account.write(&recording, out)?;
            }
            report.write(limit, depth, args.leaks, out)
        }
    };
    write_to(args.output.as_deref(), write)?;
    warn_of_recording(&recording, &report.changed);
    warn_of_account(&account);
    let total = report.total();
    if args.leaks {
        let left_out = match report.suppressed.blocks {
            0 => String::new(),
            1 => format!("; {} bytes in 1 block do not count", report.suppressed.bytes),
            blocks => format!("; {} bytes in {blocks} blocks do not count", report.suppressed.bytes),
        };
        match total.blocks {
            1 => say!("rftrace: {} bytes in 1 block were not given back{left_out}", total.bytes),
            blocks => say!("rftrace: {} bytes in {blocks} blocks were not given back{left_out}", total.bytes),
        }
        if total.blocks > 0 {
            std::process::exit(1);
        }
    }
    Ok(())
}

/// Writes to a file, or to stdout.
fn write_to(file: Option<&Path>, write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<()>) -> Result<()> {
    let Some(path) = file else { return Ok(print(write)?) };
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush().with_context(|| format!("cannot write {}", path.display()))
}

/// Says what is missing. `changed` are programs and libraries without names.
fn warn_of_recording(recording: &Recording, changed: &[String]) {
    if recording.lost > 0 && !recording.is_cut {
        say!("rftrace: {} calls were not recorded, so what is shown may be wrong", recording.lost);
    }
    if recording.is_cut {
        say!("rftrace: the recording ended at its --max-size: what was given back later seems to be there still");
    }
    if !recording.is_whole {
        say!("rftrace: the recorder was interrupted: the last calls are missing");
    }
    for path in changed {
        say!("rftrace: {path} is not here, or of another build than was recorded: no names of its functions");
    }
}

/// Says what was odd.
fn warn_of_account(account: &Account) {
    if account.unknown > 0 {
        say!(
            "rftrace: {} blocks were given back that were not taken while it was recorded, or by an allocator that is not seen",
            account.unknown
        );
    }
    if account.doubled > 0 {
        say!("rftrace: {} blocks were taken again without having been given back where it is seen", account.doubled);
    }
}
