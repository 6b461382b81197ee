//! `rftrace info`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::HumanCount;
use rftrace_format::{clock::key as clock, cost, ending, info::key as info};
use rftrace_read::{Error, Summary, Task, Trace};
use rftrace_views::{Duration, TaskStats};
#[cfg(feature = "full")]
use serde_json::{Value, json};

#[cfg(feature = "full")]
use super::common::JSON_VERSION;
use super::common::{DirArg, PlainArgs, losses, print, print_flaws, shell_word};
use super::open::open;
use super::stand_ins;
use super::unfinished;

const EXAMPLES: &str = "\
Examples:
  rftrace info mytrace            the program, the machine, threads, losses, modules and the clock
  rftrace info mytrace | grep -i lost
  rftrace info --json mytrace | jq .ends";

/// Describes a trace: program, machine, threads, losses, modules, clock.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Print JSON.
    #[cfg(feature = "full")]
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    _plain: PlainArgs,
}

/// Possible keys of the `info` file, with the words for people.
const PROGRAM: [(&str, &str); 13] = [
    ("recorded by", info::TRACER),
    ("recorded on", info::DATE),
    ("program", info::EXE_NAME),
    ("build-id", info::BUILD_ID),
    ("command line", info::COMMAND_LINE),
    ("exit status", info::EXIT_STATUS),
    ("elapsed time", info::ELAPSED_TIME),
    ("CPU time, system", info::SYSTEM_TIME),
    ("CPU time, user", info::USER_TIME),
    ("context switches", info::SWITCHES),
    ("max. resident KiB", info::MAX_RESIDENT),
    ("page faults", info::PAGE_FAULTS),
    ("blocks", info::BLOCKS),
];

const MACHINE: [(&str, &str); 7] = [
    ("CPU", info::PROCESSOR),
    ("number of CPUs", info::PROCESSORS),
    ("memory", info::MEMORY),
    ("load", info::LOAD),
    ("kernel", info::KERNEL),
    ("host", info::HOSTNAME),
    ("distribution", info::DISTRIBUTION),
];

/// The keys of `clock.txt`.
const CLOCK: [(&str, &str); 11] = [
    ("TSC frequency (Hz)", clock::HZ),
    ("measured by", clock::HZ_SOURCE),
    ("TSC at the start", clock::FIRST_TSC),
    ("time at the start (ns)", clock::FIRST_NANOS),
    ("TSC at the end", clock::LAST_TSC),
    ("time at the end (ns)", clock::LAST_NANOS),
    ("Unix time at start (ns)", clock::UNIX_NANOS),
    ("reported TSC frequency", clock::REPORTED_HZ),
    ("reported by", clock::REPORTED_HZ_SOURCE),
    ("a call costs inside (ps)", cost::INSIDE),
    ("and in its caller (ps)", cost::OUTSIDE),
];

/// Runs it.
pub(crate) fn run(args: InfoArgs) -> Result<()> {
    let dir = args.dir.path();
    let trace = open(&dir)?;
    let tasks = trace.tasks().iter().map(|task| TaskStats::read(&trace, task));
    let tasks: Vec<TaskStats> = tasks.collect::<Result<_, _>>().with_context(|| dir.display().to_string())?;
    let (clock, gaps, ends) = (trace.clock()?, trace.gaps()?, trace.ends()?);
    let mut summary = Summary::default();
    tasks.iter().for_each(|task| task.add_to(&mut summary));
    let losses = losses(&summary, &gaps);
    let dumped_for = trace.dump_reason()?;
    let description = unfinished::description(&dir);
    #[cfg(feature = "full")]
    if args.json {
        let value = json(&trace, (dumped_for, &ends), &tasks, &losses, &clock);
        print(|out| writeln!(out, "{value:#}").map_err(Error::Write))?;
        print_flaws(&trace, &summary);
        return Ok(());
    }
    print(|out| {
        section(out, "Directory", [("kind", description)])
            .and_then(|()| write(&trace, (dumped_for, &ends), &tasks, &losses, &clock, out))
            .map_err(Error::Write)
    })?;
    print_flaws(&trace, &summary);
    Ok(())
}

