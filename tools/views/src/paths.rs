//! All ways on which functions were called, with sums: what a graph of any function is made of. Of a long trace that is kept for the
//! next time.
//!
//! Not here: what a graph is (`graph`), where it is kept (`rftrace-read`).

use std::borrow::Cow;
use std::collections::HashMap;

use rftrace_read::{Error, Functions, Kept, Result, SCHEDULE, Summary, Trace};
use serde::{Deserialize, Serialize};

use crate::correction::Costs;
use crate::stack::Step;
use crate::walk::walk;

/// The most ways. Where recursion takes ever new ones there may be any number of them.
const MAX_PATHS: usize = 1 << 20;

/// All ways of a trace.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Paths {
    pub(crate) names: Vec<String>,
    /// Each behind the one around it, in the order in which they were first gone.
    pub(crate) paths: Vec<Path>,
    pub(crate) summary: Summary,
    /// There were more than there may be: then there are none here.
    is_full: bool,
}

/// A way: a function, called from the last one of another way.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Path {
    /// The way around it; `None` for what nothing is around.
    pub(crate) around: Option<u32>,
    pub(crate) last: Last,
    pub(crate) calls: u64,
    pub(crate) total_ns: u64,
    pub(crate) self_ns: u64,
    /// What recording took of that, if it is subtracted.
    pub(crate) costs: Costs,
}

/// What is at the end of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Last {
    /// A function whose entry is not among the records.
    Assumed,
    /// A function, by the number of its name, and the address that was recorded.
    Called { name: u32, addr: u64 },
    /// Time without a processor.
    Waited,
}

impl Paths {
    /// Those of a trace of which they are kept; `None` where they are not, or there are too many.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub(crate) fn kept(trace: &Trace) -> Result<Option<Self>> {
        if !trace.keeps() {
            return Ok(None);
        }
        let paths = match trace.kept(Kept::Graph).and_then(|bytes| Self::parse(&bytes)) {
            Some(paths) => paths,
            None => {
                trace.tell_of_index();
                let paths = Self::read(trace)?;
                if let Ok(bytes) = postcard::to_stdvec(&paths) {
                    trace.keep(Kept::Graph, &bytes);
                }
                paths
            }
        };
        Ok(Some(paths).filter(|paths| !paths.is_full))
    }

    /// What was kept, if it makes sense.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let paths: Self = postcard::from_bytes(bytes).ok()?;
        let makes_sense = |(number, path): (usize, &Path)| {
            let has_name = match path.last {
                Last::Called { name, .. } => (name as usize) < paths.names.len(),
                Last::Assumed | Last::Waited => true,
            };
            has_name && path.around.is_none_or(|around| (around as usize) < number)
        };
        (paths.paths.len() <= MAX_PATHS && paths.paths.iter().enumerate().all(makes_sense)).then_some(paths)
    }

    /// Reads all records of `trace`.
    pub(crate) fn read(trace: &Trace) -> Result<Self> {
        let mut reader = Reader {
            trace,
            paths: Self::default(),
            numbers: HashMap::new(),
            names: HashMap::new(),
            recent: vec![Default::default(); N_RECENT],
            nameless_calls: 0,
        };
        let mut summary = Summary::default();
        for task in trace.tasks() {
            let mut open = Vec::new();
            let functions = Functions::new(trace, task);
            let walked = walk(trace, task, |step, _| {
                reader.apply(&functions, &mut open, step);
                if reader.paths.is_full { Err(Error::Stopped) } else { Ok(()) }
            });
            match walked {
                Err(Error::Stopped) if reader.paths.is_full => return Ok(Self { is_full: true, ..Self::default() }),
                walked => walked?.add_to(&mut summary),
            }
        }
        summary.nameless_calls = reader.nameless_calls;
        let mut paths = reader.paths;
        paths.summary = summary;
        Ok(paths)
    }
}

