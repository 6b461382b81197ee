//! The slow paths of the hooks: whatever the assembly does not do itself.
//!
//! They do the whole work of their hook, so that it never has to be tried again.
//!
//! A return stack is in line with its thread as long as calls and returns are nested on one stack. When a hook finds
//! that they were not, [`settle`] and [`leave_above`] bring it in line again. What they go by may be a guess; a wrong one
//! costs a wrong line in the trace, never a wrong return, because no entry is given up before its frame has returned,
//! was unwound, or had its slot used by another call.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicUsize, compiler_fence};
use core::{iter, ptr};

use crate::abi::{ADDRESS_SHIFT, GONE, ReturnEntry, ThreadBlock, action, kind, state};
use crate::arch;
use crate::buffer;
use crate::control::CONTROL;
use crate::filter;
use crate::left;
use crate::thread;

/// A call whose slot lies at most this far below the innermost one is taken to be nested in it on the same stack, without
/// a further look. Larger frames and other stacks take the slow path.
pub(crate) const MAX_FRAME_BYTES: usize = 16 * 1024;

/// A function was entered and the fast path could not record it.
///
/// `parent_loc` is where its return address should be, `child_ip` lies in it, `stack_pointer` is its rsp; the others are
/// registers that tell of its frame, see [`arch::slots`].
pub(crate) extern "C" fn entry_slow(
    parent_loc: usize,
    child_ip: usize,
    stack_pointer: usize,
    frame_pointer: usize,
    static_chain: usize,
) {
    if CONTROL.enabled.load(Relaxed) == 0 {
        return;
    }
    let action = filter::action(child_ip);
    if action == action::SKIP {
        return;
    }
    let Some(block) = thread::current_block() else {
        return;
    };
    let entry_word = (child_ip as u64) << ADDRESS_SHIFT;
    if parent_loc < stack_pointer || !parent_loc.is_multiple_of(align_of::<usize>()) {
        // No frame pointer, so its return is not seen.
        record_point(block, action, entry_word);
        return;
    }
    let interrupted = arch::interrupted(parent_loc, child_ip, top_entry(block).parent_loc.load(Relaxed));
    let hook = match interrupted {
        None => Hook::Return,
        Some(arch::Interrupted::Hookable(stack_pointer)) => Hook::Interrupt { stack_pointer },
        Some(arch::Interrupted::Untouchable) => {
            record_point(block, action, entry_word);
            return;
        }
    };
    let (parent_loc, caller_loc) = arch::slots(parent_loc, child_ip, frame_pointer, static_chain);
    if set_busy(block, parent_loc) {
        settle(block, parent_loc, stack_pointer, caller_loc);
    }
    if let Some(state) = filter::state(action, top_entry(block)) {
        if action == action::POINT {
            buffer::record(block, entry_word | kind::POINT);
        } else {
            push(block, parent_loc, entry_word, state, hook);
        }
    }
    clear_busy(block, parent_loc);
}

/// Records a function as a call that takes no time.
fn record_point(block: &ThreadBlock, action: u8, entry_word: u64) {
    if filter::state(action, top_entry(block)).is_some_and(|state| state & state::HIDDEN == 0) {
        buffer::record(block, entry_word | kind::POINT);
    }
}

/// How a function returns.
#[derive(Clone, Copy)]
enum Hook {
    Return,
    /// It has interrupted code that had this stack pointer.
    Interrupt {
        stack_pointer: usize,
    },
}

impl Hook {
    /// What the function is to return to.
    fn trampoline(self) -> usize {
        match self {
            Self::Return => arch::trampoline(),
            Self::Interrupt { .. } => arch::interrupt_trampoline(),
        }
    }

    /// What tells its entry from others.
    fn stamp(self, parent_loc: usize, now: u64) -> u64 {
        match self {
            Self::Return => now,
            Self::Interrupt { stack_pointer } => {
                let had_interrupts = arch::keep_interrupts_off(parent_loc);
                interrupt_stamp(stack_pointer) & !NO_INTERRUPTS | if had_interrupts { 0 } else { NO_INTERRUPTS }
            }
        }
    }
}

/// In an interrupt handler's stamp: the interrupted code had interrupts off. No part of an address: its upper bits are alike.
const NO_INTERRUPTS: u64 = 1 << 62;