/// The same as JSON: keys as in the files `info` and `clock.txt`, times in nanoseconds.
#[cfg(feature = "full")]
fn json(
    trace: &Trace,
    (dumped_for, ends): (Option<String>, &BTreeMap<u32, i32>),
    tasks: &[TaskStats],
    losses: &[String],
    clock: &[(String, String)],
) -> Value {
    let values = |keys: &[(&str, &'static str)]| -> Value {
        let value = |&(_, key): &(&str, &'static str)| {
            let value = match key {
                info::COMMAND_LINE => trace.info().command_line(),
                _ => trace.info().get(key).map(str::to_owned),
            };
            Some((key.to_owned(), value?.into()))
        };
        Value::Object(keys.iter().filter_map(value).collect())
    };
    let threads = tasks.iter().zip(trace.tasks()).map(|(task, of_trace)| {
        json!({
            "pid": task.pid, "tid": task.tid, "name": of_trace.name(), "records": task.records, "calls": task.calls,
            "lost-calls": task.lost_calls, "first-ns": task.first_ns, "last-ns": task.last_ns,
            "overwritten": task.overwritten,
        })
    });
    let modules = trace.modules().into_iter().map(|module| {
        json!({
            "path": module.path, "start": module.start, "end": module.end, "build-id": module.build_id,
            "functions": module.symbols,
        })
    });
    let ends = ends.iter().map(|(pid, &end)| (pid.to_string(), ending::in_words(end).into()));
    json!({
        "version": JSON_VERSION,
        "program": values(&PROGRAM),
        "machine": values(&MACHINE),
        "ends": Value::Object(ends.collect()),
        "dumped-for": dumped_for,
        "threads": threads.collect::<Vec<_>>(),
        "losses": losses,
        "modules": modules.collect::<Vec<_>>(),
        "clock": Value::Object(clock.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect()),
    })
}

fn write(
    trace: &Trace,
    (dumped_for, ends): (Option<String>, &BTreeMap<u32, i32>),
    tasks: &[TaskStats],
    losses: &[String],
    clock: &[(String, String)],
    out: &mut dyn Write,
) -> io::Result<()> {
    let of_info = |key: &str| match key {
        // The file is made for JSON.
        info::COMMAND_LINE => trace.info().command_line(),
        _ => trace.info().get(key).map(|value| readable(key, value)),
    };
    section(out, "Program", PROGRAM.map(|(word, key)| (word, of_info(key))))?;
    write_ends(out, trace, ends)?;
    section(out, "Dump", [("made for", dumped_for)])?;
    section(out, "Machine", MACHINE.map(|(word, key)| (word, of_info(key))))?;
    write_tasks(out, trace, tasks)?;
    for loss in losses {
        writeln!(out, "{loss}")?;
    }
    if !losses.is_empty() {
        writeln!(out)?;
    }
    write_modules(out, trace)?;
    let of_clock = |key: &str| clock.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
    section(out, "Clock", CLOCK.map(|(word, key)| (word, of_clock(key))))?;
    if let Some(value) = of_clock(clock::INVARIANT_TSC).filter(|value| value != "true") {
        writeln!(out, "  {:24} {value}: the TSC may change its rate, or stop", "invariant")?;
    }
    Ok(())
}

/// How each of several processes ended.
fn write_ends(out: &mut dyn Write, trace: &Trace, ends: &BTreeMap<u32, i32>) -> io::Result<()> {
    let pids: BTreeSet<u32> = trace.tasks().iter().map(Task::pid).collect();
    if pids.len() < 2 || ends.is_empty() {
        return Ok(());
    }
    writeln!(out, "Ends of processes")?;
    for pid in pids {
        let end = ends.get(&pid).map_or_else(|| "unknown".to_owned(), |&end| ending::in_words(end));
        writeln!(out, "  {pid:<24} {end}")?;
    }
    writeln!(out)
}

/// Values as people expect them.
fn readable(key: &str, value: &str) -> String {
    match key {
        // Status as `wait` returns it: the exit code above the signal.
        info::EXIT_STATUS => match value.trim().parse::<i32>() {
            Ok(status) => ending::in_words(status).trim_start_matches("exit status ").to_owned(),
            Err(_) => value.to_owned(),
        },
        _ => value.to_owned(),
    }
}

fn section<const N: usize>(out: &mut dyn Write, title: &str, lines: [(&str, Option<String>); N]) -> io::Result<()> {
    if lines.iter().all(|(_, value)| value.is_none()) {
        return Ok(());
    }
    writeln!(out, "{title}")?;
    for (word, value) in lines {
        if let Some(value) = value {
            writeln!(out, "  {word:24} {value}")?;
        }
    }
    writeln!(out)
}

fn write_tasks(out: &mut dyn Write, trace: &Trace, tasks: &[TaskStats]) -> io::Result<()> {
    let begin = tasks.iter().filter(|task| task.records > 0).map(|task| task.first_ns).min().unwrap_or(0);
    let sum = |value: fn(&TaskStats) -> u64| tasks.iter().map(value).fold(0, u64::saturating_add);
    writeln!(
        out,
        "Threads: {} with {} records of {} calls",
        HumanCount(tasks.len() as u64),
        HumanCount(sum(|task| task.records)),
        HumanCount(sum(|task| task.calls))
    )?;
    let title = ("PID", "TID", "Records", "Calls", "Lost", "From", "To");
    let (pid, tid, records, calls, lost, from, to) = title;
    writeln!(out, "  {pid:>8} {tid:>8} {records:>13} {calls:>13} {lost:>10} {from:>12} {to:>12}  Name")?;
    for (task, of_trace) in tasks.iter().zip(trace.tasks()) {
        let at = |time_ns: u64| match task.records {
            0 => String::new(),
            _ => Duration(time_ns.saturating_sub(begin)).to_string(),
        };
        writeln!(
            out,
            "  {:8} {:8} {:>13} {:>13} {:>10} {:>12} {:>12}  {}{}",
            task.pid,
            task.tid,
            HumanCount(task.records).to_string(),
            HumanCount(task.calls).to_string(),
            HumanCount(task.lost_calls).to_string(),
            at(task.first_ns),
            at(task.last_ns),
            of_trace.name(),
            if task.overwritten { " (the beginning was overwritten)" } else { "" }
        )?;
    }
    writeln!(out)
}

fn write_modules(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let modules = trace.modules();
    if modules.is_empty() {
        return Ok(());
    }
    writeln!(out, "Modules\n  {:>14} {:>14} {:>10}  Path", "From", "To", "Functions")?;
    for module in &modules {
        let build_id = module.build_id.as_ref().map(|id| format!("  build-id {id}")).unwrap_or_default();
        let functions = HumanCount(module.symbols as u64).to_string();
        writeln!(out, "  {:14x} {:14x} {functions:>10}  {}{build_id}", module.start, module.end, module.path)?;
    }
    if modules.iter().all(|module| module.symbols == 0) {
        writeln!(
            out,
            "  No function has a name: `rftrace symbols {} --binary ELF` adds those of a binary.",
            shell_word(&stand_ins::of_user(trace.dir()))
        )?;
    }
    writeln!(out)
}
