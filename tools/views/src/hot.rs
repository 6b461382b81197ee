//! The hot path: the heaviest way through a call graph, from the outermost functions on.
//!
//! Recursion takes no further steps: calls through functions of the path, itself included, count for the last of them.

use std::cmp::Reverse;
use std::collections::HashMap;

use rftrace_read::OffCpu;

use crate::graph::Graph;
use crate::words::tenths;

/// The maximum number of lines.
const MAX_LINES: usize = 10;

/// The maximum number of functions; several can share a line.
const MAX_STEPS: usize = 40;

/// The minimum meaningful difference between two functions, in tenths of a percent of all time.
const LEAST_DIFFERENCE: u64 = 5;

/// The text between the functions of a line.
pub(crate) const CALLS: &str = " > ";

/// A line of the hot path: a function, or a chain. Each function of a chain calls the next one as often as it is called,
/// and takes hardly longer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HotLine<'g> {
    /// From the outermost function on.
    pub(crate) names: Vec<&'g str>,
    /// The [weight](Weight) of the outermost function and its calls, in nanoseconds.
    pub(crate) total_ns: u64,
    /// The number of calls of each, also of recursive ones.
    pub(crate) calls: u64,
    /// The time in the innermost function alone, and the time of its waits if they have a weight, in nanoseconds. With
    /// recursion this includes other functions of the path.
    pub(crate) own_ns: u64,
    pub(crate) waited_ns: u64,
}

/// The times that make a way heavy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Those with a processor: threads that wait for each other take no part.
    Cpu,
    /// All: a program that mostly waits is slow by its waits.
    Total,
}

impl Weight {
    /// Returns the weights of a graph's nodes, in nanoseconds.
    fn of_nodes(self, graph: &Graph) -> Vec<u64> {
        let mut weights: Vec<u64> = (0..graph.n_nodes()).map(|number| graph.node(number).total_ns).collect();
        if self == Self::Total {
            return weights;
        }
        let mut order = vec![0];
        let mut next = 0;
        while let Some(&number) = order.get(next) {
            order.extend(graph.node(number).children);
            next += 1;
        }
        let mut off_cpu_ns = vec![0_u64; weights.len()];
        for &number in order.iter().rev() {
            let node = graph.node(number);
            let below = node.children.iter().map(|&child| off_cpu_ns[child]).fold(0, u64::saturating_add);
            off_cpu_ns[number] = OffCpu::of_name(node.name).map_or(below, |_| node.total_ns);
            weights[number] = node.total_ns.saturating_sub(off_cpu_ns[number]);
        }
        weights
    }
}

/// The heaviest way through a call graph.
#[derive(Debug)]
pub(crate) struct HotPath<'g> {
    /// The weight of all calls, in nanoseconds.
    pub(crate) all_ns: u64,
    /// From the outermost functions on.
    pub(crate) lines: Vec<HotLine<'g>>,
    /// True if more functions follow.
    pub(crate) is_cut: bool,
}

/// A callee of the path.
struct Callee<'g> {
    name: &'g str,
    total_ns: u64,
    calls: u64,
    nodes: Vec<usize>,
}

impl<'g> HotPath<'g> {
    /// Goes from the program to its heaviest callee, and on, until a function is heavier in itself.
    pub(crate) fn of(graph: &'g Graph, weight: Weight) -> Self {
        let weights = weight.of_nodes(graph);
        let all_ns = weights[0];
        let mut steps: Vec<HotLine<'g>> = Vec::new();
        let mut step_of = HashMap::new();
        let mut nodes = vec![0];
        while steps.len() < MAX_STEPS {
            let callees = callees(graph, (weight, &weights), nodes, &mut steps, &step_of);
            let heaviest = callees.into_iter().max_by_key(|callee| (callee.total_ns, Reverse(callee.nodes[0])));
            let in_itself_ns = steps.last().map_or(0, |step| step.own_ns.max(step.waited_ns));
            let Some(next) = heaviest.filter(|next| next.total_ns > 0 && next.total_ns >= in_itself_ns) else { break };
            step_of.insert(next.name, steps.len());
            let Callee { name, total_ns, calls, .. } = next;
            steps.push(HotLine { names: vec![name], total_ns, calls, own_ns: 0, waited_ns: 0 });
            nodes = next.nodes;
        }
        let is_cut = steps.len() == MAX_STEPS;
        let mut lines = folded(steps, all_ns);
        let is_cut = is_cut || lines.len() > MAX_LINES;
        lines.truncate(MAX_LINES);
        Self { all_ns, lines, is_cut }
    }
}

