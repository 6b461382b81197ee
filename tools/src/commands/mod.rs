//! The subcommands, a module each: its arguments and `run`.

use anyhow::Result;
use clap::Subcommand;

#[cfg(target_os = "linux")]
pub(crate) mod cargo;
mod common;
mod completions;
mod dump;
#[cfg(target_os = "linux")]
mod import;
mod info;
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
    Info(info::InfoArgs),
    Dump(dump::DumpArgs),
    #[cfg(target_os = "linux")]
    Import(import::ImportArgs),
    #[cfg(target_os = "linux")]
    Symbols(symbols::SymbolsArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

impl Command {
    /// Does what the command says.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Record(args) => record::run(args),
            Self::Replay(args) => replay::run(args),
            Self::Report(args) => report::run(args),
            Self::Info(args) => info::run(args),
            Self::Dump(args) => dump::run(args),
            #[cfg(target_os = "linux")]
            Self::Import(args) => import::run(&args),
            #[cfg(target_os = "linux")]
            Self::Symbols(args) => symbols::run(args),
            Self::Completions(args) => completions::completions(&args),
            Self::Man(args) => completions::man(&args),
        }
    }
}
