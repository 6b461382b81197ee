//! Puts a trace into a directory: its files, their order, and its tasks.
//!
//! Records go straight from the buffer to the files, a chunk's worth at a time; tasks are written in parallel. The file
//! `info` comes last: without it a directory is no trace.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rftrace_format::clock::{ClockFile, TscClock};
use rftrace_format::events::EventLine;
#[cfg(feature = "std")]
use rftrace_format::events::event_name;
use rftrace_format::files;
use rftrace_format::gaps::{self, Gaps};
use rftrace_format::info::feature;
use rftrace_format::map::{MapLine, NO_STACK, STACK};
use rftrace_format::perf::{NAME_BYTES, ThreadName};
use rftrace_format::recording;
use rftrace_format::store::{self, Owned};
use rftrace_format::tasks::TaskLine;
use rftrace_format::text::{base_name, spelled};

#[cfg(target_os = "linux")]
use super::modules::symbol_files;
use super::modules::write_modules;
use super::task::{BLOCK_BYTES, EventIds, KnownSpecs, LeftOut, Specs, Written, write_task};
use crate::clock::ClockPair;
use crate::decode::{self, Minima, Task, Window};
#[cfg(target_os = "linux")]
use crate::elf::symfile;
use crate::error::{Error, NoEventsCause};
use crate::filter::own;
use crate::host::program::{Identify, Identity, Program};

/// A recording to write: its tasks, its begin and its end.
pub(crate) struct Recording<'a> {
    pub(crate) tasks: &'a [Task<'a>],
    pub(crate) start_tsc: u64,
    pub(crate) stop_tsc: u64,
    /// True to leave out later records.
    pub(crate) is_cut: bool,
    /// Moments to show, in any order.
    pub(crate) marks: Vec<Mark>,
    /// Conversion of ticks to nanoseconds.
    pub(crate) clock: TscClock,
    pub(crate) pairs: [ClockPair; 2],
    /// Unix time at the first pair.
    pub(crate) unix_nanos: Option<u64>,
    pub(crate) minima: &'a Minima,
    /// Source of the clock's rate.
    pub(crate) tsc_hz_source: Cow<'static, str>,
    pub(crate) gaps: Gaps,
    /// The number of writing threads, the calling one included.
    pub(crate) n_writers: usize,
    /// True to leave out all unwritable parts. Otherwise a failure is an error for the whole.
    pub(crate) what_fits: bool,
    pub(crate) done: Option<decode::Done<'a>>,
}

impl<'a> Recording<'a> {
    pub(super) fn window(&self, is_hidden: &'a (dyn Fn(u64) -> bool + Sync)) -> Window<'a> {
        let cut = if self.is_cut { self.stop_tsc } else { u64::MAX };
        Window { start: self.start_tsc, end: self.stop_tsc, cut, is_hidden, minima: self.minima, done: self.done }
    }
}

/// A moment of a recording, an event of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    tsc: u64,
    /// By the tracer's numbers; `None` for the main thread.
    thread: Option<u32>,
    name: String,
}

impl Mark {
    /// The mark with the reason of a dump.
    #[cfg(feature = "std")]
    pub(crate) fn of_dump(tsc: u64, thread: Option<u32>, reason: &str) -> Self {
        Self { tsc, thread, name: event_name(&format!("rftrace:dump:{reason}")) }
    }

    /// A mark with a text.
    #[cfg(feature = "std")]
    pub(crate) fn of_text(tsc: u64, thread: Option<u32>, text: &str) -> Self {
        Self { tsc, thread, name: mark_name(text) }
    }
}

/// The name of the event of a mark with a text.
#[cfg(feature = "std")]
pub(crate) fn mark_name(text: &str) -> String {
    event_name(&format!("mark:{}", text.trim()))
}

/// Totals of a written directory.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) n_events: u64,
    pub(crate) n_threads: usize,
    pub(crate) n_lost: u64,
    /// The time of the last record.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "for banks"))]
    pub(crate) last_nanos: u64,
    pub(crate) invariant_tsc: Option<bool>,
    /// The reason for the first left-out part.
    pub(crate) left_out: Option<Error>,
}

