//! A merged timeline as one trace directory: a session for each source, and new ids for tasks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use rftrace_format::clock::ClockFile;
use rftrace_format::events::{CounterLine, EventLine, SCHED_IN, event_name, user_event};
use rftrace_format::files::{self, File as TraceFile};
use rftrace_format::info::{self, InfoWriter, feature};
use rftrace_format::map::{MapLine, NO_STACK};
use rftrace_format::record::{Kind, MAX_DEPTH, RECORD_BYTES, Record};
use rftrace_format::store::{self, Owned};
use rftrace_format::symbols::{Head, ModuleId, SymbolLine, with_path};
use rftrace_format::tasks::TaskLine;
use rftrace_read::files as reading;
use rftrace_read::lines::Lines;
use rftrace_read::{Error, OffCpu, Result, Summary};

use super::scan::KvmThread;
use super::source::Source;
use super::stage::{Function, Lane, Output, Recorded};
use super::timeline::{Merge, Of};

/// Records of a task that are collected before they are written. Files are not kept open, as there may be many.
const BLOCK_BYTES: usize = 64 * 1024;
/// Names of events that are told apart; KVM has far fewer.
const MAX_EVENT_NAMES: usize = 100_000;
/// The program that KVM's events are of, its place, and the size of each of its functions.
const KVM: &str = "kvm-events";
const KVM_BASE: u64 = 0x40_0000;
const KVM_FUNCTION_BYTES: u64 = 16;

impl Merge {
    /// Writes the timeline as a directory for `rftrace replay` and uftrace, and replaces an older trace.
    ///
    /// Each source keeps its addresses and symbols in a session of its own. Events of KVM are events of tasks with the
    /// ids of the threads that ran the guest. Counters are in `extern.dat`.
    ///
    /// # Errors
    ///
    /// A source cannot be read or is malformed; `dir` is one of the sources, holds something other than a trace, or
    /// cannot be written.
    pub fn write_directory(&self, dir: &Path) -> Result<Summary> {
        let owned = self.prepare(dir)?;
        let result = self.write_prepared(&owned);
        if result.is_err() {
            // A part of a trace is of no use, and the directory should be free for the next try.
            let _ = owned.clear();
        }
        result
    }

    fn write_prepared(&self, dir: &Owned) -> Result<Summary> {
        let mut metadata = Metadata { dir, sids: HashSet::new(), task_txt: String::new() };
        for (idx, source) in self.sources.iter().enumerate() {
            metadata.add(idx, source)?;
        }
        add_kernel_symbols(dir, &self.sources)?;
        let (mut output, summary) = self.run(DirectoryOutput::new(dir, self))?;
        output.flush_all()?;
        metadata.add_kvm(self, &output)?;
        write_file(dir, files::TASKS, metadata.task_txt.as_bytes())?;
        output.write_events()?;
        write_file(dir, files::CLOCK, self.clock_file(&output).to_string().as_bytes())?;
        write_file(dir, files::INFO, &self.info(&output))?;
        Ok(summary)
    }

    /// Makes the directory, or empties it.
    fn prepare(&self, dir: &Path) -> Result<Owned> {
        let same = |other: &Path| dir.canonicalize().ok().is_some_and(|dir| other.canonicalize().ok() == Some(dir));
        if self.sources.iter().any(|source| same(source.trace.dir())) {
            let reason = format!("{}: the output is one of the sources; give another directory", dir.display());
            return Err(Error::Unaligned { reason });
        }
        let taken = Owned::take(dir).and_then(|owned| owned.clear().map(|()| owned));
        taken.map_err(|source| Error::WriteFile { path: dir.to_owned(), source })
    }

    /// The clock of the timeline, so that this directory can be merged with others.
    fn clock_file(&self, output: &DirectoryOutput<'_>) -> ClockFile {
        let clock = self.reference;
        let last_ns = output.lanes.iter().map(|lane| lane.last_ns).max().unwrap_or(clock.nanos);
        ClockFile::new(clock, (clock.ticks(last_ns), last_ns), "merge")
    }

