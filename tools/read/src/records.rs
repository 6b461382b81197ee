//! The records of one task, read from its `<tid>.dat` piece by piece, with its context switches and its functions in
//! the kernel.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::sync::Arc;

use rftrace_format::events::{DID_NOT_RETURN, SCHED_IN};
use rftrace_format::items::read_payload;
use rftrace_format::record::{Kind, RECORD_BYTES, Record};
use rftrace_format::values::{MAX_PAYLOAD, ValueSpec};
use serde::{Deserialize, Serialize};

use crate::chosen::{Chooser, Names};
use crate::error::{Error, Result};
use crate::functions::Functions;
use crate::index::N_FLAWS;
use crate::inlined::Folding;
use crate::kernel::InKernel;
use crate::reading::Reading;
use crate::seeker::Seeker;
use crate::switches::Switch;
use crate::task::Task;
use crate::trace::Trace;
use crate::warning::{Warning, Warnings};
use crate::window::Window;

/// Records and payloads are multiples of this.
const UNIT: usize = 8;

/// The name of the event for records overwritten by newer ones.
pub const OVERWRITTEN: &str = "rftrace:overwritten_records";

/// The largest plausible number of lost records.
const MAX_LOST: u64 = u32::MAX as u64;

/// The possible flaws of a file of records.
const FLAWS: [Warning; N_FLAWS] =
    [Warning::CutRecord, Warning::CorruptStretch, Warning::TimeBackwards, Warning::PayloadSkipped];

/// An iterator over the records of one task, in order of time.
///
/// - A record with an earlier time than its predecessor gets the predecessor's time.
/// - Values of calls are skipped; [`Trace::values`] reads them. The lengths of other payloads are unknown, so the
///   reader searches for the next record: it has the magic number, is not earlier, and names an address in a module or
///   a known event.
/// - Invalid bytes are skipped in the same way.
/// - Context switches of `perf-cpu<N>.dat` come as events at their times, with depth 0. Those before the first record
///   and after the last one are left out.
/// - Functions of the task in the kernel (`kernel-cpu<N>.dat`) come at their times, below the innermost open function.
/// - Calls of inlined functions are left out if the trace [folds](Trace::fold_inlined) them, and so is everything
///   outside the [choice](Trace::choose).
///
/// A task whose file is missing has no records. No file stays open, so a trace can have more tasks than a process may
/// have open files. A clone continues at the same record; it reads the buffered part again.
#[derive(Debug, Clone)]
pub struct Records<'t> {
    trace: &'t Trace,
    task: &'t Task,
    file: Window,
    last_ns: u64,
    /// The context switches left, and the next record of the file, read in advance to compare their times.
    switches: &'t [Switch],
    kernel: InKernel<'t>,
    head: Option<Record>,
    /// The time of the record returned last.
    passed_ns: u64,
    folding: Option<Folding>,
    chooser: Option<Chooser>,
    functions: Functions<'t>,
    /// Skips records outside the choice.
    seeker: Option<Seeker>,
    warnings: Warnings,
    n_read: u64,
}

/// A place in a task's records for a restart of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The number of bytes of the file before it.
    pub position: u64,
    /// The time of the previous record, in nanoseconds of the trace's clock; 0 at the beginning.
    pub last_ns: u64,
}

impl Trace {
    /// Returns the records of one of the trace's tasks, in order of time.
    pub fn records<'t>(&'t self, task: &'t Task) -> Records<'t> {
        self.records_among(task, 1)
    }

    /// Returns the records of a task for a reader of `n_tasks` tasks at the same time. It takes less memory for each.
    pub fn records_among<'t>(&'t self, task: &'t Task, n_tasks: usize) -> Records<'t> {
        Records::new(self, task, n_tasks)
    }

