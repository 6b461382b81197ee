//! Programs that lock their memory (`mlockall`): they get what they get without rftrace.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

use rftrace_tests::{CProgram, require};

use crate::attach::count;
use crate::record::rftrace;

/// The flags of `mlockall`, added up: current memory, future memory, when it is used.
const FLAGS: [&str; 8] = ["1", "2", "3", "5", "7", "4", "0", "8"];

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn memory_is_locked_as_without() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["locks.c"]).without_library().with(&["-O1"]).build();
    // Limits on locked memory: none, enough for the program, too little, and 0.
    let limits: &[&[&str]] = if is_root() { &[&[], &["7340032"], &["1048576"], &["0"]] } else { &[&[]] };
    for (limit, flags) in limits.iter().flat_map(|limit| FLAGS.map(|flags| (limit, flags))) {
        let without = Command::new(&program.path).arg(flags).args(*limit).output().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Command::new(rftrace());
        recorder.args(["record", "-q", "-o"]).arg(folder.path().join("trace")).arg(&program.path).arg(flags);
        let with = recorder.args(*limit).current_dir(&folder).output().unwrap();
        assert_eq!(said(&with), said(&without), "{flags} {limit:?}");
        let told = String::from_utf8_lossy(&with.stderr).into_owned();
        let bank = told.lines().find_map(|line| line.strip_prefix("bank ")?.parse::<u64>().ok());
        assert!(bank.is_some_and(|kib| kib < 4096), "{flags} {limit:?}: {told}");
        if limit.is_empty() {
            assert_eq!(count(&folder.path().join("trace"), "leaf"), 2, "{flags}");
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}
