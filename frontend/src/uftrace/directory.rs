//! Puts a trace into a directory: which files, in which order, from which tasks.
//!
//! Records go straight from the buffer to the files, a chunk's worth at a time; tasks are written in parallel. The file
//! `info` comes last: without it a directory is no trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::encode;
use super::format::perf::NAME_BYTES;
use super::format::{MAGIC, NO_STACK, RECORD_BYTES, USER_EVENT, feature, record};
use crate::Error;
use crate::clock::{Clock, ClockPair};
use crate::decode::{self, Emit, Event, EventKind, Minima, Task, Window};
use crate::host::{Identity, LoadedModule, Program};
use crate::own;

/// Bytes of records that are collected before they are written.
const BLOCK_BYTES: usize = 256 * 1024;

/// A recording that is to be written: who, from when to when.
pub(crate) struct Recording<'a> {
    pub(crate) tasks: &'a [Task<'a>],
    pub(crate) start_tsc: u64,
    pub(crate) stop_tsc: u64,
    pub(crate) clock: Clock,
    pub(crate) pairs: [ClockPair; 2],
    /// Unix time at the first pair.
    pub(crate) unix_nanos: Option<u64>,
    pub(crate) minima: &'a Minima,
    /// Who says how fast the clock runs.
    pub(crate) tsc_hz_source: &'static str,
    /// Threads that may write it, the calling one included.
    pub(crate) n_writers: usize,
}