/// The stamp of an interrupt handler's entry: younger than any time, and found by the interrupted stack pointer. With
/// [`NO_INTERRUPTS`] set, for comparing.
fn interrupt_stamp(stack_pointer: usize) -> u64 {
    stack_pointer as u64 | 1 << 63 | NO_INTERRUPTS
}

/// Records the entry of a function, and hooks its return. One that is [`state::HIDDEN`] is only hooked.
fn push(block: &ThreadBlock, parent_loc: usize, entry_word: u64, state: u64, hook: Hook) {
    let entry = block.sp.load(Relaxed);
    let is_hidden = state & state::HIDDEN != 0;
    if entry >= block.limit.load(Relaxed) {
        if !is_hidden {
            buffer::record_lost_call(block);
        }
        return;
    }
    let place = if is_hidden { None } else { buffer::reserve(block) };
    if place.is_none() && !is_hidden {
        return;
    }
    if entry == block.base.load(Relaxed) {
        // Where the sentinel seems to lie decides which outermost calls the fast path takes: those around this one. The
        // address is odd, so that it is no slot's.
        top_entry(block).parent_loc.store(parent_loc.wrapping_add(MAX_FRAME_BYTES / 2) | 1, Relaxed);
    }
    // SAFETY: the entry lies in this thread's stack, below its limit.
    let new = unsafe { &*entry };
    // The same order as in the assembly: reserve the entry, write it, publish it, hook. As soon as it is reserved it counts
    // as open, or not.
    new.exit_word.store(state & state::HIDDEN, Relaxed);
    compiler_fence(SeqCst);
    block.sp.store(entry.wrapping_add(1), Relaxed);
    compiler_fence(SeqCst);
    let now = arch::ticks();
    if let Some(place) = place {
        place.write(now, entry_word | kind::ENTRY);
    }
    let slot = running_slot(parent_loc);
    new.entered.store(hook.stamp(parent_loc, now), Relaxed);
    new.exit_word.store(entry_word | state | kind::EXIT, Relaxed);
    new.parent_ip.store(slot.load(Relaxed), Relaxed);
    new.parent_loc.store(parent_loc, Release);
    compiler_fence(SeqCst);
    slot.store(hook.trampoline(), Relaxed);
}

/// An interrupt handler has returned: records its exit. Returns where the interrupted code goes on, whose stack pointer is
/// given; `flags` become its flags.
#[allow(dead_code, reason = "nobody interrupts where there is an OS")]
pub(crate) extern "C" fn interrupt_exit(stack_pointer: usize, flags: &AtomicUsize) -> usize {
    let stamp = interrupt_stamp(stack_pointer);
    let found = thread::existing_block().and_then(|block| {
        let found = |entry: &&ReturnEntry| entry.entered.load(Relaxed) | NO_INTERRUPTS == stamp && !has_slot(entry, 0);
        Some((block, frames(block).find(found)?))
    });
    let (parent_ip, entered) = match found {
        Some((block, entry)) => {
            let (parent_ip, entered) = (entry.parent_ip.load(Relaxed), entry.entered.load(Relaxed));
            let place = stack_pointer & !(align_of::<usize>() - 1);
            set_busy(block, place);
            remove(block, entry);
            clear_busy(block, place);
            (parent_ip, entered)
        }
        None => {
            // It was left: by another handler on a stack near its own, or its thread's block served others meanwhile.
            let left = left::find(|entered| entered | NO_INTERRUPTS == stamp);
            let parent_loc = left.map_or_else(|| arch::slot_below(stack_pointer), |left| left.parent_loc);
            let parent_ip = exit_find(parent_loc);
            let entered = look_up(parent_loc, |_| true).entered;
            exit_done(parent_loc);
            (parent_ip, entered)
        }
    };
    if entered & NO_INTERRUPTS == 0 {
        arch::let_interrupts_in(flags);
    }
    parent_ip
}

/// Where the function returns to that has just returned to the trampoline. Changes nothing: as long as the address is
/// only in the tracer's registers, unwinders still find the entry.
pub(crate) extern "C" fn exit_find(parent_loc: usize) -> usize {
    if let Some(block) = thread::existing_block() {
        set_busy(block, parent_loc);
    }
    look_up(parent_loc, |_| true).parent_ip
}

