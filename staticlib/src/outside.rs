//! The tracer put into a process from outside: its arguments, and threads that have ended: nobody reports their end.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::abi::{InitArgs, ThreadBlock};
use crate::arch::{self, OUTSIDE};
use crate::control;
use crate::control_block::CONTROL;
use crate::thread;
use crate::thread_end;

/// Blocks to check for ended threads when another thread begins: more have ended than begun only for a while.
const LOOKS: usize = 4;

/// As `rftrace_backend_init_v10`, with the status in [`Outside::status`](crate::abi::Outside::status). Its
/// `thread_start` is this module's.
///
/// # Safety
///
/// As of `rftrace_backend_init_v10`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_outside_begin(args: *const InitArgs) {
    // SAFETY: by this function's contract.
    let args = unsafe { args.read() };
    let args = InitArgs { thread_start: Some(thread_start), ..args };
    // SAFETY: by this function's contract.
    let status = unsafe { control::rftrace_backend_init_v10(&raw const args) };
    // The table may be another one, without the threads known so far.
    for block in thread::traced() {
        tell(block.tid.load(Relaxed) as usize, arch::tid_of_block(ptr::from_ref(block).cast_mut()));
    }
    OUTSIDE.status.store(status.wrapping_add(1), Release);
}

/// A thread has got this block: tells the thread's id, and gives back the blocks of some ended ones.
unsafe extern "C" fn thread_start(_key: u32, block: *const c_void) -> c_int {
    // SAFETY: the tracer calls it with a block, which stays.
    let block = unsafe { &*block.cast::<ThreadBlock>() };
    tell(block.tid.load(Relaxed) as usize, arch::own_tid());
    for _ in 0..LOOKS {
        end_next();
    }
    0
}

fn tell(number: usize, tid: u32) {
    let table = OUTSIDE.table.load(Relaxed);
    if table.is_null() || number >= OUTSIDE.table_entries.load(Relaxed) {
        return;
    }
    let entry = table.wrapping_add(number.wrapping_mul(OUTSIDE.table_stride.load(Relaxed)));
    // SAFETY: by the word of the table's giver it has so many entries, with such a word first.
    unsafe { &*entry.cast::<AtomicU64>() }.store(tid.into(), Relaxed);
}

/// Gives the block of the next thread back, if the thread has ended.
fn end_next() {
    let blocks = CONTROL.blocks.load(Relaxed);
    let n_used = CONTROL.shared.n_blocks_used.load(Relaxed) as usize;
    let next = OUTSIDE.next_looked.fetch_add(1, Relaxed);
    let Some(place) = next.checked_rem(n_used) else { return };
    let block = blocks.wrapping_add(place);
    let tid = arch::tid_of_block(block);
    if tid != 0 && arch::has_ended(tid) && arch::forget_thread(tid, block) {
        // SAFETY: one of the blocks ever used; no thread has it now.
        unsafe { thread_end::end(block) };
    }
}
