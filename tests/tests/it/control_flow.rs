//! Control flow that is more than calls and returns: signals, jumps, other stacks, other processes.

use std::collections::BTreeMap;

use rftrace_tests::traces::{calls_per_task, trees};
use rftrace_tests::{CProgram, assert_same_lines, outline, require};
use rftrace_tools::{Call, Trace};

/// The ways to build that hook in different ways.
const BUILDS: [&[&str]; 3] = [&["-O0"], &["-O2"], &["-O2", "-mfentry"]];

/// How often each function was called by each other; by `-` at the outermost level.
pub(crate) fn edges(trace: &Trace) -> BTreeMap<(String, String), u64> {
    let mut edges = BTreeMap::new();
    for tree in trees(trace) {
        let mut open: Vec<&Call> = Vec::new();
        for (depth, call) in tree.calls() {
            open.truncate(depth);
            let caller = open.last().map_or("-", |caller| &caller.name);
            *edges.entry((caller.to_owned(), call.name.clone())).or_default() += 1;
            open.push(call);
        }
    }
    edges
}

pub(crate) fn edge(edges: &BTreeMap<(String, String), u64>, caller: &str, callee: &str) -> u64 {
    edges.get(&(caller.to_owned(), callee.to_owned())).copied().unwrap_or(0)
}

#[test]
fn a_traced_signal_handler_may_strike_anywhere() {
    if !require(&["gcc"]) {
        return;
    }
    const ROUNDS: u64 = 500;
    for (arguments, stack) in [
        (&["-O1"][..], None),
        (&["-O1"], Some("alternate")),
        (&["-O1", "-mfentry"], None),
        (&["-O1", "-mfentry"], Some("alternate")),
    ] {
        let mut command = vec!["500", "8000000", "stop"];
        command.extend(stack);
        let run = CProgram::new(&["signals.c"]).with(arguments).build().run(&command);
        let strikes: u64 = run.stdout.trim().parse().unwrap();
        assert!(strikes > 50, "{strikes} signals are too few to show anything");
        let what = format!("{arguments:?} {stack:?}");

        let trace = run.trace("trace");
        let calls = &calls_per_task(&trace)[0];
        // fib(15) makes 1973 calls.
        for (function, expected) in [
            ("fib", 1973 * ROUNDS),
            ("tail1", ROUNDS),
            ("tail2", ROUNDS),
            ("handler", strikes),
            ("two_leaves", strikes),
            ("leaf", ROUNDS + 2 * strikes),
        ] {
            assert_eq!(calls[function], expected, "{what}: {function}");
        }
        let edges = edges(&trace);
        assert_eq!(edge(&edges, "-", "fib"), ROUNDS, "{what}");
        assert_eq!(edge(&edges, "fib", "fib"), 1972 * ROUNDS, "{what}");
        assert_eq!(edge(&edges, "-", "tail1"), ROUNDS, "{what}");
        assert_eq!(edge(&edges, "tail1", "tail2"), ROUNDS, "{what}");
        assert_eq!(edge(&edges, "tail2", "leaf"), ROUNDS, "{what}");
        assert_eq!(edge(&edges, "handler", "two_leaves"), strikes, "{what}");
        assert_eq!(edge(&edges, "two_leaves", "leaf"), 2 * strikes, "{what}");
        let handlers: u64 = edges.iter().filter(|((_, callee), _)| callee == "handler").map(|(_, count)| count).sum();
        assert_eq!(handlers, strikes, "{what}");
    }
}

/// A ring of the smallest chunks: every 28 events a slow path fetches the next one, which the handler also strikes.
#[test]
fn a_traced_signal_handler_may_strike_amid_slow_paths() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O1", "-mfentry"]] {
        for stack in [None, Some("alternate")] {
            let mut command = vec!["2000", "900", "ring"];
            command.extend(stack);
            let run = CProgram::new(&["signals.c"]).with(arguments).build().run(&command);
            assert!(run.stdout.trim().parse::<u64>().unwrap() > 50, "too few signals to show anything");
            let edges = edges(&run.trace("trace"));
            assert!(edge(&edges, "fib", "fib") > 300, "{arguments:?} {stack:?}: {edges:?}");
            for (caller, callee) in edges.keys() {
                let callers: &[&str] = match callee.as_str() {
                    "fib" => &["-", "fib"],
                    "tail1" => &["-"],
                    "tail2" => &["tail1"],
                    "leaf" => &["tail2", "two_leaves"],
                    "two_leaves" => &["handler"],
                    "handler" => &["-", "fib", "tail1", "tail2", "leaf"],
                    other => panic!("{arguments:?} {stack:?}: what is {other}?"),
                };
                assert!(callers.contains(&caller.as_str()), "{arguments:?} {stack:?}: {caller} called {callee}");
            }
        }
    }
}

