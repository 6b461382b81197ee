//! Which functions call which.

use crate::cli::{run, utf8};
use crate::dir::{A, B, Files, MAIN, entry, exit, trace};

#[test]
fn recursion_without_end() {
    let deep: Vec<_> = (0..60_000).map(|time| entry(time, time.min(1000), [A, B][time as usize % 2])).collect();
    let dir = trace(&deep);
    let (_, text, _) = run(&["graph", "-f", "none", utf8(dir.path())]);
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

/// Without the overhead of recording each function still takes as long as its parts.
#[test]
fn corrected_times_add_up() {
    let calls = [
        entry(0, 0, MAIN),
        entry(1_000, 1, A),
        entry(2_000, 2, B),
        exit(3_000, 2, B),
        exit(4_000, 1, A),
        exit(10_000, 0, MAIN),
    ];
    let mut files = Files::new(&[(7, &calls)]);
    files.0.insert("clock.txt".into(), "hook_inside_ps=100000\nhook_outside_ps=50000\n".into());
    let dir = files.write();
    let mut trace = dir.open();
    trace.correct_times(true);
    let graph = rftrace_views::Graph::read(&trace, None).expect("a readable trace");
    let nodes = (0..graph.n_nodes()).map(|number| graph.node(number));
    let times: Vec<_> = nodes.map(|node| (node.name, node.total_ns, node.self_ns)).collect();
    assert_eq!(times, [("prog", 9_600, 0), ("main", 9_600, 6_850), ("a", 2_750, 1_850), ("b", 900, 900)]);
}
