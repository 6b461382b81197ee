//! Dumps: traces of the present records, while recording goes on in all threads except the calling one.
//!
//! A buffer is copied like a recorder's ring (`ring`), then written like a save. The writer of a stream copies that.
//!
//! Not here: dumps by a recorder (`bank/dump.rs`, and `rftrace-record` for their times).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::panic::{self, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rftrace::abi::{ChunkHeader, Record};
use rftrace_format::files::GAPS;
use rftrace_format::gaps::dump_line;
use rftrace_format::recording::{snapshot, snapshot_number};
use rftrace_format::store::{self, DUMP};

#[cfg(target_os = "linux")]
use super::save::saved_stream;
use super::save::{program_name, saved};
use super::{Alone, IS_ALONE, Saved, Tracer, alone, marks};
use crate::Error;
use crate::backend::{self, Chunk};
#[cfg(target_os = "linux")]
use crate::bank::{Dump, save::Writing};
use crate::clock::ClockPair;
use crate::decode;
use crate::ring::{self, Look, Taken};
use crate::uftrace::directory::{self, Mark, Recording};

/// The maximum number of dumps for panics.
const MOST_OF_PANICS: usize = 10;
/// The minimum time between two of them.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

impl Tracer {
    /// Makes a trace of the buffer's present contents while recording goes on: a flight recorder. The trace is the
    /// folder `snapshot-N-REASON` in the [directory](crate::Config::directory); numbers continue those of existing
    /// snapshots.
    ///
    /// The calling thread waits for the trace, and its work for it is not recorded. Other threads go on, and their
    /// calls are recorded. `reason` is an event in the trace, `rftrace:dump:REASON`, at the time of the call;
    /// `rftrace info` shows it.
    ///
    /// Calls overwritten during the copy are missing, so the trace then begins later. The copy takes as much memory as
    /// the buffer.
    ///
    /// ```no_run
    /// # fn handle() {}
    /// use std::time::{Duration, Instant};
    ///
    /// use rftrace_frontend::{Config, Mode};
    ///
    /// let tracer = Config::new().mode(Mode::Ring).directory("trace").install()?;
    /// tracer.enable();
    /// loop {
    ///     let begun = Instant::now();
    ///     handle();
    ///     if begun.elapsed() > Duration::from_millis(50) {
    ///         let dumped = tracer.dump("slow request")?;
    ///         eprintln!("{} events are in {}", dumped.events, dumped.path.display()); // trace/snapshot-1-slow-request
    ///     }
    ///     # break;
    /// }
    /// # Ok::<(), rftrace_frontend::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`save_with`](Self::save_with). An incomplete dump is removed.
    #[inline(always)]
    pub fn dump(&self, reason: &str) -> Result<Saved, Error> {
        self.dump_to(&self.directory, reason)
    }

    /// Makes a [dump](Self::dump) in another directory.
    ///
    /// # Errors
    ///
    /// The errors of [`dump`](Self::dump).
    #[inline(always)]
    pub fn dump_to(&self, directory: &Path, reason: &str) -> Result<Saved, Error> {
        backend::unrecorded_as(|thread| self.make_dump(directory, reason, thread))
    }

    /// Makes a [dump](Self::dump) whenever a thread panics, with the reason `panic:` and the panic's message. At most
    /// ten, and at most one in a second.
    ///
    /// The dump comes before the previous panic hook (`std::panic::set_hook`) runs, whether the panic is caught or
    /// aborts.
    ///
    /// This holds for the rest of the program, and for the buffer in use at the time of the panic. A failed dump is not
    /// reported.
    ///
    /// ```no_run
    /// use rftrace_frontend::{Config, Mode};
    ///
    /// let tracer = Config::new().mode(Mode::Ring).directory("trace").install()?;
    /// tracer.dump_on_panic();
    /// tracer.enable();
    /// # Ok::<(), rftrace_frontend::Error>(())
    /// ```
    #[inline(always)]
    pub fn dump_on_panic(&self) {
        backend::unrecorded(chain_hook);
    }

    fn make_dump(&self, directory: &Path, reason: &str, thread: Option<u32>) -> Result<Saved, Error> {
        static N_DUMPS: AtomicU32 = AtomicU32::new(0);

        let now = ClockPair::now().tsc;
        let alone = alone();
        let failed = |source| Error::Write { path: directory.to_owned(), source };
        // It is at its place as a whole.
        store::admit(directory).map_err(failed)?;
        // The process that makes it, and a number.
        let hidden = format!("{DUMP}{}-{}", std::process::id(), N_DUMPS.fetch_add(1, Relaxed));
        let hidden = directory.join(hidden);
        #[cfg(target_os = "linux")]
        remove_left(directory);
        let made = self.write_dump(&alone, &hidden, reason, (now, thread)).and_then(|saved| {
            tell_reason(&hidden, reason)
                .and_then(|()| publish(&hidden, directory, reason))
                .map_err(failed)
                .map(|path| Saved { path, ..saved })
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&hidden);
        }
        made
    }

