//! More than one process, or module.

use super::super::{Case, Fault, Hooks, Seen};

const LATER: &str = "of a library that is opened later only calls of the tracer are recorded";
const NOT_LATER: &[(Hooks, &str)] =
    &[(Hooks::Branches, LATER), (Hooks::Room, LATER), (Hooks::Sleds, LATER), (Hooks::LibraryCalls, LATER)];

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::c("fork", "fork.c", "amid calls and beside 3 threads; both go on and save", fork).built(&[
            "-O0",
            "-O2",
            "-O2 -mfentry",
            "-O2 -no-pie",
        ]),
        Case::c("vfork", "vfork.c", "the child calls functions on its parent's stack, then execs", vfork),
        Case::c("dlopen", "dlopen.c", "a library is opened while recording, and called", dlopen)
            .with(&["-rdynamic"])
            .with_library("dlopen_library.c")
            .not_by(NOT_LATER),
        Case::c("dlclose", "dlopen.c", "it is closed again; its names may be unknown", dlclose)
            .with(&["-rdynamic", "-DCLOSE"])
            .with_library("dlopen_library.c")
            .not_by(NOT_LATER),
    ]
}

fn fork(seen: &Seen) -> Result<(), Fault> {
    let parent = "leaf\nforks\n  of_parent\n    leaf\n";
    let child = format!("forks\n{}leaf\n", "  of_child\n    leaf\n    leaf\n".repeat(5));
    let (others, rest): (Vec<_>, Vec<_>) =
        seen.tasks.iter().cloned().partition(|task| task.calls.iter().all(|(_, name)| name == "others"));
    if others.len() != 3 || others.iter().flat_map(|task| &task.calls).any(|(depth, _)| *depth > 0) {
        return Err(Fault::new("wrong threads", format!("{} bystanders, or with a wrong depth", others.len())));
    }
    Seen { printed: String::new(), tasks: rest }.outlines(&[(parent, 1), (&child, 1)])
}

/// A tracer may take the child for what it is: a process of its own.
fn vfork(seen: &Seen) -> Result<(), Fault> {
    let child = "becomes_another\n  leaf\n";
    let apart = "outer\n  spawn\n    leaf\n  leaf\n".repeat(5);
    if seen.tasks.len() > 1 {
        return seen.outlines(&[(&apart, 1), (child, 5)]);
    }
    seen.outline(&"outer\n  spawn\n    becomes_another\n      leaf\n    leaf\n  leaf\n".repeat(5))
}

fn dlclose(seen: &Seen) -> Result<(), Fault> {
    let mut seen = seen.clone();
    for (depth, name) in seen.tasks.iter_mut().flat_map(|task| &mut task.calls) {
        if name.starts_with('<') || name.starts_with("sub_") {
            *name = ["", "library_outer", "library_inner"].get(*depth).copied().unwrap_or_default().to_owned();
        }
    }
    dlopen(&seen)
}

fn dlopen(seen: &Seen) -> Result<(), Fault> {
    seen.outline(&"calls_library\n  library_outer\n    library_inner\n    in_program\n".repeat(3))
}
