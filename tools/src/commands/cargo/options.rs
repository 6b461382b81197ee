//! The options of `cargo rftrace`, in front of its subcommand.

use std::path::PathBuf;

use super::hooks::Hooks;
use super::leaks::LeakOptions;
use super::record_options::RecordOptions;

/// A group in `--help`.
const BUILD: &str = "Build: --bootstrap";

/// Options of all subcommands.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Directory for the trace; tests and benchmarks get one directory for each binary in it [default: target/rftrace/traces/COMMAND/NAME].
    #[arg(short, long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// Kind of hooks [default: mcount with a nightly toolchain, else entry].
    ///
    /// `cargo +stable rftrace` uses the toolchain stable: with entry.
    #[arg(long, value_name = "HOW", value_enum, hide_default_value = true)]
    pub(super) hooks: Option<Hooks>,
    /// Use the present stable toolchain, with RUSTC_BOOTSTRAP=1. Build scripts then find unstable features.
    #[arg(long, help_heading = BUILD)]
    pub(super) bootstrap: bool,
    /// Record the compiler's own functions too: its shims of allocations and, in debug builds, its checks of preconditions.
    ///
    /// These are many calls, and tell nothing of the program.
    #[arg(long)]
    pub(super) all_functions: bool,
    /// Highest number of functions in the report.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) limit: usize,
    /// Open the trace in the browser at the end, until Ctrl-C.
    ///
    /// Of tests and benchmarks it is the largest trace.
    #[arg(long, conflicts_with = "leaks")]
    pub(super) view: bool,
    /// No report, only errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) leaks: LeakOptions,
    #[command(flatten)]
    pub(super) record: RecordOptions,
}
