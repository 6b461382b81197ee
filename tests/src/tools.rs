//! Programs that tests need and that may be missing.

use std::env;
use std::io::{self, Write};
use std::process::{Command, Output, Stdio};
use std::thread;

/// Returns whether all `tools` are there; if not, the test should return.
///
/// A tool is a program in the search path, or `nightly`, the toolchain.
///
/// Says on stderr, past the test harness's capture, which test is skipped and why.
///
/// # Panics
///
/// When a tool is missing and the variable `CI` says that this is a machine that should have it.
#[must_use]
pub fn require(tools: &[&str]) -> bool {
    let absent: Vec<&str> = tools.iter().copied().filter(|tool| !is_there(tool)).collect();
    if !absent.is_empty() {
        missing(&absent.join(" and "));
    }
    absent.is_empty()
}

/// Says on stderr that something is missing, so that the calling test, or a part of it, is skipped.
///
/// # Panics
///
/// When the variable `CI` is set.
pub fn missing(what: &str) {
    assert!(env::var_os("CI").is_none(), "{what} missing, on a machine that should have it");
    skip(&format!("{what} missing"));
}

/// Says on stderr that the calling test, or a part of it, is skipped, and why. For what no machine has to permit.
pub fn skip(why: &str) {
    let test = thread::current().name().unwrap_or("test").to_owned();
    // The harness shows the captured output only of tests that fail.
    let _ = io::stderr().write_all(format!("{test}: skipped, {why}\n").as_bytes());
}

fn is_there(tool: &str) -> bool {
    let mut command = match tool {
        "nightly" | "stable" => {
            let mut cargo = Command::new("cargo");
            cargo.arg(format!("+{tool}"));
            cargo
        }
        tool => Command::new(tool),
    };
    let version = match tool {
        "tmux" => "-V",
        // It tells no version.
        "setcap" => "-h",
        _ => "--version",
    };
    let status = command.arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs `command` to its end and returns what it printed.
///
/// # Panics
///
/// When it cannot be started or fails; the message has what it printed.
pub fn run(command: &mut Command) -> Output {
    output_of(command).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`run`].
///
/// # Errors
///
/// When it cannot be started or fails.
pub fn try_run(command: &mut Command) -> Result<(), String> {
    output_of(command).map(drop)
}

fn output_of(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name} does not start: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    // Programs that print much, such as cargo's JSON, say at the end what went wrong.
    let printed = String::from_utf8_lossy(&output.stdout);
    let end = printed.char_indices().rev().nth(2_000).map_or(0, |(idx, _)| idx);
    let arguments = command.get_args().collect::<Vec<_>>();
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} {arguments:?}: {}\n{}{errors}", output.status, &printed[end..]))
}

/// Runs `command` to its end and returns its standard output as text.
///
/// # Panics
///
/// As [`run`].
pub fn text(command: &mut Command) -> String {
    String::from_utf8_lossy(&run(command).stdout).into_owned()
}
