//! Puts a trace into a directory: which files, in which order, from which tasks.
//!
//! Records go straight from the buffer to the files, a chunk's worth at a time; tasks are written in parallel. The file
//! `info` comes last: without it a directory is no trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rftrace_format::clock::{ClockFile, TscClock};
use rftrace_format::events::{EventLine, USER_EVENTS};
use rftrace_format::files::{self, File as TraceFile};
use rftrace_format::gaps::Gaps;
use rftrace_format::info::feature;
use rftrace_format::map::{MapLine, NO_STACK, STACK};
use rftrace_format::perf::{NAME_BYTES, ThreadName};
use rftrace_format::record::{Kind, RECORD_BYTES, Record};
use rftrace_format::tasks::TaskLine;
use rftrace_format::text::{base_name, spelled};
use rftrace_format::values::{self, ValueSpec};

use crate::Error;
use crate::clock::ClockPair;
use crate::decode::{self, Emit, Event, EventKind, Minima, Task, Window};
use crate::filter::own;
use crate::host::program::{Identify, Identity, LoadedModule, Program};

/// Bytes of records that are collected before they are written.
const BLOCK_BYTES: usize = 256 * 1024;

/// A recording that is to be written: who, from when to when.
pub(crate) struct Recording<'a> {
    pub(crate) tasks: &'a [Task<'a>],
    pub(crate) start_tsc: u64,
    pub(crate) stop_tsc: u64,
    /// What ticks become nanoseconds by.
    pub(crate) clock: TscClock,
    pub(crate) pairs: [ClockPair; 2],
    /// Unix time at the first pair.
    pub(crate) unix_nanos: Option<u64>,
    pub(crate) minima: &'a Minima,
    /// Who says how fast the clock runs.
    pub(crate) tsc_hz_source: &'static str,
    pub(crate) gaps: Gaps,
    /// Threads that may write it, the calling one included.
    pub(crate) n_writers: usize,
    /// Whether what cannot be written is left out. Otherwise nothing counts as written then.
    pub(crate) what_fits: bool,
    pub(crate) done: Option<decode::Done<'a>>,
}

impl<'a> Recording<'a> {
    fn window(&self, is_hidden: &'a (dyn Fn(u64) -> bool + Sync)) -> Window<'a> {
        Window { start: self.start_tsc, end: self.stop_tsc, is_hidden, minima: self.minima, done: self.done }
    }
}

/// What was written of one task.
#[derive(Clone, Debug, Default)]
struct Written {
    /// Who it is in the trace.
    identity: Identity,
    n_records: u64,
    first_nanos: u64,
    last_nanos: u64,
    n_lost: u64,
}

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) n_events: u64,
    pub(crate) n_threads: usize,
    pub(crate) n_lost: u64,
    /// The time of the last record.
    pub(crate) last_nanos: u64,
    pub(crate) invariant_tsc: Option<bool>,
    /// Why something was left out, the first time.
    pub(crate) left_out: Option<Error>,
}

/// What could not be written, and room for what must be.
struct LeftOut<'a> {
    is_allowed: bool,
    first: Mutex<Option<Error>>,
    room: &'a Path,
}

impl<'a> LeftOut<'a> {
    /// Where something may be left out, room on the disk is kept for the small files without which a directory is no trace.
    fn new(recording: &Recording<'_>, room: &'a Path) -> Self {
        let is_allowed = recording.what_fits;
        if is_allowed {
            // A line or two for each task. Without it the files may still fit.
            let _ = fs::write(room, vec![0; (64 << 10) + 256 * recording.tasks.len()]);
        }
        Self { is_allowed, first: Mutex::new(None), room }
    }

    /// Leaves something out, if that is allowed.
    fn note(&self, error: Error) -> Result<(), Error> {
        if !self.is_allowed {
            return Err(error);
        }
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        Ok(())
    }

    fn first(&self) -> Option<Error> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The small files come now.
    fn release_room(&self) {
        if self.is_allowed {
            let _ = fs::remove_file(self.room);
        }
    }
}

/// Names for losses: uftrace shows an event by the name of its id, so each number of lost calls has an id.
#[derive(Debug, Default)]
struct EventIds(Mutex<BTreeMap<String, u64>>);

impl EventIds {
    fn id(&self, name: String) -> u64 {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = USER_EVENTS.start + ids.len() as u64;
        *ids.entry(name).or_insert(next)
    }

