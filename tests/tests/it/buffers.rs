//! Several buffers in one life of a program.

use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{CProgram, Program, outline, require};

fn program(arguments: &[&str]) -> Program {
    CProgram::new(&["buffers.c"]).with(arguments).with(&["-pthread"]).build()
}

#[test]
fn a_later_buffer_takes_the_place_of_the_one_in_use() {
    const RECORDING: &str = "recording is on; switch it off before you give the tracer another buffer";
    const REPLACED: &str =
        "a later buffer has replaced that of this Events (or Tracer); use the result of the last init (or install)";

    if !require(&["gcc"]) {
        return;
    }
    let run = program(&["-O1"]).run(&["errors"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines[0], format!("second while recording: {RECORDING}"));
    assert!(lines[1].contains("is too small"), "{}", lines[1]);
    assert_eq!(lines[2..4], ["first is still in use: no error", "second: no error"]);
    for (line, what) in lines[4..].iter().zip(["dump", "raw dump", "filter"]) {
        assert_eq!(*line, format!("{what} of the first: {REPLACED}"));
    }
    assert_eq!(lines[7..], ["dump of the second: no error", "third: no error", "dump of the third: no error"]);
    let once = "outer\n  inner\n  inner\n";
    assert_eq!(outline(&run.trace("first")), once);
    assert_eq!(outline(&run.trace("second")), once);
    assert_eq!(outline(&run.trace("third")), once.repeat(1_000));
    assert!(!run.path("none").exists());
}

#[test]
fn buffers_are_replaced_while_threads_call() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O2", "-mfentry"]] {
        let run = program(arguments).run(&["threads", "90"]);
        let trace = run.trace("trace");
        let mut outlines: Vec<String> = trees(&trace).iter().map(|tree| outline_of_tree(tree, "")).collect();
        outlines.sort();
        // Functions open since an earlier buffer are entered again.
        let lasting = "call_all_the_time\n  farewell\n";
        assert_eq!(outlines, [lasting, lasting, lasting, "outer\n  inner\n  inner\n"], "{arguments:?}");
        // 30 buffers of 32 MB were filled, or backed with memory at least.
        let resident: u64 = run.stdout.trim().parse().unwrap();
        assert!(resident < 200, "{resident} MiB are in use");
    }
}
