//! The `cargo rftrace` command, which cargo starts. `rftrace`, beside it, does the work.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    // Cargo passes the name of the subcommand.
    let _ = args.next_if(|arg| arg == "rftrace");
    let rftrace = beside_this().unwrap_or_else(|| "rftrace".into());
    match start(Command::new(&rftrace).arg("cargo").args(args)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!(
                "cargo-rftrace: cannot run {}: {error}; install both programs together: `cargo install --path tools` in a checkout of rftrace",
                rftrace.display()
            );
            ExitCode::FAILURE
        }
    }
}

fn beside_this() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let path = this.parent()?.join(Path::new("rftrace").with_extension(std::env::consts::EXE_EXTENSION));
    path.is_file().then_some(path)
}

#[cfg(unix)]
fn start(command: &mut Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(not(unix))]
fn start(command: &mut Command) -> io::Result<ExitCode> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
