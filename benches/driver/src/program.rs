//! The measured programs: where they are, how they are run, what they print.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Ours,
    Published,
    Untraced,
    /// A C program that `uftrace record` traces.
    Uftrace,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "ours",
            Self::Published => "published",
            Self::Untraced => "untraced",
            Self::Uftrace => "uftrace",
        })
    }
}

/// The programs that `run` has built, and a folder for what they write.
pub struct Programs {
    programs: PathBuf,
    scratch: PathBuf,
}

impl Programs {
    /// `programs` holds one file per variant.
    pub fn new(programs: &Path) -> Result<Self, String> {
        let programs = fs::canonicalize(programs).map_err(|e| format!("{}: {e}", programs.display()))?;
        let scratch = std::env::temp_dir().join(format!("rftrace-bench-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        Ok(Self { programs, scratch })
    }

    /// Whether a variant was built here.
    pub fn has(&self, variant: Variant) -> bool {
        self.program(variant).is_file()
    }

    /// An empty folder for one run.
    pub fn folder(&self) -> Result<PathBuf, String> {
        let folder = self.scratch.join("run");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    /// Runs a program and returns the numbers of its result lines, line by line. There are none where other programs
    /// took the processors in every batch.
    pub fn run(&self, variant: Variant, arguments: &[&str]) -> Result<Vec<Vec<f64>>, String> {
        let mut command = if variant == Variant::Uftrace {
            let mut uftrace = Command::new("uftrace");
            uftrace.args(["record", "--no-pager", "--no-libcall", "--no-event", "--data"]).arg(self.folder()?);
            uftrace.arg(self.program(variant));
            uftrace
        } else {
            Command::new(self.program(variant))
        };
        command.args(arguments);
        let output = self.output(&mut command)?;
        results(&String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| format!("{variant} {} printed something else than numbers", arguments.join(" ")))
    }

    /// Instructions that a program executes, as callgrind counts them.
    pub fn instructions(&self, variant: Variant, arguments: &[&str]) -> Result<u64, String> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        valgrind.arg(self.program(variant)).args(arguments);
        // A program with gprof's start-up code may end by its signal SIGPROF; the number is there all the same.
        let output = valgrind.current_dir(&self.scratch).output().map_err(|e| format!("valgrind: {e}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find_map(|line| line.split_once("Collected : "));
        line.and_then(|(_, count)| count.trim().parse().ok())
            .ok_or_else(|| format!("callgrind told no number:\n{text}"))
    }

    fn program(&self, variant: Variant) -> PathBuf {
        self.programs.join(variant.to_string())
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
