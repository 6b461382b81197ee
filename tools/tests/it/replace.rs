//! A new trace in the place of an old one, of which nothing may be left; and the new one's times.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::dir::{A, Files, MAIN, entry, exit};
use crate::import::image;

/// Files that an older trace may have left, by whichever tool it was recorded.
const OLD: [&str; 9] = [
    "99.dat",
    "perf-cpu1.dat",
    "perf-cpu17.dat",
    "kernel-cpu0.dat",
    "extern.dat",
    "old.dbg",
    "old.sym",
    "record.txt",
    "sid-ffffffffffffffff.map",
];
/// Files of the user.
const OWN: [&str; 4] = ["notes.txt", "data.dat", "default.opts", "old.rs"];

/// Puts old files beside a trace.
fn litter(dir: &Path) {
    for name in OLD.iter().chain(&OWN) {
        fs::write(dir.join(name), "old").unwrap();
    }
}

fn assert_only_own_are_left(dir: &Path) {
    for name in OLD {
        assert_ne!(fs::read(dir.join(name)).unwrap_or_default(), b"old", "{name}");
    }
    for name in OWN {
        assert_eq!(fs::read(dir.join(name)).unwrap(), b"old", "{name}");
    }
}

/// The output of the command.
fn rftrace(args: &[&str], paths: &[&Path]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_rftrace")).args(args).args(paths).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// Imports an image with these records.
fn import(folder: &Path, hz: u64, records: &[(u64, u64, bool)]) -> String {
    let (file, out) = (folder.join("image"), folder.join("trace"));
    fs::write(&file, image(0, hz, records)).unwrap();
    rftrace(&["import"], &[&file, Path::new("-o"), &out])
}

#[test]
fn an_import_leaves_nothing_of_an_old_trace() {
    let folder = tempfile::tempdir().unwrap();
    let records = [(2_000, MAIN, false), (3_000, MAIN, true)];
    import(folder.path(), 2_000_000_000, &records);
    litter(&folder.path().join("trace"));
    import(folder.path(), 2_000_000_000, &records);
    assert_only_own_are_left(&folder.path().join("trace"));
}

#[test]
fn a_merge_leaves_nothing_of_an_old_trace() {
    let mut files = Files::new(&[(7, &[entry(10, 0, MAIN), entry(20, 1, A), exit(30, 1, A), exit(40, 0, MAIN)])]);
    let clock = "first_tsc=1\nfirst_nanos=1\nlast_tsc=9\nlast_nanos=9\ntsc_hz=1000000000\nfirst_unix_nanos=5\n";
    files.0.insert("clock.txt".into(), clock.into());
    let guest = files.write();
    let out = tempfile::tempdir().unwrap();
    let merge = ["merge", "--tsc-offset", "0", "-q", "-o"];
    rftrace(&merge, &[out.path(), guest.path()]);
    litter(out.path());
    rftrace(&merge, &[out.path(), guest.path()]);
    assert_only_own_are_left(out.path());
}

/// A clock that the image says is so slow that its times are beyond what 64 bits can hold.
#[test]
fn times_beyond_the_end_of_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let said = import(
        folder.path(),
        1,
        &[(2_000, MAIN, false), (1 << 36, A, false), (1 << 37, A, true), (1 << 38, MAIN, true)],
    );
    assert!(said.contains("at 1 ticks a second") && said.contains("--tsc-hz"), "{said}");
    let trace = rftrace_read::Trace::open(&folder.path().join("trace")).unwrap();
    let times = trace.all_records().unwrap().map(|record| record.unwrap().1.time_ns);
    assert_eq!(times.collect::<Vec<_>>(), [2_000_000_000_000, u64::MAX, u64::MAX, u64::MAX]);
    let [replay, report] = ["replay", "report"].map(|command| {
        let builtin: &[&str] = if command == "replay" { &["replay", "--builtin"] } else { &["report"] };
        rftrace(builtin, &[&folder.path().join("trace")])
    });
    let main = "sub_401000@mykernel";
    assert!(replay.contains(main) && report.contains(main), "{replay}{report}");
}
