//! The recorder's work on banks while programs run: it takes full chunks and writes them to a file per process, the
//! *spool*. At the end of a process it takes the rest, and frees the bank. No traced program waits for this work.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rftrace::abi::{CHUNK_HEADER_BYTES, ChunkHeader, RETURN_STACK_ENTRIES, Record, kind, lease, records_per_chunk};
use rftrace_format::system;

use super::collected::{Collected, Death, Life, Written};
use super::file::{CHUNKS_AT, Head, Layout, MAGIC, OPEN_AT, Slot, TEXT_AT, TEXT_BYTES, THREADS_AT, VERSION};
use super::handover::{self, slot_state};
use super::history::History;
use super::numbers::{Mapping, folder_of, own_number, parent, start_ticks};
use super::open::OpenFunctions;
use super::pace::Fill;
use super::spool::{Folder, Spool};
use super::stuck::Occupied;
use super::told::Told;
use super::world::Seen;
use crate::backend::{Chunk, exit_word};
use crate::clock::{ClockPair, ticks_in};
use crate::host::linux::modules;
use crate::host::linux::thread_table::{Entry, MAX_THREADS};
use crate::host::program::Identity;
use crate::image::packed::encode::Packer;

/// The options for banks.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The size of each process's chunks in bytes.
    pub buffer_bytes: usize,
    /// The maximum number of processes at the same time.
    pub n_slots: usize,
    /// The maximum wait of a thread without a free chunk for an inactive recorder; zero for no wait.
    pub patience: Duration,
    /// The maximum size of all spools in bytes. Later records are not written.
    pub most_bytes: u64,
    /// True for rings, written at the end of a process, and for dumps.
    pub is_ring: bool,
    /// The maximum size of all dumped rings in bytes.
    pub dumped_bytes: u64,
}

/// All banks of a recorder.
#[derive(Debug)]
pub struct Banks {
    memory: MmapRaw,
    /// The number of slots ready for a process.
    n_prepared: usize,
    file: File,
    pub(super) layout: Layout,
    /// The folder of spools.
    pub(super) folder: Folder,
    patience: Duration,
    pub(super) most_bytes: u64,
    pub(super) is_ring: bool,
    /// Bytes in memory of the chunks written so far.
    pub(super) taken_bytes: u64,
    /// True if facts about a process are for other machines too.
    pub(super) is_for_others: bool,
    /// The root directory of processes' paths, if that is not this process's.
    pub(super) root: Option<PathBuf>,
    /// PID here of the only process, if its own PID differs.
    pid_here: Option<u32>,
    mapping: Mapping,
    /// PIDs of the processes in the slots.
    numbers: Vec<Option<Numbers>>,
    /// Bytes in memory of the dumped rings.
    pub(super) dumped_bytes: u64,
    /// Live readers of the records.
    pub(super) taps: Vec<Box<dyn Tap>>,
    /// Nothing is written.
    pub(super) keeps_nothing: bool,
    pub(super) most_dumped_bytes: u64,
    /// The number of dumps, including failed ones.
    pub(super) n_dumps: u64,
    /// Processes kept after their end, for dumps of them.
    pub(super) held: Vec<u32>,
    written: Written,
    pub(super) packer: Box<Packer>,
    pub(super) slots: Vec<Option<Watched>>,
    collected: Vec<Collected>,
    pub(super) snapshots: Vec<Collected>,
}

/// A live reader of the records.
pub(super) trait Tap: std::fmt::Debug + Send {
    /// Reads the news of a process, or the rest.
    fn read(&mut self, banks: &Banks, number: usize, watched: &Watched, is_over: bool);

    /// All processes were read once more. Returns whether there is to be more.
    fn go_on(&mut self) -> bool;

    /// True if a chunk was read to its end.
    fn has_read(&self, number: usize, chunk: &Chunk<'_>) -> bool;
}

/// The state of a ring at a moment, for comparison with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) newest_index: u64,
    /// Records in partly filled chunks.
    pub(super) n_records: usize,
}

/// PIDs of a process.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// In its own namespace.
    own: u32,
    /// Here.
    here: u32,
    /// It had ended before it was looked for.
    is_gone: bool,
}

