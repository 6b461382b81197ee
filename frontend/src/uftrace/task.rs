//! The records of one task, from the buffer to its file: with the values of calls, names of losses, and as much as there is room for.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rftrace_format::clock::TscClock;
use rftrace_format::events::{DID_NOT_RETURN_NAME, user_event};
use rftrace_format::files;
use rftrace_format::items;
use rftrace_format::record::{Kind, RECORD_BYTES, Record};
use rftrace_format::store::Owned;
use rftrace_format::values::ValueSpec;

use super::modules::has_symbol;
use crate::Error;
use crate::decode::{self, Emit, Event, EventKind, Task, Window};
use crate::host::program::{Identity, Program};

/// The number of collected bytes of records for a write.
pub(super) const BLOCK_BYTES: usize = 256 * 1024;

/// Totals of one written task.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// Its identity in the trace.
    pub(super) identity: Identity,
    pub(super) n_records: u64,
    pub(super) first_nanos: u64,
    pub(super) last_nanos: u64,
    pub(super) n_lost: u64,
    /// Calls without a return, each with an event.
    pub(super) n_open: u64,
}

impl Written {
    /// A record more.
    #[inline(always)]
    fn count(&mut self, kind: EventKind, nanos: u64) {
        match kind {
            EventKind::Lost(n) => self.n_lost = self.n_lost.saturating_add(n),
            EventKind::DidNotReturn => self.n_open += 1,
            _ => {}
        }
        self.last_nanos = nanos;
        self.n_records += 1;
    }
}

/// The first error of a left-out file, and reserved room for the required files.
pub(super) struct LeftOut<'a> {
    is_allowed: bool,
    first: Mutex<Option<Error>>,
    room: &'a Path,
}

impl<'a> LeftOut<'a> {
    /// If parts may be left out, reserves room on the disk for the small files required in each trace.
    pub(super) fn new(is_allowed: bool, n_tasks: usize, room: &'a Path) -> Self {
        if is_allowed {
            // A line or two for each task. Without it the files may still fit.
            let _ = fs::write(room, vec![0; (64 << 10) + 256 * n_tasks]);
        }
        Self { is_allowed, first: Mutex::new(None), room }
    }

    /// Leaves a part out, if that is allowed.
    pub(super) fn note(&self, error: Error) -> Result<(), Error> {
        if !self.is_allowed {
            return Err(error);
        }
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        Ok(())
    }

    pub(super) fn first(&self) -> Option<Error> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The small files come now.
    pub(super) fn release_room(&self) {
        if self.is_allowed {
            let _ = fs::remove_file(self.room);
        }
    }
}

/// Names for losses: uftrace shows an event by the name of its id, so each number of lost calls has an id.
#[derive(Debug, Default)]
pub(super) struct EventIds(pub(super) Mutex<BTreeMap<String, u64>>);

impl EventIds {
    /// Returns the number of an event with this name.
    pub(super) fn id(&self, name: String) -> u64 {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = user_event(&name, ids.len());
        *ids.entry(name).or_insert(next)
    }

    pub(super) fn of_loss(&self, kind: EventKind) -> u64 {
        self.id(match kind {
            EventKind::Lost(1) => "rftrace:lost_1_call".to_owned(),
            EventKind::Lost(n) => format!("rftrace:lost_{n}_calls"),
            EventKind::Core(core) => format!("rftrace:core_{core}"),
            EventKind::DidNotReturn => DID_NOT_RETURN_NAME.to_owned(),
            _ => "rftrace:overwritten_records".to_owned(),
        })
    }
}

/// Writes the file of a task.
struct TaskWriter<'a> {
    directory: &'a Owned,
    name: &'a str,
    clock: TscClock,
    /// The times of unrecorded events, and their ids, until they are shown; the next one last.
    marks: Vec<(u64, u64)>,
    ids: &'a EventIds,
    specs: &'a Specs<'a>,
    /// A task without events gets no file.
    file: Option<File>,
    block: Vec<u8>,
    written: Written,
}

/// The values of functions in this trace, by the address in their records: of calls, and of returns. The first record
/// counts: readers know one list of values for a function.
#[derive(Debug)]
pub(super) struct Specs<'a> {
    program: &'a Program,
    known: Mutex<KnownSpecs>,
}

/// Specs by an address, and whether they are of returns. None if no file could hold them.
pub(super) type KnownSpecs = BTreeMap<(u64, bool), Vec<ValueSpec>>;

