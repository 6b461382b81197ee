//! Messages about gaps in a trace, a line each, from every view.

use std::fs;

use rftrace_tests::golden;

use crate::cli::{rftrace, run, utf8};
use crate::dir::{Files, NAMELESS, entry, exit};

#[test]
#[cfg(unix)]
fn they_are_said_behind_uftraces_replay_too() {
    use std::os::unix::fs::PermissionsExt;

    let dir = golden::copy("losses/full");
    for name in ["prog.sym", "8.dat"] {
        fs::remove_file(dir.path().join(name)).expect("a file");
    }
    fs::write(dir.path().join("record.txt"), "full=1\n").expect("a writable folder");
    let bin = tempfile::tempdir().expect("a folder");
    let uftrace = bin.path().join("uftrace");
    fs::write(&uftrace, "#!/bin/sh\n").expect("a writable folder");
    fs::set_permissions(&uftrace, fs::Permissions::from_mode(0o755)).expect("our own file");
    let output = rftrace(&["replay", "--uftrace", utf8(dir.path())])
        .env("PATH", bin.path())
        .output()
        .expect("the command starts");
    let (code, stdout, stderr) = crate::cli::parts(&output);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(0), "", 3), "{stderr}");
    for text in ["buffer was full", "missing files of threads: 8.dat", "rftrace symbols "] {
        assert!(stderr.contains(text), "{text} in {stderr}");
    }
}

#[test]
fn suggested_commands_can_be_pasted() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("it's; a trace");
    fs::create_dir(&dir).expect("a writable folder");
    let nameless = Files::new(&[(7, &[entry(1, 0, NAMELESS), exit(3, 0, NAMELESS)])]);
    for (name, bytes) in &nameless.0 {
        fs::write(dir.join(name), bytes).expect("a writable folder");
    }
    let (_, _, stderr) = run(&["replay", "--hints", utf8(&dir)]);
    let (_, symbols) = stderr.split_once("`rftrace symbols ").expect("a remedy");
    let (symbols, _) = symbols.split_once(" --binary").expect("with its option");
    let report = stderr.lines().find_map(|line| line.split_once(" report ")).expect("a hint").1;
    for word in [symbols, report] {
        assert_eq!(shlex::split(word), Some(vec![utf8(&dir).to_owned()]), "{stderr}");
    }
}
