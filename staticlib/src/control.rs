//! The functions that a frontend calls.

use core::mem::{align_of, size_of};
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;

use crate::abi::{self, Control, InitArgs, LEFT_BUCKET_BYTES, MIN_CHUNKS, Switch, ThreadBlock, enabled, init};
use crate::arch;
use crate::buffer::{self, Region};
use crate::control_block::{self, CONTROL, SWITCH};
use crate::thread;

/// Takes memory to record into. A later buffer replaces the one before, and the records in that one are given up.
/// Returns an [`init`] status.
///
/// # Safety
///
/// The memory in `args` is writable, all zero, used by nobody else and stays mapped as long as the program runs, also
/// when another buffer has taken its place. `thread_start`, if given, may be called on any thread.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rftrace_backend_init_v10(args: *const InitArgs) -> u32 {
    // SAFETY: by this function's contract `args` points to a live InitArgs.
    let args = unsafe { &*args };
    let start = args.buffer as usize;
    let chunk_bytes = abi::chunk_bytes(args.buffer_bytes);
    // The first chunk boundary at or above the start: the hooks find the end of a chunk by its alignment.
    let skipped = start.wrapping_neg() & (chunk_bytes - 1);
    let n_chunks = args.buffer_bytes.saturating_sub(skipped).checked_div(chunk_bytes).unwrap_or(0);
    if args.buffer.is_null() || n_chunks < MIN_CHUNKS {
        return init::BUFFER_TOO_SMALL;
    }
    if arch::has_shadow_stack() {
        return init::SHADOW_STACK;
    }
    if SWITCH.state(SeqCst) != enabled::OFF {
        return init::RECORDING;
    }
    let region = Region {
        chunks: args.buffer.wrapping_add(skipped),
        n_chunks,
        chunk_bytes,
        overwriting: args.overwriting != 0 && args.bank.is_null(),
        bank: args.bank,
    };
    buffer::replace(&region, || if is_first() { take_other_memory(args) } else { send_to_new_buffer() }, begin_cycle)
}

/// True if the tracer has had no buffer yet.
fn is_first() -> bool {
    CONTROL.chunk_bytes.load(Relaxed) == 0
}

/// Sends the hooks of all threads to their slow paths. They find the new buffer there.
fn send_to_new_buffer() -> u32 {
    if cfg!(target_os = "none") {
        return init::ALREADY_DONE;
    }
    thread::blocks().for_each(|block| block.chunk_mask.store(0, SeqCst));
    init::OK
}

/// Takes the memory for all but records.
fn take_other_memory(args: &InitArgs) -> u32 {
    let n_blocks = args.blocks_bytes / size_of::<ThreadBlock>();
    let in_tls = cfg!(target_os = "none");
    let aligned = args.blocks as usize & (align_of::<ThreadBlock>() - 1) == 0;
    // One block tells unwinders of the table of left frames.
    if !in_tls && (args.blocks.is_null() || n_blocks < 2 || !aligned) {
        return init::BAD_BLOCKS;
    }
    CONTROL.blocks.store(args.blocks.cast(), Relaxed);
    CONTROL.n_blocks.store(n_blocks, Relaxed);
    let n_left_buckets = args.left_bytes / LEFT_BUCKET_BYTES;
    if !args.left.is_null() && n_left_buckets > 0 {
        CONTROL.n_left_buckets.store(n_left_buckets, Relaxed);
        CONTROL.left.store(args.left.cast(), Release);
        thread::publish_left();
    }
    CONTROL.thread_start_key.store(args.thread_start_key, Relaxed);
    CONTROL.thread_start.store(args.thread_start.map_or(ptr::null_mut(), |f| f as *mut core::ffi::c_void), Relaxed);
    init::OK
}

/// The control block.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_control_v10() -> *const Control {
    &raw const CONTROL
}

/// The switch.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_switch() -> *const Switch {
    &raw const SWITCH
}