/// Records the exit of the function that [`exit_find`] was asked about, and takes its entry away.
pub(crate) extern "C" fn exit_done(parent_loc: usize) {
    let Some(block) = thread::existing_block() else {
        steal(None, parent_loc);
        return forget_left(parent_loc);
    };
    if !look_up(parent_loc, |_| true).is_own {
        // The frame was left, or entered on another thread. What is here with its slot is dead.
        while let Some(dead) = find(block, parent_loc) {
            remove(block, dead);
        }
        steal(Some(block), parent_loc);
        bring_back(block, parent_loc);
    }
    match find(block, parent_loc) {
        Some(entry) => remove(block, entry),
        None => forget_left(parent_loc),
    }
    clear_busy(block, parent_loc);
}

/// Where the first of the frames would have returned to that an exception leaves by `parent_loc`: one, or a chain of tail
/// calls. Changes nothing.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) extern "C" fn unwound_find(parent_loc: usize) -> usize {
    if let Some(block) = thread::existing_block() {
        set_busy(block, parent_loc);
    }
    look_up(parent_loc, |parent_ip| !arch::is_trampoline(parent_ip)).parent_ip
}

/// Records the exits of these frames and takes their entries away.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) extern "C" fn unwound_done(parent_loc: usize) {
    loop {
        let parent_ip = exit_find(parent_loc);
        exit_done(parent_loc);
        if !arch::is_trampoline(parent_ip) {
            return;
        }
    }
}

/// The thread ends: records the exits of all functions that are open in it, and moves their entries to the table of left
/// frames: those on other stacks may go on elsewhere. Returns whether it had room for all; the rest stays.
pub(crate) fn close_all(block: &ThreadBlock) -> bool {
    // Signal handlers from here on are nested.
    block.busy.store(usize::MAX, Relaxed);
    compiler_fence(SeqCst);
    leave_above(block, sentinel(block))
}

/// The same for a thread that is not there any more; nothing is recorded.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) fn forget_all(block: &ThreadBlock) -> bool {
    while move_top_to_table(block) {}
    frames(block).next().is_none()
}

/// Notes that a slow path is at work for the function with this slot. Returns false in a signal handler that has
/// interrupted one: its calls and returns are nested, whatever the entries below look like.
fn set_busy(block: &ThreadBlock, parent_loc: usize) -> bool {
    let busy = block.busy.load(Relaxed);
    // With its slot at or above that of the other, this is no handler: one has jumped out of that slow path.
    if busy != 0 && !is_near(busy, parent_loc) {
        return false;
    }
    block.busy.store(parent_loc, Relaxed);
    compiler_fence(SeqCst);
    true
}

/// The slow path for this slot has ended, or was a signal handler's.
fn clear_busy(block: &ThreadBlock, parent_loc: usize) {
    compiler_fence(SeqCst);
    if block.busy.load(Relaxed) == parent_loc {
        block.busy.store(0, Relaxed);
    }
}

/// Brings the return stack in line with a call whose slot is `parent_loc`, if it is not simply nested in the innermost
/// open function. `stack_pointer` is the rsp of the called function, `caller_loc` the slot that its caller's frame
/// pointer tells of, which may be anything.
fn settle(block: &ThreadBlock, parent_loc: usize, stack_pointer: usize, caller_loc: usize) {
    while let Some(top) = frames(block).next()
        && has_slot(top, GONE)
    {
        record_exit(block, top);
        pop(block, top);
    }
    let top = top_entry(block);
    let is_empty = ptr::eq(top, sentinel(block));
    let top_loc = top.parent_loc.load(Relaxed);
    if !is_empty && parent_loc < top_loc && is_near(parent_loc, top_loc) {
        return;
    }
    if !is_empty && top_loc == 0 {
        // A hook was interrupted when it had just reserved the entry, and this is the handler; unless that has jumped away:
        // then the call may have a slot where there were frames.
        let mut slots = frames(block).map(|entry| entry.parent_loc.load(Relaxed));
        if !slots.find(|&slot| slot != 0).is_some_and(|slot| is_near(slot, parent_loc)) {
            return;
        }
    }
    // In a tail call the slot holds the trampoline already, and belongs to the caller.
    let caller_loc = if is_hooked(parent_loc) { parent_loc } else { caller_loc };
    let is_near_caller = is_near(parent_loc, caller_loc);
    // A frame that is dead may have had the slot of one that is not traced.
    let mut caller = find(block, caller_loc).filter(|_| is_hooked(caller_loc));
    if caller.is_none() && is_near_caller {
        // One that was left, perhaps by another thread, may run again.
        if left::in_use() {
            steal(Some(block), caller_loc);
            if left::count(caller_loc) != 0 && is_hooked(caller_loc) && bring_back(block, caller_loc) {
                return;
            }
        }
        caller = nearest_above(block, caller_loc);
    }
    // Without frame pointer: what is open on this stack. If nothing is, all that is there may have been left.
    let caller = caller.or_else(|| nearest_above(block, parent_loc.wrapping_add(1)));
    if let Some(caller) = caller {
        let Some(inner) = frames(block).take_while(|&entry| !ptr::eq(entry, caller)).last() else {
            return;
        };
        let inner_loc = inner.parent_loc.load(Relaxed);
        // On another stack the frame pointer is still that of the function that was interrupted, or that made the stack.
        if is_near(parent_loc, caller.parent_loc.load(Relaxed))
            || is_near(inner_loc, parent_loc)
            || is_near(parent_loc, inner_loc)
        {
            leave_above(block, caller);
            return;
        }
    } else if left::nearest_above(parent_loc)
        .is_some_and(|slot| is_hooked(slot) && has_living_caller(block, slot) && bring_back(block, slot))
    {
        return;
    }
    leave_unknown(block, parent_loc, stack_pointer);
}

