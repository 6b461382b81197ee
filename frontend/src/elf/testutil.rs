//! Helpers of the tests: a scratch folder and the system's compilers.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

/// A folder, removed at the end of the test.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder. `name` must be unique among the tests.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rftrace-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    /// Returns the path of `file` in the folder.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Compiles `source` to `result`. Returns `None` if the compiler or one of its parts is [missing].
    pub(crate) fn compile(&self, input: &str, source: &str, result: &str, arguments: &[&str]) -> Option<PathBuf> {
        let (input, output) = (self.path(input), self.path(result));
        fs::write(&input, source).unwrap();
        let compiler = if input.extension().is_some_and(|extension| extension == "cpp") { "g++" } else { "gcc" };
        works(Command::new(compiler).arg(&input).arg("-o").arg(&output).args(arguments)).then_some(output)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool that a machine may lack, or refuse. Returns false if it is [missing].
pub(crate) fn works(command: &mut Command) -> bool {
    let problem = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    missing(&format!("{command:?}: {}", problem.trim()));
    false
}

/// Reports on stderr, past the harness, that the calling test is skipped, and why. Fails in CI, which has all tools for
/// tests.
fn missing(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what}");
    let test = thread::current().name().unwrap_or("test").to_owned();
    let _ = io::stderr().write_all(format!("{test}: skipped, {what}\n").as_bytes());
}

/// Runs `command` and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