/// The callees of a function's nodes, also through functions of the path. Calls of these, and the nodes' own time, are added to the steps.
fn callees<'g>(
    graph: &'g Graph,
    (weight, weights): (Weight, &[u64]),
    mut nodes: Vec<usize>,
    steps: &mut [HotLine<'g>],
    step_of: &HashMap<&'g str, usize>,
) -> Vec<Callee<'g>> {
    let mut found: Vec<Callee<'g>> = Vec::new();
    let mut place_of = HashMap::new();
    let (mut own_ns, mut waited_ns) = (0_u64, 0_u64);
    while let Some(node) = nodes.pop() {
        let node = graph.node(node);
        own_ns = own_ns.saturating_add(node.self_ns);
        for &child in node.children {
            let called = graph.node(child);
            if let Some(kind) = OffCpu::of_name(called.name) {
                // Another program's time tells nothing of this one.
                let has_weight = kind == OffCpu::Waiting && weight == Weight::Total;
                waited_ns = waited_ns.saturating_add(if has_weight { called.total_ns } else { 0 });
            } else if let Some(&step) = step_of.get(called.name) {
                steps[step].calls += called.calls;
                nodes.push(child);
            } else {
                let place = *place_of.entry(called.name).or_insert_with(|| {
                    found.push(Callee { name: called.name, total_ns: 0, calls: 0, nodes: Vec::new() });
                    found.len() - 1
                });
                let callee = &mut found[place];
                callee.total_ns = callee.total_ns.saturating_add(weights[child]);
                callee.calls += called.calls;
                callee.nodes.push(child);
            }
        }
    }
    if let Some(last) = steps.last_mut() {
        (last.own_ns, last.waited_ns) = (own_ns, waited_ns);
    }
    found
}

