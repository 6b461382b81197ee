//! Whole directories: what is shown of them, and that broken ones are errors or warnings, never panics.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rftrace_tools::{ReplayOptions, Report, SortKey, Trace, replay};
use tempfile::TempDir;

const ENTRY: u64 = 0;
const EXIT: u64 = 1;
const LOST: u64 = 2;
const EVENT: u64 = 3;

/// Where the one module was loaded.
const BASE: u64 = 0x5555_0000_0000;
const MAIN: u64 = BASE + 0x1000;
const WORK: u64 = BASE + 0x1100;
const LEAF: u64 = BASE + 0x1200;

fn record(time_ns: u64, kind: u64, depth: u64, address: u64) -> [u8; 16] {
    let word = address << 16 | depth << 6 | 5 << 3 | kind;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&time_ns.to_le_bytes());
    bytes[8..].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// A directory with two tasks of one program.
fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
    info.extend((1u64 << 1 | 1 << 5 | 1 << 6 | 1 << 7).to_le_bytes());
    info.extend((1u64 << 3 | 1 << 7).to_le_bytes());
    info.extend([0, 4, 0, 0, 0, 0, 0, 0]);
    info.extend(b"cmdline:prog\ntaskinfo:lines=2\ntaskinfo:nr_tid=2\ntaskinfo:tids=1,2\n");
    write("info", &info);
    write(
        "task.txt",
        b"SESS timestamp=0.000000100 pid=42 sid=0123456789abcdef exename=\"/bin/prog\"\n\
          TASK timestamp=0.000000100 tid=1 pid=42\n\
          TASK timestamp=0.000000200 tid=2 pid=42\n",
    );
    write(
        "sid-0123456789abcdef.map",
        b"555500000000-555500010000 r-xp 00000000 00:00 0 /bin/prog\n\
          7ffc00000000-7ffc00020000 rw-p 00000000 00:00 0 [stack]\n",
    );
    write(
        "prog.sym",
        b"# symbols: 3\n# path name: /bin/prog\n\
          0000000000001000 T main\n0000000000001100 T work\n0000000000001200 t leaf\n0000000000001210 ? __func_end\n",
    );
    write("events.txt", b"EVENT: 1000000 rftrace:lost_3_calls\n");
    let first = [
        record(1_000, ENTRY, 0, MAIN + 5),
        record(2_000, ENTRY, 1, WORK + 5),
        record(2_500, ENTRY, 2, LEAF + 5),
        record(3_500, EXIT, 2, LEAF + 5),
        record(3_600, EVENT, 2, 1_000_000),
        record(9_000, EXIT, 1, WORK + 5),
        record(2_001_000, EXIT, 0, MAIN + 5),
    ];
    write("1.dat", &first.concat());
    let second = [record(2_200, ENTRY, 0, LEAF + 5), record(2_300, EXIT, 0, LEAF + 5)];
    write("2.dat", &second.concat());
    dir
}

fn show(dir: &Path) -> Result<String, rftrace_tools::Error> {
    let mut text = Vec::new();
    replay(&Trace::open(dir)?, &ReplayOptions::default(), &mut text)?;
    Ok(String::from_utf8(text).unwrap())
}

/// Everything that reads a directory, for its side effects: none may panic.
fn read_all(dir: &Path) {
    let _ = show(dir);
    if let Ok(trace) = Trace::open(dir) {
        let _ = Report::read(&trace);
        for task in trace.tasks() {
            let _ = trace.call_tree(task);
        }
    }
}

#[test]
fn a_replay_shows_all_tasks_in_order_of_time() {
    let dir = directory();
    let expected = "\
# DURATION     TID     FUNCTION
            [     1] | main() {
            [     1] |   work() {
   0.100 us [     2] | leaf();
   1.000 us [     1] |     leaf();
            [     1] |     /* rftrace:lost_3_calls */
   7.000 us [     1] |   } /* work */
   2.000 ms [     1] | } /* main */
";
    assert_eq!(show(dir.path()).unwrap(), expected);
}

