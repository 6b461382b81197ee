//! The trace directory that joins the parts of the recorded processes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rftrace_format::events::{DID_NOT_RETURN, EventLine, user_event};
use rftrace_format::files::{self, File as TraceFile};
use rftrace_format::gaps::{self, Gaps};
use rftrace_format::info::Changes;
use rftrace_format::map::{MapLine, STACK};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::perf::{self, THREAD_NAME_BYTES};
use rftrace_format::record::{Kind, RECORD_BYTES, Record};
use rftrace_format::recording::{Entry, Fork, PART_FILE, Part, Saved};
use rftrace_format::store;
use rftrace_format::symbols::{Head, ModuleId, SymbolFileNames};
use rftrace_format::tasks::TaskLine;
use rftrace_read::info;

use super::dumps::NotThere;
use super::kernel::InKernel;
use super::output::link;
use super::run::Ended;
use super::values::{PartValues, SpecFiles};

/// The summary of the joined recording.
#[derive(Debug, Default)]
pub struct Joined {
    /// The number of entries and exits.
    pub events: u64,
    /// The number of threads with records.
    pub threads: usize,
    /// The number of processes that saved anything; 0 if there is no trace.
    pub processes: usize,
    /// The number of calls beyond the deepest recorded level.
    pub lost: u64,
    /// The number of processes whose buffer was full.
    pub full: usize,
    /// The number of overwritten chunks.
    pub overwritten: u64,
    /// The number of threads beyond the maximum at one time.
    pub untraced_threads: u64,
    /// The number of saves that were not made because of the size limit.
    pub too_much: usize,
    /// The number of calls and returns that found no room while the program ran.
    pub dropped: u64,
    /// The number of processes that outlived their recording.
    pub cut: usize,
    /// The number of unreadable chunks.
    pub damaged: u64,
    /// The number of processes with records or names that could not be written.
    pub unwritten: usize,
    /// The reason why there is no trace, although there are records, which stay where they are.
    pub failed: Option<anyhow::Error>,
    /// The size of the trace in bytes.
    pub bytes: u64,
    /// The data that could not be saved, with reasons.
    pub errors: Vec<String>,
    /// The number of parts with records that could not be joined.
    pub left_over: usize,
    /// The directories of the snapshots.
    pub snapshots: Vec<PathBuf>,
    /// The numbers of due dumps that do not exist.
    pub dumps_not_there: NotThere,
    /// The counts of the kernel's records, if it was recorded.
    pub kernel: Option<InKernel>,
    /// True if allocations of memory were recorded.
    pub has_resources: bool,
    /// The status of `wait` of each process whose end is known.
    pub ends: BTreeMap<u32, i32>,
    /// The processes that went on after their last record.
    pub cut_off: BTreeSet<u32>,
}

impl Joined {
    /// Returns true if there is no trace, neither of calls nor of resources, and no snapshot.
    pub fn is_empty(&self) -> bool {
        self.processes == 0 && self.snapshots.is_empty() && !self.has_resources
    }

    /// Returns true if all that was recorded is in the trace, as far as its files could be written and read.
    pub fn is_whole(&self) -> bool {
        self.failed.is_none() && self.left_over == 0 && self.unwritten == 0
    }

    /// Returns the summary of a trace.
    ///
    /// # Errors
    ///
    /// There is no trace, although there are records.
    pub fn made(mut self) -> Result<Self> {
        self.failed.take().map_or(Ok(self), Err)
    }

    /// Writes the losses into the trace, for later readers.
    pub(crate) fn keep(&self, has_schedule: bool, dir: &Path) -> Result<()> {
        let gaps = Gaps {
            full: self.full as u64,
            overwritten: self.overwritten,
            untraced_threads: self.untraced_threads,
            too_much: self.too_much as u64,
            unwritten: self.unwritten as u64,
            dropped: self.dropped,
            cut: self.cut as u64,
            damaged: self.damaged,
            schedule: has_schedule,
            library: false,
        };
        let ends = self.ends.iter().map(|(&pid, &status)| gaps::end_line(pid, status));
        let cut_off = self.cut_off.iter().map(|&pid| gaps::cut_off_line(pid));
        write(&dir.join(files::GAPS), (gaps.to_string() + &ends.chain(cut_off).collect::<String>()).as_bytes())
    }
}

