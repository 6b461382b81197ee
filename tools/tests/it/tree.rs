//! Trees of calls.

use rftrace_views::CallTree;

use crate::dir::{A, B, C, Dir, Files, MAIN, entry, exit, trace};

/// The tree of the first task.
fn tree(dir: &Dir) -> CallTree {
    let trace = dir.open();
    CallTree::read(&trace, &trace.tasks()[0]).expect("a readable trace")
}

fn sample() -> Dir {
    trace(&[
        entry(10, 0, MAIN),
        entry(20, 1, A),
        entry(30, 2, B),
        exit(40, 2, B),
        exit(50, 1, A),
        entry(60, 1, B),
        exit(70, 1, B),
        exit(80, 0, MAIN),
        entry(90, 0, C),
    ])
}

#[test]
fn fields() {
    let tree = tree(&sample());
    assert_eq!(tree.tid, 7);
    assert!(tree.warnings.is_empty());
    let [main, c] = &tree.roots[..] else { panic!("{tree:?}") };
    assert_eq!((main.name.as_str(), main.addr, main.start_ns, main.end_ns), ("main", MAIN, 10, Some(80)));
    assert_eq!((main.has_entry, main.duration_ns()), (true, Some(70)));
    assert_eq!((c.name.as_str(), c.end_ns, c.duration_ns()), ("c", None, None));
    assert_eq!(
        format!("{c:?}"),
        "Call { name: \"c\", addr: 0x401030, start_ns: 90, end_ns: None, has_entry: true, children: 0 }"
    );
}

#[test]
fn a_trace_that_starts_inside() {
    // `a` was entered before the first record, and something that never returned around it.
    let tree = tree(&trace(&[entry(10, 2, B), exit(20, 2, B), exit(30, 1, A), entry(40, 1, C), exit(50, 1, C)]));
    assert_eq!(tree.to_string(), "a\n  b\nc\n");
    let a = &tree.roots[0];
    assert_eq!((a.start_ns, a.end_ns, a.has_entry, a.duration_ns()), (10, Some(30), false, None));
}

#[test]
fn deep_recursion() {
    const DEPTH: u64 = 200_000;
    let mut records: Vec<_> = (0..DEPTH).map(|level| entry(level, level.min(1023), A)).collect();
    records.extend((0..DEPTH).map(|level| exit(DEPTH + level, (DEPTH - 1 - level).min(1023), A)));
    let tree = tree(&Files::new(&[(7, &records)]).write());
    assert_eq!(tree.calls_per_function()["a"], DEPTH);
    assert_eq!(tree.calls().map(|(depth, _)| depth).max(), Some(DEPTH as usize - 1));
    assert!(tree.warnings.is_empty(), "{}", tree.warnings);
    assert!(format!("{tree:?}").len() < 1_000);
}
