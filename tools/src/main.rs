//! The `rftrace` command.

use std::process::ExitCode;

use clap::Parser;
use rftrace_tools::Error;

mod commands;

/// Records function traces, shows them, and brings them into other forms.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

const EXAMPLES: &str = "\
Example:
  rftrace replay --hints mytrace";

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = commands::cargo::main() {
        return code;
    }
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(Error::is_closed_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rftrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}
