//! Calls and returns of all kinds.

use super::super::{ALL_BUILDS, Case, Fault, Hooks, Seen};
use super::story::Story;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::c("kinds of calls", "shapes.c", "variadic, structs, `long double`, `__int128`, 18 arguments", shapes)
            .built(ALL_BUILDS),
        Case::c("tail calls", "tail_calls.c", "one, 400 and 500 in a row, mutual, into untraced code", tail_calls)
            .built(ALL_BUILDS),
        Case::c("recursion, 5,000", "recursion.c", "calls 5,000 deep, three times", recursion).with(&["-DDEPTH=5000"]),
        Case::c("recursion, 100,000", "recursion.c", "calls 100,000 deep, three times", recursion)
            .with(&["-DDEPTH=100000"]),
        Case::c("large frames", "large_frames.c", "frames of 64 bytes to a megabyte between calls", large_frames),
        Case::c("nested functions", "nested_functions.c", "GNU C's, direct, by a trampoline, left by `goto`", nested)
            .not_by(&[(Hooks::Sleds, "clang knows no functions in functions")]),
        Case::c("callbacks", "callbacks.c", "`qsort` and `bsearch` call back, and are left by `longjmp`", callbacks),
        Case::c("stackless coroutines", "stackless.cpp", "two C++ generators in turns", stackless)
            .with(&["-std=c++20", "-fcoroutines"])
            .not_by(&[(Hooks::Sleds, "the parts of a coroutine are GCC's")]),
        Case::c(
            "around main",
            "before_main.cpp",
            "constructors, `exit` amid calls, `atexit`, destructors",
            around_main,
        )
        .built(ALL_BUILDS)
        .ending_open(),
        Case::c("switching", "switched.c", "recording switched off and on at every depth, in 100 patterns", switching)
            .switching(),
    ];
    if std::arch::is_x86_feature_detected!("avx") {
        cases.push(
            Case::c("realigned stacks", "realign.c", "AVX locals, `alignas(64)` and more, `-mstackrealign`", realigned)
                .with(&["-mavx"])
                .built(&["-O0", "-O2", "-O2 -mfentry", "-O0 -mstackrealign", "-O2 -mstackrealign"]),
        );
    }
    cases
}

fn shapes(seen: &Seen) -> Result<(), Fault> {
    seen.outline(
        "variadic\nvariadic\nby_memory\nin_two_registers\nhidden_pointer\nx87\ncomplex_result\nwide\nmany_floats\nlabel\n",
    )
}

fn tail_calls(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    let one = |story: &mut Story| {
        story.enter("one");
        story.leaf("leaf");
        story.exit();
    };
    let out = |story: &mut Story| {
        story.enter("out");
        story.leaf("leaf");
        story.exit();
    };
    let ping_pong = |story: &mut Story, n: usize| {
        (0..=n).for_each(|idx| story.enter(["ping", "pong"][idx % 2]));
        story.exit_all(n + 1);
    };
    let caller = |story: &mut Story, x: usize| {
        story.enter("caller");
        one(story);
        out(story);
        ping_pong(story, x);
        story.leaf("leaf");
        story.exit();
    };
    one(&mut story);
    out(&mut story);
    ping_pong(&mut story, 400);
    (0..20).for_each(|x| caller(&mut story, x));
    // link_of takes a step too.
    (0..=500).for_each(|idx| story.enter(["chain", "link_of"][idx % 2]));
    caller(&mut story, 3);
    story.exit_all(501);
    story.leaf("leaf");
    seen.outline(&story.text())
}

/// Tracers may end at some depth, but what they show has to be right, and they go on at the right depth.
fn recursion(seen: &Seen) -> Result<(), Fault> {
    let task = seen.task()?;
    let mut depth_within = 0;
    for (depth, name) in &task.calls {
        depth_within = if name == "dive" && *depth > 0 { depth_within + 1 } else { 0 };
        if *depth != depth_within {
            return Err(Fault::new("wrong tree", format!("{name} at depth {depth} instead of {depth_within}")));
        }
    }
    let outermost: Vec<&str> = task.calls.iter().filter(|(depth, _)| *depth == 0).map(|(_, name)| &**name).collect();
    if outermost == ["dive", "after"].repeat(3) {
        Ok(())
    } else {
        Err(Fault::new("wrong tree", format!("at the outermost level: {outermost:?}")))
    }
}

