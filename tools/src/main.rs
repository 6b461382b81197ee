//! The `rftrace` command: how it is called, and what becomes of errors.
//!
//! Not here: the subcommands (`commands`).

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rftrace_read::Error;

#[macro_use]
mod say;

mod commands;
mod spelling;

/// Records function traces, shows them, and brings them into other forms.
#[derive(Parser)]
#[command(name = "rftrace", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

const EXAMPLES: &str = "\
Examples:
  rftrace record -o mytrace -- target/release/app  records what an instrumented program does
  rftrace replay --hints mytrace                   shows every call
  rftrace top 4711                                 shows the hottest functions of a program that runs
  cargo rftrace run --release                      builds a Rust program, records it, and reports";

fn main() -> ExitCode {
    #[cfg(all(feature = "full", target_os = "linux"))]
    if let Some(code) = commands::cargo::main() {
        return code;
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        if cfg!(not(feature = "full")) && error.kind() == ErrorKind::InvalidSubcommand {
            say!("rftrace: this one was built with replay, report and info alone; all: cargo install --path tools");
        }
        spelling::explain(error, &Cli::command(), std::env::args().nth(1).as_deref()).exit()
    });
    match cli.command.run(Cli::command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(Error::is_closed_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            say!("rftrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}
