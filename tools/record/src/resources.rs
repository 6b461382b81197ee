//! Recording of resources: processes write allocations and releases to chunks of this process's memory, and a thread
//! writes full chunks to a file.
//!
//! Not here: the writer in the processes (`rftrace-preload-resources`), the form of memory and file
//! (`rftrace_format::resources`), and the display (`rftrace-resources`).

#![expect(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::iter;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use rftrace_format::files::RESOURCES;
use rftrace_format::passed::Passed;
use rftrace_format::resources::chunk::{is_whole, written};
use rftrace_format::resources::{ATTACHED, BlockHead, DETAILED, Kind, LOW, MAGIC, Resource, Unit, pool};
use rftrace_format::store;
use rftrace_frontend::ticks;

use super::processes::thread_lives;
use super::specification::Plan;

/// Between two looks at the memory, while there is much to be taken and while there is nothing.
const SHORTEST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// Bytes for one write to the file: few enough to stay in the processor's cache until then, and to keep the recorder
/// from the memory for a moment only.
const WRITTEN_AT_ONCE: usize = 64 << 10;
/// The interval of writing the time: so it is known if the recorder does not come to its end.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// A recorder of resources.
#[derive(Debug)]
pub struct ResourceRecorder {
    /// One, or one for each process that ran already.
    memories: Memories,
    /// Table of the specified functions, for processes to read.
    table: Option<File>,
    /// Table of those with branches, for the tracer's library to read.
    led: Option<File>,
    is_over: Arc<AtomicBool>,
    is_paused: Arc<AtomicBool>,
    copies: Sender<Copy>,
    thread: JoinHandle<Recorded>,
}

/// The existing memories.
type Memories = Arc<Mutex<Vec<Arc<Memory>>>>;

/// A request for a file of the records so far, with a sender for the answer.
struct Copy {
    path: PathBuf,
    done: Sender<io::Result<()>>,
}

/// The summary of the recording.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The number of processes. A process that ran several programs counts for each.
    pub processes: u32,
    /// The number of events for which there was no room.
    pub lost: u64,
    /// True if the file has reached its limit.
    pub is_cut: bool,
    /// The error at which writing the file stopped.
    pub error: Option<io::Error>,
}

impl ResourceRecorder {
    /// Makes the memory, and begins to record the resources that are `wanted` or planned; with `is_detailed` also
    /// arguments and the stacks of releases. The file is in `work`, and has `most_bytes` bytes at most.
    ///
    /// # Errors
    ///
    /// The system has no memory, no file or no thread for it.
    pub fn begin(work: &Path, most_bytes: u64, wanted: &[Resource], plan: &Plan, is_detailed: bool) -> Result<Self> {
        let file = memfd_create("rftrace-resources", MFdFlags::MFD_CLOEXEC).context("no memory for --resources")?;
        Self::begin_with(file.into(), work, most_bytes, bits(wanted, is_detailed) | plan.bits(), plan)
    }