    /// Writes the records until a moment. `thread` is the thread of that moment.
    fn write_dump(
        &self,
        alone: &Alone,
        directory: &Path,
        reason: &str,
        (now, thread): (u64, Option<u32>),
    ) -> Result<Saved, Error> {
        #[cfg(target_os = "linux")]
        if let Some(stream) = &self.stream {
            let minima = self.program.choice().minima();
            let writing = Writing { minima: Some(&minima), what_fits: false, n_writers: 1 };
            let dump = Dump { reason: reason.to_owned(), tsc: Some(now), thread, ..Dump::default() };
            let (saved, dropped) = stream.snapshot(directory, writing, Some(dump))?;
            return Ok(saved_stream(directory, saved, dropped, None));
        }
        if !self.is_current() {
            return Err(Error::Replaced);
        }
        let control = backend::control();
        let start_tsc = control.cycle_start_tsc.load(Relaxed);
        let (copies, open) = copies();
        let tasks = decode::tasks(copies.iter().map(ChunkCopy::as_chunk), open);
        if start_tsc == 0 || !tasks.iter().any(|task| task.has_record_since(start_tsc)) {
            return Err(self.nothing());
        }
        let minima = self.program.choice().minima();
        let mut marks = marks::all(alone);
        marks.push(Mark::of_dump(now, thread, reason));
        let recording = Recording { stop_tsc: now, is_cut: true, marks, ..self.recording(&tasks, start_tsc, &minima) };
        let gaps = recording.gaps;
        let totals = directory::write(&recording, directory, &self.program.described(&program_name()))?;
        Ok(saved(directory, totals, gaps))
    }
}

/// A copy of a chunk.
struct ChunkCopy {
    header: ChunkHeader,
    records: Vec<Record>,
}

impl ChunkCopy {
    fn of(chunk: &Chunk<'_>) -> Self {
        let from = chunk.header;
        let word = |word: &AtomicU64| AtomicU64::new(word.load(Relaxed));
        let half = |half: &AtomicU32| AtomicU32::new(half.load(Relaxed));
        let header = ChunkHeader {
            lease: word(&from.lease),
            prev_index: word(&from.prev_index),
            depth: half(&from.depth),
            fill: half(&from.fill),
            n_adopted: half(&from.n_adopted),
            tid: half(&from.tid),
            taken_tsc: word(&from.taken_tsc),
            core: half(&from.core),
            n_resumed: half(&from.n_resumed),
        };
        // The time first: a record that has one is written.
        let record = |from: &Record| Record { tsc: AtomicU64::new(from.tsc.load(Acquire)), word: word(&from.word) };
        Self { header, records: chunk.records.iter().map(record).collect() }
    }

    fn as_chunk(&self) -> Chunk<'_> {
        Chunk { header: &self.header, records: &self.records }
    }
}

/// Copies the contents of the buffer while threads write to it, and the open functions, where the copies do not hold
/// them.
fn copies() -> (Vec<ChunkCopy>, std::collections::HashMap<u32, Vec<u64>>) {
    let chunks: Vec<Chunk<'_>> = backend::chunks().collect();
    let looks = chunks.iter().enumerate().filter_map(|(place, chunk)| Look::at(place, chunk)).collect();
    let mut copies = Vec::with_capacity(chunks.len());
    let copied = ring::copy(looks, |look| {
        let chunk = &chunks[look.place];
        let copy = ChunkCopy::of(chunk);
        if !look.is_still(chunk) {
            return Taken::Lost;
        }
        copies.push(copy);
        Taken::Copied
    });
    let now = ClockPair::now().tsc;
    let mut open = backend::open_by_thread();
    // In a thread whose oldest record is younger than this others may have been open since.
    open.retain(|thread, _| copied.oldest.get(thread).is_none_or(|&oldest| oldest <= now));
    (copies, open)
}

/// Writes the reason of the dump into its trace.
fn tell_reason(trace: &Path, reason: &str) -> io::Result<()> {
    File::options().append(true).open(trace.join(GAPS))?.write_all(dump_line(reason).as_bytes())
}

/// Removes the pieces of unfinished dumps from killed programs.
#[cfg(target_os = "linux")]
fn remove_left(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(DUMP)?.split_once('-')?.0.parse::<u32>().ok());
        // This process makes one at a time, and has not begun.
        let is_at_work =
            |maker: u32| maker != std::process::id() && Path::new("/proc").join(maker.to_string()).exists();
        if maker.is_some_and(|maker| !is_at_work(maker)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Moves a dump to its place, under the next number. Returns its path.
fn publish(hidden: &Path, directory: &Path, reason: &str) -> io::Result<PathBuf> {
    let numbers = fs::read_dir(directory)?.flatten().filter_map(|entry| snapshot_number(entry.file_name().to_str()?));
    let mut next = numbers.max().unwrap_or(0) + 1;
    loop {
        let path = directory.join(snapshot(next, Some(reason)));
        match fs::rename(hidden, &path) {
            Ok(()) => return Ok(path),
            // Another process makes dumps there too.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => next += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Installs the panic hook for dumps.
fn chain_hook() {
    static IS_CHAINED: AtomicBool = AtomicBool::new(false);

    // The hook cannot be changed by who is panicking.
    if thread::panicking() || IS_CHAINED.swap(true, Relaxed) {
        return;
    }
    let former = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        backend::unrecorded_as(|thread| dump_panic(info, thread));
        former(info);
    }));
}

/// Makes a dump of a panic, within the limits.
fn dump_panic(info: &PanicHookInfo<'_>, thread: Option<u32>) {
    /// The number of dumps, and the time of the last one.
    static MADE: Mutex<(usize, Option<Instant>)> = Mutex::new((0, None));

    // A panic of what this crate does: it would wait for itself.
    if IS_ALONE.try_with(std::cell::Cell::get) != Ok(false) {
        return;
    }
    let Some(tracer) = Tracer::get() else { return };
    // A thread that panics meanwhile waits, and is too early then.
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made.0 >= MOST_OF_PANICS || made.1.is_some_and(|last| last.elapsed() < PANIC_PAUSE) {
        return;
    }
    let message = info.payload_as_str().unwrap_or("a value");
    let is_made = tracer.make_dump(&tracer.directory, &format!("panic: {message}"), thread).is_ok();
    *made = (made.0 + usize::from(is_made), Some(Instant::now()));
}
