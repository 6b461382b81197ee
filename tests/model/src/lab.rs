//! The tracer's memory, its switches, and its records.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::{
    ADDRESS_SHIFT, Bank, CHUNK_HEADER_BYTES, ChunkHeader, Control, ControlShared, FilterControl, InitArgs,
    LEFT_BUCKET_BYTES, ReturnEntry, ThreadBlock, action, chunk_state, init, kind, lease, state,
};
use crate::control_block::{CONTROL, SWITCH};
use crate::decode::{self, EventKind, Minima, Window};
use crate::ring::{self, Look, Taken};
use crate::sync::atomic::AtomicU64;
use crate::{arch, backend, handover};

/// Held by a test as long as it uses the tracer: there is only one.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that is all zero.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(bytes: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(bytes, align).expect("a size that fits");
        // SAFETY: no test asks for zero bytes.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).expect("memory"), layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Options of the tracer.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes for records, a multiple of the chunk size.
    pub buffer_bytes: usize,
    /// Threads at a time.
    pub n_blocks: usize,
    /// Buckets of the table of left frames, a power of two; 0 for no table.
    pub n_left_buckets: usize,
    /// Overwrites the oldest records.
    pub ring: bool,
}

/// One that nobody empties.
fn no_bank() -> Bank {
    Bank { beat: AtomicU64::new(0), wait_ticks: AtomicU64::new(0), n_lost: AtomicU64::new(0) }
}

/// All that is given with the first buffer, and not with later ones.
const NO_MEMORY: InitArgs = InitArgs {
    buffer: ptr::null_mut(),
    buffer_bytes: 0,
    blocks: ptr::null_mut(),
    blocks_bytes: 0,
    left: ptr::null_mut(),
    left_bytes: 0,
    overwriting: 0,
    bank: ptr::null(),
    thread_start: None,
    thread_start_key: 0,
};

// SAFETY: the memory is used by atomic operations only, as in a traced program.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A tracer that has recorded nothing yet; off.
#[derive(Debug)]
pub struct Lab {
    /// The one in use is the last.
    buffers: Mutex<Vec<Memory>>,
    _left: Option<Memory>,
    blocks: Memory,
    n_blocks: usize,
    bank: Box<Bank>,
}

impl Lab {
    /// Puts the tracer into the state of a program's beginning and gives it memory.
    ///
    /// The caller has [`alone`] or is a schedule of a test that has; no other thread uses the tracer.
    ///
    /// # Panics
    ///
    /// If the tracer does not take the memory.
    #[must_use]
    pub fn new(options: Options) -> Self {
        restore_control();
        arch::forget_threads();
        // One more makes the table of left frames known to unwinders.
        let n_blocks = options.n_blocks + 1;
        let blocks_bytes = n_blocks * size_of::<ThreadBlock>();
        let blocks = Memory::new(blocks_bytes, align_of::<ThreadBlock>());
        let left_bytes = options.n_left_buckets * LEFT_BUCKET_BYTES;
        let left = (left_bytes > 0).then(|| Memory::new(left_bytes, align_of::<ReturnEntry>()));
        let args = InitArgs {
            blocks: blocks.start.as_ptr(),
            blocks_bytes,
            left: left.as_ref().map_or(ptr::null_mut(), |memory| memory.start.as_ptr()),
            left_bytes,
            ..NO_MEMORY
        };
        let lab = Self { buffers: Mutex::default(), _left: left, blocks, n_blocks, bank: Box::new(no_bank()) };
        assert_eq!(lab.give_buffer(options.buffer_bytes, options.ring, &args), init::OK, "the tracer takes the memory");
        lab
    }

    /// Gives the tracer another buffer. Returns an [`init`] status.
    pub fn replace_buffer(&self, buffer_bytes: usize, ring: bool) -> u32 {
        self.give_buffer(buffer_bytes, ring, &NO_MEMORY)
    }

