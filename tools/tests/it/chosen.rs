//! Parts of a trace: what the options -F, -N, -D, -t and ranges of times leave.

use proptest::prelude::*;
use rftrace_read::{Choice, Pattern};
use rftrace_views::{Call, CallTree};

use crate::cli::rftrace;
use crate::dir::{A, B, C, Files, MAIN, MARK, entry, event, exit, lost, trace};
use crate::hostile::copies_go_on;
use crate::replay::replay;
use crate::uftrace::uftrace;

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).expect("a pattern")
}

fn choice(change: impl FnOnce(&mut Choice)) -> Choice {
    let mut choice = Choice::default();
    change(&mut choice);
    choice
}

/// The outline of the first task.
fn outline(records: &[[u8; 16]], choice: Choice) -> String {
    let dir = trace(records);
    let mut trace = dir.open();
    trace.choose(choice);
    let tree = CallTree::read(&trace, &trace.tasks()[0]).expect("a readable trace");
    assert!(tree.warnings.is_empty(), "{}", tree.warnings);
    tree.to_string()
}

/// `main` calls `a`, which calls `b` and `c`, and then `b`, which calls `c`.
fn sample() -> Vec<[u8; 16]> {
    vec![
        entry(10, 0, MAIN),
        entry(20, 1, A),
        entry(30, 2, B),
        exit(35, 2, B),
        event(36, 2, MARK),
        entry(40, 2, C),
        exit(60, 2, C),
        exit(70, 1, A),
        entry(80, 1, B),
        entry(81, 2, C),
        exit(82, 2, C),
        exit(90, 1, B),
        exit(100, 0, MAIN),
    ]
}

#[test]
fn by_names() {
    for (below, not_below, expected) in [
        (&["a"][..], &[][..], "a\n  b\n  c\n"),
        (&["b"], &[], "b\nb\n  c\n"),
        (&["[ab]"], &["c"], "a\n  b\nb\n"),
        (&[], &["a", "/^c$/"], "main\n  b\n"),
        (&["a"], &["main"], ""),
        (&["nothing"], &[], ""),
    ] {
        let chosen = choice(|choice| {
            choice.below = below.iter().copied().map(pattern).collect();
            choice.not_below = not_below.iter().copied().map(pattern).collect();
        });
        assert_eq!(outline(&sample(), chosen), expected, "{below:?} {not_below:?}");
    }
}

#[test]
fn by_depth_and_duration() {
    assert_eq!(outline(&sample(), choice(|choice| choice.depth = 2)), "main\n  a\n  b\n");
    let below_a = choice(|choice| (choice.below, choice.depth) = (vec![pattern("a")], 1));
    assert_eq!(outline(&sample(), below_a), "a\n");
    for (min_ns, expected) in [
        (1, "main\n  a\n    b\n    c\n  b\n    c\n"),
        (5, "main\n  a\n    b\n    c\n  b\n"),
        (10, "main\n  a\n    c\n  b\n"),
        (11, "main\n  a\n    c\n"),
        (90, "main\n"),
        (91, ""),
    ] {
        assert_eq!(outline(&sample(), choice(|choice| choice.min_ns = min_ns)), expected, "{min_ns}");
    }
}

#[test]
fn by_time() {
    let dir = trace(&sample());
    let mut trace = dir.open();
    trace.choose(choice(|choice| choice.times = 38..81));
    let (text, summary) = replay(&trace, false);
    assert_eq!(
        text,
        "# DURATION     TID     FUNCTION
            [     7] | main() {
            [     7] |   a() {
   0.020 us [     7] |     c();
   0.032 us [     7] |   } /* a */
   0.001 us [     7] |   b();
   0.043 us [     7] | } /* main */
"
    );
    assert!(summary.warnings.is_empty(), "{}", summary.warnings);
    for nothing in [101..200, 1..10, 45..45] {
        trace.choose(choice(|choice| choice.times = nothing));
        assert_eq!(replay(&trace, false).1.records, 0);
    }
    // Without a record in it.
    trace.choose(choice(|choice| choice.times = 45..50));
    assert_eq!(
        replay(&trace, false).0,
        "# DURATION     TID     FUNCTION
            [     7] | main() {
            [     7] |   a() {
   0.005 us [     7] |     c();
   0.005 us [     7] |   } /* a */
   0.005 us [     7] | } /* main */
"
    );
}

#[test]
fn what_is_in_a_function_goes_with_it() {
    let dir = trace(&sample());
    let mut trace = dir.open();
    let name = trace.events().name(1_000_000).into_owned();
    let mut is_shown = |chosen| {
        trace.choose(chosen);
        replay(&trace, false).0.contains(&name)
    };
    assert!(is_shown(Choice::default()));
    assert!(is_shown(choice(|choice| choice.below = vec![pattern("a")])));
    assert!(!is_shown(choice(|choice| choice.below = vec![pattern("b")])));
    assert!(!is_shown(choice(|choice| choice.not_below = vec![pattern("a")])));
    assert!(!is_shown(choice(|choice| choice.min_ns = 60)));
    assert!(!is_shown(choice(|choice| choice.times = 40..1000)));
}

#[test]
fn losses_are_told_of_anyway() {
    let records = [entry(10, 0, MAIN), lost(20, 3), entry(30, 1, A), exit(40, 1, A), exit(50, 0, MAIN)];
    let dir = trace(&records);
    let mut trace = dir.open();
    trace.choose(choice(|choice| choice.below = vec![pattern("a")]));
    let (text, _) = replay(&trace, false);
    assert!(text.contains("LOST 3 records") && text.contains("| a();") && !text.contains("main"), "{text}");
}