/// Writes the whole directory.
pub(crate) fn write(recording: &Recording<'_>, directory: &Path, program: &Program) -> Result<Totals, Error> {
    let hidden = own::functions(program);
    let is_hidden = |address| own::contains(&hidden, address);
    let window = recording.window(&is_hidden);

    // Before an older trace is removed.
    if !recording.tasks.iter().any(|task| task.has_visible_since(recording.start_tsc, &is_hidden)) {
        return Err(Error::NoEvents { cause: NoEventsCause::NoCalls });
    }
    let directory = &prepare(directory)?;
    let room = directory.path().join("room");
    let left_out = LeftOut::new(recording.what_fits, recording.tasks.len(), &room);
    let ids = EventIds::default();
    let specs = Specs::new(program);
    let identities = identities(recording.tasks, &program.identify);
    let is_main = |place: &usize| identities[*place].tid == program.pid;
    let main = (0..identities.len()).find(is_main).unwrap_or(0);
    let of_thread = |thread| recording.tasks.iter().position(|task| task.tid == thread);
    let mut marks = vec![Vec::new(); recording.tasks.len()];
    let in_window = |mark: &&Mark| mark.tsc >= recording.start_tsc && mark.tsc <= window.cut;
    for mark in recording.marks.iter().filter(in_window) {
        if let Some(of_task) = marks.get_mut(mark.thread.and_then(of_thread).unwrap_or(main)) {
            of_task.push((mark.tsc, ids.id(mark.name.clone())));
        }
    }
    let mut written = in_parallel(recording, |place| {
        let identity = identities[place].clone();
        let task = &recording.tasks[place];
        write_task(task, &window, (recording.clock, &marks[place]), (&ids, &specs), directory, identity, &left_out)
    })?;
    written.retain(|task| task.n_records > 0);
    if written.is_empty() {
        left_out.release_room();
        return Err(left_out.first().unwrap_or(Error::NoEvents { cause: NoEventsCause::NoCalls }));
    }
    write_symbols(directory, program, &left_out)?;
    left_out.release_room();
    let specs = specs.into_known();
    write_specs(directory, program, &specs)?;
    let sid = session_id(&recording.pairs, program.pid);
    write_file(directory, files::map(&sid), |out| write_map(out, program))?;
    let events = ids.0.into_inner().unwrap_or_default();
    if !events.is_empty() {
        write_file(directory, files::EVENTS, |out| {
            events.iter().try_for_each(|(name, &id)| write!(out, "{}", EventLine { id, name }))
        })?;
    }
    write_file(directory, files::CLOCK, |out| write!(out, "{}", clock_file(recording, program)))?;

    let cut_off = if recording.gaps.lacks_end() { gaps::cut_off_line(program.pid) } else { String::new() };
    write_file(directory, files::GAPS, |out| write!(out, "{}{cut_off}", recording.gaps))?;
    let first = written.iter().map(|task| task.first_nanos).min().unwrap_or(0);
    let last = written.iter().map(|task| task.last_nanos).max().unwrap_or(0);
    write_file(directory, files::TASKS, |out| {
        let pid = program.pid;
        write!(out, "{}", TaskLine::Session { time_ns: first, pid, sid: &sid, exe_name: &program.exe_name })?;
        written.iter().try_for_each(|task| {
            let Identity { tid, ref name } = task.identity;
            write!(out, "{}", TaskLine::Task { time_ns: task.first_nanos, tid, pid, name })
        })?;
        write_opened(out, recording, program, (&sid, first))
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
    write_file(directory, files::INFO, |out| {
        out.write_all(&program.system.to_info(features, &tids, Duration::from_nanos(last - first)))
    })?;
    Ok(Totals {
        n_events: written.iter().map(|task| task.n_records - task.n_open).sum(),
        n_threads: written.len(),
        n_lost: written.iter().fold(0, |sum, task| sum.saturating_add(task.n_lost)),
        last_nanos: last,
        invariant_tsc: program.invariant_tsc,
        left_out: left_out.first(),
    })
}

/// Writes the facts about a program before its records: `info` and symbols.
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) fn write_facts(program: &Program, elapsed: Duration, directory: &Path) -> Result<(), Error> {
    let directory = &prepare(directory)?;
    let left_out = LeftOut::new(false, 0, directory.path());
    write_symbols(directory, program, &left_out)?;
    let info = program.system.to_info(0, &[], elapsed);
    write_file(directory, files::INFO, |out| out.write_all(&info))
}

/// Takes the directory, and makes it if it is absent. Removes files of an older trace in it, so tasks of the two are
/// not mixed.
pub(crate) fn prepare(directory: &Path) -> Result<Owned, Error> {
    let taken = if is_within(directory) { Owned::within(directory) } else { Owned::take(directory) };
    taken
        .and_then(|owned| owned.clear().map(|()| owned))
        .map_err(|source| Error::Write { path: directory.to_owned(), source })
}

/// Returns true for a part, a dump or the facts of a process: the folder lies in a directory with an owner.
fn is_within(folder: &Path) -> bool {
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let above = folder.parent().map(name_of).unwrap_or_default();
    above == recording::FOLDER || above == recording::STREAM || name_of(folder).starts_with(store::DUMP)
}

/// Returns the identities of the tasks. The system may use an id again after a thread has ended; then the later thread's id is raised by more
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

/// Returns the number of writers: that of processors. On Hermit one: its driver of the file system writes one block at
/// a time, and up to kernel 0.11 two threads opening files at once may sleep for ever.
pub(crate) fn most_writers() -> usize {
    if cfg!(target_os = "hermit") { 1 } else { thread::available_parallelism().map_or(1, usize::from) }
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

/// Creates a file of the trace and fills it.
fn write_file(
    directory: &Owned,
    name: impl AsRef<Path>,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let failed = |source| Error::Write { path: directory.path().join(&name), source };
    directory.create(&name).and_then(|file| filled(file, fill)).map_err(failed)
}

/// Fills a file through a buffer.
pub(super) fn filled(file: File, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BLOCK_BYTES, file);
    fill(&mut out)?;
    out.flush()
}

/// Writes the names of threads with other names than the program, if there are any: uftrace uses the program's name by
/// default. Returns true if there are any.
fn write_names(directory: &Owned, program: &Program, written: &[Written]) -> Result<bool, Error> {
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
    write_file(directory, files::perf(0), |out| {
        named.iter().try_for_each(|task| {
            let Identity { tid, ref name } = task.identity;
            out.write_all(&ThreadName { time_ns: task.first_nanos, tid, pid: program.pid, name }.encode())
        })
    })?;
    Ok(true)
}

/// Sixteen digits for this recording alone.
fn session_id([first, last]: &[ClockPair; 2], pid: u32) -> String {
    let mixed = (first.tsc ^ last.nanos.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(pid);
    format!("{mixed:016x}")
}

/// Returns the conversion of ticks, and the wall clock at the first pair, for an alignment of traces of guest and host.
fn clock_file(recording: &Recording<'_>, program: &Program) -> ClockFile {
    let last = recording.pairs[1];
    ClockFile {
        unix_nanos: recording.unix_nanos,
        reported_hz: program.tsc_hz.map(|(hz, source)| (hz, source.into())),
        invariant_tsc: program.invariant_tsc,
        utc_offset_seconds: Some(program.system.utc_offset),
        ..ClockFile::new(recording.clock, (last.tsc, last.nanos), recording.tsc_hz_source.clone())
    }
}

/// Writes lines for replaced libraries, in order of time.
#[cfg(target_os = "linux")]
fn write_opened(
    out: &mut impl Write,
    recording: &Recording<'_>,
    program: &Program,
    (sid, first): (&str, u64),
) -> io::Result<()> {
    program.opened.iter().try_for_each(|((module, _), since)| {
        let time_ns = recording.clock.nanos((*since).max(recording.start_tsc)).max(first);
        let path = &*module.map_path();
        write!(out, "{}", TaskLine::Dlopen { time_ns, tid: program.pid, sid, base: module.start, path })
    })
}

#[cfg(not(target_os = "linux"))]
fn write_opened(_: &mut impl Write, _: &Recording<'_>, _: &Program, _: (&str, u64)) -> io::Result<()> {
    Ok(())
}

fn write_map(out: &mut impl Write, program: &Program) -> io::Result<()> {
    write_modules(out, &program.modules)?;
    let stack = program.stack.map(|(start, end)| MapLine::new((start, end), "rw-p", STACK, None));
    write!(out, "{}", stack.unwrap_or(NO_STACK))
}

/// Writes a `.dbg` file for each module with values of functions.
#[cfg(target_os = "linux")]
fn write_specs(directory: &Owned, program: &Program, specs: &KnownSpecs) -> Result<(), Error> {
    if specs.is_empty() {
        return Ok(());
    }
    for (name, map_path, (module, symbols)) in symbol_files(program) {
        let Some(symbols) = symbols else { continue };
        let own = specs.range((module.start, false)..(module.end, false));
        let own = own.map(|(&(address, is_result), specs)| (address - module.start, is_result, &**specs));
        let path = Path::new(&name).with_extension("dbg");
        let text = symfile::specs(symbols, &map_path, own);
        if let Some(text) = text {
            write_file(directory, path, |out| out.write_all(text.as_bytes()))?;
        }
    }
    Ok(())
}

/// No values are recorded there.
#[cfg(not(target_os = "linux"))]
fn write_specs(_: &Owned, _: &Program, _: &KnownSpecs) -> Result<(), Error> {
    Ok(())
}

/// Writes a `.sym` file for each module with symbols.
#[cfg(target_os = "linux")]
fn write_symbols(directory: &Owned, program: &Program, left_out: &LeftOut<'_>) -> Result<(), Error> {
    let mut done = BTreeSet::new();
    for (name, map_path, (_, symbols)) in symbol_files(program) {
        let Some(symbols) = symbols else { continue };
        // The same library loaded twice has one file.
        if !done.insert(name.clone()) {
            continue;
        }
        let written = write_file(directory, &name, |out| symfile::write_symbols(out, symbols, &map_path));
        if let Err(error) = written {
            left_out.note(error)?;
            // A part of the names would look like all of them.
            let _ = std::fs::remove_file(directory.path().join(name));
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
fn write_symbols(_directory: &Owned, _program: &Program, _left_out: &LeftOut<'_>) -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let error = prepare(&directory).unwrap_err().to_string();
        assert!(error.contains("`data.dat` and is no trace"), "{error}");
        assert_eq!(names().len(), foreign.len() + of_trace.len(), "it is no trace");
        fs::write(directory.join("info"), b"Ftrace!\0").unwrap();
        let owned = prepare(&directory).unwrap();
        assert_eq!(names(), ["data.dat", "default.opts", "notes.txt"]);
        assert!(prepare(&directory).unwrap_err().to_string().contains("process"), "it is taken");
        drop(owned);
        fs::remove_dir_all(&directory).unwrap();
    }
}