fn large_frames(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    let fixed = |story: &mut Story| {
        story.enter("fixed");
        story.leaf("leaf");
        story.leaf("leaf");
        story.exit();
    };
    let grows = |story: &mut Story, depth: usize| {
        (0..=depth).for_each(|_| {
            story.enter("grows");
            story.leaf("leaf");
        });
        (0..=depth).for_each(|_| {
            story.leaf("leaf");
            story.exit();
        });
    };
    fixed(&mut story);
    grows(&mut story, 12);
    story.enter("wanders");
    (0..60).for_each(|round| match round % 3 {
        0 => fixed(&mut story),
        1 => grows(&mut story, round % 12),
        _ => story.leaf("leaf"),
    });
    story.exit();
    story.leaf("leaf");
    seen.outline(&story.text())
}

fn nested(seen: &Seen) -> Result<(), Fault> {
    let outer = "outer\n  inner\n    leaf\n  apply\n    inner\n      leaf\n    leaf\n";
    let stays = "escape\n  apply\n    jumper\n      leaf\n    leaf\n";
    let escapes = "escape\n  apply\n    jumper\n      leaf\n  leaf\n";
    seen.outline(&format!("{outer}{stays}{escapes}").repeat(20))
}

fn callbacks(seen: &Seen) -> Result<(), Fault> {
    let compare = "  compare\n    leaf\n";
    let left = format!("leave\n{}  compare_or_leave\n  leaf\n", "  compare_or_leave\n    leaf\n".repeat(4));
    seen.outline(&format!("sort\n{compare}search\n{compare}{}", left.repeat(10)))
}

fn stackless(seen: &Seen) -> Result<(), Fault> {
    // Each tracer demangles the name of the resumed function in its own way.
    let made = "counts\n  counts\n";
    let next = "next\n  counts\n    leaf\n";
    let end = "next\n  counts\n";
    let mut task = seen.task()?.without("std::");
    for (_, name) in &mut task.calls {
        if name.contains("counts") {
            *name = "counts".to_owned();
        }
    }
    task.outline(&format!("{}{}{}", made.repeat(2), next.repeat(10), end.repeat(2)))
}

fn around_main(seen: &Seen) -> Result<(), Fault> {
    let before = "early\n  leaf\nObject::Object\n  leaf\n";
    let within = "work\n  leaf\n  leaves\n    leaf\n";
    let after = "    at_exit\n      leaf\n    Object::~Object\n      leaf\n    late\n      leaf\n";
    seen.outline(&format!("{before}{within}{after}"))
}

fn switching(seen: &Seen) -> Result<(), Fault> {
    fn pattern(story: &mut Story, is_on: &mut bool, depth: u32, down: u32, up: u32) {
        let is_recorded = *is_on;
        if is_recorded {
            story.enter("pattern");
        }
        *is_on = down >> depth & 1 == 1;
        if *is_on {
            story.leaf("leaf");
        }
        if depth < 7 {
            pattern(story, is_on, depth + 1, down, up);
        }
        *is_on = up >> depth & 1 == 1;
        if *is_on {
            story.leaf("leaf");
        }
        if is_recorded {
            story.exit();
        }
    }
    let mut story = Story::default();
    for _ in 0..10 {
        story.leaf("leaf");
        story.leaf("leaf");
        story.enter("leaves_off");
        story.leaf("leaf");
        story.exit();
        story.enter("gap");
        story.leaf("leaf");
        story.leaf("leaf");
        story.exit();
    }
    let mut state: u32 = 1;
    for _ in 0..100 {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
        pattern(&mut story, &mut true, 0, state >> 8 & 255, state >> 16 & 255);
    }
    story.leaf("leaf");
    seen.outline(&story.text())
}

fn realigned(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    let many = |story: &mut Story| {
        story.enter("many");
        story.leaf("leaf");
        story.exit();
    };
    for i in 0..50 {
        story.enter_all(&["outer", "large", "aligned"]);
        story.leaf("leaf");
        story.leaf("leaf");
        story.exit_all(2);
        many(&mut story);
        story.leaf("leaf");
        story.exit();
        story.enter("tail");
        many(&mut story);
        story.exit();
        (0..=i % 5).for_each(|_| story.enter("vectors"));
        (0..=i % 5).for_each(|_| {
            story.leaf("leaf");
            story.exit();
        });
    }
    seen.outline(&story.text())
}
