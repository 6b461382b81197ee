//! State shared by all threads.

use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};

use crate::abi::{Control, ControlShared, FilterControl, PARTIAL_SLOTS, Switch, enabled};
use crate::arch;

/// The one switch.
pub(crate) static SWITCH: Switch = Switch { enabled: AtomicU32::new(0) };

/// The one control block.
pub(crate) static CONTROL: Control = Control {
    overwriting: AtomicU8::new(0),
    full: AtomicU8::new(0),
    chunk_bytes: AtomicUsize::new(0),
    n_chunks: AtomicUsize::new(0),
    chunks: AtomicPtr::new(ptr::null_mut()),
    threads: AtomicPtr::new(ptr::null_mut()),
    blocks: AtomicPtr::new(ptr::null_mut()),
    n_blocks: AtomicUsize::new(0),
    left: AtomicPtr::new(ptr::null_mut()),
    n_left_buckets: AtomicUsize::new(0),
    any_left: AtomicU8::new(0),
    thread_start: AtomicPtr::new(ptr::null_mut()),
    thread_start_key: AtomicU32::new(0),
    cycle_start_tsc: AtomicU64::new(0),
    stop_tsc: AtomicU64::new(0),
    next_tid: AtomicU32::new(1),
    n_untraced_threads: AtomicU32::new(0),
    n_lost_no_chunk: AtomicU64::new(0),
    bank: AtomicPtr::new(ptr::null_mut()),
    beat_given_up: AtomicU64::new(0),
    none_until_tsc: AtomicU64::new(0),
    filter: FilterControl::new(),
    shared: ControlShared {
        next_index: AtomicU64::new(0),
        end_index: AtomicU64::new(0),
        n_overwritten: AtomicU64::new(0),
        first_index: AtomicU64::new(0),
        n_takers: AtomicU32::new(0),
        left_stamp: AtomicU64::new(0),
        n_blocks_used: AtomicU32::new(0),
        free_block: AtomicU64::new(0),
        partial: [const { AtomicU64::new(0) }; PARTIAL_SLOTS],
    },
};

/// Stops recording. Open functions still return properly.
pub(crate) fn stop() {
    note_stop();
    SWITCH.enabled.fetch_and(!enabled::MASK, SeqCst);
    fence(SeqCst);
}

/// Notes the present time as the end of recording. First: threads read it as soon as they find tracing off.
pub(crate) fn note_stop() {
    if SWITCH.state(Relaxed) != enabled::OFF {
        CONTROL.stop_tsc.store(arch::ticks(), Relaxed);
    }
}