/// Files saved by a process at some moment.
#[derive(Debug)]
struct SavedPart {
    dir: PathBuf,
    /// When it was saved.
    nanos: u64,
    told: Part,
    tasks: Vec<Line>,
}

/// A line of `task.txt`.
#[derive(Clone, Debug)]
struct Line {
    nanos: u64,
    /// In this order at one time.
    rank: u8,
    /// The session begun by it.
    sid: Option<String>,
    text: String,
}

/// Makes one directory of all parts in `work`, which stay as they are. Of nothing it makes nothing; `processes` is 0
/// then. An interrupted recording does not know the end of the program. `notes` are messages of processes.
pub(crate) fn join(work: &Path, dir: &Path, ended: Option<&Ended>, notes: Vec<String>) -> Result<Joined> {
    // A limit on the size of files is an error then, not the end.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let mut joined = Joined { errors: notes, ..Joined::default() };
    let mut parts = read_parts(work, &mut joined)?;
    if !parts.iter().any(SavedPart::has_trace) {
        return Ok(joined);
    }
    let mut events = EventIds::default();
    let mut names = SymbolFileNames::default();
    // The program of a task when it was last saved.
    let mut programs = HashMap::new();
    let mut specs = SpecFiles::default();
    let mut before: HashMap<u32, &SavedPart> = HashMap::new();
    for part in parts.iter().filter(|part| part.has_trace()) {
        let map = events.of_part(part)?;
        let values = PartValues::of(&part.dir)?;
        specs.add(&part.dir, &mut names)?;
        for tid in part.tids()? {
            let name = files::records(tid);
            let program = (part.told.pid, part.told.program);
            let goes_on = programs.insert(tid, program) == Some(program);
            let places = (&*part.dir.join(&name), &*dir.join(&name));
            let last = before.insert(tid, part);
            append(tid, places, &map, goes_on, (values.as_ref(), last.map(|part| &*part.dir)))?;
        }
        add_symbols(&part.dir, dir, &mut names)?;
    }
    let mut tids: Vec<u32> = before.into_keys().collect();
    specs.write(dir)?;
    if !events.names.is_empty() {
        let lines = events.names.iter().map(|(name, &id)| EventLine { id, name }.to_string());
        write(&dir.join(files::EVENTS), lines.collect::<String>().as_bytes())?;
    }
    join_names(&parts, dir)?;
    let lines = join_tasks(&mut parts, dir)?;
    write(&dir.join(files::TASKS), lines.as_bytes())?;
    joined.threads = tids.len();
    let mut pids: Vec<u32> = parts.iter().filter(|part| part.has_trace()).map(|part| part.told.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    joined.processes = pids.len();
    // In the order of their programs: the last one's end is the process's.
    joined.ends = parts.iter().filter_map(|part| Some((part.told.pid, part.told.status?))).collect();
    joined.ends.extend(ended.map(|ended| (ended.pid, ended.status.into_raw())));
    // The program's comes first, wherever it was saved.
    let is_main = |part: &&SavedPart| part.has_trace() && ended.is_some_and(|ended| part.told.pid == ended.pid);
    let main = parts.iter().find(is_main).or_else(|| parts.iter().find(|part| part.has_trace()));
    let main = main.context("nothing was recorded")?;
    link(&main.dir.join(files::CLOCK), &dir.join(files::CLOCK))?;
    tids.sort_by_key(|&tid| (tid != main.told.pid, tid));
    write_info(&parts, main, &tids, dir, ended)?;
    Ok(joined)
}

/// The parts, in the order in which they were recorded. They may have been saved in another one: the recorder may find
/// two programs of one process over at the same look.
fn read_parts(work: &Path, joined: &mut Joined) -> Result<Vec<SavedPart>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(work).with_context(|| format!("cannot read {}", work.display()))? {
        let dir = entry.with_context(|| format!("cannot read {}", work.display()))?.path();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (pid, nanos) = match Entry::of(&name) {
            Some(Entry::Error { pid }) => {
                let text = opener::read_text(&dir, MOST_TEXT).unwrap_or_default();
                joined.errors.push(format!("process {pid} was not recorded: {}", text.trim()));
                continue;
            }
            Some(Entry::Part { pid, nanos }) => (pid, nanos),
            _ => continue,
        };
        let Some(mut told) = Part::parse(&opener::read(&dir.join(PART_FILE), MOST_TEXT).unwrap_or_default()) else {
            joined.left_over += usize::from(has_records(&dir));
            // Unless the process itself has said why.
            if !joined.errors.iter().any(|error| error.starts_with(&format!("process {pid}: "))) {
                joined.errors.push(format!("{name} is incomplete: its process was killed while it saved"));
            }
            continue;
        };
        if let Some(problem) = &told.problem {
            joined.errors.push(format!("process {}: {problem}", told.pid));
        }
        let path = dir.join(files::INFO);
        if path.is_file()
            && let Err(error) = info::read(&path)
        {
            joined.errors.push(format!("{error}; the trace lacks the records in {name}, which stays in place"));
            joined.damaged += 1;
            told.saved = Saved::Failed;
        }
        match told.saved {
            Saved::Trace(counts) => {
                joined.events += counts.events;
                joined.lost += counts.lost;
                joined.full += usize::from(counts.full);
                joined.overwritten += counts.chunks_overwritten;
                joined.dropped += counts.dropped;
                joined.too_much += usize::from(counts.too_large);
                joined.cut += usize::from(counts.cut);
                joined.damaged += counts.damaged;
                joined.unwritten += usize::from(counts.unwritten);
                joined.untraced_threads += counts.untraced_threads;
                joined.cut_off.extend(counts.lacks_end().then_some(told.pid));
            }
            Saved::TooMuch => joined.too_much += 1,
            Saved::Failed => {
                joined.unwritten += 1;
                joined.left_over += usize::from(has_records(&dir));
            }
        }
        parts.push(SavedPart { dir, nanos, told, tasks: Vec::new() });
    }
    parts.sort_by_key(|part| (part.began(), part.nanos, part.told.pid));
    Ok(parts)
}

