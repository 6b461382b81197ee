//! Recording of a program's context switches and wakings, and of its children's, with the kernel's perf events.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read as _};
#[cfg(attaching)]
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[cfg(attaching)]
use nix::errno::Errno;
use nix::libc;
use perf_event::events::Software;
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};
use rftrace_format::files::{INFO, perf as perf_file};
use rftrace_format::info::feature;
use rftrace_format::opener;
use rftrace_format::perf::{self, HEADER_BYTES, Header};
use rftrace_format::store;
use rftrace_format::system;
use rftrace_read::{Error, Result, files};

#[cfg(attaching)]
use crate::inherited;
use crate::kept::{self, Kept, Limited, announce};
#[cfg(attaching)]
use crate::processes::{other_number, threads};
#[cfg(attaching)]
use crate::sys;
use crate::waking::{WakingEvent, Wakings};

/// Bytes of the kernel's buffer for each processor: half of every user's limit for locked memory.
const BUFFER_BYTES: usize = 256 * 1024;

/// The same with wakings, which take more than the switches. Users with the right to see them have no limit.
const BUFFER_BYTES_OF_WAKINGS: usize = 4 * BUFFER_BYTES;

/// The interval for emptying the buffers. In this time 8000 switches of a processor fit.
const INTERVAL: Duration = Duration::from_millis(10);

/// The least to keep for each processor.
const MIN_KEPT_BYTES: u64 = 64 * 1024;

/// The number of looks for threads of a running process.
#[cfg(attaching)]
const ROUNDS: usize = 4;

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The kernel's events of context switches, and of wakings where it permits them, with a buffer for each processor.
pub struct ScheduleEvents {
    samplers: Vec<(u32, Sampler)>,
    /// Those of other threads, with the same buffers.
    others: Vec<Counter>,
    waking: Option<WakingEvent>,
}

impl fmt::Debug for ScheduleEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.samplers.iter().map(|(processor, _)| processor)).finish()
    }
}

impl ScheduleEvents {
    /// Opens the events of programs that this thread starts.
    ///
    /// # Errors
    ///
    /// [`Error::Schedule`] if the kernel does not permit it.
    pub fn open() -> Result<Self> {
        let processors = processors()?;
        Self::with_most(|mut opened| {
            for &processor in &processors {
                let counter = opened.builder(processor).observe_self().enable_on_exec(true).build()?;
                opened.add_buffer(processor, counter)?;
            }
            Ok(opened)
        })
    }

    /// Opens with wakings, or without them if the kernel permits only that.
    fn with_most(open: impl Fn(Self) -> io::Result<Self>) -> Result<Self> {
        let new = |waking| Self { samplers: Vec::new(), others: Vec::new(), waking };
        let with_wakings = WakingEvent::find().and_then(|event| open(new(Some(event))).ok());
        with_wakings.map_or_else(|| open(new(None)).map_err(not_allowed), Ok)
    }

