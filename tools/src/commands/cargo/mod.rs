//! `cargo rftrace`: builds, runs and records a Rust program.
//!
//! Cargo does all the work. It gets a toolchain that can instrument, flags for the code of the target alone, a target
//! directory of its own, and this program as its [`runner`] of programs. The recording comes back as a
//! list in the [`session`], and ends as a [`summary`].

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod arguments;
mod baseline;
mod build;
mod by_test;
mod check;
mod compilers;
mod config;
mod flags;
mod hooks;
mod leaks;
mod options;
mod places;
mod plan;
mod process;
mod record_options;
mod runner;
mod session;
mod status;
mod summary;
mod toolchain;

use arguments::CargoArguments;
use check::CheckArgs;
use leaks::LeakOptions;
use options::Options;
use plan::{Plan, Recording};
use process::code_of;

use super::view;
use crate::help;

const EXAMPLES: &str = "\
Examples:
  cargo rftrace run --release -- --verbose file.txt   builds, runs, and shows the hottest functions
  cargo rftrace test parser                           records each test binary
  cargo rftrace test --leaks                          shows the tests with leaks
  cargo rftrace --hooks=entry test                    any toolchain, usual compiler flags
  cargo rftrace -F 'app::parse*' run --example demo   some functions and their callees
  cargo rftrace -o trace run -p server --bin serverd  to this directory
  cargo rftrace --bootstrap bench                     with a stable compiler
  cargo rftrace build --release                       builds only
  cargo rftrace check --update bench                  keeps the counts of calls, for `check`

Options of rftrace go before `run`, options of cargo after it, options of the program after `--`.
All functions of the program and its dependencies are recorded, except inlined ones, those of the
precompiled standard library (instrument it with cargo's -Z build-std), and the compiler's own
(--all-functions). Build scripts and procedural macros are not instrumented. The target directory is
`rftrace` within your own; traces lie there in `traces`.";

/// Builds a Rust program, records all its calls, and shows the hottest functions.
#[derive(Parser)]
#[command(name = "cargo-rftrace", bin_name = "cargo rftrace", version, after_help = EXAMPLES)]
pub(crate) struct CargoCli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: CargoCommand,
}

#[derive(Subcommand)]
enum CargoCommand {
    /// Run a binary or an example.
    #[command(visible_alias = "r", after_help = RUN_EXAMPLE)]
    Run(Rest),
    /// Run the tests, with one trace for each binary.
    ///
    /// Documentation tests run, too; they are not recorded.
    #[command(visible_alias = "t", after_help = TEST_EXAMPLE)]
    Test(Rest),
    /// Run the benchmarks, with one trace for each binary.
    #[command(after_help = BENCH_EXAMPLE)]
    Bench(Rest),
    /// Build only, and print the commands that record.
    #[command(visible_alias = "b", after_help = BUILD_EXAMPLE)]
    Build(Rest),
    Check(CheckArgs),
}

const RUN_EXAMPLE: &str = "Example:\n  cargo rftrace run --release --example demo -- input.txt";
const TEST_EXAMPLE: &str = "\
Examples:
  cargo rftrace test --lib parser -- --test-threads 1
  cargo rftrace test --leaks              the tests with leaks; exit status 1 for any
  cargo rftrace test --leaks --suppress 'app::cache::*'";
const BENCH_EXAMPLE: &str = "Example:\n  cargo rftrace bench --bench throughput";
const BUILD_EXAMPLE: &str = "Example:\n  cargo rftrace build --release --bins";