/// True if a part has records of a task.
fn has_records(part: &Path) -> bool {
    let is_records = |name: &str| matches!(TraceFile::of(name), Some(TraceFile::Records(_)));
    fs::read_dir(part)
        .is_ok_and(|entries| entries.flatten().any(|entry| is_records(&entry.file_name().to_string_lossy())))
}

impl SavedPart {
    /// When its process began to run its program.
    fn began(&self) -> u64 {
        self.told.fork.map_or(self.told.program, |fork| self.told.program.max(fork.nanos))
    }

    fn has_trace(&self) -> bool {
        self.told.saved != Saved::Failed && self.dir.join(files::INFO).is_file()
    }

    fn tids(&self) -> Result<Vec<u32>> {
        Ok(info::read(&self.dir.join(files::INFO))?.tids().to_vec())
    }
}

/// Ids of events: the same name has the same id in the whole trace.
#[derive(Default)]
struct EventIds {
    names: BTreeMap<String, u64>,
}

impl EventIds {
    /// Returns the new ids for the changed ids of a part.
    fn of_part(&mut self, part: &SavedPart) -> Result<HashMap<u64, u64>> {
        let path = part.dir.join(files::EVENTS);
        let text = match opener::read_text(&path, MOST_TEXT) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut map = HashMap::new();
        for line in text.lines() {
            let Some(EventLine { id, name }) = EventLine::parse(line) else { continue };
            let next = user_event(name, self.names.len());
            let global = *self.names.entry(name.to_owned()).or_insert(next);
            if global != id {
                map.insert(id, global);
            }
        }
        Ok(map)
    }
}

