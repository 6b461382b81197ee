//! Folded stacks, and flame graphs of them.

use std::collections::HashMap;
use std::io::{self, Write};

use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{self, Palette};
use rftrace_format::events::DID_NOT_RETURN_NAME;
use rftrace_read::{Error, Result, Shown};

use super::{Sink, Track};

/// The maximum number of different stacks: each takes some hundred bytes of memory.
const MAX_STACKS: usize = 1 << 23;

/// The maximum number of bytes of text, with the outer functions of each stack repeated. A picture is drawn of less, as
/// all of it is in memory then.
const MAX_TEXT_BYTES: u64 = 1 << 30;
const MAX_PICTURE_BYTES: u64 = 128 << 20;

/// The name of the time from the last recorded moment of a function without a return to the end of the trace.
const DID_NOT_RETURN: &str = "(did not return)";

/// The remedy for a limit.
const REMEDY: &str = "choose a part with --from, --to or --tid, or another format (--perfetto)";

/// Sums up the time of each stack as the innermost one, over all threads or for each.
///
/// The memory depends on the number of different stacks, not on the length of the trace. The tree's first node stands
/// for the empty stack.
#[derive(Debug)]
struct Stacks {
    nodes: Vec<Node>,
    children: HashMap<(usize, usize), usize>,
    names: Names,
    tracks: HashMap<Track, State>,
    by_thread: bool,
}

#[derive(Debug, Default)]
struct Node {
    parent: usize,
    name: usize,
    self_ns: u64,
}

/// The state of a track.
#[derive(Debug, Clone, Copy)]
struct State {
    /// The node of an empty stack.
    root: usize,
    node: usize,
    since_ns: u64,
}

/// Names, each once.
#[derive(Debug, Default)]
struct Names {
    idx_of: HashMap<String, usize>,
    all: Vec<String>,
}

impl Names {
    fn idx(&mut self, name: &str) -> usize {
        if let Some(&idx) = self.idx_of.get(name) {
            return idx;
        }
        self.idx_of.insert(name.to_owned(), self.all.len());
        self.all.push(escape(name));
        self.all.len() - 1
    }
}

/// Makes a name fit for a line of `outer;inner count`.
///
/// Semicolons become colons, as in the collapsers of other profilers. Spaces before a number at the end, at the start
/// and after a leading `#` become non-separating ones.
fn escape(name: &str) -> String {
    let mut text = Shown::new(name).text().replace(';', ":");
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if text.rsplit_once(' ').is_some_and(|(_, word)| is_number(word))
        || text.starts_with([' ', '#'])
        || text.starts_with(char::is_whitespace)
        || text.ends_with(char::is_whitespace)
    {
        text = text.replace(char::is_whitespace, "\u{2800}");
    }
    if text.is_empty() { "?".to_owned() } else { text }
}

impl Stacks {
    fn new(by_thread: bool) -> Self {
        Self {
            nodes: vec![Node::default()],
            children: HashMap::new(),
            names: Names::default(),
            tracks: HashMap::new(),
            by_thread,
        }
    }

    fn child(&mut self, parent: usize, name: &str) -> Result<usize> {
        if self.nodes.len() > MAX_STACKS {
            return Err(Error::Export(
                format!("the trace has more than {MAX_STACKS} different stacks; {REMEDY}").into(),
            ));
        }
        let name = self.names.idx(name);
        Ok(*self.children.entry((parent, name)).or_insert_with(|| {
            self.nodes.push(Node { parent, name, self_ns: 0 });
            self.nodes.len() - 1
        }))
    }

    fn name_track(&mut self, track: Track, name: &str) -> Result<()> {
        if self.by_thread {
            let root = self.child(0, &format!("{name} ({})", track.tid))?;
            self.tracks.insert(track, State { root, node: root, since_ns: 0 });
        }
        Ok(())
    }