    fn give_buffer(&self, buffer_bytes: usize, ring: bool, rest: &InitArgs) -> u32 {
        let chunk_bytes = crate::abi::chunk_bytes(buffer_bytes);
        let buffer = Memory::new(buffer_bytes, chunk_bytes);
        let args = InitArgs { buffer: buffer.start.as_ptr(), buffer_bytes, overwriting: ring.into(), ..*rest };
        // SAFETY: the memory is fresh and lives as long as this `Lab`; there is no `thread_start`.
        let status = unsafe { backend::initialize(&args) };
        if status == init::OK {
            AREAS.set(Areas {
                blocks: (self.blocks.start.addr().get(), self.n_blocks * size_of::<ThreadBlock>()),
                buffer: (args.buffer.addr(), buffer_bytes),
                chunk_bytes,
            });
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
        status
    }

    /// Threads have their blocks in storage of their own, as without an OS. Before the first of their calls.
    pub fn use_local_blocks(&self) {
        arch::set_local_blocks(self.blocks.start.as_ptr().cast());
    }

    /// Which of the blocks for threads this is.
    #[must_use]
    pub fn block_number(&self, block: *mut ThreadBlock) -> Option<usize> {
        let offset = block.addr().wrapping_sub(self.blocks.start.addr().get());
        (offset < self.n_blocks * size_of::<ThreadBlock>()).then_some(offset / size_of::<ThreadBlock>())
    }

    /// Starts recording.
    pub fn enable(&self) {
        backend::enable();
    }

    /// Filters what is recorded, or no more.
    pub fn filter(&self, active: bool) {
        backend::set_filtered(active);
    }

    /// Stops recording.
    pub fn disable(&self) {
        backend::disable();
    }

    /// Nothing of a thread is recorded any more, or again.
    ///
    /// # Safety
    ///
    /// The block is one of the tracer's.
    pub unsafe fn exclude(&self, block: *mut ThreadBlock, is_excluded: bool) {
        // SAFETY: by this function's contract.
        unsafe { backend::exclude_thread(block, is_excluded) };
    }

    /// The same for all threads that have a block.
    pub fn exclude_all(&self, is_excluded: bool) {
        // SAFETY: they are the tracer's.
        backend::threads().for_each(|block| unsafe { self.exclude(ptr::from_ref(block).cast_mut(), is_excluded) });
    }

    /// Gives the full chunks back. Recording is off and nobody takes a chunk.
    pub fn reset(&self) {
        backend::reset();
    }

    /// Waits as the frontend does, for threads of the system.
    pub fn quiesce(&self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        backend::quiesce(|| {
            thread::yield_now();
            Instant::now() < deadline
        });
    }

    /// The thread that runs ends.
    pub fn end_thread(&self) {
        let block = arch::thread_block();
        if self.block_number(block).is_some() {
            // SAFETY: the block of this thread.
            unsafe { backend::rftrace_backend_thread_exit(block.cast()) };
        }
    }

    /// The control block.
    #[must_use]
    pub fn control(&self) -> &'static Control {
        backend::control()
    }

    /// One of [`chunk_state`](crate::abi::chunk_state) for each chunk.
    pub fn chunk_states(&self) -> impl Iterator<Item = u64> {
        headers().map(|header| lease::state(header.lease.load(Acquire)))
    }

    /// The owner of each chunk and its place in the order in which they were taken.
    pub fn chunk_owners(&self) -> impl Iterator<Item = (u32, u64)> {
        headers().map(|header| (header.tid.load(Relaxed), header.index()))
    }