    fn info(&self, output: &DirectoryOutput<'_>) -> Vec<u8> {
        let sources = self.sources.iter().map(|source| source.trace.info().features());
        let values = sources.fold(0, |all, own| all | own) & (feature::ARGUMENT | feature::RETURN_VALUE);
        let features = feature::TASK_SESSION | feature::SYM_REL_ADDR | feature::MAX_STACK | feature::EVENT | values;
        let written = output.lanes.iter().filter(|lane| lane.is_written);
        let tids: Vec<u32> = written.map(|lane| lane.tid).collect();
        let exe_name =
            self.sources.first().and_then(|source| source.trace.info().get(info::key::EXE_NAME)).unwrap_or("merged");
        let info = InfoWriter::new().exe_name(exe_name).command_line("rftrace merge").tasks(&tids);
        let info = if values != 0 { info.values() } else { info };
        info.finish(features)
    }
}

/// `task.txt`, maps and symbols of all sources.
struct Metadata<'d> {
    dir: &'d Owned,
    sids: HashSet<String>,
    task_txt: String,
}

impl Metadata<'_> {
    /// Takes a source's files over.
    fn add(&mut self, idx: usize, source: &Source) -> Result<()> {
        let from = source.trace.dir();
        let prefix = self.copy_symbols(idx, from)?;
        let mut lines = Lines::open(&from.join(files::TASKS))?;
        let mut sids = HashMap::new();
        while lines.next()?.is_some() {
            if let Some(line) = lines.parsed(TaskLine::parse)? {
                self.add_task_line(line, source, &prefix, &mut sids);
            }
        }
        for (old, new) in sids {
            let change = |lines: &Lines| {
                let line = lines.parsed(MapLine::parse)?;
                let path = with_prefix(line.path, &prefix);
                Ok(MapLine { path: &path, ..line }.to_string().into_bytes())
            };
            copy_lines(&from.join(files::map(&old)), (self.dir, &files::map(&new)), change)?;
        }
        Ok(())
    }

    /// Adds a line with the timeline's times and numbers.
    fn add_task_line(&mut self, line: TaskLine<'_>, source: &Source, prefix: &str, sids: &mut HashMap<String, String>) {
        let time_ns = source.times.map(line.time_ns());
        // A parent that is not in the trace may be any number.
        let moved = |number: u32| number.checked_add(source.shift).unwrap_or(number);
        let mut new_sid =
            |sid: &str| sids.entry(sid.to_owned()).or_insert_with(|| unused_sid(&mut self.sids, sid)).clone();
        self.task_txt += &match line {
            TaskLine::Session { pid, sid, exe_name, .. } => {
                let (sid, exe_name) = (&*new_sid(sid), &*with_prefix(exe_name, prefix));
                TaskLine::Session { time_ns, pid: moved(pid), sid, exe_name }.to_string()
            }
            TaskLine::Task { tid, pid, name, .. } => {
                TaskLine::Task { time_ns, tid: moved(tid), pid: moved(pid), name }.to_string()
            }
            TaskLine::Fork { pid, ppid, .. } => {
                TaskLine::Fork { time_ns, pid: moved(pid), ppid: moved(ppid) }.to_string()
            }
            TaskLine::Dlopen { tid, sid, base, path, .. } => {
                let (sid, path) = (&*new_sid(sid), &*with_prefix(path, prefix));
                TaskLine::Dlopen { time_ns, tid: moved(tid), sid, base, path }.to_string()
            }
        };
    }

    /// Copies symbols and source lines. Returns what the names of modules get in front, so that those of one name do not meet.
    fn copy_symbols(&self, idx: usize, from: &Path) -> Result<String> {
        let mut found = BTreeMap::new();
        let io_error = |source| Error::Io { path: from.to_owned(), source };
        for entry in fs::read_dir(from).map_err(io_error)? {
            let path = entry.map_err(io_error)?.path();
            if let Some(name) = path.file_name().and_then(|name| name.to_str())
                && let Some(TraceFile::Symbols | TraceFile::SourceLines) = TraceFile::of(name)
            {
                found.insert(name.to_owned(), path);
            }
        }
        let mut meets_other = false;
        for (name, path) in &found {
            let there = self.dir.path().join(name);
            meets_other |= there.exists() && !is_same(&there, path)?;
        }
        let prefix = if meets_other { format!("{idx}-") } else { String::new() };
        for (name, path) in found {
            let change =
                |lines: &Lines| Ok(with_path(lines.current_bytes(), |path| with_prefix(path, &prefix)).into_owned());
            copy_lines(&path, (self.dir, &format!("{prefix}{name}")), change)?;
        }
        Ok(prefix)
    }

    /// A session and tasks for the threads that KVM's events are of.
    fn add_kvm(&mut self, merge: &Merge, output: &DirectoryOutput<'_>) -> Result<()> {
        let lanes = || merge.lanes.iter().zip(&output.lanes).filter(|(info, _)| matches!(info.of, Of::Kvm { .. }));
        let Some(first_ns) = lanes().filter(|(_, lane)| lane.is_written).map(|(_, lane)| lane.first_ns).min() else {
            return Ok(());
        };
        let sid = unused_sid(&mut self.sids, "6b766d6b766d6b76");
        let pid = lanes().next().map_or(1, |(info, _)| info.track.pid);
        let session = TaskLine::Session { time_ns: first_ns, pid, sid: &sid, exe_name: KVM };
        let head = Head { n_symbols: Some(lanes().count() + 1), path: Some(KVM.to_owned()), build_id: None };
        let (mut text, mut symbols) = (session.to_string(), head.to_string());
        let mut end = KVM_BASE;
        for (info, lane) in lanes() {
            if lane.is_written {
                text += &TaskLine::Task { time_ns: lane.first_ns, tid: info.track.tid, pid, name: "" }.to_string();
            }
            if let (Of::Kvm { tid }, Some(addr)) = (info.of, lane.around) {
                let name = &merge.kvm_threads.get(&tid).map_or_else(String::new, KvmThread::function_name);
                let symbol = SymbolLine { addr: addr - KVM_BASE, size: 0, kind: 'T', name, mangled: None };
                symbols += &symbol.to_string();
                end = addr + KVM_FUNCTION_BYTES;
            }
        }
        symbols += &SymbolLine::end(end - KVM_BASE).to_string();
        self.task_txt.push_str(&text);
        let module = ModuleId { path: KVM, build_id: None };
        write_file(self.dir, module.plain_name(), symbols.as_bytes())?;
        let map = format!("{}{NO_STACK}", MapLine::new((KVM_BASE, end), "r-xp", KVM, None));
        write_file(self.dir, files::map(&sid), map.as_bytes())
    }
}