    fn of_loss(&self, kind: EventKind) -> u64 {
        self.id(match kind {
            EventKind::Lost(1) => "rftrace:lost_1_call".to_owned(),
            EventKind::Lost(n) => format!("rftrace:lost_{n}_calls"),
            EventKind::Core(core) => format!("rftrace:core_{core}"),
            _ => "rftrace:overwritten_records".to_owned(),
        })
    }
}

/// Writes the whole directory.
pub(crate) fn write(recording: &Recording<'_>, directory: &Path, program: &Program) -> Result<Totals, Error> {
    let hidden = own::functions(program);
    let is_hidden = |address| own::contains(&hidden, address);
    let window = recording.window(&is_hidden);

    prepare(directory)?;
    let room = directory.join("room");
    let left_out = LeftOut::new(recording, &room);
    let ids = EventIds::default();
    let specs = Specs::new(program);
    let identities = identities(recording.tasks, &program.identify);
    let mut written = in_parallel(recording, |place| {
        let identity = identities[place].clone();
        write_task(&recording.tasks[place], &window, recording.clock, (&ids, &specs), directory, identity, &left_out)
    })?;
    written.retain(|task| task.n_records > 0);
    if written.is_empty() {
        left_out.release_room();
        return Err(left_out.first().unwrap_or(Error::NoEvents { hook_called: true }));
    }
    write_symbols(directory, program, &left_out)?;
    left_out.release_room();
    let specs = specs.into_known();
    write_specs(directory, program, &specs)?;
    let sid = session_id(&recording.pairs, program.pid);
    write_file(&directory.join(files::map(&sid)), |out| write_map(out, program))?;
    let events = ids.0.into_inner().unwrap_or_default();
    if !events.is_empty() {
        write_file(&directory.join(files::EVENTS), |out| {
            events.iter().try_for_each(|(name, &id)| write!(out, "{}", EventLine { id, name }))
        })?;
    }
    write_file(&directory.join(files::CLOCK), |out| write!(out, "{}", clock_file(recording, program)))?;

    write_file(&directory.join(files::GAPS), |out| write!(out, "{}", recording.gaps))?;
    let first = written.iter().map(|task| task.first_nanos).min().unwrap_or(0);
    let last = written.iter().map(|task| task.last_nanos).max().unwrap_or(0);
    write_file(&directory.join(files::TASKS), |out| {
        let pid = program.pid;
        write!(out, "{}", TaskLine::Session { time_ns: first, pid, sid: &sid, exe_name: &program.exe_name })?;
        written.iter().try_for_each(|task| {
            let Identity { tid, ref name } = task.identity;
            write!(out, "{}", TaskLine::Task { time_ns: task.first_nanos, tid, pid, name })
        })
    })?;
    let has_names = write_names(directory, program, &written)?;
    let tids: Vec<u32> = written.iter().map(|task| task.identity.tid).collect();
    let mut features = feature::TASK_SESSION | feature::SYM_REL_ADDR | feature::MAX_STACK;
    if !events.is_empty() {
        features |= feature::EVENT;
    }
    if has_names {
        features |= feature::PERF_EVENT;
    }
    if !specs.is_empty() {
        features |= feature::VALUES;
    }
    write_file(&directory.join(files::INFO), |out| {
        out.write_all(&program.system.to_info(features, &tids, Duration::from_nanos(last - first)))
    })?;
    Ok(Totals {
        n_events: written.iter().map(|task| task.n_records).sum(),
        n_threads: written.len(),
        n_lost: written.iter().fold(0, |sum, task| sum.saturating_add(task.n_lost)),
        last_nanos: last,
        invariant_tsc: program.invariant_tsc,
        left_out: left_out.first(),
    })
}