    /// Chunks without a writer in which a record is still to be written.
    #[must_use]
    pub fn n_waiting(&self) -> usize {
        let is_waiting = |chunk: &backend::Chunk<'_>| {
            let state = lease::state(chunk.header.lease.load(Acquire));
            let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
            let is_written = chunk.records.iter().all(|record| record.read(taken_tsc).is_some());
            matches!(state, chunk_state::FULL | chunk_state::KEPT | chunk_state::WAITING) && !is_written
        };
        backend::chunks().filter(is_waiting).count()
    }

    /// All records, by thread and in the order of chunks, as they lie in memory.
    #[must_use]
    pub fn segments(&self) -> BTreeMap<u32, Vec<Segment>> {
        let mut threads = BTreeMap::new();
        backend::chunks().for_each(|chunk| add_segments(&chunk, &mut threads));
        for segments in threads.values_mut() {
            segments.sort_by_key(|segment| segment.index);
        }
        threads
    }

    /// Gives the tracer another buffer that is emptied while it is filled.
    ///
    /// # Panics
    ///
    /// If it does not take it.
    pub fn give_bank(&self, buffer_bytes: usize, wait_ticks: u64) {
        self.bank.beat.store(1, Relaxed);
        self.bank.wait_ticks.store(wait_ticks, Relaxed);
        let args = InitArgs { bank: &raw const *self.bank, ..NO_MEMORY };
        assert_eq!(self.give_buffer(buffer_bytes, false, &args), init::OK, "the tracer takes the memory");
    }

    /// The memory shared with the recorder.
    pub fn bank(&self) -> &Bank {
        &self.bank
    }

    /// Empties chunks that are full, as a recorder does; all that hold something if no thread is there any more.
    pub fn empty_chunks(&self, is_last: bool, threads: &mut BTreeMap<u32, Vec<Segment>>) {
        self.bank.beat.fetch_add(1, Relaxed);
        for chunk in backend::chunks() {
            let lease = chunk.header.lease.load(Acquire);
            if handover::is_to_be_taken(&chunk, lease, is_last, |_| false) {
                add_segments(&chunk, threads);
                handover::make_free(chunk.header, lease);
            }
        }
    }

    /// A recorder's copy of a ring, made while threads record, by thread and in the order of chunks: until the moment at which it began. A
    /// thread may write two records between two looks at it, so later parts have holes.
    #[must_use]
    pub fn copy_ring(&self) -> BTreeMap<u32, Vec<Segment>> {
        let until = arch::ticks();
        let chunks: Vec<_> = backend::chunks().collect();
        let looks = chunks.iter().enumerate().filter_map(|(place, chunk)| Look::at(place, chunk)).collect();
        let mut threads: BTreeMap<u32, Vec<Segment>> = BTreeMap::new();
        ring::copy(looks, |look| {
            let mut copy = BTreeMap::new();
            add_segments(&chunks[look.place], &mut copy);
            if !look.is_still(&chunks[look.place]) {
                return Taken::Lost;
            }
            for (tid, segments) in copy {
                threads.entry(tid).or_default().extend(segments);
            }
            Taken::Copied
        });
        for segments in threads.values_mut() {
            segments.sort_by_key(|segment| segment.index);
            for segment in segments {
                segment.records.retain(|(tsc, _)| *tsc <= until);
            }
        }
        threads
    }

    /// The frontend's view of the records, by thread, whatever stack it was on. Recording is off.
    #[must_use]
    pub fn events(&self) -> BTreeMap<u32, Vec<Event>> {
        self.events_of_at_least(0)
    }

    /// The same, without calls that were over earlier, in ticks, and have nothing in them.
    #[must_use]
    pub fn events_of_at_least(&self, min_ticks: u64) -> BTreeMap<u32, Vec<Event>> {
        let minima = &mut Minima::default();
        minima.set(0, min_ticks);
        let chunks = backend::chunks().map(|chunk| (chunk.header.into(), chunk.records.into()));
        let tasks = decode::task::of_threads(chunks, backend::open_by_thread());
        tasks.iter().map(|task| (task.tid, self.events_of(task, minima))).collect()
    }

    /// The frontend's view of the records: each thread, and each stack that was left and resumed.
    #[must_use]
    pub fn events_by_stack(&self) -> Vec<Vec<Event>> {
        let tasks = decode::tasks(backend::chunks(), backend::open_by_thread());
        tasks.iter().map(|task| self.events_of(task, &Minima::default())).collect()
    }

    fn events_of(&self, task: &decode::Task<'_>, minima: &Minima) -> Vec<Event> {
        let start = self.control().cycle_start_tsc.load(Relaxed);
        let window = Window { start, end: arch::ticks(), cut: u64::MAX, is_hidden: &|_| false, minima, done: None };
        let mut events = Vec::new();
        let result = decode::decode(task, &window, |event: decode::Event| {
            events.extend(match event.kind {
                EventKind::Entry => Some(Event::Entry(event.address)),
                EventKind::Exit => Some(Event::Exit(event.address)),
                EventKind::Lost(calls) => Some(Event::Lost(calls)),
                EventKind::Gap => Some(Event::Gap),
                EventKind::Core(core) => Some(Event::Core(core)),
                EventKind::DidNotReturn => None,
            });
            Ok::<(), Infallible>(())
        });
        let Ok(()) = result;
        events
    }
}