#[test]
fn tasks() {
    let files = Files::new(&[(7, &[entry(10, 0, MAIN), exit(90, 0, MAIN)]), (8, &[entry(30, 0, B), exit(60, 0, B)])]);
    let dir = files.write();
    let mut trace = dir.open();
    assert_eq!(trace.keep_tasks(&[8, 9]), Err(9));
    assert_eq!(trace.tasks().len(), 2);
    assert_eq!(trace.keep_tasks(&[8]), Ok(()));
    assert_eq!(trace.tasks().iter().map(|task| task.tid()).collect::<Vec<_>>(), [8]);
}

/// The calls that a choice leaves of a whole tree, by looking at all of it.
fn left(calls: &[Call], choice: &Choice, is_in: bool, level: usize, depth: usize, out: &mut String) {
    for call in calls {
        let has = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(&call.name));
        if has(&choice.not_below) {
            continue;
        }
        let level = if is_in { level } else { 0 };
        let is_in = is_in || has(&choice.below);
        let is_shown = is_in && level < choice.depth && call.duration_ns() >= Some(choice.min_ns);
        if is_shown {
            out.push_str(&line(depth, call));
        }
        left(&call.children, choice, is_in, level + usize::from(is_in), depth + usize::from(is_shown), out);
    }
}

fn line(depth: usize, call: &Call) -> String {
    format!("{}{} {} {:?}\n", "  ".repeat(depth), call.name, call.start_ns, call.end_ns)
}

/// Balanced calls: each step enters a function, or leaves one.
fn records(steps: &[(u8, u64)]) -> Vec<[u8; 16]> {
    let (mut records, mut open, mut time) = (Vec::new(), Vec::new(), 1);
    for &(step, ticks) in steps {
        time += ticks;
        match step {
            0..4 if open.len() < 30 => {
                let addr = [MAIN, A, B, C][usize::from(step)];
                records.push(entry(time, open.len() as u64, addr));
                open.push(addr);
            }
            _ => {
                if let Some(addr) = open.pop() {
                    records.push(exit(time, open.len() as u64, addr));
                }
            }
        }
    }
    while let Some(addr) = open.pop() {
        time += 1;
        records.push(exit(time, open.len() as u64, addr));
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Reading record by record gives the same as cutting the whole tree.
    #[test]
    fn the_part_of_a_tree(
        steps in prop::collection::vec((0..8_u8, 0..20_u64), 0..200),
        below in prop::sample::subsequence(vec!["main", "a", "b", "c"], 0..3),
        not_below in prop::sample::subsequence(vec!["main", "a", "b", "c"], 0..2),
        depth in prop_oneof![Just(usize::MAX), 1..5_usize],
        min_ns in prop_oneof![Just(0), 0..60_u64],
    ) {
        let dir = trace(&records(&steps));
        let mut trace = dir.open();
        let whole = CallTree::read(&trace, &trace.tasks()[0]).unwrap();
        let chosen = choice(|choice| {
            choice.below = below.into_iter().map(pattern).collect();
            choice.not_below = not_below.into_iter().map(pattern).collect();
            (choice.depth, choice.min_ns) = (depth, min_ns);
        });
        let mut expected = String::new();
        left(&whole.roots, &chosen, chosen.below.is_empty(), 0, 0, &mut expected);
        trace.choose(chosen);
        let part = CallTree::read(&trace, &trace.tasks()[0]).unwrap();
        prop_assert!(part.warnings.is_empty(), "{}", part.warnings);
        copies_go_on(&trace, &trace.tasks()[0], 7).unwrap();
        let found: String = part.calls().map(|(depth, call)| line(depth, call)).collect();
        prop_assert_eq!(found, expected);
    }
}

/// The view is the same with an index, wherever that may be; others read the trace as before.
#[test]
fn an_index_is_made_for_a_large_trace() {
    let mut records = vec![entry(10, 0, MAIN)];
    records.extend((0..300_000_u64).flat_map(|n| {
        let function = if n == 200_000 { B } else { A };
        let time = 100 * n;
        [entry(time + 20, 1, function), entry(time + 30, 2, C), exit(time + 40, 2, C), exit(time + 50, 1, function)]
    }));
    records.push(exit(40_000_000, 0, MAIN));
    let dir = trace(&records);
    let cache = tempfile::tempdir().expect("a folder");
    let index = dir.path().join("index");
    let show = |args: &[&str]| {
        let mut command = rftrace(args);
        let output = command.arg(dir.path()).env("XDG_CACHE_HOME", cache.path()).output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let of_b = ["replay", "--builtin", "-F", "b", "-f", "none"];
    let expected = "b() {\n  c();\n} /* b */\n";
    assert_eq!(show(&of_b), expected);
    let made = std::fs::read(&index).expect("an index");
    assert_eq!(show(&of_b), expected);
    let late = ["report", "--no-correct", "--from", "29999905ns", "--format", "csv", "-f", "call,total"];
    let text = show(&late);
    assert!(text.contains("\"a\",1,30\n") && text.contains("\"c\",1,10\n"), "{text}");
    assert_eq!(std::fs::read(&index).expect("an index"), made, "it is still of use");
    if let Some(output) = uftrace("report", dir.path(), &[]) {
        assert!(output.contains("300000  c"), "{output}");
    }

    // Where it cannot be, it is in the cache.
    std::fs::remove_file(&index).expect("it is there");
    std::fs::create_dir(&index).expect("a folder");
    assert_eq!(show(&of_b), expected);
    assert_eq!(show(&late), text);
    let cached: Vec<_> = std::fs::read_dir(cache.path().join("rftrace")).expect("a folder").collect();
    assert_eq!(cached.len(), 1, "{cached:?}");
}
