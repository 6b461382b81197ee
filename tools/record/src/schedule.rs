//! Records the context switches of a program and its children, by the kernel's perf events.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use rftrace_format::files::{INFO, perf as perf_file};
use rftrace_format::info::{Changes, feature};
use rftrace_format::perf::{self, HEADER_BYTES, Header};
use rftrace_read::{Error, Result, files, info};

/// Bytes of the buffer that the kernel fills for each processor: half of what every user may lock.
const BUFFER_BYTES: usize = 256 * 1024;

/// How often the buffers are emptied. In that time 8000 switches of a processor fit.
const INTERVAL: Duration = Duration::from_millis(10);

/// The least that is kept for each processor.
const MIN_KEPT_BYTES: u64 = 64 * 1024;

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// What is kept of more context switches than there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The first ones.
    Beginning,
    /// The last ones: at least half as many as there is room for.
    End,
}

/// The kernel's events of context switches, one for each processor. They count in programs that this thread starts.
pub struct ScheduleEvents(Vec<(u32, Sampler)>);

impl fmt::Debug for ScheduleEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(processor, _)| processor)).finish()
    }
}

impl ScheduleEvents {
    /// Opens them.
    ///
    /// # Errors
    ///
    /// [`Error::Schedule`] if the kernel does not allow it.
    pub fn open() -> Result<Self> {
        let open = |processor| Ok((processor, open(processor).map_err(not_allowed)?));
        processors()?.into_iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Records from now on, into files in the folder `work` which take `max_bytes` together.
    ///
    /// # Errors
    ///
    /// [`Error::WriteFile`].
    pub fn record(self, work: &Path, kept: Kept, max_bytes: u64) -> Result<ScheduleRecorder> {
        let mut writers = Vec::new();
        let mut files = Vec::new();
        let max_bytes = (max_bytes / self.0.len().max(1) as u64).max(MIN_KEPT_BYTES);
        for (processor, sampler) in self.0 {
            let path = work.join(perf_file(processor));
            files.push((processor, path.clone()));
            writers.push((sampler, Limited::create(path, kept, max_bytes)?));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let should_stop = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            loop {
                let is_last = should_stop.load(Relaxed);
                writers.iter_mut().try_for_each(|(sampler, out)| empty(sampler, out))?;
                if is_last {
                    return writers.into_iter().try_for_each(|(_, out)| out.finish());
                }
                thread::park_timeout(INTERVAL);
            }
        });
        Ok(ScheduleRecorder { files, stop, thread })
    }
}

/// Records into files, one for each processor, until it is told to stop.
#[derive(Debug)]
pub struct ScheduleRecorder {
    /// By processor.
    files: Vec<(u32, PathBuf)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl ScheduleRecorder {
    /// Stops, and makes the files a part of the trace in `dir`.
    ///
    /// # Errors
    ///
    /// [`Error::WriteFile`].
    pub fn finish(self, dir: &Path) -> Result<()> {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let rename = |from: &Path, name: String| {
            let path = dir.join(name);
            fs::rename(from, &path).map_err(|source| Error::WriteFile { path, source })
        };
        // The file of thread names that uftrace reads is one of perf events too; the tracer gives it the first number.
        let names = dir.join(perf_file(0));
        if names.exists() {
            let unused = self.files.iter().map(|&(processor, _)| processor + 1).max().unwrap_or(1);
            rename(&names, perf_file(unused))?;
        }
        for (processor, from) in &self.files {
            rename(from, perf_file(*processor))?;
        }
        announce(&dir.join(INFO))
    }
}

/// Writes what the kernel has recorded on a processor.
fn empty(sampler: &mut Sampler, out: &mut Limited) -> Result<()> {
    while let Some(record) = sampler.next_record() {
        if ![perf::SWITCH, perf::LOST].contains(&record.ty()) {
            continue;
        }
        let size = (HEADER_BYTES + record.len()) as u16;
        let head = Header { kind: record.ty(), flags: record.misc(), size };
        out.write(&[&head.encode()[..], &record.to_contiguous()].concat())?;
    }
    Ok(())
}

/// A file of records that does not grow for ever.
struct Limited {
    path: PathBuf,
    out: BufWriter<File>,
    kept: Kept,
    max_bytes: u64,
    n_bytes: u64,
    /// Records for which there was no room.
    n_dropped: u64,
}

impl Limited {
    fn create(path: PathBuf, kept: Kept, max_bytes: u64) -> Result<Self> {
        let out = BufWriter::new(create(&path)?);
        Ok(Self { path, out, kept, max_bytes, n_bytes: 0, n_dropped: 0 })
    }

