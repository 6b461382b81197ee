//! A call graph as a list of lines: the unfolded nodes, and the selected line.

use rftrace_read::Pattern;
use rftrace_views::{Graph, GraphOrder};

use crate::list::{Cursor, Move};

/// The calls that a graph is of.
#[derive(Debug, Clone)]
pub(crate) enum Of {
    Program,
    /// A thread, by its place among the trace's.
    Thread(usize),
    Function(String, Pattern),
}

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GraphLine {
    /// A function.
    Node { node: usize, indent: usize },
    /// Behind those: in how many ways the function was called that the graph is of.
    Ways,
    /// One of them.
    Way { way: usize },
    /// A function of it, outermost first.
    Frame { way: usize, level: usize },
}

#[derive(Debug)]
pub(crate) struct GraphView {
    pub(crate) graph: Graph,
    pub(crate) of: Of,
    /// By time at first: what takes longest is what one looks for.
    order_of_callees: GraphOrder,
    pub(crate) lines: Vec<GraphLine>,
    pub(crate) cursor: Cursor,
    parents: Vec<usize>,
    /// All nodes, each behind the one that called it, and the place of each in this.
    order: Vec<usize>,
    places: Vec<usize>,
    unfolded: Vec<bool>,
    unfolded_ways: Vec<bool>,
    shows_ways: bool,
}

impl GraphView {
    pub(crate) fn new(graph: Graph, of: Of) -> Self {
        let n_nodes = graph.n_nodes();
        // At first what takes a twentieth of the time is open: what one looks for at first, and seldom more than a page.
        let least_ns = graph.node(0).total_ns / 20;
        let unfolded = (0..n_nodes).map(|node| node == 0 || graph.node(node).total_ns > least_ns).collect();
        let mut view = Self {
            of,
            order_of_callees: GraphOrder::Time,
            lines: Vec::new(),
            cursor: Cursor::default(),
            parents: vec![0; n_nodes],
            order: Vec::with_capacity(n_nodes),
            places: vec![0; n_nodes],
            unfolded,
            unfolded_ways: vec![false; graph.n_ways()],
            shows_ways: false,
            graph,
        };
        view.sort(GraphOrder::Time);
        view.arrange();
        view
    }

    /// Puts callees into an order.
    fn sort(&mut self, order: GraphOrder) {
        self.order_of_callees = order;
        self.graph.sort(order);
        self.order.clear();
        let mut rest = vec![0];
        while let Some(node) = rest.pop() {
            self.places[node] = self.order.len();
            self.order.push(node);
            for &child in self.graph.node(node).children.iter().rev() {
                self.parents[child] = node;
                rest.push(child);
            }
        }
    }

    /// From the order by time to that of first calls, and back.
    pub(crate) fn sort_next(&mut self, page: usize) {
        let line = self.selected();
        self.sort(match self.order_of_callees {
            GraphOrder::Time => GraphOrder::Calls,
            GraphOrder::Calls => GraphOrder::Time,
        });
        self.arrange_at(line, page);
    }

    /// The function that it is of, if it is of one.
    pub(crate) fn function(&self) -> Option<&str> {
        match &self.of {
            Of::Function(name, _) => Some(name),
            Of::Program | Of::Thread(_) => None,
        }
    }

    /// Makes the lines of what is unfolded.
    fn arrange(&mut self) {
        self.lines.clear();
        let mut rest = vec![(0, 0)];
        while let Some((node, indent)) = rest.pop() {
            self.lines.push(GraphLine::Node { node, indent });
            if self.unfolded[node] {
                let children = self.graph.node(node).children;
                // As in `rftrace graph`: what alone is called stands below.
                let inner = indent + usize::from(children.len() > 1);
                rest.extend(children.iter().rev().map(|&child| (child, inner)));
            }
        }
        let n_ways = self.graph.n_ways();
        if n_ways > 0 {
            self.lines.push(GraphLine::Ways);
        }
        for way in (0..n_ways).filter(|_| self.shows_ways) {
            self.lines.push(GraphLine::Way { way });
            if self.unfolded_ways[way] {
                let n_levels = self.graph.way(way).frames.len();
                self.lines.extend((0..n_levels).map(|level| GraphLine::Frame { way, level }));
            }
        }
    }

    /// Arranges the lines anew; `line` is selected, or what it is folded into.
    fn arrange_at(&mut self, line: Option<GraphLine>, page: usize) {
        self.arrange();
        let found = line.and_then(|line| {
            let is_it = |other: &GraphLine| match (line, *other) {
                (GraphLine::Node { node, .. }, GraphLine::Node { node: other, .. }) => node == other,
                (line, other) => line == other,
            };
            self.lines.iter().position(is_it)
        });
        self.cursor.select(found.unwrap_or(0), self.lines.len(), page);
    }

    /// The line that is selected.
    pub(crate) fn selected(&self) -> Option<GraphLine> {
        self.lines.get(self.cursor.selected).copied()
    }