/// Writes only the records, the tasks one after the other in one file. Where there are several, each begins with an
/// EVENT record whose id is [`USER_EVENTS`]`.start` plus the thread's id.
#[cfg(feature = "std")]
pub(crate) fn write_raw(recording: &Recording<'_>, path: &Path) -> Result<Totals, Error> {
    let window = recording.window(&|_| false);
    let mut totals = Totals::default();
    let no_names = EventIds::default();
    write_file(path, |out| {
        for task in recording.tasks {
            if recording.tasks.len() > 1 {
                let nanos = recording.clock.nanos(recording.start_tsc);
                let addr = USER_EVENTS.start + u64::from(task.tid);
                let begin =
                    Record { time_ns: nanos, kind: Kind::Event, has_payload: false, payload_at: 0, depth: 0, addr };
                out.write_all(&begin.encode())?;
            }
            let before = totals.n_events;
            decode::decode(task, &window, |event: Event| {
                match event.kind {
                    EventKind::Entry | EventKind::Exit => {
                        totals.n_events += 1;
                        out.write_all(&encode_event(event, recording.clock.nanos(event.tsc), &no_names))
                    }
                    // The file has no names for other events, and an id would be taken for a thread's.
                    EventKind::Lost(n) => {
                        totals.n_lost = totals.n_lost.saturating_add(n);
                        Ok(())
                    }
                    EventKind::Gap | EventKind::Core(_) => Ok(()),
                }
            })?;
            totals.n_threads += usize::from(totals.n_events > before);
        }
        Ok(())
    })?;
    Ok(totals)
}

