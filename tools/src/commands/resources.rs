//! `rftrace resources`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use rftrace_format::files::RESOURCES;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::quantity::duration_ns;
use rftrace_format::resources::{MAX_FRAMES, Resource};
use rftrace_read::{Pattern, ShownNames};
use rftrace_resources::{
    Account, Choice, Difference, FunctracerText, Names, Recording, Report, Section, Sort, Sums, Unit, Until, amount,
    functracer_header, several_of, write_heaptrack, write_sp_rtrace,
};
use serde_json::{Value, json};

use super::choice::parse_pattern;
use super::common::{DirArg, write_to};

/// A group in `--help`.
const LEAKS: &str = "Leaks: --leaks --suppress 'app::cache::*'";

/// A group in `--help`.
const FORMATS: &str = "Formats: --text functracer --resolve";

const EXAMPLES: &str = "\
Examples:
  rftrace record --resources memory -o mytrace ./app   records any program
  rftrace resources mytrace                            owners of memory at the end
  rftrace resources --leaks mytrace                    for CI: exit status 1 for a leak
  rftrace resources --at 1.5s mytrace                  owners of memory at 1.5 s
  rftrace resources --sort allocated -n 5 mytrace      the five largest sums of allocations
  rftrace resources --kind file mytrace                only files and sockets
  rftrace resources --flamegraph peak -o peak.svg mytrace
  rftrace resources --diff newtrace mytrace            growth in the other trace
  rftrace resources --text functracer mytrace          text for functracer's or sp-rtrace's tools
  rftrace resources --heaptrack -o mytrace.heap mytrace && heaptrack_gui mytrace.heap";

/// Options that exclude another one, and every option that needs that one: clap asks for no option that is excluded.
const NOT_LEAKS: [&str; 5] = ["flamegraph", "diff", "heaptrack", "text", "resolve"];
const NOT_TEXT: [&str; 8] = ["json", "leaks", "flamegraph", "diff", "heaptrack", "sort", "limit", "at"];

