//! Stacks by unwind information. What was walked last is remembered: what of it is still so need not be walked again.
//!
//! Not here: what is done with a stack (the module above), and what is known of programs and libraries (`modules`).

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

use rftrace_format::resources::MAX_FRAMES;

use super::extent::{Registers, Stack, is_left};
use super::hash::Hash;
use super::rules::{Failed, Rules, Step};
use super::table::{Addresses, Found, found};
use crate::memory;
use crate::modules::{self, Known};
use crate::state;
use crate::thread::{self, Thread};

/// The memory of an unwinder: rules by code address, and the stack that it has walked last.
struct Cache {
    rules: Rules,
    last: Box<Walk>,
    /// New frames of the stack that is walked now: the program's stack may be a small one.
    steps: Box<[MaybeUninit<Step>; MAX_FRAMES]>,
}

/// Runs this on a stack with room.
fn roomy<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    const BYTES: usize = 256 << 10;

    memory::lent(BYTES, |stack| thread::on_stack(stack, work)).flatten()
}

/// So many frames are remembered at the most.
const DEPTH: usize = 4 * MAX_FRAMES;

/// A stack that was walked, the outermost frame first.
struct Walk {
    n_frames: usize,
    /// The first one is the outermost there is.
    is_whole: bool,
    /// By what it was walked.
    known: *const Known,
    frames: [Frame; DEPTH],
}

#[derive(Clone, Copy)]
struct Frame {
    step: Step,
    /// That of this frame and those outside of it.
    hash: Hash,
}

/// Why a walk has ended.
#[derive(Clone, Copy)]
enum End {
    /// The stack has no more frames, or none that can be found.
    OfStack,
    /// There are as many as are wanted.
    Enough,
    /// So many frames from the outermost one on are those of the last time.
    AsBefore(usize),
}

impl Walk {
    /// Of nothing, where it is to be: it is large.
    fn none() -> Box<Self> {
        // SAFETY: zero is a value of each field.
        unsafe { Box::new_zeroed().assume_init() }
    }

    /// So many frames, from the outermost one on, are still so: all return addresses are where they were.
    #[inline(always)]
    fn unchanged(&self, stack: &Stack) -> usize {
        let is_so = |frame: &&Frame| stack.has(frame.step.slot, frame.step.address);
        self.frames[..self.n_frames].iter().take_while(is_so).count()
    }

    /// True if the first `n_old` frames and `n_new` new ones suffice.
    fn is_enough(&self, n_old: usize, n_new: usize) -> bool {
        self.is_whole || n_old + n_new >= MAX_FRAMES
    }

    /// Puts new frames, the innermost first, in place of those before, up to where the walk has ended.
    #[inline(always)]
    fn replace(&mut self, end: End, steps: &[Step]) {
        let n_old = match end {
            End::AsBefore(n_old) => n_old,
            End::OfStack | End::Enough => {
                self.is_whole = matches!(end, End::OfStack);
                0
            }
        };
        self.n_frames = n_old;
        if n_old + steps.len() > DEPTH {
            self.forget_outer();
        }
        let mut hash = self.frames[..self.n_frames].last().map_or(Hash::NONE, |frame| frame.hash);
        let places = self.frames[self.n_frames..].iter_mut();
        for (place, &step) in places.zip(steps.iter().rev()) {
            hash = hash.with(step.address);
            *place = Frame { step, hash };
        }
        self.n_frames += steps.len();
    }

    #[cold]
    fn forget_outer(&mut self) {
        let rest = self.n_frames.min(DEPTH / 2);
        self.frames.copy_within(self.n_frames - rest..self.n_frames, 0);
        self.n_frames = rest;
        self.is_whole = false;
    }

    /// The innermost frames, as many as are wanted.
    #[inline(always)]
    fn found(&self, addresses: Option<&mut Addresses>) -> Found {
        let (outside, frames) = self.frames[..self.n_frames].split_at(self.n_frames.saturating_sub(MAX_FRAMES));
        let hash = |frames: &[Frame]| frames.last().map_or(Hash::NONE, |frame| frame.hash);
        let hash = hash(&self.frames[..self.n_frames]).without(hash(outside)).of(frames.len());
        found(hash, || {
            for (place, frame) in addresses.into_iter().flatten().zip(frames.iter().rev()) {
                place.write(frame.step.address);
            }
            frames.len()
        })
    }
}

