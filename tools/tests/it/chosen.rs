//! Parts of a trace: what the options -F, -N, -D, -t and ranges of times leave.

use std::process::Command;

use proptest::prelude::*;
use rftrace_read::{Choice, Pattern};
use rftrace_views::{Call, CallTree};

use crate::cli::rftrace;
use crate::dir::{A, B, C, MAIN, entry, exit, trace};
use crate::hostile::copies_go_on;

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).expect("a pattern")
}

fn choice(change: impl FnOnce(&mut Choice)) -> Choice {
    let mut choice = Choice::default();
    change(&mut choice);
    choice
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
    let mut uftrace = Command::new("uftrace");
    if let Some(output) = crate::import::text(uftrace.args(["report", "--no-pager", "-d"]).arg(dir.path())) {
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