    /// Refuses a text of [`Stacks::each`] beyond this length.
    fn check_size(&self, most: u64) -> Result<()> {
        let mut total = 0_u64;
        // Nodes come behind their parents.
        let mut lengths: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let outer = lengths.get(node.parent).copied().unwrap_or(0);
            let length = if lengths.is_empty() { 0 } else { outer + self.names.all[node.name].len() as u64 + 1 };
            lengths.push(length);
            total = total.saturating_add(if node.self_ns > 0 { length } else { 0 });
        }
        if total > most {
            let reason =
                format!("the stacks make {} MB of text, but the limit is {} MB; {REMEDY}", total >> 20, most >> 20);
            return Err(Error::Export(reason.into()));
        }
        Ok(())
    }

    /// Counts the time since a track's last change, and returns the track's state.
    fn advance(&mut self, track: Track, time_ns: u64) -> &mut State {
        let state = self.tracks.entry(track).or_insert(State { root: 0, node: 0, since_ns: time_ns });
        if state.node != state.root {
            let node = &mut self.nodes[state.node];
            node.self_ns = node.self_ns.saturating_add(time_ns.saturating_sub(state.since_ns));
        }
        state.since_ns = time_ns;
        state
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        let parent = self.advance(track, time_ns).node;
        let node = self.child(parent, name)?;
        if let Some(state) = self.tracks.get_mut(&track) {
            state.node = node;
        }
        Ok(())
    }

    fn exit(&mut self, track: Track, time_ns: u64) {
        let State { root, node, .. } = *self.advance(track, time_ns);
        let parent = if node == root { root } else { self.nodes[node].parent };
        if let Some(state) = self.tracks.get_mut(&track) {
            state.node = parent;
        }
    }

    /// Ends the innermost function without a return: the time after its last recorded moment goes until the end.
    fn leave_open(&mut self, track: Track, time_ns: u64) -> Result<()> {
        let Some(node) = self.tracks.get(&track).filter(|state| state.node != state.root).map(|state| state.node)
        else {
            return Ok(());
        };
        let open = self.child(node, DID_NOT_RETURN)?;
        self.tracks.entry(track).and_modify(|state| state.node = open);
        self.exit(track, time_ns);
        Ok(())
    }

    /// Calls `write` with each stack of some time and that time, in the order of the names from the outermost on.
    fn each(&self, mut write: impl FnMut(&str, u64) -> io::Result<()>) -> io::Result<()> {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (idx, node) in self.nodes.iter().enumerate().skip(1) {
            children[node.parent].push(idx);
        }
        // Nodes to visit, with the length of the caller's line.
        let mut rest = vec![(0, 0)];
        let mut line = String::new();
        while let Some((idx, len)) = rest.pop() {
            let node = &self.nodes[idx];
            line.truncate(len);
            if idx != 0 {
                if len != 0 {
                    line.push(';');
                }
                line.push_str(&self.names.all[node.name]);
            }
            if node.self_ns > 0 {
                write(&line, node.self_ns)?;
            }
            let next = &mut children[idx];
            next.sort_by(|&a, &b| self.names.all[self.nodes[b].name].cmp(&self.names.all[self.nodes[a].name]));
            rest.extend(next.drain(..).map(|child| (child, line.len())));
        }
        Ok(())
    }
}

/// A writer of folded stacks, or of a flame graph of them. It writes everything at the end.
#[derive(Debug)]
pub struct Folded<W> {
    out: W,
    stacks: Stacks,
    /// The flame graph's; `None` for text.
    title: Option<String>,
}

impl<W: Write> Folded<W> {
    /// Creates a writer of lines `outer;inner nanoseconds`: the time spent in the innermost function of that stack.
    ///
    /// Stacks without time are left out, and so are instants and counters. A function without a return is in
    /// `(did not return)` after its last recorded moment. With `by_thread` threads are the outermost functions.
    pub fn new(out: W, by_thread: bool) -> Self {
        Self { out, stacks: Stacks::new(by_thread), title: None }
    }

    /// Creates a writer of an SVG with the same stacks. Their widths are their times.
    pub fn flame_graph(out: W, by_thread: bool, title: &str) -> Self {
        let title = Shown::new(title).to_string();
        Self { out, stacks: Stacks::new(by_thread), title: Some(title) }
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn draw(&mut self, title: String) -> Result<()> {
        let mut lines = Vec::new();
        let folded = self.stacks.each(|stack, ns| {
            lines.push(format!("{stack} {ns}"));
            Ok(())
        });
        folded.map_err(Error::Write)?;
        if lines.is_empty() {
            let reason = "nothing to draw: the functions of this part of the trace take no time; choose another part";
            return Err(Error::Export(reason.into()));
        }
        // Lines in this mode are taken as they come, last first. Sorted as text, as in the other one, `f` would be torn
        // apart by `f(int)`, which comes before `f;g`.
        let mut options = flamegraph::Options::default();
        options.flame_chart = true;
        lines.reverse();

        options.title = title;
        options.count_name = "ns".to_owned();
        options.deterministic = true;
        options.colors = Palette::Multi(MultiPalette::Rust);
        flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut self.out).map_err(Error::Write)
    }
}

impl<W: Write> Sink for Folded<W> {
    fn process(&mut self, _: u32, _: &str) -> Result<()> {
        Ok(())
    }

    fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        self.stacks.name_track(track, name)
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.stacks.enter(track, time_ns, name)
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.stacks.exit(track, time_ns);
        Ok(())
    }

    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        if name == DID_NOT_RETURN_NAME { self.stacks.leave_open(track, time_ns) } else { Ok(()) }
    }

    fn counter(&mut self, _: u32, _: u64, _: &str, _: f64) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.stacks.check_size(if self.title.is_some() { MAX_PICTURE_BYTES } else { MAX_TEXT_BYTES })?;
        match self.title.take() {
            Some(title) => self.draw(title)?,
            None => self.stacks.each(|stack, ns| writeln!(self.out, "{stack} {ns}")).map_err(Error::Write)?,
        }
        self.out.flush().map_err(Error::Write)
    }
}