/// Puts a task's records behind the existing ones. Times do not go back: two saves know the clock's rate to some
/// digits.
///
/// If the same program `goes_on`, functions open at the save are neither left nor entered again. The records come from
/// a part with `values`, if it has some, and the last ones of the task from the part `before`.
fn append(
    tid: u32,
    (from, to): (&Path, &Path),
    ids: &HashMap<u64, u64>,
    goes_on: bool,
    (values, before): (Option<&PartValues>, Option<&Path>),
) -> Result<()> {
    if to.exists() {
        unlink(to)?;
    } else if ids.is_empty() {
        return link(from, to);
    }
    let n_open = if goes_on { open_functions(from, to)? } else { 0 };
    if n_open > 0 {
        let file = OpenOptions::new().write(true).open(to);
        file.and_then(|file| file.set_len(file.metadata()?.len() - 2 * n_open * RECORD_BYTES as u64))
            .with_context(|| format!("cannot write {}", to.display()))?;
    }
    // Behind the last record may be values.
    let mut last = match before.map(PartValues::of).transpose()?.flatten() {
        Some(before) => before.last_time(tid)?,
        None => last_time(to)?,
    };
    let reading = || format!("cannot read {}", from.display());
    let writing = || format!("cannot write {}", to.display());
    let mut input = BufReader::new(opener::open(from).with_context(reading)?);
    let output = store::append(to).with_context(writing)?;
    let mut output = BufWriter::with_capacity(256 << 10, output);
    let mut record = [0; RECORD_BYTES];
    input.seek_relative((n_open * RECORD_BYTES as u64).cast_signed()).with_context(reading)?;
    loop {
        match input.read_exact(&mut record) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            result => result.with_context(reading)?,
        }
        // Bytes of no record stay as they are.
        if let Some(mut decoded) = Record::decode(&record) {
            last = last.max(decoded.time_ns);
            decoded.time_ns = last;
            if decoded.kind == Kind::Event
                && let Some(&id) = ids.get(&decoded.addr)
            {
                decoded.addr = id;
            }
            record = decoded.encode();
            output.write_all(&record).with_context(writing)?;
            if decoded.has_payload
                && let Some(values) = values
            {
                let payload = values.read(tid, &decoded, &mut input).with_context(reading)?;
                output.write_all(&payload).with_context(writing)?;
            }
            continue;
        }
        output.write_all(&record).with_context(writing)?;
    }
    output.flush().with_context(writing)
}

/// The number of functions open from the end of one file to the beginning of the next: the one ends with their exits,
/// each after the event of its missing return, the other begins with their entries.
fn open_functions(from: &Path, to: &Path) -> Result<u64> {
    /// More than are ever open.
    const MOST: usize = 1024;

    let bytes = fs::metadata(to).with_context(|| format!("cannot read {}", to.display()))?.len();
    let n_read = (bytes / RECORD_BYTES as u64).min(2 * MOST as u64);
    // From its end back: such exits have no values, others may.
    let mut end = read_records(to, bytes - n_read * RECORD_BYTES as u64, 2 * MOST)?;
    end.reverse();
    let is_open = |event: Record| event.kind == Kind::Event && event.addr == DID_NOT_RETURN;
    let (pairs, _) = end.as_chunks();
    let end: Vec<Record> =
        pairs.iter().map_while(|&[exit, event]| event.filter(|&event| is_open(event)).and(exit)).collect();
    let beginning = read_records(from, 0, MOST)?;
    let beginning: Vec<Record> = beginning.into_iter().map_while(|record| record).collect();
    let is_open = |place: usize, exit: Record, entry: Record| {
        let fits = exit.kind == Kind::Exit && entry.kind == Kind::Entry && exit.addr == entry.addr;
        let is_at = |record: Record| usize::from(record.depth) == place;
        fits && is_at(exit) && is_at(entry) && exit.time_ns == end[0].time_ns && entry.time_ns == beginning[0].time_ns
    };
    let pairs = end.iter().zip(&beginning).enumerate();
    Ok(pairs.take_while(|&(place, (&exit, &entry))| is_open(place, exit, entry)).count() as u64)
}

/// Some records of a file, from a byte on; `None` for other bytes.
fn read_records(path: &Path, start: u64, most: usize) -> Result<Vec<Option<Record>>> {
    let context = || format!("cannot read {}", path.display());
    let mut file = opener::open(path).with_context(context)?;
    file.seek(SeekFrom::Start(start)).with_context(context)?;
    let mut bytes = Vec::new();
    file.take((most * RECORD_BYTES) as u64).read_to_end(&mut bytes).with_context(context)?;
    let (records, _) = bytes.as_chunks();
    Ok(records.iter().map(Record::decode).collect())
}

/// The time of a file's last record; 0 if it has none.
fn last_time(path: &Path) -> Result<u64> {
    let context = || format!("cannot read {}", path.display());
    let n_records = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        metadata => metadata.with_context(context)?.len() / RECORD_BYTES as u64,
    };
    let last = read_records(path, n_records.saturating_sub(1) * RECORD_BYTES as u64, 1)?;
    Ok(last.first().and_then(|record| *record).map_or(0, |record| record.time_ns))
}

