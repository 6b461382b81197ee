//! Outlines of programs that do more than call and return, told step by step.

use std::collections::VecDeque;
use std::fmt::Write;
use std::mem;

/// What happens on a stack.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Enter(&'static str),
    Exit,
    /// The thread goes on with another coroutine, until that one switches back or ends.
    Resume(usize),
    /// The thread leaves this stack for the one that it was entered from.
    Switch,
}

/// An outline that is being told.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    text: String,
    depth: usize,
}

impl Story {
    pub(super) fn enter(&mut self, name: &str) {
        let _ = writeln!(self.text, "{:indent$}{name}", "", indent = 2 * self.depth);
        self.depth += 1;
    }

    pub(super) fn exit(&mut self) {
        self.depth -= 1;
    }

    /// Functions that call each other.
    pub(super) fn enter_all(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.enter(name));
    }

    /// The innermost functions end, so many of them.
    pub(super) fn exit_all(&mut self, count: usize) {
        self.depth -= count;
    }

    /// A function that calls nothing.
    pub(super) fn leaf(&mut self, name: &str) {
        self.enter(name);
        self.exit();
    }

    /// Goes on with a coroutine until it switches away or ends. What is open on its stack is entered again.
    pub(super) fn resume(&mut self, all: &mut [Coroutine], number: usize) {
        let mut coroutine = mem::take(&mut all[number]);
        coroutine.open.iter().for_each(|name| self.enter(name));
        while let Some(step) = coroutine.rest.pop_front() {
            match step {
                Step::Enter(name) => {
                    coroutine.open.push(name);
                    self.enter(name);
                }
                Step::Exit => {
                    coroutine.open.pop();
                    self.exit();
                }
                Step::Resume(other) => self.resume(all, other),
                Step::Switch => break,
            }
        }
        self.depth -= coroutine.open.len();
        all[number] = coroutine;
    }

    pub(super) fn text(self) -> String {
        self.text
    }
}

/// A stack and what is still to happen on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Coroutine {
    pub(super) open: Vec<&'static str>,
    pub(super) rest: VecDeque<Step>,
}

impl Coroutine {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self { open: Vec::new(), rest: steps.into() }
    }
}
