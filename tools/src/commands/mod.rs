//! The subcommands, a module each: its arguments and `run`.
//!
//! Without the feature `full` there are only those that show traces in a terminal.
//!
//! Not here: what they do with traces and programs, which is in the crates beside this package. Only `cargo`, which is about flags,
//! and `script`, which runs a Python, are nothing for other programs, and here as a whole.

use anyhow::Result;
use clap::Subcommand;

#[cfg(feature = "full")]
mod anonymous;
#[cfg(feature = "full")]
mod browser;
#[cfg(all(feature = "full", target_os = "linux"))]
mod calibrate;
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) mod cargo;
mod choice;
mod common;
#[cfg(feature = "full")]
mod completions;
#[cfg(feature = "full")]
mod counters;
#[cfg(all(feature = "full", target_os = "linux"))]
mod ctl;
mod diff;
#[cfg(feature = "full")]
mod dump;
#[cfg(all(feature = "full", attaching))]
mod functracer;
#[cfg(feature = "full")]
mod functracer_postproc;
mod graph;
#[cfg(all(feature = "full", target_os = "linux"))]
mod import;
mod info;
#[cfg(all(feature = "full", target_os = "linux"))]
mod live;
mod markdown;
#[cfg(feature = "full")]
mod merge;
#[cfg(feature = "full")]
mod new_file;
mod open;
mod overview;
#[cfg(feature = "full")]
mod page;
mod pager;
#[cfg(all(feature = "full", target_os = "linux"))]
mod quantity;
#[cfg(all(feature = "full", target_os = "linux"))]
mod record;
#[cfg(all(feature = "full", target_os = "linux"))]
mod recover;
#[cfg(all(feature = "full", target_os = "linux"))]
mod recv;
mod replay;
mod report;
#[cfg(feature = "full")]
mod resources;
#[cfg(all(feature = "full", unix))]
mod script;
#[cfg(all(feature = "full", target_os = "linux"))]
mod send;
#[cfg(feature = "full")]
mod site;
mod stand_ins;
mod stream_file;
#[cfg(all(feature = "full", target_os = "linux"))]
mod symbols;
#[cfg(all(feature = "full", attaching))]
mod top;
#[cfg(feature = "full")]
mod tui;
#[cfg(all(feature = "full", target_os = "linux"))]
mod unfinished;
#[cfg(not(all(feature = "full", target_os = "linux")))]
#[path = "finished.rs"]
mod unfinished;
#[cfg(feature = "full")]
mod view;
mod waits;

#[derive(Subcommand)]
pub(crate) enum Command {
    #[cfg(all(feature = "full", target_os = "linux"))]
    Record(record::RecordArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Recover(recover::RecoverArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Ctl(ctl::CtlArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Calibrate(calibrate::CalibrateArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Live(live::LiveArgs),
    Replay(replay::ReplayArgs),
    Report(report::ReportArgs),
    Diff(diff::DiffArgs),
    #[cfg(feature = "full")]
    Resources(resources::ResourcesArgs),
    #[cfg(all(feature = "full", attaching))]
    Functracer(functracer::FunctracerArgs),
    #[cfg(feature = "full")]
    FunctracerPostproc(functracer_postproc::PostprocArgs),
    Graph(graph::GraphArgs),
    #[cfg(all(feature = "full", attaching))]
    Top(top::TopArgs),
    #[cfg(feature = "full")]
    Tui(tui::TuiArgs),
    #[cfg(all(feature = "full", unix))]
    Script(script::ScriptArgs),
    Info(info::InfoArgs),
    #[cfg(feature = "full")]
    View(view::ViewArgs),
    #[cfg(feature = "full")]
    Dump(dump::DumpArgs),
    #[cfg(feature = "full")]
    Merge(merge::MergeArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Import(import::ImportArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Symbols(symbols::SymbolsArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Recv(recv::RecvArgs),
    #[cfg(all(feature = "full", target_os = "linux"))]
    Send(send::SendArgs),
    #[cfg(feature = "full")]
    Completions(completions::CompletionsArgs),
    #[cfg(feature = "full")]
    Man(completions::ManArgs),
}

impl Command {
    /// Does what the command says. `program` has it as a subcommand.
    pub(crate) fn run(self, program: clap::Command) -> Result<()> {
        let result = self.start(program);
        unfinished::end();
        result
    }

    #[cfg_attr(not(feature = "full"), expect(unused_variables, reason = "it is for completions and pages"))]
    fn start(self, program: clap::Command) -> Result<()> {
        match self {
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Record(args) => record::run(args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Recover(args) => recover::run(args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Ctl(args) => ctl::run(args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Calibrate(args) => calibrate::run(args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Live(args) => live::run(args),
            Self::Replay(args) => replay::run(args),
            Self::Report(args) => report::run(args),
            Self::Diff(args) => diff::run(args),
            #[cfg(feature = "full")]
            Self::Resources(args) => resources::run(args),
            #[cfg(all(feature = "full", attaching))]
            Self::Functracer(args) => functracer::run(args),
            #[cfg(feature = "full")]
            Self::FunctracerPostproc(args) => functracer_postproc::run(&args),
            Self::Graph(args) => graph::run(args),
            #[cfg(all(feature = "full", attaching))]
            Self::Top(args) => top::run(args),
            #[cfg(feature = "full")]
            Self::Tui(args) => tui::run(args),
            #[cfg(all(feature = "full", unix))]
            Self::Script(args) => script::run(args),
            Self::Info(args) => info::run(args),
            #[cfg(feature = "full")]
            Self::View(args) => view::run(args),
            #[cfg(feature = "full")]
            Self::Dump(args) => dump::run(args),
            #[cfg(feature = "full")]
            Self::Merge(args) => merge::run(&args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Import(args) => import::run(&args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Symbols(args) => symbols::run(args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Recv(args) => recv::run(args),
            #[cfg(all(feature = "full", target_os = "linux"))]
            Self::Send(args) => send::run(&args),
            #[cfg(feature = "full")]
            Self::Completions(args) => completions::completions(&args, program),
            #[cfg(feature = "full")]
            Self::Man(args) => completions::man(&args, program),
        }
    }
}