    /// Begins to record a running process like [`begin`](Self::begin). Its memory is the given empty file.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    pub fn begin_in(
        file: File,
        work: &Path,
        most_bytes: u64,
        wanted: &[Resource],
        plan: &Plan,
        is_detailed: bool,
    ) -> Result<Self> {
        Self::begin_with(file, work, most_bytes, bits(wanted, is_detailed) | plan.bits() | ATTACHED, plan)
    }

    /// Adds another running process with an empty file as memory.
    ///
    /// # Errors
    ///
    /// The system has no memory for it.
    pub fn add(&self, file: File) -> Result<()> {
        let mut memories = lock(&self.memories);
        let memory = memories[0].another(file, memories.len() as u32).context(NO_MEMORY)?;
        memories.push(Arc::new(memory));
        Ok(())
    }

    fn begin_with(file: File, work: &Path, most_bytes: u64, bits: u32, plan: &Plan) -> Result<Self> {
        // A limit on the size of files is an error then, not the end.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
        let memory = Arc::new(Memory::new(file, bits, ticks(), 0).context(NO_MEMORY)?);
        let in_memory = |bytes: &[u8]| {
            let mut file = File::from(memfd_create("rftrace-specification", MFdFlags::MFD_CLOEXEC)?);
            file.write_all(bytes).map(|()| file)
        };
        let table = (!plan.is_empty()).then(|| in_memory(&plan.table()));
        let table = table.transpose().context("no memory for the specifications")?;
        let led = Some(plan.led()).filter(|led| !led.is_empty()).map(|led| in_memory(led.as_bytes()));
        let led = led.transpose().context("no memory for the specifications")?;
        let path = work.join(RESOURCES);
        let file = store::create(&path).and_then(|mut file| file.write_all(MAGIC).map(|()| file));
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let [is_over, is_paused] = [Arc::<AtomicBool>::default(), Arc::default()];
        let (copies, wishes) = mpsc::channel();
        let memories = Arc::new(Mutex::new(vec![Arc::clone(&memory)]));
        let mut taker = Taker {
            memory,
            memories: Arc::clone(&memories),
            path,
            wishes,
            is_paused: Arc::clone(&is_paused),
            out: BufWriter::with_capacity(WRITTEN_AT_ONCE, file),
            most_bytes,
            bytes: 0,
            recorded: Recorded::default(),
            units: Vec::with_capacity(2 * pool::CHUNK_UNITS),
            clock: None,
        };
        taker.write_beginning(plan);
        // Before the program begins: this thread may get a processor first when all is over.
        taker.write_clock();
        let told = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("resources".to_owned()).spawn(move || {
            taker.run(&told);
            taker.recorded
        });
        let thread = thread.context("cannot start a thread for --resources")?;
        Ok(Self { memories, table, led, is_over, is_paused, copies, thread })
    }

    /// Returns the path of the memory for recorded processes. It is valid while this process lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.first().file.as_raw_fd())
    }

    /// Returns the path of the table of specified functions, if there is one.
    #[must_use]
    pub fn table(&self) -> Option<String> {
        self.table.as_ref().map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    }

    /// Returns the file with the list of functions to branch, for the tracer's library, if there is one.
    #[must_use]
    pub fn led(&self) -> Option<Passed> {
        self.led.as_ref().and_then(|file| Passed::of(file).ok())
    }

    /// Returns the PID namespace in which the processes must be.
    ///
    /// # Errors
    ///
    /// The system does not report it.
    pub fn space() -> Result<PathBuf> {
        fs::read_link("/proc/self/ns/pid").context("cannot read /proc/self/ns/pid")
    }

    /// Returns the number of ticks since the recording began.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.first().now()
    }

    fn first(&self) -> Arc<Memory> {
        Arc::clone(&lock(&self.memories)[0])
    }

    /// Pauses or resumes the recording of new resources.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Relaxed);
    }

    /// Writes a file of the recording so far, including the memory's content.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_so_far(&self, path: &Path) -> Result<()> {
        let (done, told) = mpsc::channel();
        let wish = Copy { path: path.to_owned(), done };
        let written = self.copies.send(wish).ok().and_then(|()| told.recv().ok());
        written
            .context("the recorder of resources has ended")?
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the recorded threads that have not ended.
    #[must_use]
    pub fn living(&self) -> Vec<u32> {
        let memories = lock(&self.memories);
        let taken = chunks(&memories).filter(|&(memory, chunk)| memory.state(chunk).load(Acquire) == pool::TAKEN);
        let mut threads: Vec<u32> = taken.map(|(memory, chunk)| memory.tid(chunk)).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.retain(|&tid| thread_lives(tid));
        threads
    }

    /// Takes the remaining events and ends the recording.
    #[must_use]
    pub fn stop(self) -> Recorded {
        self.is_over.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

const NO_MEMORY: &str = "no memory for --resources (raise ulimit -v and ulimit -f)";

/// A bit for each, and for details.
fn bits(wanted: &[Resource], is_detailed: bool) -> u32 {
    let details = if is_detailed { DETAILED } else { 0 };
    wanted.iter().fold(details, |bits, resource| bits | resource.bit())
}

fn lock(memories: &Memories) -> MutexGuard<'_, Vec<Arc<Memory>>> {
    memories.lock().unwrap_or_else(PoisonError::into_inner)
}

fn chunks(memories: &[Arc<Memory>]) -> impl Iterator<Item = (&Memory, usize)> {
    memories.iter().flat_map(|memory| (0..pool::CHUNKS).map(move |chunk| (&**memory, chunk)))
}

/// The memory, mapped.
#[derive(Debug)]
struct Memory {
    /// Other processes open it by its number here.
    file: File,
    start: *mut u8,
    /// So many processes have numbers before those recording here.
    processes_before: u32,
}