/// The unwinder has failed: it is not asked again.
static IS_FLAWED: AtomicBool = AtomicBool::new(false);

/// Memories of unwinders. A thread has one while it unwinds, or for good if it leaves by a jump out of a signal handler.
static CACHES: [Shared; N_CACHES] = [const { Shared::none() }; N_CACHES];
const N_CACHES: usize = 64;
static NEXT_CACHE: AtomicUsize = AtomicUsize::new(1);

#[repr(align(64))]
struct Shared {
    /// Where the thread that has it has its storage; 0 is nobody.
    owner: AtomicUsize,
    /// Where that thread's stack was then; 0 as long as it is not known.
    sp: AtomicUsize,
    cache: AtomicPtr<Cache>,
}

impl Shared {
    const fn none() -> Self {
        Self { owner: AtomicUsize::new(0), sp: AtomicUsize::new(0), cache: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Takes it for this thread, if it is nobody's.
    #[inline(always)]
    fn take(&self, sp: usize) -> bool {
        let is_taken = self.owner.compare_exchange(0, thread::pointer(), Acquire, Relaxed).is_ok();
        if is_taken {
            self.sp.store(sp, Relaxed);
        }
        is_taken
    }

    /// Takes it back from what this thread has left by a jump.
    fn take_back(&self, thread: &Thread, sp: usize) -> bool {
        let is_left = self.owner.load(Relaxed) == thread::pointer() && is_left(thread, self.sp.load(Relaxed), sp);
        if is_left {
            self.sp.store(sp, Relaxed);
        }
        is_left
    }

    /// Makes what there was not, or may be half-written. To be called by the thread that has it. Returns whether it is there.
    fn make(&self) -> bool {
        let cache = modules::alone(Cache::make).map_or(ptr::null_mut(), Box::into_raw);
        self.cache.store(cache, Relaxed);
        !cache.is_null()
    }

    #[inline(always)]
    fn leave(&self) {
        self.sp.store(0, Relaxed);
        self.owner.store(0, Release);
    }
}

impl Cache {
    /// Rules and a stack of which nothing is known. `None` where there is no memory for it. framehop makes what it remembers on the stack, and that of the
    /// program may be a small one. To be called where no signal comes.
    fn make() -> Option<Box<Self>> {
        roomy(Self::make_here)
    }

    fn make_here() -> Option<Box<Self>> {
        const BYTES: usize = size_of::<Walk>() + size_of::<[Step; MAX_FRAMES]>() + size_of::<Cache>() + Rules::BYTES;

        let make = || {
            // SAFETY: of the steps none need be initialised.
            let steps = unsafe { Box::new_uninit().assume_init() };
            Box::new(Self { rules: Rules::new(), last: Walk::none(), steps })
        };
        memory::reserve(BYTES).then(make)
    }

    fn walk(&mut self, known: &Known, stack: &Stack, registers: Registers, addresses: Option<&mut Addresses>) -> Found {
        let Self { rules, last, steps } = self;
        if !ptr::eq(last.known, known) {
            (last.known, last.n_frames) = (known, 0);
            rules.forget();
        }
        let mut old = last.unchanged(stack);
        let mut end = End::OfStack;
        let mut n_new = 0;
        let mut next = stack.read(registers.sp as u64).ok().map(|address| Step {
            slot: registers.sp as u64,
            address,
            bp: registers.bp as u64,
        });
        // Behind a signal handler the unwinder goes wrong.
        while let Some(step) = next.filter(|step| !stack.contains(step.address)) {
            while old > 0 && last.frames[old - 1].step.slot < step.slot {
                old -= 1;
            }
            // The same state in the same frame: the way from here is that of the last time.
            if old > 0 && last.frames[old - 1].step == step && last.is_enough(old, n_new) {
                end = End::AsBefore(old);
                break;
            }
            if n_new == MAX_FRAMES {
                end = End::Enough;
                break;
            }
            let written = &*steps[n_new].write(step);
            n_new += 1;
            next = rules.next(stack, step).or_else(|| {
                rules.ask(known, stack, written).unwrap_or_else(|Failed| {
                    IS_FLAWED.store(true, Relaxed);
                    None
                })
            });
        }
        rules.walked(n_new);
        // SAFETY: so many were written.
        last.replace(end, unsafe { steps[..n_new].assume_init_ref() });
        last.found(addresses)
    }
}

/// So many caches are made before a thread needs them: a thread that makes its own while another one is at that has to do without.
const MOST_AHEAD: usize = 7;
/// So many are to be there: one of the first thread, one of each that was begun since, and one more, as a signal handler may come amid a walk.
static N_AHEAD: AtomicUsize = AtomicUsize::new(2);

/// Makes those of the first thread; where threads are there already, of as many as may take something at the same time.
pub(super) fn prepare() {
    make_ahead(if state::is_attached() { MOST_AHEAD } else { N_AHEAD.load(Relaxed) });
}

/// Makes what is made ahead, as none can be made any more.
pub(super) fn confine() {
    make_ahead(MOST_AHEAD);
}

/// Makes one for a thread that is about to begin.
#[cold]
pub(super) fn thread_begins() {
    make_ahead(N_AHEAD.fetch_add(1, Relaxed) + 1);
}

fn make_ahead(n_caches: usize) {
    let sp = thread::stack_pointer();
    let caches = &CACHES[1..=n_caches.min(MOST_AHEAD)];
    for shared in caches.iter().filter(|shared| shared.cache.load(Relaxed).is_null()) {
        if shared.take(sp) {
            shared.make();
            shared.leave();
        }
    }
}

/// Finds who has called. `None` where nothing is known of programs, no cache is free, or the unwinder has failed.
#[inline(always)]
pub(super) fn walk(
    thread: &Thread,
    stack: &Stack,
    registers: Registers,
    addresses: Option<&mut Addresses>,
) -> Option<Found> {
    let known = modules::known().filter(|_| !IS_FLAWED.load(Relaxed))?;
    let shared = take_cache(thread, registers.sp)?;
    // SAFETY: this thread has taken it.
    let cache = unsafe { &mut *shared.cache.load(Relaxed) };
    let found = cache.walk(known, stack, registers, addresses);
    shared.leave();
    Some(found)
}

/// Takes a cache that nobody uses.
#[inline(always)]
fn take_cache(thread: &Thread, sp: usize) -> Option<&'static Shared> {
    let shared = &CACHES[thread.cache.get() % N_CACHES];
    if thread.cache.get() != 0 && shared.take(sp) {
        return Some(shared);
    }
    take_other_cache(thread, sp)
}

#[cold]
#[inline(never)]
fn take_other_cache(thread: &Thread, sp: usize) -> Option<&'static Shared> {
    let first = NEXT_CACHE.fetch_add(1, Relaxed);
    // Where none can be made, those that there are.
    let can_be = |place: usize| !state::is_confined() || !CACHES[place].cache.load(Relaxed).is_null();
    let places =
        || (first..first + N_CACHES).map(|place| place % N_CACHES).filter(|&place| place != 0 && can_be(place));
    let left = || places().find(|&place| CACHES[place].take_back(thread, sp)).filter(|_| may_renew());
    let (place, is_left) = match left() {
        Some(place) => (place, true),
        None => (places().find(|&place| CACHES[place].take(sp))?, false),
    };
    let shared = &CACHES[place];
    // One that was left may be half-written.
    if (is_left || shared.cache.load(Relaxed).is_null()) && !shared.make() {
        shared.leave();
        return None;
    }
    thread.cache.set(place);
    Some(shared)
}

/// True if another one may replace an abandoned one: memory is not given back.
fn may_renew() -> bool {
    static N_RENEWED: AtomicUsize = AtomicUsize::new(0);

    N_RENEWED.fetch_add(1, Relaxed) < N_CACHES
}
