//! A new trace directory with a part of a trace.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use rftrace_format::events::{EventLine, USER_EVENTS, event_name};
use rftrace_format::files::{EVENTS, File as TraceFile, INFO, records};
use rftrace_format::info::{Changes, feature};
use rftrace_format::store::{self, Owned};
use rftrace_format::tasks::TaskLine;
use rftrace_read::{Error, Kind, Record, Result, SCHED_IN, Summary, Trace, files, info};

use super::walk::{ExportOptions, Item, walk};

/// Writes the chosen part of `trace` as a trace directory. The directory must be absent or empty.
///
/// Its records are balanced: missing exits are added, and functions open at the beginning are entered there.
///
/// Context switches and functions in the kernel move into the tasks' own files; uftrace shows no names for functions of
/// the kernel there. Symbols, maps and other files are copied; `task.txt` names only tasks with records. `info` comes
/// last: a directory without it is no trace.
///
/// # Errors
///
/// The trace cannot be read, its chosen part is empty, or the directory cannot be written.
pub fn write_directory(trace: &Trace, options: &ExportOptions, directory: &Path) -> Result<Summary> {
    let tasks = options.tasks(trace)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::WriteFile { path, source }
    };
    let owned = &prepare(directory)?;
    let mut summary = Summary::default();
    let mut tids = Vec::new();
    let mut has_events = false;
    let mut kernel_events = BTreeSet::new();
    for task in tasks {
        let path = directory.join(records(task.tid()));
        let mut file = Records {
            owned,
            path: path.clone(),
            out: None,
            depth: 0,
            has_events: false,
            kernel_events: BTreeSet::new(),
        };
        walk(trace, task, options, &mut summary, &mut |item| {
            let payload = item.recorded().map_or(Ok(Vec::new()), |record| trace.payload(task, &record))?;
            file.write(item, &payload).map_err(failed(&path))
        })?;
        if let Some(mut out) = file.out {
            out.flush().map_err(failed(&file.path))?;
            tids.push(task.tid());
            has_events |= file.has_events;
            kernel_events.extend(file.kernel_events);
        }
    }
    if tids.is_empty() {
        // Nothing but the empty directory is there yet.
        return Err(Error::Export("this part of the trace has no records; choose another part".into()));
    }
    copy_metadata(trace.dir(), directory, &tids.iter().copied().collect())?;
    if !kernel_events.is_empty() {
        let path = directory.join(EVENTS);
        let line = |&id: &u64| {
            let name = event_name(&trace.events().name(id));
            EventLine { id: user_event(id), name: &name }.to_string()
        };
        let lines: String = kernel_events.iter().map(line).collect();
        let file = store::append(&path);
        file.and_then(|mut file| file.write_all(lines.as_bytes())).map_err(failed(&path))?;
    }
    let info = files::read(&trace.dir().join(INFO), info::MAX_BYTES)?;
    let path = directory.join(INFO);
    // Context switches are events among the records now.
    let features = trace.info().features() & !(feature::KERNEL | feature::PERF_EVENT);
    let features = features | if has_events { feature::EVENT } else { 0 };
    let changes = Changes { features: Some(features), tids: Some(&tids), ..Changes::default() };
    store::write(&path, changes.apply(&info)).map_err(failed(&path))?;
    Ok(summary)
}

fn prepare(directory: &Path) -> Result<Owned> {
    let failed = |source| Error::WriteFile { path: directory.to_owned(), source };
    if store::Contents::of(directory).map_err(failed)? != store::Contents::Nothing {
        let reason = format!("{}: the directory is not empty; choose another one, or remove it", directory.display());
        return Err(Error::Export(reason.into()));
    }
    Owned::take(directory).map_err(failed)
}

/// The kernel's numbers of events are below this one.
const MAX_KERNEL_EVENT: u64 = 0xffff;

/// Returns a valid number of a program's event for one of the kernel's.
fn user_event(id: u64) -> u64 {
    USER_EVENTS.end - 1 - id
}

/// Copies all files except `info` and the records.
fn copy_metadata(from: &Path, to: &Path, tids: &BTreeSet<u32>) -> Result<()> {
    let unreadable = |path: &Path, source| Error::Io { path: path.to_owned(), source };
    for entry in fs::read_dir(from).map_err(|source| unreadable(from, source))? {
        let path = entry.map_err(|source| unreadable(from, source))?.path();
        let Some(name) = path.file_name() else { continue };
        let kind = name.to_str().and_then(TraceFile::of);
        let is_replaced =
            kind.is_some_and(|kind| matches!(kind, TraceFile::Info | TraceFile::KernelHeader) || kind.is_data());
        if !is_replaced && path.is_file() {
            let target = to.join(name);
            let copied = match kind {
                Some(TraceFile::Tasks) => copy_tasks(&files::open(&path)?, &target, tids),
                _ => fs::copy(&path, &target).map(drop),
            };
            copied.map_err(|source| Error::WriteFile { path: target, source })?;
        }
    }
    Ok(())
}

/// Copies the lines of `task.txt`, except those of tasks without a file here.
fn copy_tasks(from: &File, to: &Path, tids: &BTreeSet<u32>) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(to)?);
    for line in BufReader::new(from).split(b'\n') {
        let line = line?;
        let parsed = str::from_utf8(&line).ok().and_then(|line| TaskLine::parse(line).ok()?);
        if !matches!(parsed, Some(TaskLine::Task { tid, .. }) if !tids.contains(&tid)) {
            out.write_all(&[&line, &b"\n"[..]].concat())?;
        }
    }
    out.flush()
}

/// A task's file, created with its first record.
struct Records<'a> {
    owned: &'a Owned,
    path: PathBuf,
    out: Option<BufWriter<File>>,
    depth: u16,
    has_events: bool,
    /// The events of the kernel in it, by the kernel's numbers.
    kernel_events: BTreeSet<u64>,
}

impl Records<'_> {
    fn write(&mut self, item: Item, payload: &[u8]) -> io::Result<()> {
        let depth = self.depth;
        let (time_ns, kind, addr) = match item {
            Item::Enter { time_ns, function } => {
                self.depth = depth.saturating_add(1);
                (time_ns, Kind::Entry, function.addr)
            }
            Item::Exit { time_ns, function } => {
                self.depth = depth.saturating_sub(1);
                (time_ns, Kind::Exit, function.addr)
            }
            Item::SwitchOut { time_ns, kind } => (time_ns, Kind::Event, kind.event()),
            Item::SwitchIn { time_ns } => (time_ns, Kind::Event, SCHED_IN),
            Item::Event { time_ns, id } if id <= MAX_KERNEL_EVENT => {
                self.kernel_events.insert(id);
                (time_ns, Kind::Event, user_event(id))
            }
            Item::Event { time_ns, id } => (time_ns, Kind::Event, id),
            Item::Lost { time_ns, count } => (time_ns, Kind::Lost, count),
        };
        self.has_events |= kind == Kind::Event;
        let depth = if kind == Kind::Exit { self.depth } else { depth };
        let out = match &mut self.out {
            Some(out) => out,
            None => self.out.insert(BufWriter::new(self.owned.create(self.path.file_name().unwrap_or_default())?)),
        };
        let has_payload = !payload.is_empty();
        out.write_all(&Record { time_ns, kind, has_payload, payload_at: 0, depth, addr }.encode())?;
        out.write_all(payload)
    }
}
