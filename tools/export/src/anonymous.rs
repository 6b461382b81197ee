//! A trace without personal facts: the command line, the host, folders, and texts of values and marks.
//!
//! Not here: the lines of its files (`rftrace_format::anonymous`).

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rftrace_format::anonymous::{Anonymous, event_line, text_line};
use rftrace_format::files::{File as TraceFile, GAPS, INFO};
use rftrace_format::gaps;
use rftrace_format::info::feature;
use rftrace_format::items::{Value, payload, read_payload};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::{snapshot, snapshot_number};
use rftrace_format::store::{self, BRANCHES, Owned};
use rftrace_read::lines::Lines;
use rftrace_read::{Error, Info, Kind, Record, Result, Task, Trace, files, info};

/// Changes a trace in its place, `info` last.
///
/// # Errors
///
/// A file cannot be read or written: the trace has personal facts still.
pub fn make_anonymous(owned: &Owned) -> Result<()> {
    let dir = owned.path();
    let mut source = Source::open(dir)?;
    for name in names_in(dir)? {
        let failed = |source| Error::WriteFile { path: dir.join(&name), source };
        match source.fate(&name) {
            Some(Fate::Changed) => {
                owned.replace(&name, |out| source.write(&name, out).map_err(io::Error::other)).map_err(failed)?;
            }
            Some(Fate::LeftOut) => fs::remove_file(dir.join(&name)).map_err(failed)?,
            Some(Fate::Same) | None => {}
        }
    }
    Ok(())
}

/// Changes the snapshots below a trace, whose names have reasons. Returns where they are.
///
/// # Errors
///
/// As of [`make_anonymous`].
pub fn make_snapshots_anonymous(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for name in names_in(dir)? {
        let path = dir.join(&name);
        let Some(number) = snapshot_number(&name).filter(|_| path.join(INFO).is_file()) else { continue };
        let failed = |source| Error::WriteFile { path: path.clone(), source };
        make_anonymous(&Owned::take(&path).map_err(failed)?)?;
        let told = opener::read(&path.join(GAPS), MOST_TEXT).unwrap_or_default();
        let to = dir.join(snapshot(number, gaps::dump_reason(&told).as_deref()));
        fs::rename(&path, &to).map_err(failed)?;
        changed.push(to);
    }
    changed.sort_by_key(|path| path.file_name().and_then(|name| snapshot_number(name.to_str()?)));
    Ok(changed)
}

/// Makes an anonymous trace of the one in `from`, in an empty directory. What stays as it is becomes a link.
///
/// # Errors
///
/// A file cannot be read or written.
pub fn copy_anonymous(from: &Path, to: &Path) -> Result<()> {
    let from = &from.canonicalize().map_err(|source| Error::Io { path: from.to_owned(), source })?;
    let mut source = Source::open(from)?;
    for name in names_in(from)? {
        let path = to.join(&name);
        let failed = |source| Error::WriteFile { path: path.clone(), source };
        match source.fate(&name) {
            Some(Fate::Changed) => {
                let mut out = BufWriter::new(store::create(&path).map_err(failed)?);
                source.write(&name, &mut out)?;
                out.flush().map_err(failed)?;
            }
            Some(Fate::Same) => link(from.join(&name), &path).map_err(failed)?,
            Some(Fate::LeftOut) | None => {}
        }
    }
    Ok(())
}

#[cfg(unix)]
use std::os::unix::fs::symlink as link;

#[cfg(not(unix))]
fn link(from: PathBuf, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop)
}

/// The names of files and folders, that of `info` last.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let failed = |source| Error::Io { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort_unstable_by_key(|name| name == INFO);
    Ok(names)
}

/// The fate of a file.
enum Fate {
    Changed,
    Same,
    /// It is made anew where it is needed.
    LeftOut,
}

/// The trace with personal facts.
struct Source<'a> {
    dir: &'a Path,
    /// The text that replaces its `info`.
    info: Vec<u8>,
    names: Anonymous,
    /// If it has values.
    trace: Option<Trace>,
}