#[test]
fn a_report_adds_up_times_and_calls() {
    let dir = directory();
    let trace = Trace::open(dir.path()).unwrap();
    let mut report = Report::read(&trace).unwrap();
    let mut text = Vec::new();
    report.sort(SortKey::Calls);
    report.write(1, &mut text).unwrap();
    report.sort(SortKey::Total);
    report.write(usize::MAX, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[2], ["1.100", "us", "1.100", "us", "2", "leaf"]);
    assert_eq!(rows[5], ["2.000", "ms", "1.993", "ms", "1", "main"]);
    assert_eq!(rows[6], ["7.000", "us", "6.000", "us", "1", "work"]);
    assert_eq!(rows[7], ["1.100", "us", "1.100", "us", "2", "leaf"]);
}

#[test]
fn a_tree_is_an_outline_of_names() {
    let dir = directory();
    let trace = Trace::open(dir.path()).unwrap();
    let tree = trace.call_tree(&trace.tasks()[0]).unwrap();
    let outline = tree.to_string();
    let names: Vec<&str> = outline.lines().collect();
    assert_eq!(names.iter().map(|name| name.trim()).collect::<Vec<_>>(), ["main", "work", "leaf"]);
    let indents: Vec<usize> = names.iter().map(|name| name.len() - name.trim_start().len()).collect();
    assert!(indents[0] < indents[1] && indents[1] < indents[2], "{outline}");
}

#[test]
fn a_loss_is_told() {
    let dir = directory();
    let records = [record(1_000, ENTRY, 0, MAIN), record(1_100, LOST, 0, 7), record(1_200, EXIT, 0, MAIN)];
    fs::write(dir.path().join("2.dat"), records.concat()).unwrap();
    assert!(show(dir.path()).unwrap().contains("/* LOST 7 records */"));
}

#[test]
fn the_wrong_directory_is_told_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let message = show(dir.path()).unwrap_err().to_string();
    assert!(message.contains("info: no such file; is this a trace directory?"), "{message}");
    fs::write(dir.path().join("info"), b"something else, longer than a header of forty bytes").unwrap();
    let message = show(dir.path()).unwrap_err().to_string();
    assert!(message.contains("info"), "{message}");
}

#[test]
fn every_truncated_file_is_read_without_panic() {
    for name in ["info", "task.txt", "sid-0123456789abcdef.map", "prog.sym", "events.txt", "1.dat"] {
        let dir = directory();
        let path = dir.path().join(name);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            read_all(dir.path());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_records_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let dir = directory();
        fs::write(dir.path().join("1.dat"), bytes).unwrap();
        read_all(dir.path());
    }

    #[test]
    fn any_order_of_valid_records_is_read_without_panic(
        calls in proptest::collection::vec((0u64..4, 0u64..5, 0u64..4), 0..60)
    ) {
        let dir = directory();
        let records: Vec<[u8; 16]> = calls
            .iter()
            .enumerate()
            .map(|(time, &(kind, depth, function))| record(time as u64, kind, depth, MAIN + 0x100 * function))
            .collect();
        fs::write(dir.path().join("1.dat"), records.concat()).unwrap();
        prop_assert!(show(dir.path()).is_ok());
        read_all(dir.path());
    }

    #[test]
    fn any_metadata_is_read_without_panic(
        name in prop_oneof![Just("info"), Just("task.txt"), Just("sid-0123456789abcdef.map"), Just("prog.sym")],
        place in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..20)
    ) {
        let dir = directory();
        let path = dir.path().join(name);
        let mut whole = fs::read(&path).unwrap();
        let start = place.index(whole.len());
        let end = whole.len().min(start + bytes.len());
        whole.splice(start..end, bytes);
        fs::write(&path, whole).unwrap();
        read_all(dir.path());
    }
}
