//! The recorded process's side of its bank: takes a slot, and writes the process's identity there.
//!
//! All slots are mapped from the beginning, and take address space only. So a child needs no file for its own slot,
//! with any root directory and any rights.
//!
//! **Invariant**: a process writes to no slot but its own. In the child of a fork the parent's chunks become private
//! memory before recording: an interrupted hook may still write there.
//!
//! A child made without the C library (by a raw system call) finds the switch off, as the system clears its page
//! (`MADV_WIPEONFORK`), and records nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use rftrace::abi::{self, Switch};
use rftrace_format::passed::Passed;

use super::file::{
    CHUNKS_AT, HEAD_BYTES, Head, JOURNAL_AT, JOURNAL_BYTES, Layout, MAGIC, RAISED, Slot, TEXT_AT, TEXT_BYTES,
    THREADS_AT, VERSION,
};
use super::handover::{self, slot_state};
use super::numbers::number_in_proc;
use crate::Error;
use crate::backend;
use crate::clock::{ClockPair, monotonic_nanos, tsc, utc_offset_nanos};
use crate::elf::file::page_size;
use crate::host::linux::sizes::MAX_SITES;
use crate::host::linux::thread_table::TABLE_BYTES;
use crate::host::linux::{modules, threads};
use crate::patch;

/// The banks of a recorder with a slot for this process. They stay mapped.
#[derive(Debug)]
pub struct Bank {
    pub(super) start: *mut u8,
    /// The number of bytes of addresses from there on: more than the file has in the place of a larger bank.
    room: usize,
    pub(super) layout: Layout,
    file: Passed,
    /// True if free chunks are reused, oldest first.
    pub(super) is_ring: bool,
    /// The slot of this process, [`NO_SLOT`] for none.
    pub(super) slot: AtomicUsize,
    /// The addresses of each slot's chunks in this process while private memory is in their place; 0 without it.
    elsewhere: Box<[AtomicUsize]>,
    /// True if recording was on when this process was about to fork.
    pub(super) was_on: AtomicBool,
    /// True if forked children are recorded too.
    pub(super) is_for_children: bool,
    /// True if hooked functions without a call of the tracer are reported to the recorder.
    has_hooked: AtomicBool,
}

// SAFETY: what is behind the pointer are atomics, or is written by one thread before others see it.
unsafe impl Send for Bank {}
// SAFETY: as above.
unsafe impl Sync for Bank {}

pub(super) const NO_SLOT: usize = usize::MAX;

/// The number of a process's tries for a slot.
pub(super) const TRIES: usize = 2000;

/// The addresses of the latest bank taken back by a recorder, now private memory. The next bank takes this place, so
/// nothing grows with the number of recordings.
static LEFT: Place = Place { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) };

/// Addresses for one caller at a time.
struct Place {
    start: AtomicUsize,
    /// 0 while nobody may take them.
    bytes: AtomicUsize,
}

impl Place {
    fn leave(&self, start: *mut u8, bytes: usize) {
        self.start.store(start.expose_provenance(), Relaxed);
        self.bytes.store(bytes, Release);
    }

    /// Takes them if they have room for so many bytes.
    fn take(&self, bytes: usize) -> Option<(*mut u8, usize)> {
        let room = self.bytes.fetch_update(AcqRel, Acquire, |room| (room >= bytes).then_some(0)).ok()?;
        Some((ptr::with_exposed_provenance_mut(self.start.load(Relaxed)), room))
    }
}

/// The bank of this process; null for none.
static OWN: AtomicPtr<Bank> = AtomicPtr::new(ptr::null_mut());

pub(super) fn own() -> Option<&'static Bank> {
    // SAFETY: null, or a bank that is never freed.
    unsafe { OWN.load(Acquire).as_ref() }
}

fn writable() -> OpenOptions {
    File::options().read(true).write(true).clone()
}

/// Memory for a tracer's records: a ring if there is no bank.
pub(crate) struct Given {
    pub(crate) buffer: *mut u8,
    pub(crate) bytes: usize,
    /// Null for a ring, which nobody empties.
    pub(crate) bank: *const abi::Bank,
    pub(crate) threads: *mut u8,
}