/// A process with a bank.
#[derive(Debug)]
pub(super) struct Watched {
    /// Its PID as this process sees it, and as it sees itself.
    pub(super) pid: u32,
    pub(super) own_pid: u32,
    /// True if its own PID and TIDs may differ from those here.
    has_own_numbers: bool,
    /// The process that forked it; 0 if it began otherwise.
    parent: u32,
    /// The status at its end, once reported by the system.
    status: Option<i32>,
    pub(super) spool: Spool,
    /// Time of the last query of the system about it.
    pub(super) looked: Option<Instant>,
    /// The functions open then, for a ring.
    pub(super) open: OpenFunctions,
    /// Last seen state of its ring, and since when.
    pub(super) progress: Option<(Progress, Instant)>,
    pub(super) maps: History,
    pub(super) names: HashMap<u32, Vec<u8>>,
    /// TIDs here of threads with other own TIDs, if known.
    tids: HashMap<u32, u32>,
    /// Environment of the process, by its maps.
    pub(super) world: Option<Seen>,
    /// Unloaded libraries and marks, reported by it or by others.
    pub(super) told: Told,
    /// The checksum of the facts in the file beside its spool.
    pub(super) described: Option<u64>,
    /// Since when a chunk is full and not written, by its index.
    waiting: HashMap<u64, Instant>,
    occupied: Occupied,
}

/// The interval of queries about a process: for its libraries and the names of threads.
const LOOK: Duration = Duration::from_millis(200);

/// The time for hooks to finish their writes into a full chunk.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