// SAFETY: other processes write to it anyway: all access is atomic or volatile.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes it of an empty file, for the wanted kinds. Times are counted from `base` on.
    fn new(file: File, bits: u32, base: u64, processes_before: u32) -> io::Result<Self> {
        file.set_len(pool::BYTES as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is so long and stays so.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), pool::BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = Self { file, start: start.cast(), processes_before };
        for chunk in 0..pool::CHUNKS {
            memory.taken(chunk).store(pool::NEVER, Relaxed);
        }
        memory.number_32(pool::WANTED_AT).store(bits, Relaxed);
        memory.number_64(pool::BASE_AT).store(base, Relaxed);
        memory.number_32(pool::PROCESSES_AT).store(processes_before, Relaxed);
        memory.number_64(pool::MAGIC_AT).store(pool::MAGIC, Release);
        Ok(memory)
    }

    /// Another one for the same.
    fn another(&self, file: File, processes_before: u32) -> io::Result<Self> {
        let bits = self.number_32(pool::WANTED_AT).load(Relaxed);
        Self::new(file, bits, self.number_64(pool::BASE_AT).load(Relaxed), processes_before)
    }

    fn number_32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and changed atomically by everybody.
        unsafe { &*self.start.add(at).cast() }
    }

    fn number_64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &*self.start.add(at).cast() }
    }

    fn state(&self, chunk: usize) -> &AtomicU32 {
        self.number_32(pool::STATES_AT + 4 * chunk)
    }

    fn taken(&self, chunk: usize) -> &AtomicU64 {
        self.number_64(pool::HEADS_AT + pool::HEAD_BYTES * chunk)
    }

    fn process(&self, chunk: usize) -> u32 {
        self.number_32(pool::HEADS_AT + pool::HEAD_BYTES * chunk + 8).load(Relaxed)
    }

    fn tid(&self, chunk: usize) -> u32 {
        self.number_32(pool::HEADS_AT + pool::HEAD_BYTES * chunk + 12).load(Relaxed)
    }

    /// A chunk's units, whatever they are.
    fn units(&self, chunk: usize) -> impl Iterator<Item = Unit> {
        // SAFETY: within the mapping.
        let first = unsafe { self.start.add(pool::CHUNKS_AT + chunk * pool::CHUNK_BYTES) }.cast::<Unit>();
        // SAFETY: so many units are there; a thread that goes on writing makes no invalid unit.
        (0..pool::CHUNK_UNITS).map(move |number| unsafe { first.add(number).read_volatile() })
    }

    /// The blocks of a chunk's content: two if a short one has become longer than a block now.
    fn blocks(&self, chunk: usize, units: &[Unit]) -> impl Iterator<Item = Vec<u8>> {
        let (process, tid, taken) = (self.process(chunk), self.tid(chunk), self.taken(chunk).load(Acquire));
        // The second one begins with its first unit.
        let begins = iter::once(taken).chain(iter::repeat(LOW));
        parts(units).zip(begins).map(move |(units, begin)| encode(process, tid, since(begin, units), units))
    }

    /// Forgets the owner and content of a chunk: a place may be left without an event.
    fn clear(&self, chunk: usize) {
        self.taken(chunk).store(pool::NEVER, Relaxed);
        self.number_32(pool::HEADS_AT + pool::HEAD_BYTES * chunk + 12).store(0, Relaxed);
        // SAFETY: within the mapping; the chunk is the recorder's.
        unsafe { ptr::write_bytes(self.start.add(pool::CHUNKS_AT + chunk * pool::CHUNK_BYTES), 0, pool::CHUNK_BYTES) };
    }

    /// Ticks since the recording began.
    fn now(&self) -> u64 {
        ticks().wrapping_sub(self.number_64(pool::BASE_AT).load(Relaxed)) & LOW
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), pool::BYTES) };
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
fn nanos() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.unwrap_or_default().as_nanos() as u64
}

/// Taker of the chunks.
struct Taker {
    /// The first one, whose clock counts.
    memory: Arc<Memory>,
    memories: Memories,
    path: PathBuf,
    wishes: Receiver<Copy>,
    is_paused: Arc<AtomicBool>,
    out: BufWriter<File>,
    most_bytes: u64,
    bytes: u64,
    recorded: Recorded,
    units: Vec<Unit>,
    /// When the time was last written.
    clock: Option<Instant>,
}