impl Bank {
    /// Opens a recorder's banks, and takes a free slot for this process.
    ///
    /// # Errors
    ///
    /// The recorder has ended or has another version; the address space is too small; all slots are taken.
    pub fn open(banks: &Passed) -> io::Result<&'static Self> {
        Self::of_file(&banks.open(&writable())?, banks.clone(), true, TRIES)
    }

    /// Opens banks like [`open`](Self::open), only for the recorder's requests, as this process keeps its own records.
    /// It does not wait for a slot.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn open_for_requests(banks: &Passed) -> io::Result<&'static Self> {
        Self::of_file(&banks.open(&writable())?, banks.clone(), true, 1)
    }

    /// Accepts the recorder's requests from now on, for banks that serve only requests.
    pub fn listen(&self) {
        let Some(slot) = self.own_slot() else { return };
        slot.program_nanos.store(monotonic_nanos(), Relaxed);
        slot.requests.switch_at.store(ptr::from_ref(backend::switch()) as u64, Relaxed);
        slot.state.store(slot_state::IN_USE, Release);
    }

    /// Opens banks like [`open`](Self::open), by the path of a file, for this process alone: in a forked child
    /// recording is off.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn open_alone(path: &Path) -> io::Result<&'static Self> {
        let file = writable().open(path)?;
        Self::of_file(&file, Passed::at(path.to_owned(), &file)?, false, TRIES)
    }

    fn of_file(file: &File, found: Passed, is_for_children: bool, n_tries: usize) -> io::Result<&'static Self> {
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        if bytes < HEAD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has no banks"));
        }
        let (start, room) = map(file, bytes)?;
        Self::in_memory(start, (bytes, room), found, is_for_children, n_tries).inspect_err(|_| {
            // Nobody writes there but for hooks that have been in a bank before, if there was one.
            _ = hide(start, room).map(|()| LEFT.leave(start, room));
        })
    }

    /// The banks mapped at `start`, with room for more.
    fn in_memory(
        start: *mut u8,
        (bytes, room): (usize, usize),
        file: Passed,
        is_for_children: bool,
        n_tries: usize,
    ) -> io::Result<&'static Self> {
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the file has no banks of this version of rftrace; use the version of the recorder",
            )
        };
        // SAFETY: the mapping is larger; all fields are atomics.
        let head = unsafe { &*start.cast::<Head>() };
        let layout = Layout {
            n_slots: head.n_slots.load(Relaxed) as usize,
            buffer_bytes: head.buffer_bytes.load(Relaxed) as usize,
        };
        let is_known = head.magic.load(Relaxed) == MAGIC && head.version.load(Relaxed) == VERSION;
        if !is_known || layout.file_bytes() != bytes {
            return Err(bad());
        }
        let bank = Self {
            start,
            room,
            layout,
            file,
            is_ring: head.is_ring.load(Relaxed) != 0,
            slot: AtomicUsize::new(NO_SLOT),
            elsewhere: (0..layout.n_slots).map(|_| AtomicUsize::new(0)).collect(),
            was_on: AtomicBool::new(false),
            is_for_children,
            has_hooked: AtomicBool::new(false),
        };
        if !bank.take_slot(n_tries, NO_SLOT) {
            return Err(io::Error::other(
                "all banks are in use: the recorder records too many processes at the same time",
            ));
        }
        Ok(Box::leak(Box::new(bank)))
    }

    /// Describes this process and its modules once more, shortly before its end or an exec.
    pub fn describe(&self) {
        let Some(slot) = self.own_slot() else { return };
        self.write_texts();
        threads::keep_names(backend::control().next_tid.load(Relaxed));
        slot.n_untraced_threads.store(backend::control().n_untraced_threads.load(Relaxed), Relaxed);
    }

    /// Describes the hooked functions without a call of the tracer, now and whenever this process is
    /// [described](Self::describe): their files may have no names for them.
    pub fn describe_hooked(&self) {
        self.has_hooked.store(true, Relaxed);
        self.write_texts();
    }

    /// Requests a trace of the recording so far, and waits until the recorder has made the copy; a ring is copied
    /// without a wait. Recording goes on.
    pub fn snapshot(&self) {
        const PAUSE: Duration = Duration::from_millis(1);
        /// The maximum wait for an inactive recorder.
        const PATIENCE: Duration = Duration::from_secs(1);

        let Some(slot) = self.own_slot() else { return };
        if self.is_ring {
            return slot.snapshot_tsc.store(ClockPair::now().tsc, Release);
        }
        self.describe();
        slot.snapshot_tsc.store(ClockPair::now().tsc, Release);
        let (mut beat, mut since) = (slot.bank.beat.load(Relaxed), Instant::now());
        while slot.snapshot_tsc.load(Acquire) != 0 && since.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
            let now = slot.bank.beat.load(Relaxed);
            if now != beat {
                (beat, since) = (now, Instant::now());
            }
        }
    }

    /// Reports that this thread is about to raise a panic or exception, by its index in [`RAISED`]. Like a watch, it
    /// keeps the first notice until the recorder has read it.
    pub fn tell_raised(&self, kind: usize) {
        const WRITING: u64 = 1;

        let Some((slot, &number)) = self.own_slot().zip(RAISED.get(kind)).filter(|_| backend::is_enabled()) else {
            return;
        };
        let noticed = &slot.noticed;
        if noticed.tsc.compare_exchange(0, WRITING, AcqRel, Relaxed).is_ok() {
            let thread = backend::own_thread().map_or(0, |thread| thread.tid.load(Relaxed));
            noticed.number.store(number, Relaxed);
            noticed.thread.store(thread.into(), Relaxed);
            noticed.lasted.store(0, Relaxed);
            noticed.tsc.store(tsc::ticks(), Release);
        } else {
            noticed.n_more.fetch_add(1, Relaxed);
        }
    }

    /// This process ends, with this status of `wait` if it knows: nothing is recorded any more.
    pub fn end(&self, status: Option<i32>) {
        backend::disable();
        self.describe();
        if let Some(slot) = self.own_slot() {
            slot.status.store(status.map_or(0, |status| status.cast_unsigned() + 1), Relaxed);
            slot.end_tsc.store(backend::control().stop_tsc.load(Relaxed), Relaxed);
        }
    }

    /// Detaches this process, after the [end](Self::end) of its recording, from the bank for good. Late hooks write to
    /// private memory; the addresses stay reserved.
    ///
    /// # Errors
    ///
    /// The system has no such memory; the bank stays mapped.
    pub fn leave(&self) -> io::Result<()> {
        threads::copy_back();
        OWN.store(ptr::null_mut(), Release);
        self.slot.store(NO_SLOT, Relaxed);
        hide(self.start, self.room)
    }

    /// Detaches this process like [`leave`](Self::leave), and gives the addresses to the next bank. A late store would
    /// hit that one's records, so a recorder asks for it only if it waits afterwards until no thread is in a hook.
    ///
    /// # Errors
    ///
    /// The errors of [`leave`](Self::leave).
    pub fn leave_to_next(&self) -> io::Result<()> {
        self.leave()?;
        LEFT.leave(self.start, self.room);
        Ok(())
    }

    /// Returns the range of addresses of the banks in this process.
    #[must_use]
    pub fn addresses(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.room
    }

    /// Puts private memory in the place of a slot's chunks and moves these elsewhere: the slot may be this process's
    /// later, or a child's.
    pub(super) fn hide_chunks(&self, number: usize) -> io::Result<()> {
        let (at, bytes) = (self.layout.slot_at(number) + CHUNKS_AT, self.layout.buffer_bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever there is room.
        let elsewhere = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if elsewhere == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if let Err(error) = shift(self.start.wrapping_add(at), elsewhere.cast(), bytes) {
            // SAFETY: it was just mapped, and is not used.
            unsafe { libc::munmap(elsewhere, bytes) };
            return Err(error);
        }
        self.elsewhere[number].store(elsewhere as usize, Relaxed);
        // A hook that goes on would find nothing there.
        hide(self.start.wrapping_add(at), bytes).inspect_err(|_| _ = self.show_chunks(number))
    }

    /// Puts a slot's chunks back into their place.
    fn show_chunks(&self, number: usize) -> io::Result<()> {
        let elsewhere = self.elsewhere[number].load(Relaxed);
        if elsewhere == 0 {
            return Ok(());
        }
        shift(ptr::with_exposed_provenance_mut(elsewhere), self.at(number, CHUNKS_AT), self.layout.buffer_bytes)?;
        self.elsewhere[number].store(0, Relaxed);
        Ok(())
    }

    /// Returns true for a ring whose recorder was killed: the bank's file is gone, and the slot is unread. The process
    /// itself can save the records.
    pub fn is_abandoned(&self) -> bool {
        /// A recorder looks every few milliseconds; it may have to wait for a processor.
        const PATIENCE: Duration = Duration::from_millis(200);

        let is_gone = self.file.is_there() == Some(false);
        let Some(slot) = self.own_slot().filter(|_| self.is_ring && is_gone) else { return false };
        let beat = slot.bank.beat.load(Relaxed);
        thread::sleep(PATIENCE);
        slot.bank.beat.load(Relaxed) == beat
    }

    /// Returns true if this process has a slot. A forked child may have found none.
    pub fn has_slot(&self) -> bool {
        self.own_slot().is_some()
    }

    /// Takes a free slot. If there is none, tries again up to `n_tries` times, a millisecond later: the recorder frees
    /// the slots of ended processes.
    pub(super) fn take_slot(&self, n_tries: usize, except: usize) -> bool {
        const PAUSE: Duration = Duration::from_millis(1);

        let free = |turn| {
            if turn > 0 {
                thread::sleep(PAUSE);
            }
            self.layout.tried(self.head()).find(|&number| {
                let state = &self.slot_of(number).state;
                let is_taken = number != except && handover::take_slot(state);
                let is_own = is_taken && self.show_chunks(number).is_ok();
                if is_taken && !is_own {
                    state.store(slot_state::FREE, Release);
                }
                is_own
            })
        };
        let taken = (0..n_tries).find_map(free);
        if let Some(number) = taken {
            // The recorder looks no further.
            self.head().n_seen.fetch_max(number as u64 + 1, Release);
            self.head().next_slot.store(number as u64 + 1, Relaxed);
            let slot = self.slot_of(number);
            slot.pid_in_proc.store(number_in_proc().unwrap_or(0), Relaxed);
            // The recorder waits for this one.
            slot.pid.store(std::process::id(), Release);
        }
        self.slot.store(taken.unwrap_or(NO_SLOT), Relaxed);
        taken.is_some()
    }

    fn head(&self) -> &'static Head {
        // SAFETY: the mapping begins with it, and stays; it consists of atomics.
        unsafe { &*self.start.cast::<Head>() }
    }

    pub(super) fn own_slot(&self) -> Option<&'static Slot> {
        let number = self.slot.load(Relaxed);
        (number != NO_SLOT).then(|| self.slot_of(number))
    }

    pub(super) fn slot_of(&self, number: usize) -> &'static Slot {
        // SAFETY: the slots lie in the mapping, aligned to 64 KiB, and stay there; they consist of atomics.
        unsafe { &*self.at(number, 0).cast::<Slot>() }
    }

    pub(super) fn at(&self, number: usize, offset: usize) -> *mut u8 {
        self.start.wrapping_add(self.layout.slot_at(number) + offset)
    }

    /// A place in this process's slot.
    pub(super) fn own_place(&self, offset: usize) -> Option<*mut u8> {
        let number = self.slot.load(Relaxed);
        (number != NO_SLOT).then(|| self.at(number, offset))
    }

    /// The bytes of this process's journal.
    pub(super) fn journal(&self) -> Option<&'static [AtomicU8]> {
        let number = self.slot.load(Relaxed);
        // SAFETY: within the mapping, which stays; atomics.
        (number != NO_SLOT).then(|| unsafe {
            slice::from_raw_parts(self.at(number, JOURNAL_AT).cast::<AtomicU8>().cast_const(), JOURNAL_BYTES)
        })
    }

    /// The memory for the tracer in this process's slot.
    pub(super) fn given(&self) -> Option<Given> {
        let number = self.slot.load(Relaxed);
        (number != NO_SLOT).then(|| Given {
            buffer: self.at(number, CHUNKS_AT),
            bytes: self.layout.buffer_bytes,
            bank: if self.is_ring { ptr::null() } else { &raw const self.slot_of(number).bank },
            threads: self.at(number, THREADS_AT),
        })
    }

    /// Writes the texts. They are valid by their length, written last. Without access to a text any more, as in a
    /// process without the right to open files, the earlier text stays.
    fn write_texts(&self) {
        let Some(slot) = self.own_slot() else { return };
        let exe = modules::exe_path().map(|path| path.into_os_string().into_encoded_bytes()).unwrap_or_default();
        let command_line = modules::own_command_line();
        let maps = modules::own_maps().unwrap_or_default();
        if maps.is_empty() && slot.text_bytes.load(Relaxed) > 0 {
            return;
        }
        let hooked = if self.has_hooked.load(Relaxed) { hooked() } else { Vec::new() };
        // All that is there of another process's bank was taken from its beginning on.
        let open = if self.is_ring { open_functions() } else { Vec::new() };
        let place = self.at(self.slot.load(Relaxed), TEXT_AT);
        // SAFETY: the texts of this process's slot.
        unsafe { write_texts(slot, place, [&exe, &command_line, &maps, &hooked, &open]) };
    }
}

