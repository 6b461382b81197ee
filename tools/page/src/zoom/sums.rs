//! Sums of calls: of the functions, and of the ways on which they were called.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

/// The most nodes of all trees together: where recursion takes ever new ways there may be any number of them.
pub(crate) const MAX_NODES: usize = 1 << 20;

/// There is no such node.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) calls: u64,
    pub(crate) total: u64,
    pub(crate) own: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.total += other.total;
        self.own += other.own;
    }

    /// Without a part of it.
    fn less(self, part: Self) -> Option<Self> {
        let calls = self.calls.checked_sub(part.calls)?;
        Some(Self { calls, total: self.total.checked_sub(part.total)?, own: self.own.checked_sub(part.own)? })
    }
}

/// A function, called from another node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// That node; it is before this one.
    pub(crate) above: u32,
    pub(crate) function: u32,
    pub(crate) sum: Sum,
}

/// The differences of sums; `to` may have more of them.
fn differences(from: &[Sum], to: &[Sum]) -> Option<Vec<Sum>> {
    let from = from.iter().copied().chain(iter::repeat(Sum::default()));
    to.iter().zip(from).map(|(to, from)| to.less(from)).collect()
}

/// The sums of a task until some time, of the calls that began before.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prefix {
    /// Of the first nodes of the task, in their order.
    nodes: Vec<Sum>,
    rows: Vec<Sum>,
    missing: u64,
}

/// Those of one task, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sums {
    /// The first one is around all.
    pub(crate) nodes: Vec<Node>,
    /// Of each function by its number. Calls within a call of the same function do not count again in `total`.
    pub(crate) rows: Vec<Sum>,
    /// How many calls there was no node for.
    pub(crate) missing: u64,
}

impl Sums {
    /// True if nodes are behind those above them, and functions are below `n_functions`.
    pub(crate) fn makes_sense(&self, n_functions: usize) -> bool {
        let is_right = |(idx, node): (usize, &Node)| {
            idx == 0 || ((node.above as usize) < idx && (node.function as usize) < n_functions)
        };
        !self.nodes.is_empty() && self.rows.len() <= n_functions && self.nodes.iter().enumerate().all(is_right)
    }

    /// The sums between two times, where these are the sums of all of the task; `None` if they are of something else. Calls
    /// that began before count for their time alone.
    pub(crate) fn between(&self, from: &Prefix, to: &Prefix) -> Option<Self> {
        let nodes = self.nodes.get(..to.nodes.len()).filter(|nodes| !nodes.is_empty())?;
        let sums = differences(&from.nodes, &to.nodes)?;
        let nodes = nodes.iter().zip(sums).map(|(node, sum)| Node { sum, ..*node }).collect();
        let rows = differences(&from.rows, &to.rows).filter(|rows| rows.len() <= self.rows.len())?;
        Some(Self { nodes, rows, missing: to.missing.checked_sub(from.missing)? })
    }

    /// Of several, each below a node of its own, if `apart` is the number of the first such node. What has neither calls nor time is left out.
    pub(crate) fn together<'s>(all: impl IntoIterator<Item = &'s Self>, apart: Option<u32>) -> Self {
        let n_nodes = AtomicUsize::new(0);
        let mut tree = Tree::new(&n_nodes);
        let (mut rows, mut missing): (Vec<Sum>, _) = (Vec::new(), 0);
        for (number, sums) in (0..).zip(all) {
            let top = apart.map_or(0, |first| tree.below(0, first + number));
            let mut places = vec![NONE; sums.nodes.len()];
            for (idx, node) in sums.nodes.iter().enumerate() {
                let is_empty = node.sum == Sum::default();
                let place = match (idx, places[node.above as usize]) {
                    (0, _) => top,
                    (_, NONE) => NONE,
                    _ if is_empty => NONE,
                    (_, above) => tree.below(above, node.function),
                };
                places[idx] = place;
                match tree.nodes.get_mut(place as usize) {
                    Some(node_of_all) => node_of_all.sum.add(node.sum),
                    None => missing += node.sum.calls,
                }
                if idx == 0 && top != 0 {
                    tree.nodes[0].sum.add(node.sum);
                }
            }
            rows.resize(rows.len().max(sums.rows.len()), Sum::default());
            rows.iter_mut().zip(&sums.rows).for_each(|(row, other)| row.add(*other));
            missing += sums.missing;
        }
        Self { nodes: tree.nodes, rows, missing }
    }
}

