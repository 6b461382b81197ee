//! `rftrace record`: programs however they were linked, and paths of any kind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::{CProgram, Run, require};

use crate::record::{c_program, calls, record, rftrace};

/// Programs import the hook in several ways.
#[test]
fn however_it_was_linked() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [
        &["-no-pie"][..],
        &["-no-pie", "-Wl,--hash-style=gnu"],
        &["-no-pie", "-Wl,--hash-style=sysv"],
        &["-no-pie", "-s"],
        &["-Wl,--hash-style=sysv"],
        &["-Wl,--hash-style=gnu", "-s"],
        &["-no-pie", "-fno-plt", "-Wl,-z,now"],
        &["-mfentry", "-no-pie"],
        &["-static-pie"],
    ] {
        let program = CProgram::new(&["recorded.c"]).without_library().with(arguments);
        let program = program.with(&["-O1", "-Wno-infinite-recursion", "-lpthread"]).build();
        let run = record(&[], &program.path, &["threads"]);
        assert_eq!(run.status.code(), Some(0), "{arguments:?}: {}", run.stderr);
        // 17 times `leaf`, 4 `work`, 3 `named`, `threads` may be inlined, `how`, `main`.
        let n_calls: u64 = calls(&run).values().sum();
        assert!((26..=27).contains(&n_calls), "{arguments:?}: {n_calls}, {}", run.stderr);
    }
    // A program whose symbols are all imported: its GNU hash table has none.
    for style in ["gnu", "both", "sysv"] {
        let program = CProgram::new(&["imports.c"]).without_library();
        let program = program.with(&["-O1", "-no-pie", &format!("-Wl,--hash-style={style}")]).build();
        let run = record(&[], &program.path, &[]);
        assert_eq!(
            calls(&run),
            BTreeMap::from([("leaf".to_owned(), 3), ("main".to_owned(), 1)]),
            "{style}: {}",
            run.stderr
        );
    }
}

/// The dynamic linker splits the list of what is preloaded at spaces and colons, and replaces what begins with a dollar sign.
#[test]
fn the_command_may_lie_anywhere() {
    if !require(&["gcc"]) {
        return;
    }
    let built = rftrace();
    let folder = tempfile::tempdir_in(built.parent().unwrap()).unwrap();
    for name in ["with space", "with:colon", "with$LIB"] {
        let place = folder.path().join(name);
        fs::create_dir(&place).unwrap();
        for file in ["rftrace", "rftrace-preload"] {
            fs::hard_link(built.with_file_name(file), place.join(file)).unwrap();
        }
        let temporary = place.join("temporary");
        fs::create_dir(&temporary).unwrap();
        let mut command = Command::new(place.join("rftrace"));
        command.args(["record", "-b", "1M", "-o", "a trace"]).arg("--").arg(&c_program().path);
        let run = Run::of_any(command.args(["fork_exec"]).env("TMPDIR", &temporary));
        assert_eq!(run.status.code(), Some(0), "{name}: {}", run.stderr);
        assert!(run.stderr.contains("in 2 processes") && !run.stderr.contains("ld.so"), "{name}: {}", run.stderr);
    }
}

/// Others can neither read what is recorded nor foresee where it lies.
#[test]
fn the_temporary_folder_of_live_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let list = format!("ls -l {}", folder.path().display());
    let mut command = Command::new(rftrace());
    let run = Run::of_any(
        command.args(["record", "--live", "--force", "--", "/bin/sh", "-c", &list]).env("TMPDIR", folder.path()),
    );
    let line =
        run.stdout.lines().find(|line| line.contains("rftrace-live-")).unwrap_or_else(|| panic!("{}", run.stderr));
    assert!(line.starts_with("drwx------"), "{line}");
    let name = line.rsplit("rftrace-live-").next().unwrap();
    assert!(name.parse::<u32>().is_err(), "{line}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// The process as a whole has no memory then, as the system sees it.
#[test]
fn patched_sites_after_the_main_thread_has_ended() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&["--patched"][..], &[]] {
        let run = record(options, Path::new(&c_program().path), &["toggle_without_main"]);
        assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
        assert_eq!(calls(&run)["leaf"], 2 + 3, "{options:?}: {}", run.stderr);
    }
}