/// Joins chains.
fn folded(steps: Vec<HotLine<'_>>, all_ns: u64) -> Vec<HotLine<'_>> {
    let mut lines: Vec<HotLine<'_>> = Vec::new();
    for step in steps {
        let is_new = |line: &HotLine<'_>| {
            let difference_ns = line.total_ns.saturating_sub(step.total_ns);
            line.calls != step.calls || tenths(difference_ns, all_ns) >= LEAST_DIFFERENCE
        };
        match lines.last_mut().filter(|line| !is_new(line)) {
            Some(line) => {
                line.names.extend(step.names);
                (line.own_ns, line.waited_ns) = (step.own_ns, step.waited_ns);
            }
            None => lines.push(step),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::trace;

    /// The lines of the hot path: functions, tenths of a percent, and calls.
    fn lines(threads: &[&str]) -> Vec<(String, u64, u64)> {
        let (_dir, trace) = trace(threads);
        let graph = Graph::read(&trace, None).unwrap();
        let path = HotPath::of(&graph, Weight::Total);
        let line = |line: &HotLine<'_>| (line.names.join(CALLS), tenths(line.total_ns, path.all_ns), line.calls);
        path.lines.iter().map(line).collect()
    }

    fn line(names: &str, tenths: u64, calls: u64) -> (String, u64, u64) {
        (names.to_owned(), tenths, calls)
    }

    #[test]
    fn the_heaviest_way_ends_where_the_time_goes() {
        let found = lines(&["main( 5 a( 20 ) b( 20 c( 30 d( 5 ) ) ) b( 20 ) )"]);
        assert_eq!(found, [line("main", 1000, 1), line("b", 750, 2)], "b takes 40 in itself, and c 35");
        let found = lines(&["main( b( 20 c( 30 d( 5 ) ) ) )"]);
        assert_eq!(found, [line("main > b", 1000, 1), line("c", 636, 1)]);
        assert_eq!(lines(&[]), []);
        assert_eq!(lines(&["main( )"]), [], "no time");
    }

    #[test]
    fn threads_have_one_path() {
        let found = lines(&["main( 10 )", "run( a( 20 ) )", "run( a( 20 ) b( 10 ) )"]);
        assert_eq!(found, [line("run", 833, 2), line("a", 666, 2)]);
    }

    #[test]
    fn recursion_is_one_step() {
        let found = lines(&["main( fib( 10 fib( 10 fib( 10 ) leaf( 5 ) ) fib( 10 leaf( 45 ) ) ) )"]);
        assert_eq!(found, [line("main", 1000, 1), line("fib", 1000, 4), line("leaf", 555, 2)]);
        // Two functions that call each other.
        let found = lines(&["main( even( odd( even( odd( 1 leaf( 99 ) ) ) ) ) )"]);
        assert_eq!(found, [line("main", 1000, 1), line("even > odd", 1000, 2), line("leaf", 990, 1)]);
    }

    #[test]
    fn waiting_ends_the_path_like_own_time() {
        let (_dir, trace) = trace(&["main( poll( 5 w90 check( 5 ) ) )"]);
        let graph = Graph::read(&trace, None).unwrap();
        let path = HotPath::of(&graph, Weight::Total);
        assert_eq!(path.lines.len(), 1);
        let line = &path.lines[0];
        assert_eq!((&line.names[..], line.own_ns, line.waited_ns), (&["main", "poll"][..], 5, 90));
    }

    #[test]
    fn by_cpu_a_thread_that_waits_for_others_is_light() {
        let (_dir, trace) = trace(&["main( 5 join( 5 w90 ) )", "run( work( 60 ) w20 )"]);
        let graph = Graph::read(&trace, None).unwrap();
        let found = |weight| {
            let path = HotPath::of(&graph, weight);
            let last = path.lines.last().unwrap();
            (path.all_ns, *last.names.last().unwrap(), last.total_ns, last.waited_ns)
        };
        assert_eq!(found(Weight::Total), (180, "join", 95, 90));
        assert_eq!(found(Weight::Cpu), (70, "work", 60, 0));
    }

    #[test]
    fn a_chain_takes_one_line_and_a_long_path_is_cut() {
        let chain = |n: usize, inner: &str| {
            let names = (0..n).map(|n| format!("f{n}( ")).collect::<String>();
            format!("{names}{inner}{}", " )".repeat(n))
        };
        let found = lines(&[&chain(30, "10")]);
        assert_eq!((found.len(), found[0].0.matches(CALLS).count()), (1, 29));
        let cut = |threads: &[&str]| {
            let (_dir, trace) = trace(threads);
            let graph = Graph::read(&trace, None).unwrap();
            let path = HotPath::of(&graph, Weight::Total);
            (path.lines.len(), path.is_cut)
        };
        assert_eq!(cut(&[&chain(MAX_STEPS - 1, "10")]), (1, false));
        assert_eq!(cut(&[&chain(MAX_STEPS + 1, "10")]), (1, true));
        // Each takes 5 ns in itself.
        let steps = |n| (0..n).map(|n| format!("f{n}( 5 ")).collect::<String>() + "100" + &" )".repeat(n);
        assert_eq!(cut(&[&steps(MAX_LINES)]), (MAX_LINES, false));
        assert_eq!(cut(&[&steps(MAX_LINES + 1)]), (MAX_LINES, true));
    }
}