impl<'a> Source<'a> {
    fn open(dir: &'a Path) -> Result<Self> {
        let path = dir.join(INFO);
        let bytes = files::read(&path, info::MAX_BYTES)?;
        let features = Info::parse(&bytes).map_err(|malformed| Error::of_format(&path, malformed))?.features();
        let has_values = features & (feature::ARGUMENT | feature::RETURN_VALUE) != 0;
        let trace = has_values.then(|| Trace::open(dir)).transpose()?;
        let mut names = Anonymous::default();
        Ok(Self { dir, info: names.info(&bytes), names, trace })
    }

    fn task(&self, tid: u32) -> Option<(&Trace, &Task)> {
        let trace = self.trace.as_ref()?;
        Some((trace, trace.tasks().iter().find(|task| task.tid() == tid)?))
    }

    /// `None` for what is no file of a trace.
    fn fate(&self, name: &str) -> Option<Fate> {
        if name == BRANCHES {
            return Some(Fate::Changed);
        }
        Some(match TraceFile::of(name)? {
            TraceFile::Records(_) if self.trace.is_none() => Fate::Same,
            // Nobody knows where there are texts.
            TraceFile::Records(tid) if self.task(tid).is_none() => Fate::LeftOut,
            TraceFile::Index | TraceFile::OldTasks => Fate::LeftOut,
            TraceFile::Records(_)
            | TraceFile::Info
            | TraceFile::Tasks
            | TraceFile::Map
            | TraceFile::Symbols
            | TraceFile::SourceLines
            | TraceFile::Events
            | TraceFile::Gaps => Fate::Changed,
            _ => Fate::Same,
        })
    }

    /// Writes what a file becomes.
    fn write(&mut self, name: &str, out: &mut impl Write) -> Result<()> {
        let kind = TraceFile::of(name);
        match kind {
            Some(TraceFile::Info) => return out.write_all(&self.info).map_err(Error::Write),
            Some(TraceFile::Records(tid)) => {
                return self.task(tid).map_or(Ok(()), |(trace, task)| write_records(trace, task, out));
            }
            _ => {}
        }
        let mut lines = Lines::open(&self.dir.join(name))?;
        while lines.next()?.is_some() {
            let line = lines.current();
            let changed = match kind {
                Some(TraceFile::Tasks) => self.names.task_line(line).into_bytes(),
                Some(TraceFile::Map) => self.names.map_line(line).into_bytes(),
                Some(TraceFile::Events) => event_line(line).into_bytes(),
                Some(TraceFile::Symbols | TraceFile::SourceLines) => {
                    self.names.module_line(lines.current_bytes()).into_owned()
                }
                _ => text_line(line).into_bytes(),
            };
            out.write_all(&changed).map_err(Error::Write)?;
        }
        Ok(())
    }
}

/// Writes a task's records, whose values have no texts.
fn write_records(trace: &Trace, task: &Task, out: &mut impl Write) -> Result<()> {
    let mut records = trace.records(task);
    records.take_file_alone();
    for record in records {
        let record = record?;
        let values = values_without_text(trace, task, &record)?;
        let record = Record { has_payload: !values.is_empty(), ..record };
        out.write_all(&record.encode()).and_then(|()| out.write_all(&values)).map_err(Error::Write)?;
    }
    Ok(())
}

/// The values behind a record; none if their kinds are unknown.
fn values_without_text(trace: &Trace, task: &Task, record: &Record) -> Result<Vec<u8>> {
    let specs = trace.value_specs(task, record.time_ns, record.addr, record.kind == Kind::Exit);
    let bytes = trace.payload(task, record)?;
    let Some((values, _)) = specs.filter(|_| !bytes.is_empty()).and_then(|specs| read_payload(specs, &bytes)) else {
        return Ok(Vec::new());
    };
    Ok(payload(&values.into_iter().map(Value::without_text).collect::<Vec<_>>()))
}