impl<'a> Specs<'a> {
    pub(super) fn new(program: &'a Program) -> Self {
        Self { program, known: Mutex::default() }
    }

    /// Returns the bytes behind the record of an event with these values; none if they could not be read.
    fn payload(&self, event: Event, items: &[u8]) -> Vec<u8> {
        let values = items::items(items);
        let specs = values.iter().map(|value| value.spec);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry((event.address, event.kind == EventKind::Exit)).or_insert_with(|| {
            if has_symbol(self.program, event.address) { specs.clone().collect() } else { Vec::new() }
        });
        if specs.eq(known.iter().copied()) { items::payload(&values) } else { Vec::new() }
    }

    /// Returns the specs.
    pub(super) fn into_known(self) -> KnownSpecs {
        let mut known = self.known.into_inner().unwrap_or_default();
        known.retain(|_, specs| !specs.is_empty());
        known
    }
}

impl Emit for &mut TaskWriter<'_> {
    type Error = io::Error;

    // Inlined where it is called for each entry and exit: this crate is compiled with the program's flags, and a function
    // costs two hooks.
    #[inline(always)]
    fn emit(&mut self, event: Event, values: &[u8]) -> io::Result<()> {
        if !self.marks.is_empty() {
            self.write_marks_before(event)?;
        }
        let nanos = self.clock.nanos(event.tsc);
        let mut bytes = encode_event(event, nanos, self.ids);
        let mut payload = Vec::new();
        if !values.is_empty() {
            payload = self.specs.payload(event, values);
            set_payload(&mut bytes, !payload.is_empty());
        }
        if self.written.n_records == 0 {
            self.begin(nanos)?;
        }
        self.written.count(event.kind, nanos);
        self.block.extend_from_slice(&bytes);
        self.block.extend_from_slice(&payload);
        if self.block.len() + RECORD_BYTES > BLOCK_BYTES {
            self.flush()?;
        }
        Ok(())
    }
}

/// Sets whether something follows a record.
#[cold]
fn set_payload(record: &mut [u8; RECORD_BYTES], has_payload: bool) {
    if let Some(decoded) = Record::decode(record) {
        *record = Record { has_payload, ..decoded }.encode();
    }
}