/// Writes the texts of a slot at `place`: the path of the program, its command line, its maps, hooked functions, open
/// ones.
///
/// # Safety
///
/// [`TEXT_BYTES`] can be written there. The recorder reads them when their length is there.
pub(super) unsafe fn write_texts(slot: &Slot, place: *mut u8, texts: [&[u8]; 5]) {
    slot.text_bytes.store(0, Release);
    let mut place = place;
    let mut room = TEXT_BYTES;
    let mut written = 0;
    for text in texts {
        let n_bytes = text.len().min(room.saturating_sub(4));
        room -= n_bytes + 4;
        written += n_bytes + 4;
        // SAFETY: by this function's contract.
        unsafe {
            ptr::copy_nonoverlapping((n_bytes as u32).to_le_bytes().as_ptr(), place, 4);
            ptr::copy_nonoverlapping(text.as_ptr(), place.add(4), n_bytes);
        }
        place = place.wrapping_add(n_bytes + 4);
    }
    slot.text_bytes.store(written as u32, Release);
}

/// The functions with branches at their entries, and slots for those of other modules: an address and a size each.
fn hooked() -> Vec<u8> {
    let modules = modules::loaded_modules(&[]).unwrap_or_default().into_iter();
    let functions = modules.flat_map(|module| {
        patch::hooked_functions(module.start).map(move |(address, size)| [module.start + address, size])
    });
    functions.flatten().flat_map(u64::to_le_bytes).collect()
}

