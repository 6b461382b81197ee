//! Rust programs, the binaries of `fixtures/conformance`.

use super::super::{Case, Fault, Hooks, Seen};
use super::story::{Coroutine, Step, Story};

const RESUMED: &str = "without frame pointers, what has resumed a coroutine is shown as left and entered again";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::rust("Rust calls", "calls", "generic, by trait object, by closure, recursive, in two threads", calls),
        Case::rust("panics", "panics", "100 calls, 66 of which panic through three frames; a thread ends so", panics),
        Case::rust(
            "Rust coroutines",
            "coroutines",
            "corosensei: two that take turns, left and resumed amid nested calls",
            coroutines,
        )
        .not_by(&[(Hooks::Branches, RESUMED), (Hooks::Room, RESUMED), (Hooks::LibraryCalls, RESUMED)]),
    ]
}

fn calls(seen: &Seen) -> Result<(), Fault> {
    let generic = "  generic\n    square\n".repeat(2);
    let fib = "  fib\n    fib\n      fib\n      fib\n    fib\n";
    let work = format!("work\n{generic}  dynamic\n    square\n  apply\n    square\n{fib}");
    seen.functions_of("calls").outlines(&[(&work, 2)])
}

fn panics(seen: &Seen) -> Result<(), Fault> {
    let once = "catcher\n  outer\n    middle\n      thrower\nafter\n";
    seen.functions_of("panics").outlines(&[(&once.repeat(100), 1), ("outer\n  middle\n    thrower\n", 1)])
}

/// Two coroutines that take turns.
fn coroutines(seen: &Seen) -> Result<(), Fault> {
    fn nested(depth: u32, steps: &mut Vec<Step>) {
        steps.push(Step::Enter("nested"));
        if depth > 0 {
            nested(depth - 1, steps);
        }
        steps.extend([Step::Enter("pause"), Step::Switch, Step::Exit, Step::Enter("leaf"), Step::Exit, Step::Exit]);
    }
    let mut steps = vec![Step::Enter("body")];
    (0..20).for_each(|round| nested(round % 3, &mut steps));
    let n_turns = 1 + steps.iter().filter(|step| matches!(step, Step::Switch)).count();
    steps.push(Step::Exit);
    let (mut story, mut coroutine) = (Story::default(), [Coroutine::new(steps)]);
    (0..n_turns).for_each(|_| story.resume(&mut coroutine, 0));
    let outlines = story.outlines();
    seen.functions_of("coroutines").outlines(&[(&outlines[1], 2), (&"resume\n".repeat(2 * n_turns), 1)])
}