/// The open function with the nearest slot above this one. A frame pointer may be that of a function that is not traced,
/// or of one that realigns its frame: then it tells of the copy of the slot.
fn nearest_above(block: &ThreadBlock, parent_loc: usize) -> Option<&ReturnEntry> {
    let end = parent_loc.wrapping_add(MAX_FRAME_BYTES);
    let mut start = parent_loc;
    while start < end {
        let distance = |entry: &&ReturnEntry| entry.parent_loc.load(Relaxed).wrapping_sub(start);
        let within = |entry: &&ReturnEntry| distance(entry) < end.wrapping_sub(start);
        let nearest = frames(block).filter(within).min_by_key(distance)?;
        let slot = nearest.parent_loc.load(Relaxed);
        if is_hooked(slot) {
            return Some(nearest);
        }
        start = slot.wrapping_add(align_of::<usize>());
    }
    None
}

/// [`settle`] without knowing the caller: it keeps no frame pointer, or is not traced.
///
/// Entries are dead if their slots lie within the running frame, or are that of this call. Those further down, nearby, are
/// taken to have been left. Far away they are taken to be open: a signal handler on a stack of its own is called from
/// them.
#[cold]
fn leave_unknown(block: &ThreadBlock, parent_loc: usize, stack_pointer: usize) {
    let up_to_here = |entry: &&ReturnEntry| {
        let slot = entry.parent_loc.load(Relaxed);
        slot != 0 && slot <= parent_loc
    };
    let covered = |entry: &&ReturnEntry| entry.parent_loc.load(Relaxed) >= stack_pointer;
    if let Some(dead) = frames(block).take_while(up_to_here).filter(covered).last() {
        remove(block, dead);
    }
    let below = |entry: &&ReturnEntry| {
        let slot = entry.parent_loc.load(Relaxed);
        slot == GONE || slot != 0 && is_near(slot, stack_pointer)
    };
    if let Some(outermost) = frames(block).take_while(below).last() {
        leave_above(block, ptr::from_ref(outermost).wrapping_sub(1));
    }
}

/// The thread goes on in the frame of `outer`. Those above it are dead, or wait on other stacks: records their exits, and
/// moves them to the table of left frames. Returns whether it had room for all; the rest stays.
fn leave_above(block: &ThreadBlock, outer: *const ReturnEntry) -> bool {
    frames(block).take_while(|&entry| !ptr::eq(entry, outer)).for_each(|entry| record_exit(block, entry));
    while ptr::from_ref(top_entry(block)) > outer {
        if !move_top_to_table(block) {
            return false;
        }
    }
    true
}

/// Moves the innermost entry to the table of left frames. Fails if there is no room, or no entry.
fn move_top_to_table(block: &ThreadBlock) -> bool {
    let Some(top) = frames(block).next() else {
        return false;
    };
    let parent_loc = top.parent_loc.load(Relaxed);
    if parent_loc != 0 && parent_loc != GONE {
        let link = link(block, top, parent_loc);
        let Some(moving) = left::put(top, parent_loc, link) else {
            return false;
        };
        if moving.is_crowded && !is_tail_call(top) {
            left::purge_up_to_caller(parent_loc, link);
        }
        // Another thread may have taken it at the same time.
        match top.parent_loc.compare_exchange(parent_loc, 0, AcqRel, Relaxed) {
            Ok(_) => moving.confirm(),
            Err(_) => moving.withdraw(),
        }
    }
    pop(block, top);
    true
}

