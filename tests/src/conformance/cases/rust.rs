//! Rust programs, the binaries of `fixtures/conformance`.

use super::super::{Case, Fault, Seen};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::rust("Rust calls", "calls", "generic, by trait object, by closure, recursive, in two threads", calls),
        Case::rust("panics", "panics", "100 calls, 66 of which panic through three frames; a thread ends so", panics),
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
