//! Threads: their first call, their block.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::{iter, ptr};

#[cfg(not(target_os = "none"))]
use crate::abi::LEFT_BUCKET_BYTES;
use crate::abi::{ADDRESS_SHIFT, RETURN_STACK_ENTRIES, ReturnEntry, ThreadBlock, kind};
use crate::arch;
use crate::buffer;
use crate::control_block::CONTROL;

/// The block of this thread; on its first call, a new one. `None` if there is none to be had.
pub(crate) fn current_block() -> Option<&'static ThreadBlock> {
    if arch::thread_block().is_null() {
        start_thread();
    }
    existing_block()
}

/// The block of this thread, if it has one.
pub(crate) fn existing_block() -> Option<&'static ThreadBlock> {
    let block = arch::thread_block();
    // SAFETY: blocks stay mapped and are never written as a whole.
    (!block.is_null() && block != arch::UNTRACED).then(|| unsafe { &*block })
}

/// The blocks of all threads traced now.
pub(crate) fn traced() -> impl Iterator<Item = &'static ThreadBlock> {
    blocks().filter(|block| !block.limit.load(Relaxed).is_null())
}

#[cold]
fn start_thread() {
    // One with a shadow stack may not have its returns hooked.
    let Some(pointer) = (if arch::has_shadow_stack() { None } else { arch::local_block().or_else(allocate) }) else {
        CONTROL.n_untraced_threads.fetch_add(1, Relaxed);
        // Do not search again at every call.
        arch::set_first_thread_block(arch::UNTRACED);
        return;
    };
    // SAFETY: the block was just allocated for this thread, or lies in its own storage.
    let block = unsafe { &*pointer };
    let is_local = arch::local_block().is_some();
    if is_local {
        set_up_local(block);
    } else {
        set_up(block);
    }
    // From here on the hooks record, also in a handler. If a handler was faster, the thread has its block already.
    if arch::set_first_thread_block(pointer) {
        call_thread_start(pointer);
    } else if !is_local {
        block.limit.store(ptr::null_mut(), Relaxed);
        release(pointer);
    }
}

/// The place for a thread's outermost entry. The sentinel is the first of the block's stack.
fn base(block: &ThreadBlock) -> *mut ReturnEntry {
    (&raw const block.stack).cast::<ReturnEntry>().cast_mut().wrapping_add(1)
}

/// Makes an unused block ready for a thread.
fn set_up(block: &ThreadBlock) {
    let base = base(block);
    // SAFETY: the sentinel.
    unsafe { &*base.wrapping_sub(1) }.frame.store(usize::MAX, Relaxed);
    let fresh = block.base.load(Relaxed).is_null();
    block.chunk_mask.store(0, Relaxed);
    block.tid.store(CONTROL.next_tid.fetch_add(1, Relaxed), Relaxed);
    block.last_index.store(0, Relaxed);
    block.lost_record.store(0, Relaxed);
    block.late.store(0, Relaxed);
    block.busy.store(0, Relaxed);
    block.taking.store(0, Relaxed);
    block.resync.store(0, Relaxed);
    block.exit_rounds.store(0, Relaxed);
    block.core.store(0, Relaxed);
    block.excluded_tsc.store(0, Relaxed);
    block.base.store(base, Relaxed);
    block.sp.store(base, Relaxed);
    block.psp.store((&raw const block.sp).cast_mut(), Release);
    if fresh {
        publish(ptr::from_ref(block).cast_mut());
    }
    block.limit.store(base.wrapping_add(RETURN_STACK_ENTRIES), Release);
}

/// The same for a block in the thread's own storage, all zero at first. An interrupt handler in between does it too, in
/// the same block, and has calls there when this one goes on: so a word other than 0 stays.
fn set_up_local(block: &ThreadBlock) {
    let base = base(block);
    // SAFETY: the sentinel.
    let _ = unsafe { &*base.wrapping_sub(1) }.frame.compare_exchange(0, usize::MAX, Relaxed, Relaxed);
    if block.tid.load(Relaxed) == 0 {
        let _ = block.tid.compare_exchange(0, CONTROL.next_tid.fetch_add(1, Relaxed), Relaxed, Relaxed);
    }
    let _ = block.base.compare_exchange(ptr::null_mut(), base, Relaxed, Relaxed);
    let _ = block.sp.compare_exchange(ptr::null_mut(), base, Relaxed, Relaxed);
    let end = base.wrapping_add(RETURN_STACK_ENTRIES);
    let _ = block.limit.compare_exchange(ptr::null_mut(), end, Relaxed, Relaxed);
}

/// Makes the table of left frames known to unwinders, as the return stack of a block without thread.
#[cfg(not(target_os = "none"))]
pub(crate) fn publish_left() {
    let Some(pointer) = allocate() else {
        return;
    };
    let entries = CONTROL.left.load(Relaxed).cast::<ReturnEntry>();
    let n_entries = CONTROL.n_left_buckets.load(Relaxed).wrapping_mul(LEFT_BUCKET_BYTES / size_of::<ReturnEntry>());
    // SAFETY: the block was just allocated for this.
    let block = unsafe { &*pointer };
    block.base.store(entries, Relaxed);
    block.sp.store(entries.wrapping_add(n_entries), Relaxed);
    block.psp.store((&raw const block.sp).cast_mut(), Release);
    publish(pointer);
}

