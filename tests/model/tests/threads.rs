//! Several threads share the buffer and the blocks.
//!
//! Each scenario runs twice: under shuttle, which tries schedules of the threads with a switch before any atomic
//! operation on what they share, and with threads of the system, which Miri runs too. Shuttle knows only sequentially
//! consistent memory; weaker orders are Miri's part.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use rftrace_model::abi::{ADDRESS_SHIFT, MIN_CHUNK_BYTES, chunk_state, init, kind, records_per_chunk};
use rftrace_model::arch::{self, Call};
use rftrace_model::lab::{self, Event, Lab, Options, Segment};

/// A way to run threads.
#[derive(Clone, Copy)]
struct System {
    spawn: fn(Box<dyn FnOnce() + Send>) -> Join,
    yield_now: fn(),
    /// Calls that a worker makes.
    calls: usize,
}

type Join = Box<dyn FnOnce()>;

/// Threads of the system.
const REAL: System = System {
    spawn: |work| {
        let thread = std::thread::spawn(work);
        Box::new(move || thread.join().expect("a worker"))
    },
    yield_now: std::thread::yield_now,
    calls: if cfg!(miri) { 20 } else { 2_000 },
};

/// One call of a function or one return, as the thread saw it.
#[derive(Clone, Copy, Debug)]
struct Step {
    word: u64,
    /// [`Phase`] at that time.
    phase: u64,
    recorded: Recorded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// Recording was on all the time, and there was room.
    Must,
    /// It was being switched.
    May,
    /// It was off.
    MustNot,
}

/// A scenario's view of the switch: 0 on, 1 between, 2 off, 3 between, 4 on…
#[derive(Default)]
struct Phase(AtomicU64);