/// Returns the functions open now, for [`OpenFunctions`](super::open::OpenFunctions).
fn open_functions() -> Vec<u8> {
    let now = ClockPair::now().tsc;
    let open = backend::open_by_thread().into_iter();
    let words = open.flat_map(|(thread, words)| [u64::from(thread), words.len() as u64].into_iter().chain(words));
    [now].into_iter().chain(words).flat_map(u64::to_le_bytes).collect()
}

/// Returns the ranges of the tracer's memory other than banks: the data of threads, of left frames, and of chosen
/// functions.
#[must_use]
pub fn memory_of_tracer() -> Vec<Range<usize>> {
    let control = backend::control();
    let [blocks, left] = [control.blocks.load(Relaxed) as usize, control.left.load(Relaxed) as usize];
    let (n_blocks, n_buckets) = (control.n_blocks.load(Relaxed), control.n_left_buckets.load(Relaxed));
    let (table, sites) = (threads::first_table(), control.filter.sites.load(Relaxed) as usize);
    let all = [
        (blocks, n_blocks * size_of::<abi::ThreadBlock>()),
        (left, n_buckets * abi::LEFT_BUCKET_BYTES),
        (table, TABLE_BYTES),
        (sites, MAX_SITES * size_of::<u64>()),
    ];
    all.into_iter().filter(|&(start, _)| start != 0).map(|(start, bytes)| start..start + bytes).collect()
}