/// Takes the symbol files of a part. Files of different modules with one name get distinct names, by uftrace's rule.
fn add_symbols(from: &Path, to: &Path, names: &mut SymbolFileNames) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", from.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if TraceFile::of(&name) != Some(TraceFile::Symbols) {
            continue;
        }
        let head = head(&path)?;
        let module = ModuleId { path: head.path.as_deref().unwrap_or_default(), build_id: head.build_id.as_deref() };
        let Some(name) = names.name(module) else { continue };
        let place = to.join(name);
        if !place.exists() {
            link(&path, &place)?;
        }
    }
    Ok(())
}

/// How a symbol file begins.
fn head(path: &Path) -> Result<Head> {
    let mut bytes = Vec::new();
    let file = opener::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = file.take(Head::MAX_BYTES as u64).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Head::parse(&bytes))
}

/// The names of threads, in order of time.
fn join_names(parts: &[SavedPart], dir: &Path) -> Result<()> {
    let name = files::perf(0);
    let mut records = Vec::new();
    for path in parts.iter().filter(|part| part.has_trace()).map(|part| part.dir.join(&name)) {
        match opener::read(&path, MOST_TEXT) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            bytes => records.extend(bytes.with_context(|| format!("cannot read {}", path.display()))?),
        }
    }
    let (records, _) = records.as_chunks_mut::<THREAD_NAME_BYTES>();
    if records.is_empty() {
        return Ok(());
    }
    records.sort_by_key(|record| perf::time_ns(record));
    write(&dir.join(name), records.as_flattened())
}

/// One map for each executed program, and one `task.txt`.
fn join_tasks(parts: &mut [SavedPart], dir: &Path) -> Result<String> {
    /// A program in its address space.
    struct Session {
        sid: String,
        pid: u32,
        nanos: u64,
        modules: String,
    }

    for part in parts.iter_mut().filter(|part| part.has_trace()) {
        part.tasks = read_tasks(&part.dir.join(files::TASKS))?;
    }
    // A process without a save is named only if it forked others.
    let is_parent = |pid| parts.iter().any(|part| part.told.fork.is_some_and(|fork| fork.parent == pid));
    let mut order: Vec<usize> =
        (0..parts.len()).filter(|&place| parts[place].has_trace() || is_parent(parts[place].told.pid)).collect();
    order.sort_by_key(|&place| parts[place].tasks.first().map_or(u64::MAX, |line| line.nanos));
    let mut sessions: Vec<Session> = Vec::new();
    // Names of left-out sessions, each with the name of the session in its place.
    let mut called: HashMap<String, String> = HashMap::new();
    let mut lines = Vec::new();
    let mut forked = Vec::new();
    for part in order.into_iter().map(|place| &parts[place]) {
        let (pid, fork) = (part.told.pid, part.told.fork);
        if let Some(Fork { parent, nanos }) = fork.filter(|_| !forked.contains(&pid)) {
            forked.push(pid);
            lines.push(Line::new(TaskLine::Fork { time_ns: nanos, pid, ppid: parent }));
        }
        for line in &part.tasks {
            let Some(sid) = &line.sid else {
                lines.push(line.clone());
                continue;
            };
            let name = files::map(sid);
            let from = part.dir.join(&name);
            let modules = modules(&from)?;
            let is_known = |session: &Session| {
                let inherits = fork.is_some_and(|fork| session.pid == fork.parent && session.nanos <= fork.nanos);
                (session.pid == pid || inherits) && session.modules == modules
            };
            let own = sessions.iter().rev().find(|session| session.pid == pid);
            let known = own.map_or_else(
                || sessions.iter().find(|session| is_known(session)),
                |own| Some(own).filter(|session| is_known(session)),
            );
            if let Some(known) = known {
                called.insert(sid.clone(), known.sid.clone());
                continue;
            }
            link(&from, &dir.join(&name))?;
            sessions.push(Session { sid: sid.clone(), pid, nanos: line.nanos, modules });
            lines.push(line.clone());
        }
    }
    for line in &mut lines {
        line.text = match TaskLine::parse(&line.text) {
            Ok(Some(TaskLine::Dlopen { time_ns, tid, sid, base, path })) if called.contains_key(sid) => {
                TaskLine::Dlopen { time_ns, tid, sid: &called[sid], base, path }.to_string()
            }
            _ => continue,
        };
    }
    lines.sort_by_key(|line| (line.nanos, line.rank));
    Ok(lines.into_iter().map(|line| line.text).collect())
}

