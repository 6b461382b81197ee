//! Programs that the recorded one starts with an environment of its own: they are recorded, and have what they were given.

use std::process::Command;

use rftrace_tests::{CProgram, Run, require};

use crate::record::{calls, record};

#[test]
fn programs_with_other_environments_are_recorded() {
    /// As many as the program has.
    const WAYS: u64 = 8;

    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["environments.c"]).without_library().with(&["-O1"]).build();
    let alone = Run::of_any(&mut Command::new(&program.path));
    assert_eq!((alone.status.code(), alone.stdout.lines().count() as u64), (Some(3), WAYS), "{}", alone.stdout);
    for way in [&[][..], &["--ring"], &["--stop"], &["--resources", "memory"]] {
        let run = record(way, &program.path, &[]);
        assert_eq!(run.status.code(), Some(3), "{way:?}: {}", run.stderr);
        assert_eq!(run.stdout, alone.stdout, "{way:?}: {}", run.stderr);
        assert_eq!(calls(&run)["work"], WAYS + 1, "{way:?}: {}", run.stderr);
        assert_eq!(run.trace("trace").tasks().len() as u64, WAYS + 1, "{way:?}: {}", run.stderr);
    }
}