/// Makes a part of a bank's addresses private memory.
fn hide(start: *mut u8, bytes: usize) -> io::Result<()> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: within the mapping, which nobody has a use for but late stores of hooks.
    let hidden = unsafe { libc::mmap(start.cast(), bytes, protection, flags, -1, 0) };
    if hidden == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Maps the whole file at an address with aligned chunks. Returns the address and its size in bytes.
fn map(file: &File, bytes: usize) -> io::Result<(*mut u8, usize)> {
    let (start, room) = match LEFT.take(bytes) {
        Some(left) => left,
        None => (reserve(bytes)?, bytes),
    };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: within addresses that nobody uses but late stores of hooks. The advice keeps it out of dumps of memory.
    unsafe {
        let mapped = libc::mmap(start.cast(), bytes, protection, flags | libc::MAP_NORESERVE, file.as_raw_fd(), 0);
        if mapped == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            LEFT.leave(start, room);
            return Err(error);
        }
        libc::madvise(mapped, bytes, libc::MADV_DONTDUMP);
    }
    Ok((start, room))
}

/// Reserves so many bytes of addresses with aligned chunks.
fn reserve(bytes: usize) -> io::Result<*mut u8> {
    let align = abi::MAX_CHUNK_BYTES;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever there is room.
    let reserved = unsafe { libc::mmap(ptr::null_mut(), bytes + align, libc::PROT_NONE, flags, -1, 0) };
    if reserved == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let skipped = (reserved as usize).wrapping_neg() & (align - 1);
    let start = reserved.cast::<u8>().wrapping_add(skipped);
    // SAFETY: just mapped, and not used. Where it fails a few addresses more are taken.
    unsafe {
        if skipped > 0 {
            libc::munmap(reserved, skipped);
        }
        libc::munmap(start.wrapping_add(bytes).cast(), align - skipped);
    }
    Ok(start)
}