/// Starts recording. Does nothing before init, and when the buffer of this cycle is used up.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_enable() {
    let ready = !CONTROL.chunks.load(Acquire).is_null();
    if !ready || CONTROL.full.load(Relaxed) != 0 {
        return;
    }
    if CONTROL.cycle_start_tsc.load(Relaxed) == 0 {
        CONTROL.cycle_start_tsc.store(arch::ticks(), Relaxed);
    }
    let is_filtered = CONTROL.filter.active.load(Relaxed) != 0;
    let on = if is_filtered { enabled::FILTERED } else { enabled::ON };
    // Writes nothing if it is on already: hooks on all processors read it.
    change_switch(|now| {
        let next = now & !(enabled::MASK | enabled::STOPPING) | u32::from(on);
        (next != now).then_some(next)
    });
}

/// Changes [`Switch::enabled`](crate::abi::Switch::enabled) to `new` of its value; `None` leaves it. Returns true if it
/// was changed.
fn change_switch(new: impl Fn(u32) -> Option<u32>) -> bool {
    SWITCH.enabled.fetch_update(SeqCst, Relaxed, new).is_ok()
}

/// Filters recording from now on, as the control block says; with `active` 0 records everything.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_filter(active: u8) {
    CONTROL.filter.active.store(active, SeqCst);
    let (from, to) = if active != 0 { (enabled::ON, enabled::FILTERED) } else { (enabled::FILTERED, enabled::ON) };
    // Not if recording is off, or goes off at this moment.
    change_switch(|now| (now as u8 == from).then_some(now & !enabled::MASK | u32::from(to)));
}

/// The program may be killed for a system call of the tracer's: from now on it makes none.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_confine() {
    CONTROL.filter.confined.store(1, SeqCst);
}

/// Stops recording. Open functions still return properly.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_disable() {
    control_block::stop();
}

/// Marks recording as about to stop. Returns the argument for [`rftrace_backend_end_disable`].
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_begin_disable() -> u32 {
    let mark = |now: u32| now.wrapping_add(enabled::ONE_STOP) | enabled::STOPPING;
    let before = SWITCH.enabled.fetch_update(SeqCst, Relaxed, |now| Some(mark(now)));
    before.map_or_else(mark, mark)
}

/// Stops recording if nothing has changed since it was marked. Returns 0 if something has, or does at this moment.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_end_disable(marked: u32) -> u8 {
    control_block::note_stop();
    let off = marked & !(enabled::MASK | enabled::STOPPING);
    let is_off = SWITCH.enabled.compare_exchange(marked, off, SeqCst, Relaxed).is_ok();
    fence(SeqCst);
    u8::from(is_off)
}

/// Frees all full chunks and starts a new cycle. Chunks of threads stay theirs; their records are older than
/// `cycle_start_tsc`. To be called while recording is off.
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_reset() {
    begin_cycle();
}

/// Frees all full chunks. Records in the others are older than the new cycle.
pub(crate) fn begin_cycle() {
    buffer::free_full_chunks();
    CONTROL.full.store(0, Relaxed);
    CONTROL.n_lost_no_chunk.store(0, Relaxed);
    // 0: the next enable sets it.
    let on = SWITCH.state(Relaxed) != enabled::OFF;
    CONTROL.cycle_start_tsc.store(if on { arch::ticks() } else { 0 }, SeqCst);
}

// rustc links programs built with `-Z instrument-mcount`, and gcc those built with `-pg`, with gprof's start-up code.
// It calls these two functions of the C library, to start a SIGPROF timer and write `gmon.out`. Ours take their place.
#[cfg(target_os = "linux")]
mod gprof {
    /// gprof's start-up: nothing.
    #[unsafe(no_mangle)]
    extern "C" fn __monstartup(_low_pc: usize, _high_pc: usize) {}

    /// gprof's clean-up: nothing.
    #[unsafe(no_mangle)]
    extern "C" fn _mcleanup() {}
}