    /// Returns the time of the first record in nanoseconds, regardless of choices; `None` without records.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn start_ns(&self) -> Result<Option<u64>> {
        let mut start_ns = None;
        for task in self.tasks() {
            let mut records = self.records(task);
            records.take_all();
            let first = records.next().transpose()?.map(|record| record.time_ns);
            start_ns = start_ns.into_iter().chain(first).min();
        }
        Ok(start_ns)
    }

    /// Returns the exits of a task's functions without a return, outermost first. It reads only the end of the task's
    /// file.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn did_not_return(&self, task: &Task) -> Result<Vec<Record>> {
        /// Each has an event before its exit.
        const PAIR: usize = 2 * RECORD_BYTES;
        const MOST_AT_ONCE: usize = 1024;
        const MOST: usize = 1 << 19;

        let mut file = Window::new(self.dat_file(task), 1);
        let mut end = fs::metadata(self.dat_file(task)).map_or(0, |file| file.len());
        let mut found = Vec::new();
        while end >= PAIR as u64 && found.len() < MOST {
            let n_bytes = (end / PAIR as u64).min(MOST_AT_ONCE as u64) as usize * PAIR;
            end -= n_bytes as u64;
            file.seek(end);
            file.fill(n_bytes)?;
            let (pairs, _) = file.rest().get(..n_bytes).unwrap_or_default().as_chunks::<PAIR>();
            for pair in pairs.iter().rev() {
                let (records, _) = pair.as_chunks();
                let [Some(event), Some(exit)] = [0, 1].map(|place| Record::decode(&records[place])) else {
                    return Ok(found);
                };
                if event.kind != Kind::Event || event.addr != DID_NOT_RETURN || exit.kind != Kind::Exit {
                    return Ok(found);
                }
                found.push(exit);
            }
        }
        Ok(found)
    }

    /// Returns the approximate number of bytes of records in the [chosen](Self::chosen_times) times. It assumes that
    /// the records of each task are evenly spread over time.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn chosen_bytes(&self) -> Result<u64> {
        let times = self.chosen_times().unwrap_or(0..u64::MAX);
        self.tasks().iter().map(|task| self.bytes_between(task, times.clone())).sum()
    }

    /// Returns the same for one task and any times.
    ///
    /// # Errors
    ///
    /// Its `.dat` file cannot be read.
    pub fn bytes_between(&self, task: &Task, times: Range<u64>) -> Result<u64> {
        let mut records = self.records(task);
        records.take_all();
        let Some(first) = records.next().transpose()? else { return Ok(0) };
        let length = fs::metadata(self.dat_file(task)).map_or(0, |file| file.len());
        records.file.seek(length.saturating_sub(RECORD_BYTES as u64));
        records.file.fill(RECORD_BYTES)?;
        // A file that ends with a value does not tell its last time: then all of it counts.
        let last = records.file.rest().first_chunk().and_then(Record::decode);
        let span_ns = last.and_then(|last| last.time_ns.checked_sub(first.time_ns)).filter(|&span_ns| span_ns > 0);
        let Some(span_ns) = span_ns else { return Ok(length) };
        let end_ns = times.end.min(first.time_ns + span_ns);
        let part_ns = end_ns.saturating_sub(times.start.max(first.time_ns));
        Ok((u128::from(length) * u128::from(part_ns) / u128::from(span_ns)) as u64)
    }
}

impl<'t> Records<'t> {
    fn new(trace: &'t Trace, task: &'t Task, n_tasks: usize) -> Self {
        let path = trace.dat_file(task);
        let switches = trace.switches(task);
        let functions = Functions::among(trace, task, n_tasks);
        let has_index = trace.in_kernel(task).is_empty() && !trace.folds_inlined();
        let seeker = trace.index().zip(trace.choice()).filter(|_| has_index);
        let seeker = seeker.and_then(|(index, choice)| Seeker::new(index, task.tid(), choice, &functions));
        Self {
            trace,
            task,
            file: Window::new(path, n_tasks),
            last_ns: 0,
            switches,
            kernel: InKernel::new(trace.in_kernel(task)),
            head: None,
            passed_ns: 0,
            folding: trace.folds_inlined().then(Folding::default),
            chooser: trace.choice().map(|choice| Chooser::new(Arc::clone(choice))),
            functions,
            seeker,
            warnings: Warnings::default(),
            n_read: 0,
        }
    }

    /// Returns the number of functions and records in the memory of a clone.
    pub fn n_held(&self) -> usize {
        self.chooser.as_ref().map_or(0, Chooser::n_held) + self.folding.as_ref().map_or(0, Folding::n_held)
    }

