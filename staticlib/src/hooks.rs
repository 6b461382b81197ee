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

/// Two slots that are further apart than this belong to different stacks.
const STACK_SPAN_BYTES: usize = 8 << 20;

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

/// Takes away entries that are certainly dead (their frames were left by longjmp): those whose slot lies within the
/// frame that now runs, or is the slot of this call and holds a new return address.
fn drop_dead_entries(block: &ThreadBlock, parent_loc: usize, stack_pointer: usize) {
    loop {
        let top = top_entry(block);
        let slot = top.parent_loc.load(Relaxed);
        let dead = if slot == parent_loc {
            // SAFETY: the slot is that of the running function, see `entry_slow`.
            unsafe { &*(slot as *const AtomicUsize) }.load(Relaxed) != arch::trampoline()
        } else {
            // 0 is an entry that an interrupted hook is writing, the sentinel is above everything.
            slot >= stack_pointer && slot < parent_loc
        };
        if !dead {
            return;
        }
        record_exit(block, top);
        pop(block);
    }
}

/// A function returned to the trampoline and the fast path could not record it. Returns where it returns to.
pub(crate) extern "C" fn exit_slow(parent_loc: usize) -> usize {
    let Some((block, entry)) = thread::existing_block().and_then(|block| Some((block, find(block, parent_loc)?)))
    else {
        return find_elsewhere(parent_loc).unwrap_or_else(|| arch::abort());
    };
    // Frames above it on the same stack ended without returning.
    while !core::ptr::eq(top_entry(block), entry) {
        let top = top_entry(block);
        let slot = top.parent_loc.load(Relaxed);
        if slot >= parent_loc || parent_loc.wrapping_sub(slot) > STACK_SPAN_BYTES {
            return take_from_middle(block, entry);
        }
        record_exit(block, top);
        pop(block);
    }
    record_exit(block, entry);
    let parent_ip = entry.parent_ip.load(Relaxed);
    pop(block);
    parent_ip
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

fn record_exit(block: &ThreadBlock, entry: &ReturnEntry) {
    if !buffer::record(block, entry.exit_word.load(Relaxed)) {
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

/// Takes out an entry that has live entries of another stack above it, and records its exit.
#[cold]
fn take_from_middle(block: &ThreadBlock, entry: &ReturnEntry) -> usize {
    let parent_ip = entry.parent_ip.load(Relaxed);
    record_exit(block, entry);
    let top: *const ReturnEntry = top_entry(block);
    let mut to: *const ReturnEntry = entry;
    while to < top {
        let from = to.wrapping_add(1);
        // SAFETY: both lie between `base` and `sp`.
        let (to_entry, from_entry) = unsafe { (&*to, &*from) };
        to_entry.parent_loc.store(0, Relaxed);
        to_entry.parent_ip.store(from_entry.parent_ip.load(Relaxed), Relaxed);
        to_entry.exit_word.store(from_entry.exit_word.load(Relaxed), Relaxed);
        compiler_fence(SeqCst);
        to_entry.parent_loc.store(from_entry.parent_loc.load(Relaxed), Relaxed);
        to = from;
    }
    pop(block);
    parent_ip
}
