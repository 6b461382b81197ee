//! `perf-cpu<N>.dat`: context switches, from the kernel's perf events.
//!
//! A file holds the records of one processor, as `perf_event_open(2)` describes them. Those of context switches have a
//! sample id of process, thread and time behind their header.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::path::Path;

use rftrace_format::events::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};
use rftrace_format::files::File as TraceFile;
use rftrace_format::perf::{self, HEADER_BYTES, Header, SwitchKind, Waking};

use crate::error::{Error, Result};
use crate::files;
use crate::warning::{Warning, Warnings};

/// The maximum number of context switches, or of wakings: a GiB of switches.
const MAX_SWITCHES: usize = 1 << 27;

/// The context switches of all tasks, 8 bytes each.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// By task, in order of time.
    of_task: HashMap<u32, Vec<Switch>>,
    n_switches: usize,
}

/// A moment at which a task got or lost its processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Switch(u64);

impl Switch {
    /// Events by the lowest bits. Of one time, a task loses its processor before it gets another one.
    const EVENTS: [u64; 3] = [SCHED_OUT, SCHED_OUT_PREEMPTED, SCHED_IN];
    const EVENT_BITS: u32 = 2;

    /// `None` for times beyond any clock.
    fn new(perf::Switch { time_ns, kind, .. }: perf::Switch) -> Option<Self> {
        let event = match kind {
            SwitchKind::Out => 0,
            SwitchKind::OutPreempted => 1,
            SwitchKind::In => 2,
        };
        (time_ns.leading_zeros() >= Self::EVENT_BITS).then_some(Self(time_ns << Self::EVENT_BITS | event))
    }

    pub(crate) fn time_ns(self) -> u64 {
        self.0 >> Self::EVENT_BITS
    }

    /// The number of the event.
    pub(crate) fn event(self) -> u64 {
        let idx = self.0 & ((1 << Self::EVENT_BITS) - 1);
        Self::EVENTS.get(idx as usize).copied().unwrap_or(SCHED_IN)
    }
}

impl Switches {
    /// Reads all files in `dir`.
    pub(crate) fn read(dir: &Path, warnings: &mut Warnings) -> Result<Self> {
        let mut switches = Self::default();
        each_file(dir, warnings, |header, body, warnings| {
            switches.add_record(header, body, warnings);
            switches.n_switches
        })?;
        // A task that moved has its records in several files.
        switches.of_task.values_mut().for_each(|task| task.sort_unstable());
        Ok(switches)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of_task.is_empty()
    }

    /// The switches of a task.
    pub(crate) fn of_task(&self, tid: u32) -> &[Switch] {
        self.of_task.get(&tid).map(Vec::as_slice).unwrap_or_default()
    }

    fn add_record(&mut self, header: Header, body: &[u8], warnings: &mut Warnings) {
        match header.kind {
            perf::SWITCH => {
                let switch = perf::Switch::decode(header.flags, body);
                match switch.and_then(|switch| Some((switch.tid, Switch::new(switch)?))) {
                    Some((tid, switch)) => {
                        self.n_switches += 1;
                        self.of_task.entry(tid).or_default().push(switch);
                    }
                    None => warnings.add(Warning::CorruptStretch, 1),
                }
            }
            perf::LOST => warnings.add(Warning::LostSwitch, perf::lost(body)),
            // They are read when somebody asks for them.
            perf::WAKING => warnings.add(Warning::CorruptStretch, Waking::decode(body).is_none().into()),
            // Names, forks and exits of tasks, which `task.txt` has too.
            _ => {}
        }
    }
}

/// Passes on the records of all files. `add` returns the number of records in memory.
pub(crate) fn each_file(
    dir: &Path,
    warnings: &mut Warnings,
    mut add: impl FnMut(Header, &[u8], &mut Warnings) -> usize,
) -> Result<()> {
    for path in files::of_processors(dir, |kind| match kind {
        TraceFile::Perf(processor) => Some(processor),
        _ => None,
    })? {
        let file = BufReader::new(files::open(&path)?);
        let read = each_record(file, warnings, &mut add);
        if read.map_err(|source| Error::Io { path: path.clone(), source })? > MAX_SWITCHES {
            let reason = format!(
                "more than {MAX_SWITCHES} context switches, the most that rftrace takes into memory; remove the files `perf-cpu*.dat` to \
                 see the trace without them"
            );
            return Err(Error::malformed(&path, 0, reason));
        }
    }
    Ok(())
}