#[test]
fn longjmp_ends_the_functions_it_leaves() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in BUILDS {
        let run = CProgram::new(&["jumps.c"]).with(arguments).build().run(&[]);
        let jump = |depth: usize, indent: usize| -> String {
            (0..=depth).map(|level| format!("{}jump\n", "  ".repeat(indent + level))).collect()
        };
        let rounds: String = (0..1000).map(|round| format!("{}  after\n", jump(round % 4, 1))).collect();
        let once = format!("once\n{}  after\n", jump(2, 1));
        let struck = "struck\n  handler\n    after\n  after\n".repeat(3);
        let expected = format!("loop\n{rounds}{once}{struck}after\n");
        assert_same_lines(&outline(&run.trace("trace")), &expected, &format!("{arguments:?}"));
    }
}

/// What `switches.c` must show: while a coroutine runs, what is open in it is open in the function that resumed it.
fn switches() -> String {
    /// What a coroutine does until it is left: `None`.
    fn nested(depth: u32, steps: &mut Vec<Option<&str>>) {
        steps.push(Some("nested"));
        if depth > 0 {
            nested(depth - 1, steps);
        }
        steps.extend([Some("yield"), None, Some(""), Some("leaf"), Some(""), Some("")]);
    }
    let mut steps = vec![Some("body")];
    (0..50).for_each(|round| nested(round % 5, &mut steps));
    let mut text = String::new();
    let mut steps = steps.into_iter().peekable();
    let mut open: Vec<&str> = Vec::new();
    while steps.peek().is_some() {
        let mut resumed = "resume\n".to_owned();
        for (depth, name) in open.iter().enumerate() {
            resumed += &format!("{:indent$}{name}\n", "", indent = 2 * (depth + 1));
        }
        while let Some(Some(step)) = steps.next() {
            if step.is_empty() {
                open.pop();
            } else {
                open.push(step);
                resumed += &format!("{:indent$}{step}\n", "", indent = 2 * open.len());
            }
        }
        // There are four of them, which take turns.
        text += &resumed.repeat(4);
    }
    text
}

#[test]
fn coroutines_are_shown_as_they_run() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in BUILDS {
        let run = CProgram::new(&["switches.c"]).with(arguments).build().run(&[]);
        // 4 coroutines, 50 rounds, depths 0 to 4: the sums of 0 … depth.
        assert_eq!(run.stdout, "800\n", "{arguments:?}");
        assert_same_lines(&outline(&run.trace("trace")), &switches(), &format!("{arguments:?}"));
    }
}

#[test]
fn parent_and_child_of_a_fork_save_their_own() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in BUILDS {
        let run = CProgram::new(&["forks.c"]).with(arguments).with(&["-pthread"]).build().run(&[]);
        assert_eq!(run.stdout, "0\n", "{arguments:?}: the child saves its trace");
        let child = "forks\n".to_owned() + &"  of_child\n    leaf\n    leaf\n".repeat(5);
        assert_same_lines(&outline(&run.trace("child")), &child, &format!("{arguments:?}: child"));

        let parent = run.trace("parent");
        let edges = edges(&parent);
        assert_eq!(edge(&edges, "forks", "of_parent"), 1, "{arguments:?}");
        assert_eq!(edge(&edges, "of_parent", "leaf"), 1, "{arguments:?}");
        assert!(!edges.keys().any(|(_, callee)| callee == "of_child"), "{arguments:?}");
        assert_eq!(parent.tasks().len(), 4, "{arguments:?}");
    }
}