/// The records of a chunk, by thread.
fn add_segments(chunk: &backend::Chunk<'_>, threads: &mut BTreeMap<u32, Vec<Segment>>) {
    let header = chunk.header;
    let mut segment = Segment {
        index: header.index(),
        prev_index: header.prev_index.load(Relaxed),
        depth: header.depth.load(Relaxed) as usize,
        records: Vec::new(),
    };
    let mut tid = header.tid.load(Relaxed);
    let taken_tsc = header.taken_tsc.load(Relaxed);
    for record in chunk.records.iter().filter_map(|record| record.read(taken_tsc)) {
        match record {
            (_, word) if word & (kind::MASK | kind::NEW_THREAD) == kind::RESYNC | kind::NEW_THREAD => {
                let next = Segment { index: segment.index, prev_index: 0, depth: 0, records: Vec::new() };
                threads.entry(tid).or_default().push(std::mem::replace(&mut segment, next));
                tid = (word >> ADDRESS_SHIFT) as u32;
            }
            record => segment.records.push(record),
        }
    }
    threads.entry(tid).or_default().push(segment);
}

/// The records of one thread in one chunk.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The chunk's place in the order of all chunks taken.
    pub index: u64,
    /// The chunk that the thread had before, 0 for none.
    pub prev_index: u64,
    /// Functions open at the beginning.
    pub depth: usize,
    /// Ticks and word of each record.
    pub records: Vec<(u64, u64)>,
}

/// An event in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A function was entered.
    Entry(u64),
    /// A function was left.
    Exit(u64),
    /// So many calls found no room on the return stack.
    Lost(u64),
    /// Records were overwritten.
    Gap,
    /// The thread goes on on this core.
    Core(u64),
}

/// True if several threads use the word at this address at a time: in the control block, in the head of a chunk, the link
/// of a block in the free list, a word that a new buffer changes in it; and return stacks, where frames move between threads.
#[must_use]
pub fn is_shared(address: usize) -> bool {
    let areas = AREAS.get();
    let in_block = address.wrapping_sub(areas.blocks.0);
    let in_buffer = address.wrapping_sub(areas.buffer.0);
    if in_block < areas.blocks.1 {
        let field = in_block % size_of::<ThreadBlock>();
        let shared = [
            offset_of!(ThreadBlock, next_free),
            offset_of!(ThreadBlock, chunk_mask),
            offset_of!(ThreadBlock, excluded_tsc),
        ];
        shared.contains(&field) || field >= offset_of!(ThreadBlock, stack)
    } else if in_buffer < areas.buffer.1 {
        in_buffer % areas.chunk_bytes < CHUNK_HEADER_BYTES
    } else {
        true
    }
}

/// Where the tracer's memory is, start and size: for [`is_shared`], which must not use the tracer's atomics.
#[derive(Clone, Copy, Debug)]
struct Areas {
    blocks: (usize, usize),
    buffer: (usize, usize),
    chunk_bytes: usize,
}

thread_local! {
    static AREAS: Cell<Areas> = const { Cell::new(Areas { blocks: (0, 0), buffer: (0, 0), chunk_bytes: 1 }) };
}

