//! Outlines of programs that do more than call and return, told step by step.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::mem;

/// A step on a stack.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Enter(&'static str),
    Exit,
    /// The thread goes on with another coroutine, until that one switches back or ends.
    Resume(usize),
    /// The thread leaves this stack for the one that it was entered from.
    Switch,
}

/// The actions of a thread, told one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    told: Vec<Told>,
    depth: usize,
    n_coroutines: usize,
}

#[derive(Clone, Debug)]
enum Told {
    Call {
        depth: usize,
        name: String,
    },
    /// A coroutine ran; the number tells it from others.
    Run {
        coroutine: usize,
        depth: usize,
        told: Vec<Told>,
    },
}

impl Story {
    pub(super) fn enter(&mut self, name: &str) {
        self.told.push(Told::Call { depth: self.depth, name: name.to_owned() });
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

    /// Goes on with a coroutine until it switches away or ends.
    pub(super) fn resume(&mut self, all: &mut [Coroutine], number: usize) {
        let mut coroutine = mem::take(&mut all[number]);
        if coroutine.number.is_none() {
            self.n_coroutines += 1;
        }
        let number_in_story = *coroutine.number.get_or_insert(self.n_coroutines);
        if coroutine.rest.is_empty() {
            all[number] = coroutine;
            return;
        }
        let outer = mem::take(&mut self.told);
        let depth = mem::replace(&mut self.depth, coroutine.depth);
        while let Some(step) = coroutine.rest.pop_front() {
            match step {
                Step::Enter(name) => self.enter(name),
                Step::Exit => self.exit(),
                Step::Resume(other) => self.resume(all, other),
                Step::Switch => break,
            }
        }
        let told = mem::replace(&mut self.told, outer);
        coroutine.depth = mem::replace(&mut self.depth, depth);
        self.told.push(Told::Run { coroutine: number_in_story, depth, told });
        all[number] = coroutine;
    }

    /// The outline, where no coroutine was resumed.
    pub(super) fn text(self) -> String {
        let [text]: [String; 1] = self.outlines().try_into().expect("nothing was resumed");
        text
    }

    /// The outline of the thread, and of each stack that was left and resumed. One that is not alive before another one is gone
    /// follows it.
    pub(super) fn outlines(self) -> Vec<String> {
        let (mut lives, mut now) = (BTreeMap::new(), 0);
        measure(&self.told, &mut lives, &mut now);
        let mut lives: Vec<(usize, Life)> = lives.into_iter().filter(|(_, life)| life.n_runs > 1).collect();
        lives.sort_by_key(|(_, life)| life.began);
        // The number of each one's outline; behind that of the thread.
        let mut places = BTreeMap::new();
        let mut free_from: Vec<usize> = Vec::new();
        for (coroutine, life) in lives {
            let lanes = free_from.iter().enumerate().filter(|(_, from)| **from <= life.began);
            let lane = lanes.min_by_key(|(_, from)| **from).map(|(lane, _)| lane);
            let lane = lane.unwrap_or_else(|| {
                free_from.push(0);
                free_from.len() - 1
            });
            free_from[lane] = life.ended;
            places.insert(coroutine, lane + 1);
        }
        let mut outlines = vec![String::new(); 1 + free_from.len()];
        write(&self.told, (0, 0), &places, &mut outlines);
        outlines
    }
}

/// When a coroutine runs, in calls and switches.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    began: usize,
    ended: usize,
    n_runs: usize,
}

fn measure(told: &[Told], lives: &mut BTreeMap<usize, Life>, now: &mut usize) {
    for told in told {
        *now += 1;
        if let Told::Run { coroutine, told, .. } = told {
            let life = lives.entry(*coroutine).or_insert(Life { began: *now, ..Life::default() });
            life.n_runs += 1;
            measure(told, lives, now);
            *now += 1;
            if let Some(life) = lives.get_mut(coroutine) {
                life.ended = *now;
            }
        }
    }
}

/// Writes to the outline with this number, at least so deep.
fn write(told: &[Told], (place, base): (usize, usize), places: &BTreeMap<usize, usize>, outlines: &mut [String]) {
    for told in told {
        match told {
            Told::Call { depth, name } => {
                let _ = writeln!(outlines[place], "{:indent$}{name}", "", indent = 2 * (base + depth));
            }
            Told::Run { coroutine, depth, told } => {
                let to = places.get(coroutine).map_or((place, base + depth), |&own| (own, 0));
                write(told, to, places, outlines);
            }
        }
    }
}

/// A stack and what is still to happen on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Coroutine {
    number: Option<usize>,
    /// Open functions.
    depth: usize,
    rest: VecDeque<Step>,
}

impl Coroutine {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self { rest: steps.into(), ..Self::default() }
    }
}