/// Nodes, found by what is above them.
struct Tree<'n> {
    nodes: Vec<Node>,
    places: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    /// Of each node the child that was asked for last.
    recent: Vec<(u32, u32)>,
    /// How many nodes there are in all trees.
    n_nodes: &'n AtomicUsize,
}

impl<'n> Tree<'n> {
    fn new(n_nodes: &'n AtomicUsize) -> Self {
        let top = Node { above: 0, function: 0, sum: Sum::default() };
        Self { nodes: vec![top], places: HashMap::default(), recent: vec![(0, NONE)], n_nodes }
    }

    /// The node of a function below another one, or [`NONE`] if there are too many.
    fn below(&mut self, above: u32, function: u32) -> u32 {
        if let Some(&(recent, node)) = self.recent.get(above as usize)
            && recent == function
            && node != NONE
        {
            return node;
        }
        let node = self.find(above, function);
        if let Some(recent) = self.recent.get_mut(above as usize) {
            *recent = (function, node);
        }
        node
    }

    fn find(&mut self, above: u32, function: u32) -> u32 {
        let key = u64::from(above) << 32 | u64::from(function);
        if let Some(&node) = self.places.get(&key) {
            return node;
        }
        if self.n_nodes.fetch_add(1, Ordering::Relaxed) >= MAX_NODES {
            return NONE;
        }
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { above, function, sum: Sum::default() });
        self.recent.push((0, NONE));
        self.places.insert(key, node);
        node
    }
}

/// For keys of two numbers.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Sums up the calls of a task, as they come.
pub(crate) struct Summer<'n> {
    tree: Tree<'n>,
    rows: Vec<Sum>,
    /// Of each function how many of its calls are open.
    n_open: Vec<u32>,
    missing: u64,
    open: Vec<Open>,
}

struct Open {
    node: u32,
    function: u32,
    called: u64,
}

impl<'n> Summer<'n> {
    /// `n_nodes` is how many all that count there have made.
    pub(crate) fn new(n_nodes: &'n AtomicUsize) -> Self {
        Self { tree: Tree::new(n_nodes), rows: Vec::new(), n_open: Vec::new(), missing: 0, open: Vec::new() }
    }

    pub(crate) fn enter(&mut self, function: u32) {
        let node = match self.open.last().map_or(0, |open| open.node) {
            NONE => NONE,
            above => self.tree.below(above, function),
        };
        let row = function as usize;
        if row >= self.rows.len() {
            self.rows.resize(row + 1, Sum::default());
            self.n_open.resize(row + 1, 0);
        }
        self.n_open[row] += 1;
        self.open.push(Open { node, function, called: 0 });
    }

    /// How many nodes there are.
    pub(crate) fn n_nodes(&self) -> usize {
        self.tree.nodes.len()
    }

    /// The sums until now. `lasting` has the time of each open call so far, the outermost first.
    pub(crate) fn prefix(&self, lasting: &[u64]) -> Prefix {
        let nodes = self.tree.nodes.iter().map(|node| node.sum).collect();
        let mut prefix = Prefix { nodes, rows: self.rows.clone(), missing: self.missing };
        prefix.nodes[0].total += lasting.first().unwrap_or(&0);
        let within = lasting.iter().skip(1).chain([&0]);
        let mut seen = HashSet::new();
        for ((open, &total), within) in self.open.iter().zip(lasting).zip(within) {
            let sum = Sum { calls: 1, total, own: total.saturating_sub(open.called + within) };
            match prefix.nodes.get_mut(open.node as usize) {
                Some(node) => node.add(sum),
                None => prefix.missing += 1,
            }
            let total = if seen.insert(open.function) { total } else { 0 };
            prefix.rows[open.function as usize].add(Sum { total, ..sum });
        }
        prefix
    }

