//! Filters: actions of functions, the state that these pass on to their calls, and the table. How a
//! frontend comes to the actions is its own.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use super::record::{ADDRESS_SHIFT, kind};
use super::thread::RETURN_STACK_ENTRIES;
use super::values::{Noticed, ValueTable};

/// Bits of an exit word between the kind and the address: what an open function means for the calls in it, while recording
/// is filtered. They say nothing about the record.
pub mod state {
    /// The function is not recorded, neither its entry nor its exit.
    pub const HIDDEN: u64 = 1 << 3;
    /// Nothing that it calls is recorded.
    pub const OUT: u64 = 1 << 4;
    /// It is one of those chosen by [`action::INTO`](super::action::INTO), or was called from one.
    pub const IN: u64 = 1 << 5;
    /// Added for each recorded function around a call, its own included.
    pub const DEPTH_ONE: u64 = 1 << 6;
    /// The bits that hold this number.
    pub const DEPTH_MASK: u64 = 0xffc0;
    /// All of the above.
    pub const MASK: u64 = 0xfff8;
}

/// Actions for functions while recording is filtered.
pub mod action {
    /// It is not recorded; what it calls may be.
    pub const SKIP: u8 = 1;
    /// It is recorded.
    pub const RECORD: u8 = 2;
    /// Its entry is recorded, its return is not hooked.
    pub const POINT: u8 = 3;
    /// It is recorded, and so is what it calls; with [`FilterControl::wanted`](super::FilterControl::wanted) nothing else is.
    pub const INTO: u8 = 4;
    /// Neither it nor what it calls is recorded.
    pub const NOT_INTO: u8 = 5;
    /// As RECORD, with the values that [`FilterControl::values`](super::FilterControl::values) tells of.
    pub const RECORD_VALUES: u8 = 6;
    /// As INTO, with values.
    pub const INTO_VALUES: u8 = 7;
}

/// The filter. The frontend writes it, also while threads are recording: calls at that
/// moment may be filtered by some of the old and some of the new.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct FilterControl {
    /// Not 0: recording, when it is on, is filtered. Set by `rftrace_backend_filter`.
    pub active: AtomicU8,
    /// The [`action`] for functions that are not in `sites`.
    pub default_action: AtomicU8,
    /// A hash table of functions, see [`site_slot`]; null for none. A slot is `child_ip << 16 | action`, 0 if it is free,
    /// and not all are in use. It stays mapped for ever.
    pub sites: AtomicPtr<AtomicU64>,
    /// Number of slots, a power of two, minus 1.
    pub sites_mask: AtomicUsize,
    /// Bits of [`state`] that decide whether what a function calls is recorded: OUT, and IN if only what lies within chosen
    /// functions is.
    pub decisive: AtomicU32,
    /// The required value of these bits: 0 or IN.
    pub wanted: AtomicU32,
    /// Calls within so many recorded functions are not recorded, times [`state::DEPTH_ONE`]; [`state::DEPTH_MASK`] at the
    /// most, for no limit.
    pub depth_limit: AtomicU32,
    /// Calls that are over earlier, in ticks, and have no record in them are taken back. 0 for none.
    pub min_ticks: AtomicU64,
    /// Where it is told what [watches](super::Watch) find; null for nowhere.
    pub noticed: AtomicPtr<Noticed>,
    /// Which values are recorded, and what is watched; null for none. [`action::RECORD_VALUES`] and [`action::INTO_VALUES`] send a call there.
    pub values: AtomicPtr<ValueTable>,
    /// Not 0: the program may be killed for a system call of the tracer (seccomp). What cannot be read without is shown by its address.
    pub confined: AtomicU8,
    /// The value of `depth_limit` while nothing is [`paused`](Self::paused).
    pub depth: AtomicU32,
    /// Not 0: no call that begins is recorded, until one with [`watch::ON`](super::watch::ON) is; `depth_limit` is 0.
    pub paused: AtomicU8,
}

impl FilterControl {
    /// Lets everything pass.
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

/// Which slot of [`FilterControl::sites`] to look at first for a function. It is there or in one of the following, before
/// the next free one; behind the last comes the first.
#[must_use]
pub const fn site_slot(child_ip: usize, mask: usize) -> usize {
    (child_ip.wrapping_mul(SITE_FACTOR) >> SITE_SHIFT) & mask
}

/// Spreads addresses over the slots; it fits into a signed 32-bit constant.
pub const SITE_FACTOR: usize = 0x3c6e_f372;
/// Bits of the product that are not used.
pub const SITE_SHIFT: u32 = 20;

// The depth, as a number, goes up to the last level.
const _: () = assert!(RETURN_STACK_ENTRIES as u64 * state::DEPTH_ONE <= state::DEPTH_MASK);
const _: () = assert!(state::MASK | kind::MASK | kind::LEFT == (1 << ADDRESS_SHIFT) - 1);
const _: () = assert!(SITE_FACTOR <= i32::MAX as usize);
