//! `rftrace resources`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rftrace_format::files::RESOURCES;
use rftrace_read::Pattern;
use rftrace_resources::{Account, Choice, Names, Recording, Report, Sort, Sums, Until};
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
  rftrace resources --flamegraph peak -o peak.svg mytrace";

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
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
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

/// Runs it; ends this process with status 1 where `--leaks` has found some.
pub(crate) fn run(args: ResourcesArgs) -> Result<()> {
    let dir = args.dir.path();
    let path = dir.join(RESOURCES);
    if !path.exists() {
        bail!(
            "{} is not there: it is recorded by `rftrace record --resources memory`, and lies in the directory of the trace",
            path.display()
        );
    }
    let recording = Recording::open(&path)?;
    if args.pid.is_some_and(|pid| !recording.processes().values().any(|process| process.pid == pid)) {
        let mut pids: Vec<String> = recording.processes().values().map(|process| process.pid.to_string()).collect();
        pids.dedup();
        bail!("--pid: no such process was recorded; there are {}", pids.join(", "));
    }
    let mut until = args.at.map_or(Until::End, Until::Nanos);
    let mut account = Account::of(&recording, until, args.pid)?;
    if args.flamegraph == Some(Flame::Peak) {
        until = Until::Events(account.peak_at.1);
        account = Account::of(&recording, until, args.pid)?;
    }
    let sort = match args.sort {
        SortArg::Bytes => Sort::Bytes,
        SortArg::Count => Sort::Count,
        SortArg::Allocated => Sort::Allocated,
        SortArg::Temporary => Sort::Temporary,
    };
    let choice = Choice { sort, is_leaks: args.leaks, suppressed: args.suppress };
    let report = Report::of(&recording, &account, &choice, &mut Names::default());
    let all = |number: usize| if number == 0 { usize::MAX } else { number };
    let (limit, depth) = (all(args.limit), all(args.depth));
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
    match &args.output {
        None => print(write)?,
        Some(path) => {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.flush().with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    warn(&recording, &account, &report);
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

/// Says what is missing, and what was odd.
fn warn(recording: &Recording, account: &Account, report: &Report) {
    if recording.lost > 0 && !recording.is_cut {
        say!("rftrace: {} calls were not recorded, so what is shown may be wrong", recording.lost);
    }
    if recording.is_cut {
        say!("rftrace: the recording ended at its --max-size: what was given back later seems to be there still");
    }
    if !recording.is_whole {
        say!("rftrace: the recorder was interrupted: the last calls are missing");
    }
    if account.unknown > 0 {
        say!(
            "rftrace: {} blocks were given back that were not taken while it was recorded, or by an allocator that is not seen",
            account.unknown
        );
    }
    if account.doubled > 0 {
        say!("rftrace: {} blocks were taken again without having been given back where it is seen", account.doubled);
    }
    for path in &report.changed {
        say!("rftrace: {path} is not here, or of another build than was recorded: no names of its functions");
    }
}