impl Banks {
    /// Makes the banks in an empty file in memory (`memfd_create`). Spools are written to `folder`.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn new(file: File, folder: &Path, options: Options) -> io::Result<Self> {
        let layout = Layout { n_slots: options.n_slots, buffer_bytes: options.buffer_bytes };
        file.set_len(layout.file_bytes() as u64)?;
        let memory = MmapOptions::new().len(layout.file_bytes()).no_reserve_swap().map_raw(&file)?;
        // SAFETY: the mapping is larger; all fields are atomics.
        let head = unsafe { &*memory.as_ptr().cast::<Head>() };
        head.n_slots.store(options.n_slots as u64, Relaxed);
        head.buffer_bytes.store(options.buffer_bytes as u64, Relaxed);
        head.is_ring.store(options.is_ring.into(), Relaxed);
        // Where there is one slot, it may be taken from outside.
        head.n_seen.store(1, Relaxed);
        head.owner_pid.store(std::process::id().into(), Relaxed);
        head.owner_started.store(start_ticks(std::process::id()).unwrap_or(0), Relaxed);
        head.version.store(VERSION, Relaxed);
        head.magic.store(MAGIC, Release);
        let slots = (0..options.n_slots).map(|_| None).collect();
        let mut banks = Self {
            memory,
            n_prepared: 0,
            layout,
            folder: Folder::open(folder)?,
            patience: options.patience,
            most_bytes: options.most_bytes,
            is_ring: options.is_ring,
            taken_bytes: 0,
            is_for_others: false,
            root: None,
            pid_here: None,
            mapping: Mapping::of(&file)?,
            numbers: vec![None; options.n_slots],
            file,
            dumped_bytes: 0,
            taps: Vec::new(),
            keeps_nothing: false,
            most_dumped_bytes: options.dumped_bytes,
            n_dumps: 0,
            held: Vec::new(),
            written: Written::default(),
            packer: Box::new(Packer::new()),
            slots,
            collected: Vec::new(),
            snapshots: Vec::new(),
        };
        banks.prepare_ahead();
        Ok(banks)
    }

    /// Seals the length of the file: shortening it would kill all processes with a mapping of it.
    ///
    /// # Errors
    ///
    /// The errors of the system: the file was made without permission to seal it.
    pub fn seal(&self) -> io::Result<()> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: takes no pointer.
        let sealed = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        if sealed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes all available records. `life` returns the state of a process. Returns the fill of the fullest bank.
    pub fn poll(&mut self, mut life: impl FnMut(u32) -> Life) -> Fill {
        let mut n_taken = 0;
        self.prepare_ahead();
        let programs = self.programs();
        for number in 0..self.n_seen() {
            let slot = self.slot(number);
            match slot.state.load(Acquire) {
                slot_state::IN_USE => self.find_out(number),
                // The taker stores its PID just afterwards. Until then the slot has no owner that could have ended.
                slot_state::TAKEN => {
                    // It may have gone on meanwhile. What it has recorded then is taken the next time.
                    let own = slot.pid.load(Acquire);
                    let likely = slot.pid_in_proc.load(Relaxed);
                    if own != 0
                        && self.mapping.process(own, likely, 0).is_none_or(|pid| life(pid).is_over())
                        && slot.state.load(Acquire) == slot_state::TAKEN
                    {
                        self.give_back(number);
                    }
                    continue;
                }
                _ => continue,
            }
            if self.layout.n_chunks() == 0 {
                // It is only asked there.
                if self.is_gone(number) || life(self.pid_in(number)).is_over() || self.is_followed(number, &programs) {
                    self.give_back(number);
                }
                continue;
            }
            slot.bank.beat.fetch_add(1, Relaxed);
            let mut watched = self.slots[number].take().unwrap_or_else(|| self.begin(number));
            // Marks come before the calls that were made after them.
            self.read_journal(number, slot, &mut watched.told);
            self.pass_on(number, &watched, false);
            if !self.is_ring {
                n_taken = n_taken.max(self.drain(number, &mut watched, false));
                if !watched.spool.is_too_large {
                    self.end_vain_waits(number, &mut watched.occupied);
                }
            }
            // First: what it does between the look and the answer is taken at its end.
            let is_gone = self.is_gone(number);
            let life = if is_gone { Life::Over(None) } else { life(watched.pid) };
            let is_followed = self.is_followed(number, &programs);
            // A process that runs another program by now goes on, or that one has its end.
            watched.status = watched.status.or(life.status().filter(|_| !is_followed));
            let is_over = life.is_over() || is_followed;
            self.take_snapshot(number, &mut watched);
            // A dump is due then.
            if is_over && !self.is_held(number, watched.pid) {
                self.finish(number, watched);
            } else {
                if watched.look(slot.mapped_at.load(Relaxed)) {
                    if self.is_ring {
                        watched.open.look_again(watched.pid, slot.threads_at.load(Relaxed));
                    } else {
                        watched.spool.flush();
                        self.keep_about(number, &mut watched);
                    }
                }
                self.slots[number] = Some(watched);
            }
        }
        self.passed_on();
        Fill { n_taken, n_chunks: self.layout.n_chunks() }
    }

    /// Returns the processes that have ended since the last call.
    pub fn ended(&mut self) -> Vec<Collected> {
        std::mem::take(&mut self.collected)
    }

    /// Returns the amount written so far, for all processes.
    #[must_use]
    pub fn written(&self) -> Written {
        self.written
    }

    /// Takes the rest, even of running processes. Returns it, with the processes ended since [`ended`](Self::ended) was
    /// called.
    pub fn finish_all(mut self, mut life: impl FnMut(u32) -> Life) -> Vec<Collected> {
        let programs = self.programs();
        for number in 0..self.n_seen() {
            if self.layout.n_chunks() > 0 && self.slot(number).state.load(Acquire) == slot_state::IN_USE {
                self.find_out(number);
                let mut watched = self.slots[number].take().unwrap_or_else(|| self.begin(number));
                if !self.is_gone(number) && !self.is_followed(number, &programs) {
                    watched.status = watched.status.or(life(watched.pid).status());
                }
                self.finish(number, watched);
            }
        }
        self.collected
    }

    /// Returns true if the process of this program runs another recorded one by now.
    fn is_followed(&self, number: usize, programs: &HashMap<u32, u64>) -> bool {
        let since = self.slot(number).program_nanos.load(Relaxed);
        programs.get(&self.pid_in(number)).is_some_and(|&newest| newest > since)
    }

    /// Returns the beginning of the newest program of each process.
    fn programs(&self) -> HashMap<u32, u64> {
        let mut programs = HashMap::new();
        for number in 0..self.n_seen() {
            let slot = self.slot(number);
            if slot.state.load(Acquire) == slot_state::IN_USE {
                let newest = programs.entry(self.pid_in(number)).or_default();
                *newest = slot.program_nanos.load(Relaxed).max(*newest);
            }
        }
        programs
    }

    /// Returns a number above those of all slots taken so far.
    pub(super) fn n_seen(&self) -> usize {
        (self.head().n_seen.load(Acquire) as usize).min(self.layout.n_slots)
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with it; it consists of atomics.
        unsafe { &*self.memory.as_ptr().cast::<Head>() }
    }

    /// Finds the PID here of the process in a slot, once, by the system. The process's own PID may be of a namespace of
    /// its own, and another process's here.
    fn find_out(&mut self, number: usize) {
        let slot = self.slot(number);
        let (own, likely) = (slot.pid.load(Relaxed), slot.pid_in_proc.load(Relaxed));
        if self.numbers[number].is_none() {
            let found = self.pid_here.or_else(|| self.mapping.process(own, likely, slot.mapped_at.load(Relaxed)));
            let here = found.unwrap_or(if likely == 0 { own } else { likely });
            self.numbers[number] = Some(Numbers { own, here, is_gone: found.is_none() });
        }
    }

    /// True if the process in a slot had ended before it was looked for.
    fn is_gone(&self, number: usize) -> bool {
        self.numbers[number].is_some_and(|numbers| numbers.is_gone)
    }

    /// Returns the PID here of the process that forked another one.
    fn parent_of(&self, number: usize, pid: u32) -> u32 {
        let own = self.slot(number).forked_by.load(Relaxed);
        let known = || self.numbers.iter().flatten().filter(|numbers| numbers.own == own).map(|numbers| numbers.here);
        let is_it = |here: u32| known().any(|known| known == here);
        let others = known().next();
        parent(pid).filter(|&here| is_it(here)).or_else(|| others.filter(|_| !is_it(own))).unwrap_or(own)
    }

    /// Sets the PID here of the only recorded process. It may have another one in its container.
    pub fn set_pid_here(&mut self, pid: u32) {
        self.pid_here = Some(pid);
    }

    /// Returns the PID here of the process in a slot.
    pub(super) fn pid_in(&self, number: usize) -> u32 {
        let own = self.slot(number).pid.load(Relaxed);
        let known = self.numbers[number].filter(|numbers| numbers.own == own);
        known.map_or(self.pid_here.unwrap_or(own), |numbers| numbers.here)
    }

    pub(super) fn slot(&self, number: usize) -> &'static Slot {
        // SAFETY: the slots lie in the mapping; nobody has this reference after `self`, which it is used within.
        unsafe { &*self.at(number, 0).cast::<Slot>() }
    }

    pub(super) fn at(&self, number: usize, offset: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.layout.slot_at(number) + offset)
    }

    /// Prepares more slots than processes can take until the next look.
    fn prepare_ahead(&mut self) {
        const AHEAD: usize = 256;

        let n_wanted = (self.n_seen() + AHEAD).min(self.layout.n_slots);
        for number in self.n_prepared..n_wanted {
            self.prepare(number);
        }
        self.n_prepared = self.n_prepared.max(n_wanted);
    }

    fn prepare(&self, number: usize) {
        let bank = &self.slot(number).bank;
        bank.beat.store(1, Relaxed);
        bank.wait_ticks.store(ticks_in(self.patience), Relaxed);
    }

    /// Begins to watch a process.
    fn begin(&self, number: usize) -> Watched {
        let mut watched = self.watch(number);
        // A spool that is there has this beside it, whenever this recorder is killed.
        self.keep_about(number, &mut watched);
        watched
    }

    pub(super) fn watch(&self, number: usize) -> Watched {
        let slot = self.slot(number);
        let (pid, since) = (self.pid_in(number), slot.first_tsc.load(Relaxed));
        let calls_itself = slot.pid.load(Relaxed);
        // Several processes of one recording may call themselves the same.
        let own_pid = if self.pid_here.is_some() { calls_itself } else { pid };
        let renamed = (own_pid != calls_itself).then_some((calls_itself, pid));
        Watched {
            pid,
            own_pid,
            parent: self.parent_of(number, pid),
            has_own_numbers: pid != calls_itself,
            status: None,
            spool: Spool::new(&self.folder, format!("spool-{pid}-{number}-{since}")),
            looked: None,
            open: OpenFunctions::default(),
            progress: None,
            maps: History::default(),
            names: HashMap::new(),
            tids: renamed.into_iter().collect(),
            world: None,
            told: Told::default(),
            described: None,
            waiting: HashMap::new(),
            occupied: Occupied::default(),
        }
    }

    /// Writes full chunks, or at the end all with records. Returns their number.
    pub(super) fn drain(&mut self, number: usize, watched: &mut Watched, is_last: bool) -> usize {
        // In the order in which threads took them: what there is no room for is the end of what happened.
        let mut found = self.to_be_taken(number, watched, is_last);
        found.sort_unstable_by_key(|&(_, lease)| lease::index(lease));
        let mut n_taken = 0;
        for (place, lease) in found {
            let chunk = self.chunk(number, place);
            if !is_last && !self.is_passed_on(number, &chunk) {
                continue;
            }
            watched.waiting.remove(&lease::index(lease));
            if !self.keeps_nothing && !watched.spool.may_go_on(self.taken_bytes, self.most_bytes) {
                let bank = &self.slot(number).bank;
                if is_last {
                    bank.n_lost.fetch_add(n_calls_and_returns(&chunk), Relaxed);
                }
                // Full chunks stay full: the tracer finds no chunk, and counts the dropped records.
                bank.wait_ticks.store(0, Relaxed);
                continue;
            }
            if !self.keeps_nothing {
                let before = watched.spool.n_bytes;
                self.written.n_records += watched.spool.write(&chunk, &mut self.packer) as u64;
                self.written.n_bytes += watched.spool.n_bytes.saturating_sub(before);
                self.taken_bytes += self.layout.chunk_bytes() as u64;
            }
            n_taken += 1;
            handover::make_free(chunk.header, lease);
        }
        n_taken
    }

    /// Returns the places and leases of full chunks, or at the end of all with records.
    fn to_be_taken(&self, number: usize, watched: &mut Watched, is_last: bool) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        let mut place = 0;
        while place < self.layout.n_chunks() {
            let chunk = self.chunk(number, place);
            let now = chunk.header.lease.load(Acquire);
            // They are taken in order: those behind one that never was have not been taken either. A thread may be about to, or, at
            // the end, have been.
            if now == 0 {
                if is_last && let Some(next) = self.next_with_memory(number, place + 1) {
                    place = next;
                    continue;
                }
                break;
            }
            place += 1;
            let has_waited = |index| watched.waiting.entry(index).or_insert_with(Instant::now).elapsed() > PATIENCE;
            if handover::is_to_be_taken(&chunk, now, is_last, has_waited) {
                found.push((place - 1, now));
            }
        }
        found
    }

    /// Ends the waits of a process while its own threads have all chunks.
    pub(super) fn end_vain_waits(&self, number: usize, occupied: &mut Occupied) {
        let leases = (0..self.layout.n_chunks()).map(|place| self.chunk(number, place).header.lease.load(Acquire));
        if let Some(is_stuck) = occupied.look(leases) {
            let patience = if is_stuck { Duration::ZERO } else { self.patience };
            self.slot(number).bank.wait_ticks.store(ticks_in(patience), Relaxed);
        }
    }

    /// A chunk of a slot.
    pub(super) fn chunk(&self, number: usize, place: usize) -> Chunk<'static> {
        let chunk_bytes = self.layout.chunk_bytes();
        let start = self.at(number, CHUNKS_AT + place * chunk_bytes);
        // SAFETY: a chunk of the slot; headers and records consist of atomics. Nobody has it after `self`, which it is used within.
        unsafe {
            Chunk {
                header: &*start.cast::<ChunkHeader>(),
                records: slice::from_raw_parts(
                    start.add(CHUNK_HEADER_BYTES).cast::<Record>().cast_const(),
                    records_per_chunk(chunk_bytes),
                ),
            }
        }
    }

    /// Returns the next chunk with memory, from `place` on.
    pub(super) fn next_with_memory(&self, number: usize, place: usize) -> Option<usize> {
        let chunks_at = self.layout.slot_at(number) + CHUNKS_AT;
        let from = chunks_at + place * self.layout.chunk_bytes();
        // SAFETY: takes no pointer; nobody goes by the file's position.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), from as i64, libc::SEEK_DATA) };
        let next = (usize::try_from(found).ok()? - chunks_at) / self.layout.chunk_bytes();
        (next < self.layout.n_chunks()).then(|| next.max(place))
    }

    /// Ends a process: takes the rest.
    fn finish(&mut self, number: usize, mut watched: Watched) {
        self.read_journal(number, self.slot(number), &mut watched.told);
        self.pass_on(number, &watched, true);
        let ring = if self.is_ring {
            let mut spool = std::mem::take(&mut watched.spool);
            let ring = self.copy_ring(number, &mut spool, false);
            watched.spool = spool;
            Some(ring)
        } else {
            self.drain(number, &mut watched, true);
            None
        };
        watched.spool.flush();
        let n_lost = self.slot(number).bank.n_lost.load(Relaxed);
        let is_told = watched.spool.n_bytes > 0 || n_lost > 0 || watched.spool.failed.is_some();
        if !self.keeps_nothing && is_told {
            let mut collected = self.collected(number, &watched, watched.spool.last_thread);
            if let Some(ring) = ring {
                self.tell_of_ring(number, &mut collected, &watched, &ring);
            }
            collected.death = self.death(number);
            collected.status = watched.status.or(self.own_status(number));
            collected.failed = watched.spool.failed.take().map(|error| error.to_string());
            self.keep_about_of(&mut collected, &mut watched);
            collected.world = None;
            self.collected.push(collected);
        }
        self.give_back(number);
    }

    /// Returns all facts about a process and its spool. Threads up to `last_thread` have records.
    pub(super) fn collected(&self, number: usize, watched: &Watched, last_thread: u32) -> Collected {
        let slot = self.slot(number);
        let [exe, command_line, own_maps, hooked, _] = self.texts(number);
        let maps = watched.maps.all().map(<[u8]>::to_vec).chain([own_maps]).collect();
        let threads = self.threads(number, watched, last_thread);
        let parent = watched.parent;
        Collected {
            pid: watched.pid,
            own_pid: watched.own_pid,
            program_nanos: slot.program_nanos.load(Relaxed),
            fork: (parent != 0).then(|| (parent, slot.forked_nanos.load(Relaxed))),
            n_dropped: slot.bank.n_lost.load(Relaxed),
            has_many_threads: watched.occupied.was_stuck,
            failed: None,
            is_too_large: watched.spool.is_too_large,
            dump: None,
            n_overwritten: 0,
            death: None,
            status: None,
            problem: None,
            n_records: watched.spool.n_records,
            spool: watched.spool.path.clone(),
            _folder: Some(self.folder.clone()),
            spool_bytes: watched.spool.n_bytes,
            least_bytes: 0,
            tail: None,
            is_cut: false,
            is_over: true,
            chunk_bytes: self.layout.chunk_bytes(),
            first: ClockPair { tsc: slot.first_tsc.load(Relaxed), nanos: slot.first_nanos.load(Relaxed) },
            last: ClockPair::now(),
            facts: None,
            utc_offset_nanos: slot.utc_offset_nanos.load(Relaxed),
            minima: self.minima(number),
            end_tsc: slot.end_tsc.load(Relaxed),
            n_untraced_threads: slot.n_untraced_threads.load(Relaxed),
            root: self.root.clone(),
            exe,
            command_line,
            maps,
            unloaded: watched.told.unloaded.clone(),
            marks: watched.told.marks.clone(),
            n_untold: slot.n_untold.load(Relaxed) + watched.told.n_left_out,
            hooked,
            open: self.open_functions(number),
            threads,
            world: None,
        }
    }

    /// Gives a slot's memory back to the system, then the slot to the next process.
    fn give_back(&mut self, number: usize) {
        self.numbers[number] = None;
        let slot = self.slot(number);
        let (start, bytes) = (self.layout.slot_at(number), self.layout.slot_bytes());
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointer. What is punched reads as zero: the slot is free by that.
        let punched = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start as i64, bytes as i64) } == 0;
        if punched {
            self.prepare(number);
            self.head().next_slot.fetch_min(number as u64, Relaxed);
        } else {
            // Nobody takes it again.
            slot.pid.store(0, Relaxed);
            slot.state.store(u32::MAX, Release);
        }
    }

    /// The texts of a slot, as far as they are there.
    pub(super) fn texts(&self, number: usize) -> [Vec<u8>; 5] {
        let n_bytes = (self.slot(number).text_bytes.load(Acquire) as usize).min(TEXT_BYTES);
        let mut place = self.at(number, TEXT_AT).cast_const();
        let mut n_left = n_bytes;
        [(); 5].map(|()| {
            let mut length = [0; 4];
            if n_left < 4 {
                return Vec::new();
            }
            // SAFETY: within the texts of the slot. A process may write there meanwhile: then it is any bytes.
            let text = unsafe {
                place.copy_to_nonoverlapping(length.as_mut_ptr(), 4);
                let length = (u32::from_le_bytes(length) as usize).min(n_left - 4);
                let mut text = vec![0; length];
                place.add(4).copy_to_nonoverlapping(text.as_mut_ptr(), length);
                text
            };
            place = place.wrapping_add(text.len() + 4);
            n_left -= text.len() + 4;
            text
        })
    }

    /// Returns the kind of end of an ended process.
    fn death(&self, number: usize) -> Option<Death> {
        let slot = self.slot(number);
        match self.own_status(number).map_or(0, |status| status.cast_unsigned() & 0x7f) {
            0 if slot.end_tsc.load(Relaxed) == 0 && !self.is_followed(number, &self.programs()) => {
                Some(Death::WithoutWord)
            }
            0 => None,
            signal => Some(Death::Signal(signal)),
        }
    }

    /// Returns the status for a process's end, as far as it knew.
    fn own_status(&self, number: usize) -> Option<i32> {
        self.slot(number).status.load(Relaxed).checked_sub(1).map(u32::cast_signed)
    }

    /// Returns the functions open at the fork of the process.
    fn open_functions(&self, number: usize) -> HashMap<u32, Vec<u64>> {
        let slot = self.slot(number);
        let n_open = (slot.n_open.load(Acquire) as usize).min(RETURN_STACK_ENTRIES);
        // SAFETY: within the slot, aligned, and of atomics.
        let words = unsafe { slice::from_raw_parts(self.at(number, OPEN_AT).cast::<AtomicU64>().cast_const(), n_open) };
        let words = words.iter().map(|word| exit_word(word.load(Relaxed))).collect();
        [(slot.forked_thread.load(Relaxed), words)].into()
    }

    /// Returns the identities of the threads with records.
    fn threads(&self, number: usize, watched: &Watched, last_thread: u32) -> BTreeMap<u32, Identity> {
        let last = (last_thread as usize).min(MAX_THREADS - 1) as u32;
        let identity = |thread: u32| {
            let entry = self.at(number, THREADS_AT).cast::<Entry>().wrapping_add(thread as usize);
            // SAFETY: an entry of the slot's table; it consists of atomics.
            let entry = unsafe { &*entry };
            let tid = entry.system_tid()?;
            let name = match entry.name() {
                name if name.is_empty() => watched.names.get(&tid).cloned().unwrap_or_default(),
                name => name,
            };
            let tid = watched.tids.get(&tid).copied().unwrap_or(tid);
            Some((thread, Identity { tid, name: String::from_utf8_lossy(name.trim_ascii_end()).into_owned() }))
        };
        (1..=last).filter_map(identity).collect()
    }
}

