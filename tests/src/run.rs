//! Running programs.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use rftrace_read::Trace;
use tempfile::TempDir;

use crate::traces;

/// After so many seconds a program counts as hung.
const LIMIT_SECONDS: &str = "900";

/// A program that ran to its end, and the folder it ran in.
#[derive(Debug)]
pub struct Run {
    /// Its output.
    pub stdout: String,
    /// Its output to stderr.
    pub stderr: String,
    /// How it ended.
    pub status: ExitStatus,
    folder: TempDir,
}

impl Run {
    /// Runs `command` in a new folder, which is removed with what is returned.
    ///
    /// # Panics
    ///
    /// When the program fails, hangs, or leaves a `gmon.out`, as gprof would.
    pub fn of(command: &mut Command) -> Self {
        let run = Self::of_any(command);
        assert!(run.status.success(), "{command:?}: {}\n{}{}", run.status, run.stdout, run.stderr);
        assert!(!run.path("gmon.out").exists(), "{command:?} left a gmon.out");
        run
    }

    /// As [`of`](Self::of), for programs that may fail.
    ///
    /// # Panics
    ///
    /// When the program cannot be started.
    pub fn of_any(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut limited = Command::new("timeout");
        limited.args(["--foreground", "--signal=KILL", LIMIT_SECONDS]);
        limited.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        // Panics in Rust programs should print the same everywhere.
        limited.env_remove("RUST_BACKTRACE").current_dir(folder.path()).stdin(Stdio::null());
        let output = limited.output().unwrap_or_else(|error| panic!("timeout does not start: {error}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { stdout: text(&output.stdout), stderr: text(&output.stderr), status: output.status, folder }
    }

    /// The path of something in the folder that the program ran in.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The trace that the program left in its folder under `name`; see [`traces::open`].
    #[must_use]
    pub fn trace(&self, name: &str) -> Trace {
        traces::open(&self.path(name))
    }
}
