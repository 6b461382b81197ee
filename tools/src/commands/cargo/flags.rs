//! The environment of cargo that makes it instrument, without taking away what the user has set.
//!
//! Cargo takes flags from one of four places, the first that has any: CARGO_ENCODED_RUSTFLAGS, RUSTFLAGS, those of the
//! target, `build.rustflags`. The latter two are lists that variables add to, whatever form the configuration has. With a
//! `--target` none of them reaches build scripts and procedural macros.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use anyhow::Result;

use super::arguments::CargoArguments;
use super::config::{Config, target_variable};
use super::hooks::Hooks;
use super::toolchain::Toolchain;

/// Variables that are set for cargo, and are as before again for the program.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    /// The names, the values for cargo and the values that the user had set.
    changes: Vec<(String, OsString, Option<OsString>)>,
}

impl Environment {
    pub(super) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.changes.push((name.to_owned(), value.as_ref().to_owned(), env::var_os(name)));
    }

    /// Sets something for all profiles that may be used.
    pub(super) fn set_for_profiles(&mut self, args: &CargoArguments, what: &str, value: &str) {
        for profile in args.profiles() {
            self.set(&format!("CARGO_PROFILE_{}_{what}", profile.to_uppercase().replace('-', "_")), value);
        }
    }

    /// Adds `words` to what the variable has, with `separator` between them.
    fn append(&mut self, name: &str, separator: &str, words: &[String]) {
        let mut value = env::var_os(name).unwrap_or_default();
        for word in words {
            if !value.is_empty() {
                value.push(separator);
            }
            value.push(word);
        }
        self.set(name, value);
    }

    pub(super) fn apply(&self, command: &mut Command) {
        command.envs(self.changes.iter().map(|(name, value, _)| (name, value)));
    }

    /// Returns the variables as the user had set them.
    pub(super) fn before(&self) -> Vec<(String, Option<OsString>)> {
        self.changes.iter().map(|(name, _, before)| (name.clone(), before.clone())).collect()
    }
}

/// Returns the variables that make cargo build programs with names, and with hooks if the compiler is to make them.
pub(super) fn environment(
    hooks: Hooks,
    toolchain: &Toolchain,
    config: &Config,
    args: &CargoArguments,
    target: &str,
) -> Result<Environment> {
    let mut environment = Environment::default();
    if let Some(flag) = hooks.flag() {
        if env::var_os("CARGO_ENCODED_RUSTFLAGS").is_some() {
            environment.append("CARGO_ENCODED_RUSTFLAGS", "\x1f", &flag);
        } else if env::var_os("RUSTFLAGS").is_some() {
            environment.append("RUSTFLAGS", " ", &flag);
        } else if config.has_target_rustflags(toolchain, target)? {
            environment.append(&target_variable(target, "RUSTFLAGS"), " ", &flag);
        } else {
            environment.append("CARGO_BUILD_RUSTFLAGS", " ", &flag);
        }
    }
    // Names of functions come from the symbol table.
    environment.set_for_profiles(args, "STRIP", "none");
    Ok(environment)
}
