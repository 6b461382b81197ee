//! `rftrace dump` as a command.

use std::fs;

use crate::cli::{parts, rftrace, run, utf8};
use crate::dir::{A, MAIN, entry, exit, trace};

fn sample() -> crate::dir::Dir {
    trace(&[entry(1_000, 0, MAIN), entry(2_000, 1, A), exit(3_500, 1, A), exit(5_000, 0, MAIN)])
}

const FORMATS: [&str; 5] = ["--chrome", "--perfetto", "--flamegraph", "--folded", "--firefox"];

#[test]
fn a_range_beyond_the_trace_is_refused() {
    let dir = sample();
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("out");
    fs::write(&file, "before").unwrap();
    for (range, text) in [
        (["--from", "5us"], "the trace ends at 0.000005000 s, 4.000 us after its start"),
        (["--from", "3"], "nothing was recorded from 3.000000000 s on"),
        (["--to", "0.0000005"], "the trace begins at 0.000001000 s"),
    ] {
        for format in FORMATS {
            let args = ["dump", format, range[0], range[1], utf8(dir.path()), "-o", utf8(&file)];
            let (code, _, stderr) = run(&args);
            assert!(code == Some(1) && stderr.contains(text), "{range:?}: {stderr}");
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    let (code, _, stderr) = run(&["dump", "--folded", "--from", "4us", utf8(dir.path())]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "its last moment");
}

#[test]
fn too_long_a_trace_for_firefox_is_refused_by_its_size() {
    let dir = sample();
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("out");
    // Nothing of these is read.
    fs::File::options().write(true).open(dir.file("7.dat")).unwrap().set_len(16 * 10_000_001).unwrap();
    let args = ["dump", "--firefox", utf8(dir.path()), "-o", utf8(&file)];
    let (code, _, stderr) = run(&args);
    assert!(code == Some(1) && stderr.contains("more than 10000000 ") && stderr.contains("--from"), "{stderr}");
    assert!(!file.exists(), "it was begun");
}

#[test]
fn to_a_file() {
    let dir = sample();
    let out = tempfile::tempdir().unwrap();
    for format in FORMATS {
        let output = rftrace(&["dump", format, utf8(dir.path())]).output().unwrap();
        let file = out.path().join("out");
        assert_eq!(
            run(&["dump", format, utf8(dir.path()), "-o", utf8(&file)]),
            (Some(0), String::new(), String::new())
        );
        assert_eq!(fs::read(&file).unwrap().len(), output.stdout.len(), "{format}");
    }
}

#[test]
fn wrong_usage() {
    let dir = sample();
    let (code, _, stderr) = run(&["dump", utf8(dir.path())]);
    assert!(code == Some(2) && stderr.contains("--chrome"), "{stderr}");
    let (code, _, stderr) = run(&["dump", "--chrome", "--folded", utf8(dir.path())]);
    assert!(code == Some(2) && stderr.contains("cannot be used with"), "{stderr}");
    let (code, _, stderr) = run(&["dump", "--uftrace", utf8(dir.path())]);
    assert!(code == Some(2) && stderr.contains("--output"), "{stderr}");
    let (code, _, stderr) = run(&["dump", "--chrome", "--from", "1.5d", utf8(dir.path())]);
    assert!(code == Some(2) && stderr.contains("it must be a number"), "{stderr}");
    let (code, stdout, _) = run(&["dump", "--help"]);
    assert!(code == Some(0) && stdout.contains("\n  rftrace dump --chrome "), "{stdout}");
}

#[test]
fn failures_name_the_file() {
    let dir = sample();
    let fails = |args: &[&str], expected: &str| {
        let (code, _, stderr) = run(&[&["dump"], args].concat());
        assert_eq!(code, Some(1), "{args:?}");
        assert!(stderr.starts_with("rftrace: ") && stderr.contains(expected), "{args:?}: {stderr}");
    };
    let path = utf8(dir.path());
    fails(&["--chrome", "/nonexistent"], "is this a trace directory?");
    fails(&["--chrome", path, "-o", "/nonexistent/x.json"], "cannot write /nonexistent/x.json: No such file");
    fails(&["--chrome", path, "--from", "3us", "--to", "2us"], "nothing is between --from and --to");
    fails(&["--chrome", path, "--tid", "9"], "the trace has no task 9; it has 7");
    fails(&["--flamegraph", path, "--from", "1s"], "nothing was recorded from 1.000001000 s on");
    if cfg!(target_os = "linux") {
        for format in FORMATS {
            fails(
                &[format, path, "-o", "/dev/full"],
                "/dev/full is incomplete: cannot write the output: No space left",
            );
        }
    }
}

#[test]
fn a_closed_pipe_is_success() {
    use std::io::Read;
    use std::process::Stdio;

    let records: Vec<_> = (0..50_000).map(|time| entry(time, time.min(3), A)).collect();
    let dir = trace(&records);
    let mut child =
        rftrace(&["dump", "--chrome", utf8(dir.path())]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 10]).unwrap();
    drop(stdout);
    let (code, _, stderr) = parts(&child.wait_with_output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}
