//! `rftrace ctl PID pipe --rfs`: the stream that becomes the same trace elsewhere.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rftrace_tests::{require, traces};

use crate::control::{Controlled, reading};
use crate::record::rftrace;

/// Makes a trace of a stream in a file.
fn receive(stream: &Path, to: &Path) -> Output {
    let mut command = Command::new(rftrace());
    command.args(["recv", "--stdin", "-o"]).arg(to).stdin(File::open(stream).unwrap());
    command.output().unwrap()
}

/// Returns the outlines of calls, by task.
fn called(trace: &Path) -> Vec<String> {
    traces::trees(&traces::open(trace)).iter().map(|tree| traces::outline_of_tree(tree, "")).collect()
}

/// Two readers, of which one names the recorder, have all that is in the trace.
#[test]
fn a_stream_for_who_asks() {
    if !require(&["gcc"]) {
        return;
    }
    let recorded = || Controlled::ready(&["--buffer", "1M"], &["plain"]);
    let attached = || Controlled::attached(&[], &["plain"], None);
    for begin in [&recorded as &dyn Fn() -> Controlled, &attached] {
        let mut it = begin();
        let folder = it.folder.path().to_owned();
        it.round('a');
        let stream = folder.join("stream.rfs");
        let mut kept = it.command(&["pipe", "--rfs"]).stdout(File::create(&stream).unwrap()).spawn().unwrap();
        let mut of_recorder = Command::new(rftrace());
        of_recorder.args(["ctl", &it.recorder.id().to_string(), "pipe", "--rfs"]).env("XDG_RUNTIME_DIR", &folder);
        let mut of_recorder = of_recorder.stdout(Stdio::piped()).spawn().unwrap();
        let mut receiver = Command::new(rftrace());
        receiver.args(["recv", "--stdin", "-o"]).arg(folder.join("received"));
        let receiver = receiver.stdin(of_recorder.stdout.take().unwrap()).stderr(Stdio::piped()).spawn().unwrap();
        // Both are served from here on, at the latest: their streams begin at once.
        while fs::metadata(&stream).unwrap().len() == 0 || !folder.join("received").join("trace").is_dir() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        it.round('b');
        it.round('c');
        it.end();
        assert!(kept.wait().unwrap().success() && of_recorder.wait().unwrap().success());
        let told = receiver.wait_with_output().unwrap();
        assert!(told.status.success(), "{told:?}");
        let of_file = receive(&stream, &folder.join("of-file"));
        assert!(of_file.status.success(), "{of_file:?}");
        let whole = called(&it.trace());
        assert_eq!(whole.concat().matches("leaf").count(), 3, "{whole:?}");
        for received in ["received", "of-file"] {
            assert_eq!(called(&folder.join(received).join("trace")), whole);
        }

        // The message for a stream that is taken for a trace has the command that makes one.
        let mistaken = Command::new(rftrace()).arg("report").arg(&stream).output().unwrap();
        let told = String::from_utf8(mistaken.stderr).unwrap();
        let remedy = told.split('`').nth(1).unwrap_or_default().replacen("rftrace", "\"$0\"", 1);
        let done = Command::new("sh").args(["-c", &remedy]).arg(rftrace()).current_dir(&folder).output().unwrap();
        assert!(done.status.success(), "{told}: {done:?}");
        assert_eq!(called(&folder.join("traces").join("trace")), whole);

        // A cut stream is not taken for complete.
        let bytes = fs::read(&stream).unwrap();
        fs::write(&stream, &bytes[..bytes.len() - 1]).unwrap();
        let cut = receive(&stream, &folder.join("cut"));
        let said = String::from_utf8(cut.stderr).unwrap();
        assert!(cut.status.code() == Some(1) && said.contains("incomplete"), "{said}");
    }
}

/// Records that are not written while the program runs are no stream.
#[test]
fn what_is_no_stream_is_refused() {
    if !require(&["gcc"]) {
        return;
    }
    for (options, why) in
        [(["--ring", "--buffer", "1M"], "cannot stream a ring"), (["--stop", "--buffer", "1M"], "with --stop")]
    {
        let mut it = Controlled::ready(&options, &["plain"]);
        let told = it.refused(&["pipe", "--rfs"]);
        assert!(told.contains(why), "{told}");
        it.end();
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["live", "--"]).arg(&crate::control::program().path).arg("plain");
    command.current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::piped());
    let (mut recorder, text) = reading(&mut command);
    while !text.recv_timeout(std::time::Duration::from_secs(60)).unwrap().contains("main()") {}
    let mut command = Command::new(rftrace());
    command.args(["ctl", &recorder.id().to_string(), "pipe", "--rfs"]).env("XDG_RUNTIME_DIR", folder.path());
    let refused = command.output().unwrap();
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("`rftrace live` keeps no records"), "{told}");
}