    fn write(&mut self, record: &[u8]) -> Result<()> {
        let n_bytes = self.n_bytes + record.len() as u64;
        match self.kept {
            Kept::Beginning if n_bytes > self.max_bytes => {
                self.n_dropped += 1;
                return Ok(());
            }
            // Two halves, of which the older one goes.
            Kept::End if n_bytes > self.max_bytes / 2 => {
                self.out
                    .flush()
                    .and_then(|()| fs::rename(&self.path, self.older()))
                    .map_err(|source| self.failed(source))?;
                self.out = BufWriter::new(create(&self.path)?);
                self.n_bytes = 0;
            }
            _ => {}
        }
        self.n_bytes += record.len() as u64;
        self.out.write_all(record).map_err(|source| self.failed(source))
    }

    /// Says what is missing, and puts the halves together.
    fn finish(mut self) -> Result<()> {
        if self.n_dropped > 0 {
            self.out.write_all(&perf::encode_lost(self.n_dropped)).map_err(|source| self.failed(source))?;
        }
        self.out.flush().map_err(|source| self.failed(source))?;
        let older = self.older();
        if !older.exists() {
            return Ok(());
        }
        let join = || {
            let mut end = OpenOptions::new().append(true).open(&older)?;
            io::copy(&mut File::open(&self.path)?, &mut end)?;
            fs::rename(&older, &self.path)
        };
        join().map_err(|source| self.failed(source))
    }

    fn older(&self) -> PathBuf {
        self.path.with_extension("older")
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::WriteFile { path: self.path.clone(), source }
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

/// Opens the event of a processor. It counts in no program until one is executed, and in all that this starts.
fn open(processor: u32) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::DUMMY);
    builder.observe_self().one_cpu(processor as usize).inherit(true).enable_on_exec(true);
    builder.context_switch(true).sample_id_all(true).sample(SampleFlag::TID | SampleFlag::TIME);
    // The clock of the trace.
    builder.clockid(Clock::MONOTONIC);
    // What else would be read together with the buffer cannot be inherited.
    builder.attrs_mut().read_format = 0;
    builder.build()?.sampled(BUFFER_BYTES)
}

/// The numbers of the processors that are in use.
fn processors() -> Result<Vec<u32>> {
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
    let level = fs::read_to_string(PARANOID).ok().and_then(|text| text.trim().parse::<i32>().ok());
    let remedy = match (source.kind(), level) {
        (ErrorKind::PermissionDenied, Some(FORBIDDEN..)) => {
            "the kernel does not allow it; allow it with: sudo sysctl kernel.perf_event_paranoid=2"
        }
        (ErrorKind::PermissionDenied, Some(_)) => {
            "the kernel would allow it, but not this container or security module: let its seccomp profile pass perf_event_open"
        }
        (_, None) => "this kernel has no perf events (CONFIG_PERF_EVENTS)",
        (_, Some(_)) => "the kernel's perf events do not work here; record with --no-schedule",
    };
    Error::Schedule { remedy, source }
}

/// Says in `info` that there are files of perf events.
fn announce(path: &Path) -> Result<()> {
    let features = Some(info::read(path)?.features() | feature::PERF_EVENT);
    let changed = Changes { features, ..Changes::default() }.apply(&files::read(path, info::MAX_BYTES)?);
    // It is as long as before: there is room for it.
    let written = File::options().write(true).open(path).and_then(|mut file| file.write_all(&changed));
    written.map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of the records 0 to 99, of 24 bytes each.
    fn kept(kept: Kept, max_bytes: u64) -> Vec<u64> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("perf-cpu3.dat");
        let mut file = Limited::create(path.clone(), kept, max_bytes).expect("a file");
        for number in 0..100_u64 {
            file.write(&[&perf::SWITCH.to_le_bytes()[..], &[0, 0, 24, 0], &[0; 8], &number.to_le_bytes()].concat())
                .expect("room");
        }
        file.finish().expect("room");
        let bytes = fs::read(&path).expect("the file");
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1);
        bytes.chunks(24).map(|record| u64::from_le_bytes(*record.last_chunk().expect("whole records"))).collect()
    }

    #[test]
    fn files_do_not_grow_for_ever() {
        assert_eq!(kept(Kept::Beginning, 24 * 100), (0..100).collect::<Vec<_>>());
        // The last one says how many there is no room for.
        assert_eq!(kept(Kept::Beginning, 24 * 10), (0..10).chain([90]).collect::<Vec<_>>());
        assert_eq!(kept(Kept::End, 24 * 200), (0..100).collect::<Vec<_>>());
        assert_eq!(kept(Kept::End, 24 * 20 + 5), (80..100).collect::<Vec<_>>());
        assert_eq!(kept(Kept::End, 24 * 30), (75..100).collect::<Vec<_>>());
    }
}