/// Returns the lines of a map, without the stack, which grows.
fn modules(map: &Path) -> Result<String> {
    let text = opener::read_text(map, MOST_TEXT).with_context(|| format!("cannot read {}", map.display()))?;
    let is_stack = |line: &&str| MapLine::parse(line).is_ok_and(|line| line.path == STACK);
    Ok(text.lines().filter(|line| !is_stack(line)).map(|line| format!("{line}\n")).collect())
}

fn read_tasks(path: &Path) -> Result<Vec<Line>> {
    let text = opener::read_text(path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().filter_map(|line| Some(Line::new(TaskLine::parse(line).ok()??))).collect())
}

impl Line {
    fn new(line: TaskLine<'_>) -> Self {
        let (rank, sid) = match line {
            TaskLine::Fork { .. } => (0, None),
            TaskLine::Session { sid, .. } => (1, Some(sid.to_owned())),
            TaskLine::Task { .. } | TaskLine::Dlopen { .. } => (2, None),
        };
        Self { nanos: line.time_ns(), rank, sid, text: line.to_string() }
    }
}

/// `info`, from the program's and the facts known now.
fn write_info(parts: &[SavedPart], main: &SavedPart, tids: &[u32], dir: &Path, ended: Option<&Ended>) -> Result<()> {
    let mut features = 0;
    for part in parts.iter().filter(|part| part.has_trace()) {
        features |= info::read(&part.dir.join(files::INFO))?.features();
    }
    let path = main.dir.join(files::INFO);
    let bytes = opener::read(&path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
    let changes = Changes {
        features: Some(features),
        tids: Some(tids),
        exit_status: ended.map(|ended| ended.status.into_raw()),
        elapsed: ended.map(|ended| ended.elapsed),
        usage: ended.map(|ended| &ended.usage),
    };
    write(&dir.join(files::INFO), &changes.apply(&bytes))
}

/// Returns the reason why there is no trace. `was_put` is true if the tracer was put into the program from outside,
/// which leaves no files in `work`.
pub fn why_nothing(work: &Path, ended: &Ended, was_put: bool) -> &'static str {
    let has_entry = fs::read_dir(work).is_ok_and(|entries| {
        let is_process = |name: &str| matches!(Entry::of(name), Some(Entry::Process { .. }));
        entries.flatten().any(|entry| is_process(&entry.file_name().to_string_lossy()))
    });
    match (was_put || has_entry, ended.status.signal()) {
        (true, Some(9)) => {
            "SIGKILL ended the program before it could save its records; take a snapshot earlier (--signal-snapshot)"
        }
        (true, _) => {
            "no function with a call of the tracer ran while recording was on, or the program ended with its own exit \
             system call"
        }
        (false, _) => {
            "the program did not load the tracer (setuid programs never do), or none of its functions calls the tracer"
        }
    }
}

/// Makes a copy of a file with a further name, before it is changed.
fn unlink(path: &Path) -> Result<()> {
    let copy = path.with_extension("copy");
    let copied = match fs::metadata(path) {
        Ok(meta) if meta.nlink() > 1 => fs::copy(path, &copy).and_then(|_| fs::rename(&copy, path)),
        meta => meta.map(drop),
    };
    copied.with_context(|| format!("cannot copy {}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    store::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use rftrace_format::recording::Counts;

    use super::*;

    #[test]
    fn parts_come_in_the_order_of_programs() {
        let work = tempfile::tempdir().unwrap();
        let fork = Some(Fork { parent: 1, nanos: 130 });
        // Program and fork, and the time of the save: a later program of a process may have been saved first.
        let saved = [(100, None, 300), (100, None, 310), (150, None, 290), (50, fork, 280), (50, None, 270)];
        for (program, fork, nanos) in saved {
            let dir = work.path().join(Entry::Part { pid: 7, nanos }.to_string());
            fs::create_dir(&dir).unwrap();
            let told =
                Part { pid: 7, program, fork, saved: Saved::Trace(Counts::default()), problem: None, status: None };
            fs::write(dir.join(PART_FILE), told.to_string()).unwrap();
        }
        let parts = read_parts(work.path(), &mut Joined::default()).unwrap();
        assert_eq!(parts.iter().map(|part| part.nanos).collect::<Vec<_>>(), [270, 300, 310, 280, 290]);
    }
}
