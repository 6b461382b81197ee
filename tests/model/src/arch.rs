//! In place of `staticlib/src/arch/x86_64/`.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::abi::{ADDRESS_SHIFT, Record, ReturnEntry, ThreadBlock, action, enabled, kind, state};
use crate::control_block::{CONTROL, SWITCH};
use crate::steer;
use crate::sync::atomic::{AtomicPtr, AtomicUsize};
use crate::{entry, exit, filter};

/// The address of the trampoline, which no code and no slot of the tests has.
const TRAMPOLINE: usize = 0x7a7a_7a7a_7a00;

/// A hook's data on the stack, below the stack pointer of the traced function: its return address and three registers.
const HOOK_BYTES: usize = 32;

/// The largest alignment of a frame, as in the assembly.
const MAX_REALIGN_BYTES: usize = 4096;

/// Set in the address of a function that realigns its stack: the return address above its frame pointer is a copy.
pub const REALIGNS: usize = 8;

/// As the real one.
pub(crate) const HAS_SLEDS: bool = true;

/// As the real one.
pub(crate) const UNTRACED: *mut ThreadBlock = std::ptr::without_provenance_mut(1);

static TICKS: AtomicU64 = AtomicU64::new(1);
/// True if threads that begin now have a shadow stack.
static SHADOW_STACK: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The blocks of the simulated threads that share this thread of the system.
    static BLOCKS: RefCell<Vec<*mut ThreadBlock>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// The first of the blocks that the simulated threads have in storage of their own, if they do.
    static LOCAL: Cell<Option<*mut ThreadBlock>> = const { Cell::new(None) };
}

/// A block, as the fast paths use it.
struct Block(*mut ThreadBlock);

impl Block {
    fn sp(&self) -> &AtomicPtr<ReturnEntry> {
        // SAFETY: every block has this field and stays where it is.
        unsafe { &(*self.0).sp }
    }

    fn limit(&self) -> &AtomicPtr<ReturnEntry> {
        // SAFETY: as above.
        unsafe { &(*self.0).limit }
    }

    fn cursor(&self) -> &AtomicUsize {
        // SAFETY: as above.
        unsafe { &(*self.0).cursor }
    }

    fn lost_record(&self) -> &AtomicUsize {
        // SAFETY: as above.
        unsafe { &(*self.0).lost_record }
    }

    fn reserve(&self) -> Option<&Record> {
        loop {
            // SAFETY: whoever gets here has a block of its own.
            let block = unsafe { &*self.0 };
            let cursor = block.cursor.load(Relaxed);
            if cursor & block.chunk_mask.load(Relaxed) == 0 {
                return None;
            }
            let next = cursor + size_of::<Record>();
            if block.cursor.compare_exchange(cursor, next, Relaxed, Relaxed).is_ok() {
                // SAFETY: the cursor points to a free record in a chunk of this thread.
                return Some(unsafe { &*(cursor as *const Record) });
            }
        }
    }
}

impl Block {
    /// Takes the record of an entry back if it is the newest one and its call was too short. Returns whether it did.
    fn take_back(&self, entry: &ReturnEntry) -> Option<bool> {
        let min_ticks = CONTROL.filter.min_ticks.load(Relaxed);
        let entered = entry.sequence.load(Relaxed);
        if min_ticks == 0 || ticks() - entered >= min_ticks {
            return Some(false);
        }
        // SAFETY: whoever gets here has a block of its own.
        let block = unsafe { &*self.0 };
        let cursor = block.cursor.load(Relaxed);
        if cursor == 0 {
            return None;
        }
        let newest = cursor - size_of::<Record>();
        // SAFETY: the newest record of this thread's chunk, or its header, which has no such values there.
        let record = unsafe { &*(newest as *const Record) };
        if record.tsc.load(Relaxed) != entered || block.late.load(Relaxed) != 0 {
            return Some(false);
        }
        block.late.store(cursor, Relaxed);
        let is_newest = block.cursor.load(Relaxed) == cursor && {
            let entry_word = entry.exit_word.load(Relaxed) >> ADDRESS_SHIFT << ADDRESS_SHIFT;
            record.word.load(Relaxed) == entry_word && mark_left(entry)
        };
        if !is_newest {
            if block.late.swap(0, Relaxed) != cursor {
                record.tsc.store(entry.sequence.load(Relaxed), Relaxed);
            }
            let is_recorded = entry.exit_word.load(Relaxed) & kind::LEFT != 0;
            return (!is_recorded).then_some(false);
        }
        record.tsc.store(0, Relaxed);
        block.late.store(0, Relaxed);
        if block.cursor.compare_exchange(cursor, newest, Relaxed, Relaxed).is_err() {
            let entered = entry.sequence.load(Relaxed);
            record.word.store(kind::NOTHING, Relaxed);
            record.tsc.store(entered, Relaxed);
        }
        Some(true)
    }
}

