//! All cases, by what they are about.

mod calls;
mod jumps;
mod processes;
mod rust;
mod stacks;
mod story;
mod threads;
mod unwinding;

use super::Case;

/// Cases that are about one thing.
#[derive(Debug)]
pub struct Group {
    /// The subject of its cases.
    pub name: &'static str,
    /// Its cases.
    pub cases: Vec<Case>,
}

/// All cases.
#[must_use]
pub fn all() -> Vec<Group> {
    vec![
        Group { name: "calls", cases: calls::cases() },
        Group { name: "unwinding", cases: unwinding::cases() },
        Group { name: "jumps and signals", cases: jumps::cases() },
        Group { name: "stacks", cases: stacks::cases() },
        Group { name: "threads", cases: threads::cases() },
        Group { name: "processes and modules", cases: processes::cases() },
        Group { name: "Rust", cases: rust::cases() },
    ]
}