/// Writes the functions of the kernel that all hosts run on. The guest's may be another one, with others at the same addresses: its
/// functions have names only where no host has any.
fn add_kernel_symbols(dir: &Owned, sources: &[Source]) -> Result<()> {
    const MAX_BYTES: u64 = 64 << 20;

    let table = |source: &Source| {
        let path = source.trace.dir().join(files::KERNEL_SYMBOLS);
        reading::if_present(reading::read(&path, MAX_BYTES))
    };
    let tables: Vec<_> = sources.iter().map(table).collect::<Result<_>>()?;
    let hosts = tables.get(1..).unwrap_or_default().iter().flatten().flatten();
    let mut symbols: Vec<u8> = hosts.copied().collect();
    if symbols.is_empty() {
        symbols = tables.into_iter().flatten().next().unwrap_or_default();
    }
    if symbols.is_empty() { Ok(()) } else { write_file(dir, files::KERNEL_SYMBOLS, &symbols) }
}

/// A session's name that no other has: its own, if that is free.
fn unused_sid(taken: &mut HashSet<String>, wanted: &str) -> String {
    let number = u64::from_str_radix(wanted, 16).unwrap_or(0);
    let others = (1..).map(|n: u64| format!("{:016x}", number.wrapping_add(n)));
    let free = std::iter::once(wanted.to_owned()).chain(others).find(|sid| !taken.contains(sid)).unwrap_or_default();
    taken.insert(free.clone());
    free
}

/// A module's path with something in front of its file name.
fn with_prefix(path: &str, prefix: &str) -> String {
    if prefix.is_empty() || path.starts_with('[') || path.is_empty() {
        return path.to_owned();
    }
    let start = path.rfind('/').map_or(0, |slash| slash + 1);
    format!("{}{prefix}{}", &path[..start], &path[start..])
}

