//! Rust programs, the binaries of `fixtures/conformance`.

use super::super::{Case, Fault, Seen};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::rust("Rust calls", "calls", "generic, by trait object, by closure, recursive, in two threads", calls),
        Case::rust("panics", "panics", "100 calls, 66 of which panic through three frames; a thread ends so", panics),
        Case::rust(
            "Rust coroutines",
            "coroutines",
            "corosensei: two that take turns, left and resumed amid nested calls",
            coroutines,
        ),
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

/// While a coroutine runs, what is open in it is open in the function that resumed it.
fn coroutines(seen: &Seen) -> Result<(), Fault> {
    /// What a coroutine does until it is left: `None`.
    fn nested(depth: u32, steps: &mut Vec<Option<&str>>) {
        steps.push(Some("nested"));
        if depth > 0 {
            nested(depth - 1, steps);
        }
        steps.extend([Some("pause"), None, Some(""), Some("leaf"), Some(""), Some("")]);
    }
    let mut steps = vec![Some("body")];
    (0..20).for_each(|round| nested(round % 3, &mut steps));
    let mut tree = String::new();
    let mut open: Vec<&str> = Vec::new();
    for run in steps.split(Option::is_none) {
        let mut lines = "resume\n".to_owned();
        for (depth, name) in open.iter().enumerate() {
            lines += &format!("{:indent$}{name}\n", "", indent = 2 * (depth + 1));
        }
        for step in run.iter().flatten() {
            if step.is_empty() {
                open.pop();
            } else {
                open.push(step);
                lines += &format!("{:indent$}{step}\n", "", indent = 2 * open.len());
            }
        }
        // Two of them take turns.
        tree += &lines.repeat(2);
    }
    seen.functions_of("coroutines").outlines(&[(&tree, 1)])
}
