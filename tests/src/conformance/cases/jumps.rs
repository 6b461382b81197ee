//! Frames that are left by a jump, and signals.

use super::super::{ALL_BUILDS, Case, Fault, Seen};
use super::story::Story;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::c("longjmp", "longjmp.c", "1,000 jumps over 1 to 40 frames, from one frame", longjmp).built(ALL_BUILDS),
        Case::c("longjmp in recursion", "setjmp_in_recursion.c", "each of 13 levels catches and jumps on", climbing),
        Case::c("handler jumps", "handler_jumps.c", "`siglongjmp` out of a handler, 90 times", handler_jumps)
            .with(&["-DSTACK=0"]),
        Case::c("handler jumps, from below", "handler_jumps.c", "off an alternate stack below", handler_jumps)
            .with(&["-DSTACK=1"]),
        Case::c("handler jumps, from above", "handler_jumps.c", "off an alternate stack above", handler_jumps)
            .with(&["-DSTACK=2"]),
        Case::c("handler escapes", "handler_escapes.c", "a timer's handler jumps from wherever it strikes", escapes)
            .with(&["-DFLAGS=0"]),
        Case::c("handler escapes, alternate stack", "handler_escapes.c", "the same on an alternate stack", escapes)
            .with(&["-DFLAGS=SA_ONSTACK"]),
        Case::c("handlers nest", "handlers_nest.c", "a handler strikes a handler strikes a handler", handlers_nest),
        Case::c("timer", "signals.c", "a traced handler strikes at 10 kHz", timer).with(&["-DFLAGS=0"]),
        Case::c("timer, alternate stack", "signals.c", "the same on an alternate stack", timer)
            .with(&["-DFLAGS=SA_ONSTACK"]),
    ]
}

fn longjmp(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    let jump = |story: &mut Story, depth: usize| {
        (0..=depth).for_each(|_| story.enter("jump"));
        story.exit_all(depth + 1);
        story.leaf("after");
    };
    story.enter("loop");
    (0..1000).for_each(|round| jump(&mut story, round * 7 % 40));
    story.exit();
    story.enter("once");
    jump(&mut story, 2);
    story.exit();
    story.leaf("after");
    seen.outline(&story.text())
}

fn climbing(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    for _ in 0..20 {
        (0..13).for_each(|_| story.enter("climb"));
        story.leaf("jump");
        story.exit();
        for level in [11, 9, 7, 5, 3, 1] {
            story.leaf("leaf");
            if level > 1 {
                story.leaf("jump");
                story.exit_all(2);
            }
        }
        story.exit_all(2);
    }
    seen.outline(&story.text())
}

fn handler_jumps(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    let struck = |story: &mut Story, depth: usize| {
        (0..=depth).for_each(|_| story.enter("strikes"));
        story.enter("handler");
        story.leaf("leaf");
        story.enter_all(&["inner", "inner", "inner"]);
        story.exit_all(depth + 5);
    };
    let catchers = |story: &mut Story| {
        for round in 0..20 {
            story.enter("catcher");
            struck(story, round % 5);
            story.leaf("leaf");
            story.leaf("leaf");
            story.exit();
        }
    };
    catchers(&mut story);
    story.enter("loop");
    for round in 0..50 {
        struck(&mut story, round % 6);
        story.leaf("leaf");
    }
    story.exit();
    catchers(&mut story);
    seen.outline(&story.text())
}

fn escapes(seen: &Seen) -> Result<(), Fault> {
    const ESCAPES: u64 = 400;
    let edges = seen.edges();
    let edge = |caller, callee| edges.get(&(caller, callee)).copied().unwrap_or(0);
    for ((caller, callee), count) in &edges {
        let is_right = match *callee {
            "until_struck" | "settled" => *caller == "-",
            "fib" => ["-", "until_struck", "fob"].contains(caller),
            "fob" => *caller == "fib",
            "leaf" => ["fib", "fob", "handler", "settled"].contains(caller),
            // siglongjmp lets signals through before it jumps, so it may strike itself.
            "handler" => true,
            _ => false,
        };
        if !is_right {
            return Err(Fault::new("wrong tree", format!("{caller} called {callee} {count} times: {edges:?}")));
        }
    }
    for (caller, callee, count) in [
        ("-", "until_struck", ESCAPES),
        ("-", "settled", ESCAPES),
        ("settled", "leaf", 2 * ESCAPES),
        ("-", "fib", 1),
        ("handler", "leaf", ESCAPES),
    ] {
        let found = edge(caller, callee);
        if found != count {
            let words = if found < count { "lost calls" } else { "wrong tree" };
            return Err(Fault::new(words, format!("{caller} called {callee} {found} times, not {count}: {edges:?}")));
        }
    }
    Ok(())
}

fn handlers_nest(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    for _ in 0..50 {
        let handlers = ["work", "outermost", "middle"];
        for name in handlers {
            story.enter(name);
            story.leaf("leaf");
        }
        story.enter("innermost");
        story.leaf("leaf");
        story.exit();
        for _ in handlers {
            story.leaf("leaf");
            story.exit();
        }
    }
    seen.outline(&story.text())
}

fn timer(seen: &Seen) -> Result<(), Fault> {
    const ROUNDS: u64 = 500;
    let n_strikes: u64 = seen.printed.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0);
    let counts = seen.task()?.counts();
    let count = |name: &str| counts.get(name).copied().unwrap_or(0);
    let edges = seen.edges();
    let edge = |caller, callee| edges.get(&(caller, callee)).copied().unwrap_or(0);
    // fib(15) makes 1973 calls.
    for (what, found, expected) in [
        ("calls of fib and fob", count("fib") + count("fob"), 1973 * ROUNDS),
        ("calls of the handler", count("handler"), n_strikes),
        ("calls of leaf", count("leaf"), ROUNDS + 2 * n_strikes),
    ] {
        if found != expected {
            let words = if found < expected { "lost calls" } else { "wrong tree" };
            return Err(Fault::new(words, format!("{what}: {found}, not {expected}")));
        }
    }
    for (what, found, expected) in [
        ("fib from main", edge("-", "fib"), ROUNDS),
        ("fib from fob and back", edge("fob", "fib") + edge("fib", "fob"), 1972 * ROUNDS),
        ("tail1 from main", edge("-", "tail1"), ROUNDS),
        ("tail2 from tail1", edge("tail1", "tail2"), ROUNDS),
        ("leaf from tail2", edge("tail2", "leaf"), ROUNDS),
        ("two_leaves from the handler", edge("handler", "two_leaves"), n_strikes),
        ("leaf from two_leaves", edge("two_leaves", "leaf"), 2 * n_strikes),
        ("waits from main", edge("-", "waits"), count("waits")),
    ] {
        if found != expected {
            return Err(Fault::new("wrong tree", format!("{what}: {found}, not {expected}")));
        }
    }
    Ok(())
}
