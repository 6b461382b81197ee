//! The end of a thread, and of all threads but one in the child of a fork.

use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::abi::ThreadBlock;
#[cfg(not(target_os = "none"))]
use crate::abi::{InitArgs, init};
use crate::control_block::CONTROL;
use crate::{arch, buffer, exit, thread};
#[cfg(not(target_os = "none"))]
use crate::{control, moves};

/// Rounds of destructors at a thread's end (`PTHREAD_DESTRUCTOR_ITERATIONS`). The block is given back in the last one,
/// so the destructors of other libraries are still traced.
const EXIT_ROUNDS: u32 = 4;

/// A thread ends: the destructor of the key set by `thread_start` calls this. Records the exits of functions that will
/// not return any more, and lets the chunk and the block go.
///
/// # Safety
///
/// `block` is the block of the calling thread, as `thread_start` got it; null stands for it too.
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_backend_thread_exit(block: *mut ThreadBlock) {
    let own = arch::thread_block();
    let pointer = if block.is_null() { own } else { block };
    if pointer.is_null() || pointer == arch::UNTRACED || pointer != own {
        return;
    }
    // SAFETY: by this function's contract.
    let block = unsafe { &*pointer };
    let again = !CONTROL.thread_start.load(Relaxed).is_null();
    if again && block.exit_rounds.fetch_add(1, Relaxed).wrapping_add(1) < EXIT_ROUNDS {
        thread::call_thread_start(pointer);
        return;
    }
    // SAFETY: its own; from here on nothing on this thread uses the block.
    unsafe { end(pointer) };
}

/// Records the exits of a thread's open functions, and lets its chunk and its block go.
///
/// # Safety
///
/// It is a traced thread's block: the calling thread's, or that of one that is gone.
pub(crate) unsafe fn end(pointer: *mut ThreadBlock) {
    // SAFETY: by this function's contract.
    let block = unsafe { &*pointer };
    let is_empty = exit::close_all(block);
    if arch::thread_block() == pointer {
        arch::set_thread_block(arch::UNTRACED);
    }
    // Entries without room in the table of left frames keep their block, and are found there.
    block.limit.store(if is_empty { ptr::null_mut() } else { block.base.load(Relaxed) }, Release);
    // The place of the next record is in the cursor or, if it is 0, was put aside.
    let parked = block.parked_cursor.swap(0, Relaxed);
    let cursor = match block.cursor.swap(0, Relaxed) {
        0 => parked,
        cursor => cursor,
    };
    buffer::leave(block, cursor);
    if is_empty {
        thread::release(pointer);
    }
}

/// This process is the child of a fork, and the calling thread its only one: forgets the others, and all earlier
/// records. Functions open on this thread stay so. `args`, if not null, names another buffer for this process, as for
/// init: the one before is its parent's. Returns an [`init`](crate::abi::init) status.
///
/// # Safety
///
/// As of `rftrace_backend_init_v10`. The memory of the buffer before is no longer the parent's: a hook interrupted by
/// this fork may write there.
#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_backend_forked(args: *const InitArgs) -> u32 {
    let own = thread::existing_block();
    for block in thread::blocks() {
        let pointer = ptr::from_ref(block).cast_mut();
        let in_use = !block.limit.load(Relaxed).is_null();
        if in_use && !own.is_some_and(|own| ptr::eq(own, block)) {
            block.cursor.store(0, Relaxed);
            block.parked_cursor.store(0, Relaxed);
            block.kept_index.store(0, Relaxed);
            if moves::forget_all(block) {
                block.limit.store(ptr::null_mut(), Relaxed);
                thread::release(pointer);
            }
        }
    }
    buffer::forget_takers();
    if !args.is_null() {
        // SAFETY: by this function's contract.
        return unsafe { control::rftrace_backend_init_v10(args) };
    }
    buffer::keep_only_chunk_of(own);
    control::begin_cycle();
    init::OK
}
