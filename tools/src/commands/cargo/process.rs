//! Output and exit status of processes that run for cargo.

use std::ffi::OsStr;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};

/// Runs a command of the toolchain and returns what it prints to stdout.
pub(super) fn output_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!(
            "{name} {} has failed: {}\n{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The exit code that tells what `status` tells, as shells do.
pub(super) fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| {
        use std::os::unix::process::ExitStatusExt;
        Some(128 + status.signal()?)
    });
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
