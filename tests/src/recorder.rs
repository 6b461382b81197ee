//! `rftrace record`, and what `rftrace replay` shows of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fixtures::{self, aarch64};
use crate::run::Run;

/// The command, with its preload libraries beside it.
pub fn rftrace() -> PathBuf {
    fixtures::command_line().join("rftrace")
}

/// Records a program into `trace`, in a new folder.
pub fn record(options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    record_by(&mut Command::new(rftrace()), options, program, arguments)
}

/// As [`record`], by another `rftrace`.
pub fn record_by(rftrace: &mut Command, options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    rftrace.args(["record", "--buffer", "4M", "--output", "trace"]).args(options);
    Run::of_any(rftrace.arg("--").arg(program).args(arguments))
}

/// As [`record`], on aarch64 Linux, in qemu-user. QEMU 7.2 now and then ends with an assertion of its own when threads end: such runs are repeated, counted
/// and printed.
pub fn aarch64_recorder(options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    const TRIES: usize = 5;
    static FAILED_ASSERTIONS: AtomicUsize = AtomicUsize::new(0);

    for _ in 0..TRIES {
        let mut rftrace = aarch64::machine(&aarch64::command_line().join("rftrace"));
        let run = record_by(&mut rftrace, options, program, arguments);
        let Some(assertion) = run.stderr.lines().find(|line| line.contains("ERROR:../../")) else { return run };
        let count = FAILED_ASSERTIONS.fetch_add(1, Relaxed) + 1;
        eprintln!("note: run {count} that QEMU ended: {assertion}");
    }
    panic!("QEMU ended each of {TRIES} runs");
}

/// Returns the calls that `rftrace replay` shows, without columns.
#[track_caller]
pub fn replay(run: &Run) -> String {
    replay_of(&run.path("trace"))
}

/// As [`replay`], of a trace.
#[track_caller]
pub fn replay_of(trace: &Path) -> String {
    let mut command = Command::new(rftrace());
    command.args(["replay", "-f", "none", "--full-names", "-d"]).arg(trace);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
