//! Makes the index for reading parts of a trace, and stores it for later readers.
//!
//! Not here: the content of the index (`index`), and reading with it (`seeker`).

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rftrace_format::files::INDEX;
use rftrace_format::record::{Kind, Record};

use crate::chosen::{Choice, Chooser, Names};
use crate::error::Result;
use crate::files;
use crate::functions::Functions;
use crate::index::{Index, MAX_ENTERED, MAX_FRAMES, MAX_FUNCTIONS, MAX_PLACES, OpenFrame, Place, TaskIndex, hash};
use crate::kept::{MAX_FILE_BYTES, MIN_BYTES, cache_file, keep, metadata_hash, state};
use crate::parallel::some_at_a_time;
use crate::records::Records;
use crate::task::Task;
use crate::trace::Trace;

/// A block has so many bytes at least: a hundredth of a millisecond.
const MIN_BLOCK_BYTES: u64 = 64 << 10;

impl Trace {
    /// Lets readers skip records before the first [chosen](Trace::choose) time, and blocks of records without a chosen
    /// function.
    ///
    /// This needs the file `index` in the directory. A missing or outdated one is made from all records. If the
    /// directory is read-only, the file goes to the user's cache (`$XDG_CACHE_HOME/rftrace`), or the index serves this
    /// trace object only.
    ///
    /// From now on results of the whole trace, such as the sums of a graph, are kept in the same way
    /// ([`Kept`](crate::Kept)).
    ///
    /// Results do not change. Small tasks have no index, nor tasks with records of the kernel. A trace that
    /// [leaves out](Trace::fold_inlined) calls of inlined functions has none.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn use_index(&mut self) -> Result<()> {
        self.keep_indices();
        let cached = cache_file(self.dir(), INDEX);
        self.use_index_from(MIN_BYTES, MIN_BLOCK_BYTES, cached)
    }

    /// The same with minima of bytes for a task and for a block, and with this file for a read-only directory.
    fn use_index_from(&mut self, min_bytes: u64, min_block_bytes: u64, cached: Option<PathBuf>) -> Result<()> {
        let gains = |choice: &Arc<Choice>| !choice.below.is_empty() || choice.times.start > 0;
        if !self.choice().is_some_and(gains) || self.folds_inlined() {
            return Ok(());
        }
        let metadata = metadata_hash(self.dir());
        let wanted: Vec<Wanted<'_>> = self
            .tasks()
            .iter()
            .filter(|task| self.in_kernel(task).is_empty())
            .filter_map(|task| {
                let file =
                    fs::metadata(self.dat_file(task)).ok().filter(|file| file.is_file() && file.len() >= min_bytes)?;
                let block_bytes = file.len().div_ceil(MAX_PLACES as u64).max(min_block_bytes);
                Some(Wanted { task, stamp: stamp(metadata, &file), block_bytes })
            })
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let own = self.dir().join(INDEX);
        let read = |path: &Path| Index::parse(&files::read(path, MAX_FILE_BYTES).ok()?);
        let has_all = |index: &Index| wanted.iter().all(|wanted| wanted.is_in(index));
        let mut index = read(&own).filter(has_all).or_else(|| read(cached.as_ref()?)).unwrap_or_default();
        if !has_all(&index) {
            let missing: Vec<_> = wanted.iter().filter(|wanted| !wanted.is_in(&index)).collect();
            self.tell_of_index();
            let made = make_all(self, &missing)?;
            index.tasks.extend(made);
            keep(&own, cached.as_deref(), &index.write());
        }
        self.set_index(index);
        Ok(())
    }
}

#[cfg(fuzzing)]
impl Trace {
    /// Makes an index of short blocks, lets `change` modify the part behind its checksum, and uses the readable rest.
    /// Returns whether there is any. For the fuzzer.
    #[doc(hidden)]
    pub fn use_changed_index(&mut self, change: impl FnOnce(&mut Vec<u8>)) -> Result<bool> {
        self.use_index_from(0, 64, None)?;
        let Some(index) = self.index() else { return Ok(false) };
        let whole = index.write();
        let (start, rest) = whole.split_at(16);
        let mut rest = rest[8..].to_vec();
        change(&mut rest);
        let Some(index) = Index::parse(&[start, &hash(&rest).to_le_bytes(), &rest].concat()) else { return Ok(false) };
        self.set_index(index);
        Ok(true)
    }
}

/// A task for the index.
struct Wanted<'t> {
    task: &'t Task,
    stamp: u64,
    block_bytes: u64,
}

