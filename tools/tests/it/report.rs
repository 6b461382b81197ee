//! Times and calls per function.

use rftrace_read::{SCHED_IN, SCHED_OUT, Warning};
use rftrace_views::{Report, Row, SortKey};

use crate::dir::{A, B, Dir, Files, MAIN, MARK, entry, event, exit, lost, trace};

fn report(dir: &Dir, key: SortKey) -> Report {
    let mut report = Report::read(&dir.open()).expect("a readable trace");
    report.sort(key);
    report
}

/// Name, total time, self time and calls.
fn rows(report: &Report) -> Vec<(&str, u64, u64, u64)> {
    let cells = |row: &'_ Row| (row.total_ns, row.self_ns, row.calls);
    report.rows().iter().map(|row| (row.name.as_str(), cells(row))).map(|(name, (t, s, c))| (name, t, s, c)).collect()
}

fn sample() -> Dir {
    Files::new(&[
        (7, &[entry(0, 0, MAIN), entry(1_000, 1, A), exit(4_000, 1, A), exit(10_000, 0, MAIN)]),
        (8, &[entry(0, 0, A), entry(100, 1, B), exit(200, 1, B), entry(200, 1, B), exit(300, 1, B), exit(500, 0, A)]),
    ])
    .write()
}

#[test]
fn sorted() {
    let (main, a, b) = (("main", 10_000, 7_000, 1), ("a", 3_500, 3_300, 2), ("b", 200, 200, 2));
    assert_eq!(rows(&report(&sample(), SortKey::Total)), [main, a, b]);
    assert_eq!(rows(&report(&sample(), SortKey::Own)), [main, a, b]);
    assert_eq!(rows(&report(&sample(), SortKey::Calls)), [a, b, main]);
}

#[test]
fn text() {
    let mut out = Vec::new();
    report(&sample(), SortKey::Total).write(2, &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "  Wall 10.000 us, 2 threads; waiting counts as self time, as context switches were not recorded
  Total time   Self time       Calls  Function
  ==========  ==========  ==========  ====================
   10.000 us    7.000 us           1  main
    3.500 us    3.300 us           2  a
"
    );
}

#[test]
fn recursion_counts_its_outermost_calls() {
    let dir = trace(&[
        entry(0, 0, A),
        entry(10, 1, B),
        entry(20, 2, A),
        entry(30, 3, A),
        exit(40, 3, A),
        exit(50, 2, A),
        exit(60, 1, B),
        exit(100, 0, A),
        entry(200, 0, A),
        exit(205, 0, A),
    ]);
    assert_eq!(rows(&report(&dir, SortKey::Total)), [("a", 105, 50 + 20 + 10 + 5, 4), ("b", 50, 20, 1)]);
}

#[test]
fn waiting_has_its_own_row() {
    let dir = trace(&[
        entry(0, 0, MAIN),
        event(10, 1, MARK),
        event(20, 1, SCHED_OUT),
        event(90, 1, SCHED_IN),
        exit(100, 0, MAIN),
    ]);
    let report = report(&dir, SortKey::Total);
    assert_eq!(rows(&report), [("main", 100, 30, 1), ("linux:schedule", 70, 70, 1)]);
    assert_eq!((report.wall_ns(), report.cpu_ns()), (100, Some(30)));
    let mut out = Vec::new();
    report.write(1, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("  Wall 0.100 us, CPU 0.030 us of 1 thread\n"), "{text}");
}

#[test]
fn processor_time_is_known_only_where_context_switches_were_recorded() {
    let mut files = Files::new(&[(7, &[entry(0, 0, MAIN), exit(100, 0, MAIN)])]);
    assert_eq!(report(&files.write(), SortKey::Total).cpu_ns(), None);
    files.0.insert("record.txt".into(), "schedule=1\n".into());
    assert_eq!(report(&files.write(), SortKey::Total).cpu_ns(), Some(100));
}

#[test]
fn incomplete_calls_count_for_what_is_known() {
    let dir = trace(&[exit(10, 1, A), exit(30, 0, MAIN), entry(40, 0, B), entry(50, 1, A), lost(60, 3)]);
    let report = report(&dir, SortKey::Total);
    assert_eq!(rows(&report), [("b", 20, 10, 1), ("main", 20, 20, 1), ("a", 10, 10, 2)]);
    assert_eq!(report.summary().records, 5);
    assert_eq!(report.summary().warnings.count(Warning::LostRecord), 3);
}