impl Taker {
    /// Writes the kinds of the recording.
    fn write_beginning(&mut self, plan: &Plan) {
        let wanted = self.memory.number_32(pool::WANTED_AT).load(Relaxed);
        self.write(&[[Kind::Wanted.word(self.memory.now()), wanted.into()]]);
        for (word, text) in plan.definitions() {
            let mut units =
                vec![[Kind::Definition.word(self.memory.now()), word], [Kind::More.word(0), text.len() as u64]];
            units.extend(text.chunks(8).map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                [Kind::More.word(0), u64::from_le_bytes(word)]
            }));
            self.write(&units);
        }
    }

    fn run(&mut self, is_over: &AtomicBool) {
        let mut pause = SHORTEST_PAUSE;
        while !is_over.load(Relaxed) {
            self.memories().iter().for_each(|memory| _ = memory.number_32(pool::BEATS_AT).fetch_add(1, Relaxed));
            if self.clock.is_none_or(|last| last.elapsed() > CLOCK_INTERVAL) {
                self.write_clock();
                self.leave_dead();
            }
            let any = self.take();
            pause = if any { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            if let Ok(Copy { path, done }) = self.wishes.recv_timeout(pause) {
                let _ = done.send(self.write_copy(&path));
            }
        }
        // Living processes have had time enough.
        self.end_all();
        self.take_all();
        self.write_clock();
        for memory in self.memories() {
            self.recorded.lost += memory.number_64(pool::LOST_AT).load(Relaxed);
            let processes = memory.number_32(pool::PROCESSES_AT).load(Relaxed);
            self.recorded.processes += processes.saturating_sub(memory.processes_before);
        }
        let end = [
            [Kind::End.word(self.memory.now()), self.recorded.lost],
            [Kind::More.word(u64::from(self.recorded.is_cut)), 0],
        ];
        self.write(&end);
        if let Err(error) = self.out.flush() {
            self.recorded.error.get_or_insert(error);
        }
    }

    fn memories(&self) -> Vec<Arc<Memory>> {
        lock(&self.memories).clone()
    }

    /// Has processes record no more.
    fn end_all(&self) {
        self.memories().iter().for_each(|memory| memory.number_32(pool::OVER_AT).store(1, Relaxed));
    }

    /// Takes the chunks that threads have let go of. Returns true if there were any.
    fn take(&mut self) -> bool {
        let mut any = false;
        for (memory, chunk) in chunks(&self.memories()) {
            let state = memory.state(chunk).load(Acquire);
            if state != pool::FULL && state != pool::LEFT {
                continue;
            }
            any = true;
            let all: Vec<Unit> = memory.units(chunk).collect();
            if state == pool::FULL || is_whole(&all) {
                self.take_chunk(memory, chunk, &all);
            } else {
                // The next program of the process may say that nobody writes there any more.
                let _ = memory.state(chunk).compare_exchange(pool::LEFT, pool::HELD, Release, Relaxed);
            }
        }
        any
    }

    /// Takes all chunks.
    fn take_all(&mut self) {
        for (memory, chunk) in chunks(&self.memories()) {
            if memory.state(chunk).load(Acquire) != pool::FREE {
                let all: Vec<Unit> = memory.units(chunk).collect();
                self.take_chunk(memory, chunk, &all);
            }
        }
    }

    fn take_chunk(&mut self, memory: &Memory, chunk: usize, all: &[Unit]) {
        let mut units = std::mem::take(&mut self.units);
        units.clear();
        written(all, memory.taken(chunk).load(Acquire), &mut units);
        if self.is_paused.load(Relaxed) {
            leave_out_events(&mut units);
        }
        if !units.is_empty() && self.has_room() {
            memory.blocks(chunk, &units).for_each(|block| self.write_bytes(&block));
        }
        self.units = units;
        memory.clear(chunk);
        memory.state(chunk).store(pool::FREE, Release);
    }

    /// Writes the records so far to another file, with the content of threads' chunks.
    fn write_copy(&mut self, path: &Path) -> io::Result<()> {
        self.take();
        self.write_clock();
        self.out.flush()?;
        fs::copy(&self.path, path)?;
        let mut file = File::options().append(true).open(path)?;
        for (memory, chunk) in chunks(&self.memories()) {
            if memory.state(chunk).load(Acquire) == pool::FREE {
                continue;
            }
            let all: Vec<Unit> = memory.units(chunk).collect();
            let mut units = Vec::new();
            written(&all, memory.taken(chunk).load(Acquire), &mut units);
            memory.blocks(chunk, &units).try_for_each(|block| file.write_all(&block))?;
        }
        let end = [[Kind::End.word(self.memory.now()), 0], [Kind::More.word(0), 0]];
        file.write_all(&encode(0, 0, 0, &end))
    }

    /// Makes chunks full whose threads are gone, or have come back to complete them.
    fn leave_dead(&self) {
        for (memory, chunk) in chunks(&self.memories()) {
            let state = memory.state(chunk).load(Acquire);
            // A chunk just taken may still have the number of the thread before, but not once its time is told.
            let is_told = memory.taken(chunk).load(Acquire) != pool::NEVER;
            let is_whole = || state == pool::HELD && is_whole(&memory.units(chunk).collect::<Vec<_>>());
            let is_wanted = [pool::TAKEN, pool::HELD].contains(&state) && is_told;
            if is_wanted && (!thread_lives(memory.tid(chunk)) || is_whole()) {
                let _ = memory.state(chunk).compare_exchange(state, pool::FULL, Release, Relaxed);
            }
        }
    }

    /// True if more may be written. If not, processes stop recording.
    fn has_room(&mut self) -> bool {
        if self.bytes >= self.most_bytes || self.recorded.error.is_some() {
            self.recorded.is_cut |= self.bytes >= self.most_bytes;
            self.end_all();
            return false;
        }
        true
    }

    fn write_clock(&mut self) {
        /// The two clocks may be read at distant moments, if this thread has to wait in between.
        const TRIES: usize = 16;

        self.clock = Some(Instant::now());
        let look = || {
            let (before, nanos, after) = (self.memory.now(), nanos(), self.memory.now());
            (after.saturating_sub(before), after, nanos)
        };
        let best = (0..TRIES).map(|_| look()).min();
        if let Some((_, ticks, nanos)) = best {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
            let offset = unix.wrapping_sub(self::nanos());
            self.write(&[[Kind::Clock.word(ticks), nanos], [Kind::More.word(0), offset.wrapping_add(nanos)]]);
        }
    }

    /// Writes the recorder's own units.
    fn write(&mut self, units: &[Unit]) {
        self.write_bytes(&encode(0, 0, 0, units));
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Err(error) = self.out.write_all(bytes) {
            self.recorded.error.get_or_insert(error);
        }
    }
}