/// What tells of an entry's caller in the table of left frames.
fn link(block: &ThreadBlock, entry: &ReturnEntry, parent_loc: usize) -> usize {
    let outer = frames(block).skip_while(|&other| !ptr::eq(other, entry)).nth(1);
    let outer_loc = outer.map_or(0, |outer| outer.parent_loc.load(Relaxed));
    if is_near(parent_loc, outer_loc) { left::link_to(parent_loc, outer_loc) } else { 0 }
}

/// A frame that was left runs again: moves its entry back from the table, with those of its callers on that stack, and
/// records that they are entered. Returns whether it did; not while recording is off, or the return stack is full.
fn bring_back(block: &ThreadBlock, parent_loc: usize) -> bool {
    if CONTROL.enabled.load(Relaxed) == 0 {
        return false;
    }
    if find(block, parent_loc).is_some() {
        // The slot serves an open function: what the table has is dead.
        return false;
    }
    let first = block.sp.load(Relaxed);
    let end = first.wrapping_add(count_with_callers(block, parent_loc));
    if end == first || end > block.limit.load(Relaxed) {
        return false;
    }
    block.sp.store(end, Relaxed);
    compiler_fence(SeqCst);
    let mut place = end;
    let mut slot = Some(parent_loc);
    while let Some(left) = slot.and_then(left::innermost)
        && place > first
    {
        place = place.wrapping_sub(1);
        // SAFETY: one of the entries that were reserved just now.
        let entry = unsafe { &*place };
        entry.parent_ip.store(left.parent_ip, Relaxed);
        entry.exit_word.store(left.exit_word | kind::LEFT, Relaxed);
        entry.entered.store(left.entered, Relaxed);
        entry.parent_loc.store(left.parent_loc, Release);
        left.take();
        if !left.is_tail_call() {
            slot = left.caller_loc();
        }
    }
    while place > first {
        // Another thread was faster: the frames above were dead.
        place = place.wrapping_sub(1);
        // SAFETY: as above.
        let entry = unsafe { &*place };
        entry.exit_word.store(kind::LEFT, Relaxed);
        entry.parent_loc.store(GONE, Release);
    }
    while place < end {
        // SAFETY: as above.
        let entry = unsafe { &*place };
        place = place.wrapping_add(1);
        let exit_word = entry.exit_word.load(Relaxed);
        if has_slot(entry, GONE) {
            continue;
        }
        let entry_word = exit_word >> ADDRESS_SHIFT << ADDRESS_SHIFT | kind::ENTRY;
        if exit_word & state::HIDDEN == 0 && !buffer::record(block, entry_word) {
            buffer::park(block);
            break;
        }
        entry.exit_word.store(exit_word & !kind::LEFT, Relaxed);
    }
    true
}

/// Whether a left frame may run again: it is its stack's first, or its caller is open or was left too. What returned took the
/// frames that it had called with it, though their slots may still look hooked.
fn has_living_caller(block: &ThreadBlock, parent_loc: usize) -> bool {
    let mut slot = parent_loc;
    while let Some(caller_loc) = left::outermost(slot).and_then(|left| left.caller_loc()) {
        if find(block, caller_loc).is_some() {
            return true;
        }
        if left::count(caller_loc) == 0 {
            return false;
        }
        slot = caller_loc;
    }
    true
}

/// How many entries a left frame has in the table, together with its callers on that stack.
fn count_with_callers(block: &ThreadBlock, parent_loc: usize) -> usize {
    let mut n_entries = 0usize;
    let mut slot = Some(parent_loc);
    while let Some(parent_loc) = slot
        && find(block, parent_loc).is_none()
    {
        n_entries = n_entries.wrapping_add(left::count(parent_loc));
        slot = left::outermost(parent_loc).and_then(|left| left.caller_loc());
    }
    n_entries
}

