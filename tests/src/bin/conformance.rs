//! Runs the conformance suite with this repository's tracer and with others, and writes the table in
//! `docs/conformance.md`.
//!
//! ```sh
//! cargo run -p rftrace-tests --bin conformance              # everything, into the file
//! cargo run -p rftrace-tests --bin conformance -- longjmp   # cases whose names contain this, with details, to stdout
//! ```

use std::fmt::Write;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, thread};

use rftrace_tests::conformance::{Build, Case, Fault, Tracer, cases, try_case};
use rftrace_tests::fixtures::repository;
use rftrace_tests::tools;

/// The columns.
const TRACERS: [Tracer; 3] = [Tracer::Ours, Tracer::Published, Tracer::Uftrace];

/// Marks before and after the table in the file.
const BEGIN: &str = "<!-- Written by the binary `conformance`. -->\n";
const END: &str = "<!-- End of what it writes. -->\n";

/// A build with a tracer, and its faults.
type Result<'c> = ((&'c str, Tracer, Build), Vec<Fault>);

fn main() -> ExitCode {
    let only = env::args().nth(1);
    let groups = cases::all();
    let is_wanted = |case: &Case| only.as_ref().is_none_or(|only| case.name.contains(only.as_str()));
    let trials: Vec<(&Case, Tracer, Build)> = groups
        .iter()
        .flat_map(|group| &group.cases)
        .filter(|case| is_wanted(case))
        .flat_map(|case| [Tracer::Nobody].into_iter().chain(TRACERS).map(move |tracer| (case, tracer)))
        .flat_map(|(case, tracer)| case.builds().into_iter().map(move |build| (case, tracer, build)))
        .filter(|(_, tracer, build)| tracer.can_trace(*build))
        .collect();
    let results = try_all(&trials, only.is_some());

    // A program that is wrong by itself shows nothing.
    let wrong: Vec<_> =
        results.iter().filter(|((_, tracer, _), faults)| *tracer == Tracer::Nobody && !faults.is_empty()).collect();
    for ((name, _, build), faults) in &wrong {
        eprintln!("{name} ({}) is wrong without any tracer: {faults:?}", build.name());
    }
    let mut table = String::new();
    for group in &groups {
        let rows: Vec<&Case> = group.cases.iter().filter(|case| is_wanted(case)).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(table, "\n## {}\n\n| case | what happens |", capitalised(group.name));
        for tracer in TRACERS {
            let _ = write!(table, " {} |", tracer.name());
        }
        table.push_str("\n|---|---|---|---|---|\n");
        for case in rows {
            let _ = write!(table, "| {} | {} |", case.name, case.what);
            for tracer in TRACERS {
                let _ = write!(table, " {} |", cell(&results, case, tracer));
            }
            table.push('\n');
        }
    }
    if only.is_some() {
        println!("{table}");
    } else {
        write_file(&format!("{}{table}\n", facts()));
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn try_all<'c>(trials: &[(&'c Case, Tracer, Build)], verbose: bool) -> Vec<Result<'c>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let idx = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(case, tracer, build)) = trials.get(idx) else { break };
                    let faults = try_case(case, build, tracer);
                    let words = if faults.is_empty() { "ok".to_owned() } else { in_words(&faults) };
                    eprintln!(
                        "[{}/{}] {}, {}, {}: {words}",
                        idx + 1,
                        trials.len(),
                        case.name,
                        tracer.name(),
                        build.name()
                    );
                    if verbose || tracer == Tracer::Ours {
                        faults.iter().for_each(|fault| eprintln!("{}\n{}\n", fault.words, fault.detail));
                    }
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(((case.name, tracer, build), faults));
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that is wrong, each in words, once.
fn in_words(faults: &[Fault]) -> String {
    let mut words: Vec<&str> = faults.iter().map(|fault| fault.words.as_str()).collect();
    words.sort_unstable();
    words.dedup();
    words.join(", ")
}

/// Summary of a case's builds with one tracer: `ok`, or the faults with their builds.
fn cell(results: &[Result<'_>], case: &Case, tracer: Tracer) -> String {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    let builds: Vec<Build> = case.builds().into_iter().filter(|build| tracer.can_trace(*build)).collect();
    for build in &builds {
        let result = results.iter().find(|(trial, _)| *trial == (case.name, tracer, *build));
        let faults = result.map_or(&[][..], |(_, faults)| faults);
        let words = if faults.is_empty() { "ok".to_owned() } else { in_words(faults) };
        match found.iter_mut().find(|(known, _)| *known == words) {
            Some((_, builds)) => builds.push(build.name()),
            None => found.push((words, vec![build.name()])),
        }
    }
    match &found[..] {
        [] => "cannot".to_owned(),
        [(words, _)] => words.clone(),
        found => {
            let parts = found.iter().map(|(words, builds)| format!("{words} ({})", builds.join(", ")));
            parts.collect::<Vec<_>>().join("; ")
        }
    }
}

fn capitalised(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// Time, machine and programs of the table.
fn facts() -> String {
    let first_line = |program: &str, arguments: &[&str]| {
        let text = tools::text(Command::new(program).args(arguments));
        text.lines().next().unwrap_or_default().to_owned()
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let uftrace = first_line("uftrace", &["--version"]);
    let repository = repository().display().to_string();
    format!(
        "\n{}, commit {}: {}, {} processors, Linux {}; {}; {}; {}.\n",
        first_line("date", &["-u", "+%Y-%m-%d"]),
        first_line("git", &["-C", &repository, "describe", "--always", "--dirty"]),
        cpu.trim_start_matches(['\t', ' ', ':']),
        thread::available_parallelism().map_or(1, usize::from),
        first_line("uname", &["-r"]),
        first_line("gcc", &["--version"]),
        first_line("rustc", &["+nightly", "--version"]),
        uftrace.split(" (").next().unwrap_or_default(),
    )
}

/// Puts `text` between the marks in the file.
fn write_file(text: &str) {
    let path = repository().join("docs/conformance.md");
    let old = fs::read_to_string(&path).expect("docs/conformance.md");
    let (before, rest) = old.split_once(BEGIN).expect("the mark where the table begins");
    let (_, after) = rest.split_once(END).expect("the mark where the table ends");
    fs::write(&path, format!("{before}{BEGIN}{text}{END}{after}")).expect("docs/conformance.md can be written");
}