/// Passes on the records of a file until there are too many. Returns the number of those in memory.
fn each_record(
    mut file: impl Read,
    warnings: &mut Warnings,
    mut add: impl FnMut(Header, &[u8], &mut Warnings) -> usize,
) -> io::Result<usize> {
    let mut body = Vec::new();
    let mut n_kept = 0;
    while n_kept <= MAX_SWITCHES {
        let mut header = [0; HEADER_BYTES];
        let n_read = read_full(&mut file, &mut header)?;
        if n_read < header.len() {
            warnings.add(Warning::CutRecord, u64::from(n_read > 0));
            break;
        }
        let header = Header::decode(header);
        let Some(n_bytes) = header.body_bytes() else {
            // Where the next record begins is not known.
            warnings.add(Warning::CorruptStretch, 1);
            break;
        };
        body.resize(n_bytes, 0);
        if read_full(&mut file, &mut body)? < n_bytes {
            warnings.add(Warning::CutRecord, 1);
            break;
        }
        n_kept = add(header, &body, warnings);
    }
    Ok(n_kept)
}

/// Fills `buffer` as far as the file goes.
fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut n_read = 0;
    while let Some(rest) = buffer.get_mut(n_read..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(n) => n_read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: u32 = 2;
    const SWITCH: u32 = 14;
    const SWITCH_OUT: u16 = 1 << 13;
    const SWITCH_OUT_PREEMPTED: u16 = 1 << 14;

    fn record(kind: u32, flags: u16, body: &[u64]) -> Vec<u8> {
        let size = (8 + 8 * body.len()) as u16;
        let head = [&kind.to_le_bytes()[..], &flags.to_le_bytes(), &size.to_le_bytes()].concat();
        head.into_iter().chain(body.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    fn switch(tid: u64, time_ns: u64, flags: u16) -> Vec<u8> {
        record(SWITCH, flags, &[tid << 32 | 1, time_ns])
    }

    fn read(bytes: &[u8]) -> (Switches, Warnings) {
        let (mut switches, mut warnings) = (Switches::default(), Warnings::default());
        let add = |header, body: &[u8], warnings: &mut Warnings| {
            switches.add_record(header, body, warnings);
            switches.n_switches
        };
        each_record(bytes, &mut warnings, add).unwrap();
        (switches, warnings)
    }

    #[test]
    fn switches_of_tasks() {
        let bytes = [
            record(3, 0, &[1, 2, 3]),
            switch(7, 100, SWITCH_OUT),
            switch(8, 110, 0),
            switch(7, 150, 0),
            switch(7, 160, SWITCH_OUT | SWITCH_OUT_PREEMPTED),
        ];
        let (switches, warnings) = read(&bytes.concat());
        assert!(warnings.is_empty(), "{warnings}");
        let of_task = |tid| -> Vec<(u64, u64)> {
            switches.of_task(tid).iter().map(|switch| (switch.time_ns(), switch.event())).collect()
        };
        assert_eq!(of_task(7), [(100, SCHED_OUT), (150, SCHED_IN), (160, SCHED_OUT_PREEMPTED)]);
        assert_eq!(of_task(8), [(110, SCHED_IN)]);
        assert_eq!(of_task(9), []);
    }

    #[test]
    fn what_is_wrong_is_counted() {
        let whole = [switch(7, 100, 0), switch(7, 200, 0)].concat();
        for length in 0..whole.len() {
            let (switches, warnings) = read(&whole[..length]);
            assert_eq!(switches.of_task(7).len(), length / 24);
            assert_eq!(warnings.count(Warning::CutRecord), u64::from(length % 24 > 0));
        }
        let (_, warnings) = read(&record(LOST, 0, &[1, 5]));
        assert_eq!(warnings.count(Warning::LostSwitch), 5);
        let waking = |n_words| record(perf::WAKING, 0, &[7, 8 << 32, 100][..n_words]);
        let bad =
            [switch(7, u64::MAX, 0), record(SWITCH, 0, &[1]), waking(2), waking(3), vec![14, 0, 0, 0, 0, 0, 7, 0]];
        let (switches, warnings) = read(&bad.concat());
        assert_eq!((warnings.count(Warning::CorruptStretch), switches.of_task(7).len()), (4, 0));
    }
}
