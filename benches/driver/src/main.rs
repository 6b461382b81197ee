//! Runs the measured programs in turns and prints tables.
//!
//! ```text
//! driver PROGRAMS cost [ROUNDS]          nanoseconds per call
//! driver PROGRAMS compare [ROUNDS]       the same against an earlier state of this repository, in place of `published`
//! driver PROGRAMS instructions           instructions per call, by callgrind
//! driver PROGRAMS dump [ROUNDS]          time and memory of saving 20 million events
//! ```
//!
//! Machines are noisy, in phases: so a round runs every program once, a value is the median of many short batches, and
//! a ratio is taken within a round. What is printed are medians over the rounds.
//!
//! Exit status 1: a limit was missed; 2: something went wrong.

mod program;
mod stats;

use std::fs;
use std::process::{Command, ExitCode};

use program::{Programs, Variant};
use stats::Sample;

/// Highest ratio, ours to published, while recording.
const LIMIT_ON: f64 = 0.45;
/// Highest ratio while not recording.
const LIMIT_OFF: f64 = 1.1;
/// Highest ratio to an earlier state.
const LIMIT_BEFORE: f64 = 1.03;
/// Highest resident memory of a dump, in buffer sizes.
const LIMIT_PEAK: f64 = 1.1;
/// Longest time of a dump, in seconds.
const LIMIT_DUMP: f64 = 10.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [programs, command, ref rest @ ..] => run(programs, command, rest),
        _ => Err("usage: driver PROGRAMS cost|compare|instructions|dump [ROUNDS]".to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(programs: &str, command: &str, rest: &[&str]) -> Result<bool, String> {
    let programs = Programs::new(programs.as_ref())?;
    let rounds = match rest {
        [] => None,
        [rounds] => Some(rounds.parse().map_err(|_| format!("not a number of rounds: {rounds}"))?),
        _ => return Err("too many arguments".to_owned()),
    };
    describe_machine();
    match command {
        "cost" => cost(&programs, rounds.unwrap_or(21), Peer::Published),
        "compare" => cost(&programs, rounds.unwrap_or(21), Peer::Before),
        "instructions" => instructions(&programs),
        "dump" => dump(&programs, rounds.unwrap_or(5)),
        _ => Err(format!("no command {command}")),
    }
}

fn describe_machine() {
    let first_line = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {model}, {cpus} CPUs, Linux {}", first_line("date", "-I"), first_line("uname", "-r"));
    println!("load {}\n", fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
}

/// One row of the table of costs.
struct Case {
    workload: &'static str,
    state: &'static str,
    threads: &'static str,
    variants: &'static [Variant],
    limit: Option<f64>,
}

const CASES: [Case; 11] = {
    use Variant::{Ours, Published, Uftrace, Untraced};
    const fn traced(workload: &'static str, state: &'static str, threads: &'static str, limit: f64) -> Case {
        Case { workload, state, threads, variants: &[Ours, Published], limit: Some(limit) }
    }
    [
        Case { workload: "floor", state: "", threads: "1", variants: &[Untraced], limit: None },
        Case { variants: &[Ours, Published, Untraced, Uftrace], ..traced("leaf", "on", "1", LIMIT_ON) },
        Case { variants: &[Ours, Published, Untraced, Uftrace], ..traced("fib", "on", "1", LIMIT_ON) },
        traced("leaf", "on", "2", LIMIT_ON),
        traced("fib", "on", "2", LIMIT_ON),
        traced("leaf", "first", "1", LIMIT_ON),
        Case { variants: &[Ours, Published, Untraced], ..traced("leaf", "off", "1", LIMIT_OFF) },
        Case { variants: &[Ours, Published, Untraced], ..traced("fib", "off", "1", LIMIT_OFF) },
        traced("leaf", "off", "2", LIMIT_OFF),
        traced("fib", "off", "2", LIMIT_OFF),
        // The same once more: the difference to the row above is noise.
        traced("leaf", "on", "1", LIMIT_ON),
    ]
};

/// Values of one case, by variant, and the ratios of ours to published.
#[derive(Default)]
struct Measured {
    nanos: [Sample; 4],
    ratios: Sample,
}

impl Measured {
    /// Rounds that have given a value of every tracer.
    fn rounds(&self) -> usize {
        if self.ratios.is_empty() { self.nanos[Variant::Untraced as usize].len() } else { self.ratios.len() }
    }
}

/// What the program in the place of `published` is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Published,
    Before,
}

fn cost(programs: &Programs, rounds: usize, peer: Peer) -> Result<bool, String> {
    let mut table: Vec<Measured> = CASES.iter().map(|_| Measured::default()).collect();
    for round in 0..rounds {
        for (case, measured) in CASES.iter().zip(&mut table) {
            let mut values = [f64::NAN; 4];
            for place in 0..case.variants.len() {
                // Nobody is always the first.
                let variant = case.variants[(place + round) % case.variants.len()];
                let is_compared = matches!(variant, Variant::Ours | Variant::Published);
                if !programs.has(variant) || (peer == Peer::Before && !is_compared) {
                    continue;
                }
                let batches = programs.run(variant, &["cost", case.workload, case.state, case.threads])?;
                let sample: Sample = batches.iter().flatten().copied().collect();
                if sample.is_empty() {
                    continue;
                }
                values[variant as usize] = sample.median();
                measured.nanos[variant as usize].add(sample.median());
            }
            let ratio = values[Variant::Ours as usize] / values[Variant::Published as usize];
            if ratio.is_finite() {
                measured.ratios.add(ratio);
            }
        }
    }
    println!("Nanoseconds per call: median over {rounds} rounds (quartiles). CPU time of the calling thread.\n");
    let name = if peer == Peer::Before { "before" } else { "published" };
    println!("| calls | ours | {name} | ratio | limit | rounds | untraced | uftrace |");
    println!("|---|---|---|---|---|---|---|---|");
    // Nothing measured is nothing met.
    let mut all_met = true;
    for (case, measured) in CASES.iter().zip(&table) {
        let limit = if peer == Peer::Before { case.limit.and(Some(LIMIT_BEFORE)) } else { case.limit };
        if limit.is_none() && measured.rounds() == 0 {
            continue;
        }
        let state = match case.state {
            "on" => ", recording",
            "off" => ", not recording",
            "first" => ", first pass through the buffer",
            _ => "",
        };
        let threads = if case.threads == "1" { "" } else { ", 2 threads" };
        let [ours, published, untraced, uftrace] = &measured.nanos;
        let (limit, verdict) = match limit {
            Some(limit) if measured.ratios.median() <= limit => (limit.to_string(), ""),
            Some(limit) => (limit.to_string(), " MISSED"),
            None => (String::new(), ""),
        };
        all_met &= verdict.is_empty();
        println!(
            "| {}{state}{threads} | {} | {} | {} | {limit}{verdict} | {} | {} | {} |",
            case.workload,
            cell(ours),
            cell(published),
            cell(&measured.ratios),
            measured.rounds(),
            cell(untraced),
            cell(uftrace),
        );
    }
    Ok(all_met)
}

/// Median and quartiles.
fn cell(sample: &Sample) -> String {
    if sample.is_empty() {
        return String::new();
    }
    let digits = if sample.median() < 10.0 { 2 } else { 1 };
    let [low, median, high] = [0.25, 0.5, 0.75].map(|fraction| sample.quantile(fraction));
    format!("{median:.digits$} ({low:.digits$}–{high:.digits$})")
}

fn instructions(programs: &Programs) -> Result<bool, String> {
    println!("Instructions per call, from the difference of two runs under callgrind.\n");
    println!("| calls | ours | published | untraced | ratio of what the tracer adds |");
    println!("|---|---|---|---|---|");
    for (workload, state) in [("leaf", "on"), ("fib", "on"), ("leaf", "off"), ("fib", "off")] {
        let per_call = |variant| {
            let run = |calls: &str| -> Result<(f64, f64), String> {
                let arguments = ["count", workload, state, calls];
                let made = programs.run(variant, &arguments)?.concat().into_iter().sum();
                Ok((made, programs.instructions(variant, &arguments)? as f64))
            };
            let ((few, few_instructions), (many, many_instructions)) = (run("100000")?, run("400000")?);
            Ok::<f64, String>((many_instructions - few_instructions) / (many - few))
        };
        let (ours, published, untraced) =
            (per_call(Variant::Ours)?, per_call(Variant::Published)?, per_call(Variant::Untraced)?);
        let ratio = (ours - untraced) / (published - untraced);
        let state = if state == "on" { "recording" } else { "not recording" };
        println!("| {workload}, {state} | {ours:.1} | {published:.1} | {untraced:.1} | {ratio:.2} |");
    }
    Ok(true)
}

fn dump(programs: &Programs, rounds: usize) -> Result<bool, String> {
    const VARIANTS: [Variant; 2] = [Variant::Ours, Variant::Published];
    const NAMES: [&str; 4] = ["seconds", "buffer", "resident before", "peak"];
    let mut table: [[Sample; 5]; 2] = Default::default();
    for round in 0..rounds {
        for place in 0..2 {
            let which = (place + round) % 2;
            let folder = programs.folder()?;
            let path = folder.to_str().ok_or("the temporary folder's path is not Unicode")?;
            let result = programs.run(VARIANTS[which], &["dump", path])?.concat();
            if result.len() != NAMES.len() {
                return Err(format!("{} numbers instead of {NAMES:?}", result.len()));
            }
            result.iter().zip(&mut table[which]).for_each(|(&value, sample)| sample.add(value));
            table[which][4].add(events(&folder)? as f64 / 1e6);
        }
    }
    println!("Saving 20 million events of 8 threads: medians over {rounds} rounds (quartiles for the time).\n");
    println!("| | time (s) | million events | buffer (MiB) | resident before (MiB) | peak (MiB) | peak / buffer |");
    println!("|---|---|---|---|---|---|---|");
    for (variant, [seconds, buffer, before, peak, events]) in VARIANTS.iter().zip(&table) {
        let mib = |sample: &Sample| sample.median() / 1024.0;
        println!(
            "| {variant} | {} | {:.2} | {:.0} | {:.0} | {:.0} | {:.3} |",
            cell(seconds),
            events.median(),
            mib(buffer),
            mib(before),
            mib(peak),
            peak.median() / buffer.median(),
        );
    }
    let [seconds, buffer, _, peak, _] = &table[0];
    Ok(seconds.median() <= LIMIT_DUMP && peak.median() <= LIMIT_PEAK * buffer.median())
}

/// Records in a trace directory.
fn events(directory: &std::path::Path) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    let mut bytes = 0;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().extension().is_some_and(|extension| extension == "dat") {
            bytes += entry.metadata().map_err(failed)?.len();
        }
    }
    Ok(bytes / 16)
}
