//! The subcommands, a module each: its arguments and `run`.

use anyhow::Result;
use clap::Subcommand;

mod common;
mod dump;
#[cfg(target_os = "linux")]
mod import;
mod merge;
#[cfg(target_os = "linux")]
mod record;
mod replay;
mod report;
#[cfg(target_os = "linux")]
mod symbols;

#[derive(Subcommand)]
pub(crate) enum Command {
    #[cfg(target_os = "linux")]
    Record(record::RecordArgs),
    Replay(replay::ReplayArgs),
    Report(report::ReportArgs),
    Dump(dump::DumpArgs),
    Merge(merge::MergeArgs),
    #[cfg(target_os = "linux")]
    Import(import::ImportArgs),
    #[cfg(target_os = "linux")]
    Symbols(symbols::SymbolsArgs),
}

impl Command {
    /// Does what the command says.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Record(args) => record::run(args),
            Self::Replay(args) => replay::run(args),
            Self::Report(args) => report::run(args),
            Self::Dump(args) => dump::run(args),
            Self::Merge(args) => merge::run(&args),
            #[cfg(target_os = "linux")]
            Self::Import(args) => import::run(&args),
            #[cfg(target_os = "linux")]
            Self::Symbols(args) => symbols::run(args),
        }
    }
}
