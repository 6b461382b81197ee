//! `perf-cpu<N>.dat`: context switches, as the kernel's perf events tell of them.
//!
//! A file holds the records of one processor, as `perf_event_open(2)` describes them; those of context switches have a sample
//! id of process, thread and time behind their header.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::events::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};
use crate::warning::{Warning, Warnings};

/// The bit of the feature mask that says that there are such files.
pub(crate) const FEATURE: u64 = 1 << 8;

/// Bytes of a record's header: its type, flags, and size with the header.
pub(crate) const HEADER_BYTES: usize = 8;
/// Type of a record: so many were lost.
pub(crate) const LOST: u32 = 2;
/// Type of a record: a context switch.
pub(crate) const SWITCH: u32 = 14;
/// Flag of a [`SWITCH`]: the task gave up its processor.
const SWITCH_OUT: u16 = 1 << 13;
/// Flag of a [`SWITCH`]: it lost it to another task.
const SWITCH_OUT_PREEMPTED: u16 = 1 << 14;

/// The context switches of all tasks, 8 bytes each.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// By task, in order of time.
    of_task: HashMap<u32, Vec<Switch>>,
}

/// When a task got or lost its processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Switch(u64);

impl Switch {
    /// Events by the lowest bits. Of one time, a task loses its processor before it gets another one.
    const EVENTS: [u64; 3] = [SCHED_OUT, SCHED_OUT_PREEMPTED, SCHED_IN];
    const EVENT_BITS: u32 = 2;

    /// `None` for times that no clock shows.
    fn new(time_ns: u64, flags: u16) -> Option<Self> {
        let event = match (flags & SWITCH_OUT != 0, flags & SWITCH_OUT_PREEMPTED != 0) {
            (false, _) => 2,
            (true, preempted) => u64::from(preempted),
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
        for path in files(dir)? {
            let file = File::open(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
            switches.add(BufReader::new(file), warnings).map_err(|source| Error::Io { path, source })?;
        }
        // A task that moved has its records in several files.
        switches.of_task.values_mut().for_each(|task| task.sort_unstable());
        Ok(switches)
    }

    /// Those of a task.
    pub(crate) fn of_task(&self, tid: u32) -> &[Switch] {
        self.of_task.get(&tid).map(Vec::as_slice).unwrap_or_default()
    }

    fn add(&mut self, mut file: impl Read, warnings: &mut Warnings) -> io::Result<()> {
        let mut body = Vec::new();
        loop {
            let mut header = [0; HEADER_BYTES];
            let n_read = read_full(&mut file, &mut header)?;
            if n_read < header.len() {
                warnings.add(Warning::CutRecord, u64::from(n_read > 0));
                return Ok(());
            }
            let [a, b, c, d, e, f, g, h] = header;
            let (kind, flags, size) =
                (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h]));
            let Some(n_bytes) = usize::from(size).checked_sub(HEADER_BYTES) else {
                // Where the next record begins is not known.
                warnings.add(Warning::CorruptStretch, 1);
                return Ok(());
            };
            body.resize(n_bytes, 0);
            if read_full(&mut file, &mut body)? < n_bytes {
                warnings.add(Warning::CutRecord, 1);
                return Ok(());
            }
            self.add_record(kind, flags, &body, warnings);
        }
    }

    fn add_record(&mut self, kind: u32, flags: u16, body: &[u8], warnings: &mut Warnings) {
        let long = |at: usize| body.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match kind {
            SWITCH => {
                let switch = long(0).zip(long(8)).and_then(|(ids, time)| Some((ids >> 32, Switch::new(time, flags)?)));
                match switch {
                    Some((tid, switch)) => self.of_task.entry(tid as u32).or_default().push(switch),
                    None => warnings.add(Warning::CorruptStretch, 1),
                }
            }
            LOST => warnings.add(Warning::LostSwitch, long(8).unwrap_or(1)),
            // Names, forks and exits of tasks, which `task.txt` has too.
            _ => {}
        }
    }
}

/// The files of a directory, by processor.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let processor = name.strip_prefix("perf-cpu").and_then(|rest| rest.strip_suffix(".dat"));
        if let Some(processor) = processor.and_then(|number| number.parse::<u32>().ok()) {
            found.push((processor, path));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
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

    fn record(kind: u32, flags: u16, body: &[u64]) -> Vec<u8> {
        let size = (HEADER_BYTES + 8 * body.len()) as u16;
        let head = [&kind.to_le_bytes()[..], &flags.to_le_bytes(), &size.to_le_bytes()].concat();
        head.into_iter().chain(body.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    fn switch(tid: u64, time_ns: u64, flags: u16) -> Vec<u8> {
        record(SWITCH, flags, &[tid << 32 | 1, time_ns])
    }

    fn read(bytes: &[u8]) -> (Switches, Warnings) {
        let (mut switches, mut warnings) = (Switches::default(), Warnings::default());
        switches.add(bytes, &mut warnings).unwrap();
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
        let bad = [switch(7, u64::MAX, 0), record(SWITCH, 0, &[1]), vec![14, 0, 0, 0, 0, 0, 7, 0]].concat();
        let (switches, warnings) = read(&bad);
        assert_eq!((warnings.count(Warning::CorruptStretch), switches.of_task(7).len()), (3, 0));
    }
}