/// Notes that the exit of a function is recorded. Returns whether it was not.
fn mark_left(entry: &ReturnEntry) -> bool {
    entry.exit_word.fetch_or(kind::LEFT, Relaxed) & kind::LEFT == 0
}

/// The state at a call of the entry hook.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Where the function's return address is, as the hook takes it: above the frame pointer or, for `__fentry__`, above
    /// the hook's own return address.
    pub parent_loc: usize,
    /// An address in the function. With the bit [`REALIGNS`] its prologue is GCC's for a realigned frame.
    pub child_ip: usize,
    /// The function's rsp.
    pub stack_pointer: usize,
    /// Its rbp.
    pub frame_pointer: usize,
    /// Its r10.
    pub static_chain: usize,
}

impl Call {
    /// `mcount` is called when the function's frame pointer is set up, `__fentry__` before.
    fn is_mcount(&self) -> bool {
        self.frame_pointer.wrapping_add(8) == self.parent_loc
    }
}

/// The entry hook: `mcount` and `__fentry__`.
///
/// # Safety
///
/// `parent_loc` is the address of a living word that holds the return address of the function that runs, and
/// `stack_pointer` is not above it; unless it is below, or not aligned. Before the former stands the caller's frame
/// pointer, if `frame_pointer` points there.
pub unsafe fn entry(call: Call) {
    let fast = match SWITCH.state(Relaxed) {
        enabled::OFF => return,
        // SAFETY: by this function's contract.
        enabled::ON => unsafe { entry_fast(call) },
        // SAFETY: as above.
        _ => unsafe { entry_filtered(call) },
    };
    if fast.is_none() && thread_block() != UNTRACED {
        let Call { parent_loc, child_ip, stack_pointer, frame_pointer, static_chain } = call;
        // Functions with an entry branch return as others do here.
        let slow = if child_ip & 1 == 0 { entry::entry_slow } else { entry::entry_slow_at_start };
        slow(parent_loc, child_ip, stack_pointer, frame_pointer, static_chain, 0);
    }
}

/// True if there is no block: 0 or 1 stands in place of its address.
fn is_none(block: &Block) -> bool {
    block.0.addr() <= UNTRACED.addr()
}

/// # Safety
///
/// As for [`entry`].
unsafe fn entry_fast(call: Call) -> Option<()> {
    let block = Block(thread_block());
    if is_none(&block) {
        return None;
    }
    let entry = block.sp().load(Relaxed);
    if entry >= block.limit().load(Relaxed) {
        return count_lost_call(&block, entry, call.parent_loc);
    }
    // SAFETY: by this function's contract.
    if !unsafe { is_simple(call, entry) } {
        return None;
    }
    // SAFETY: as above.
    unsafe { record_and_hook(call, &block, entry, 0) }
}

/// True if a call is nested in the function of the entry below `entry`, or is a tail call in its place.
///
/// # Safety
///
/// As for [`entry`]; below `entry` is an entry or the sentinel.
unsafe fn is_simple(call: Call, entry: *mut ReturnEntry) -> bool {
    let Call { parent_loc, stack_pointer, static_chain, .. } = call;
    if parent_loc <= stack_pointer - HOOK_BYTES {
        return false;
    }
    if call.is_mcount() && static_chain.wrapping_sub(parent_loc) <= MAX_REALIGN_BYTES + 8 {
        return false;
    }
    // SAFETY: by this function's contract.
    let below = unsafe { &*entry.wrapping_sub(1) }.frame.load(Relaxed);
    if below.wrapping_sub(parent_loc).wrapping_sub(1) < MAX_FRAME_BYTES {
        return true;
    }
    // SAFETY: by this function's contract.
    below == parent_loc && is_trampoline(unsafe { &*(parent_loc as *const AtomicUsize) }.load(Relaxed))
}

/// # Safety
///
/// As for [`entry`]; `entry` is the place for the return-stack entry.
unsafe fn record_and_hook(call: Call, block: &Block, entry: *mut ReturnEntry, state: u64) -> Option<()> {
    let Call { parent_loc, child_ip, .. } = call;
    // SAFETY: by this function's contract.
    let slot = unsafe { &*(parent_loc as *const AtomicUsize) };
    let record = block.reserve()?;
    // SAFETY: the place for the entry.
    unsafe { &*entry }.exit_word.store(0, Relaxed);
    block.sp().store(entry.wrapping_add(1), Relaxed);
    let word = (child_ip as u64) << ADDRESS_SHIFT;
    record.word.store(word | kind::ENTRY, Relaxed);
    let now = ticks();
    record.tsc.store(now, Release);
    // SAFETY: below the limit, and reserved just now.
    let entry = unsafe { &*entry };
    entry.sequence.store(now, Relaxed);
    entry.exit_word.store(word | state | kind::EXIT, Relaxed);
    entry.parent_ip.store(slot.load(Relaxed), Relaxed);
    entry.frame.store(parent_loc, Relaxed);
    slot.store(TRAMPOLINE, Relaxed);
    Some(())
}