/// Copies a file line by line. `change` makes the new one, with its end, of the current one.
fn copy_lines(from: &Path, (dir, name): (&Owned, &str), change: impl Fn(&Lines) -> Result<Vec<u8>>) -> Result<()> {
    let failed = |source| Error::WriteFile { path: dir.path().join(name), source };
    let mut lines = Lines::open(from)?;
    let mut out = BufWriter::new(dir.create(name).map_err(failed)?);
    while lines.next()?.is_some() {
        out.write_all(&change(&lines)?).map_err(failed)?;
    }
    out.flush().map_err(failed)
}

/// True if two files hold the same.
fn is_same(one: &Path, other: &Path) -> Result<bool> {
    const PIECE_BYTES: u64 = 64 * 1024;

    let mut inputs = [(one, reading::open(one)?), (other, reading::open(other)?)];
    loop {
        let mut pieces = [Vec::new(), Vec::new()];
        for ((path, file), piece) in inputs.iter_mut().zip(&mut pieces) {
            let read = Read::by_ref(file).take(PIECE_BYTES).read_to_end(piece);
            read.map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
        }
        match pieces {
            [one, other] if one != other => return Ok(false),
            [one, _] if one.is_empty() => return Ok(true),
            _ => {}
        }
    }
}

/// The records of a lane.
struct LaneFile {
    tid: u32,
    path: PathBuf,
    block: Vec<u8>,
    depth: u64,
    /// A function that all of it happens in: uftrace hides events outside of functions.
    around: Option<u64>,
    is_written: bool,
    first_ns: u64,
    last_ns: u64,
}

struct DirectoryOutput<'d> {
    dir: &'d Owned,
    lanes: Vec<LaneFile>,
    /// Names of events, and their numbers.
    events: HashMap<String, u64>,
    counters: Option<BufWriter<File>>,
}

impl<'d> DirectoryOutput<'d> {
    fn new(dir: &'d Owned, merge: &Merge) -> Self {
        let mut functions = (KVM_BASE..).step_by(KVM_FUNCTION_BYTES as usize);
        let lanes = merge.lanes.iter().map(|info| LaneFile {
            around: if matches!(info.of, Of::Kvm { .. }) { functions.next() } else { None },
            tid: info.track.tid,
            path: dir.path().join(files::records(info.track.tid)),
            block: Vec::new(),
            depth: 0,
            is_written: false,
            first_ns: 0,
            last_ns: 0,
        });
        Self { dir, lanes: lanes.collect(), events: HashMap::new(), counters: None }
    }

    fn record(
        &mut self,
        lane: Lane,
        time_ns: u64,
        (kind, addr): (Kind, u64),
        recorded: Option<Recorded<'_>>,
    ) -> Result<()> {
        let state = &self.lanes[lane];
        match state.around {
            Some(around) if !state.is_written && state.block.is_empty() => {
                self.push(lane, time_ns, (Kind::Entry, around), &[])?;
            }
            _ => {}
        }
        let payload =
            recorded.map_or(Ok(Vec::new()), |Recorded { trace, task, record }| trace.payload(task, &record))?;
        self.push(lane, time_ns, (kind, addr), &payload)
    }

    fn push(&mut self, lane: Lane, time_ns: u64, (kind, addr): (Kind, u64), payload: &[u8]) -> Result<()> {
        let lane = &mut self.lanes[lane];
        // An exit has the depth of its entry.
        let depth = if kind == Kind::Exit { lane.depth.saturating_sub(1) } else { lane.depth };
        match kind {
            Kind::Entry => lane.depth += 1,
            Kind::Exit => lane.depth = depth,
            Kind::Lost | Kind::Event => {}
        }
        let depth = depth.min(MAX_DEPTH.into()) as u16;
        if lane.block.is_empty() {
            lane.block.reserve_exact(BLOCK_BYTES);
            if !lane.is_written {
                lane.first_ns = time_ns;
            }
        }
        lane.last_ns = time_ns;
        let has_payload = !payload.is_empty();
        lane.block.extend_from_slice(&Record { time_ns, kind, has_payload, payload_at: 0, depth, addr }.encode());
        lane.block.extend_from_slice(payload);
        if lane.block.len() + RECORD_BYTES > BLOCK_BYTES { lane.flush() } else { Ok(()) }
    }

