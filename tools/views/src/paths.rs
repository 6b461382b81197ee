//! The sums of all call paths of a trace, for the graph of any function. For a long trace they are kept.
//!
//! Not here: the graph (`graph`), the search for paths (`ways`), and the storage (`rftrace-read`).

use rftrace_read::{Error, Kept, Result, Summary, Trace, some_at_a_time};
use serde::{Deserialize, Serialize};

use crate::between::sum_up;
use crate::blocking::Limits;
use crate::blocks::Blocks;
use crate::collector::{CallSums, Collector};
use crate::keys::{Key, Keys};
use crate::ways::{MAX_WAYS, Ways};

/// All ways of a trace, in the order of their first calls.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Paths {
    keys: Keys,
    /// The sums of each way.
    sums: Vec<CallSums>,
    pub(crate) summary: Summary,
    /// There were more than there may be: then there are none here.
    is_full: bool,
}

impl Paths {
    /// Returns the paths of a trace from kept results, or of a part of a trace from sums of blocks; `None` where these
    /// are missing, or have too many paths.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub(crate) fn kept(trace: &Trace) -> Result<Option<Self>> {
        let paths = if trace.keeps() {
            Self::whole(trace)?
        } else {
            let blocks = Blocks::of_part::<Ways<'_>>(trace, false, Limits::default())?;
            let has_any = |blocks: &Blocks| trace.tasks().iter().any(|task| blocks.of(task).is_some());
            let Some(blocks) = blocks.filter(has_any) else { return Ok(None) };
            Self::read(trace, Some(&blocks))?
        };
        Ok(Some(paths).filter(|paths| !paths.is_full))
    }

    fn whole(trace: &Trace) -> Result<Self> {
        if let Some(paths) = trace.kept(Kept::Graph).and_then(|bytes| Self::parse(&bytes)) {
            return Ok(paths);
        }
        trace.tell_of_index();
        let paths = Self::read(trace, None)?;
        if let Ok(bytes) = postcard::to_stdvec(&paths) {
            trace.keep(Kept::Graph, &bytes);
        }
        Ok(paths)
    }

    /// Parses kept paths; `None` if they make no sense.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let paths: Self = postcard::from_bytes(bytes).ok()?;
        let n_ways = paths.keys.len();
        (n_ways <= MAX_WAYS && n_ways == paths.sums.len() && paths.keys.makes_sense()).then_some(paths)
    }

    /// Reads all records of `trace`, or only those without sums of blocks.
    pub(crate) fn read(trace: &Trace, blocks: Option<&Blocks>) -> Result<Self> {
        let tasks = trace.tasks();
        let read = some_at_a_time(tasks.len(), |number| {
            let mut ways = Ways::new(trace, false);
            let walked = sum_up(&mut ways, &tasks[number], blocks)?;
            Ok((ways, walked))
        });
        let read = match read {
            Err(Error::Stopped) => return Ok(Self { is_full: true, ..Self::default() }),
            read => read?,
        };
        let mut summary = Summary::default();
        let mut all = Ways::new(trace, false);
        for (ways, walked) in read {
            walked.add_to(&mut summary);
            all.merge(ways);
        }
        if all.is_full {
            return Ok(Self { is_full: true, ..Self::default() });
        }
        summary.nameless_calls = all.nameless_calls;
        Ok(Self { keys: all.keys, sums: all.sums, summary, is_full: false })
    }

    pub(crate) fn n_ways(&self) -> usize {
        self.sums.len()
    }

    /// All of them, each behind the one around it.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &CallSums)> {
        self.keys.all().iter().zip(&self.sums)
    }

    /// The way around one, by its number.
    pub(crate) fn around(&self, way: u32) -> Option<u32> {
        self.keys.all()[way as usize].around
    }

    /// Returns the name of a way's last function; none for a function without a recorded entry.
    pub(crate) fn last_name(&self, way: &Key) -> Option<&str> {
        self.keys.last(way).name()
    }
}

#[cfg(test)]
mod tests {
    use rftrace_read::{Kind, Pattern, Record};

    use super::*;
    use crate::graph::{Graph, GraphField};

    /// A trace with recursion, two addresses of one function, missing exits and entries, waiting, and functions without
    /// names.
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
                    record(Kind::Event, 0, [200_002, 200_007][number as usize / 50 % 2]);
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
            let paths = || Paths::parse(&postcard::to_stdvec(&Paths::read(&trace, None).unwrap()).unwrap());
            assert_eq!(paths(), Some(Paths::read(&trace, None).unwrap()));
            let functions = ["f0", "f[12]", "f*", "<*", "linux:schedule", "linux:schedule (*", "no"];
            for function in std::iter::once(None).chain(functions.map(Some)) {
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
        let bytes = postcard::to_stdvec(&Paths::read(&Trace::open(dir.path()).unwrap(), None).unwrap()).unwrap();
        for length in 0..bytes.len().min(2000) {
            assert_eq!(Paths::parse(&bytes[..length]), None);
        }
        for place in 0..bytes.len().min(5000) {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x55;
            if let Some(paths) = Paths::parse(&bytes) {
                let is_before =
                    |(number, (way, _)): (usize, (&Key, _))| way.around.is_none_or(|around| (around as usize) < number);
                assert!(paths.all().enumerate().all(is_before) && paths.all().count() == paths.n_ways());
                assert!(paths.all().all(|(way, _)| paths.last_name(way).is_none_or(|name| name.len() < 100)));
            }
        }
    }
}