#[derive(clap::Args)]
struct Rest {
    /// Arguments for cargo: see `cargo help run` and so on.
    #[arg(value_name = "CARGO ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// The command line.
pub(crate) fn command() -> clap::Command {
    help::arranged(CargoCli::command())
}

/// Runs `cargo rftrace`, or the runner of cargo's programs, if this process is one of them.
pub(crate) fn main() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    if Path::new(&name).file_name() == Some(OsStr::new(session::RUNNER)) {
        return Some(exit_code(runner::run(Path::new(&name), args.collect())));
    }
    if args.next()? != "cargo" {
        return None;
    }
    // Arguments behind `--` are the program's; clap would take out the two dashes.
    let mut head: Vec<OsString> = args.collect();
    let tail = match head.iter().position(|arg| arg == "--") {
        Some(pos) => head.split_off(pos),
        None => Vec::new(),
    };
    let matches = command().get_matches_from(std::iter::once("cargo-rftrace".into()).chain(head));
    let cli = CargoCli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command()).exit());
    Some(exit_code(run(cli, tail)))
}

fn exit_code(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        status::error(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

fn run(cli: CargoCli, program_args: Vec<OsString>) -> Result<ExitCode> {
    let mut options = cli.options;
    let (subcommand, mut args) = match cli.command {
        CargoCommand::Run(rest) => ("run", rest.args),
        CargoCommand::Test(rest) => ("test", rest.args),
        CargoCommand::Bench(rest) => ("bench", rest.args),
        CargoCommand::Build(rest) => ("build", rest.args),
        CargoCommand::Check(check) => {
            return match misplaced(check.words(), "check") {
                Some(message) => Ok(refused(&message)),
                None => check::run(check, program_args, options),
            };
        }
    };
    if subcommand == "test" {
        options.leaks.take(&mut args)?;
    }
    if let Some(message) = misplaced(&args, subcommand) {
        return Ok(refused(&message));
    }
    let args = CargoArguments::new(subcommand, args, program_args);
    if args.asks_for_help() {
        return cargo_help(&args);
    }

    let suppressed = options.leaks.patterns(subcommand)?;
    let is_leaks = options.leaks.leaks;
    let plan = Plan::new(&options, &args)?;
    if args.only_builds() {
        return plan.build(&args, options.quiet);
    }
    let max_size = options.record.max_size;
    let mut record = options.record.into_args();
    let wanted = if is_leaks { LeakOptions::record(&mut record) } else { Vec::new() };
    let one_trace = options.output.is_some() && subcommand == "run";
    let recording = Recording { traces: options.output, one_trace, quiet: options.quiet, max_size, record };
    let (session, exit) = plan.record(&args, recording, Stdio::inherit())?;
    if is_leaks {
        let any = leaks::print(&session.runs()?, &wanted, &suppressed, options.limit, options.quiet)?;
        return Ok(if any && exit.success() { ExitCode::FAILURE } else { code_of(exit) });
    }
    if !options.quiet {
        let has_tests = subcommand == "test";
        summary::print(&session.runs()?, options.limit, has_tests, exit.success())?;
    }
    if options.view
        && let Some(trace) = session.largest_trace()?
    {
        view::show(&trace)?;
    }
    Ok(code_of(exit))
}

/// Reports a wrong command line.
fn refused(message: &str) -> ExitCode {
    status::error(message);
    ExitCode::from(2)
}

/// Returns a message if an option of rftrace is among those of cargo.
fn misplaced(args: &[OsString], subcommand: &str) -> Option<String> {
    let cli = CargoCli::command();
    let is_own = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        let name = arg.split('=').next().unwrap_or_default().to_owned();
        // Those that cargo has too, and its own, are cargo's.
        let known = |option: &clap::Arg| {
            option
                .get_long()
                .is_some_and(|long| name == format!("--{long}") && !["quiet", "help", "version"].contains(&long))
                || name == "-o"
        };
        cli.get_arguments().any(known).then_some(name)
    };
    let name = args.iter().find_map(is_own)?;
    Some(format!(
        "{name} is an option of rftrace and goes before `{subcommand}`: cargo rftrace {name} … {subcommand} …"
    ))
}

/// Lets cargo show the help of its own subcommand.
fn cargo_help(args: &CargoArguments) -> Result<ExitCode> {
    let mut cargo = Command::new(toolchain::present_cargo());
    cargo.arg(args.subcommand()).args(args.before_program());
    Ok(code_of(cargo.status().with_context(|| format!("cannot run {}", cargo.get_program().display()))?))
}