impl TaskWriter<'_> {
    /// The first record has this time.
    fn begin(&mut self, nanos: u64) -> io::Result<()> {
        self.file = Some(self.directory.create(self.name)?);
        self.written.first_nanos = nanos;
        Ok(())
    }

    /// Writes the marks before an event. Before an exit these include marks of the same moment: all functions still
    /// open end at one moment.
    #[cold]
    fn write_marks_before(&mut self, event: Event) -> io::Result<()> {
        let is_exit = event.kind == EventKind::Exit;
        let is_before = |&mut (tsc, _): &mut (u64, u64)| tsc < event.tsc || tsc == event.tsc && is_exit;
        while let Some((tsc, id)) = self.marks.pop_if(is_before) {
            let nanos = self.clock.nanos(tsc);
            if self.written.n_records == 0 {
                self.begin(nanos)?;
            }
            self.write_mark(nanos, id, event.depth + usize::from(is_exit));
            if self.block.len() + 2 * RECORD_BYTES > BLOCK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the other marks behind all events, if there are any.
    fn write_marks_at_end(&mut self) {
        if self.written.n_records == 0 {
            return;
        }
        while let Some((tsc, id)) = self.marks.pop() {
            self.write_mark(self.clock.nanos(tsc).max(self.written.last_nanos), id, 0);
        }
    }

    fn write_mark(&mut self, time_ns: u64, id: u64, depth: usize) {
        let depth = u16::try_from(depth).unwrap_or(u16::MAX);
        let mark = Record { time_ns, kind: Kind::Event, has_payload: false, payload_at: 0, depth, addr: id };
        self.written.last_nanos = time_ns;
        self.written.n_records += 1;
        self.block.extend_from_slice(&mark.encode());
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.block)?;
            self.block.clear();
        }
        Ok(())
    }

    /// Writes the task once more over its written part: the beginning, with all calls open at the cut ended there.
    fn write_what_fits(mut self, task: &Task<'_>, window: &Window<'_>) -> Written {
        let identity = self.written.identity.clone();
        let Some(mut file) = self.file.take() else { return self.written };
        let mut n_records = file.metadata().map_or(0, |meta| meta.len()) / RECORD_BYTES as u64;
        while n_records > 0 {
            // Other files on the disk, and those that come meanwhile, need room too.
            n_records -= n_records.div_ceil(16);
            self.block.clear();
            self.written = Written { identity: identity.clone(), ..Written::default() };
            if file.rewind().is_ok()
                && self.write_beginning(&mut file, task, window, n_records).is_ok()
                && file.set_len(self.written.n_records * RECORD_BYTES as u64).is_ok()
            {
                return self.written;
            }
        }
        let _ = fs::remove_file(self.directory.path().join(self.name));
        Written { identity, ..Written::default() }
    }

    /// Writes up to `most` records of a task.
    fn write_beginning(&mut self, file: &mut File, task: &Task<'_>, window: &Window<'_>, most: u64) -> io::Result<()> {
        let mut open: Vec<Event> = Vec::new();
        let mut emitted = |event: Event| {
            let nanos = self.clock.nanos(event.tsc);
            self.block.extend_from_slice(&encode_event(event, nanos, self.ids));
            if self.written.n_records == 0 {
                self.written.first_nanos = nanos;
            }
            self.written.count(event.kind, nanos);
            if self.block.len() + RECORD_BYTES > BLOCK_BYTES {
                file.write_all(&self.block)?;
                self.block.clear();
            }
            io::Result::Ok(())
        };
        let mut n_left = most;
        let mut last_tsc = 0;
        // `Err(None)` is the cut.
        let result = decode::decode(task, window, |event: Event| {
            match event.kind {
                EventKind::Exit => _ = open.pop(),
                // The ends of those that are open, its own included, have to fit: two records each.
                _ if n_left <= 2 * (open.len() as u64 + 1) => return Err(None),
                EventKind::Entry => open.push(event),
                _ => {}
            }
            n_left -= 1;
            last_tsc = event.tsc;
            emitted(event).map_err(Some)
        });
        match result {
            Err(Some(error)) => return Err(error),
            Err(None) => {
                for entry in open.into_iter().rev() {
                    emitted(Event { kind: EventKind::DidNotReturn, tsc: last_tsc, ..entry })?;
                    emitted(Event { kind: EventKind::Exit, tsc: last_tsc, ..entry })?;
                }
            }
            Ok(()) => {}
        }
        file.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

/// Writes the records of a task.
pub(super) fn write_task(
    task: &Task<'_>,
    window: &Window<'_>,
    (clock, marks): (TscClock, &[(u64, u64)]),
    (ids, specs): (&EventIds, &Specs<'_>),
    directory: &Owned,
    identity: Identity,
    left_out: &LeftOut<'_>,
) -> Result<Written, Error> {
    let name = files::records(identity.tid);
    let written = Written { identity, ..Written::default() };
    let mut marks = marks.to_vec();
    // Of those at one time the first stays first.
    marks.reverse();
    marks.sort_by_key(|&(tsc, _)| std::cmp::Reverse(tsc));
    let mut writer = TaskWriter {
        directory,
        name: &name,
        clock,
        marks,
        ids,
        specs,
        file: None,
        block: Vec::with_capacity(BLOCK_BYTES),
        written,
    };
    let result = decode::decode(task, window, &mut writer);
    writer.write_marks_at_end();
    match result.and_then(|()| writer.flush()) {
        Ok(()) => Ok(writer.written),
        Err(source) => {
            left_out.note(Error::Write { path: directory.path().join(&name), source })?;
            Ok(writer.write_what_fits(task, window))
        }
    }
}

/// An event as a record.
#[inline(always)]
pub(super) fn encode_event(event: Event, nanos: u64, ids: &EventIds) -> [u8; RECORD_BYTES] {
    let (kind, addr) = match event.kind {
        EventKind::Entry => (Kind::Entry, event.address),
        EventKind::Exit => (Kind::Exit, event.address),
        loss => (Kind::Event, ids.of_loss(loss)),
    };
    let depth = if event.depth > u16::MAX as usize { u16::MAX } else { event.depth as u16 };
    Record { time_ns: nanos, kind, has_payload: false, payload_at: 0, depth, addr }.encode()
}

#[cfg(test)]
mod tests {
    use rftrace_format::events::USER_EVENTS;

    use super::*;

    #[test]
    fn equal_losses_share_an_event() {
        let ids = EventIds::default();
        let first = ids.of_loss(EventKind::Lost(1));
        assert_eq!(first, USER_EVENTS.start);
        assert_ne!(ids.of_loss(EventKind::Lost(2)), first);
        assert_eq!(ids.of_loss(EventKind::Lost(1)), first);
    }
}