    /// Returns the flaws found so far.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Returns the reader's place, behind the last returned record. `None` if the reader has read further: among
    /// context switches, and if calls of inlined functions are [left out](Trace::fold_inlined).
    pub fn mark(&self) -> Option<Mark> {
        let is_ahead = self.head.is_some() || self.folding.is_some() || !self.kernel.is_over();
        let waits = self.chooser.as_ref().is_some_and(Chooser::waits);
        (!is_ahead && !waits).then_some(Mark { position: self.file.position(), last_ns: self.last_ns })
    }

    /// Moves forward to a mark. `open` gives the functions open there: addresses and times of entry, outermost first.
    /// If the [chosen](Trace::choose) time has begun there, these functions count as shown. The mark must belong to
    /// this task's records, all of them valid.
    pub fn go_to(&mut self, mark: Mark, open: impl IntoIterator<Item = (u64, u64)>) {
        self.file.seek(mark.position);
        self.last_ns = mark.last_ns;
        let n_before = self.switches.partition_point(|switch| switch.time_ns() < mark.last_ns);
        self.switches = self.switches.get(n_before..).unwrap_or_default();
        self.seeker = None;
        if let Some(chooser) = &mut self.chooser {
            let open: Vec<_> = open.into_iter().map(|(addr, entered_ns)| (Some(addr), entered_ns)).collect();
            chooser.restart(&open, false, &self.functions);
            chooser.begin_before(mark.last_ns);
        }
    }

    /// There is no more.
    #[cold]
    fn close(&mut self) {
        self.file.close();
        self.switches = &[];
        self.kernel = InKernel::new(&[]);
    }

