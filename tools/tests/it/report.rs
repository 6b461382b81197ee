//! Times and calls per function.

use rftrace_read::{SCHED_IN, SCHED_OUT, Warning};
use rftrace_views::{Difference, Field, Report, Row};

use crate::dir::{A, B, C, Dir, Files, MAIN, MARK, entry, event, exit, lost, trace};

fn report(dir: &Dir, key: Field) -> Report {
    let mut report = Report::read(&dir.open()).expect("a readable trace");
    report.sort(&[key]);
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
    assert_eq!(rows(&report(&sample(), Field::Total)), [main, a, b]);
    assert_eq!(rows(&report(&sample(), Field::Own)), [main, a, b]);
    assert_eq!(rows(&report(&sample(), Field::Calls)), [a, b, main]);
}

#[test]
fn text() {
    let mut out = Vec::new();
    report(&sample(), Field::Total).write(&Field::USUAL, 2, &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "  Wall 10.000 us, 2 threads; waiting counts as self time, as context switches were not recorded; tracing's own time included
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
    assert_eq!(rows(&report(&dir, Field::Total)), [("a", 105, 50 + 20 + 10 + 5, 4), ("b", 50, 20, 1)]);
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
    let report = report(&dir, Field::Total);
    assert_eq!(rows(&report), [("main", 100, 30, 1), ("linux:schedule", 70, 70, 1)]);
    assert_eq!((report.wall_ns(), report.cpu_ns()), (100, Some(30)));
    let mut out = Vec::new();
    report.write(&Field::USUAL, 1, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("  Wall 0.100 us, CPU 0.030 us of 1 thread; tracing's own time included\n"), "{text}");
}

#[test]
fn processor_time_is_known_only_where_context_switches_were_recorded() {
    let mut files = Files::new(&[(7, &[entry(0, 0, MAIN), exit(100, 0, MAIN)])]);
    assert_eq!(report(&files.write(), Field::Total).cpu_ns(), None);
    files.0.insert("record.txt".into(), "schedule=1\n".into());
    assert_eq!(report(&files.write(), Field::Total).cpu_ns(), Some(100));
}

#[test]
fn incomplete_calls_count_for_what_is_known() {
    let dir = trace(&[exit(10, 1, A), exit(30, 0, MAIN), entry(40, 0, B), entry(50, 1, A), lost(60, 3)]);
    let report = report(&dir, Field::Total);
    assert_eq!(rows(&report), [("b", 20, 10, 1), ("main", 20, 20, 1), ("a", 10, 10, 2)]);
    assert_eq!(report.summary().records, 5);
    assert_eq!(report.summary().warnings.count(Warning::LostRecord), 3);
}

/// Recursive calls of a function that was entered before the first record do not count twice, as they do not in the whole trace.
#[test]
fn recursion_from_before_the_beginning() {
    let begins = [entry(100, 0, MAIN), entry(100, 1, A), entry(100, 2, B)];
    let rest = [
        entry(200, 3, A),
        exit(500, 3, A),
        exit(600, 2, B),
        entry(700, 2, A),
        exit(900, 2, A),
        exit(1_000, 1, A),
        exit(1_100, 0, MAIN),
    ];
    let expected = [("main", 1_000, 100, 1), ("a", 900, 700, 3), ("b", 500, 200, 1)];
    for n_missing in 0..3 {
        let dir = trace(&[&begins[n_missing..], &rest].concat());
        assert_eq!(rows(&report(&dir, Field::Total)), expected, "{n_missing}");
        // Of the whole trace uftrace says the same; of the others it leaves out what began before.
        if n_missing == 0
            && let Some(theirs) = crate::uftrace::uftrace("report", dir.path(), &[])
        {
            assert!(theirs.contains("0.900 us    0.700 us           3  a\n"), "{theirs}");
        }
    }
    // A loss in the middle.
    let lost =
        [entry(0, 0, A), lost(10, 1), entry(20, 2, B), entry(25, 3, C), exit(30, 3, C), exit(40, 2, B), exit(60, 1, C)];
    let dir = trace(&[&lost[..], &[exit(70, 0, A)]].concat());
    assert_eq!(rows(&report(&dir, Field::Total)), [("a", 70, 30, 1), ("c", 40, 25, 2), ("b", 20, 15, 1)]);
}

#[test]
fn columns() {
    let dir = trace(&[
        entry(0, 0, A),
        entry(1_000, 1, A),
        exit(2_000, 1, A),
        exit(5_000, 0, A),
        entry(6_000, 0, B),
        exit(11_000, 0, B),
    ]);
    let mut report = Report::read_spread(&dir.open()).expect("a readable trace");
    report.sort(&[Field::Calls, Field::Own]);
    let values: Vec<Vec<u64>> = report
        .rows()
        .iter()
        .map(|row| Field::ALL.iter().map(|field| field.value(row, report.self_ns())).collect())
        .collect();
    assert_eq!(
        values,
        [
            vec![5_000, 3_000, 1_000, 5_000, 1_000, 4_992, 5_000, 2_500, 1_000, 4_000, 5_000, 2],
            vec![5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 1],
        ]
    );
    let mut out = Vec::new();
    report.write(&[Field::Percent, Field::TotalP99], 1, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("\n      50.00%    4.992 us  a\n"), "{text}");
    for field in Field::ALL {
        assert_eq!(field.name().parse(), Ok(field));
    }
    assert!("time".parse::<Field>().unwrap_err().contains("total-avg"));
}

#[test]
fn differences() {
    let before = trace(&[entry(0, 0, MAIN), entry(1_000, 1, A), exit(4_000, 1, A), exit(10_000, 0, MAIN)]);
    let after = trace(&[entry(0, 0, MAIN), entry(1_000, 1, B), exit(2_000, 1, B), exit(9_500, 0, MAIN)]);
    let [before, after] = [before, after].map(|dir| Report::read(&dir.open()).expect("a readable trace"));
    let mut out = Vec::new();
    Difference::new(&before, &after, &[Field::Total]).write(&Field::USUAL, 5, &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "    Total time     Self time         Calls  Function
  ============  ============  ============  ====================
     -3.000 us     -3.000 us            -1  a  (gone)
     +1.000 us     +1.000 us            +1  b  (new)
     -0.500 us     +1.500 us            +0  main
"
    );
}

/// A cell that a spreadsheet would take for a formula is a text; a name's controls do not reach a terminal.
#[test]
fn names_that_are_more_than_names() {
    let calls = [entry(0, 0, A), exit(1, 0, A), entry(2, 0, A), entry(3, 1, B), exit(4, 1, B), exit(5, 0, A)];
    let mut files = Files::new(&[(7, &calls)]);
    let symbols = String::from_utf8(files.0["prog.sym"].clone()).unwrap();
    let symbols = symbols.replace(" T a\n", " T =HYPERLINK(\"x\")\n").replace(" T b\n", " T @b\x1b]0;\u{202e}\n");
    files.0.insert("prog.sym".into(), symbols.into_bytes());
    let dir = files.write();
    let run = |format: &str| {
        let arguments = ["report", "--format", format, "-f", "call", "-s", "call", crate::cli::utf8(dir.path())];
        let (code, stdout, stderr) = crate::cli::run(&arguments);
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let csv = run("csv");
    assert!(csv.contains("\n\"'=HYPERLINK(\"\"x\"\")\",2\n"), "{csv}");
    assert!(csv.contains("\n\"'@b\\u{1b}]0;\\u{202e}\",1\n"), "{csv}");
    assert!(run("table").contains("@b\\u{1b}]0;\\u{202e}\n"));
    let (_, _, stderr) = crate::cli::run(&["report", "no\x1b[31m\u{202e}"]);
    assert!(stderr.contains("no\\u{1b}[31m\\u{202e}") && !stderr.contains(['\x1b', '\u{202e}']), "{stderr}");
}

#[test]
fn for_other_programs() {
    let dir = sample();
    let run = |args: &[&str]| {
        let (code, stdout, stderr) = crate::cli::run(&[&["report"], args, &[crate::cli::utf8(dir.path())]].concat());
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    assert_eq!(
        run(&["--format", "csv", "-f", "self,call", "-s", "call,self"]),
        "function,self,call\n\"a\",3300,2\n\"b\",200,2\n\"main\",7000,1\n"
    );
    let json: serde_json::Value = serde_json::from_str(&run(&["--format", "json", "-f", "total-max,percent"])).unwrap();
    assert_eq!(json[0], serde_json::json!({ "function": "main", "total-max": 10_000, "percent": 6_666 }));
    let text = run(&["-F", "a", "-t", "200ns", "-D", "1"]);
    assert!(text.ends_with("    3.500 us    3.500 us           2  a\n"), "{text}");
}