/// A naive reader of a thread's records. Checks that each exit is that of the innermost open function.
///
/// # Panics
///
/// If it is another one's.
#[must_use]
pub fn balanced(segments: &[Segment]) -> Vec<Event> {
    let mut open: Vec<u64> = Vec::new();
    let mut events = Vec::new();
    for &(_, word) in segments.iter().flat_map(|segment| &segment.records) {
        let address = word >> ADDRESS_SHIFT;
        match word & kind::MASK {
            kind::ENTRY if word & kind::POINT != 0 => events.extend([Event::Entry(address), Event::Exit(address)]),
            kind::ENTRY => {
                open.push(address);
                events.push(Event::Entry(address));
            }
            kind::EXIT if word & state::HIDDEN != 0 => {}
            kind::EXIT => {
                let before = &events[events.len().saturating_sub(20)..];
                assert_eq!(open.pop(), Some(address), "an exit of another function than the innermost: {before:x?}");
                events.push(Event::Exit(address));
            }
            kind::RESYNC if word & (kind::SUSPENDED | kind::RESUMED) != 0 => {}
            kind::RESYNC => {
                assert!(open.len() >= address as usize, "{} functions are open, not {address}", open.len());
                while open.len() > address as usize {
                    events.extend(open.pop().map(Event::Exit));
                }
            }
            _ => {}
        }
    }
    events.extend(open.into_iter().rev().map(Event::Exit));
    events
}

fn headers() -> impl Iterator<Item = &'static ChunkHeader> {
    let chunk_bytes = CONTROL.chunk_bytes.load(Relaxed);
    (0..CONTROL.n_chunks.load(Relaxed)).map(move |place| {
        let chunk = CONTROL.chunks.load(Relaxed).wrapping_add(place * chunk_bytes).cast::<ChunkHeader>();
        // SAFETY: a chunk of the buffer, which lives as long as the `Lab` that is asked.
        unsafe { &*chunk }
    })
}

/// Puts the control block back into the state in which a program finds it. A field that is missing here does not compile.
fn restore_control() {
    SWITCH.enabled.store(0, Relaxed);
    let Control {
        overwriting,
        full,
        chunk_bytes,
        n_chunks,
        chunks,
        threads,
        blocks,
        n_blocks,
        left,
        n_left_buckets,
        any_left,
        thread_start,
        thread_start_key,
        cycle_start_tsc,
        stop_tsc,
        next_tid,
        n_untraced_threads,
        n_lost_no_chunk,
        bank,
        beat_given_up,
        none_until_tsc,
        filter,
        shared,
    } = &CONTROL;
    let ControlShared {
        next_index,
        end_index,
        n_overwritten,
        first_index,
        n_takers,
        left_stamp,
        n_blocks_used,
        free_block,
        partial,
    } = shared;
    let FilterControl {
        active,
        default_action,
        sites,
        sites_mask,
        decisive,
        wanted,
        depth_limit,
        depth,
        paused,
        min_ticks,
        values,
        noticed,
        confined,
    } = filter;
    values.store(ptr::null_mut(), Relaxed);
    noticed.store(ptr::null_mut(), Relaxed);
    confined.store(0, Relaxed);
    default_action.store(action::RECORD, Relaxed);
    sites.store(ptr::null_mut(), Relaxed);
    sites_mask.store(0, Relaxed);
    decisive.store(state::OUT as u32, Relaxed);
    wanted.store(0, Relaxed);
    depth_limit.store(state::DEPTH_MASK as u32, Relaxed);
    depth.store(state::DEPTH_MASK as u32, Relaxed);
    paused.store(0, Relaxed);
    for flag in [overwriting, full, any_left, active] {
        flag.store(0, Relaxed);
    }
    for number in [chunk_bytes, n_chunks, n_blocks, n_left_buckets] {
        number.store(0, Relaxed);
    }
    for number in [thread_start_key, n_untraced_threads, n_takers, n_blocks_used] {
        number.store(0, Relaxed);
    }
    for number in [
        cycle_start_tsc,
        stop_tsc,
        n_lost_no_chunk,
        beat_given_up,
        none_until_tsc,
        next_index,
        end_index,
        n_overwritten,
        first_index,
        free_block,
        left_stamp,
        min_ticks,
    ] {
        number.store(0, Relaxed);
    }
    for slot in partial {
        slot.store(0, Relaxed);
    }
    next_tid.store(1, Relaxed);
    chunks.store(ptr::null_mut(), Relaxed);
    threads.store(ptr::null_mut(), Relaxed);
    blocks.store(ptr::null_mut(), Relaxed);
    left.store(ptr::null_mut(), Relaxed);
    thread_start.store(ptr::null_mut(), Relaxed);
    bank.store(ptr::null_mut(), Relaxed);
}