    /// Reads the next chosen record.
    fn read_chosen(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(chooser) = &mut self.chooser else { return self.read_folded() };
            if let Some(record) = chooser.next() {
                return Ok(Some(record));
            }
            if chooser.has_ended() {
                return Ok(None);
            }
            self.skip()?;
            let record = self.read_folded()?;
            match (&mut self.chooser, record) {
                (Some(chooser), Some(record)) => chooser.apply(record, &self.functions),
                (Some(chooser), None) => chooser.finish(),
                (None, _) => {}
            }
        }
    }

    /// Skips to the next block with a chosen record, by the index.
    fn skip(&mut self) -> Result<()> {
        let (Some(seeker), Some(chooser)) = (&mut self.seeker, &mut self.chooser) else { return Ok(()) };
        // A record that was read already stays.
        let has_head = self.head.is_some();
        let Some(idx) = seeker.skip(self.file.position(), || !has_head && chooser.is_idle()) else { return Ok(()) };
        let here = self.file.position();
        let (place, open) = seeker.place(idx);
        self.file.seek(place.position);
        // Where nothing can be read the index is of something else, as where something else is there.
        let is_read = self.file.fill(RECORD_BYTES).is_ok();
        let is_end = seeker.is_end(idx);
        if !is_read
            || (is_end && !self.file.rest().is_empty())
            || (!is_end && !self.file.rest().starts_with(&place.first))
        {
            self.file.seek(here);
            self.seeker = None;
            return Ok(());
        }
        for (warning, count) in std::iter::zip(FLAWS, place.flaws) {
            self.warnings.add(warning, count.saturating_sub(self.warnings.count(warning)));
        }
        self.last_ns = place.last_ns.max(self.last_ns);
        let n_before = self.switches.partition_point(|switch| switch.time_ns() < place.last_ns);
        self.switches = self.switches.get(n_before..).unwrap_or_default();
        chooser.restart(&open, place.trusts_depth, &self.functions);
        Ok(())
    }

    /// Returns the records of the task's own file alone, in spite of the choice.
    pub fn take_file_alone(&mut self) {
        self.take_all();
        self.switches = &[];
        self.kernel = InKernel::new(&[]);
    }

    /// Ignores all choices from now on.
    pub fn take_all(&mut self) {
        (self.chooser, self.seeker) = (None, None);
    }

    /// The reader's offset in the file.
    pub(crate) fn position(&self) -> u64 {
        self.file.position()
    }

    /// The number of records read from the file.
    #[cfg(test)]
    pub(crate) fn n_read(&self) -> u64 {
        self.n_read
    }

    /// Reads the file alone, in spite of the choice, for an index. Returns the record's offset, its first bytes, and
    /// the record.
    pub(crate) fn read_raw(&mut self) -> Result<(u64, Option<[u8; RECORD_BYTES]>, Option<Record>)> {
        self.file.fill(RECORD_BYTES)?;
        let (position, first) = (self.file.position(), self.file.rest().first_chunk().copied());
        Ok((position, first, self.read_file()?))
    }

    /// Returns the number of each flaw of a file.
    pub(crate) fn flaws(&self) -> [u64; N_FLAWS] {
        FLAWS.map(|flaw| self.warnings.count(flaw))
    }

    /// Returns the time of the record read last.
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Reads the next record, without folded calls.
    fn read_folded(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(record) = self.read()? else { return Ok(None) };
            let Some(folding) = &mut self.folding else { return Ok(Some(record)) };
            let same_function = |a, b| self.functions.are_same(record.time_ns, a, b);
            if let Some(record) = folding.apply(record, same_function) {
                return Ok(Some(record));
            }
        }
    }

    /// Reads the next record, context switch or record of the kernel; at the same time the record precedes the switch.
    fn read(&mut self) -> Result<Option<Record>> {
        if self.switches.is_empty() && self.kernel.is_over() {
            return match self.head.take() {
                None => self.read_file(),
                head => Ok(head),
            };
        }
        if self.head.is_none() {
            let is_first = self.last_ns == 0;
            self.head = self.read_file()?;
            self.skip_switches(is_first);
        }
        let next = self.next_of_all();
        self.passed_ns = next.map_or(self.passed_ns, |next| next.time_ns);
        Ok(next)
    }

    /// Returns the earliest of the next record, switch and record of the kernel.
    fn next_of_all(&mut self) -> Option<Record> {
        let Some(head) = self.head else { return self.kernel.end_one(self.passed_ns) };
        let switch = self.switches.first().filter(|switch| switch.time_ns() < head.time_ns);
        let is_switch_first = switch.is_some_and(|switch| self.kernel.next_ns().is_none_or(|ns| switch.time_ns() < ns));
        if !is_switch_first && let Some(record) = self.kernel.next(head.time_ns) {
            return Some(record);
        }
        if let Some(switch) = switch {
            self.switches = self.switches.get(1..).unwrap_or_default();
            let (time_ns, addr) = (switch.time_ns(), switch.event());
            return Some(Record { time_ns, kind: Kind::Event, has_payload: false, payload_at: 0, depth: 0, addr });
        }
        if head.kind != Kind::Event
            && let Some(end) = self.kernel.end_one(self.passed_ns)
        {
            return Some(end);
        }
        self.kernel.pass(&head);
        self.head.take()
    }

    /// Drops switches and records of the kernel before the first record and after the last one: the task's state is
    /// unknown then.
    fn skip_switches(&mut self, is_first: bool) {
        let Some(head) = self.head else {
            self.switches = &[];
            self.kernel.stop();
            return;
        };
        if is_first {
            self.kernel.skip_before(head.time_ns);
            let is_before = |switch: &Switch| switch.time_ns() < head.time_ns;
            let n_before = self.switches.partition_point(is_before);
            let rest = self.switches.get(n_before..).unwrap_or_default();
            // It was without a processor since before the first record, by another clock at least.
            self.switches = match rest {
                [first, rest @ ..] if first.event() == SCHED_IN => rest,
                _ => rest,
            };
        }
    }

    fn read_file(&mut self) -> Result<Option<Record>> {
        self.n_read += 1;
        if self.n_read.is_multiple_of(Reading::STEP)
            && let Some(reading) = self.trace.reading()
            && !reading.goes_on()
        {
            return Err(Error::Stopped);
        }
        loop {
            self.file.fill(RECORD_BYTES)?;
            let decoded = self.file.rest().first_chunk().map(Record::decode);
            let Some(decoded) = decoded else {
                let n_left = self.file.rest().len();
                self.warnings.add(Warning::CutRecord, u64::from(n_left > 0));
                self.file.consume(n_left);
                return Ok(None);
            };
            let Some(mut record) = decoded else {
                self.warnings.add(Warning::CorruptStretch, 1);
                self.file.consume(UNIT);
                self.resync()?;
                continue;
            };
            self.file.consume(RECORD_BYTES);
            let specs = self.specs(&record);
            if record.time_ns < self.last_ns {
                self.warnings.add(Warning::TimeBackwards, 1);
                record.time_ns = self.last_ns;
            }
            self.last_ns = record.time_ns;
            if let Some(specs) = specs {
                self.file.fill(MAX_PAYLOAD)?;
                record.payload_at = self.file.position();
                let length = read_payload(specs, self.file.rest()).map(|(_, length)| length);
                if length.is_none() {
                    self.warnings.add(Warning::CutRecord, 1);
                }
                self.file.consume(length.unwrap_or(MAX_PAYLOAD));
            } else if record.has_payload {
                self.warnings.add(Warning::PayloadSkipped, 1);
                if self.resync()? > MAX_PAYLOAD as u64 {
                    self.warnings.add(Warning::CorruptStretch, 1);
                }
            }
            return Ok(Some(record));
        }
    }

    /// The specs of the values behind a record, if they are known.
    fn specs(&self, record: &Record) -> Option<&'t [ValueSpec]> {
        let is_result = match record.kind {
            Kind::Entry if record.has_payload => false,
            Kind::Exit if record.has_payload => true,
            _ => return None,
        };
        self.trace.value_specs(self.task, record.time_ns, record.addr, is_result)
    }

    /// Skips to the next plausible record, or to the end. Returns the number of skipped bytes.
    fn resync(&mut self) -> Result<u64> {
        let mut skipped = 0;
        loop {
            self.file.fill(2 * RECORD_BYTES)?;
            let bytes = self.file.rest();
            let step = if bytes.len() < RECORD_BYTES {
                bytes.len()
            } else if self.looks_valid(bytes) {
                return Ok(skipped);
            } else {
                UNIT
            };
            if step == 0 {
                return Ok(skipped);
            }
            self.file.consume(step);
            skipped += step as u64;
        }
    }

    /// Returns true if `bytes` start with a plausible next record, and go on with another one, as far as they reach.
    fn looks_valid(&self, bytes: &[u8]) -> bool {
        let Some((first, rest)) = bytes.split_first_chunk() else { return false };
        let Some(record) = Record::decode(first).filter(|record| self.is_plausible(record, self.last_ns)) else {
            return false;
        };
        match rest.first_chunk() {
            Some(second) if !record.has_payload => {
                Record::decode(second).is_some_and(|second| self.is_plausible(&second, record.time_ns))
            }
            _ => true,
        }
    }

    fn is_plausible(&self, record: &Record, last_ns: u64) -> bool {
        record.time_ns >= last_ns
            && match record.kind {
                Kind::Entry | Kind::Exit => self.trace.may_be_code(self.task, record.addr),
                Kind::Event => self.trace.events().known(record.addr).is_some(),
                Kind::Lost => !record.has_payload && (1..=MAX_LOST).contains(&record.addr),
            }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let is_plain = self.chooser.is_none() && self.folding.is_none() && self.head.is_none();
        let result = if is_plain && self.switches.is_empty() && self.kernel.is_over() {
            // As most are: nothing comes between the records, and none is left out.
            self.read_file().transpose()
        } else {
            self.read_chosen().transpose()
        };
        if let Some(Err(_)) = result {
            self.close();
        }
        result
    }
}

impl Names for Functions<'_> {
    fn function(&self, time_ns: u64, addr: u64) -> Cow<'_, str> {
        self.name(time_ns, addr)
    }

    fn same_function(&self, time_ns: u64, a: u64, b: u64) -> bool {
        self.are_same(time_ns, a, b)
    }

    fn is_loss(&self, event: u64) -> bool {
        let name = self.event_name(event);
        name.is_some_and(|name| name.starts_with("rftrace:lost_") || name == OVERWRITTEN)
    }
}