impl Wanted<'_> {
    fn is_in(&self, index: &Index) -> bool {
        index.tasks.get(&self.task.tid()).is_some_and(|task| task.stamp == self.stamp)
    }
}

fn stamp(metadata: u64, file: &Metadata) -> u64 {
    let [length, modified] = state(file);
    hash([metadata, length, modified].map(u64::to_le_bytes).as_flattened())
}

/// Makes those of several tasks, some at a time.
fn make_all(trace: &Trace, wanted: &[&Wanted<'_>]) -> Result<HashMap<u32, TaskIndex>> {
    let made = some_at_a_time(wanted.len(), |number| {
        let wanted = wanted[number];
        Ok((wanted.task.tid(), Maker::make(trace, wanted)?))
    });
    Ok(made?.into_iter().collect())
}

/// Goes through the records of a task.
struct Maker {
    index: TaskIndex,
    /// The open functions: now, and at the last place.
    chooser: Chooser,
    open: Vec<OpenFrame>,
    /// The functions by address, while names hold, each with its last block.
    known: HashMap<u64, (u32, usize)>,
    hold: std::ops::Range<u64>,
    /// There are as many of anything as there may be: no more places.
    is_full: bool,
}

impl Maker {
    fn make(trace: &Trace, wanted: &Wanted<'_>) -> Result<TaskIndex> {
        let task = wanted.task;
        let mut records = trace.records(task);
        records.take_all();
        let functions = Functions::new(trace, task);
        let mut maker = Self {
            index: TaskIndex { stamp: wanted.stamp, ..TaskIndex::default() },
            chooser: Chooser::new(Arc::new(Choice::default())),
            open: Vec::new(),
            known: HashMap::new(),
            hold: 0..0,
            is_full: false,
        };
        let mut next_place = 0;
        loop {
            let (flaws, last_ns) = (records.flaws(), records.last_ns());
            let (position, first, record) = records.read_raw()?;
            if position >= next_place
                && !maker.is_full
                && let Some(first) = first
            {
                maker.add_place(position, first, last_ns, flaws);
                next_place = position + wanted.block_bytes;
            }
            let Some(record) = record else { break };
            if !maker.hold.contains(&record.time_ns) {
                maker.hold = trace.names_hold(task, record.time_ns);
                maker.known.clear();
            }
            maker.apply(record, &functions);
        }
        maker.add_end(&records);
        Ok(maker.index)
    }

    fn add_place(&mut self, position: u64, first: [u8; 16], last_ns: u64, flaws: [u64; 4]) {
        let n_shared =
            std::iter::zip(self.chooser.open(), &self.open).take_while(|(now, before)| now == *before).count();
        let n_frames = self.index.frames.len();
        let n_open = self.chooser.open().count();
        if n_frames + n_open - n_shared > MAX_FRAMES || self.index.places.len() >= MAX_PLACES {
            return self.fill_up();
        }
        self.open.truncate(n_shared);
        self.open.extend(self.chooser.open().skip(n_shared));
        self.index.frames.extend_from_slice(&self.open[n_shared..]);
        let n_entered = self.index.entered.len();
        self.index.places.push(Place {
            position,
            first,
            last_ns,
            flaws,
            n_shared,
            frames: n_frames..self.index.frames.len(),
            entered: n_entered..n_entered,
            must_read: false,
            trusts_depth: self.chooser.trusts_depth(),
        });
    }

    /// The end of the file is the last place.
    fn add_end(&mut self, records: &Records<'_>) {
        let (n_frames, n_entered) = (self.index.frames.len(), self.index.entered.len());
        self.index.places.push(Place {
            position: records.position(),
            first: [0; 16],
            last_ns: records.last_ns(),
            flaws: records.flaws(),
            n_shared: 0,
            frames: n_frames..n_frames,
            entered: n_entered..n_entered,
            must_read: true,
            trusts_depth: false,
        });
    }

    fn apply(&mut self, record: Record, functions: &Functions<'_>) {
        self.chooser.apply(record, functions);
        self.chooser.forget_chosen();
        match record.kind {
            Kind::Entry => self.enter(&record),
            Kind::Lost => self.must_read(),
            Kind::Event if functions.is_loss(record.addr) => self.must_read(),
            Kind::Exit | Kind::Event => {}
        }
    }

    fn enter(&mut self, record: &Record) {
        if self.is_full {
            return;
        }
        let block = self.index.places.len();
        let n_functions = self.index.functions.len();
        let (function, last) = self.known.entry(record.addr).or_insert((n_functions as u32, 0));
        if *last == block {
            return;
        }
        if (*function as usize == n_functions && n_functions >= MAX_FUNCTIONS)
            || self.index.entered.len() >= MAX_ENTERED
        {
            return self.fill_up();
        }
        *last = block;
        if *function as usize == n_functions {
            self.index.functions.push((record.addr, record.time_ns));
        }
        self.index.entered.push(*function);
        if let Some(place) = self.index.places.last_mut() {
            place.entered.end = self.index.entered.len();
        }
    }

    /// Makes the current block the last one, with unknown content.
    fn fill_up(&mut self) {
        self.is_full = true;
        self.must_read();
    }

    fn must_read(&mut self) {
        if let Some(place) = self.index.places.last_mut() {
            place.must_read = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use rftrace_pattern::Pattern;

    use super::*;

    /// A trace of one task with functions of all frequencies, recursion, losses, missing exits and, with `has_flaws`,
    /// flaws.
    fn trace(has_flaws: bool) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [0_u64, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        write("info", &info);
        write(
            "task.txt",
            b"SESS timestamp=0.000000001 pid=7 sid=0123456789abcdef exename=\"/p\"\nTASK timestamp=0.000000001 tid=7 pid=7\n",
        );
        write("sid-0123456789abcdef.map", b"00400000-00500000 r-xp 00000000 08:01 1 /p\n");
        let symbols: Vec<_> = (0..40).map(|n| format!("{:016x} T f{n}\n", n * 16)).collect();
        write("p.sym", (symbols.concat() + "0000000000000280 ? __sym_end\n").as_bytes());
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut open, mut time_ns, mut bytes) = (Vec::new(), 1000, Vec::new());
        for number in 0..20_000_u64 {
            time_ns += random(20);
            let enters = open.len() < 12 && (open.is_empty() || random(100) < 51);
            let mut record = |kind, depth: usize, addr| {
                let record = Record { time_ns, kind, has_payload: false, payload_at: 0, depth: depth as u16, addr };
                bytes.extend(record.encode());
            };
            if number % 4001 == 4000 {
                record(Kind::Lost, 0, 3);
            } else if enters {
                // f39 is rare, and f38 in the second half alone.
                let function = match number % 3000 {
                    0 => 39,
                    1500 if number > 10_000 => 38,
                    _ => number * 7 % (3 + number / 600),
                };
                record(Kind::Entry, open.len(), 0x40_0000 + 16 * function);
                open.push(function);
            } else {
                let function = open.pop().unwrap_or(0);
                // One exit is missing at times.
                if number % 997 != 5 {
                    record(Kind::Exit, open.len(), 0x40_0000 + 16 * function);
                }
            }
            if has_flaws && number % 3333 == 3000 {
                bytes.extend([0xff; 24]);
            }
        }
        if has_flaws {
            bytes.extend([5; 9]);
        }
        write("7.dat", &bytes);
        dir
    }

    fn choice(below: &[&str], times: Range<u64>) -> Choice {
        let below = below.iter().map(|text| Pattern::new(text).unwrap()).collect();
        Choice { below, times, ..Choice::default() }
    }

    /// Returns the records of a trace, all flaws, and the number of records read for them.
    fn read(trace: &Trace) -> (Vec<Record>, Vec<String>, u64) {
        let mut records = trace.records(&trace.tasks()[0]);
        let found = records.by_ref().map(Result::unwrap).collect();
        (found, records.warnings().to_string().lines().map(str::to_owned).collect(), records.n_read())
    }

    fn choices() -> Vec<Choice> {
        let mut all: Vec<_> = [&["f39"][..], &["f38"], &["f0"], &["f3*"], &["f38", "f7"], &["nothing"], &[]]
            .iter()
            .flat_map(|below| {
                [0..u64::MAX, 1000..150_000, 100_000..120_000, 0..90_000, 170_000..u64::MAX, 999_999..1_000_000]
                    .map(|times| choice(below, times))
            })
            .collect();
        let (mut depth, mut long, mut not) = (all[2].clone(), all[1].clone(), all[0].clone());
        depth.depth = 2;
        long.min_ns = 60;
        not.not_below = vec![Pattern::new("f1").unwrap()];
        all.extend([depth, long, not]);
        all
    }

    #[test]
    fn what_is_read_is_the_same_with_an_index_and_less_is_read() {
        for has_flaws in [false, true] {
            let dir = trace(has_flaws);
            let (mut n_with, mut n_without) = (0, 0);
            for choice in choices() {
                for min_block_bytes in [64, 5000] {
                    let _ = fs::remove_file(dir.path().join(INDEX));
                    let mut trace = Trace::open(dir.path()).unwrap();
                    trace.choose(choice.clone());
                    let expected = read(&trace);
                    trace.use_index_from(0, min_block_bytes, None).unwrap();
                    let gains = !choice.below.is_empty() || choice.times.start > 0;
                    assert_eq!(trace.index().is_some(), gains);
                    let found = read(&trace);
                    assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{choice:?} {min_block_bytes}");
                    // And by that in the file.
                    let mut again = Trace::open(dir.path()).unwrap();
                    again.choose(choice.clone());
                    again.use_index_from(0, min_block_bytes, None).unwrap();
                    assert_eq!(again.index(), trace.index());
                    (n_with, n_without) = (n_with + found.2, n_without + expected.2);
                }
            }
            assert!(n_with < n_without / 2, "{n_with} of {n_without}");
        }
    }

    #[test]
    fn one_that_does_not_fit_is_made_anew() {
        let dir = trace(false);
        let file = dir.path().join(INDEX);
        let open = || {
            let mut trace = Trace::open(dir.path()).unwrap();
            trace.choose(choice(&["f39"], 0..u64::MAX));
            trace.use_index_from(0, 500, None).unwrap();
            trace
        };
        let expected = read(&open());
        let right = fs::read(&file).unwrap();
        for wrong in [&b""[..], b"nonsense", &right[..right.len() - 1], &[&right[..], b"x"].concat(), &[0xff; 5000]] {
            fs::write(&file, wrong).unwrap();
            assert_eq!(read(&open()), expected);
            assert_eq!(fs::read(&file).unwrap(), right);
        }
        // A link is replaced, and what it names stays.
        fs::remove_file(&file).unwrap();
        fs::write(dir.path().join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(dir.path().join("precious"), &file).unwrap();
        assert_eq!(read(&open()), expected);
        assert_eq!(fs::read(dir.path().join("precious")).unwrap(), b"x");
        assert_eq!(fs::read(&file).unwrap(), right);
        // Of other records.
        let data = fs::read(dir.path().join("7.dat")).unwrap();
        fs::write(dir.path().join("7.dat"), &data[..data.len() / 2]).unwrap();
        let trace = open();
        assert_ne!(fs::read(&file).unwrap(), right);
        assert!(read(&trace).0.len() < expected.0.len());
        // A folder cannot be replaced: then it is for this trace alone.
        fs::write(dir.path().join("7.dat"), &data).unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(read(&open()).0, expected.0);
    }

    #[test]
    fn a_forged_one_is_passed_over_where_the_records_are_others() {
        let dir = trace(false);
        let file = dir.path().join(INDEX);
        let choices = [choice(&["f39"], 0..u64::MAX), choice(&[], 100_000..u64::MAX)];
        for choice in choices {
            let open = || {
                let mut trace = Trace::open(dir.path()).unwrap();
                trace.choose(choice.clone());
                trace
            };
            let expected = read(&open());
            let mut trace = open();
            trace.use_index_from(0, 500, None).unwrap();
            let mut index = Index::parse(&fs::read(&file).unwrap()).unwrap();
            for place in &mut index.tasks.get_mut(&7).unwrap().places {
                place.position += 3;
            }
            fs::write(&file, index.write()).unwrap();
            let mut trace = open();
            trace.use_index_from(0, 500, None).unwrap();
            assert_eq!(trace.index().map(|index| &**index), Some(&index), "it is what is used");
            let found = read(&trace);
            assert_eq!((found.0, found.1), (expected.0, expected.1));

            // Whatever else it says, reading ends.
            let mut trace = open();
            fs::remove_file(&file).unwrap();
            trace.use_index_from(0, 500, None).unwrap();
            let right = fs::read(&file).unwrap();
            for number in 0..150 {
                let mut bytes = right[24..].to_vec();
                let place = number * 7919 % bytes.len();
                bytes[place] ^= 1 << (number % 8);
                let sum = hash(&bytes).to_le_bytes();
                let Some(index) = Index::parse(&[&right[..16], &sum, &bytes].concat()) else { continue };
                trace.set_index(index);
                assert!(read(&trace).0.len() < 50_000);
            }
        }
    }
}