/// Moves an entry with this slot, and those of its callers on that stack, from the return stack of another thread to the
/// table of left frames: the frame went on running here before that thread has noticed that it left it.
#[cold]
fn steal(own: Option<&ThreadBlock>, parent_loc: usize) {
    let entries = threads()
        .filter(|block| !is_same(own, block))
        .filter_map(|block| find(block, parent_loc).map(|entry| (block, entry, entry.entered.load(Relaxed))));
    let youngest = entries.max_by_key(|&(_, _, entered)| entered);
    let left = left::innermost(parent_loc).map_or(0, |left| left.entered);
    if let Some((block, found, _)) = youngest.filter(|&(_, _, entered)| entered > left) {
        let mut expected = parent_loc;
        for entry in frames(block).skip_while(|&entry| !ptr::eq(entry, found)) {
            let parent_loc = entry.parent_loc.load(Relaxed);
            if parent_loc < expected || !is_near(expected, parent_loc) {
                break;
            }
            expected = parent_loc;
            let Some(moving) = left::put(entry, parent_loc, link(block, entry, parent_loc)) else {
                break;
            };
            match entry.parent_loc.compare_exchange(parent_loc, GONE, AcqRel, Relaxed) {
                Ok(_) => moving.confirm(),
                Err(_) => moving.withdraw(),
            }
        }
    }
}

/// Takes the entry with this slot out of the table of left frames.
fn forget_left(parent_loc: usize) {
    if let Some(left) = left::innermost(parent_loc) {
        left.take();
    }
}

/// What [`look_up`] found.
struct Found {
    parent_ip: usize,
    entered: u64,
    /// It is on this thread's return stack.
    is_own: bool,
}

/// The youngest entry with a slot and a wanted return address: on this thread's return stack, on another's, or in the
/// table of left frames.
fn look_up(parent_loc: usize, is_wanted: impl Fn(usize) -> bool) -> Found {
    // It is missed only if its thread is just moving it within a return stack, for want of room in the table.
    (0..1000).find_map(|_| try_look_up(parent_loc, &is_wanted)).unwrap_or_else(|| arch::abort())
}

fn try_look_up(parent_loc: usize, is_wanted: impl Fn(usize) -> bool) -> Option<Found> {
    let own = thread::existing_block();
    let in_stack = |block, is_own| {
        let entry =
            frames(block).find(|entry| has_slot(entry, parent_loc) && is_wanted(entry.parent_ip.load(Relaxed)))?;
        let (parent_ip, entered) = (entry.parent_ip.load(Acquire), entry.entered.load(Acquire));
        // Its thread may have moved it to the table meanwhile.
        has_slot(entry, parent_loc).then_some(Found { parent_ip, entered, is_own })
    };
    let found = match own.and_then(|block| in_stack(block, true)) {
        Some(found) if !left::in_use() => return Some(found),
        found => found,
    };
    let elsewhere = threads().filter(|block| !is_same(own, block)).filter_map(|block| in_stack(block, false));
    // The table last: what leaves a stack while that is looked at is there.
    let in_table = [left::innermost(parent_loc), left::outermost(parent_loc)].into_iter().flatten();
    let in_table = in_table.filter(|left| is_wanted(left.parent_ip));
    let in_table = in_table.map(|left| Found { parent_ip: left.parent_ip, entered: left.entered, is_own: false });
    let found = found.into_iter().chain(elsewhere).max_by_key(|found| found.entered);
    found.into_iter().chain(in_table).max_by_key(|found| found.entered)
}

fn is_same(own: Option<&ThreadBlock>, block: &ThreadBlock) -> bool {
    own.is_some_and(|own| ptr::eq(own, block))
}

/// Takes an entry away whose function has ended, and records its exit. The thread goes on in its caller.
fn remove(block: &ThreadBlock, entry: &ReturnEntry) {
    if leave_above(block, entry) {
        record_exit(block, entry);
        pop(block, entry);
    } else {
        record_exit(block, entry);
        close_gap(block, entry);
        pop(block, top_entry(block));
    }
}

/// Records the exit of a function, unless that was done already.
fn record_exit(block: &ThreadBlock, entry: &ReturnEntry) {
    if has_slot(entry, 0) || entry.exit_word.load(Relaxed) & kind::LEFT != 0 {
        return;
    }
    if entry.exit_word.load(Relaxed) & state::HIDDEN != 0 {
        entry.exit_word.fetch_or(kind::LEFT, Relaxed);
        return;
    }
    // The place first: what is written before it, at the beginning of a chunk, counts the function as open.
    let place = buffer::reserve(block);
    // A signal handler that comes in between may leave the same frames; then the place stays empty.
    let word = entry.exit_word.fetch_or(kind::LEFT, Relaxed);
    match place {
        Some(place) if word & kind::LEFT == 0 => place.write(arch::ticks(), word),
        Some(_) => {}
        None => buffer::park(block),
    }
}