impl<'a> Recording<'a> {
    fn window(&self, is_hidden: &'a (dyn Fn(u64) -> bool + Sync)) -> Window<'a> {
        Window { start: self.start_tsc, end: self.stop_tsc, is_hidden, minima: self.minima }
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
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) n_events: u64,
    pub(crate) n_threads: usize,
    pub(crate) n_lost: u64,
    pub(crate) invariant_tsc: Option<bool>,
}

/// Names for losses: uftrace shows an event by the name of its id, so each number of lost calls has an id.
#[derive(Debug, Default)]
struct EventIds(Mutex<BTreeMap<String, u64>>);

impl EventIds {
    fn id(&self, name: String) -> u64 {
        let mut ids = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = USER_EVENT + ids.len() as u64;
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
    let ids = EventIds::default();
    let identities = identities(recording.tasks, program.identify);
    let mut written = in_parallel(recording, |place| {
        let identity = identities[place].clone();
        write_task(&recording.tasks[place], &window, recording.clock, &ids, directory, identity)
    })?;
    written.retain(|task| task.n_records > 0);
    if written.is_empty() {
        return Err(Error::NoEvents { hook_called: true });
    }
    write_symbols(directory, program)?;
    let sid = session_id(&recording.pairs, program.pid);
    write_file(&directory.join(format!("sid-{sid}.map")), |out| write_map(out, program))?;
    let events = ids.0.into_inner().unwrap_or_default();
    if !events.is_empty() {
        write_file(&directory.join("events.txt"), |out| {
            events.iter().try_for_each(|(name, &id)| encode::event_name(out, id, name))
        })?;
    }
    write_file(&directory.join("clock.txt"), |out| write_clock(out, recording, program))?;

    let first = written.iter().map(|task| task.first_nanos).min().unwrap_or(0);
    let last = written.iter().map(|task| task.last_nanos).max().unwrap_or(0);
    write_file(&directory.join("task.txt"), |out| {
        encode::session(out, first, program.pid, &sid, &program.exe_name)?;
        written.iter().try_for_each(|task| {
            let Identity { tid, name } = &task.identity;
            encode::task(out, task.first_nanos, *tid, program.pid, name)
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
    write_file(&directory.join("info"), |out| {
        encode::info(out, features, &program.system, &tids, Duration::from_nanos(last - first))
    })?;
    Ok(Totals {
        n_events: written.iter().map(|task| task.n_records).sum(),
        n_threads: written.len(),
        n_lost: written.iter().fold(0, |sum, task| sum.saturating_add(task.n_lost)),
        invariant_tsc: program.invariant_tsc,
    })
}

/// Writes only the records, the tasks one after the other in one file. Where there are several, each begins with an
/// EVENT record whose id is [`USER_EVENT`] plus the thread's id.
#[cfg(feature = "std")]
pub(crate) fn write_raw(recording: &Recording<'_>, path: &Path) -> Result<Totals, Error> {
    let window = recording.window(&|_| false);
    let mut totals = Totals { n_threads: recording.tasks.len(), ..Totals::default() };
    let no_names = EventIds::default();
    write_file(path, |out| {
        for task in recording.tasks {
            if recording.tasks.len() > 1 {
                let nanos = recording.clock.nanos(recording.start_tsc);
                out.write_all(&encode::record(nanos, record::EVENT, 0, USER_EVENT + u64::from(task.tid)))?;
            }
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
    let is_trace = fs::read(directory.join("info")).is_ok_and(|info| info.starts_with(MAGIC));
    if !is_trace {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        if is_trace_file(&path) {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Whether a trace directory has a file of this name.
fn is_trace_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, extension) = name.rsplit_once('.').unwrap_or((&name, ""));
    match extension {
        "dat" => stem == "perf-cpu0" || stem.bytes().all(|byte| byte.is_ascii_digit()),
        "map" => stem.starts_with("sid-"),
        "sym" => true,
        "txt" => ["task", "events", "clock"].contains(&stem),
        _ => name == "info",
    }
}

/// Who the tasks are. The system may use an id again after a thread has ended; then the later thread's id is raised by more
/// than the system gives out (`PID_MAX_LIMIT`).
fn identities(tasks: &[Task<'_>], identify: fn(u32) -> Identity) -> Vec<Identity> {
    const RAISE: u32 = 1 << 22;

    let mut taken = BTreeSet::new();
    let unique = |task: &Task<'_>| {
        let mut identity = identify(task.tid);
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
    clock: Clock,
    ids: &'a EventIds,
    /// A task without events gets no file.
    file: Option<File>,
    block: Vec<u8>,
    written: Written,
}

impl Emit for &mut TaskWriter<'_> {
    type Error = io::Error;

    // Inlined where it is called for each entry and exit: this crate is compiled with the program's flags, and a function
    // costs two hooks.
    #[inline(always)]
    fn emit(&mut self, event: Event) -> io::Result<()> {
        let nanos = self.clock.nanos(event.tsc);
        let bytes = encode_event(event, nanos, self.ids);
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
        if self.block.len() + RECORD_BYTES > BLOCK_BYTES {
            self.flush()?;
        }
        Ok(())
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
}

fn write_task(
    task: &Task<'_>,
    window: &Window<'_>,
    clock: Clock,
    ids: &EventIds,
    directory: &Path,
    identity: Identity,
) -> Result<Written, Error> {
    let path = directory.join(format!("{}.dat", identity.tid));
    let written = Written { identity, ..Written::default() };
    let mut writer =
        TaskWriter { path: &path, clock, ids, file: None, block: Vec::with_capacity(BLOCK_BYTES), written };
    let result = decode::decode(task, window, &mut writer);
    let result = result.and_then(|()| writer.flush());
    let written = writer.written;
    result.map_err(|source| Error::Write { path, source })?;
    Ok(written)
}

#[inline(always)]
fn encode_event(event: Event, nanos: u64, ids: &EventIds) -> [u8; RECORD_BYTES] {
    let (kind, address) = match event.kind {
        EventKind::Entry => (record::ENTRY, event.address),
        EventKind::Exit => (record::EXIT, event.address),
        loss => (record::EVENT, ids.of_loss(loss)),
    };
    encode::record(nanos, kind, event.depth, address)
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
    let own = program.exe_name.rsplit('/').next().unwrap_or_default();
    let is_named = |task: &&Written| {
        let name: String = task.identity.name.trim_end_matches('\u{fffd}').chars().map(encode::spelled).collect();
        // The system cuts names, perhaps amid a character or behind a space.
        let may_be_cut = name.len() + char::MAX_LEN_UTF8 >= NAME_BYTES;
        name != own && !name.is_empty() && !(may_be_cut && own.starts_with(&name))
    };
    let mut named: Vec<&Written> = written.iter().filter(is_named).collect();
    named.sort_by_key(|task| task.first_nanos);
    if named.is_empty() {
        return Ok(false);
    }
    write_file(&directory.join("perf-cpu0.dat"), |out| {
        named.iter().try_for_each(|task| {
            let Identity { tid, name } = &task.identity;
            out.write_all(&encode::thread_name(task.first_nanos, *tid, program.pid, name))
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
fn write_clock(out: &mut impl Write, recording: &Recording<'_>, program: &Program) -> io::Result<()> {
    let [first, last] = recording.pairs;
    writeln!(out, "first_tsc={}\nfirst_nanos={}", first.tsc, first.nanos)?;
    writeln!(out, "last_tsc={}\nlast_nanos={}", last.tsc, last.nanos)?;
    writeln!(out, "tsc_hz={}\ntsc_hz_source={}", recording.clock.tsc_hz(), recording.tsc_hz_source)?;
    writeln!(out, "nanos_per_2_32_ticks={}", recording.clock.nanos_per_2_32_ticks())?;
    if let Some(nanos) = recording.unix_nanos {
        writeln!(out, "first_unix_nanos={nanos}")?;
    }
    if let Some((hz, source)) = program.tsc_hz {
        writeln!(out, "reported_tsc_hz={hz}\nreported_tsc_hz_source={source}")?;
    }
    if let Some(invariant) = program.invariant_tsc {
        writeln!(out, "invariant_tsc={invariant}")?;
    }
    writeln!(out, "utc_offset_seconds={}", program.system.utc_offset)
}

#[cfg(target_os = "linux")]
fn write_map(out: &mut impl Write, program: &Program) -> io::Result<()> {
    use super::symfile::short_build_id;
    for (module, _) in &program.modules {
        let build_id = module.build_id.as_deref().map(short_build_id);
        encode::map_line(out, (module.start, module.end), "r-xp", &module.map_path(), build_id)?;
    }
    encode::map_line(out, program.stack.unwrap_or(NO_STACK), "rw-p", "[stack]", None)
}

#[cfg(not(target_os = "linux"))]
fn write_map(out: &mut impl Write, program: &Program) -> io::Result<()> {
    for LoadedModule { name, start } in &program.modules {
        encode::map_line(out, (*start, NO_STACK.0), "r-xp", name, None)?;
    }
    encode::map_line(out, program.stack.unwrap_or(NO_STACK), "rw-p", "[stack]", None)
}

/// A `.sym` file for each module that has symbols.
#[cfg(target_os = "linux")]
fn write_symbols(directory: &Path, program: &Program) -> Result<(), Error> {
    use super::symfile::{self, ModuleId};
    let named = |(module, symbols): &'_ LoadedModule| {
        let symbols = symbols.as_ref().filter(|table| !table.symbols().is_empty());
        symbols.map(|_| module.map_path())
    };
    let modules: Vec<(String, &LoadedModule)> =
        program.modules.iter().filter_map(|module| Some((named(module)?, module))).collect();
    let ids = modules.iter().map(|(map_path, (module, _))| ModuleId { map_path, build_id: module.build_id.as_deref() });
    let mut done = BTreeSet::new();
    for (name, (map_path, (_, symbols))) in symfile::file_names(ids).into_iter().zip(&modules) {
        let (Some(name), Some(symbols)) = (name, symbols) else { continue };
        // The same library loaded twice has one file.
        if !done.insert(name.clone()) {
            continue;
        }
        write_file(&directory.join(name), |out| symfile::write_symbols(out, symbols, map_path))?;
    }
    Ok(())
}

/// The image's functions are added on the host.
#[cfg(not(target_os = "linux"))]
fn write_symbols(_directory: &Path, _program: &Program) -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trace_files_are_removed() {
        for name in [
            "info",
            "1.dat",
            "perf-cpu0.dat",
            "sid-0123456789abcdef.map",
            "prog.sym",
            "task.txt",
            "events.txt",
            "clock.txt",
        ] {
            assert!(is_trace_file(Path::new(name)), "{name}");
        }
        for name in ["data.dat", "world.map", "notes.txt", "infos", "x.rs", "default.opts"] {
            assert!(!is_trace_file(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn equal_losses_share_an_event() {
        let ids = EventIds::default();
        let first = ids.of_loss(EventKind::Lost(1));
        assert_eq!(first, USER_EVENT);
        assert_ne!(ids.of_loss(EventKind::Lost(2)), first);
        assert_eq!(ids.of_loss(EventKind::Lost(1)), first);
    }
}
