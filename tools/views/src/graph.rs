//! The call graph: all tasks' calls as one tree. Calls of one function from one place share a node.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};
use std::slice;

use rftrace_read::{CallCost, Error, Pattern, Result, ShownNames, Summary, Task, Trace};

use crate::collector::CallSums;
use crate::correction::{Cost, Costs, Share, Unsure, correction};
use crate::duration::Duration;
use crate::keys::Last;
use crate::paths::Paths;
use crate::rows::is_function;
use crate::stack::Step;
use crate::walk::walk;

/// The maximum number of nodes. Recursion with ever new paths could make any number of them.
const MAX_NODES: usize = 1 << 20;

/// A function, called from the one above it.
#[derive(Debug, Default)]
struct Node {
    /// Its name, by its number.
    name: usize,
    total_ns: u64,
    self_ns: u64,
    calls: u64,
    did_not_return: u64,
    unsure: Unsure,
    /// In the order of first calls.
    children: Vec<usize>,
}

/// A call path to the requested function.
#[derive(Debug, Default)]
struct Backtrace {
    calls: u64,
    total_ns: u64,
    /// The overhead of recording in that, until it is subtracted.
    cost: Cost,
    /// The functions around it and itself, outermost first, by the numbers of their names, each with its recorded
    /// address; `None` for a function without a recorded entry.
    frames: Vec<Option<(usize, u64)>>,
}

/// A node of a graph: a function with its caller above it. The first node is the program or the requested function.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct GraphNode<'g> {
    /// The function's name.
    pub name: &'g str,
    /// The time in the function and its calls, in nanoseconds.
    pub total_ns: u64,
    /// The time in the function alone, in nanoseconds.
    pub self_ns: u64,
    /// The number of calls from this place.
    pub calls: u64,
    /// The number of calls without a return: open at the end of the recording, they count until then.
    pub did_not_return: u64,
    pub(crate) unsure: Unsure,
    /// The numbers of the nodes of its callees, in the order of their first calls.
    pub children: &'g [usize],
}

impl GraphNode<'_> {
    /// Returns true for a function, and false for time without a processor and other events.
    pub fn is_function(&self) -> bool {
        is_function(self.name)
    }
}

/// A call path to the requested function.
#[derive(Debug)]
#[non_exhaustive]
pub struct Way<'g> {
    /// The number of calls on this path.
    pub calls: u64,
    /// The total time of these calls in nanoseconds.
    pub total_ns: u64,
    /// The functions on the path, outermost first, with the requested one at the end; `None` for a function without a
    /// recorded entry.
    pub frames: Vec<Option<&'g str>>,
}

/// A column of a graph, by uftrace's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphField {
    /// The time in the function and its calls.
    Total,
    /// The time in the function alone.
    Own,
}

impl GraphField {
    fn title(self) -> &'static str {
        match self {
            Self::Total => "TOTAL TIME",
            Self::Own => " SELF TIME",
        }
    }
}

/// The order of each node's callees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphOrder {
    /// By the first calls, as in uftrace's graph.
    Calls,
    /// By the total time, the longest first.
    Time,
}

/// The calls of a trace as a graph, from the program or from a requested function on.
#[derive(Debug)]
pub struct Graph {
    title: String,
    names: Vec<String>,
    shown_names: ShownNames,
    /// The source lines of these functions, as far as known; `None` without a request for them.
    sources: Option<HashMap<usize, String>>,
    /// The first one is the root.
    nodes: Vec<Node>,
    /// The paths to the requested function, longest time first.
    backtraces: Vec<Backtrace>,
    is_of_function: bool,
    /// Calls beyond the maximum number of nodes.
    left_out: u64,
    summary: Summary,
    cost: Option<CallCost>,
    share: Share,
}

