//! Which tracer does what, and how the measured programs are run that way.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A tracer and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not a tracer: two time stamps and two stores.
    Floor,
    Untraced,
    /// Calls to `mcount` are NOPs.
    Nops,
    Off,
    OffPatched,
    OffPublished,
    OffBefore,
    On,
    OnPatched,
    /// Records one of the hundred functions.
    Filtered,
    FilteredPatched,
    OnPublished,
    OnBefore,
    OnUftrace,
}

/// Makes call sites jumps or NOPs.
const PATCHED: (&str, &str) = ("RFTRACE_PATCHED", "1");
/// Chooses one of the hundred functions.
const ONE_OF_HUNDRED: (&str, &str) = ("RFTRACE_FILTER", "include=hundred_42");

impl Mode {
    /// The file that `benches/run` has built; that of ripgrep has `-rg` behind it.
    fn program(self) -> &'static str {
        match self {
            Self::Floor | Self::Untraced => "untraced",
            Self::Nops => "nops",
            Self::OffPublished | Self::OnPublished => "published",
            Self::OffBefore | Self::OnBefore => "before",
            Self::OnUftrace => "uftrace",
            Self::Off | Self::OffPatched | Self::On | Self::OnPatched | Self::Filtered | Self::FilteredPatched => {
                "ours"
            }
        }
    }

    /// Recording in this mode: "on" or "off".
    pub fn state(self) -> &'static str {
        match self {
            Self::Floor | Self::Untraced | Self::Nops => "off",
            Self::Off | Self::OffPatched | Self::OffPublished | Self::OffBefore => "off",
            Self::On | Self::OnPatched | Self::Filtered | Self::FilteredPatched => "on",
            Self::OnPublished | Self::OnBefore | Self::OnUftrace => "on",
        }
    }

    pub fn is_filtered(self) -> bool {
        matches!(self, Self::Filtered | Self::FilteredPatched)
    }

    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::OffPatched | Self::OnPatched => &[PATCHED],
            Self::Filtered => &[ONE_OF_HUNDRED],
            Self::FilteredPatched => &[PATCHED, ONE_OF_HUNDRED],
            _ => &[],
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Floor => "two `rdtsc`, two stores",
            Self::Untraced => "untraced",
            Self::Nops => "NOPs for calls of `mcount`",
            Self::Off => "off",
            Self::OffPatched => "off, patched",
            Self::OffPublished => "off, 0.3.2",
            Self::OffBefore => "off, before",
            Self::On => "on",
            Self::OnPatched => "on, patched",
            Self::Filtered => "one of a hundred",
            Self::FilteredPatched => "one of a hundred, patched",
            Self::OnPublished => "on, 0.3.2",
            Self::OnBefore => "on, before",
            Self::OnUftrace => "on, uftrace",
        })
    }
}

/// The programs that `run` has built, and a folder for what they write.
pub struct Programs {
    programs: PathBuf,
    scratch: PathBuf,
}

impl Programs {
    pub fn new(programs: &Path) -> Result<Self, String> {
        let programs = fs::canonicalize(programs).map_err(|e| format!("{}: {e}", programs.display()))?;
        let scratch = std::env::temp_dir().join(format!("rftrace-bench-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        Ok(Self { programs, scratch })
    }

    /// An empty folder for one run.
    pub fn folder(&self) -> Result<PathBuf, String> {
        let folder = self.scratch.join("run");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    /// Runs the measured program and returns the numbers of its result lines, line by line. There are none where other
    /// programs took the processors in every batch, or where uftrace is missing.
    pub fn run(&self, mode: Mode, arguments: &[&str]) -> Result<Vec<Vec<f64>>, String> {
        self.run_file(mode, &self.programs.join(mode.program()), arguments)
    }

    /// The same with ripgrep.
    pub fn run_ripgrep(&self, mode: Mode, arguments: &[&str]) -> Result<Vec<Vec<f64>>, String> {
        self.run_file(mode, &self.programs.join(format!("{}-rg", mode.program())), arguments)
    }

    fn run_file(&self, mode: Mode, file: &Path, arguments: &[&str]) -> Result<Vec<Vec<f64>>, String> {
        let mut command = if mode == Mode::OnUftrace {
            if Command::new("uftrace").arg("--version").output().is_err() {
                return Ok(Vec::new());
            }
            let mut uftrace = Command::new("uftrace");
            // Buffers so large that it does not wait for its own writing.
            uftrace.args(["record", "--no-pager", "--no-libcall", "--no-event", "--buffer=8M", "--data"]);
            uftrace.arg(self.folder()?).arg(file);
            uftrace
        } else {
            Command::new(file)
        };
        command.args(arguments).envs(mode.environment().iter().copied()).env("RFTRACE_BENCH", mode.state());
        let output = self.output(&mut command)?;
        results(&String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| format!("{mode}: {} printed something else than numbers", arguments.join(" ")))
    }

    /// Instructions that the measured program executes, as callgrind counts them.
    pub fn instructions(&self, mode: Mode, arguments: &[&str]) -> Result<u64, String> {
        let mut valgrind = Command::new("valgrind");
        // Code that has run may be patched, and lies in a file's pages, which callgrind takes for constant otherwise.
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--smc-check=all"]);
        valgrind.arg(self.programs.join(mode.program())).args(arguments).envs(mode.environment().iter().copied());
        // A program with gprof's start-up code may end by its signal SIGPROF; the number is there all the same.
        let output = valgrind.current_dir(&self.scratch).output().map_err(|e| format!("valgrind: {e}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find_map(|line| line.split_once("Collected : "));
        line.and_then(|(_, count)| count.trim().parse().ok())
            .ok_or_else(|| format!("callgrind told no number:\n{text}"))
    }

    fn output(&self, command: &mut Command) -> Result<Output, String> {
        // gprof's start-up code, which rustc links, leaves a file where the program runs.
        let output = command.current_dir(&self.scratch).output().map_err(|e| format!("{command:?}: {e}"))?;
        if output.status.success() {
            Ok(output)
        } else {
            Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// The lines that begin with `result `, as numbers.
fn results(text: &str) -> Option<Vec<Vec<f64>>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("result "));
    let numbers = lines.map(|line| line.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>());
    numbers.collect::<Result<Vec<_>, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_among_other_lines() {
        assert_eq!(results("Saving!\nresult 1 2.5\nresult 3\n"), Some(vec![vec![1.0, 2.5], vec![3.0]]));
        assert_eq!(results("Saving!\n"), Some(Vec::new()));
        assert_eq!(results("result x\n"), None);
    }
}
