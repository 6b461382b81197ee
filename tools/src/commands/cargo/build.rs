//! Building only.

use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use cargo_metadata::Message;
use rftrace_record::CallSites;

use super::arguments::CargoArguments;
use super::hooks::Hooks;
use super::process::code_of;
use super::status::{status, warning};
use crate::commands::common::shell_word;

/// Runs cargo and prints the paths of the programs. `list` writes a list of functions that need no branch, for `--hooks=entry`, and returns
/// its path.
pub(super) fn run(
    cargo: &mut Command,
    args: &CargoArguments,
    hooks: Hooks,
    list: &dyn Fn() -> Result<PathBuf>,
    quiet: bool,
) -> Result<ExitCode> {
    let name = cargo.get_program().display().to_string();
    if args.has_message_format() {
        return Ok(code_of(cargo.status().with_context(|| format!("cannot run {name}"))?));
    }
    let mut child = cargo.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run {name}"))?;
    let mut programs = Vec::new();
    for message in child.stdout.take().map(BufReader::new).into_iter().flat_map(Message::parse_stream) {
        let message = message.with_context(|| format!("cannot read the output of {name}"))?;
        if let Message::CompilerArtifact(artifact) = message
            && !artifact.target.is_custom_build()
            && let Some(path) = artifact.executable.map(PathBuf::from)
            // Programs of one name in two packages are one file.
            && !programs.contains(&path)
        {
            programs.push(path);
        }
    }
    let exit = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    if exit.success() && !quiet && hooks == Hooks::Entry {
        let list = list()?;
        for path in &programs {
            let options = format!("-P '*' --patch-except {}", shell_word(&list));
            let path = shell_word(path);
            status("Built", &path);
            status("Next", &format!("rftrace record {options} -o uftrace.data -- {path}"));
        }
    } else if exit.success() && !quiet {
        for path in &programs {
            let prepared = hooks.prepared(path, &CallSites::read(path)?);
            if prepared == 0 {
                warning(&format!(
                    "cannot record {}: the compiler has instrumented no function of it; try --hooks=entry",
                    path.display()
                ));
            } else {
                let path = shell_word(path);
                status("Built", &format!("{path} ({prepared} instrumented functions)"));
                status("Next", &format!("rftrace record -o uftrace.data -- {path}"));
            }
        }
    }
    Ok(code_of(exit))
}
