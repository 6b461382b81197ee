//! Frames that an unwinder goes through or drops.

use super::super::{ALL_BUILDS, Case, Fault, Hooks, Seen};
use super::story::Story;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::c("exceptions, plain", "exceptions.cpp", "100 thrown through two frames without cleanups", |seen| {
            repeated(seen, "catcher\n  bare\n    thrower\n", "after\n")
        })
        .with(&["-DPART=0"]),
        Case::c("exceptions", "exceptions.cpp", "100 thrown through three frames, past one untraced", |seen| {
            repeated(seen, "catcher\n  outer\n    middle\n      thrower\n", "after\n")
        })
        .with(&["-DPART=1"])
        .built(ALL_BUILDS),
        Case::c("exceptions, cleanups", "exceptions.cpp", "a traced destructor runs meanwhile", |seen| {
            repeated(seen, "catcher\n  loud\n    middle\n      thrower\n    Loud::~Loud\n      after\n", "after\n")
        })
        .with(&["-DPART=2"]),
        Case::c("exceptions, rethrown", "exceptions.cpp", "caught, calls, thrown on", |seen| {
            rethrown(seen, &["catcher", "rethrower"])
        })
        .with(&["-DPART=3"]),
        Case::c("exceptions, tail calls", "exceptions.cpp", "the same, below a function that is gone", |seen| {
            rethrown(seen, &["catcher", "tail", "rethrower"])
        })
        .with(&["-DPART=4"]),
        Case::c("exceptions, deep", "exceptions.cpp", "100 thrown through 302 frames with cleanups", |seen| {
            let mut story = Story::default();
            for _ in 0..100 {
                story.enter("catcher");
                (0..302).for_each(|_| story.enter("deep"));
                story.leaf("thrower");
                story.exit_all(303);
                story.leaf("after");
            }
            seen.outline(&story.text())
        })
        .with(&["-DPART=5"]),
        Case::c("exceptions, nested", "exceptions.cpp", "a destructor throws and catches another one", |seen| {
            let nested = "    Nested::~Nested\n      middle\n        thrower\n";
            repeated(seen, &format!("catcher\n  nested\n    thrower\n{nested}"), "after\n")
        })
        .with(&["-DPART=6"]),
        Case::c(
            "exceptions in threads",
            "thread_exceptions.cpp",
            "8 threads throw 250 each; one is carried to main",
            |seen| {
                let thread = "catcher\n  middle\n    thrower\n".repeat(500);
                let seen = seen.without("std::");
                seen.outlines(&[(&thread, 8), ("middle\n  thrower\n", 1), ("throw_again\n", 1)])
            },
        ),
        Case::c("exception out of a handler", "handler_throws.cpp", "SIGSEGV's handler throws, 20 times", |seen| {
            seen.outline(&"catcher\n  outer\n    strikes\n      leaf\n      handler\n        leaf\n  leaf\n".repeat(20))
        })
        .with(&["-fnon-call-exceptions"])
        .not_by(&[(Hooks::Sleds, "clang's functions have no exceptions at an instruction that is no call")]),
        Case::c("backtrace", "backtrace.c", "glibc's `backtrace()` 7 frames deep, in two threads", |seen| {
            let once = "outer\n  recurse\n    recurse\n      recurse\n        innermost\n";
            seen.outlines(&[(&once.repeat(11), 1), (&once.repeat(10), 1)])
        })
        .with(&["-rdynamic"])
        // Tail calls are not there for anybody.
        .built(&["-O0", "-O2", "-O2 -mfentry", "-O2 -no-pie"]),
        Case::c("pthread_exit", "thread_exit.c", "50 threads end 7 frames deep, with cleanup handlers", thread_exit)
            .built(ALL_BUILDS),
        Case::c("pthread_cancel", "thread_exit.c", "50 threads are cancelled there", thread_exit).with(&["-DCANCEL"]),
    ]
}

/// A hundred times `caught` and `after`, and the same without an exception.
fn repeated(seen: &Seen, caught: &str, after: &str) -> Result<(), Fault> {
    seen.outline(&format!("{}{caught}", format!("{caught}{after}").repeat(100)))
}

fn rethrown(seen: &Seen, callers: &[&str]) -> Result<(), Fault> {
    let mut story = Story::default();
    for idx in 0..=100 {
        story.enter_all(callers);
        story.enter("middle");
        story.leaf("thrower");
        story.exit();
        if idx < 100 {
            story.leaf("after");
        }
        story.exit_all(callers.len());
        if idx < 100 {
            story.leaf("after");
        }
    }
    seen.outline(&story.text())
}

fn thread_exit(seen: &Seen) -> Result<(), Fault> {
    let mut story = Story::default();
    story.enter_all(&["deep"; 6]);
    story.leaf("end");
    for _ in 0..5 {
        story.exit();
        story.enter("cleanup");
        story.leaf("leaf");
        story.exit();
    }
    let bystander = format!("bystander\n{}", "  leaf\n".repeat(5000));
    seen.outlines(&[(&story.text(), 50), (&bystander, 1)])
}
