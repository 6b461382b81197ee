//! The options of `rftrace record` that `cargo rftrace` takes too, and passes on.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::commands::record::RecordArgs;

/// Those that `cargo rftrace` has itself, decides, or has no use for: it begins programs. No other option may name one of them.
const OWN: [&str; 13] = [
    "output",
    "is_for_cargo",
    "live",
    "view",
    "quiet",
    "command",
    "to",
    "no_local",
    "token_file",
    "pid",
    "duration",
    "leave",
    "take_over",
];

/// The given ones, as arguments.
#[derive(Debug, Default)]
pub(super) struct RecordOptions {
    args: Vec<OsString>,
    /// Most bytes of all traces of a run together.
    pub(super) max_size: u64,
}

impl RecordOptions {
    /// The arguments for `rftrace record`.
    pub(super) fn into_args(self) -> Vec<OsString> {
        self.args
    }

    /// The same, to be kept in a file.
    ///
    /// # Errors
    ///
    /// One of them is no text.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        let text = |arg: &OsString| Some(arg.to_str()?.to_owned());
        self.args
            .iter()
            .map(|arg| {
                text(arg)
                    .with_context(|| format!("cannot keep {} in the baseline: it is not text (UTF-8)", arg.display()))
            })
            .collect()
    }
}

fn options() -> Vec<Arg> {
    let command = RecordArgs::augment_args(Command::new("record"));
    let passed_on = command.get_arguments().filter(|arg| !OWN.contains(&arg.get_id().as_str()));
    passed_on.cloned().collect()
}

impl Args for RecordOptions {
    fn augment_args(command: Command) -> Command {
        command.args(options())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RecordOptions {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let mut args = Vec::new();
        for option in options() {
            let id = option.get_id().as_str();
            let (Some(ValueSource::CommandLine), Some(long)) = (matches.value_source(id), option.get_long()) else {
                continue;
            };
            if !option.get_action().takes_values() {
                args.push(format!("--{long}").into());
                continue;
            }
            for value in matches.get_raw(id).into_iter().flatten() {
                let mut arg = OsString::from(format!("--{long}="));
                arg.push(value);
                args.push(arg);
            }
        }
        let max_size = matches.get_one::<usize>("max_size").copied().unwrap_or_default() as u64;
        Ok(Self { args, max_size })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_only_what_is_there() {
        RecordOptions::augment_args(Command::new("test")).debug_assert();
    }

    #[test]
    fn arguments_are_passed_on() {
        let command = RecordOptions::augment_args(Command::new("test"));
        let given = ["test", "-F", "app::*", "--ring", "--filter=x", "-b", "1M"];
        let options = RecordOptions::from_arg_matches(&command.get_matches_from(given)).unwrap();
        assert_eq!(options.into_args(), ["--filter=app::*", "--filter=x", "--ring", "--buffer=1M"]);
    }
}
