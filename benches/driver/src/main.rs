//! Runs the measured programs in turns and prints tables.
//!
//! ```text
//! driver run PROGRAMS PARTS [ROUNDS]     PARTS: some of the modules below, or compare, in one argument
//! driver nops PROGRAM COPY               copies a program without its calls to mcount
//! ```
//!
//! Machines are noisy, in phases: so a round runs every program once, in changing order, a value is the median of many
//! short batches, and a ratio is taken within a round. The output has medians over the rounds, with quartiles.
//!
//! Exit status 1: a limit was missed; 2: something went wrong.

mod cost;
mod dump;
mod instructions;
mod modes;
mod nops;
mod programs;
mod requirement;
mod stats;
mod threads;

use std::fs;
use std::process::{Command, ExitCode};

use modes::Programs;
use requirement::Requirement;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["run", programs, parts] => run(programs, parts, "21"),
        ["run", programs, parts, rounds] => run(programs, parts, rounds),
        ["nops", program, copy] => nops::write(program, copy).map(|_| true),
        _ => Err("usage: driver run PROGRAMS PARTS [ROUNDS] | driver nops PROGRAM COPY".to_owned()),
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

fn run(programs: &str, parts: &str, rounds: &str) -> Result<bool, String> {
    let programs = Programs::new(programs.as_ref())?;
    let rounds: usize = rounds.parse().map_err(|_| format!("not a number of rounds: {rounds}"))?;
    // For what takes seconds instead of moments.
    let few_rounds = rounds.div_ceil(3);
    describe_machine();
    let mut requirements = Vec::new();
    for part in parts.split_whitespace() {
        requirements.extend(match part {
            "cost" => cost::run(&programs, rounds)?,
            "compare" => cost::compare(&programs, rounds)?,
            "threads" => threads::run(&programs, rounds)?,
            "programs" => programs::run(&programs, rounds)?,
            "dump" => dump::run(&programs, few_rounds)?,
            "instructions" => instructions::run(&programs)?,
            _ => return Err(format!("no part {part}")),
        });
        println!();
    }
    Requirement::print(&requirements);
    Ok(requirements.iter().all(Requirement::is_met))
}

fn describe_machine() {
    let first_line = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let value = cpuinfo.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        value.trim_start_matches(['\t', ' ', ':']).to_owned()
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{}, {} (family {}, model {}), {cpus} CPUs, Linux {}",
        first_line("date", "-I"),
        field("model name"),
        field("cpu family"),
        field("model\t"),
        first_line("uname", "-r"),
    );
    println!(
        "{}, load {}\n",
        first_line("uftrace", "--version").split(' ').take(2).collect::<Vec<_>>().join(" "),
        fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
    );
}