    /// An event of a processor. All children have it too.
    fn builder(&self, processor: u32) -> Builder<'static> {
        let mut builder = match self.waking {
            Some(event) => Builder::new(event.tracepoint()),
            None => Builder::new(Software::DUMMY),
        };
        builder.one_cpu(processor as usize).inherit(true);
        builder.context_switch(true).sample_id_all(true).sample(SampleFlag::TID | SampleFlag::TIME);
        if self.waking.is_some() {
            builder.include_kernel().sample_period(1).sample(SampleFlag::RAW);
        }
        // The clock of the trace.
        builder.clockid(Clock::MONOTONIC);
        // Other values read together with the buffer cannot be inherited.
        builder.attrs_mut().read_format = 0;
        builder
    }

    /// Adds the first event of a processor, with its buffer.
    fn add_buffer(&mut self, processor: u32, counter: Counter) -> io::Result<()> {
        let bytes = if self.waking.is_some() { BUFFER_BYTES_OF_WAKINGS } else { BUFFER_BYTES };
        self.samplers.push((processor, counter.sampled(bytes)?));
        Ok(())
    }

    /// Opens the events of all threads of running processes, and of the threads and processes that these start.
    ///
    /// # Errors
    ///
    /// [`Error::Schedule`] if the kernel does not permit it, or so many files cannot be open.
    #[cfg(attaching)]
    pub fn open_of(pids: &[u32]) -> Result<Self> {
        if pids.iter().any(|&pid| other_number(pid).is_some()) {
            let remedy = "the program's container numbers processes separately; run rftrace in that container";
            return Err(Error::Schedule { remedy, source: ErrorKind::Unsupported.into() });
        }
        let processors = processors()?;
        // The recorder needs files, too.
        let most = inherited::most_files() / 2;
        Self::with_most(|mut opened| {
            let mut known = HashSet::new();
            // A thread hands its events down to those that it starts, once it has them: few are new in the second round.
            for _ in 0..ROUNDS {
                let threads = pids.iter().flat_map(|&pid| threads(pid)).filter(|&thread| known.insert(thread));
                for thread in threads.collect::<Vec<_>>() {
                    let has_room = opened.others.len() < most;
                    match if has_room { opened.add(thread, &processors) } else { Err(Errno::EMFILE.into()) } {
                        // It has ended.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                        result => result?,
                    }
                }
            }
            Ok(opened)
        })
    }

    /// Adds the events of a running thread.
    #[cfg(attaching)]
    fn add(&mut self, thread: u32, processors: &[u32]) -> io::Result<()> {
        for (place, &processor) in processors.iter().enumerate() {
            let counter = self.builder(processor).observe_pid(thread.cast_signed()).enabled(true).build()?;
            match self.samplers.get(place) {
                Some((_, sampler)) => {
                    sys::share_buffer(counter.as_raw_fd(), sampler.as_raw_fd())?;
                    self.others.push(counter);
                }
                None => self.add_buffer(processor, counter)?,
            }
        }
        Ok(())
    }

    /// Starts to record into files in the folder `work` with `max_bytes` in total.
    ///
    /// # Errors
    ///
    /// [`Error::WriteFile`].
    pub fn record(self, work: &Path, kept: Kept, max_bytes: u64) -> Result<ScheduleRecorder> {
        let mut writers = Vec::new();
        let mut files = Vec::new();
        let Self { samplers, others, waking } = self;
        let max_bytes = (max_bytes / samplers.len().max(1) as u64).max(MIN_KEPT_BYTES);
        for (processor, sampler) in samplers {
            let path = work.join(perf_file(processor));
            files.push((processor, path.clone()));
            writers.push((sampler, waking.map(Wakings::new), Limited::create(path, kept, max_bytes)?));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let should_stop = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let _others = others;
            loop {
                let is_last = should_stop.load(Relaxed);
                writers.iter_mut().try_for_each(|(sampler, wakings, out)| {
                    empty(sampler, wakings.as_mut(), out).and_then(|()| out.flush())
                })?;
                if is_last {
                    return writers.into_iter().try_for_each(|(_, _, out)| out.finish(perf::encode_lost).map(drop));
                }
                thread::park_timeout(INTERVAL);
            }
        });
        Ok(ScheduleRecorder { files, stop, thread })
    }
}

