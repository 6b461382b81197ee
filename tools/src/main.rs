//! The `rftrace` command: its command line and its errors.
//!
//! Not here: the subcommands (`commands`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use rftrace_read::Error;

#[macro_use]
mod say;

mod commands;
mod help;
mod spelling;

/// Records, shows and converts function traces.
#[derive(Parser)]
#[command(name = "rftrace", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

const EXAMPLES: &str = "\
Examples:
  rftrace record -P '*' -o mytrace -- ls -l        records any program
  rftrace replay --hints mytrace                   shows every call
  cargo rftrace run --release                      builds a Rust program, records it, and reports";

fn main() -> ExitCode {
    #[cfg(all(feature = "full", target_os = "linux"))]
    if let Some(code) = commands::cargo::main() {
        return code;
    }
    let mut program = help::arranged(Cli::command());
    let matches = program.try_get_matches_from_mut(std::env::args_os());
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches)).unwrap_or_else(|error| {
        if cfg!(not(feature = "full")) && error.kind() == ErrorKind::InvalidSubcommand {
            say!("rftrace: this build has only replay, report and info; for all commands: cargo install --path tools");
        }
        spelling::explain(error, &program, std::env::args().nth(1).as_deref()).exit()
    });
    match cli.command.run(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(Error::is_closed_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            say!("rftrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}