    fn flush_all(&mut self) -> Result<()> {
        for lane in 0..self.lanes.len() {
            let LaneFile { around, depth, last_ns, .. } = self.lanes[lane];
            if let Some(around) = around.filter(|_| depth > 0) {
                self.push(lane, last_ns, (Kind::Exit, around), &[])?;
            }
        }
        self.lanes.iter_mut().try_for_each(LaneFile::flush)?;
        if let Some(counters) = &mut self.counters {
            let path = self.dir.path().join(files::COUNTERS);
            counters.flush().map_err(|source| Error::WriteFile { path, source })?;
        }
        Ok(())
    }

    fn write_events(&self) -> Result<()> {
        let mut events: Vec<_> = self.events.iter().map(|(name, id)| (id, name)).collect();
        events.sort();
        let lines: String = events.iter().map(|&(&id, name)| EventLine { id, name }.to_string()).collect();
        write_file(self.dir, files::EVENTS, lines.as_bytes())
    }

    fn event_id(&mut self, name: &str) -> u64 {
        if let Some(&id) = self.events.get(name) {
            return id;
        }
        let mut clean = event_name(name);
        if self.events.len() >= MAX_EVENT_NAMES {
            clean = "rftrace:other_events".to_owned();
        }
        let next = user_event(&clean, self.events.len());
        *self.events.entry(clean).or_insert(next)
    }
}

impl LaneFile {
    fn flush(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let file = if self.is_written { store::append(&self.path) } else { store::create(&self.path) };
        let written = file.and_then(|mut file| file.write_all(&self.block));
        written.map_err(|source| Error::WriteFile { path: self.path.clone(), source })?;
        self.is_written = true;
        self.block.clear();
        Ok(())
    }
}

impl Output for DirectoryOutput<'_> {
    const HAS_SLICES: bool = false;

    fn enter(&mut self, lane: Lane, time_ns: u64, function: Function<'_>) -> Result<()> {
        self.record(lane, time_ns, (Kind::Entry, function.addr), function.recorded)
    }

    fn exit(&mut self, lane: Lane, time_ns: u64, addr: u64, recorded: Option<Recorded<'_>>) -> Result<()> {
        self.record(lane, time_ns, (Kind::Exit, addr), recorded)
    }

    fn switch_out(&mut self, lane: Lane, time_ns: u64, kind: OffCpu) -> Result<()> {
        self.record(lane, time_ns, (Kind::Event, kind.event()), None)
    }

    fn switch_in(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
        self.record(lane, time_ns, (Kind::Event, SCHED_IN), None)
    }

    fn instant(&mut self, lane: Lane, time_ns: u64, name: &str) -> Result<()> {
        let id = self.event_id(name);
        self.record(lane, time_ns, (Kind::Event, id), None)
    }

    fn counter(&mut self, time_ns: u64, name: &str, value: f64) -> Result<()> {
        let path = self.dir.path().join(files::COUNTERS);
        let failed = |source| Error::WriteFile { path: path.clone(), source };
        let file = match &mut self.counters {
            Some(file) => file,
            None => self.counters.insert(BufWriter::new(self.dir.create(files::COUNTERS).map_err(failed)?)),
        };
        write!(file, "{}", CounterLine { time_ns, name, value }).map_err(failed)
    }
}

fn write_file(dir: &Owned, name: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let result = dir.create(&name).and_then(|mut file| file.write_all(bytes));
    result.map_err(|source| Error::WriteFile { path: dir.path().join(name), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_get_prefixes() {
        assert_eq!(with_prefix("/bin/a", "1-"), "/bin/1-a");
        assert_eq!(with_prefix("kernel", "1-"), "1-kernel");
        assert_eq!(with_prefix("[stack]", "1-"), "[stack]");
    }

    #[test]
    fn sids_are_unique() {
        let mut taken = HashSet::new();
        assert_eq!(unused_sid(&mut taken, "ffffffffffffffff"), "ffffffffffffffff");
        assert_eq!(unused_sid(&mut taken, "ffffffffffffffff"), "0000000000000000");
        assert_eq!(unused_sid(&mut taken, "0000000000000000"), "0000000000000001");
    }
}