/// The entry hook while recording is filtered.
///
/// # Safety
///
/// As for [`entry`].
unsafe fn entry_filtered(call: Call) -> Option<()> {
    let block = Block(thread_block());
    if is_none(&block) {
        return None;
    }
    let action = filter::action(call.child_ip);
    let entry = block.sp().load(Relaxed);
    match action {
        action::SKIP => return Some(()),
        action::RECORD => {
            // SAFETY: by this function's contract.
            if entry >= block.limit().load(Relaxed) || !unsafe { is_simple(call, entry) } {
                return None;
            }
        }
        action::POINT => {}
        _ => return None,
    }
    // SAFETY: below `sp` is an entry or the sentinel.
    let outer = unsafe { &*entry.wrapping_sub(1) }.exit_word.load(Relaxed);
    let filter = &CONTROL.filter;
    if outer & u64::from(filter.decisive.load(Relaxed)) != u64::from(filter.wanted.load(Relaxed))
        || outer & state::DEPTH_MASK >= u64::from(filter.depth_limit.load(Relaxed))
    {
        return Some(());
    }
    if action == action::RECORD {
        let state = (outer & filter::PASSED_ON) + state::DEPTH_ONE;
        // SAFETY: by this function's contract.
        return unsafe { record_and_hook(call, &block, entry, state) };
    }
    let record = block.reserve()?;
    record.word.store((call.child_ip as u64) << ADDRESS_SHIFT | kind::POINT, Relaxed);
    record.tsc.store(ticks(), Release);
    Some(())
}

/// The return stack is full: one more for the LOST record, if that is the newest.
fn count_lost_call(block: &Block, entry: *const ReturnEntry, parent_loc: usize) -> Option<()> {
    // SAFETY: below `sp` is an entry or the sentinel.
    if unsafe { &*entry.wrapping_sub(1) }.frame.load(Relaxed) <= parent_loc {
        return None;
    }
    let newest = block.cursor().load(Relaxed).wrapping_sub(size_of::<Record>());
    if block.lost_record().load(Relaxed) != newest {
        return None;
    }
    // SAFETY: the address is that of a record in a chunk of this thread.
    let record = unsafe { &*(newest as *const Record) };
    if record.tsc.load(Relaxed) < CONTROL.cycle_start_tsc.load(Relaxed) {
        return None;
    }
    record.word.fetch_add(1 << ADDRESS_SHIFT, Relaxed);
    Some(())
}

/// As the real one, but that the prologue's bytes are a bit of its address.
pub(crate) fn frames(parent_loc: usize, child_ip: usize, frame_pointer: usize, static_chain: usize) -> (usize, usize) {
    if frame_pointer.wrapping_add(8) != parent_loc {
        return (parent_loc, frame_pointer.wrapping_add(8));
    }
    // SAFETY: by the contract of `entry`.
    let caller_frame = unsafe { *(frame_pointer as *const usize) };
    let true_loc = static_chain.wrapping_sub(8);
    let distance = true_loc.wrapping_sub(parent_loc);
    let is_copy = distance != 0 && distance <= MAX_REALIGN_BYTES && child_ip & REALIGNS != 0;
    (if is_copy { true_loc } else { parent_loc }, caller_frame.wrapping_add(8))
}

/// The return trampoline: a function that had T in its slot returned. Tells where it has to go on, which may be T again.
///
/// `frame_pointer` is rbp then: the caller's, if that has one.
pub fn exit(parent_loc: usize, frame_pointer: usize) -> usize {
    exit_fast(parent_loc).unwrap_or_else(|| {
        let parent_ip = exit::exit_find(parent_loc);
        exit::exit_done(parent_loc, 0, 0, frame_pointer);
        parent_ip
    })
}

fn exit_fast(parent_loc: usize) -> Option<usize> {
    let block = Block(thread_block());
    if is_none(&block) {
        return None;
    }
    let above = block.sp().load(Relaxed);
    // SAFETY: below `sp` is an entry or the sentinel.
    let entry = unsafe { &*above.wrapping_sub(1) };
    if entry.frame.load(Relaxed) != parent_loc {
        return None;
    }
    let is_recorded = match SWITCH.state(Relaxed) {
        enabled::OFF => return None,
        enabled::ON => true,
        _ => entry.exit_word.load(Relaxed) & state::HIDDEN == 0 && !block.take_back(entry)?,
    };
    if is_recorded {
        let record = block.reserve()?;
        let word = entry.exit_word.load(Relaxed);
        if !mark_left(entry) {
            return None;
        }
        record.word.store(word, Relaxed);
        record.tsc.store(ticks(), Release);
    }
    let parent_ip = entry.parent_ip.load(Relaxed);
    if entry.frame.load(Relaxed) != parent_loc {
        return None;
    }
    entry.frame.store(0, Relaxed);
    compiler_fence(SeqCst);
    block.sp().store(above.wrapping_sub(1), Relaxed);
    Some(parent_ip)
}