#[cfg(target_os = "none")]
pub(crate) fn publish_left() {}

/// Puts a block in front of the list for the trampoline's unwind information. It stays there for ever.
fn publish(pointer: *mut ThreadBlock) {
    // SAFETY: the block belongs to this thread.
    let block = unsafe { &*pointer };
    let mut head = CONTROL.threads.load(Relaxed);
    loop {
        block.next.store(head, Relaxed);
        match CONTROL.threads.compare_exchange_weak(head, pointer, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// All blocks ever used, on targets with a list of them.
pub(crate) fn blocks() -> impl Iterator<Item = &'static ThreadBlock> {
    let mut next = CONTROL.threads.load(SeqCst);
    iter::from_fn(move || {
        // SAFETY: blocks on the list stay mapped for ever.
        let block = unsafe { next.as_ref() }?;
        next = block.next.load(Relaxed);
        Some(block)
    })
}

pub(crate) fn call_thread_start(block: *mut ThreadBlock) {
    let function = CONTROL.thread_start.load(Relaxed);
    if function.is_null() {
        return;
    }
    // SAFETY: init stored a function of this type here.
    let thread_start: unsafe extern "C" fn(u32, *const c_void) -> c_int = unsafe { transmute(function) };
    let key = CONTROL.thread_start_key.load(Relaxed);
    arch::keeping_vectors(|| {
        // SAFETY: by the contract of init it may be called on any thread. Where it fails the block is not recycled.
        let _ = unsafe { thread_start(key, block.cast()) };
    });
}

/// Takes a block off the free list, or a new one. `None` if there are no more, or none at all.
fn allocate() -> Option<*mut ThreadBlock> {
    let blocks = CONTROL.blocks.load(Acquire);
    if blocks.is_null() {
        return None;
    }
    let free = &CONTROL.shared.free_block;
    let mut head = free.load(Acquire);
    while head as u32 != 0 {
        let block = blocks.wrapping_add((head as u32 as usize).wrapping_sub(1));
        // SAFETY: the free list holds numbers of blocks; they stay mapped even if another thread takes this one first.
        let next = unsafe { &(*block).next_free }.load(Relaxed);
        // The tag in the upper half changes every time: a list with the same first block but other ones behind it is
        // noticed.
        let new = ((head >> 32).wrapping_add(1) << 32) | u64::from(next);
        match free.compare_exchange_weak(head, new, AcqRel, Acquire) {
            Ok(_) => return Some(block),
            Err(now) => head = now,
        }
    }
    let n_blocks = CONTROL.n_blocks.load(Relaxed) as u32;
    let used = &CONTROL.shared.n_blocks_used;
    let number = used.fetch_update(Relaxed, Relaxed, |used| (used < n_blocks).then(|| used.wrapping_add(1)));
    Some(blocks.wrapping_add(number.ok()? as usize))
}

/// Puts a block on the free list, unless it lies in its thread's own storage.
pub(crate) fn release(block: *mut ThreadBlock) {
    if arch::local_block().is_some() {
        return;
    }
    let blocks = CONTROL.blocks.load(Relaxed) as usize;
    let number = (block as usize).wrapping_sub(blocks) / size_of::<ThreadBlock>();
    let free = &CONTROL.shared.free_block;
    let mut head = free.load(Relaxed);
    loop {
        // SAFETY: the block belongs to the caller until it is on the list.
        unsafe { &(*block).next_free }.store(head as u32, Relaxed);
        let new = ((head >> 32).wrapping_add(1) << 32) | (number as u64).wrapping_add(1);
        match free.compare_exchange_weak(head, new, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Stops recording on this thread; the result is for [`rftrace_backend_resume_thread`]. Functions open now must not
/// return before. For frontends: they may be instrumented like the program.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_suspend_thread() -> *mut ThreadBlock {
    let block = arch::thread_block();
    arch::set_thread_block(arch::UNTRACED);
    block
}

/// The block of this thread; null or 1 if it is not traced.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_thread() -> *const ThreadBlock {
    arch::thread_block()
}

/// The return address of hooked functions.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_trampoline() -> usize {
    arch::trampoline()
}

/// Goes on recording on this thread.
///
/// # Safety
///
/// `block` is the last result of [`rftrace_backend_suspend_thread`] on this thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_backend_resume_thread(block: *mut ThreadBlock) {
    arch::set_thread_block(block);
}

/// Excludes a thread from recording from now on, or with `is_excluded` 0 includes it again. Its open functions, and
/// their returns meanwhile, are treated as if recording were off. Any thread may call it.
///
/// # Safety
///
/// `block` is one of the tracer's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rftrace_backend_exclude_thread(block: *mut ThreadBlock, is_excluded: u8) {
    // SAFETY: blocks stay mapped and are never written as a whole.
    buffer::exclude(unsafe { &*block }, is_excluded != 0);
}

/// The calling thread runs on this core from now on: a kernel tells it at each switch of tasks.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_set_core(core: u32) {
    let Some(block) = current_block() else {
        return;
    };
    let core = core.wrapping_add(1);
    if block.core.swap(core, Relaxed) != core {
        buffer::record(block, u64::from(core.wrapping_sub(1)) << ADDRESS_SHIFT | kind::CORE | kind::RESYNC);
    }
}