/// Shows leaks and owners of memory, files and threads.
///
/// The trace comes from `rftrace record --resources memory,file,thread`.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct ResourcesArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Only these kinds: memory, file, thread, library, or those of a specification.
    #[arg(short, long, value_name = "KINDS", value_delimiter = ',')]
    kind: Vec<String>,
    /// Order of stacks: live bytes, live blocks, all allocated bytes, or blocks freed at once.
    #[arg(short, long, value_name = "ORDER", default_value = "bytes", value_enum)]
    sort: SortArg,
    /// Highest number of stacks; 0 for all.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 10)]
    limit: usize,
    /// Highest number of functions in a stack, from the caller of a standard library on; 0 for all.
    #[arg(
        short = 'D',
        long,
        value_name = "NUMBER",
        default_value_t = 16,
        default_value_if("text", ArgPredicate::IsPresent, "0")
    )]
    depth: usize,
    /// State at this time after the start: 500ms, 1.5s.
    #[arg(long, value_name = "TIME", value_parser = duration_ns)]
    at: Option<u64>,
    /// Only this process.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Show leaks only; the exit status is 1 if there is one.
    ///
    /// Blocks that the C, C++ and Rust libraries keep until the end do not count, nor do descriptors 0 to 2.
    #[arg(long, conflicts_with_all = NOT_LEAKS)]
    leaks: bool,
    /// With --leaks: ignore stacks with this function or module: a name, a glob, or a regex between slashes.
    #[arg(long, value_name = "PATTERN", requires = "leaks", conflicts_with_all = NOT_LEAKS, value_parser = parse_pattern, help_heading = LEAKS)]
    suppress: Vec<Pattern>,
    /// With --leaks: file of such patterns, one a line; # begins a comment.
    #[arg(long, value_name = "FILE", requires = "leaks", conflicts_with_all = NOT_LEAKS, help_heading = LEAKS)]
    suppressions: Vec<PathBuf>,
    /// Draw a flame graph of live, peak, all allocated, or temporary blocks.
    ///
    /// It is about memory, or about the kind of --kind.
    #[arg(long, value_name = "OF", value_enum, conflicts_with = "json")]
    flamegraph: Option<Flame>,
    /// Show the differences to another trace.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["flamegraph", "pid", "heaptrack"])]
    diff: Option<PathBuf>,
    /// Show full names of functions. Otherwise names of more than 60 columns are cut.
    #[arg(long, help_heading = FORMATS)]
    full_names: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write all allocations for heaptrack_gui and heaptrack_print.
    #[arg(long, conflicts_with_all = ["json", "kind", "flamegraph", "sort", "limit", "depth"], help_heading = FORMATS)]
    heaptrack: bool,
    /// Write one line for each call, as functracer does for one kind, or sp-rtrace for one process. Stacks are whole unless -D is
    /// there.
    #[arg(long, value_name = "OF", value_enum, conflicts_with_all = NOT_TEXT, help_heading = FORMATS)]
    text: Option<Text>,
    /// With --text: names of functions.
    #[arg(long, requires = "text", conflicts_with_all = NOT_TEXT, help_heading = FORMATS)]
    resolve: bool,
    /// Output file [default: stdout].
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
enum Text {
    Functracer,
    SpRtrace,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Flame {
    Live,
    Peak,
    Allocated,
    Temporary,
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
    super::stream_file::refuse(dir)?;
    let path = dir.join(RESOURCES);
    if !path.exists() {
        bail!(
            "cannot find {}: the trace has no resources; `rftrace record --resources memory` records them",
            path.display()
        );
    }
    Ok(Recording::open(&path)?)
}

/// Returns the resources to show. The recording has to have all that were asked for.
fn chosen(recording: &Recording, kinds: &[&str]) -> Result<Vec<Resource>> {
    let recorded = recording.resources();
    let names: Vec<&str> = recorded.iter().map(|resource| resource.name()).collect();
    if let Some(missing) = kinds.iter().find(|kind| !names.contains(kind)) {
        bail!(
            "the trace has no {missing}, and has {}: record it with --resources {missing}",
            if names.is_empty() { "nothing".to_owned() } else { names.join(", ") },
        );
    }
    Ok(recorded.into_iter().filter(|resource| kinds.is_empty() || kinds.contains(&resource.name())).collect())
}

/// The patterns of a file.
pub(crate) fn suppressions(path: &Path) -> Result<Vec<Pattern>> {
    let text = opener::read_text(path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let pattern = |(line, number)| {
        parse_pattern(line).map_err(|error| anyhow::anyhow!("line {number} of {}: {error}", path.display()))
    };
    lines.map(pattern).collect()
}

/// Runs it; ends this process with status 1 where `--leaks` has found some.
pub(crate) fn run(args: ResourcesArgs) -> Result<()> {
    let recording = open(&args.dir.clone().path())?;
    if args.pid.is_some_and(|pid| !recording.processes().values().any(|process| process.pid == pid)) {
        let mut pids: Vec<String> = recording.processes().values().map(|process| process.pid.to_string()).collect();
        pids.dedup();
        bail!("--pid: the trace has no such process; it has {}", pids.join(", "));
    }
    let until = args.at.map_or(Until::End, Until::Nanos);
    let output = args.output.as_deref();
    if args.heaptrack {
        chosen(&recording, &["memory"])?;
        let mut names = Names::of_recording(&recording);
        write_to(output, |out| write_heaptrack(&recording, until, args.pid, &mut names, out))?;
        warn_of_recording(&recording, names.changed());
        return Ok(());
    }
    let kinds: Vec<&str> = args.kind.iter().map(String::as_str).collect();
    let resources = chosen(&recording, &kinds)?;
    if let Some(dialect) = args.text {
        return write_text(&recording, &resources, dialect, &args);
    }
    let mut suppressed = args.suppress.clone();
    for path in &args.suppressions {
        suppressed.extend(suppressions(path)?);
    }
    let names = ShownNames::new(args.full_names);
    let choice = Choice { sort: args.sort.into(), is_leaks: args.leaks, suppressed, names };
    if let Some(of) = args.flamegraph {
        return draw(&recording, &resources, of, &args, &choice);
    }
    let mut names = Names::of_recording(&recording);
    let mut found = Vec::new();
    for &resource in &resources {
        let account = Account::of(&recording, resource, until, args.pid)?;
        let report = Report::of(&recording, &account, &choice, &mut names);
        found.push((account, report));
    }
    if let Some(dir) = &args.diff {
        let other = open(dir)?;
        let mut names_of_other = Names::of_recording(&other);
        let mut differences = Vec::new();
        for (account, report) in &found {
            if !other.resources().contains(&account.resource) {
                say!("rftrace: no comparison of {}: {} lacks it", account.resource.name(), dir.display());
                continue;
            }
            let other_account = Account::of(&other, account.resource, until, None)?;
            let other_report = Report::of(&other, &other_account, &choice, &mut names_of_other);
            differences.push((
                account.resource,
                Difference::of((account, report), (&other_account, &other_report), choice.sort),
            ));
        }
        let texts = differences.iter().map(|(resource, difference)| (*resource, difference));
        write_all(&args, texts, |difference, (limit, depth)| difference.json(limit, depth), Difference::write)?;
        warn_of_recording(&recording, names.changed());
        warn_of_recording(&other, names_of_other.changed());
        return Ok(());
    }
    let json =
        |(account, report): &(Account, Report), (limit, depth)| (account.json(&recording), report.json(limit, depth));
    let text = |(account, report): &(Account, Report), limit, depth, out: &mut dyn Write| {
        if !args.leaks {
            account.write(&recording, out)?;
        }
        report.write(limit, depth, &choice, out)
    };
    write_all(&args, found.iter().map(|both| (both.0.resource, both)), json, text)?;
    warn_of_recording(&recording, names.changed());
    for (account, _) in &found {
        warn_of_account(&recording, account);
    }
    if args.leaks {
        let mut any = false;
        for (_, report) in &found {
            any |= tell_of_leaks(report);
        }
        if any {
            std::process::exit(1);
        }
    }
    Ok(())
}

/// Writes what was found of each resource: as text, one after the other, or as one value.
fn write_all<'f, T: 'f>(
    args: &ResourcesArgs,
    found: impl Iterator<Item = (Resource, &'f T)>,
    json: impl Fn(&T, (usize, usize)) -> (Value, Vec<Value>),
    text: impl Fn(&T, usize, usize, &mut dyn Write) -> rftrace_read::Result<()>,
) -> Result<()> {
    let all = |number: usize| if number == 0 { usize::MAX } else { number };
    let (limit, depth) = (all(args.limit), all(args.depth));
    write_to(args.output.as_deref(), |out| {
        if args.json {
            let mut value = json!({});
            let mut all_stacks = Vec::new();
            for (resource, one) in found {
                let (total, stacks) = json(one, (limit, depth));
                value[resource.name()] = total;
                all_stacks.extend(stacks);
            }
            value["stacks"] = all_stacks.into();
            return writeln!(out, "{value:#}").map_err(rftrace_read::Error::Write);
        }
        for (place, (_, one)) in found.enumerate() {
            if place > 0 && !args.leaks {
                writeln!(out).map_err(rftrace_read::Error::Write)?;
            }
            text(one, limit, depth, out)?;
        }
        Ok(())
    })
}

/// Draws the first of the resources.
fn draw(recording: &Recording, resources: &[Resource], of: Flame, args: &ResourcesArgs, choice: &Choice) -> Result<()> {
    let Some(&resource) = resources.first() else { bail!("cannot draw a flame graph: the trace has no resources") };
    let mut account = Account::of(recording, resource, args.at.map_or(Until::End, Until::Nanos), args.pid)?;
    if of == Flame::Peak {
        account = Account::of(recording, resource, Until::Events(account.peak_at.1), args.pid)?;
    }
    let report = Report::of(recording, &account, choice, &mut Names::of_recording(recording));
    let what = match resource {
        Resource::Memory => "Memory",
        Resource::File => "Descriptors",
        Resource::Thread => "Threads",
        Resource::Library => "Libraries",
        Resource::Specified(specified) => specified.description,
    };
    let (when, width): (_, fn(&Sums) -> u64) = match of {
        Flame::Live => ("still there", |sums| sums.bytes),
        Flame::Peak => ("there at the peak", |sums| sums.bytes),
        Flame::Allocated => ("taken in all", |sums| sums.allocated),
        Flame::Temporary => ("given back at once", |sums| sums.temporary),
    };
    let unit = match of {
        Flame::Temporary => Unit::Blocks,
        Flame::Live | Flame::Peak | Flame::Allocated => Unit::Bytes,
    };
    write_to(args.output.as_deref(), |out| report.flame_graph(&format!("{what}: {when}"), unit, width, out))?;
    warn_of_recording(recording, &report.changed);
    warn_of_account(recording, &account);
    Ok(())
}

/// Writes the calls of processes as older tools do.
fn write_text(recording: &Recording, resources: &[Resource], dialect: Text, args: &ResourcesArgs) -> Result<()> {
    let mut pids: Vec<u32> = recording.processes().values().map(|process| process.pid).collect();
    pids.dedup();
    pids.retain(|pid| args.pid.is_none_or(|wanted| wanted == *pid));
    let depth = if args.depth == 0 { usize::MAX } else { args.depth };
    let mut names = Names::of_recording(recording);
    match dialect {
        Text::SpRtrace => {
            let &[pid] = pids.as_slice() else {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                bail!("--text sp-rtrace shows one process: choose it with --pid, of {}", pids.join(", "));
            };
            let depth = depth.min(MAX_FRAMES);
            let names = args.resolve.then_some(&mut names);
            write_to(args.output.as_deref(), |out| write_sp_rtrace(recording, resources, pid, depth, names, out))?;
        }
        Text::Functracer => {
            let &[resource] = resources else {
                let names: Vec<&str> = resources.iter().map(|resource| resource.name()).collect();
                bail!("--text functracer shows one kind: choose it with --kind, of {}", names.join(", "));
            };
            let text = FunctracerText {
                resource: Some(resource),
                has_time: true,
                has_names: args.resolve,
                has_release_stacks: true,
                depth,
            };
            write_to(args.output.as_deref(), |out| {
                for &pid in &pids {
                    let mut of_pid = recording.processes().values().filter(|process| process.pid == pid);
                    let Some(process) = of_pid.next() else { continue };
                    let nanos = recording.unix_nanos(0).unwrap_or(0);
                    let header = functracer_header(args.resolve, nanos, pid, &process.program);
                    out.write_all(header.as_bytes()).map_err(rftrace_read::Error::Write)?;
                    let section = Section { pid, times: (0, u64::MAX), first_index: 0, lines: &[] };
                    text.write(recording, &section, &mut names, out)?;
                }
                Ok(())
            })?;
        }
    }
    warn_of_recording(recording, names.changed());
    Ok(())
}

/// Says how much was not given back. Returns whether there is such.
fn tell_of_leaks(report: &Report) -> bool {
    let (resource, total, suppressed) = (report.resource, report.total(), report.suppressed);
    // To the byte.
    let amount = |bytes: u64, blocks: u64| match resource.has_bytes() {
        true => format!("{bytes} bytes in {blocks} block{}", if blocks == 1 { "" } else { "s" }),
        false => amount(resource, bytes, blocks),
    };
    let left_out = match suppressed.blocks {
        0 => String::new(),
        1 => format!("; {} does not count", amount(suppressed.bytes, 1)),
        blocks => format!("; {} do not count", amount(suppressed.bytes, blocks)),
    };
    let verb = if total.blocks == 1 && !resource.has_bytes() { "was" } else { "were" };
    let of = match resource {
        Resource::Specified(specified) => format!("{}: ", specified.name),
        _ => String::new(),
    };
    if total.blocks == 0 {
        say!("rftrace: {of}all {} were given back{left_out}", several_of(resource));
        return false;
    }
    say!("rftrace: {of}{} {verb} not given back{left_out}", amount(total.bytes, total.blocks));
    true
}

/// Says what is missing. `changed` are programs and libraries without names.
fn warn_of_recording(recording: &Recording, changed: &[String]) {
    if recording.lost > 0 && !recording.is_cut {
        say!("rftrace: the recording lacks {} calls: sums may be wrong", recording.lost);
    }
    if recording.is_cut {
        say!("rftrace: the recording ended at its --max-size: later releases are missing");
    }
    if !recording.is_whole {
        say!("rftrace: the recorder was interrupted: the last calls are missing");
    }
    for path in changed {
        say!(
            "rftrace: {path} is missing here, or another build than the recorded one: its functions have no source lines, \
             and names only from the trace"
        );
    }
}

/// Says what was odd. That programs close what they have from others is not, nor that they give back what they took before they were recorded.
fn warn_of_account(recording: &Recording, account: &Account) {
    let things = match account.resource {
        Resource::Specified(specified) => format!("{} of {}", several_of(account.resource), specified.name),
        resource => several_of(resource),
    };
    if account.unknown > 0
        && !recording.is_attached()
        && !matches!(account.resource, Resource::File | Resource::Library)
    {
        say!("rftrace: {} {things} were given back without a recorded allocation", account.unknown);
    }
    if account.doubled > 0 {
        say!("rftrace: {} {things} were taken again without a recorded release", account.doubled);
    }
}