/// A recorder of context switches, with a file for each processor.
#[derive(Debug)]
pub struct ScheduleRecorder {
    /// By processor.
    files: Vec<(u32, PathBuf)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl ScheduleRecorder {
    /// Changes the paths of the recorder's files after a move of their directory.
    pub fn moved(&mut self, from: &Path, to: &Path) {
        for (_, path) in &mut self.files {
            store::moved(path, from, to);
        }
    }

    /// Stops. Returns the files, by processor. Without the last switches later waits would count as processor time: files that could not
    /// be written to the end go.
    ///
    /// # Errors
    ///
    /// [`Error::WriteFile`].
    pub(crate) fn stop(self) -> Result<Vec<(u32, PathBuf)>> {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        let recorded = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if recorded.is_err() {
            self.files.iter().for_each(|(_, path)| kept::remove(path));
        }
        recorded.map(|()| self.files)
    }
}

/// The files that another recorder left in a folder, by processor. None, if all are empty: it may have written none of its switches.
pub(crate) fn files_in(work: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let read_error = |source| Error::Io { path: work.to_owned(), source };
    let entries = fs::read_dir(work).map_err(read_error)?.flatten();
    let file = |path: PathBuf| {
        let number = path.file_name()?.to_str()?.strip_prefix("perf-cpu")?.strip_suffix(".dat")?.parse().ok()?;
        Some((number, path))
    };
    let files: Vec<_> = entries.filter_map(|entry| file(entry.path())).collect();
    Ok(if files.iter().any(|(_, path)| kept::has_records(path)) { files } else { Vec::new() })
}

/// As [`files_in`], after a killed recorder: a file may have an older half, and an incomplete last record.
pub(crate) fn left_in(work: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let files = files_in(work)?;
    for (_, path) in &files {
        kept::join_halves(path)?;
        let whole = whole_bytes(path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let cut = File::options().write(true).open(path).and_then(|file| file.set_len(whole));
        cut.map_err(|source| Error::WriteFile { path: path.clone(), source })?;
    }
    Ok(files)
}

/// Bytes of the whole records at the beginning of a file.
fn whole_bytes(path: &Path) -> io::Result<u64> {
    let mut file = BufReader::new(opener::open(path)?);
    let length = file.get_ref().metadata()?.len();
    let (mut whole, mut head) = (0, [0; HEADER_BYTES]);
    while whole + HEADER_BYTES as u64 <= length {
        file.read_exact(&mut head)?;
        let head = Header::decode(head);
        let Some(body) = head.body_bytes().filter(|_| whole + u64::from(head.size) <= length) else { break };
        file.seek_relative(body as i64)?;
        whole += u64::from(head.size);
    }
    Ok(whole)
}

/// Makes files a part of the trace in `dir`. Returns whether there are any.
///
/// # Errors
///
/// [`Error::WriteFile`].
pub(crate) fn put(files: &[(u32, PathBuf)], dir: &Path) -> Result<bool> {
    if files.is_empty() {
        return Ok(false);
    }
    let write_error = |path: PathBuf| |source| Error::WriteFile { path, source };
    // uftrace's file of thread names is one of perf events too; the tracer gives it the first number.
    let names = dir.join(perf_file(0));
    if names.exists() {
        let unused = files.iter().map(|&(processor, _)| processor + 1).max().unwrap_or(1);
        let path = dir.join(perf_file(unused));
        fs::rename(&names, &path).map_err(write_error(path))?;
    }
    for (processor, from) in files {
        let path = dir.join(perf_file(*processor));
        let linked = fs::hard_link(from, &path).or_else(|_| fs::copy(from, &path).map(drop));
        linked.map_err(write_error(path))?;
    }
    announce(&dir.join(INFO), feature::PERF_EVENT)?;
    Ok(true)
}

/// Writes the kernel's records of a processor.
fn empty(sampler: &mut Sampler, mut wakings: Option<&mut Wakings>, out: &mut Limited) -> Result<()> {
    while let Some(record) = sampler.next_record() {
        let body = record.to_contiguous();
        match record.ty() {
            perf::SWITCH | perf::LOST => {
                let size = (HEADER_BYTES + body.len()) as u16;
                let with_wakings = if wakings.is_some() { perf::WITH_WAKINGS } else { 0 };
                let head = Header { kind: record.ty(), flags: record.misc() | with_wakings, size };
                out.write(&[&head.encode()[..], &body].concat())?;
            }
            perf::SAMPLE => {
                let waking = wakings.as_mut().and_then(|wakings| wakings.next(&body));
                waking.map_or(Ok(()), |waking| out.write(&waking.encode()))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The numbers of the processors in use.
pub(crate) fn processors() -> Result<Vec<u32>> {
    const MAX_LIST_BYTES: u64 = 64 * 1024;

    let path = Path::new("/sys/devices/system/cpu/online");
    let list = files::read(path, MAX_LIST_BYTES)?;
    let list = String::from_utf8_lossy(&list);
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    match ranges {
        Some(ranges) => Ok(ranges.into_iter().flatten().collect()),
        None => Err(Error::malformed(path, 0, "not a list of processors")),
    }
}

fn not_allowed(source: io::Error) -> Error {
    /// From this level on the kernel allows it to nobody but root.
    const FORBIDDEN: i32 = 3;
    let level = system::read_text(PARANOID).ok().and_then(|text| text.trim().parse::<i32>().ok());
    let remedy = match (source.kind(), level) {
        _ if source.raw_os_error() == Some(libc::EMFILE) => {
            "the program has too many threads for the limit of open files; raise it with: ulimit -n 65536"
        }
        (ErrorKind::PermissionDenied, Some(FORBIDDEN..)) => {
            "the kernel forbids it; allow it with: sudo sysctl kernel.perf_event_paranoid=2"
        }
        (ErrorKind::PermissionDenied, Some(_)) => {
            "this container or a security module forbids it; allow perf_event_open in the seccomp profile"
        }
        (_, None) => "this kernel has no perf events (CONFIG_PERF_EVENTS)",
        (_, Some(_)) => "the kernel's perf events do not work here; record with --no-schedule",
    };
    Error::Schedule { remedy, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_switch_has_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [0, 1].map(|processor| dir.path().join(perf_file(processor)));
        paths.iter().for_each(|path| fs::write(path, "").unwrap());
        assert_eq!(left_in(dir.path()).unwrap(), []);
        // The older half.
        fs::write(paths[1].with_extension("older"), [0; 8]).unwrap();
        let mut found = left_in(dir.path()).unwrap();
        found.sort();
        assert_eq!(found, [(0, paths[0].clone()), (1, paths[1].clone())]);
    }

    #[test]
    fn a_recorder_that_cannot_write_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(perf_file(0));
        for is_whole in [true, false] {
            fs::write(&path, [0; 24]).unwrap();
            let failed = Error::WriteFile { path: path.clone(), source: ErrorKind::StorageFull.into() };
            let thread = thread::spawn(move || if is_whole { Ok(()) } else { Err(failed) });
            let recorder = ScheduleRecorder { files: vec![(0, path.clone())], stop: Arc::default(), thread };
            assert_eq!((recorder.stop().is_ok(), path.exists()), (is_whole, is_whole));
        }
    }
}