/// This process records into the bank from now on. Returns the memory for the tracer.
pub(crate) fn begin(bank: &'static Bank) -> Result<Given, Error> {
    OWN.store(ptr::from_ref(bank).cast_mut(), Release);
    let switch: *const Switch = backend::switch();
    // Where pages are larger others' memory would be cleared too. There, and where it fails, a child that the C library did not make
    // may record into its parent's bank.
    if page_size() as usize == size_of::<Switch>() {
        // SAFETY: a page of its own, that is all zero whenever recording is off.
        unsafe { libc::madvise(switch.cast_mut().cast(), size_of::<Switch>(), libc::MADV_WIPEONFORK) };
    }
    bank.given().ok_or(Error::Replaced)
}

/// The tracer has taken the bank's memory.
pub(crate) fn opened(bank: &Bank, first: ClockPair) {
    let (Some(slot), Some(given)) = (bank.own_slot(), bank.given()) else { return };
    threads::copy_to(given.threads);
    slot.program_nanos.store(first.nanos, Relaxed);
    slot.first_tsc.store(first.tsc, Relaxed);
    slot.first_nanos.store(first.nanos, Relaxed);
    slot.utc_offset_nanos.store(utc_offset_nanos().unwrap_or(0), Relaxed);
    bank.tell_minimum();
    slot.mapped_at.store(bank.start as u64, Relaxed);
    slot.requests.switch_at.store(ptr::from_ref(backend::switch()) as u64, Relaxed);
    slot.first_index.store(backend::control().shared.first_index.load(Relaxed), Relaxed);
    slot.threads_at.store(&raw const backend::control().threads as u64, Relaxed);
    backend::control().filter.noticed.store((&raw const slot.noticed).cast_mut(), Release);
    bank.write_texts();
    slot.state.store(slot_state::IN_USE, Release);
}

/// Passes a mark of this program to its bank. Returns false without a bank.
pub(crate) fn tell_mark(thread: Option<u32>, text: &str) -> bool {
    own().inspect(|bank| bank.tell_mark(thread, text)).is_some()
}

/// Moves a mapping to another place, over mappings of no use.
fn shift(from: *mut u8, to: *mut u8, bytes: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both are so long; hooks that still write to the first are in the child of a fork, which maps something there.
    let moved = unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to.cast::<libc::c_void>()) };
    if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}
