//! `cargo rftrace`: builds, runs and records a Rust program.
//!
//! Cargo does all the work. It gets a toolchain that can instrument, flags for the code of the target alone, a target
//! directory of its own, and this program as its [`runner`] of programs. The recording comes back as a
//! list in the [`session`], and ends as a [`summary`].

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rftrace_record::Processor;

mod arguments;
mod build;
mod config;
mod flags;
mod hooks;
mod leaks;
mod names;
mod process;
mod record_options;
mod runner;
mod session;
mod status;
mod summary;
mod toolchain;

use arguments::CargoArguments;
use hooks::Hooks;
use leaks::LeakOptions;
use process::code_of;
use record_options::RecordOptions;
use session::{Orders, Session};
use status::status;
use toolchain::Toolchain;

use super::view;
use crate::help;

/// A group in `--help`.
const BUILD: &str = "Build: --bootstrap";

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

Options of rftrace go before `run`, options of cargo behind it, those of the program behind `--`.
All functions of the program and its dependencies are recorded, except inlined ones and those of the
precompiled standard library (instrument it with cargo's -Z build-std). Build scripts and procedural
macros are not instrumented. The target directory is `rftrace` within your own; traces lie there in
`traces`.";

/// Builds a Rust program, records all its calls, and shows the hottest functions.
#[derive(Parser)]
#[command(name = "cargo-rftrace", bin_name = "cargo rftrace", version, after_help = EXAMPLES)]
pub(crate) struct CargoCli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: CargoCommand,
}

#[derive(clap::Args)]
struct Options {
    /// Directory for the trace; tests and benchmarks get one directory for each binary in it [default: target/rftrace/traces/NAME].
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Kind of hooks [default: mcount with a nightly toolchain, else entry].
    #[arg(long, value_name = "HOW", value_enum, hide_default_value = true)]
    hooks: Option<Hooks>,
    /// Use the present stable toolchain, with RUSTC_BOOTSTRAP=1. Build scripts then find unstable features.
    #[arg(long, help_heading = BUILD)]
    bootstrap: bool,
    /// Highest number of functions in the report.
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// Open the trace in the browser at the end, until Ctrl-C.
    ///
    /// Of tests and benchmarks it is the largest trace.
    #[arg(long, conflicts_with = "leaks")]
    view: bool,
    /// No report, only errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    leaks: LeakOptions,
    #[command(flatten)]
    record: RecordOptions,
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

impl CargoCommand {
    fn into_parts(self) -> (&'static str, Vec<OsString>) {
        match self {
            Self::Run(rest) => ("run", rest.args),
            Self::Test(rest) => ("test", rest.args),
            Self::Bench(rest) => ("bench", rest.args),
            Self::Build(rest) => ("build", rest.args),
        }
    }
}

/// The command line.
pub(crate) fn command() -> clap::Command {
    help::arranged(CargoCli::command())
}

/// Does what is asked for if this process is `cargo rftrace`, or what cargo runs programs with.
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
    let (subcommand, mut args) = cli.command.into_parts();
    if subcommand == "test" {
        options.leaks.take(&mut args)?;
    }
    if let Some(message) = misplaced(&args, subcommand) {
        status::error(&message);
        return Ok(ExitCode::from(2));
    }
    let args = CargoArguments::new(subcommand, args, program_args);
    if args.asks_for_help() {
        return cargo_help(&args);
    }

    let suppressed = options.leaks.patterns(subcommand)?;
    let is_leaks = options.leaks.leaks;
    // Nothing is instrumented then.
    let hooks = if is_leaks { Some(Hooks::Entry) } else { options.hooks };
    let (toolchain, hooks) = Toolchain::choose(options.bootstrap, hooks)?;
    if !options.quiet {
        status("Toolchain", &toolchain.to_string());
        if !is_leaks {
            status("Hooks", &hooks.described(options.hooks.is_some()));
        }
    }
    let config = config::Config::read(&toolchain, &args)?;
    let target = config.target(&toolchain, &args)?;
    let is_everywhere = hooks != Hooks::Xray && !is_leaks;
    if !is_everywhere && Processor::of_target(&target).is_some_and(|processor| !processor.has_all) {
        bail!(
            "XRay's sleds, and who takes memory, are recorded on x86-64 alone; for {target} there are --hooks=mcount, --hooks=patchable and --hooks=entry"
        );
    }
    let target_dir = config::target_dir(&toolchain, &args)?.join("rftrace");

    let mut cargo = toolchain.cargo();
    args.add_to(&mut cargo, &target, &target_dir);
    let mut environment = flags::environment(hooks, &toolchain, &config, &args, &target)?;
    if is_leaks {
        // Tests are found by the names of functions, inlined ones too; with less than that those lack their modules.
        environment.set_for_profiles(&args, "DEBUG", "limited");
    }
    if args.only_builds() {
        environment.apply(&mut cargo);
        let list =
            || hooks::write_list(&toolchain.libraries(&target)?, &target_dir).map(|()| hooks::list_path(&target_dir));
        return build::run(&mut cargo, &args, hooks, &list, options.quiet);
    }

    let session = Session::create()?;
    environment.set(&config::target_variable(&target, "RUNNER"), session.runner_path());
    if hooks == Hooks::Entry && !is_leaks {
        hooks::write_list(&toolchain.libraries(&target)?, session.path())?;
    }
    let traces = options.output.clone().unwrap_or_else(|| target_dir.join("traces"));
    let max_size = options.record.max_size;
    let mut record = options.record.into_args();
    let wanted = if is_leaks { LeakOptions::record(&mut record) } else { Vec::new() };
    session.give(&Orders {
        traces: std::path::absolute(&traces).with_context(|| traces.display().to_string())?,
        one_trace: options.output.is_some() && subcommand == "run",
        quiet: options.quiet,
        hooks,
        is_leaks,
        max_size,
        record,
        target: target.clone(),
        user_runner: config.runner(&toolchain, &target)?,
        variables: environment.before(),
    })?;
    environment.apply(&mut cargo);

    let exit = wait(&mut cargo)?;
    if is_leaks {
        let any = leaks::print(&session.runs()?, &wanted, &suppressed, options.limit, options.quiet)?;
        return Ok(if any && exit.success() { ExitCode::FAILURE } else { code_of(exit) });
    }
    if !options.quiet {
        summary::print(&session.runs()?, options.limit, exit.success())?;
    }
    if options.view
        && let Some(trace) = session.largest_trace()?
    {
        view::show(&trace)?;
    }
    Ok(code_of(exit))
}

/// Runs cargo to its end. An interrupt by the terminal goes to the program; what it did until then is worth a report.
fn wait(cargo: &mut Command) -> Result<ExitStatus> {
    // A handler, unlike an ignored signal, is not for the child.
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default())
        .context("cannot prepare for interrupts")?;
    cargo.status().with_context(|| format!("cannot run {}", cargo.get_program().display()))
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
