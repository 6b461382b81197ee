//! Programs that the recorded one starts with an environment of its own: they are recorded, and have what they were given. And programs that cannot be
//! recorded so: they run as without.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rftrace_tests::{CProgram, Run, fixtures, require};

use crate::record::{calls, record, record_by, rftrace};

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

/// musl's dynamic linker ends a program that is to load a library of the GNU C library's.
#[test]
fn programs_for_musl_run_as_without() {
    if !require(&["gcc", "musl-gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (other, script) = (folder.path().join("other"), folder.path().join("script"));
    fixtures::build_as(Command::new("musl-gcc").arg(fixtures::folder("c").join("other.c")), &other);
    std::fs::write(&script, format!("#!{} as a script\n", other.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let program = CProgram::new(&["starts.c"]).without_library().with(&["-O1"]).build();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for started in [&other, &script] {
        let mut alone = Command::new(&program.path);
        alone.arg(started).arg(started.file_name().unwrap()).env("PATH", &path);
        let alone = Run::of_any(&mut alone);
        assert_eq!((alone.status.code(), alone.stdout.matches("musl").count()), (Some(0), 7), "{}", alone.stdout);
        for way in [&[][..], &["--stop"], &["--resources", "memory"]] {
            let (started, name) = (started.to_str().unwrap(), started.file_name().unwrap().to_str().unwrap());
            let run = record_by(Command::new(rftrace()).env("PATH", &path), way, &program.path, &[started, name]);
            assert_eq!((run.status.code(), &run.stdout), (Some(0), &alone.stdout), "{way:?}: {}", run.stderr);
            if way.first() != Some(&"--resources") {
                assert!(run.stderr.contains("the program uses musl"), "{way:?}: {}", run.stderr);
            }
        }
    }
}