/// Makes the directory. Files of an older trace in it are removed, so that no task of that one is mixed with the new.
fn prepare(directory: &Path) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    // Hermit's kernel (0.11) panics when it is to make a directory that is there.
    if !directory.is_dir() {
        fs::create_dir_all(directory).map_err(failed(directory))?;
    }
    // Only a directory that is a trace is cleaned: `info` says so.
    if !is_trace(&directory.join(files::INFO)) {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        if path.file_name().and_then(|name| TraceFile::of(name.to_str()?)).is_some() {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Whether this is the `info` of a trace.
fn is_trace(info: &Path) -> bool {
    let mut start = [0; files::MAGIC.len()];
    // Somebody's pipe would keep this waiting.
    info.is_file()
        && File::open(info).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && start == *files::MAGIC
}

/// Who the tasks are. The system may use an id again after a thread has ended; then the later thread's id is raised by more
/// than the system gives out (`PID_MAX_LIMIT`).
fn identities(tasks: &[Task<'_>], identify: &Identify) -> Vec<Identity> {
    const RAISE: u32 = 1 << 22;

    let mut taken = BTreeSet::new();
    let unique = |task: &Task<'_>| {
        let mut identity = identify.of(task.tid);
        while !taken.insert(identity.tid) {
            identity.tid = identity.tid.wrapping_add(RAISE);
        }
        identity
    };
    tasks.iter().map(unique).collect()
}

/// As many writers as there are processors.
pub(crate) fn all_processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work` on every task's place, on as many threads as the recording allows, and collects the results in order.
fn in_parallel<T: Send>(
    recording: &Recording<'_>,
    work: impl Fn(usize) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let tasks = recording.tasks;
    // The longest first: then no thread is left alone with it at the end.
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(tasks[place].capacity()));
    let next = AtomicUsize::new(0);
    let one_worker = || {
        let mut done = Vec::new();
        while let Some(&place) = order.get(next.fetch_add(1, Relaxed)) {
            done.push((place, work(place)));
        }
        done
    };
    let n_workers = recording.n_writers.min(tasks.len());
    let mut done = thread::scope(|scope| {
        // Where no thread can be started this one does all.
        let others: Vec<_> =
            (1..n_workers).filter_map(|_| thread::Builder::new().spawn_scoped(scope, one_worker).ok()).collect();
        let mut done = one_worker();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|&(place, _)| place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Writes the file of a task.
struct TaskWriter<'a> {
    path: &'a Path,
    clock: TscClock,
    ids: &'a EventIds,
    specs: &'a Specs<'a>,
    /// A task without events gets no file.
    file: Option<File>,
    block: Vec<u8>,
    written: Written,
}

/// The values that functions have in this trace, by the address in their records: of calls, and of returns. What is recorded first
/// counts: readers know one list of values for a function.
#[derive(Debug)]
struct Specs<'a> {
    program: &'a Program,
    known: Mutex<KnownSpecs>,
}

/// Specs by an address, and whether they are of returns. None where no file could tell of them.
type KnownSpecs = BTreeMap<(u64, bool), Vec<ValueSpec>>;

impl<'a> Specs<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, known: Mutex::default() }
    }

    /// What stands behind the record of an event that has these values; nothing where they could not be read.
    fn payload(&self, event: Event, items: &[u8]) -> Vec<u8> {
        let values = values::items(items);
        let specs = values.iter().map(|value| value.spec);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry((event.address, event.kind == EventKind::Exit)).or_insert_with(|| {
            if has_symbol(self.program, event.address) { specs.clone().collect() } else { Vec::new() }
        });
        if specs.eq(known.iter().copied()) { values::payload(&values) } else { Vec::new() }
    }

    /// What was found.
    fn into_known(self) -> KnownSpecs {
        let mut known = self.known.into_inner().unwrap_or_default();
        known.retain(|_, specs| !specs.is_empty());
        known
    }
}

/// Whether a symbol file has the function at an address.
#[cfg(target_os = "linux")]
fn has_symbol(program: &Program, address: u64) -> bool {
    symbol_files(program).iter().any(|(_, _, (module, symbols))| {
        let is_in = (module.start..module.end).contains(&address);
        is_in && symbols.as_ref().is_some_and(|table| table.lookup(address - module.start).is_some())
    })
}

#[cfg(not(target_os = "linux"))]
fn has_symbol(_: &Program, _: u64) -> bool {
    false
}

impl Emit for &mut TaskWriter<'_> {
    type Error = io::Error;

    // Inlined where it is called for each entry and exit: this crate is compiled with the program's flags, and a function
    // costs two hooks.
    #[inline(always)]
    fn emit(&mut self, event: Event, values: &[u8]) -> io::Result<()> {
        let nanos = self.clock.nanos(event.tsc);
        let mut bytes = encode_event(event, nanos, self.ids);
        let mut payload = Vec::new();
        if !values.is_empty() {
            payload = self.specs.payload(event, values);
            set_payload(&mut bytes, !payload.is_empty());
        }
        if self.written.n_records == 0 {
            self.file = Some(File::create(self.path)?);
            self.written.first_nanos = nanos;
        }
        if let EventKind::Lost(n) = event.kind {
            self.written.n_lost = self.written.n_lost.saturating_add(n);
        }
        self.written.last_nanos = nanos;
        self.written.n_records += 1;
        self.block.extend_from_slice(&bytes);
        self.block.extend_from_slice(&payload);
        if self.block.len() + RECORD_BYTES > BLOCK_BYTES {
            self.flush()?;
        }
        Ok(())
    }
}

/// Whether something follows a record.
#[cold]
fn set_payload(record: &mut [u8; RECORD_BYTES], has_payload: bool) {
    if let Some(decoded) = Record::decode(record) {
        *record = Record { has_payload, ..decoded }.encode();
    }
}

impl TaskWriter<'_> {
    fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.block)?;
            self.block.clear();
        }
        Ok(())
    }

    /// Writes the task once more over what of it could be written: the beginning, in which all calls that are open at the cut end
    /// there.
    fn write_what_fits(mut self, task: &Task<'_>, window: &Window<'_>) -> Written {
        let identity = self.written.identity.clone();
        let Some(mut file) = self.file.take() else { return self.written };
        let mut n_records = file.metadata().map_or(0, |meta| meta.len()) / RECORD_BYTES as u64;
        while n_records > 0 {
            // What else is on the disk, or comes to it meanwhile, needs room too.
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
        let _ = fs::remove_file(self.path);
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
            if let EventKind::Lost(n) = event.kind {
                self.written.n_lost = self.written.n_lost.saturating_add(n);
            }
            self.written.last_nanos = nanos;
            self.written.n_records += 1;
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
                // The exits of those that are open, its own included, have to fit.
                _ if n_left <= open.len() as u64 + 1 => return Err(None),
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

fn write_task(
    task: &Task<'_>,
    window: &Window<'_>,
    clock: TscClock,
    (ids, specs): (&EventIds, &Specs<'_>),
    directory: &Path,
    identity: Identity,
    left_out: &LeftOut<'_>,
) -> Result<Written, Error> {
    let path = directory.join(files::records(identity.tid));
    let written = Written { identity, ..Written::default() };
    let mut writer =
        TaskWriter { path: &path, clock, ids, specs, file: None, block: Vec::with_capacity(BLOCK_BYTES), written };
    let result = decode::decode(task, window, &mut writer);
    match result.and_then(|()| writer.flush()) {
        Ok(()) => Ok(writer.written),
        Err(source) => {
            left_out.note(Error::Write { path: path.clone(), source })?;
            Ok(writer.write_what_fits(task, window))
        }
    }
}

#[inline(always)]
fn encode_event(event: Event, nanos: u64, ids: &EventIds) -> [u8; RECORD_BYTES] {
    let (kind, addr) = match event.kind {
        EventKind::Entry => (Kind::Entry, event.address),
        EventKind::Exit => (Kind::Exit, event.address),
        loss => (Kind::Event, ids.of_loss(loss)),
    };
    let depth = if event.depth > u16::MAX as usize { u16::MAX } else { event.depth as u16 };
    Record { time_ns: nanos, kind, has_payload: false, payload_at: 0, depth, addr }.encode()
}

/// Creates a file and fills it through a buffer.
fn write_file(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Error> {
    File::create(path)
        .map(|file| BufWriter::with_capacity(BLOCK_BYTES, file))
        .and_then(|mut out| {
            fill(&mut out)?;
            out.flush()
        })
        .map_err(|source| Error::Write { path: PathBuf::from(path), source })
}

/// The names of threads that are called otherwise than the program, if there are such: uftrace takes the program's name where
/// nothing else is said. Returns whether there are any.
fn write_names(directory: &Path, program: &Program, written: &[Written]) -> Result<bool, Error> {
    let own = base_name(&program.exe_name);
    let is_named = |task: &&Written| {
        let name: String = task.identity.name.trim_end_matches('\u{fffd}').chars().map(spelled).collect();
        // The system cuts names, perhaps amid a character or behind a space.
        let may_be_cut = name.len() + char::MAX_LEN_UTF8 >= NAME_BYTES;
        name != own && !name.is_empty() && !(may_be_cut && own.starts_with(&name))
    };
    let mut named: Vec<&Written> = written.iter().filter(is_named).collect();
    named.sort_by_key(|task| task.first_nanos);
    if named.is_empty() {
        return Ok(false);
    }
    write_file(&directory.join(files::perf(0)), |out| {
        named.iter().try_for_each(|task| {
            let Identity { tid, ref name } = task.identity;
            out.write_all(&ThreadName { time_ns: task.first_nanos, tid, pid: program.pid, name }.encode())
        })
    })?;
    Ok(true)
}

/// Sixteen digits that tell this recording from others.
fn session_id([first, last]: &[ClockPair; 2], pid: u32) -> String {
    let mixed = (first.tsc ^ last.nanos.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(pid);
    format!("{mixed:016x}")
}

/// What ticks were converted by, and the wall clock at the first pair, so that traces of guest and host can be aligned later.
fn clock_file(recording: &Recording<'_>, program: &Program) -> ClockFile {
    let last = recording.pairs[1];
    ClockFile {
        unix_nanos: recording.unix_nanos,
        reported_hz: program.tsc_hz.map(|(hz, source)| (hz, source.into())),
        invariant_tsc: program.invariant_tsc,
        utc_offset_seconds: Some(program.system.utc_offset),
        ..ClockFile::new(recording.clock, (last.tsc, last.nanos), recording.tsc_hz_source)
    }
}

fn write_map(out: &mut impl Write, program: &Program) -> io::Result<()> {
    write_modules(out, &program.modules)?;
    let stack = program.stack.map(|(start, end)| MapLine::new((start, end), "rw-p", STACK, None));
    write!(out, "{}", stack.unwrap_or(NO_STACK))
}

#[cfg(target_os = "linux")]
fn write_modules(out: &mut impl Write, modules: &[LoadedModule]) -> io::Result<()> {
    modules.iter().try_for_each(|(module, _)| {
        let (path, build_id) = (&*module.map_path(), module.build_id.as_deref());
        write!(out, "{}", MapLine::new((module.start, module.end), "r-xp", path, build_id))
    })
}

#[cfg(not(target_os = "linux"))]
fn write_modules(out: &mut impl Write, modules: &[LoadedModule]) -> io::Result<()> {
    modules.iter().try_for_each(|LoadedModule { name, start }| {
        write!(out, "{}", MapLine::new((*start, NO_STACK.start), "r-xp", name, None))
    })
}

/// The modules that have symbols, with the names of their symbol files and their paths in the map.
#[cfg(target_os = "linux")]
fn symbol_files(program: &Program) -> Vec<(String, String, &LoadedModule)> {
    use rftrace_format::symbols::{ModuleId, SymbolFileNames};

    let named = |(module, symbols): &'_ LoadedModule| {
        let symbols = symbols.as_ref().filter(|table| !table.symbols().is_empty());
        symbols.map(|_| module.map_path())
    };
    let modules: Vec<(String, &LoadedModule)> =
        program.modules.iter().filter_map(|module| Some((named(module)?, module))).collect();
    let ids = modules.iter().map(|(path, (module, _))| ModuleId { path, build_id: module.build_id.as_deref() });
    let names = SymbolFileNames::of(ids);
    names.into_iter().zip(modules).filter_map(|(name, (path, module))| Some((name?, path, module))).collect()
}

/// A `.dbg` file for each module with functions that have values.
#[cfg(target_os = "linux")]
fn write_specs(directory: &Path, program: &Program, specs: &KnownSpecs) -> Result<(), Error> {
    use super::symfile;
    if specs.is_empty() {
        return Ok(());
    }
    for (name, map_path, (module, symbols)) in symbol_files(program) {
        let Some(symbols) = symbols else { continue };
        let own = specs.range((module.start, false)..(module.end, false));
        let own = own.map(|(&(address, is_result), specs)| (address - module.start, is_result, &**specs));
        let path = directory.join(name).with_extension("dbg");
        let text = symfile::specs(symbols, &map_path, own);
        if let Some(text) = text {
            write_file(&path, |out| out.write_all(text.as_bytes()))?;
        }
    }
    Ok(())
}

/// No values are recorded there.
#[cfg(not(target_os = "linux"))]
fn write_specs(_: &Path, _: &Program, _: &KnownSpecs) -> Result<(), Error> {
    Ok(())
}

/// A `.sym` file for each module that has symbols.
#[cfg(target_os = "linux")]
fn write_symbols(directory: &Path, program: &Program, left_out: &LeftOut<'_>) -> Result<(), Error> {
    use super::symfile;
    if program.is_named {
        return Ok(());
    }
    let mut done = BTreeSet::new();
    for (name, map_path, (_, symbols)) in symbol_files(program) {
        let Some(symbols) = symbols else { continue };
        // The same library loaded twice has one file.
        if !done.insert(name.clone()) {
            continue;
        }
        let path = directory.join(name);
        let written = write_file(&path, |out| symfile::write_symbols(out, symbols, &map_path));
        if let Err(error) = written {
            left_out.note(error)?;
            // A part of the names would look like all of them.
            let _ = fs::remove_file(&path);
        }
    }
    if let Some(path) = &program.without_names {
        let source = io::ErrorKind::OutOfMemory.into();
        // Its calls are there, and names can be added later.
        let _ = left_out.note(Error::Read { path: path.clone(), source });
    }
    Ok(())
}

/// The image's functions are added on the host.
#[cfg(not(target_os = "linux"))]
fn write_symbols(_directory: &Path, _program: &Program, _left_out: &LeftOut<'_>) -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_an_older_trace_is_left() {
        let directory = std::env::temp_dir().join(format!("rftrace-prepare-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let foreign = ["notes.txt", "data.dat", "default.opts"];
        let of_trace = [
            "1.dat",
            "perf-cpu0.dat",
            "perf-cpu1.dat",
            "extern.dat",
            "sid-0123456789abcdef.map",
            "prog.sym",
            "prog.dbg",
            "task.txt",
            "events.txt",
            "clock.txt",
            "record.txt",
        ];
        for name in foreign.iter().chain(&of_trace) {
            fs::write(directory.join(name), "").unwrap();
        }
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        prepare(&directory).unwrap();
        assert_eq!(names().len(), foreign.len() + of_trace.len(), "it is no trace");
        fs::write(directory.join("info"), b"Ftrace!\0").unwrap();
        prepare(&directory).unwrap();
        assert_eq!(names(), ["data.dat", "default.opts", "notes.txt"]);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn equal_losses_share_an_event() {
        let ids = EventIds::default();
        let first = ids.of_loss(EventKind::Lost(1));
        assert_eq!(first, USER_EVENTS.start);
        assert_ne!(ids.of_loss(EventKind::Lost(2)), first);
        assert_eq!(ids.of_loss(EventKind::Lost(1)), first);
    }
}