    /// The innermost call ends, and took so long. Returns its own time.
    pub(crate) fn exit(&mut self, total: u64) -> u64 {
        self.exit_part(total, 1)
    }

    /// The same of a part of a call, which counts as so many.
    pub(crate) fn exit_part(&mut self, total: u64, calls: u64) -> u64 {
        let Some(open) = self.open.pop() else { return total };
        let own = total.saturating_sub(open.called);
        match self.open.last_mut() {
            Some(caller) => caller.called += total,
            None => self.tree.nodes[0].sum.total += total,
        }
        let sum = Sum { calls, total, own };
        match self.tree.nodes.get_mut(open.node as usize) {
            Some(node) => node.sum.add(sum),
            None => self.missing += calls,
        }
        let row = open.function as usize;
        self.n_open[row] -= 1;
        self.rows[row].add(Sum { total: if self.n_open[row] == 0 { total } else { 0 }, ..sum });
        own
    }

    pub(crate) fn finish(self) -> Sums {
        Sums { nodes: self.tree.nodes, rows: self.rows, missing: self.missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursion_counts_once_and_tasks_can_be_apart() {
        let n_nodes = AtomicUsize::new(0);
        let mut summer = Summer::new(&n_nodes);
        let walk: [(Option<u32>, u64); 8] =
            [(Some(1), 0), (Some(2), 0), (Some(1), 0), (None, 3), (None, 5), (None, 10), (Some(2), 0), (None, 4)];
        for (function, total) in walk {
            match function {
                Some(function) => summer.enter(function),
                None => drop(summer.exit(total)),
            }
        }
        let sums = summer.finish();
        let sum = |calls, total, own| Sum { calls, total, own };
        assert_eq!(sums.rows, [sum(0, 0, 0), sum(2, 10, 8), sum(2, 9, 6)]);
        let nodes =
            |sums: &Sums| sums.nodes.iter().map(|node| (node.above, node.function, node.sum)).collect::<Vec<_>>();
        let below = |top: u32, by: u64| {
            [
                (top, 1, sum(by, 10 * by, 5 * by)),
                (top + 1, 2, sum(by, 5 * by, 2 * by)),
                (top + 2, 1, sum(by, 3 * by, 3 * by)),
                (top, 2, sum(by, 4 * by, 4 * by)),
            ]
        };
        let all = sum(0, 14, 0);
        assert_eq!(nodes(&sums), [&[(0, 0, all)][..], &below(0, 1)].concat());
        assert!(sums.makes_sense(3) && !sums.makes_sense(2));
        let both = Sums::together([&sums, &sums], None);
        assert_eq!(nodes(&both), [&[(0, 0, sum(0, 28, 0))][..], &below(0, 2)].concat());
        assert_eq!(both.rows[1], sum(4, 20, 16));
        let apart = Sums::together([&sums, &sums], Some(3));
        let tops =
            [vec![(0, 0, sum(0, 28, 0)), (0, 3, all)], below(1, 1).to_vec(), vec![(0, 4, all)], below(6, 1).to_vec()];
        assert_eq!(nodes(&apart), tops.concat());
    }

    #[test]
    fn there_are_not_more_ways_than_there_may_be() {
        let n_nodes = AtomicUsize::new(MAX_NODES - 1);
        let mut summer = Summer::new(&n_nodes);
        (1..4).for_each(|function| summer.enter(function));
        for total in 1..4 {
            summer.exit(total);
        }
        let sums = summer.finish();
        assert_eq!((sums.nodes.len(), sums.missing, sums.rows.len()), (2, 2, 4));
        assert_eq!(Sums::together([&sums], None).nodes, sums.nodes);
    }
}
