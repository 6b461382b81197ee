//! Dumps that programs make of their own buffers while they are recorded.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::traces::{self, outline_of_tree, trees};
use rftrace_tests::{CProgram, Profile, require, rust_program};

use crate::record::rftrace;
use crate::streaming::count;

fn replay(trace: &Path) -> String {
    let replay = Command::new(rftrace()).args(["replay", "--no-pager", "-d"]).arg(trace).output().unwrap();
    String::from_utf8(replay.stdout).unwrap()
}

/// Nothing is missing in the trace of the whole, whatever was dumped meanwhile; and each dump ends with its moment.
#[test]
fn recording_goes_on_while_dumps_are_made() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["own_dump.c"]).with(&["-O1", "-lpthread"]).build();
    for way in ["stop", "stream", "ring"] {
        let n = if way == "ring" { 10_000 } else { 2_000 };
        let run = program.run(&[&n.to_string(), way]);
        let mut said = run.stdout.lines();
        let all: u64 = said.next().unwrap().parse().unwrap_or_else(|_| panic!("{way}: {}", run.stdout));
        let trace = run.path("trace");
        if way != "ring" {
            assert_eq!(count(&trace, "middle"), all, "{way}");
            assert_eq!(count(&trace, "moment"), 3, "{way}");
            assert_eq!(replay(&trace).matches("mark:in_the_moment */").count(), 3, "{way}");
        }
        if way == "stream" {
            assert!(
                said.next().is_some_and(|line| line.contains("the first save has ended the stream")),
                "{}",
                run.stdout
            );
        }
        let mut before = 0;
        let mut n_filled = 0;
        for number in 1..=3_u64 {
            let dump = trace.join(format!("snapshot-{number}-moment-{number}"));
            let told = fs::read_to_string(dump.join("record.txt")).unwrap();
            assert!(told.ends_with(&format!("dump=moment {number}\n")), "{way}: {told}");
            let opened = traces::open(&dump);
            let trees = trees(&opened);
            let texts: Vec<String> = trees.iter().map(|tree| outline_of_tree(tree, "")).collect();
            // The call in which it was made is the last thing of its thread.
            let has_moment = texts.iter().any(|text| text.ends_with("moment\n  leaf\n"));
            assert!(has_moment, "{way}: {number}");
            let n_middle: u64 = texts.iter().map(|text| text.matches("middle").count() as u64).sum();
            if way == "ring" {
                assert!(n_middle < 400_000, "{number}: {n_middle}");
            } else {
                assert!(n_middle >= 4 * n * number && n_middle >= before && n_middle <= all, "{way}: {n_middle}");
            }
            // Calls since the moment are not in it. These are all calls, where the thread that copies has no processor for so long.
            n_filled += u32::from(n_middle > 1_000);
            before = n_middle;
            let text = replay(&dump);
            assert_eq!(text.matches(&format!("rftrace:dump:moment_{number} */")).count(), 1, "{way}: {number}");
            let n_marks = text.matches("mark:in_the_moment */").count() as u64;
            assert!(if way == "ring" { n_marks >= 1 } else { n_marks == number }, "{way}: {number}: {n_marks}");
        }
        assert!(n_filled > 0, "{way}");
        let names = fs::read_dir(&trace).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let hidden: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
        assert!(hidden.is_empty(), "{way}: {hidden:?}");
    }
}

#[test]
fn panics_are_dumped() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("dump_panics", profile).run(&[]);
        assert_eq!(run.stdout, "3 3\ntrace/snapshot-3-the-end true\n", "{profile:?}");
        let trace = run.path("trace");
        for number in [1, 2] {
            let dump = trace.join(format!("snapshot-{number}-panic-nothing-to-divide-by"));
            let text = replay(&dump);
            let at = text.find("rftrace:dump:panic:_nothing_to_divide_by */").unwrap_or_else(|| panic!("{text}"));
            let last = text[..at].rfind("dump_panics::divide").unwrap_or_else(|| panic!("{text}"));
            assert!(text[..last].contains("dump_panics::worker"), "{text}");
            assert!(!text.contains("rftrace_frontend"), "{text}");
        }
    }
}

#[test]
fn a_dump_that_cannot_be_leaves_nothing() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["own_dump.c"]).with(&["-O1", "-lpthread"]).build();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("trace"), "a file").unwrap();
    let output = Command::new(&program.path).args(["100", "ring"]).current_dir(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(said.matches("dump: cannot write trace").count(), 3, "{said}");
    assert_eq!(fs::read_to_string(folder.path().join("trace")).unwrap(), "a file");
}

/// Pieces left by a process that was killed while it made a dump go; those of a live process stay.
#[test]
fn pieces_of_dumps_are_removed() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["own_dump.c"]).with(&["-O1", "-lpthread"]).build();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    // No process has the first number, and one always has the second.
    for piece in [".dump-4194305-0", ".dump-1-0", ".dump-mine"] {
        fs::create_dir_all(trace.join(piece)).unwrap();
        fs::write(trace.join(piece).join("info"), "a piece").unwrap();
    }
    let output = Command::new(&program.path).args(["100", "ring"]).current_dir(&folder).output().unwrap();
    assert!(trace.join("snapshot-3-moment-3").is_dir(), "{output:?}");
    assert!(!trace.join(".dump-4194305-0").exists());
    assert!(trace.join(".dump-1-0/info").exists() && trace.join(".dump-mine/info").exists());
}
