//! Several stacks in one thread. Each that was left and resumed has a tree of its own, in which every call is there once; the
//! thread's tree has what resumed it.

use super::super::{ALL_BUILDS, Case, Fault, Seen};
use super::story::{Coroutine, Step, Story};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::c("coroutines", "coroutines.c", "4 coroutines in turns, switched amid nested calls", coroutines)
            .built(ALL_BUILDS),
        Case::c("coroutines, small", "coroutines.c", "the same with stacks of 8 KiB, side by side", coroutines)
            .with(&["-DSTACK=8192"]),
        Case::c(
            "coroutines, abandoned",
            "coroutines_abandoned.c",
            "left for good; their stacks are used again",
            abandoned,
        ),
        Case::c("coroutines, unmapped", "coroutines_abandoned.c", "the same, and their stacks are unmapped", abandoned)
            .with(&["-DUNMAP"]),
        Case::c("coroutines, nested", "coroutines_nest.c", "each of 4 is resumed by the one before", nested),
        Case::c("coroutines, exceptions", "coroutines_throw.cpp", "thrown and caught between switches", exceptions),
        Case::c("coroutines, longjmp", "coroutines_longjmp.c", "switched by `_setjmp` and `_longjmp`", by_longjmp),
        Case::c("coroutines, timer", "coroutines.c", "struck by a traced handler at 10 kHz", under_timer)
            .with(&["-DTIMER", "-DN_ROUNDS=300"]),
        Case::c("coroutines, preempted", "preempted.c", "the handler of a timer leaves one for the next", preempted)
            .unsolved(),
        Case::c("coroutines outlive threads", "coroutines_outlive.c", "every turn is on a new thread", outlive),
        Case::c(
            "coroutines on threads",
            "coroutines_migrate.c",
            "8 coroutines, each turn on any of 4 threads",
            on_threads,
        ),
    ]
}

const LEAF: [Step; 2] = [Step::Enter("leaf"), Step::Exit];
const YIELD: [Step; 3] = [Step::Enter("yield"), Step::Switch, Step::Exit];

fn coroutines(seen: &Seen) -> Result<(), Fault> {
    fn nested(steps: &mut Vec<Step>, depth: usize) {
        steps.push(Step::Enter("nested"));
        if depth > 0 {
            nested(steps, depth - 1);
        }
        steps.extend(YIELD);
        steps.extend(LEAF);
        steps.push(Step::Exit);
    }
    let mut steps = vec![Step::Enter("body")];
    (0..10).for_each(|round| nested(&mut steps, round % 5));
    steps.push(Step::Exit);
    let mut coroutines = vec![Coroutine::new(steps); 4];
    seen.each_outline(in_turns("resume", &mut coroutines, 31))
}

/// Resumes each coroutine, and again, `n_turns` times.
fn in_turns(resume: &str, coroutines: &mut [Coroutine], n_turns: usize) -> Vec<String> {
    let mut story = Story::default();
    for _ in 0..n_turns {
        for number in 0..coroutines.len() {
            story.enter(resume);
            story.resume(coroutines, number);
            story.exit();
        }
    }
    story.outlines()
}

fn abandoned(seen: &Seen) -> Result<(), Fault> {
    fn nested(steps: &mut Vec<Step>, depth: usize) {
        (0..=depth).for_each(|_| steps.push(Step::Enter("nested")));
        steps.extend(YIELD);
        (0..=depth).for_each(|_| {
            steps.extend(LEAF);
            steps.push(Step::Exit);
        });
    }
    let mut story = Story::default();
    for round in 0..60 {
        let mut steps = vec![Step::Enter("body")];
        nested(&mut steps, round % 5);
        nested(&mut steps, round % 3);
        steps.push(Step::Exit);
        let mut coroutine = [Coroutine::new(steps)];
        for _ in 0..round % 4 {
            story.enter("resume");
            story.resume(&mut coroutine, 0);
            story.exit();
        }
        story.leaf("leaf");
    }
    seen.each_outline(story.outlines())
}

fn nested(seen: &Seen) -> Result<(), Fault> {
    const LEVELS: usize = 4;
    let body = |level: usize| {
        let mut steps = vec![Step::Enter("body")];
        for _ in 0..10 {
            steps.push(Step::Enter("produce"));
            if level + 1 < LEVELS {
                steps.extend([Step::Enter("next"), Step::Enter("resume"), Step::Resume(level + 1), Step::Exit]);
                steps.extend(LEAF);
                steps.push(Step::Exit);
            }
            steps.extend(YIELD);
            steps.push(Step::Exit);
        }
        steps.extend(LEAF);
        steps.push(Step::Exit);
        Coroutine::new(steps)
    };
    let mut coroutines: Vec<Coroutine> = (0..LEVELS).map(body).collect();
    let mut story = Story::default();
    for _ in 0..10 {
        story.enter_all(&["next", "resume"]);
        story.resume(&mut coroutines, 0);
        story.exit();
        story.leaf("leaf");
        story.exit();
    }
    for level in 0..LEVELS {
        story.enter("resume");
        story.resume(&mut coroutines, level);
        story.exit();
    }
    seen.each_outline(story.outlines())
}

