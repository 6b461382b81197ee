//! The `rftrace` command.

use std::process::ExitCode;

use clap::Parser;
use rftrace_tools::Error;

mod commands;

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
  cargo rftrace run --release                      builds a Rust program, records it, and reports";

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