    /// The function of the selected line, if it has one; the program is none.
    pub(crate) fn selected_function(&self) -> Option<&str> {
        match self.selected()? {
            GraphLine::Node { node: 0, .. } => self.function(),
            GraphLine::Node { node, .. } => Some(self.graph.node(node).name),
            GraphLine::Ways | GraphLine::Way { .. } => None,
            GraphLine::Frame { way, level } => self.graph.way(way).frames[level],
        }
    }

    /// The name of a node.
    pub(crate) fn name(&self, node: usize) -> &str {
        match self.function() {
            Some(name) if node == 0 => name,
            _ => self.graph.node(node).name,
        }
    }

    /// The name of a node as it is shown.
    pub(crate) fn shown_name(&self, node: usize) -> &str {
        self.graph.shown_name(self.name(node))
    }

    /// True if the inner lines of a line are shown; `None` if it has none.
    pub(crate) fn is_unfolded(&self, line: GraphLine) -> Option<bool> {
        match line {
            GraphLine::Node { node, .. } => {
                Some(self.unfolded[node]).filter(|_| !self.graph.node(node).children.is_empty())
            }
            GraphLine::Ways => Some(self.shows_ways),
            GraphLine::Way { way } => Some(self.unfolded_ways[way]),
            GraphLine::Frame { .. } => None,
        }
    }

    pub(crate) fn go(&mut self, to: Move, page: usize) {
        self.cursor.select(self.cursor.target(to, page), self.lines.len(), page);
    }

    /// Folds or unfolds what is selected.
    pub(crate) fn toggle(&mut self, page: usize) {
        let line = self.selected();
        match line {
            Some(GraphLine::Node { node, .. }) => self.unfolded[node] ^= true,
            Some(GraphLine::Ways) => self.shows_ways ^= true,
            Some(GraphLine::Way { way }) => self.unfolded_ways[way] ^= true,
            Some(GraphLine::Frame { .. }) | None => return,
        }
        self.arrange_at(line, page);
    }

    /// Unfolds all.
    pub(crate) fn expand(&mut self, page: usize) {
        let line = self.selected();
        self.unfolded.fill(true);
        self.arrange_at(line, page);
    }

    /// Folds all but the root, and goes there.
    pub(crate) fn collapse(&mut self, page: usize) {
        self.unfolded.fill(false);
        self.unfolded_ways.fill(false);
        self.unfolded[0] = true;
        self.shows_ways = false;
        self.arrange_at(None, page);
    }

    /// Goes to what called the selected function, or to what the line is in.
    pub(crate) fn go_to_parent(&mut self, page: usize) {
        let parent = match self.selected() {
            Some(GraphLine::Node { node, .. }) => GraphLine::Node { node: self.parents[node], indent: 0 },
            Some(GraphLine::Frame { way, .. }) => GraphLine::Way { way },
            Some(GraphLine::Way { .. }) => GraphLine::Ways,
            Some(GraphLine::Ways) | None => return,
        };
        self.arrange_at(Some(parent), page);
    }

    /// Goes to what the selected function called that took longest.
    pub(crate) fn go_to_longest(&mut self, page: usize) {
        let Some(GraphLine::Node { node, .. }) = self.selected() else { return };
        let children = self.graph.node(node).children;
        if let Some(&longest) = children.iter().max_by_key(|&&child| self.graph.node(child).total_ns) {
            self.unfolded[node] = true;
            self.arrange_at(Some(GraphLine::Node { node: longest, indent: 0 }), page);
        }
    }

    /// Selects the next function with a text in its name, or the one before, and unfolds what it is in; whether there is one.
    pub(crate) fn find(&mut self, text: &str, is_forward: bool, page: usize) -> bool {
        let n_nodes = self.order.len();
        let from = match self.selected() {
            Some(GraphLine::Node { node, .. }) => self.places[node],
            _ => 0,
        };
        let node_at = |step: usize| self.order[(from + if is_forward { step } else { n_nodes - step }) % n_nodes];
        let Some(node) = (1..=n_nodes).map(node_at).find(|&node| self.name(node).contains(text)) else { return false };
        let mut around = node;
        while around != 0 {
            around = self.parents[around];
            self.unfolded[around] = true;
        }
        self.arrange_at(Some(GraphLine::Node { node, indent: 0 }), page);
        true
    }

    /// The names of the functions on the way to the selected one and its own, from the program or the graph's function on.
    pub(crate) fn path(&self) -> Option<Vec<String>> {
        let Some(GraphLine::Node { mut node, .. }) = self.selected() else { return None };
        let mut path = Vec::new();
        while node != 0 {
            path.push(self.name(node).to_owned());
            node = self.parents[node];
        }
        path.extend(self.function().map(str::to_owned));
        path.reverse();
        Some(path).filter(|path| !path.is_empty())
    }
}