impl Phase {
    fn next(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    fn now(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// A thread of the traced program. Its functions have addresses that nobody else's have.
struct Worker {
    lab: Arc<Lab>,
    phase: Arc<Phase>,
    number: u64,
    n_calls: u64,
    stack: Box<[usize]>,
    steps: Vec<Step>,
    /// Chunks it was seen to have.
    chunks: HashSet<u64>,
    tid: u32,
}

impl Worker {
    fn new(lab: &Arc<Lab>, phase: &Arc<Phase>, number: u64) -> Self {
        let (lab, phase) = (Arc::clone(lab), Arc::clone(phase));
        let stack = vec![0; 64].into_boxed_slice();
        Self { lab, phase, number, n_calls: 0, stack, steps: Vec::new(), chunks: HashSet::new(), tid: 0 }
    }

    /// Calls a function that calls `depth` others, one in the other, and returns.
    fn call(&mut self, depth: usize) {
        let (mut frames, top) = (Vec::new(), self.stack.len() - 1);
        let base = self.stack.as_mut_ptr();
        for level in 0..=depth {
            self.n_calls += 1;
            let address = (self.number + 1) << 24 | self.n_calls << 4;
            let slot = base.wrapping_add(top - level * 4);
            let parent_ip = 0x5000 + level;
            // SAFETY: in the worker's stack.
            unsafe { slot.write(parent_ip) };
            let parent_loc = slot.expose_provenance();
            // SAFETY: the slot of the frame that is being entered.
            self.step(address << ADDRESS_SHIFT | kind::ENTRY, || unsafe {
                arch::entry(Call {
                    parent_loc,
                    child_ip: address as usize,
                    stack_pointer: parent_loc,
                    frame_pointer: 0,
                    static_chain: 0,
                });
            });
            frames.push((slot, parent_ip, address));
        }
        while let Some((slot, parent_ip, address)) = frames.pop() {
            // SAFETY: in the worker's stack.
            if unsafe { slot.read() } == arch::trampoline() {
                self.step(address << ADDRESS_SHIFT | kind::EXIT, || {
                    assert_eq!(arch::exit(slot.addr(), 0), parent_ip, "a wrong return");
                });
            }
        }
    }

    fn step(&mut self, word: u64, work: impl FnOnce()) {
        let before = self.phase.now();
        work();
        let full = self.lab.control().full.load(Relaxed) != 0;
        let after = self.phase.now();
        let block = arch::thread_block();
        let traced = self.lab.block_number(block).is_some();
        let recorded = match before % 4 {
            _ if !traced => Recorded::MustNot,
            0 if before == after && !full => Recorded::Must,
            2 if before == after => Recorded::MustNot,
            _ => Recorded::May,
        };
        if traced {
            // SAFETY: the block of this thread.
            let block = unsafe { &*block };
            self.tid = block.tid.load(Relaxed);
            let last_index = block.last_index.load(Relaxed);
            self.chunks.extend((last_index != 0).then_some(last_index));
        }
        self.steps.push(Step { word, phase: before, recorded });
    }
}

/// Runs `work` on threads of their own, one for each number below `n`, while `meanwhile` runs here. Returns the workers.
fn run(
    system: System,
    lab: &Arc<Lab>,
    n: u64,
    work: impl Fn(&mut Worker) + Send + Sync + 'static,
    meanwhile: impl FnOnce(&Phase),
) -> Vec<Worker> {
    let phase = Arc::new(Phase::default());
    let work = Arc::new(work);
    let done = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<Join> = (0..n)
        .map(|number| {
            let mut worker = Worker::new(lab, &phase, number);
            let (work, done) = (Arc::clone(&work), Arc::clone(&done));
            (system.spawn)(Box::new(move || {
                work(&mut worker);
                done.lock().expect("no panic in here").push(worker);
            }))
        })
        .collect();
    meanwhile(&phase);
    threads.into_iter().for_each(|join| join());
    let mut workers = std::mem::take(&mut *done.lock().expect("no panic in here"));
    workers.sort_by_key(|worker| worker.number);
    workers
}

/// The words of a thread's calls and returns since `start`.
fn words(segments: &[Segment], start: u64) -> Vec<u64> {
    let records = segments.iter().flat_map(|segment| &segment.records);
    let since = records.filter(|(tsc, word)| *tsc >= start && word & kind::MASK != kind::RESYNC);
    since.map(|(_, word)| *word).collect()
}

/// Checks that `found` is what the worker did: in order, nothing twice, all that must be there and nothing else.
fn check_steps(worker: &Worker, found: &[u64]) {
    let mut found = found.iter().peekable();
    for (i, step) in worker.steps.iter().enumerate() {
        let is_there = found.next_if_eq(&&step.word).is_some();
        let ok = match step.recorded {
            Recorded::Must => is_there,
            Recorded::May => true,
            Recorded::MustNot => !is_there,
        };
        assert!(ok, "thread {}: step {i}, {step:x?}, recorded: {is_there}", worker.tid);
    }
    assert_eq!(found.next(), None, "thread {}: it did not do this, or not then", worker.tid);
}

/// Checks what holds in every recording: chunks hold their threads' records, nobody owns what nobody uses.
fn check_segments(lab: &Lab, workers: &[Worker]) {
    let segments = lab.segments();
    for (tid, segments) in &segments {
        let worker = workers.iter().find(|worker| worker.tid == *tid).unwrap_or_else(|| panic!("no thread {tid}"));
        let records = segments.iter().flat_map(|segment| &segment.records);
        // A chunk taken at no time would have all its memory for records.
        records.for_each(|(tsc, word)| assert!(*tsc != 0, "{word:x} is from before all began"));
        let mut words = words(segments, 0);
        assert!(words.iter().all(|word| word >> (24 + ADDRESS_SHIFT) == worker.number + 1), "another thread's record");
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), self::words(segments, 0).len(), "a record twice");
        for pair in segments.windows(2) {
            assert!(pair[0].index < pair[1].index, "two chunks with the same index");
        }
    }
    assert_eq!(lab.control().shared.n_takers.load(Relaxed), 0);
    for events in lab.events().values() {
        let depth = events.iter().fold(0i64, |depth, event| match event {
            Event::Entry(_) => depth + 1,
            Event::Exit(_) => depth - 1,
            _ => depth,
        });
        assert_eq!(depth, 0, "{events:?}");
    }
}

/// Threads record, end, and others go on in their chunks. The buffer may be used up before.
fn threads_record_until_the_buffer_is_full(system: System, n_threads: u64, n_chunks: usize) {
    let options = Options {
        buffer_bytes: n_chunks * MIN_CHUNK_BYTES,
        n_blocks: n_threads as usize,
        n_left_buckets: 0,
        ring: false,
    };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let work = move |worker: &mut Worker| {
        // Short lives leave many chunks to go on in.
        let calls = if n_threads > 3 { 1 + worker.number as usize % 2 } else { 8 + worker.number as usize * 5 };
        for i in 0..calls {
            worker.call(i % 3);
        }
        worker.lab.end_thread();
    };
    let workers = run(system, &lab, n_threads, work, |_| ());
    lab.disable();
    check_segments(&lab, &workers);
    let segments = lab.segments();
    for worker in &workers {
        let found = segments.get(&worker.tid).map_or(Vec::new(), |segments| words(segments, 0));
        check_steps(worker, &found);
        let n_recorded = worker.steps.iter().zip(&found).take_while(|(step, found)| step.word == **found).count();
        assert_eq!(n_recorded, found.len(), "not the beginning of what the thread did");
    }
}

/// Checks records of one thread, from a ring: those of chunks that follow one another have no hole. Returns how many steps
/// of the worker the last record ends.
fn check_no_holes(worker: &Worker, segments: &[Segment], start: u64) -> usize {
    let (mut n_steps, mut before) = (0, None);
    for segment in segments {
        let mut follows = n_steps > 0 && before == Some(segment.prev_index);
        for (_, word) in segment.records.iter().filter(|(tsc, _)| *tsc >= start) {
            if word & kind::MASK == kind::RESYNC {
                continue;
            }
            let skipped = worker.steps[n_steps..].iter().take_while(|step| step.word != *word);
            let lost = skipped.clone().find(|step| follows && step.recorded == Recorded::Must);
            assert!(lost.is_none(), "thread {}: lost {lost:x?} before {word:x}", worker.tid);
            n_steps += skipped.count() + 1;
            assert!(n_steps <= worker.steps.len(), "thread {}: {word:x} is not in order, or there twice", worker.tid);
            follows = true;
        }
        before = Some(segment.index);
    }
    n_steps
}

/// Threads record into a ring. While they live each has its newest records.
fn a_ring_keeps_the_newest(system: System, n_threads: u64, n_chunks: usize, ends: bool) {
    let n_blocks = n_threads as usize;
    let options = Options { buffer_bytes: n_chunks * MIN_CHUNK_BYTES, n_blocks, n_left_buckets: 0, ring: true };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let calls = system.calls;
    let work = move |worker: &mut Worker| {
        // Those that end make room for others in their chunks.
        let calls = if ends { 5 + 7 * worker.number as usize } else { calls };
        (0..calls).for_each(|i| worker.call(i % 2));
        if ends {
            worker.lab.end_thread();
        }
    };
    let workers = run(system, &lab, n_threads, work, |_| ());
    lab.disable();
    check_segments(&lab, &workers);
    // A thread takes the next chunk before it lets the last one go.
    let any_lost = lab.control().n_lost_no_chunk.load(Relaxed) != 0;
    assert!(!any_lost || n_chunks <= 2 * n_threads as usize, "there was a chunk for everyone");
    let segments = lab.segments();
    if !ends {
        let n_taken: usize = workers.iter().map(|worker| worker.chunks.len()).sum();
        let n_used = lab.chunk_states().filter(|state| *state != chunk_state::FREE).count();
        assert_eq!(lab.control().shared.n_overwritten.load(Relaxed) as usize, n_taken - n_used);
    }
    for worker in workers.iter().filter(|_| !any_lost) {
        let n_steps = check_no_holes(worker, segments.get(&worker.tid).map_or(&[], Vec::as_slice), 0);
        assert!(ends || n_steps == worker.steps.len(), "the newest is not there");
    }
}

/// Somebody else empties chunks while threads record, end and begin: all calls are there once, in order, or counted as lost.
fn chunks_are_emptied(system: System, n_threads: u64, n_chunks: usize, wait_ticks: u64) {
    let n_blocks = n_threads as usize;
    let buffer_bytes = n_chunks * MIN_CHUNK_BYTES;
    let lab = Arc::new(Lab::new(Options { buffer_bytes, n_blocks, n_left_buckets: 0, ring: false }));
    lab.give_bank(buffer_bytes, wait_ticks);
    lab.enable();
    // The thread that empties chunks looks at them all the time.
    let calls = if cfg!(miri) { system.calls / 3 } else { system.calls };
    let n_done = Arc::new(AtomicUsize::new(0));
    let count_done = Arc::clone(&n_done);
    let work = move |worker: &mut Worker| {
        (0..calls).for_each(|i| worker.call(i % 3));
        worker.lab.end_thread();
        count_done.fetch_add(1, SeqCst);
    };
    let mut threads = BTreeMap::new();
    let workers = run(system, &lab, n_threads, work, |_| {
        while n_done.load(SeqCst) < n_threads as usize {
            lab.empty_chunks(false, &mut threads);
            (system.yield_now)();
        }
    });
    lab.disable();
    lab.empty_chunks(true, &mut threads);
    assert!(lab.chunk_states().all(|state| state == chunk_state::FREE));
    let (mut n_made, mut n_found) = (0, 0);
    for worker in &workers {
        let mut segments = threads.remove(&worker.tid).unwrap_or_default();
        segments.sort_by_key(|segment| segment.index);
        let found = words(&segments, 0);
        let mut steps = worker.steps.iter();
        for word in &found {
            assert!(steps.any(|step| step.word == *word), "thread {}: it did not do this, or not then", worker.tid);
        }
        n_made += worker.steps.len();
        n_found += found.len();
    }
    let n_lost = lab.bank().n_lost.load(Relaxed);
    assert_eq!(n_found as u64 + n_lost, n_made as u64, "{n_lost} are lost");
    assert!(wait_ticks < u64::MAX || n_lost == 0, "they waited");
}

/// A recorder copies a ring while threads record: all that it copies of a thread is what that did, without a hole.
fn a_ring_is_copied(system: System, n_threads: u64, n_chunks: usize) {
    let n_blocks = n_threads as usize;
    let options = Options { buffer_bytes: n_chunks * MIN_CHUNK_BYTES, n_blocks, n_left_buckets: 0, ring: true };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let calls = system.calls.min(60);
    let n_done = Arc::new(AtomicUsize::new(0));
    let count_done = Arc::clone(&n_done);
    let work = move |worker: &mut Worker| {
        (0..calls).for_each(|i| worker.call(i % 3));
        count_done.fetch_add(1, SeqCst);
    };
    let mut copies = Vec::new();
    let workers = run(system, &lab, n_threads, work, |_| {
        while n_done.load(SeqCst) < n_threads as usize {
            copies.push(lab.copy_ring());
            (system.yield_now)();
        }
    });
    copies.push(lab.copy_ring());
    for (tid, segments) in copies.iter().flatten() {
        let worker = workers.iter().find(|worker| worker.tid == *tid).unwrap_or_else(|| panic!("no thread {tid}"));
        check_no_holes(worker, segments, 0);
        for pair in segments.windows(2) {
            assert_eq!(pair[1].prev_index, pair[0].index, "thread {tid}: a chunk between two is missing");
        }
    }
    if lab.control().n_lost_no_chunk.load(Relaxed) == 0 {
        for worker in &workers {
            let last = copies.last().and_then(|copy| copy.get(&worker.tid)).map_or(&[][..], Vec::as_slice);
            assert_eq!(check_no_holes(worker, last, 0), worker.steps.len(), "the newest is not there");
        }
    }
}

/// A frontend reads and empties the buffer while threads record, end and begin.
fn snapshots_lose_nothing(system: System, n_threads: u64, n_chunks: usize, ring: bool) {
    let n_blocks = n_threads as usize;
    let options = Options { buffer_bytes: n_chunks * MIN_CHUNK_BYTES, n_blocks, n_left_buckets: 0, ring };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let calls = system.calls.min(30);
    let work = move |worker: &mut Worker| {
        for i in 0..calls {
            worker.call(i % 3);
        }
        if !ring {
            worker.lab.end_thread();
        }
    };
    let (mut snapshots, mut any_overwritten, mut any_lost) = (Vec::new(), false, false);
    let mut read = |phase: u64| {
        let start = lab.control().cycle_start_tsc.load(Relaxed);
        let owners: Vec<_> = lab.chunk_owners().collect();
        snapshots.push((phase, start, lab.segments()));
        assert!(lab.chunk_owners().eq(owners), "a chunk changed hands while the frontend was reading");
        any_overwritten |= lab.control().shared.n_overwritten.load(Relaxed) != 0;
        any_lost |= lab.control().n_lost_no_chunk.load(Relaxed) != 0;
    };
    let workers = run(system, &lab, n_threads, work, |phase| {
        for _ in 0..3 {
            (system.yield_now)();
            phase.next();
            lab.disable();
            phase.next();
            while lab.control().shared.n_takers.load(SeqCst) != 0 {
                (system.yield_now)();
            }
            read(phase.now());
            lab.reset();
            phase.next();
            lab.enable();
            phase.next();
        }
    });
    lab.disable();
    read(u64::MAX);
    for worker in workers.iter().filter(|_| !any_lost) {
        let mut found = Vec::new();
        for (phase, start, segments) in &snapshots {
            let Some(segments) = segments.get(&worker.tid) else { continue };
            found.extend(words(segments, *start));
            if ring {
                let n_steps = check_no_holes(worker, segments, *start);
                let mut later = worker.steps[n_steps..].iter().take_while(|step| step.phase < *phase);
                let lost = later.find(|step| step.recorded == Recorded::Must);
                assert!(n_steps == 0 || lost.is_none(), "thread {}: lost {lost:x?}, the newest", worker.tid);
            }
        }
        if !any_overwritten {
            check_steps(worker, &found);
        }
        let mut steps = worker.steps.iter();
        let in_order = found.iter().all(|word| steps.any(|step| step.word == *word));
        assert!(in_order, "thread {}: out of order, or twice", worker.tid);
    }
}

/// Lives of each thread in [`blocks_have_one_user`].
const LIVES: usize = 3;

/// More threads than blocks come and go: nobody gets a block that another one has.
fn blocks_have_one_user(system: System, n_threads: u64, n_blocks: usize) {
    let options = Options { buffer_bytes: 16 * MIN_CHUNK_BYTES, n_blocks, n_left_buckets: 1, ring: true };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let in_use: Arc<Mutex<HashSet<usize>>> = Arc::default();
    let tids: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (users, all_tids) = (Arc::clone(&in_use), Arc::clone(&tids));
    let work = move |worker: &mut Worker| {
        for _ in 0..LIVES {
            worker.call(0);
            let number = worker.lab.block_number(arch::thread_block());
            if let Some(number) = number {
                assert!(users.lock().expect("no panic in here").insert(number), "two threads have block {number}");
                all_tids.lock().expect("no panic in here").push(worker.tid);
            }
            worker.call(1);
            if let Some(number) = number {
                users.lock().expect("no panic in here").remove(&number);
            }
            worker.lab.end_thread();
            arch::begin_thread();
        }
    };
    run(system, &lab, n_threads, work, |_| ());
    lab.disable();
    let tids = tids.lock().expect("no panic in here");
    let n_untraced = lab.control().n_untraced_threads.load(Relaxed) as usize;
    assert_eq!(n_untraced + tids.len(), n_threads as usize * LIVES);
    assert_eq!(tids.iter().collect::<HashSet<_>>().len(), tids.len(), "two threads with the same id");
}

/// A full buffer is empty again after a reset.
fn a_new_cycle_has_the_whole_buffer() {
    let options = Options { buffer_bytes: 8 * MIN_CHUNK_BYTES, n_blocks: 1, n_left_buckets: 0, ring: false };
    let lab = Arc::new(Lab::new(options));
    let mut worker = Worker::new(&lab, &Arc::new(Phase::default()), 0);
    let mut cycle = || {
        lab.enable();
        let start = lab.control().cycle_start_tsc.load(Relaxed);
        while lab.control().full.load(Relaxed) == 0 {
            worker.call(0);
        }
        let n_records = words(&lab.segments()[&worker.tid], start).len();
        lab.disable();
        lab.reset();
        n_records
    };
    let first = cycle();
    assert_eq!(first, 8 * records_per_chunk(MIN_CHUNK_BYTES));
    // The chunk that the thread is in is not given back: it is full of what was read.
    assert!((1..4).all(|_| cycle() >= first - records_per_chunk(MIN_CHUNK_BYTES) - 2));
}

/// A ring gives the chunks of ended threads away, whoever went on in them.
fn a_ring_forgets_ended_threads() {
    let n_chunks = 16;
    let options = Options { buffer_bytes: n_chunks * MIN_CHUNK_BYTES, n_blocks: 2, n_left_buckets: 0, ring: true };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let mut worker = Worker::new(&lab, &Arc::new(Phase::default()), 0);
    let calls_per_chunk = records_per_chunk(MIN_CHUNK_BYTES) / 2;
    for _ in 0..2 * n_chunks {
        // The next thread goes on in the second half.
        (0..calls_per_chunk * 3 / 2).for_each(|_| worker.call(0));
        lab.end_thread();
        arch::begin_thread();
    }
    (0..calls_per_chunk * n_chunks * 2).for_each(|_| worker.call(0));
    lab.disable();
    let n_own = lab.chunk_owners().filter(|(tid, _)| *tid == worker.tid).count();
    assert_eq!(n_own, n_chunks, "chunks of the only thread that is left: {:?}", lab.chunk_owners().collect::<Vec<_>>());
}

/// Where returns are checked against a shadow stack nothing is hooked.
fn threads_with_a_shadow_stack_are_left_alone() {
    let options = Options { buffer_bytes: 16 * MIN_CHUNK_BYTES, n_blocks: 2, n_left_buckets: 0, ring: false };
    let lab = Arc::new(Lab::new(options));
    arch::set_shadow_stack(true);
    assert_eq!(lab.replace_buffer(8 * MIN_CHUNK_BYTES, true), init::SHADOW_STACK);
    lab.enable();
    let mut worker = Worker::new(&lab, &Arc::new(Phase::default()), 0);
    // The slots of a worker's calls tell whether its returns are hooked.
    (0..10).for_each(|i| worker.call(i));
    arch::set_shadow_stack(false);
    (0..10).for_each(|i| worker.call(i));
    lab.disable();
    assert!(worker.steps.iter().all(|step| step.word & kind::MASK == kind::ENTRY), "a return was hooked");
    assert!(lab.segments().is_empty());
    assert_eq!(lab.control().n_untraced_threads.load(Relaxed), 1);
    lab.end_thread();
    arch::begin_thread();
    lab.enable();
    worker.call(0);
    lab.disable();
    assert_eq!(lab.segments().len(), 1, "the next thread is traced");
}

/// New buffers, larger and smaller ones, take the place of the one in use, while threads call, end and begin.
fn buffers_are_replaced(system: System, n_threads: u64, lives: usize) {
    let n_blocks = n_threads as usize;
    let options = Options { buffer_bytes: 8 * MIN_CHUNK_BYTES, n_blocks, n_left_buckets: 0, ring: false };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let calls = system.calls.min(30);
    let work = move |worker: &mut Worker| {
        for i in 0..calls {
            worker.call(i % 3);
            if i % (calls / lives) == 0 {
                worker.lab.end_thread();
                arch::begin_thread();
            }
        }
        worker.lab.end_thread();
    };
    let mut found: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
    let mut read = |phase: u64| {
        let segments = lab.segments();
        let start = lab.control().cycle_start_tsc.load(Relaxed);
        for segments in segments.values() {
            let owner = words(segments, 0).first().map(|word| word >> (24 + ADDRESS_SHIFT));
            let same = words(segments, 0).iter().all(|word| Some(word >> (24 + ADDRESS_SHIFT)) == owner);
            assert!(same, "records of two threads in one");
            found.push((phase, words(segments, start).into_iter().map(|word| (owner.unwrap_or(0), word)).collect()));
        }
    };
    let workers = run(system, &lab, n_threads, work, |phase| {
        for n_chunks in [4, 130, 6] {
            (system.yield_now)();
            phase.next();
            lab.disable();
            phase.next();
            // `n_takers` 0 is what the tracer itself goes by.
            while lab.control().shared.n_takers.load(SeqCst) != 0 {
                (system.yield_now)();
            }
            read(phase.now());
            while lab.replace_buffer(n_chunks * MIN_CHUNK_BYTES, n_chunks == 4) != init::OK {
                (system.yield_now)();
            }
            assert_eq!(lab.control().n_touched_chunks(), 0, "a new buffer is empty");
            phase.next();
            lab.enable();
            phase.next();
        }
    });
    lab.disable();
    read(14);
    // Each record is of a step that was made since the buffer before was read.
    for (phase, records) in &found {
        for (owner, word) in records {
            let worker = &workers[*owner as usize - 1];
            let step = worker.steps.iter().find(|step| step.word == *word).expect("a step of the worker");
            let is_now = (step.phase..=step.phase + 3).contains(phase);
            assert!(is_now || step.recorded == Recorded::May, "{step:x?} in what was read in phase {phase}");
            assert_ne!(step.recorded, Recorded::MustNot, "{step:x?}");
        }
    }
    let n_found = found.iter().map(|(_, records)| records.len()).sum::<usize>();
    let unique: HashSet<u64> = found.iter().flat_map(|(_, records)| records).map(|(_, word)| *word).collect();
    assert_eq!(unique.len(), n_found, "a record twice");
    // The last records are in the last buffer, as long as that has room.
    if lab.control().full.load(Relaxed) == 0 {
        for step in workers.iter().flat_map(|worker| &worker.steps).filter(|step| step.phase == 12) {
            assert!(step.recorded != Recorded::Must || unique.contains(&step.word), "{step:x?} is missing");
        }
    }
}

/// Threads are excluded and recorded again while they call; with `replaces` another buffer comes meanwhile.
fn threads_are_excluded(system: System, n_threads: u64, replaces: bool) {
    let options =
        Options { buffer_bytes: 256 * MIN_CHUNK_BYTES, n_blocks: n_threads as usize, n_left_buckets: 0, ring: false };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let calls = system.calls.min(60);
    let n_begun = Arc::new(AtomicU64::new(0));
    let (begun, yield_now) = (Arc::clone(&n_begun), system.yield_now);
    let work = move |worker: &mut Worker| {
        worker.call(0);
        begun.fetch_add(1, SeqCst);
        // Each has a block when the first is excluded.
        while begun.load(SeqCst) < n_threads {
            yield_now();
        }
        (0..calls).for_each(|i| worker.call(i % 3));
    };
    let mut found: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut read = || {
        for (tid, segments) in lab.segments() {
            found.entry(tid).or_default().extend(words(&segments, 0));
        }
    };
    let workers = run(system, &lab, n_threads, work, |phase| {
        while n_begun.load(SeqCst) < n_threads {
            (system.yield_now)();
        }
        for round in 0..3 {
            phase.next();
            lab.exclude_all(true);
            phase.next();
            (system.yield_now)();
            if replaces && round == 1 {
                lab.disable();
                while lab.control().shared.n_takers.load(SeqCst) != 0 {
                    (system.yield_now)();
                }
                read();
                while lab.replace_buffer(200 * MIN_CHUNK_BYTES, false) != init::OK {
                    (system.yield_now)();
                }
                lab.enable();
            }
            (system.yield_now)();
            phase.next();
            lab.exclude_all(false);
            phase.next();
            (system.yield_now)();
        }
    });
    lab.disable();
    check_segments(&lab, &workers);
    read();
    for worker in &workers {
        check_steps(worker, found.get(&worker.tid).map_or(&[], Vec::as_slice));
    }
}

/// A stack and the functions that run on it.
struct Fiber {
    /// That of all stacks, side by side.
    memory: Arc<[AtomicUsize]>,
    /// The end of this one.
    end: usize,
    /// Slot and return address, outermost first.
    frames: Vec<(usize, usize)>,
    number: usize,
    n_calls: usize,
}

impl Fiber {
    /// The stack number `place` of those in `memory`, each of so many words.
    fn new(memory: &Arc<[AtomicUsize]>, number: usize, place: usize, words: usize) -> Self {
        let end = memory.as_ptr_range().start.expose_provenance() + (place + 1) * words * size_of::<usize>();
        Self { memory: Arc::clone(memory), end, frames: Vec::new(), number, n_calls: 0 }
    }

