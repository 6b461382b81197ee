//! `rftrace dump` as a command.

use std::fs;

use serde_json::Value;

use crate::cli::{parts, rftrace, run, utf8};
use crate::dir::{A, Files, MAIN, entry, exit, trace};

fn sample() -> crate::dir::Dir {
    trace(&[entry(1_000, 0, MAIN), entry(2_000, 1, A), exit(3_500, 1, A), exit(5_000, 0, MAIN)])
}

const FORMATS: [&str; 5] = ["--chrome", "--perfetto", "--flamegraph", "--folded", "--firefox"];

#[test]
fn to_stdout() {
    let dir = sample();
    let folded = "main 2500\nmain;a 1500\n";
    assert_eq!(run(&["dump", "--folded", utf8(dir.path())]), (Some(0), folded.into(), String::new()));
    let by_thread = "prog (7);main 2500\nprog (7);main;a 1500\n";
    let args = ["dump", "--folded", "--by-thread", utf8(dir.path())];
    assert_eq!(run(&args), (Some(0), by_thread.into(), String::new()));
    let output = rftrace(&["dump", "--folded"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(parts(&output), (Some(0), folded.into(), String::new()));

    for format in ["--chrome", "--firefox"] {
        let (code, stdout, stderr) = run(&["dump", format, utf8(dir.path())]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        serde_json::from_str::<Value>(&stdout).unwrap();
    }
    let (code, stdout, _) = run(&["dump", "--flamegraph", utf8(dir.path())]);
    assert!(code == Some(0) && stdout.ends_with("</svg>"), "{stdout}");
}

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
fn ranges_and_tasks() {
    let files = Files::new(&[
        (7, &[entry(1_000, 0, MAIN), entry(2_000, 1, A), exit(3_500, 1, A), exit(5_000, 0, MAIN)]),
        (8, &[entry(3_000, 0, A), exit(3_001, 0, A)]),
    ]);
    let dir = files.write();
    let folded = |args: &[&str]| {
        let (code, stdout, stderr) = run(&[&["dump", "--folded", utf8(dir.path())], args].concat());
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}");
        stdout
    };
    assert_eq!(folded(&["--tid", "8"]), "a 1\n");
    assert_eq!(folded(&["--task", "7"]), "main 2500\nmain;a 1500\n");
    assert_eq!(folded(&["--from", "1.5us"]), "a 1\nmain 1500\nmain;a 1000\n");
    assert_eq!(folded(&["--to", "1.5us"]), "main 1000\nmain;a 500\n");
    assert_eq!(folded(&["--from", "0.000002500", "--to", "0.000003"]), "main;a 500\n");
    assert_eq!(folded(&["-r", "0.000002500~0.000003"]), "main;a 500\n");
}

#[test]
fn to_a_directory() {
    let dir = sample();
    let parent = tempfile::tempdir().unwrap();
    let part = parent.path().join("part");
    let args = ["dump", "--uftrace", "--from", "1500ns", utf8(dir.path()), "-o", utf8(&part)];
    assert_eq!(run(&args), (Some(0), String::new(), String::new()));
    let expected = "# DURATION     TID     FUNCTION
            [     7] | main() {
   1.000 us [     7] |   a();
   2.500 us [     7] | } /* main */
";
    assert_eq!(run(&["replay", utf8(&part)]), (Some(0), expected.into(), String::new()));

    let (code, _, stderr) = run(&args);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("part: not empty; choose another directory"), "{stderr}");
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

/// The readable part is a valid file.
#[test]
fn an_unreadable_file() {
    let records = [entry(1_000, 0, MAIN), exit(5_000, 0, MAIN)];
    let dir = Files::new(&[(7, &records), (8, &records)]).write();
    fs::remove_file(dir.file("8.dat")).unwrap();
    fs::create_dir(dir.file("8.dat")).unwrap();
    let (code, stdout, stderr) = run(&["dump", "--chrome", utf8(dir.path())]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("8.dat: cannot read it: "), "{stderr}");
    let events = serde_json::from_str::<Value>(&stdout).unwrap();
    assert_eq!(events["traceEvents"].as_array().map(Vec::len), Some(4), "two names, an entry and an exit");
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
