//! Which functions call which.

use rftrace_read::{Pattern, SCHED_IN, SCHED_OUT};
use rftrace_views::{Graph, GraphField};

use crate::cli::{run, utf8};
use crate::dir::{A, B, C, Dir, Files, MAIN, entry, event, exit, trace};

fn text(dir: &Dir, function: Option<&str>, fields: &[GraphField]) -> String {
    let function = function.map(|text| Pattern::new(text).expect("a pattern"));
    let graph = Graph::read(&dir.open(), function.as_ref()).expect("a readable trace");
    let mut out = Vec::new();
    graph.write(fields, &mut out).expect("a vector takes all");
    String::from_utf8(out).expect("text")
}

#[test]
fn calls_from_one_place_are_one_line() {
    let dir = Files::new(&[
        (
            7,
            &[
                entry(0, 0, MAIN),
                entry(1_000, 1, A),
                entry(2_000, 2, B),
                exit(3_000, 2, B),
                exit(4_000, 1, A),
                entry(5_000, 1, A),
                exit(6_000, 1, A),
                event(6_500, 1, SCHED_OUT),
                event(7_000, 1, SCHED_IN),
                entry(8_000, 1, B),
                exit(9_000, 1, B),
                exit(10_000, 0, MAIN),
            ],
        ),
        (8, &[entry(0, 0, MAIN), exit(1_000, 0, MAIN)]),
    ])
    .write();
    let tree = "# TOTAL TIME   SELF TIME   FUNCTION
   11.000 us             : (1) prog
   11.000 us    5.500 us : (2) main
    4.000 us    3.000 us :  +-(2) a
    1.000 us    1.000 us :  | (1) b
                         :  | 
    0.500 us    0.500 us :  +-(1) linux:schedule
                         :  | 
    1.000 us    1.000 us :  +-(1) b
";
    let expected = format!("# Function Call Graph for 'prog'\n========== FUNCTION CALL GRAPH ==========\n{tree}");
    assert_eq!(text(&dir, None, &[GraphField::Total, GraphField::Own]), expected);
}

#[test]
fn how_a_function_is_called() {
    let dir = trace(&[
        // Within something whose entry is not among the records.
        entry(0, 1, B),
        entry(1_000, 2, C),
        exit(2_000, 2, C),
        exit(3_000, 1, B),
        exit(4_000, 0, MAIN),
        entry(5_000, 0, A),
        entry(6_000, 1, B),
        entry(7_000, 2, B),
        exit(8_000, 2, B),
        exit(10_000, 1, B),
        exit(11_000, 0, A),
    ]);
    let expected = format!(
        "# Function Call Graph for 'b'
=============== BACKTRACE ===============
 backtrace #0: hit 1, time   4.000 us
   [0] a ({A:#x})
   [1] b ({B:#x})

 backtrace #1: hit 1, time   3.000 us
   [0] (entered before the trace begins)
   [1] b ({B:#x})

========== FUNCTION CALL GRAPH ==========
# TOTAL TIME   FUNCTION
    7.000 us : (2) b
    1.000 us :  +-(1) c
             :  | 
    1.000 us :  +-(1) b
"
    );
    assert_eq!(text(&dir, Some("b"), &[GraphField::Total]), expected);
    for args in [&["graph", utf8(dir.path()), "b"][..], &["graph", "-d", utf8(dir.path()), "b"]] {
        assert_eq!(run(args).1, expected, "{args:?}");
    }
    let (code, stdout, stderr) = run(&["graph", utf8(dir.path()), "nothing"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("no function `nothing` was called"), "{stderr}");
}

#[test]
fn recursion_without_end() {
    let deep: Vec<_> = (0..60_000).map(|time| entry(time, time.min(1000), [A, B][time as usize % 2])).collect();
    let dir = trace(&deep);
    let text = text(&dir, None, &[]);
    assert_eq!(text.lines().filter(|line| line.ends_with("(1) a") || line.ends_with("(1) b")).count(), 60_000);
}

/// Of a long trace the sums are kept: the second graph is made of them, and of others when the trace has changed.
#[test]
fn a_graph_of_a_long_trace_is_kept() {
    let calls = 300_000;
    let mut records = vec![entry(0, 0, MAIN)];
    for call in 0..calls {
        let time = 10 * call;
        records.extend([entry(time, 1, A), entry(time + 1, 2, B), exit(time + 5, 2, B), exit(time + 9, 1, A)]);
    }
    records.push(exit(10 * calls, 0, MAIN));
    let dir = trace(&records);
    let graph = |function: &str| {
        let (code, out, error) = run(&["graph", utf8(dir.path()), function]);
        assert_eq!((code, error.as_str()), (Some(0), ""));
        out
    };
    let kept = dir.file("index-graph");
    let first = graph("b");
    assert!(first.contains("backtrace #0: hit 300000, time ") && first.contains("1.200 ms"), "{first}");
    let bytes = std::fs::read(&kept).expect("it is kept");
    // Forged contents are believed: so the file is read.
    let forged = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|found| found == from).expect("a name");
        let mut forged = bytes.clone();
        forged[at..at + to.len()].copy_from_slice(to);
        std::fs::write(&kept, &forged).expect("it is written");
    };
    // Damaged: its sum is wrong, and it is made anew.
    forged(b"main", b"niam");
    assert_eq!(graph("b"), first);
    assert_eq!(std::fs::read(&kept).expect("it is kept"), bytes);
    // Another function's graph comes of the same file, which stays as it is.
    let modified = || std::fs::metadata(&kept).expect("a file").modified().expect("a time");
    let before = modified();
    assert!(graph("a").contains("2.700 ms : (300000) a"));
    assert_eq!(modified(), before);
    // As does that of a report.
    let report = || run(&["report", "-f", "total-avg,call", utf8(dir.path())]);
    let rows = report();
    assert!(dir.file("index-report").exists());
    assert_eq!(report(), rows);
    // Of other records.
    let data = dir.file("7.dat");
    let half = std::fs::read(&data).expect("records");
    std::fs::write(&data, &half[..half.len() / 4 * 3 / 64 * 64 + 16]).expect("it is written");
    let (_, after, _) = run(&["graph", utf8(dir.path()), "b"]);
    assert!(after.contains("hit 2250"), "{after}");
    assert_ne!(report().1, rows.1);
}