    fn word(&self, address: usize) -> &AtomicUsize {
        &self.memory[(address - self.memory.as_ptr().addr()) / 8]
    }

    /// Calls a function with a frame pointer.
    fn call(&mut self) {
        if self.frames.len() == 20 {
            return;
        }
        let caller = self.frames.last().map_or(self.end - 64, |(slot, _)| slot - 32);
        self.n_calls += 1;
        let (slot, parent_ip) = (caller - 8, 0x5000_0000 + self.number * 0x1_0000 + self.n_calls);
        let caller_frame = self.frames.last().map_or(0, |(slot, _)| slot - 8);
        self.word(slot).store(parent_ip, Relaxed);
        self.word(slot - 8).store(caller_frame, Relaxed);
        self.frames.push((slot, parent_ip));
        let child_ip = (self.number + 1) << 24 | self.n_calls << 4;
        let call =
            Call { parent_loc: slot, child_ip, stack_pointer: slot - 32, frame_pointer: slot - 8, static_chain: 0 };
        // SAFETY: all in the fiber's memory.
        unsafe { arch::entry(call) };
    }

    fn return_(&mut self) {
        let Some((slot, parent_ip)) = self.frames.pop() else { return };
        let mut ip = self.word(slot).load(Relaxed);
        if ip == arch::trampoline() {
            ip = arch::exit(slot, self.frames.last().map_or(0, |(slot, _)| slot - 8));
        }
        assert_eq!(ip, parent_ip, "a wrong return");
    }
}

/// Coroutines' stacks, side by side.
#[derive(Clone, Copy)]
struct Stacks {
    /// Words of each.
    words: usize,
    n_left_buckets: usize,
}

/// Those that are not taken for another one's continuation, and those that are.
const FAR: Stacks = Stacks { words: 4_096, n_left_buckets: 64 };
const NEAR: Stacks = Stacks { words: 128, n_left_buckets: 64 };

/// Coroutines are resumed by all threads in turn. Each is free for the next thread before the last one has noticed that it
/// left it.
fn coroutines_move_between_threads(system: System, n_threads: u64, n_coroutines: usize, stacks: Stacks, rounds: usize) {
    let Stacks { words, n_left_buckets } = stacks;
    let options =
        Options { buffer_bytes: 64 * MIN_CHUNK_BYTES, n_blocks: n_threads as usize, n_left_buckets, ring: false };
    let lab = Arc::new(Lab::new(options));
    lab.enable();
    let memory: Arc<[AtomicUsize]> =
        (0..(n_coroutines + n_threads as usize) * words).map(|_| AtomicUsize::new(0)).collect();
    // The coroutines' stacks and the threads' take turns.
    let place = move |i: usize| {
        if i < n_threads.min(n_coroutines as u64) as usize { 2 * i } else { n_coroutines.min(n_threads as usize) + i }
    };
    let coroutines: Arc<[Mutex<Fiber>]> =
        (0..n_coroutines).map(|i| Mutex::new(Fiber::new(&memory, 100 + i, place(i), words))).collect();
    let all = Arc::clone(&coroutines);
    let work = move |worker: &mut Worker| {
        let number = worker.number as usize;
        let place = if number < n_coroutines { 2 * number + 1 } else { n_coroutines + number };
        let mut fiber = Fiber::new(&memory, number, place, words);
        fiber.call();
        for round in 0..rounds {
            let step = round + worker.number as usize;
            fiber.call();
            // Another thread may be in it.
            if let Ok(mut coroutine) = all[step % all.len()].try_lock() {
                match step % 3 {
                    0 => (0..2).for_each(|_| coroutine.call()),
                    1 => coroutine.call(),
                    _ => (0..2).for_each(|_| coroutine.return_()),
                }
            }
            fiber.return_();
        }
        fiber.return_();
    };
    let _workers = run(system, &lab, n_threads, work, |_| ());
    for coroutine in coroutines.iter() {
        let mut coroutine = coroutine.lock().expect("no panic in here");
        while !coroutine.frames.is_empty() {
            coroutine.return_();
        }
    }
    lab.disable();
    let expected: BTreeMap<u32, Vec<Event>> =
        lab.segments().iter().map(|(tid, segments)| (*tid, lab::balanced(segments))).collect();
    assert_eq!(lab.events(), expected, "the frontend reads it differently");
    // A thread that leaves a stack may have told of a part of it only when another one resumes it already: then calls count twice.
    for events in lab.events_by_stack() {
        let mut open = Vec::new();
        for event in events {
            match event {
                Event::Entry(address) => open.push(address),
                Event::Exit(address) => assert_eq!(open.pop(), Some(address), "not the innermost"),
                _ => {}
            }
        }
        assert_eq!(open, [], "they have no exits");
    }
}

#[cfg(not(miri))]
mod schedules {
    //! The scenarios under shuttle.

