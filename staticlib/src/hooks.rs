//! The slow paths of the hooks: whatever the assembly does not do itself.
//!
//! They do the whole work of their hook, so that it never has to be tried again.

use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicUsize, compiler_fence};

use crate::abi::{ADDRESS_SHIFT, ReturnEntry, ThreadBlock, kind};
use crate::arch;
use crate::buffer;
use crate::control::CONTROL;
use crate::thread;

/// Frames are taken to be of one stack if each lies at most this far below the one that called it. Where a frame is
/// larger, dead entries above it stay until something proves them dead; no living one is ever lost to that.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// A function was entered and the fast path could not record it.
///
/// `parent_loc` is where its return address should be, `child_ip` lies in it, `stack_pointer` is its rsp.
pub(crate) extern "C" fn entry_slow(parent_loc: usize, child_ip: usize, stack_pointer: usize) {
    if CONTROL.enabled.load(Relaxed) == 0 {
        return;
    }
    let Some(block) = thread::current_block() else {
        return;
    };
    let entry_word = (child_ip as u64) << ADDRESS_SHIFT;
    if parent_loc < stack_pointer || !parent_loc.is_multiple_of(align_of::<usize>()) {
        // No frame pointer, so its return is not seen: it shows as a call that takes no time.
        if buffer::record(block, entry_word | kind::ENTRY) && !buffer::record(block, entry_word | kind::EXIT) {
            buffer::park(block);
        }
        return;
    }
    drop_dead_entries(block, parent_loc, stack_pointer);
    let entry = block.sp.load(Relaxed);
    if entry >= block.limit.load(Relaxed) {
        buffer::record_lost_call(block);
        return;
    }
    let Some(place) = buffer::reserve(block) else {
        return;
    };
    // The same order as in the assembly: reserve the entry, write it, publish it, hook.
    block.sp.store(entry.wrapping_add(1), Relaxed);
    compiler_fence(SeqCst);
    place.write(arch::ticks(), entry_word | kind::ENTRY);
    // SAFETY: the entry lies in this thread's stack, below its limit, and was reserved just now.
    let entry = unsafe { &*entry };
    // SAFETY: `parent_loc` is above the stack pointer of a function that is running: its frame has a return address
    // there, which nobody but the function's return uses.
    let slot = unsafe { &*(parent_loc as *const AtomicUsize) };
    entry.exit_word.store(entry_word | kind::EXIT, Relaxed);
    entry.parent_ip.store(slot.load(Relaxed), Relaxed);
    entry.parent_loc.store(parent_loc, Release);
    compiler_fence(SeqCst);
    slot.store(arch::trampoline(), Relaxed);
}

/// Takes away entries whose frames were left by longjmp.
///
/// An entry is certainly dead if its slot lies within the frame that now runs, or if it is the slot of this call and
/// holds a new return address. Then what was called from it is dead too.
///
/// Entries with lower slots are dead if they are on this stack, and living if they are on another one, which the thread
/// will come back to. Far away they are taken to be living. Nearby nobody can tell: their exits are recorded and they
/// stay, so that all they need is there should they return.
fn drop_dead_entries(block: &ThreadBlock, parent_loc: usize, stack_pointer: usize) {
    let base = block.base.load(Relaxed);
    let mut entry = block.sp.load(Relaxed);
    let mut dead = None;
    while entry > base {
        entry = entry.wrapping_sub(1);
        // SAFETY: between `base` and `sp`.
        let candidate = unsafe { &*entry };
        let slot = candidate.parent_loc.load(Relaxed);
        // 0 is an entry that an interrupted hook is writing: all below it live.
        if slot == 0 || slot > parent_loc {
            break;
        }
        if slot == parent_loc {
            // SAFETY: the slot is that of the running function, see `entry_slow`.
            let content = unsafe { &*(slot as *const AtomicUsize) }.load(Relaxed);
            if content == arch::trampoline() {
                break;
            }
        }
        if slot >= stack_pointer {
            dead = Some(candidate);
        }
    }
    if let Some(dead) = dead {
        remove(block, dead);
    }
    let mut entry = block.sp.load(Relaxed);
    while entry > base {
        entry = entry.wrapping_sub(1);
        // SAFETY: between `base` and `sp`.
        let candidate = unsafe { &*entry };
        let slot = candidate.parent_loc.load(Relaxed);
        if slot == 0 || slot >= stack_pointer || stack_pointer.wrapping_sub(slot) > MAX_FRAME_BYTES {
            break;
        }
        record_exit(block, candidate);
        candidate.exit_word.fetch_or(kind::PRESUMED_DEAD, Relaxed);
    }
}

/// Whether all entries above `outer` were called from it, one by the other, on the same stack.
fn all_above_are_nested_in(block: &ThreadBlock, outer: &ReturnEntry) -> bool {
    let top: *const ReturnEntry = top_entry(block);
    let mut entry: *const ReturnEntry = outer;
    let mut slot = outer.parent_loc.load(Relaxed);
    while entry < top {
        entry = entry.wrapping_add(1);
        // SAFETY: between `base` and `sp`.
        let inner = unsafe { &*entry }.parent_loc.load(Relaxed);
        // The same slot: a tail call.
        if inner > slot || slot.wrapping_sub(inner) > MAX_FRAME_BYTES {
            return false;
        }
        slot = inner;
    }
    true
}

