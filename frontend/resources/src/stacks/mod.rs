//! Backtraces: the return addresses on the stack. Each stack gets a number, and is written once.
//!
//! - `unwind` finds it by unwind information, and remembers its last walk; `rules` leads it from frame to frame. `shadow` has the functions
//!   that the tracer records.
//! - `extent` is the readable range of a stack, `returns` the addresses that the tracer has replaced in it, `hash` the key of a known stack,
//!   `table` the numbers.

mod extent;
mod hash;
mod returns;
mod rules;
mod shadow;
mod table;
mod unwind;

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_format::resources::{Kind, MAX_FRAMES};

pub(crate) use self::extent::{Registers, readable_end};
pub(crate) use self::returns::Tracer;

use self::extent::Stack;
use self::hash::Hash;
use self::table::{Addresses, Found, found};
use crate::chunks;
use crate::modules;
use crate::pool;
use crate::thread::Thread;

/// How stacks are found.
const NONE: u8 = 0;
const FRAME_POINTERS: u8 = 1;
const UNWIND_INFORMATION: u8 = 2;
const RETURN_STACK: u8 = 3;
static WAY: AtomicU8 = AtomicU8::new(NONE);

/// Has stacks found in that way: none, by frame pointers, by unwind information, by what the tracer knows. No stack has a number then.
pub(crate) fn prepare(way: Option<u8>, tracer: Option<Tracer>) {
    let way = match way {
        _ if !table::prepare() => NONE,
        Some(b'n') => NONE,
        Some(b'f') => FRAME_POINTERS,
        Some(b's') => RETURN_STACK,
        _ => UNWIND_INFORMATION,
    };
    WAY.store(way, Relaxed);
    extent::prepare();
    returns::prepare(tracer);
    if way == UNWIND_INFORMATION {
        unwind::prepare();
    }
    // Panics in an unwinder are not for the program's users.
    std::panic::set_hook(Box::new(|_| {}));
}

/// Prepares for a thread that is about to begin.
pub(crate) fn thread_begins() {
    if WAY.load(Relaxed) == UNWIND_INFORMATION {
        unwind::thread_begins();
    }
}

/// Prepares for a process that is about to be confined.
pub(crate) fn confine() {
    if WAY.load(Relaxed) == UNWIND_INFORMATION {
        unwind::confine();
    }
}

/// The number of the present stack; 0 for none.
#[inline(always)]
pub(crate) fn number(thread: &Thread, registers: Registers) -> u32 {
    if WAY.load(Relaxed) == NONE { 0 } else { find(thread, registers) }
}

fn find(thread: &Thread, registers: Registers) -> u32 {
    match walk(thread, registers, None) {
        Found::Numbered(number) => number,
        Found::New(..) => add(thread, registers),
    }
}

/// Writes a stack that was not seen before. It is walked once more: the room for its addresses is not to be on the program's stack, which may be a small one, while
/// the unwinder looks up what it does not know.
#[cold]
#[inline(never)]
fn add(thread: &Thread, registers: Registers) -> u32 {
    /// # Safety
    ///
    /// So many were written.
    unsafe fn written(addresses: &Addresses, n_frames: usize) -> &[u64] {
        // SAFETY: as above.
        unsafe { addresses[..n_frames].assume_init_ref() }
    }

    let mut addresses = [MaybeUninit::uninit(); MAX_FRAMES];
    let mut found = walk(thread, registers, Some(&mut addresses));
    if let Found::New(_, n_frames) = found {
        // SAFETY: so many were found.
        let is_known = modules::known().is_some_and(|known| known.has_all(unsafe { written(&addresses, n_frames) }));
        if !is_known && modules::refresh() {
            found = walk(thread, registers, Some(&mut addresses));
        }
    }
    let (hash, n_frames) = match found {
        Found::Numbered(number) => return number,
        Found::New(hash, n_frames) => (hash, n_frames),
    };
    // SAFETY: as above.
    let frames = unsafe { written(&addresses, n_frames) };
    loop {
        let (number, is_new) = table::place(hash);
        if !is_new {
            return number;
        }
        if !table::take(number, hash) {
            continue;
        }
        let Some(units) = chunks::reserve(thread, 1 + n_frames.div_ceil(2)) else { return 0 };
        for (number, pair) in frames.chunks(2).enumerate() {
            units.more(1 + number, pair[0], pair.get(1).copied().unwrap_or(0));
        }
        units.finish(Kind::Stack, pool::ticks_before(), u64::from(number) | (n_frames as u64) << 48);
        table::is_told(number, hash);
        return number;
    }
}

/// Finds who has called, and writes the addresses where that is new and they are wanted.
#[inline(always)]
fn walk(thread: &Thread, registers: Registers, mut addresses: Option<&mut Addresses>) -> Found {
    if WAY.load(Relaxed) == RETURN_STACK {
        return shadow::walk(registers, addresses);
    }
    let stack = Stack::from(thread, registers.sp);
    if WAY.load(Relaxed) == UNWIND_INFORMATION
        && let Some(found) = unwind::walk(thread, &stack, registers, addresses.as_deref_mut())
    {
        return found;
    }
    by_frame_pointers(&stack, registers, addresses)
}

#[inline(always)]
fn by_frame_pointers(stack: &Stack, registers: Registers, mut addresses: Option<&mut Addresses>) -> Found {
    let (mut n_frames, mut hash) = (0, Hash::NONE);
    let mut add = |address| {
        if let Some(addresses) = &mut addresses {
            addresses[n_frames].write(address);
        }
        n_frames += 1;
        hash = hash.with(address);
        n_frames < MAX_FRAMES
    };
    if let Ok(first) = stack.read(registers.sp as u64) {
        add(first);
        let (mut at, mut below) = (registers.bp as u64, registers.sp as u64);
        while at > below
            && let Some([next, back]) = stack.frame(at)
            && back >= 4096
            && add(back)
        {
            (below, at) = (at, next);
        }
    }
    found(hash.of(n_frames), || n_frames)
}