    use rftrace_model::{lab, steer};
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::sync::atomic::AtomicBool;

    use super::System;

    const SHUTTLE: System = System {
        spawn: |work| {
            let thread = shuttle::thread::spawn(work);
            Box::new(move || thread.join().expect("a worker"))
        },
        yield_now: shuttle::thread::yield_now,
        calls: 40,
    };

    /// Lets another thread go on before an operation on shared memory.
    fn switch(address: usize) {
        if lab::is_shared(address) {
            AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Tries schedules: as many as a second or two allow, or as RFTRACE_MODEL_SCHEDULES tells.
    fn explore(schedules: usize, scenario: fn(System)) {
        let _alone = lab::alone();
        let asked = std::env::var("RFTRACE_MODEL_SCHEDULES").ok().map(|n| n.parse().expect("a number"));
        steer::set_identity(Some(|| shuttle::current::me().into()));
        steer::at_each_point(Some(switch));
        let body = move || scenario(SHUTTLE);
        let config = || {
            let mut config = shuttle::Config::new();
            config.stack_size = 256 * 1024;
            config
        };
        if let Some(schedules) = asked {
            shuttle::Runner::new(RandomScheduler::new(schedules), config()).run(body);
            shuttle::Runner::new(PctScheduler::new(3, schedules), config()).run(body);
        } else {
            // The same schedules each time.
            shuttle::Runner::new(RandomScheduler::new_from_seed(1, schedules), config()).run(body);
            shuttle::Runner::new(PctScheduler::new_from_seed(1, 3, schedules), config()).run(body);
        }
        steer::at_each_point(None);
        steer::set_identity(None);
    }

    #[test]
    fn threads_record_until_the_buffer_is_full() {
        explore(1_000, |system| super::threads_record_until_the_buffer_is_full(system, 3, 6));
    }

    #[test]
    fn threads_of_short_life_go_on_in_chunks_of_others() {
        explore(1_000, |system| super::threads_record_until_the_buffer_is_full(system, 5, 32));
    }

    #[test]
    fn threads_record_all_when_there_is_room() {
        explore(1_000, |system| super::threads_record_until_the_buffer_is_full(system, 3, 32));
    }

    #[test]
    fn a_ring_keeps_the_newest() {
        explore(1_000, |system| super::a_ring_keeps_the_newest(system, 3, 8, false));
    }

    #[test]
    fn a_ring_with_hardly_more_chunks_than_threads() {
        explore(1_000, |system| super::a_ring_keeps_the_newest(system, 3, 4, false));
    }

    #[test]
    fn threads_end_and_go_on_in_a_ring() {
        explore(1_000, |system| super::a_ring_keeps_the_newest(system, 4, 4, true));
    }

    #[test]
    fn chunks_are_emptied() {
        explore(50, |system| super::chunks_are_emptied(system, 3, 8, 100));
        explore(50, |system| super::chunks_are_emptied(system, 2, 4, 0));
    }

    #[test]
    fn a_ring_is_copied() {
        explore(100, |system| super::a_ring_is_copied(system, 2, 8));
        explore(100, |system| super::a_ring_is_copied(system, 3, 8));
    }

    #[test]
    fn snapshots_lose_nothing() {
        explore(1_000, |system| super::snapshots_lose_nothing(system, 3, 16, false));
    }

    #[test]
    fn snapshots_of_a_ring_lose_nothing() {
        explore(1_000, |system| super::snapshots_lose_nothing(system, 3, 8, true));
    }

    #[test]
    fn buffers_are_replaced() {
        explore(1_000, |system| super::buffers_are_replaced(system, 3, 3));
    }

    #[test]
    fn threads_are_excluded() {
        explore(1_000, |system| super::threads_are_excluded(system, 3, false));
        explore(500, |system| super::threads_are_excluded(system, 2, true));
    }

    #[test]
    fn coroutines_move_between_threads() {
        explore(100, |system| super::coroutines_move_between_threads(system, 2, 1, super::FAR, 6));
        explore(100, |system| super::coroutines_move_between_threads(system, 3, 2, super::FAR, 6));
    }

    #[test]
    fn coroutines_on_stacks_side_by_side_move_between_threads() {
        explore(100, |system| super::coroutines_move_between_threads(system, 2, 1, super::NEAR, 6));
        explore(100, |system| super::coroutines_move_between_threads(system, 3, 2, super::NEAR, 6));
    }

    #[test]
    fn blocks_have_one_user() {
        explore(1_000, |system| super::blocks_have_one_user(system, 4, 2));
    }
}

mod real {
    //! The scenarios with threads of the system.

    use super::{REAL, lab};

    /// How often: each time is another schedule.
    const ROUNDS: usize = if cfg!(miri) { 1 } else { 100 };

    fn repeat(scenario: impl Fn()) {
        let _alone = lab::alone();
        (0..ROUNDS).for_each(|_| scenario());
    }

    #[test]
    fn threads_record_until_the_buffer_is_full() {
        repeat(|| super::threads_record_until_the_buffer_is_full(REAL, 3, 6));
    }

    #[test]
    fn chunks_are_emptied() {
        repeat(|| super::chunks_are_emptied(REAL, 3, 16, u64::MAX));
        repeat(|| super::chunks_are_emptied(REAL, 2, 4, 0));
    }

    #[test]
    fn a_ring_keeps_the_newest() {
        repeat(|| super::a_ring_keeps_the_newest(REAL, 3, 8, false));
    }

    #[test]
    fn a_ring_is_copied() {
        repeat(|| super::a_ring_is_copied(REAL, 3, 8));
    }

    #[test]
    fn snapshots_lose_nothing() {
        repeat(|| super::snapshots_lose_nothing(REAL, 3, 16, false));
    }

    #[test]
    fn snapshots_of_a_ring_lose_nothing() {
        repeat(|| super::snapshots_lose_nothing(REAL, 3, 8, true));
    }

    #[test]
    fn coroutines_move_between_threads() {
        repeat(|| super::coroutines_move_between_threads(REAL, 3, 2, super::FAR, if cfg!(miri) { 5 } else { 100 }));
    }

    #[test]
    fn a_ring_forgets_ended_threads() {
        repeat(super::a_ring_forgets_ended_threads);
    }

    #[test]
    fn threads_with_a_shadow_stack_are_left_alone() {
        let _alone = lab::alone();
        super::threads_with_a_shadow_stack_are_left_alone();
    }

    #[test]
    fn threads_are_excluded() {
        repeat(|| super::threads_are_excluded(REAL, 3, false));
        repeat(|| super::threads_are_excluded(REAL, 2, true));
    }

    #[test]
    fn buffers_are_replaced() {
        repeat(|| super::buffers_are_replaced(REAL, 3, 3));
    }

    #[test]
    fn coroutines_on_stacks_side_by_side_move_between_threads() {
        // Where no bucket is crowded: else what lies between a frame and its caller's is taken for dead, see
        // `docs/conformance.md`.
        let stacks = super::Stacks { n_left_buckets: 1_024, ..super::NEAR };
        repeat(|| super::coroutines_move_between_threads(REAL, 3, 2, stacks, if cfg!(miri) { 5 } else { 100 }));
    }

    #[test]
    fn a_new_cycle_has_the_whole_buffer() {
        repeat(super::a_new_cycle_has_the_whole_buffer);
    }

    #[test]
    fn blocks_have_one_user() {
        repeat(|| super::blocks_have_one_user(REAL, 4, 2));
    }
}