fn exceptions(seen: &Seen) -> Result<(), Fault> {
    let mut steps = vec![Step::Enter("body")];
    for _ in 0..5 {
        steps.push(Step::Enter("catcher"));
        steps.extend([Step::Enter("thrower"); 4]);
        steps.extend(YIELD);
        steps.extend([Step::Exit; 4]);
        steps.extend(LEAF);
        steps.extend(YIELD);
        steps.extend(LEAF);
        steps.push(Step::Exit);
    }
    steps.push(Step::Exit);
    seen.each_outline(in_turns("resume", &mut vec![Coroutine::new(steps); 3], 11))
}

fn by_longjmp(seen: &Seen) -> Result<(), Fault> {
    let leave = [Step::Enter("leave"), Step::Switch, Step::Exit];
    let mut steps = vec![Step::Enter("body")];
    for round in 0..10 {
        steps.extend([Step::Enter("nested")].repeat(round % 3 + 1));
        for _ in 0..=round % 3 {
            steps.extend(leave);
            steps.extend(LEAF);
            steps.push(Step::Exit);
        }
    }
    steps.extend(leave);
    steps.push(Step::Exit);
    seen.each_outline(in_turns("enter", &mut vec![Coroutine::new(steps); 3], 20))
}

/// The calls are those of [`coroutines`]; the handler may be anywhere.
fn under_timer(seen: &Seen) -> Result<(), Fault> {
    const FIVES: u64 = 300 / 5;
    const COROUTINES: u64 = 4;
    let n_strikes: u64 = seen.printed.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0);
    let edges = seen.edges();
    let n_handlers: u64 = edges.iter().filter(|((_, callee), _)| *callee == "handler").map(|(_, count)| count).sum();
    if n_handlers != n_strikes {
        let detail = format!("the handler was called {n_handlers} times, not {n_strikes}");
        return Err(Fault::new(if n_handlers < n_strikes { "lost calls" } else { "wrong tree" }, detail));
    }
    let n_yields = FIVES * COROUTINES * (1 + 2 + 3 + 4 + 5);
    for (caller, callee, count) in [
        ("-", "resume", n_yields + COROUTINES),
        ("-", "body", COROUTINES),
        ("handler", "leaf", n_strikes),
        ("nested", "leaf", n_yields),
        ("nested", "yield", n_yields),
    ] {
        let found = edges.get(&(caller, callee)).copied().unwrap_or(0);
        if found != count {
            let detail = format!("{caller} called {callee} {found} times, not {count}: {edges:?}");
            return Err(Fault::new("wrong tree", detail));
        }
    }
    Ok(())
}

fn preempted(seen: &Seen) -> Result<(), Fault> {
    let edges = seen.edges();
    for ((caller, callee), count) in &edges {
        let is_right = match *callee {
            "run" => *caller == "-",
            "resume" => *caller == "run",
            "body" => *caller == "resume",
            "fib" => ["body", "fob"].contains(caller),
            "fob" => *caller == "fib",
            "preempt" => *caller != "preempt",
            _ => false,
        };
        if !is_right {
            return Err(Fault::new("wrong tree", format!("{caller} called {callee} {count} times: {edges:?}")));
        }
    }
    let edge = |caller, callee| edges.get(&(caller, callee)).copied().unwrap_or(0);
    if edge("run", "resume") != edge("resume", "body") || edge("fib", "fob") + edge("fob", "fib") < 300 * 1972 {
        return Err(Fault::new("lost calls", format!("{edges:?}")));
    }
    Ok(())
}

fn outlive(seen: &Seen) -> Result<(), Fault> {
    let mut steps = vec![Step::Enter("body")];
    for _ in 0..40 {
        steps.extend([Step::Enter("nested")].repeat(3));
        steps.extend(YIELD);
        for _ in 0..3 {
            steps.extend(LEAF);
            steps.push(Step::Exit);
        }
    }
    steps.push(Step::Exit);
    let mut story = Story::default();
    let mut coroutine = [Coroutine::new(steps)];
    (0..=40).for_each(|_| story.resume(&mut coroutine, 0));
    let outlines = story.outlines();
    seen.outlines(&[(&outlines[1], 3), ("resume\n", 3 * 41)])
}

/// Which thread runs a turn is not known, but what is called.
fn on_threads(seen: &Seen) -> Result<(), Fault> {
    const COROUTINES: u64 = 8;
    const TURNS: u64 = 200;
    seen.all_edges(&[
        ("-", "resume", COROUTINES * (TURNS + 1)),
        ("-", "body", COROUTINES),
        ("body", "nested", COROUTINES * TURNS),
        ("nested", "nested", COROUTINES * TURNS / 4 * (1 + 2 + 3)),
        ("nested", "yield", COROUTINES * TURNS),
        ("nested", "leaf", COROUTINES * TURNS / 4 * (1 + 2 + 3 + 4)),
    ])
}
