//! Parts of cargo's configuration that must not be lost: flags, runners and targets.

use std::cell::OnceCell;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use cargo_metadata::MetadataCommand;
use cargo_platform::{Cfg, CfgExpr};
use rftrace_record::Processor;
use serde_json::Value;

use super::arguments::{CargoArguments, words};
use super::process::output_of;
use super::toolchain::Toolchain;

/// The merged configuration, without environment variables.
#[derive(Debug)]
pub(super) struct Config {
    values: Value,
    cfgs: OnceCell<Vec<Cfg>>,
}

impl Config {
    /// Asks cargo.
    pub(super) fn read(toolchain: &Toolchain, args: &CargoArguments) -> Result<Self> {
        let mut cargo = toolchain.cargo();
        // It is no stable command of cargo's. Nothing is built by it.
        cargo.env("RUSTC_BOOTSTRAP", "1");
        cargo.args(["-Z", "unstable-options", "config", "get", "--format", "json-value"]).args(args.config());
        let text = output_of(&mut cargo).context("cannot read cargo's configuration")?;
        let values = serde_json::from_str(&text).context("cannot read the output of `cargo config get`")?;
        Ok(Self { values, cfgs: OnceCell::new() })
    }

    fn get(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(&self.values, |value, key| value.get(key))
    }

    /// The triple to build for.
    pub(super) fn target(&self, toolchain: &Toolchain, args: &CargoArguments) -> Result<String> {
        let mut named: Vec<String> =
            args.values("--target").map(|target| target.to_string_lossy().into_owned()).collect();
        if named.is_empty() {
            named = match env::var_os("CARGO_BUILD_TARGET") {
                Some(target) => vec![target.to_string_lossy().into_owned()],
                None => self.get(&["build", "target"]).map(strings).unwrap_or_default(),
            };
        }
        let target = match named.as_slice() {
            [] => toolchain.host(),
            [target] if target == "host-tuple" => toolchain.host(),
            [target] => target,
            _ => bail!("cannot record several targets at a time ({}); name one with --target", named.join(", ")),
        };
        let host = toolchain.host();
        let own = Processor::own()
            .context("cannot record programs for this machine: rftrace does not support its processor")?;
        match Processor::of_target(target).filter(|_| target.ends_with("-linux-gnu")) {
            Some(processor) if processor.arch == own.arch => {}
            Some(other) => bail!(
                "cannot record programs for {target}: they need an rftrace for {} Linux, and this one is for {}. Build the program with \
                 RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --target {target}, and record it on a machine or an emulator \
                 for {0}, with: rftrace record PROGRAM",
                other.name,
                own.name
            ),
            None if target == format!("{}-unknown-linux-musl", own.arch) && own.has_all => bail!(
                "cargo rftrace cannot record programs for {target}, as musl has no `mcount` for their functions to call. Write one into \
                 the program,\n  \
                 std::arch::global_asm!(\".globl mcount\", \".p2align 4\", \"mcount: ret\", \".p2align 4\");\n\
                 build it with\n  \
                 RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --target {target}\n\
                 and record it with\n  \
                 rftrace record PROGRAM"
            ),
            None => bail!(
                "cargo rftrace cannot record programs for {target}, only dynamically linked ones for {} Linux with glibc, as \
                 {}-unknown-linux-gnu (this machine is {host}). Link the tracer into the program: add the crates rftrace and \
                 rftrace-frontend, see https://github.com/hermit-os/rftrace",
                own.name,
                own.arch
            ),
        }
        Ok(target.to_owned())
    }

    /// Values of `target.<triple>.KEY` and of `target.'cfg(…)'.KEY` for each condition that holds.
    pub(super) fn of_target(&self, toolchain: &Toolchain, target: &str, key: &str) -> Result<Vec<&Value>> {
        let Some(Value::Object(tables)) = self.get(&["target"]) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (name, table) in tables {
            let Some(value) = table.get(key) else { continue };
            if name == target || self.holds(toolchain, target, name)? {
                found.push(value);
            }
        }
        Ok(found)
    }

    /// True if `name` is a condition, and the target fulfils it.
    fn holds(&self, toolchain: &Toolchain, target: &str, name: &str) -> Result<bool> {
        let Some(condition) = name.strip_prefix("cfg(").and_then(|rest| rest.strip_suffix(')')) else {
            return Ok(false);
        };
        let Ok(condition) = CfgExpr::from_str(condition) else { return Ok(false) };
        let cfgs = match self.cfgs.get() {
            Some(cfgs) => cfgs,
            None => {
                let text = output_of(toolchain.rustc().args(["--print", "cfg", "--target", target]))?;
                let cfgs = text.lines().filter_map(|line| Cfg::from_str(line).ok()).collect();
                self.cfgs.get_or_init(|| cfgs)
            }
        };
        Ok(condition.matches(cfgs))
    }

    /// The program that the user lets cargo run programs with, and its arguments; usually none.
    pub(super) fn runner(&self, toolchain: &Toolchain, target: &str) -> Result<Vec<OsString>> {
        if let Some(runner) = env::var_os(target_variable(target, "RUNNER")) {
            return Ok(words(&runner));
        }
        let values = self.of_target(toolchain, target, "runner")?;
        Ok(values.first().map(|value| strings(value)).unwrap_or_default().into_iter().map(OsString::from).collect())
    }

    /// True if `build.rustflags` is not looked at, because there are flags for the target.
    pub(super) fn has_target_rustflags(&self, toolchain: &Toolchain, target: &str) -> Result<bool> {
        if env::var_os(target_variable(target, "RUSTFLAGS")).is_some_and(|flags| !words(&flags).is_empty()) {
            return Ok(true);
        }
        let values = self.of_target(toolchain, target, "rustflags")?;
        Ok(values.into_iter().any(|value| !strings(value).is_empty()))
    }
}

/// The name of the variable for `target.<triple>.<key>`.
pub(super) fn target_variable(target: &str, key: &str) -> String {
    format!("CARGO_TARGET_{}_{key}", target.to_uppercase().replace(['-', '.'], "_"))
}

/// The words of a string, or the strings of a list.
fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().map(String::from).collect(),
        Value::Array(values) => values.iter().filter_map(|value| Some(value.as_str()?.to_owned())).collect(),
        _ => Vec::new(),
    }
}

/// The target directory that the user's builds have.
pub(super) fn target_dir(toolchain: &Toolchain, args: &CargoArguments) -> Result<PathBuf> {
    let mut cargo = toolchain.cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).args(args.place());
    let text = output_of(&mut cargo)?;
    // The error's text has that of its source.
    let metadata = MetadataCommand::parse(text.trim())
        .map_err(|error| anyhow!("cannot read the output of `cargo metadata`: {error}"))?;
    Ok(metadata.target_directory.into())
}