struct Reader<'t> {
    trace: &'t Trace,
    paths: Paths,
    numbers: HashMap<(Option<u32>, Last), u32>,
    names: HashMap<String, u32>,
    /// Where names lie that were met of late, and their numbers, each at a place that its address says.
    recent: Vec<((usize, usize), u32)>,
    nameless_calls: u64,
}

/// How many those are.
const N_RECENT: usize = 1024;

impl Reader<'_> {
    fn apply(&mut self, functions: &Functions<'_>, open: &mut Vec<u32>, step: &Step) {
        let around = open.last().copied();
        match *step {
            Step::Assume { .. } => open.push(self.path(around, Last::Assumed)),
            Step::Enter { addr, time_ns } => {
                let name = match functions.name(time_ns, addr) {
                    Cow::Borrowed(known) => self.known_name(known),
                    Cow::Owned(name) => {
                        self.nameless_calls += 1;
                        self.name(&name)
                    }
                };
                open.push(self.path(around, Last::Called { name, addr }));
            }
            Step::Leave(ended) => {
                let Some(path) = open.pop() else { return };
                let costs = Costs::of(self.trace.cost(), &ended);
                self.add(path, [ended.total_ns, ended.self_ns], costs);
            }
            Step::Event { waited_ns: Some(waited_ns), .. } => {
                let path = self.path(around, Last::Waited);
                self.add(path, [waited_ns; 2], Costs::default());
            }
            Step::Event { .. } | Step::StrayExit { .. } | Step::Lost { .. } => {}
        }
    }

    fn add(&mut self, path: u32, [total_ns, self_ns]: [u64; 2], costs: Costs) {
        let Some(path) = self.paths.paths.get_mut(path as usize) else { return };
        path.total_ns = path.total_ns.saturating_add(total_ns);
        path.self_ns = path.self_ns.saturating_add(self_ns);
        path.costs.total.add(costs.total);
        path.costs.own.add(costs.own);
        path.calls += 1;
    }

    /// The number of a name in the trace, which is found without a look at the text if it was met of late.
    fn known_name(&mut self, known: &str) -> u32 {
        let key = (known.as_ptr().addr(), known.len());
        let place = (key.0 ^ key.0 >> 12) % N_RECENT;
        if self.recent[place].0 != key {
            self.recent[place] = (key, self.name(known));
        }
        self.recent[place].1
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.names.get(name) {
            return number;
        }
        // There are no more names than ways.
        let number = self.paths.names.len() as u32;
        self.paths.names.push(name.to_owned());
        self.names.insert(name.to_owned(), number);
        number
    }

    fn path(&mut self, around: Option<u32>, last: Last) -> u32 {
        if let Some(&number) = self.numbers.get(&(around, last)) {
            return number;
        }
        let number = self.paths.paths.len();
        self.paths.is_full |= number >= MAX_PATHS;
        let number = number.min(MAX_PATHS) as u32;
        if !self.paths.is_full {
            let costs = Costs::default();
            self.paths.paths.push(Path { around, last, calls: 0, total_ns: 0, self_ns: 0, costs });
            self.numbers.insert((around, last), number);
        }
        number
    }
}

impl Paths {
    /// What a way's last function is called; none for one whose entry is not among the records.
    pub(crate) fn last_name(&self, path: &Path) -> Option<&str> {
        match path.last {
            Last::Assumed => None,
            Last::Called { name, .. } => Some(&self.names[name as usize]),
            Last::Waited => Some(SCHEDULE),
        }
    }
}

#[cfg(test)]
mod tests {
    use rftrace_read::{Kind, Pattern, Record};

    use super::*;
    use crate::graph::{Graph, GraphField};