/// Takes away all entries above `outer`, innermost first.
fn drop_above(block: &ThreadBlock, outer: &ReturnEntry) {
    while !core::ptr::eq(top_entry(block), outer) {
        record_exit(block, top_entry(block));
        pop(block);
    }
}

/// A function returned to the trampoline and the fast path could not record it. Returns where it returns to.
pub(crate) extern "C" fn exit_slow(parent_loc: usize) -> usize {
    let Some((block, entry)) = thread::existing_block().and_then(|block| Some((block, find(block, parent_loc)?)))
    else {
        return find_elsewhere(parent_loc).unwrap_or_else(|| arch::abort());
    };
    let parent_ip = entry.parent_ip.load(Relaxed);
    remove(block, entry);
    parent_ip
}

/// Records the exit of `entry` and takes it away, with those that were called from it and ended without returning.
fn remove(block: &ThreadBlock, entry: &ReturnEntry) {
    if all_above_are_nested_in(block, entry) {
        drop_above(block, entry);
        record_exit(block, entry);
    } else {
        record_exit(block, entry);
        close_gap(block, entry);
    }
    pop(block);
}

/// An exception leaves the frames that return by `parent_loc`: one, or a chain of tail calls. Returns where the first
/// of them would have returned to.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) extern "C" fn unwound(parent_loc: usize) -> usize {
    loop {
        let parent_ip = exit_slow(parent_loc);
        if parent_ip != arch::trampoline() {
            return parent_ip;
        }
    }
}

/// Records the exits of all functions that are open in the thread.
pub(crate) fn close_all(block: &ThreadBlock) {
    while block.sp.load(Relaxed) > block.base.load(Relaxed) {
        record_exit(block, top_entry(block));
        pop(block);
    }
}

/// Takes away all entries of a thread that is not there any more.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) fn forget_all(block: &ThreadBlock) {
    while block.sp.load(Relaxed) > block.base.load(Relaxed) {
        pop(block);
    }
}

/// Records the exit of a function, unless that was done already.
fn record_exit(block: &ThreadBlock, entry: &ReturnEntry) {
    let word = entry.exit_word.load(Relaxed);
    if word & kind::PRESUMED_DEAD == 0 && !buffer::record(block, word) {
        buffer::park(block);
    }
}

/// The innermost entry; the sentinel if there is none.
fn top_entry(block: &ThreadBlock) -> &ReturnEntry {
    // SAFETY: `sp` is at least `base`, and below that lies the sentinel.
    unsafe { &*block.sp.load(Relaxed).wrapping_sub(1) }
}

/// Removes the innermost entry. Its contents must have been read.
fn pop(block: &ThreadBlock) {
    top_entry(block).parent_loc.store(0, Relaxed);
    compiler_fence(SeqCst);
    block.sp.store(block.sp.load(Relaxed).wrapping_sub(1), Relaxed);
}

/// The innermost entry with this slot.
fn find(block: &ThreadBlock, parent_loc: usize) -> Option<&ReturnEntry> {
    let base = block.base.load(Relaxed);
    let mut entry = block.sp.load(Relaxed);
    while entry > base {
        entry = entry.wrapping_sub(1);
        // SAFETY: between `base` and `sp`.
        let candidate = unsafe { &*entry };
        if candidate.parent_loc.load(Relaxed) == parent_loc {
            return Some(candidate);
        }
    }
    None
}

/// Where a frame returns to that was entered on another thread.
#[cold]
fn find_elsewhere(parent_loc: usize) -> Option<usize> {
    let mut next = CONTROL.threads.load(SeqCst);
    while !next.is_null() {
        // SAFETY: blocks on the list stay mapped for ever.
        let block = unsafe { &*next };
        if let Some(entry) = find(block, parent_loc) {
            return Some(entry.parent_ip.load(Relaxed));
        }
        next = block.next.load(Relaxed);
    }
    None
}

/// Moves the entries above `entry`, which live on another stack, one down over it. The innermost is left twice.
#[cold]
fn close_gap(block: &ThreadBlock, entry: &ReturnEntry) {
    let top: *const ReturnEntry = top_entry(block);
    let mut to: *const ReturnEntry = entry;
    while to < top {
        let from = to.wrapping_add(1);
        // SAFETY: both lie between `base` and `sp`.
        let (to_entry, from_entry) = unsafe { (&*to, &*from) };
        to_entry.parent_loc.store(0, Relaxed);
        compiler_fence(SeqCst);
        to_entry.parent_ip.store(from_entry.parent_ip.load(Relaxed), Relaxed);
        to_entry.exit_word.store(from_entry.exit_word.load(Relaxed), Relaxed);
        compiler_fence(SeqCst);
        to_entry.parent_loc.store(from_entry.parent_loc.load(Relaxed), Relaxed);
        to = from;
    }
}