impl Graph {
    /// Makes the graph of all records of `trace`, or loads its [kept](rftrace_read::Kept) sums. With `function`, the
    /// graph has only calls of that function and the calls in them, and the call paths to it; a recursive call is a
    /// part of the outermost one.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn read(trace: &Trace, function: Option<&Pattern>) -> Result<Self> {
        Self::of(trace, function, Paths::kept(trace)?)
    }

    /// Makes the graph of the records of one task.
    ///
    /// # Errors
    ///
    /// The task's `.dat` file cannot be read.
    pub fn read_task(trace: &Trace, task: &Task) -> Result<Self> {
        Self::of_tasks(trace, (task.name(), slice::from_ref(task)), None, None)
    }

    /// Makes the graph from all call paths, or else from the records.
    pub(crate) fn of(trace: &Trace, function: Option<&Pattern>, paths: Option<Paths>) -> Result<Self> {
        let program = trace.tasks().first().map_or("", |task| task.process_name());
        Self::of_tasks(trace, (program, trace.tasks()), function, paths)
    }

    fn of_tasks(
        trace: &Trace,
        (name, tasks): (&str, &[Task]),
        function: Option<&Pattern>,
        paths: Option<Paths>,
    ) -> Result<Self> {
        let title = function.map_or(name, Pattern::text).to_owned();
        let mut reader = Reader {
            trace,
            tasks,
            function,
            names: Names::default(),
            sources: trace.has_sources().then(HashMap::new),
            nodes: vec![Node::default()],
            costs: Vec::new(),
            child: HashMap::new(),
            backtraces: Vec::new(),
            backtrace: HashMap::new(),
            nameless_calls: 0,
            left_out: 0,
        };
        reader.names.number(&title);
        let summary = match paths {
            Some(paths) => {
                reader.take(&paths);
                paths.summary
            }
            None => reader.read()?,
        };
        let Reader { names, sources, mut nodes, costs, mut backtraces, left_out, .. } = reader;
        let share = correct(&mut nodes, &costs, names.names.len());
        for backtrace in &mut backtraces {
            backtrace.total_ns = backtrace.cost.limited(share).off(backtrace.total_ns);
        }
        if function.is_none() {
            nodes[0].calls = 1;
            nodes[0].total_ns = nodes[0].children.iter().map(|&child| nodes[child].total_ns).sum();
        }
        backtraces.sort_by_key(|backtrace| Reverse(backtrace.total_ns));
        let is_of_function = function.is_some();
        let (names, cost, mut shown_names) = (names.names, trace.cost(), trace.shown_names());
        shown_names.add_all(names.iter().map(String::as_str));
        Ok(Self {
            title,
            names,
            shown_names,
            sources,
            nodes,
            backtraces,
            is_of_function,
            left_out,
            summary,
            cost,
            share,
        })
    }

    /// Returns the number of records read, and the flaws in them.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns true if the requested function was not called.
    pub fn is_empty(&self) -> bool {
        self.is_of_function && self.nodes[0].calls == 0
    }

    /// Returns a text about the overhead subtracted for each call, or `None` if times are [not
    /// corrected](Trace::correct_times).
    pub fn correction(&self) -> Option<String> {
        self.cost.map(|cost| correction(Some(cost), self.share))
    }

    /// Returns the name of the program, or the pattern of the function.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns true for the graph of a function, false for that of the program.
    pub fn is_of_function(&self) -> bool {
        self.is_of_function
    }

    /// Returns the displayed name for a function of the graph.
    pub fn shown_name<'g>(&'g self, name: &'g str) -> &'g str {
        self.shown_names.get(name)
    }

    /// Returns the number of nodes. The root has the number 0.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a node by its number.
    ///
    /// # Panics
    ///
    /// If there is no node with this number.
    pub fn node(&self, number: usize) -> GraphNode<'_> {
        let &Node { name, total_ns, self_ns, calls, did_not_return, unsure, ref children } = &self.nodes[number];
        GraphNode { name: &self.names[name], total_ns, self_ns, calls, did_not_return, unsure, children }
    }

    /// Sorts each node's callees. The first order is [`GraphOrder::Calls`].
    pub fn sort(&mut self, order: GraphOrder) {
        let totals: Vec<u64> = self.nodes.iter().map(|node| node.total_ns).collect();
        for node in &mut self.nodes {
            match order {
                // Nodes have their numbers in the order of first calls.
                GraphOrder::Calls => node.children.sort_unstable(),
                GraphOrder::Time => node.children.sort_unstable_by_key(|&child| (Reverse(totals[child]), child)),
            }
        }
    }

    /// Returns the number of call paths to the requested function.
    pub fn n_ways(&self) -> usize {
        self.backtraces.len()
    }

    /// Returns a call path by its number. The paths with the longest total time come first.
    ///
    /// # Panics
    ///
    /// If there is no path with this number.
    pub fn way(&self, number: usize) -> Way<'_> {
        let Backtrace { calls, total_ns, frames, .. } = &self.backtraces[number];
        let frames = frames.iter().map(|frame| frame.map(|(name, _)| self.names[name].as_str())).collect();
        Way { calls: *calls, total_ns: *total_ns, frames }
    }

    /// Returns the number of calls in no node, because there were too many nodes.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Writes the graph in uftrace's form: a line for each node, below its caller.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&self, fields: &[GraphField], out: &mut dyn Write) -> Result<()> {
        self.write_all(fields, out).map_err(Error::Write)
    }

    fn write_all(&self, fields: &[GraphField], out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# Function Call Graph for '{}'", self.title)?;
        if self.is_of_function {
            self.write_backtraces(out)?;
        }
        writeln!(out, "========== FUNCTION CALL GRAPH ==========")?;
        if !fields.is_empty() {
            if let Some(correction) = self.correction() {
                writeln!(out, "# times: {correction}")?;
            }
            let titles: Vec<_> = fields.iter().map(|field| field.title()).collect();
            let source = if self.sources.is_some() { " [SOURCE]" } else { "" };
            writeln!(out, "# {}   FUNCTION{source}", titles.join("  "))?;
        }
        self.write_nodes(fields, out)?;
        if self.left_out > 0 {
            writeln!(out, "# {} calls are left out: they have too many call paths", self.left_out)?;
        }
        Ok(())
    }

    fn write_backtraces(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "=============== BACKTRACE ===============")?;
        for (number, backtrace) in self.backtraces.iter().enumerate() {
            let Backtrace { calls, total_ns, frames, .. } = backtrace;
            writeln!(out, " backtrace #{number}: hit {calls}, time {}", Duration(*total_ns))?;
            for (level, frame) in frames.iter().enumerate() {
                match frame {
                    Some((name, addr)) => {
                        writeln!(out, "   [{level}] {} ({addr:#x})", self.shown_name(&self.names[*name]))?
                    }
                    None => writeln!(out, "   [{level}] (entered before the trace begins)")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_nodes(&self, fields: &[GraphField], out: &mut dyn Write) -> io::Result<()> {
        /// The items still to be written.
        enum Rest {
            /// A node, with the bytes of indentation before it, and whether it stands at a branch.
            Node { node: usize, indent: usize, branch: Branch },
            /// The line between two branches.
            Separator { indent: usize },
        }
        #[derive(Clone, Copy)]
        enum Branch {
            No,
            Inner,
            Last,
        }

        let blank = if fields.is_empty() { String::new() } else { format!("{:1$} :", "", 1 + 12 * fields.len() - 1) };
        let mut indent = String::new();
        let mut rest = vec![Rest::Node { node: 0, indent: 0, branch: Branch::No }];
        while let Some(next) = rest.pop() {
            let (place, bytes, branch) = match next {
                Rest::Node { node, indent, branch } => (node, indent, branch),
                Rest::Separator { indent: bytes } => {
                    indent.truncate(bytes);
                    let gap = if blank.is_empty() { "" } else { " " };
                    writeln!(out, "{blank}{gap}{indent} | ")?;
                    continue;
                }
            };
            indent.truncate(bytes);
            let node = &self.nodes[place];
            self.write_columns(node, place == 0 && !self.is_of_function, fields, out)?;
            let mark = if matches!(branch, Branch::No) { "" } else { " +-" };
            // A pattern is no name.
            let name = if place == 0 { &self.title } else { self.shown_name(&self.names[node.name]) };
            write!(out, "{indent}{mark}({}) {name}", node.calls)?;
            if node.did_not_return > 0 {
                write!(out, "; {} did not return", node.did_not_return)?;
            }
            match self.sources.as_ref().and_then(|sources| sources.get(&node.name)) {
                Some(source) => writeln!(out, " [{source}]")?,
                None => writeln!(out)?,
            }
            indent.push_str(match branch {
                Branch::No => "",
                Branch::Inner => " | ",
                Branch::Last => "   ",
            });
            let indent = indent.len();
            if let [child] = node.children[..] {
                rest.push(Rest::Node { node: child, indent, branch: Branch::No });
                continue;
            }
            for (place, &child) in node.children.iter().enumerate().rev() {
                let is_last = place + 1 == node.children.len();
                if !is_last {
                    rest.push(Rest::Separator { indent });
                }
                let branch = if is_last { Branch::Last } else { Branch::Inner };
                rest.push(Rest::Node { node: child, indent, branch });
            }
        }
        Ok(())
    }

    fn write_columns(
        &self,
        node: &Node,
        is_program: bool,
        fields: &[GraphField],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for field in fields {
            match field {
                GraphField::Total => write!(out, "  {}", Duration(node.total_ns))?,
                GraphField::Own if is_program => write!(out, "  {:10}", "")?,
                GraphField::Own => write!(out, "  {}", Duration(node.self_ns))?,
            }
        }
        if fields.is_empty() { Ok(()) } else { write!(out, " : ") }
    }
}

/// Subtracts the overhead from the times of nodes, within each function's own time. Each node takes as long as its
/// parts.
fn correct(nodes: &mut [Node], costs: &[Costs], n_names: usize) -> Share {
    let mut functions = vec![(0, Cost::default()); n_names];
    for (node, costs) in nodes.iter().zip(costs) {
        let (self_ns, own) = &mut functions[node.name];
        *self_ns = node.self_ns.saturating_add(*self_ns);
        own.add(costs.own);
    }
    let share = Share::of(functions);
    // Called functions stand behind their callers.
    for place in (0..costs.len()).rev() {
        let called_ns = nodes[place].children.iter().map(|&child| nodes[child].total_ns).fold(0, u64::saturating_add);
        let node = &mut nodes[place];
        node.unsure = costs[place].off(share, &mut node.total_ns, &mut node.self_ns);
        node.total_ns = node.total_ns.max(node.self_ns.saturating_add(called_ns));
    }
    share
}

/// Numbers of names.
#[derive(Debug, Default)]
struct Names {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Names {
    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }
}

struct Reader<'t> {
    trace: &'t Trace,
    tasks: &'t [Task],
    function: Option<&'t Pattern>,
    names: Names,
    /// Their source lines, if requested.
    sources: Option<HashMap<usize, String>>,
    nodes: Vec<Node>,
    /// The overhead of recording in their times, if it is subtracted.
    costs: Vec<Costs>,
    /// The node of a callee, by the caller's node and the callee's name.
    child: HashMap<(usize, usize), usize>,
    backtraces: Vec<Backtrace>,
    backtrace: HashMap<Vec<Option<(usize, u64)>>, usize>,
    nameless_calls: u64,
    left_out: u64,
}

/// An open function.
#[derive(Clone, Copy)]
struct Open {
    /// Its name and address, if its entry is among the records.
    function: Option<(usize, u64)>,
    /// Its node, or that of the function around it if it has no own one.
    node: Option<usize>,
    /// True if it has a node of its own.
    is_counted: bool,
    /// The call path, for the requested function.
    backtrace: Option<usize>,
}

impl Reader<'_> {
    /// Reads all records.
    fn read(&mut self) -> Result<Summary> {
        let mut summary = Summary::default();
        for task in self.tasks {
            let mut open = Vec::new();
            let walked = walk(self.trace, task, |step, _| {
                self.apply(task, &mut open, step);
                Ok::<_, Error>(())
            })?;
            walked.add_to(&mut summary);
        }
        summary.nameless_calls = self.nameless_calls;
        Ok(summary)
    }

    /// The same, from all call paths.
    fn take(&mut self, paths: &Paths) {
        // For each way what an open function would have.
        let mut all: Vec<Open> = Vec::with_capacity(paths.n_ways());
        for (path, sums) in paths.all() {
            let of_around = path.around.map(|around| all[around as usize]);
            let around = of_around.map_or(self.function.is_none().then_some(0), |open| open.node);
            let Some(name) = paths.last_name(path) else {
                all.push(Open { function: None, node: around, is_counted: false, backtrace: None });
                continue;
            };
            let called = match path.last {
                Last::Called { addr, .. } => Some(addr),
                Last::Assumed | Last::OffCpu(_) => None,
            };
            let is_asked_for =
                around.is_none() && called.is_some() && self.function.is_some_and(|function| function.matches(name));
            let name = self.names.number(name);
            let function = called.map(|addr| (name, addr));
            let backtrace = is_asked_for.then(|| {
                let mut frames = vec![function];
                let mut next = path.around;
                while let Some(number) = next {
                    frames.push(all[number as usize].function);
                    next = paths.around(number);
                }
                frames.reverse();
                self.backtrace(frames)
            });
            let node = if is_asked_for { Some(0) } else { around.and_then(|around| self.child(around, name)) };
            self.left_out += if around.is_some() && node.is_none() { sums.calls } else { 0 };
            if let Some(node) = node {
                self.add(node, *sums);
            }
            if let Some(backtrace) = backtrace {
                let backtrace = &mut self.backtraces[backtrace];
                backtrace.calls += sums.calls;
                backtrace.total_ns = backtrace.total_ns.saturating_add(sums.total_ns);
                backtrace.cost.add(sums.costs.total);
            }
            all.push(Open { function, node: node.or(around), is_counted: node.is_some(), backtrace });
        }
    }

    fn apply(&mut self, task: &Task, open: &mut Vec<Open>, step: &Step) {
        let around = open.last().map_or(self.function.is_none().then_some(0), |open| open.node);
        match *step {
            // Its name turns out when it ends; the functions it calls take its place.
            Step::Assume { .. } => open.push(Open { function: None, node: around, is_counted: false, backtrace: None }),
            Step::Enter { addr, time_ns } => {
                let name = self.trace.function_name(task, time_ns, addr);
                self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
                let is_asked_for = around.is_none() && self.function.is_some_and(|function| function.matches(&name));
                let name = self.names.number(&name);
                self.note_source(task, time_ns, addr, name);
                let function = Some((name, addr));
                if is_asked_for {
                    let frames = open.iter().map(|open| open.function).chain([function]).collect();
                    let backtrace = Some(self.backtrace(frames));
                    return open.push(Open { function, node: Some(0), is_counted: true, backtrace });
                }
                let own = around.and_then(|around| self.child(around, name));
                let is_counted = own.is_some();
                self.left_out += u64::from(around.is_some() && !is_counted);
                open.push(Open { function, node: own.or(around), is_counted, backtrace: None });
            }
            Step::Leave(ended) => {
                let Some(Open { node, is_counted, backtrace, .. }) = open.pop() else { return };
                let call = CallSums::of(self.trace.cost(), &ended);
                if let Some(node) = node.filter(|_| is_counted) {
                    self.add(node, call);
                }
                if let Some(backtrace) = backtrace {
                    let backtrace = &mut self.backtraces[backtrace];
                    backtrace.calls += 1;
                    backtrace.total_ns = backtrace.total_ns.saturating_add(ended.total_ns);
                    backtrace.cost.add(call.costs.total);
                }
            }
            Step::Event { off_cpu: Some((kind, ns)), .. } => {
                let name = self.names.number(kind.name());
                if let Some(node) = around.and_then(|around| self.child(around, name)) {
                    self.add(node, CallSums::of_off_cpu(ns));
                }
            }
            Step::Event { .. } | Step::StrayExit { .. } | Step::Lost { .. } => {}
        }
    }

    fn note_source(&mut self, task: &Task, time_ns: u64, addr: u64, name: usize) {
        if let Some(sources) = &mut self.sources
            && let Entry::Vacant(vacant) = sources.entry(name)
            && let Some(source) = self.trace.source(task, time_ns, addr)
        {
            vacant.insert(source.to_string());
        }
    }

    fn add(&mut self, node: usize, sums: CallSums) {
        if self.trace.cost().is_some() {
            self.costs.resize(self.nodes.len(), Costs::default());
            self.costs[node].add(sums.costs);
        }
        let node = &mut self.nodes[node];
        node.total_ns = node.total_ns.saturating_add(sums.total_ns);
        node.self_ns = node.self_ns.saturating_add(sums.self_ns);
        node.calls += sums.calls;
        node.did_not_return += sums.did_not_return;
    }

    /// Returns the node of a function with its caller; `None` beyond the maximum.
    fn child(&mut self, around: usize, name: usize) -> Option<usize> {
        if let Some(&child) = self.child.get(&(around, name)) {
            return Some(child);
        }
        let child = self.nodes.len();
        if child >= MAX_NODES {
            return None;
        }
        self.nodes.push(Node { name, ..Node::default() });
        self.nodes[around].children.push(child);
        self.child.insert((around, name), child);
        Some(child)
    }

    /// Returns the number of a path to the requested function. There are at most [`MAX_BACKTRACES`] of them: the last
    /// one stands for all later ones.
    fn backtrace(&mut self, frames: Vec<Option<(usize, u64)>>) -> usize {
        /// Nobody reads more.
        const MAX_BACKTRACES: usize = 4096;

        if let Some(&number) = self.backtrace.get(&frames) {
            return number;
        }
        if self.backtraces.len() >= MAX_BACKTRACES {
            return MAX_BACKTRACES - 1;
        }
        let number = self.backtraces.len();
        self.backtraces.push(Backtrace { frames: frames.clone(), ..Backtrace::default() });
        self.backtrace.insert(frames, number);
        number
    }
}