/// The landing pad: an exception leaves the frame that returns by `parent_loc`. Tells where it would have returned to.
#[must_use]
pub fn unwound(parent_loc: usize) -> usize {
    let parent_ip = exit::unwound_find(parent_loc);
    exit::unwound_done(parent_loc);
    parent_ip
}

/// The block of the thread that runs.
#[must_use]
pub fn thread_block() -> *mut ThreadBlock {
    BLOCKS.with_borrow(|blocks| blocks.get(steer::identity()).copied().unwrap_or(std::ptr::null_mut()))
}

pub(crate) fn set_thread_block(block: *mut ThreadBlock) {
    let thread = steer::identity();
    BLOCKS.with_borrow_mut(|blocks| {
        if blocks.len() <= thread {
            blocks.resize(thread + 1, std::ptr::null_mut());
        }
        blocks[thread] = block;
    });
}

pub(crate) fn set_first_thread_block(block: *mut ThreadBlock) -> bool {
    steer::point(0);
    let first = thread_block().is_null();
    if first {
        set_thread_block(block);
    }
    first
}

/// As the real one of targets without OS, if the [`Lab`](crate::lab::Lab) wants it.
pub(crate) fn local_block() -> Option<*mut ThreadBlock> {
    LOCAL.get().map(|first| first.wrapping_add(steer::identity()))
}

/// From now on each simulated thread has its block in storage of its own, these side by side.
pub(crate) fn set_local_blocks(first: *mut ThreadBlock) {
    LOCAL.set(Some(first));
}

/// From now on the threads have a shadow stack, or not.
pub fn set_shadow_stack(on: bool) {
    SHADOW_STACK.store(on, SeqCst);
}

pub(crate) fn has_shadow_stack() -> bool {
    SHADOW_STACK.load(SeqCst)
}

/// Another thread begins in the place of the one that runs, which has ended.
pub fn begin_thread() {
    set_thread_block(std::ptr::null_mut());
}

/// The threads of this thread of the system begin anew.
pub(crate) fn forget_threads() {
    LOCAL.set(None);
    BLOCKS.with_borrow_mut(Vec::clear);
}

/// A clock that shows another time to everyone who looks.
#[must_use]
pub fn ticks() -> u64 {
    TICKS.fetch_add(1, SeqCst)
}

/// Lets time go by.
pub fn spend(ticks: u64) {
    TICKS.fetch_add(ticks, SeqCst);
}

/// The address of the trampoline.
#[must_use]
pub fn trampoline() -> usize {
    TRAMPOLINE
}

/// The same for functions with an entry branch.
pub(crate) fn entry_trampoline() -> usize {
    TRAMPOLINE
}

pub(crate) fn entry_values_trampoline() -> usize {
    entry_trampoline()
}

/// True for a return address of the trampoline; there is only one here.
pub(crate) fn is_trampoline(address: usize) -> bool {
    address == TRAMPOLINE
}

#[path = "../../../staticlib/src/arch/x86_64_frames.rs"]
mod frames;
#[path = "../../../staticlib/src/arch/no_interrupts.rs"]
mod interrupts;
#[path = "../../../staticlib/src/arch/reach.rs"]
mod reach;
#[path = "../../../staticlib/src/arch/no_values.rs"]
pub(crate) mod values;
pub(crate) use frames::{
    Slot, caller_frame, frame_of_pointer, is_frame, may_be_hooked, may_return_to, reach, sequence, whole_address,
};
pub(crate) use interrupts::{
    Interrupted, frame_below, had_interrupts, interrupt_sequence, interrupt_trampoline, interrupted,
    is_interrupt_sequence, is_of_handler, keep_interrupts_off, let_interrupts_in,
};
pub(crate) use reach::{MAX_FRAME_BYTES, Reach};

/// # Safety
///
/// As for the real one: the memory is writable and nobody else uses it.
pub(crate) unsafe fn zero(start: *mut u8, bytes: usize) {
    // SAFETY: by this function's contract.
    unsafe { start.write_bytes(0, bytes) };
}

pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    work();
}

pub(crate) fn abort() -> ! {
    steer::fail("the tracer does not know where to return to".to_owned());
}
