//! Cargo's own arguments: passed on unchanged, but for what rftrace must know of them.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// The arguments of a cargo subcommand.
#[derive(Debug)]
pub(super) struct CargoArguments {
    subcommand: &'static str,
    /// Before `--`.
    own: Vec<OsString>,
    /// From `--` on.
    program: Vec<OsString>,
}

impl CargoArguments {
    pub(super) fn new(subcommand: &'static str, own: Vec<OsString>, program: Vec<OsString>) -> Self {
        Self { subcommand, own, program }
    }

    /// `run`, `test`, `bench` or `build`.
    pub(super) fn subcommand(&self) -> &'static str {
        self.subcommand
    }

    /// Those for cargo itself.
    pub(super) fn before_program(&self) -> &[OsString] {
        &self.own
    }

    /// The values of an option, in any of cargo's spellings: `--name VALUE` and `--name=VALUE`.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = OsString> + 'a {
        self.own.iter().enumerate().filter_map(move |(idx, arg)| {
            if arg == name {
                return self.own.get(idx + 1).cloned();
            }
            let value = arg.to_str()?.strip_prefix(name)?.strip_prefix('=')?;
            Some(value.into())
        })
    }

    fn has(&self, name: &str) -> bool {
        self.own.iter().any(|arg| arg == name)
    }

    pub(super) fn asks_for_help(&self) -> bool {
        self.has("--help") || self.has("-h")
    }

    /// True if nothing will be run.
    pub(super) fn only_builds(&self) -> bool {
        self.subcommand == "build" || self.has("--no-run")
    }

    /// True if the user has chosen the form of cargo's messages.
    pub(super) fn has_message_format(&self) -> bool {
        self.values("--message-format").next().is_some()
    }

    /// Arguments that say which manifest and configuration are meant.
    pub(super) fn place(&self) -> impl Iterator<Item = OsString> + '_ {
        let of = |name: &'static str| self.values(name).flat_map(move |value| [name.into(), value]);
        of("--manifest-path").chain(self.config())
    }

    /// The user's `--config` arguments.
    pub(super) fn config(&self) -> impl Iterator<Item = OsString> + '_ {
        self.values("--config").flat_map(|value| ["--config".into(), value])
    }

    /// The names of the profiles that may be used.
    pub(super) fn profiles(&self) -> Vec<String> {
        let chosen = self.values("--profile").map(|name| name.to_string_lossy().into_owned());
        ["dev", "release", "test", "bench"].map(String::from).into_iter().chain(chosen).collect()
    }

    /// Adds the subcommand, what the user gave, and where to build for what.
    pub(super) fn add_to(&self, cargo: &mut Command, target: &str, target_dir: &Path) {
        cargo.arg(self.subcommand);
        if self.values("--target").next().is_none() {
            cargo.args(["--target", target]);
        }
        if self.values("--target-dir").next().is_none() {
            cargo.arg("--target-dir").arg(target_dir);
        }
        cargo.args(&self.own);
        if self.only_builds() && !self.has_message_format() {
            cargo.arg("--message-format=json-render-diagnostics");
        }
        cargo.args(&self.program);
    }
}

/// Splits what a configuration calls a list: words of a string.
pub(super) fn words(text: &OsStr) -> Vec<OsString> {
    text.to_string_lossy().split_whitespace().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let own = ["--config", "a=1", "--release", "--config=b=2", "--profile", "my-dist", "--target"];
        let args = CargoArguments::new("test", own.map(OsString::from).into(), vec!["--".into(), "--no-run".into()]);
        assert_eq!(args.config().collect::<Vec<_>>(), ["--config", "a=1", "--config", "b=2"]);
        assert_eq!(args.profiles().last().unwrap(), "my-dist");
        assert_eq!(args.values("--target").count(), 0, "its value is missing");
        assert!(!args.only_builds(), "that is an argument of the program");
    }

    #[test]
    fn what_is_missing_is_added() {
        let command = |own: &[&str]| {
            let args =
                CargoArguments::new("run", own.iter().map(OsString::from).collect(), vec!["--".into(), "x".into()]);
            let mut cargo = Command::new("cargo");
            args.add_to(&mut cargo, "host", Path::new("dir"));
            cargo.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(command(&["-p", "a"]), "run --target host --target-dir dir -p a -- x");
        assert_eq!(command(&["--target-dir=t", "--target", "T"]), "run --target-dir=t --target T -- x");
    }
}
