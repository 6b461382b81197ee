//! For targets without interrupts known to the tracer: under an OS, or without the feature `interruptsafe`. The items
//! are as in `x86_64_interrupts.rs`.

use core::sync::atomic::AtomicUsize;

/// A function called by an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "there is none")]
pub(crate) enum Interrupted {
    /// Its return can be hooked; this was rsp when it was interrupted.
    Hookable(usize),
    /// Its frame is not to be touched.
    Untouchable,
}

/// No function is.
pub(crate) fn interrupted(_parent_loc: usize, _child_ip: usize, _top_loc: usize) -> Option<Interrupted> {
    None
}

/// No code is at this address.
pub(crate) fn interrupt_trampoline() -> usize {
    0
}

/// It is none: a slot may hold any value.
#[allow(dead_code, reason = "asked where a slot is all that is known of a frame")]
pub(crate) fn is_interrupt_trampoline(_address: usize) -> bool {
    false
}

/// Nothing has to be done.
pub(crate) fn keep_interrupts_off(_parent_loc: usize) -> bool {
    false
}

/// As above.
pub(crate) fn let_interrupts_in(_flags: &AtomicUsize) {}

/// Nobody asks for one.
pub(crate) fn interrupt_sequence(_stack_pointer: usize, _had_interrupts: bool) -> u64 {
    0
}

/// None is.
pub(crate) fn is_interrupt_sequence(_sequence: u64, _stack_pointer: usize) -> bool {
    false
}

/// As above.
pub(crate) fn is_of_handler(_sequence: u64) -> bool {
    false
}

/// As above.
pub(crate) fn had_interrupts(_sequence: u64) -> bool {
    false
}

/// No frame is.
pub(crate) fn frame_below(_stack_pointer: usize) -> usize {
    0
}
