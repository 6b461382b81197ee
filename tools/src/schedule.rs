//! Records the context switches of a program and its children, by the kernel's perf events.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};

use crate::error::{Error, Result, read_file};
use crate::perf::{self, HEADER_BYTES};

/// Bytes of the buffer that the kernel fills for each processor: half of what every user may lock.
const BUFFER_BYTES: usize = 256 * 1024;

/// How often the buffers are emptied. In that time 8000 switches of a processor fit.
const INTERVAL: Duration = Duration::from_millis(10);

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Where the feature mask is in `info`.
const FEATURES_OFFSET: u64 = 16;

/// The kernel's events of context switches, one for each processor. They count in programs that this thread starts.
pub struct ScheduleEvents(Vec<(usize, Sampler)>);

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

    /// Records from now on, into files in the folder `work`.
    ///
    /// # Errors
    ///
    /// [`Error::WriteFile`].
    pub fn record(self, work: &Path) -> Result<ScheduleRecorder> {
        let mut writers = Vec::new();
        let mut files = Vec::new();
        for (processor, sampler) in self.0 {
            let path = work.join(format!("perf-cpu{processor}.dat"));
            let file = File::create(&path).map_err(|source| Error::WriteFile { path: path.clone(), source })?;
            files.push(path.clone());
            writers.push(Writer { sampler, out: BufWriter::new(file), path });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let should_stop = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            loop {
                let is_last = should_stop.load(Relaxed);
                writers.iter_mut().try_for_each(Writer::empty)?;
                if is_last {
                    return writers.iter_mut().try_for_each(Writer::finish);
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
    files: Vec<PathBuf>,
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
        for from in &self.files {
            let path = dir.join(from.file_name().unwrap_or_default());
            fs::rename(from, &path).map_err(|source| Error::WriteFile { path, source })?;
        }
        announce(&dir.join("info"))
    }
}

/// The buffer of a processor, and the file that it is written to.
struct Writer {
    sampler: Sampler,
    out: BufWriter<File>,
    path: PathBuf,
}

impl Writer {
    /// Writes what the kernel has recorded.
    fn empty(&mut self) -> Result<()> {
        while let Some(record) = self.sampler.next_record() {
            if ![perf::SWITCH, perf::LOST].contains(&record.ty()) {
                continue;
            }
            let size = (HEADER_BYTES + record.len()) as u16;
            let head = [&record.ty().to_le_bytes()[..], &record.misc().to_le_bytes(), &size.to_le_bytes()].concat();
            let written = self.out.write_all(&head).and_then(|()| self.out.write_all(&record.to_contiguous()));
            written.map_err(|source| Error::WriteFile { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush().map_err(|source| Error::WriteFile { path: self.path.clone(), source })
    }
}

/// Opens the event of a processor. It counts in no program until one is executed, and in all that this starts.
fn open(processor: usize) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::DUMMY);
    builder.observe_self().one_cpu(processor).inherit(true).enable_on_exec(true);
    builder.context_switch(true).sample_id_all(true).sample(SampleFlag::TID | SampleFlag::TIME);
    // The clock of the trace.
    builder.clockid(Clock::MONOTONIC);
    // What else would be read together with the buffer cannot be inherited.
    builder.attrs_mut().read_format = 0;
    builder.build()?.sampled(BUFFER_BYTES)
}

/// The numbers of the processors that are in use.
fn processors() -> Result<Vec<usize>> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let list = read_file(path)?;
    let list = String::from_utf8_lossy(&list);
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
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
        (_, Some(_)) => "the kernel's perf events do not work here; record without --schedule",
    };
    Error::Schedule { remedy, source }
}

/// Says in `info` that there are files of perf events.
fn announce(info: &Path) -> Result<()> {
    let failed = |source| Error::WriteFile { path: info.to_owned(), source };
    let file = File::options().read(true).write(true).open(info).map_err(failed)?;
    let mut features = [0; 8];
    file.read_exact_at(&mut features, FEATURES_OFFSET).map_err(failed)?;
    let features = u64::from_le_bytes(features) | perf::FEATURE;
    file.write_all_at(&features.to_le_bytes(), FEATURES_OFFSET).map_err(failed)
}
