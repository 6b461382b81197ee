//! Filters: the actions for functions, the state passed on from an open function to its calls, and the hash table of
//! actions. Each frontend decides on the actions itself.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use super::record::{ADDRESS_SHIFT, kind};
use super::thread::RETURN_STACK_ENTRIES;
use super::values::{Noticed, ValueTable};

/// The bits of an exit word between the kind and the address: the effect of an open function on the calls in it, while
/// recording is filtered. They have no meaning for the record.
pub mod state {
    /// The function is not recorded, neither its entry nor its exit.
    pub const HIDDEN: u64 = 1 << 3;
    /// No call within the function is recorded.
    pub const OUT: u64 = 1 << 4;
    /// The function is one of those chosen by [`action::INTO`](super::action::INTO), or runs within one.
    pub const IN: u64 = 1 << 5;
    /// The unit of the depth: one for each recorded function around a call, and for the function itself.
    pub const DEPTH_ONE: u64 = 1 << 6;
    /// The bits of the depth.
    pub const DEPTH_MASK: u64 = 0xffc0;
    /// All of these bits.
    pub const MASK: u64 = 0xfff8;
}

/// The actions for functions while recording is filtered.
pub mod action {
    /// The function is not recorded; its calls may be.
    pub const SKIP: u8 = 1;
    /// The function is recorded.
    pub const RECORD: u8 = 2;
    /// The function's entry is recorded, its return is not hooked.
    pub const POINT: u8 = 3;
    /// The function and its calls are recorded. With [`FilterControl::wanted`](super::FilterControl::wanted) no other
    /// function is.
    pub const INTO: u8 = 4;
    /// Neither the function nor its calls are recorded.
    pub const NOT_INTO: u8 = 5;
    /// Like RECORD, with the values in [`FilterControl::values`](super::FilterControl::values).
    pub const RECORD_VALUES: u8 = 6;
    /// Like INTO, with values.
    pub const INTO_VALUES: u8 = 7;
}

/// The filter. The frontend writes it, also while threads are recording: a call at that moment may be filtered by parts
/// of the old filter and parts of the new one.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct FilterControl {
    /// Not 0: recording is filtered. `rftrace_backend_filter` sets it.
    pub active: AtomicU8,
    /// The [`action`] for functions outside `sites`.
    pub default_action: AtomicU8,
    /// A hash table of functions, see [`site_slot`]; null without one. A slot is `child_ip << 16 | action`, 0 if it is
    /// free; at least one slot is free. The table stays mapped for ever.
    pub sites: AtomicPtr<AtomicU64>,
    /// The number of slots, a power of two, minus 1.
    pub sites_mask: AtomicUsize,
    /// The decisive bits of [`state`] for calls within a function: OUT; also IN if the filter records only calls within
    /// chosen functions.
    pub decisive: AtomicU32,
    /// The required value of these bits: 0 or IN.
    pub wanted: AtomicU32,
    /// The maximum number of recorded functions around a recorded call, times [`state::DEPTH_ONE`].
    /// [`state::DEPTH_MASK`] stands for no limit.
    pub depth_limit: AtomicU32,
    /// The minimum duration of calls in ticks; 0 for none. The tracer removes shorter calls that contain no record.
    pub min_ticks: AtomicU64,
    /// The place for notices of [watches](super::Watch); null without one.
    pub noticed: AtomicPtr<Noticed>,
    /// The table of recorded values and watches; null without one. The tracer reads it for calls with
    /// [`action::RECORD_VALUES`] and [`action::INTO_VALUES`].
    pub values: AtomicPtr<ValueTable>,
    /// Not 0 if a system call of the tracer may kill the program (seccomp). The trace then shows values by their
    /// address if only a system call can read them.
    pub confined: AtomicU8,
    /// The value of `depth_limit` while recording is not [`paused`](Self::paused).
    pub depth: AtomicU32,
    /// Not 0: new calls are not recorded until a watch with [`watch::ON`](super::watch::ON); `depth_limit` is 0
    /// meanwhile.
    pub paused: AtomicU8,
}

impl FilterControl {
    /// Creates a filter that lets every call pass.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            active: AtomicU8::new(0),
            default_action: AtomicU8::new(action::RECORD),
            sites: AtomicPtr::new(ptr::null_mut()),
            sites_mask: AtomicUsize::new(0),
            decisive: AtomicU32::new(state::OUT as u32),
            wanted: AtomicU32::new(0),
            depth_limit: AtomicU32::new(state::DEPTH_MASK as u32),
            depth: AtomicU32::new(state::DEPTH_MASK as u32),
            paused: AtomicU8::new(0),
            min_ticks: AtomicU64::new(0),
            values: AtomicPtr::new(ptr::null_mut()),
            noticed: AtomicPtr::new(ptr::null_mut()),
            confined: AtomicU8::new(0),
        }
    }
}

impl Default for FilterControl {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the slot of [`FilterControl::sites`] at which to start the search for a function. The function is in this
/// slot or in a following one before the next free slot. The first slot follows the last one.
#[must_use]
pub const fn site_slot(child_ip: usize, mask: usize) -> usize {
    (child_ip.wrapping_mul(SITE_FACTOR) >> SITE_SHIFT) & mask
}

/// The factor that spreads addresses over the slots. It fits into a signed 32-bit constant.
pub const SITE_FACTOR: usize = 0x3c6e_f372;
/// The number of unused low bits of the product.
pub const SITE_SHIFT: u32 = 20;

// The depth, as a number, goes up to the last level.
const _: () = assert!(RETURN_STACK_ENTRIES as u64 * state::DEPTH_ONE <= state::DEPTH_MASK);
const _: () = assert!(state::MASK | kind::MASK | kind::LEFT == (1 << ADDRESS_SHIFT) - 1);
const _: () = assert!(SITE_FACTOR <= i32::MAX as usize);