    /// A trace with recursion, two addresses of one function, exits and entries that are missing, waiting, and functions without names.
    fn trace(seed: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [0_u64, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        write("info", &info);
        let session = "SESS timestamp=0.000000001 pid=7 sid=0123456789abcdef exename=\"/p\"\n";
        let task = |tid: u32| format!("TASK timestamp=0.000000001 tid={tid} pid=7\n");
        write("task.txt", (session.to_owned() + &task(7) + &task(8)).as_bytes());
        write("clock.txt", b"hook_inside_ps=2000\nhook_outside_ps=1000\n");
        write("sid-0123456789abcdef.map", b"00400000-00500000 r-xp 00000000 08:01 1 /p\n");
        let symbols: Vec<_> = (0..8).map(|n| format!("{:016x} T f{n}\n", n * 16)).collect();
        write("p.sym", (symbols.concat() + "0000000000000080 ? __sym_end\n").as_bytes());
        let mut state = seed | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for tid in [7, 8] {
            let (mut open, mut time_ns, mut bytes) = (Vec::new(), 1000, Vec::new());
            for number in 0..3000_u64 {
                time_ns += random(90);
                let mut record = |kind, depth: usize, addr| {
                    let record = Record { time_ns, kind, has_payload: false, payload_at: 0, depth: depth as u16, addr };
                    if number > 40 {
                        bytes.extend(record.encode());
                    }
                };
                if number % 701 == 700 {
                    record(Kind::Lost, 0, 3);
                } else if number % 50 == 7 {
                    record(Kind::Event, 0, 200_002);
                } else if number % 50 == 8 {
                    record(Kind::Event, 0, 200_001);
                } else if open.len() < 6 && (open.is_empty() || random(100) < 52) {
                    let addr = 0x40_0000 + 16 * random(9) + random(2);
                    record(Kind::Entry, open.len(), addr);
                    open.push(addr);
                } else {
                    let addr = open.pop().unwrap_or(0);
                    if number % 97 != 5 {
                        record(Kind::Exit, open.len(), addr);
                    }
                }
            }
            write(&format!("{tid}.dat"), &bytes);
        }
        dir
    }

    #[test]
    fn graphs_of_all_ways_are_those_of_the_records() {
        let mut n_ways = 0;
        for (seed, is_corrected) in [(3, false), (99, true), (1_234_567, true)] {
            let dir = trace(seed);
            let mut trace = Trace::open(dir.path()).unwrap();
            trace.correct_times(is_corrected);
            assert_eq!(trace.cost().is_some(), is_corrected);
            let paths = || Paths::parse(&postcard::to_stdvec(&Paths::read(&trace).unwrap()).unwrap());
            assert_eq!(paths(), Some(Paths::read(&trace).unwrap()));
            for function in
                [None, Some("f0"), Some("f[12]"), Some("f*"), Some("<*"), Some("linux:schedule"), Some("no")]
            {
                let function = function.map(|text| Pattern::new(text).unwrap());
                let text = |paths| {
                    let graph = Graph::of(&trace, function.as_ref(), paths).unwrap();
                    let mut out = Vec::new();
                    graph.write(&[GraphField::Total, GraphField::Own], &mut out).unwrap();
                    (String::from_utf8(out).unwrap(), graph.summary().clone(), graph.n_ways())
                };
                let found = text(paths());
                assert_eq!(found, text(None), "{function:?}");
                n_ways += found.2;
            }
        }
        assert!(n_ways > 100, "{n_ways}");
    }

    #[test]
    fn what_makes_no_sense_is_none() {
        let dir = trace(5);
        let bytes = postcard::to_stdvec(&Paths::read(&Trace::open(dir.path()).unwrap()).unwrap()).unwrap();
        for length in 0..bytes.len().min(2000) {
            assert_eq!(Paths::parse(&bytes[..length]), None);
        }
        for place in 0..bytes.len().min(5000) {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x55;
            if let Some(paths) = Paths::parse(&bytes) {
                let is_before =
                    |(number, path): (usize, &Path)| path.around.is_none_or(|around| (around as usize) < number);
                assert!(paths.paths.iter().enumerate().all(is_before));
                assert!(paths.paths.iter().all(|path| paths.last_name(path).is_none_or(|name| name.len() < 100)));
            }
        }
    }
}