/// Units in parts that fit into blocks: connected ones stay in one part.
fn parts(mut rest: &[Unit]) -> impl Iterator<Item = &[Unit]> {
    iter::from_fn(move || {
        let is_more = |unit: &Unit| Kind::of(unit[0]) == Some(Kind::More);
        let end = if rest.len() <= pool::CHUNK_UNITS {
            rest.len()
        } else {
            (1..=pool::CHUNK_UNITS).rfind(|&end| !is_more(&rest[end])).unwrap_or(pool::CHUNK_UNITS)
        };
        let (part, behind) = rest.split_at(end);
        rest = behind;
        (!part.is_empty()).then_some(part)
    })
}

/// The earliest time of units, or of the chunk: a call may have begun before the thread got the chunk.
fn since(taken: u64, units: &[Unit]) -> u64 {
    let begin = |unit: &Unit| if unit[0] & !LOW == Kind::More.word(0) { LOW } else { unit[0] & LOW };
    units.iter().map(begin).fold(taken, u64::min)
}

/// A block.
fn encode(process: u32, tid: u32, taken: u64, units: &[Unit]) -> Vec<u8> {
    let head = BlockHead { units: units.len() as u32, process, tid, taken };
    let mut bytes = vec![0; BlockHead::BYTES + size_of_val(units)];
    let (start, rest) = bytes.split_at_mut(BlockHead::BYTES);
    start.copy_from_slice(&head.encode());
    for (place, word) in rest.as_chunks_mut().0.iter_mut().zip(units.as_flattened()) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// Leaves all but events: stacks, modules, processes and threads.
fn leave_out_events(units: &mut Vec<Unit>) {
    let mut is_event = false;
    units.retain(|unit| {
        match Kind::of(unit[0]) {
            Some(Kind::More) => {}
            kind => is_event = kind.is_none_or(|kind| kind.action().is_some()),
        }
        !is_event
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_left_out_with_what_belongs_to_them() {
        let more = [Kind::More.word(1), 2];
        let stack = [Kind::Stack.word(3), 4];
        let mut units = vec![[Kind::Malloc.word(1), 16], more, stack, more, [Kind::Free.word(5), 16]];
        leave_out_events(&mut units);
        assert_eq!(units, [stack, more]);
    }

    #[test]
    fn what_has_no_room_in_a_block_is_in_another_one() {
        assert_eq!(parts(&[]).count(), 0);
        let event = |number: u64| [[Kind::Malloc.word(number), 16], [Kind::More.word(1), 2]];
        let free = [Kind::Free.word(1), 16];
        let events: Vec<Unit> = (0..pool::CHUNK_UNITS as u64).flat_map(event).collect();
        let lengths = |units: &[Unit]| parts(units).map(<[Unit]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(&events[..pool::CHUNK_UNITS]), [1024]);
        assert_eq!(lengths(&events), [1024, 1024]);
        let units = [&[free], &events[..2046]].concat();
        assert_eq!(lengths(&units), [1023, 1024]);
        assert_eq!(parts(&units).collect::<Vec<_>>().concat(), units);
        assert_eq!([since(3, &event(5)), since(LOW, &event(5)), since(9, &event(5))], [3, 5, 5]);
    }
}
