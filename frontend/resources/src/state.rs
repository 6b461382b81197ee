//! Recorded resources of this process, as far as known.
//!
//! Not here: finding that out (`process`).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize};

use rftrace_format::resources::{DETAILED, MAX_SPECIFIED, Resource};

/// Not asked yet.
pub(crate) const UNKNOWN: u8 = 0;
/// A thread is about to find out.
pub(crate) const BEGINNING: u8 = 1;
pub(crate) const RECORDED: u8 = 2;
const NOT_RECORDED: u8 = 3;
/// As [`RECORDED`], but not each call is: the program has functions of the same kind that have branches, and what these do is recorded there (`layers`); or a
/// thread records nothing any more. Of memory alone.
pub(crate) const LAYERED: u8 = 4;
/// Of each resource, by its number.
pub(crate) static STATES: [AtomicU8; N_RESOURCES] = [const { AtomicU8::new(UNKNOWN) }; N_RESOURCES];
const N_RESOURCES: usize = Resource::ALL.len() + MAX_SPECIFIED;

fn is_wanted(state: u8) -> bool {
    state == RECORDED || state == LAYERED
}

/// Says that not each call of those for memory is recorded.
pub(crate) fn set_layered() {
    // Nobody else changes it once it is known.
    let _ = STATES[Resource::Memory.number() as usize].compare_exchange(RECORDED, LAYERED, AcqRel, Relaxed);
}

/// True if the resource with this number is recorded, as far as known.
pub(crate) fn is_number_recorded(number: usize) -> bool {
    STATES.get(number).is_some_and(|state| is_wanted(state.load(Relaxed)))
}

/// The thread that tells a recorder of what is there, before anything is recorded; 0 for none.
static TELLER: AtomicI32 = AtomicI32::new(0);

/// True if this thread may write to the recorder's memory: something is recorded, or it tells a newly attached recorder what is there.
pub(crate) fn may_write() -> bool {
    let is_recorded = STATES.iter().any(|state| is_wanted(state.load(Acquire)));
    // SAFETY: the call takes nothing.
    is_recorded || TELLER.load(Relaxed) == unsafe { libc::gettid() }
}

/// Has this thread tell a recorder that has come of what is there.
pub(crate) fn telling(tell: impl FnOnce()) {
    // SAFETY: the call takes nothing.
    TELLER.store(unsafe { libc::gettid() }, Relaxed);
    tell();
    TELLER.store(0, Relaxed);
}

/// The program has asked for a filter of system calls: it may kill for those that the program does not make itself.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// True after [`confine`]. Facts that need a system call are not looked up any more.
pub(crate) fn is_confined() -> bool {
    IS_CONFINED.load(Relaxed)
}

/// Says so: of this process, and of those that it forks.
pub(crate) fn confine() {
    IS_CONFINED.store(true, Relaxed);
}

/// True once the recorded resources are known.
pub(crate) fn is_known() -> bool {
    [RECORDED, NOT_RECORDED, LAYERED].contains(&STATES[0].load(Relaxed))
}

/// True if more is recorded: stacks of releases, arguments.
static IS_DETAILED: AtomicBool = AtomicBool::new(false);

/// True if releases have stacks, and calls for files their arguments.
#[inline(always)]
pub(crate) fn is_detailed() -> bool {
    IS_DETAILED.load(Relaxed)
}

/// The recorder has come to a program that ran before, and will leave it.
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
/// How often that has begun or come to its end: what was begun before is not recorded.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// An address in the tracer's library, where that has come to a program that ran before; else 0.
static TRACER: AtomicUsize = AtomicUsize::new(0);

/// That address.
pub(crate) fn tracer() -> usize {
    TRACER.load(Relaxed)
}

/// The present generation.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// True if children of a fork are not recorded, as nobody leaves them.
pub(crate) fn is_attached() -> bool {
    IS_ATTACHED.load(Relaxed)
}

/// A recorder comes to this process, with the tracer's library around an address. What is begun from now on belongs to the next generation. Returns its number.
pub(crate) fn attach(tracer: usize) -> u32 {
    TRACER.store(tracer, Relaxed);
    IS_ATTACHED.store(true, Relaxed);
    GENERATION.fetch_add(1, AcqRel).wrapping_add(1)
}

/// Records nothing any more, nor what has begun.
pub(crate) fn switch_off() {
    set_wanted(0);
    GENERATION.fetch_add(1, AcqRel);
}

/// Records these from now on, a bit for each.
pub(crate) fn set_wanted(wanted: u32) {
    IS_DETAILED.store(wanted & DETAILED != 0, Relaxed);
    for (number, place) in STATES.iter().enumerate() {
        place.store(if wanted >> number & 1 != 0 { RECORDED } else { NOT_RECORDED }, Release);
    }
}