/// Returns the number of calls and returns in it.
fn n_calls_and_returns(chunk: &Chunk<'_>) -> u64 {
    let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
    let written = chunk.records.iter().filter_map(|record| record.read(taken_tsc));
    written.filter(|(_, word)| matches!(word & kind::MASK, kind::ENTRY | kind::EXIT)).count() as u64
}

impl Watched {
    /// Asks the system about the process, with the banks mapped at an address, if it is time. Returns true if it was.
    pub(super) fn look(&mut self, mapped_at: u64) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        let process = folder_of(self.pid);
        let Ok(maps) = system::read(process.join("maps")) else { return true };
        let bank = format!("{mapped_at:08x}-");
        if !maps.split(|&byte| byte == b'\n').any(|line| line.starts_with(bank.as_bytes())) {
            // Another program runs in it by now, or none.
            return true;
        }
        // An emulator's has nothing of the program.
        if !modules::is_emulated() {
            self.maps.add(&maps);
        }
        for task in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
            let here = task.file_name().to_str().and_then(|name| name.parse().ok());
            let tid = if self.has_own_numbers { own_number(&task.path()) } else { here };
            if let Some((tid, here)) = tid.zip(here)
                && tid != here
                && self.own_pid == self.pid
            {
                self.tids.insert(tid, here);
            }
            if let Some(tid) = tid
                && let Ok(name) = system::read(task.path().join("comm"))
            {
                self.names.insert(tid, name);
            }
        }
        true
    }
}