/// The open functions of a thread, innermost first.
fn frames(block: &ThreadBlock) -> impl Iterator<Item = &ReturnEntry> {
    let base = block.base.load(Relaxed);
    let mut entry = block.sp.load(Relaxed);
    iter::from_fn(move || {
        (entry > base).then(|| {
            entry = entry.wrapping_sub(1);
            // SAFETY: between `base` and `sp`.
            unsafe { &*entry }
        })
    })
}

/// The innermost entry; the sentinel if there is none.
fn top_entry(block: &ThreadBlock) -> &ReturnEntry {
    // SAFETY: `sp` is at least `base`, and below that lies the sentinel.
    unsafe { &*block.sp.load(Relaxed).wrapping_sub(1) }
}

fn sentinel(block: &ThreadBlock) -> *const ReturnEntry {
    block.base.load(Relaxed).wrapping_sub(1)
}

/// Takes away `top`, the innermost entry, unless a signal handler that came in between has done it.
fn pop(block: &ThreadBlock, top: &ReturnEntry) {
    let end = block.sp.load(Relaxed);
    let place = end.wrapping_sub(1);
    if ptr::eq(place, top) {
        top.parent_loc.store(0, Relaxed);
        compiler_fence(SeqCst);
        let _ = block.sp.compare_exchange(end, place, Relaxed, Relaxed);
    }
}

/// The innermost entry with this slot.
fn find(block: &ThreadBlock, parent_loc: usize) -> Option<&ReturnEntry> {
    frames(block).find(|entry| has_slot(entry, parent_loc))
}

fn has_slot(entry: &ReturnEntry, parent_loc: usize) -> bool {
    entry.parent_loc.load(Relaxed) == parent_loc
}

/// Whether the function was called by a jump at the end of another one, so that it returns to the trampoline.
fn is_tail_call(entry: &ReturnEntry) -> bool {
    arch::is_trampoline(entry.parent_ip.load(Relaxed))
}

/// Whether `inner` lies at or below `outer` by no more than a frame.
fn is_near(inner: usize, outer: usize) -> bool {
    outer.wrapping_sub(inner) <= MAX_FRAME_BYTES
}

/// All threads that are traced now.
fn threads() -> impl Iterator<Item = &'static ThreadBlock> {
    let mut next = CONTROL.threads.load(SeqCst);
    iter::from_fn(move || {
        // SAFETY: blocks on the list stay mapped for ever.
        let block = unsafe { next.as_ref() }?;
        next = block.next.load(Relaxed);
        Some(block)
    })
    .filter(|block| !block.limit.load(Relaxed).is_null())
}

/// Whether the function with this slot, whose frame is running or was left on this stack, will return to the trampoline.
fn is_hooked(parent_loc: usize) -> bool {
    let parent_ip = running_slot(parent_loc).load(Relaxed);
    arch::is_trampoline(parent_ip) || arch::is_interrupt_trampoline(parent_ip)
}

/// The slot of a frame that is running on this thread.
fn running_slot(parent_loc: usize) -> &'static AtomicUsize {
    // SAFETY: the frame of a running function has a return address there, which nobody but the function's return uses.
    unsafe { &*(parent_loc as *const AtomicUsize) }
}

/// Moves the entries above `entry`, which live on another stack, one down over it. The innermost is left twice.
#[cold]
fn close_gap(block: &ThreadBlock, entry: &ReturnEntry) {
    let end = block.sp.load(Relaxed);
    let mut to = block.base.load(Relaxed);
    while to < end && !ptr::eq(to, entry) {
        to = to.wrapping_add(1);
    }
    let mut from = to.wrapping_add(1);
    while from < end {
        // SAFETY: both lie between `base` and `sp`.
        let (to_entry, from_entry) = unsafe { (&*to, &*from) };
        to_entry.parent_loc.store(0, Relaxed);
        compiler_fence(SeqCst);
        to_entry.parent_ip.store(from_entry.parent_ip.load(Relaxed), Relaxed);
        to_entry.exit_word.store(from_entry.exit_word.load(Relaxed), Relaxed);
        to_entry.entered.store(from_entry.entered.load(Relaxed), Relaxed);
        compiler_fence(SeqCst);
        to_entry.parent_loc.store(from_entry.parent_loc.load(Relaxed), Relaxed);
        to = from;
        from = from.wrapping_add(1);
    }
}
