//! The tests in a trace, by the functions that libtest calls.
//!
//! Not here: leaks of tests (`leaks`).

use std::collections::{BTreeMap, HashSet};

use rftrace_views::Graph;

/// The calls of a test in its thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Test {
    /// Its name as libtest has it: without the crate.
    pub(super) name: String,
    pub(super) calls: u64,
    pub(super) total_ns: u64,
}

/// Returns the tests, the longest first.
pub(super) fn tests(graph: &Graph) -> Vec<Test> {
    let mut found: BTreeMap<&str, Test> = BTreeMap::new();
    // A call within a test is no other test.
    let mut within: HashSet<usize> = HashSet::new();
    for number in 1..graph.n_nodes() {
        // A node has a higher number than its caller.
        let node = graph.node(number);
        let is_within = within.contains(&number);
        let test = test_of(node.name).filter(|_| !is_within);
        let called = test.and_then(|test| Some((test, called(graph, node.children, test)?)));
        if is_within || called.is_some() {
            within.extend(node.children);
        }
        // A closure of a thread that the test starts has the same name, so a filter may leave both in one node.
        let Some((name, function)) = called else { continue };
        let (test, calls) = (found.entry(name).or_default(), graph.node(function).calls);
        test.total_ns = test.total_ns.saturating_add(graph.node(function).total_ns);
        test.calls = test.calls.saturating_add(calls).saturating_add(calls_below(graph, function));
    }
    let named = found.into_iter().map(|(name, test)| {
        let name = name.split_once("::").map_or(name, |(_, name)| name);
        Test { name: name.to_owned(), ..test }
    });
    let mut tests: Vec<Test> = named.collect();
    tests.sort_by_key(|test| std::cmp::Reverse(test.total_ns));
    tests
}

/// The function of the closure that `#[test]` makes for libtest.
fn test_of(closure: &str) -> Option<&str> {
    closure.strip_suffix("::{closure#0}").or_else(|| closure.strip_suffix("::{{closure}}"))
}

/// The node of the function that the closure is in, if the closure calls it.
fn called(graph: &Graph, children: &[usize], function: &str) -> Option<usize> {
    children.iter().copied().find(|&child| graph.node(child).name == function)
}

/// All calls of functions in a node and below.
fn calls_below(graph: &Graph, number: usize) -> u64 {
    let mut calls = 0_u64;
    let mut waiting = vec![number];
    while let Some(number) = waiting.pop() {
        let node = graph.node(number);
        if node.is_function() {
            calls = calls.saturating_add(node.calls);
        }
        waiting.extend(node.children);
    }
    calls
}

#[cfg(test)]
mod tests_of_this {
    use super::*;

    #[test]
    fn closures_of_tests() {
        assert_eq!(test_of("app::tests::small::{closure#0}"), Some("app::tests::small"));
        assert_eq!(test_of("app::tests::small::{{closure}}"), Some("app::tests::small"));
        assert_eq!(test_of("app::tests::small"), None);
    }
}
