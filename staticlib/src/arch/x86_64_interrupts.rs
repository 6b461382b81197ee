//! x86-64 without OS: functions called by an interrupt, with `iretq` as their return.
//!
//! The processor pushes a frame of five words, and for some exceptions an error code, then the function's prologue
//! calls the hook. The hook takes for the return address the frame's instruction pointer, the error code, or a word
//! pushed by the compiler to align the stack:
//!
//! ```text
//!   higher addresses
//!   | SS                       |
//!   | RSP                      |
//!   | RFLAGS                   |
//!   | CS                       |
//!   | RIP                      |    parent_loc of `extern "x86-interrupt" fn(Frame)`
//!   | error code               |    that of GCC's `interrupt` functions with an error code
//!   | alignment                |    that of `extern "x86-interrupt" fn(Frame, u64)`
//!   +--------------------------+
//!   | saved rbp                | <- rbp while the hook of mcount runs
//! ```
//!
//! Such a function must not return to T: T counts on the state at a `ret`. There are two ways to record it:
//!
//! - Interrupts of devices and `int n` (vectors from 32 on) in code of the same privilege: the interrupt trampoline
//!   replaces RIP in the frame, and keeps every register and flag and the red zone below the interrupted stack pointer.
//!   The interrupt flag in the frame is cleared, and the trampoline's own `iretq` brings it back.
//! - Exceptions (vectors below 32): their handlers show the frame, or change it to go on elsewhere. It stays as it is,
//!   and the call is recorded as one without duration.
//!
//! The interrupt descriptor table tells the vector: by the gate with its function closest before the call of the hook.

use core::arch::asm;
use core::mem::size_of;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes of the interrupted code below the stack pointer (System V ABI for AMD64, 3.2.2).
pub(crate) const RED_ZONE: usize = 128;
/// The interrupt flag.
const IF: usize = 1 << 9;
/// Words below the frame that may hold the slot.
const MAX_EXTRA_WORDS: usize = 2;
/// Vectors of the processor's own exceptions.
const N_EXCEPTIONS: usize = 32;
/// Bytes from a handler's first instruction to the return address of its call of the hook: its prologue.
const LONGEST_PROLOGUE: usize = 128;
/// The page size: unless an open function shows more of a stack, it is read up to the end of its page.
const PAGE: usize = 4096;

/// The words pushed by the processor.
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) ip: AtomicUsize,
    pub(crate) cs: AtomicUsize,
    pub(crate) flags: AtomicUsize,
    pub(crate) stack_pointer: AtomicUsize,
    pub(crate) ss: AtomicUsize,
}

/// A function called by an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// Its return can be hooked in the slot where the hook expects it; this was rsp of the interrupted code.
    Hookable(usize),
    /// Its frame is not to be touched.
    Untouchable,
}

/// The address of the interrupt trampoline.
pub(crate) fn interrupt_trampoline() -> usize {
    let address;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            "lea {address}, [rip + rftrace_interrupt_trampoline]",
            address = out(reg) address,
            options(nostack, nomem, preserves_flags),
        );
    }
    address
}

/// True if an address is the interrupt trampoline's.
pub(crate) fn is_interrupt_trampoline(address: usize) -> bool {
    address == interrupt_trampoline()
}

/// Has the handler with its frame at `parent_loc` return with interrupts off. Returns true if they were on.
///
/// Otherwise a waiting interrupt would strike at the trampoline's first instruction: on the interrupted stack this
/// would grow without end, and on a stack of its own the next handler would take the slot of the one whose exit is not
/// recorded yet.
pub(crate) fn keep_interrupts_off(parent_loc: usize) -> bool {
    // SAFETY: the frame of the handler that runs, as `interrupted` has found it.
    let frame = unsafe { &*(parent_loc as *const Frame) };
    frame.flags.fetch_and(!IF, Relaxed) & IF != 0
}

/// Has the trampoline go on with interrupts on.
pub(crate) fn let_interrupts_in(flags: &AtomicUsize) {
    flags.fetch_or(IF, Relaxed);
}

/// In a handler's sequence number: the interrupted code had interrupts off. No part of an address: its upper bits are alike.
const NO_INTERRUPTS: u64 = 1 << 62;

/// The sequence number of a handler that has interrupted code with this stack pointer: above all others, and found by
/// the stack pointer.
pub(crate) fn interrupt_sequence(stack_pointer: usize, had_interrupts: bool) -> u64 {
    let number = stack_pointer as u64 | 1 << 63 | NO_INTERRUPTS;
    if had_interrupts { number & !NO_INTERRUPTS } else { number }
}

/// True if it is the number of a handler that has interrupted code with this stack pointer.
pub(crate) fn is_interrupt_sequence(sequence: u64, stack_pointer: usize) -> bool {
    sequence | NO_INTERRUPTS == interrupt_sequence(stack_pointer, false)
}

/// True if it is the number of any such handler: it tells no time.
pub(crate) fn is_of_handler(sequence: u64) -> bool {
    sequence >> 63 != 0
}

/// True if the code had interrupts on.
pub(crate) fn had_interrupts(sequence: u64) -> bool {
    sequence & NO_INTERRUPTS == 0
}

/// The frame of a handler on the stack of the interrupted code, with this stack pointer.
pub(crate) fn frame_below(stack_pointer: usize) -> usize {
    (stack_pointer & !15).wrapping_sub(size_of::<Frame>())
}

/// The interrupt that has called the running function, if one has. `parent_loc` and `child_ip` are as the hook found them,
/// `top_loc` is the slot of the innermost open function.
pub(crate) fn interrupted(parent_loc: usize, child_ip: usize, top_loc: usize) -> Option<Interrupted> {
    let current_cs = code_segment();
    if current_cs & 3 != 0 {
        return None;
    }
    // The same slot is an earlier handler's on this stack, left meanwhile.
    let is_nested = (1..=super::reach::MAX_FRAME_BYTES).contains(&top_loc.wrapping_sub(parent_loc));
    // A function at T's first instruction, just returned, has given its slot up.
    let end =
        if is_nested { top_loc.wrapping_add(size_of::<usize>()) } else { (parent_loc | (PAGE - 1)).wrapping_add(1) };
    for n_extra in 0..=MAX_EXTRA_WORDS {
        let frame = parent_loc.wrapping_add(n_extra.wrapping_mul(size_of::<usize>()));
        if end.wrapping_sub(frame) < size_of::<Frame>() || end < frame {
            // Nobody knows whether there is more of this stack.
            return (!is_nested && clears_direction_flag(child_ip)).then_some(Interrupted::Untouchable);
        }
        // SAFETY: five words of the function's own stack: up to the slot of its caller, or in a page of it.
        let [_, cs, flags, stack_pointer, ss] = unsafe { *(frame as *const [usize; 5]) };
        if is_frame(cs, flags, ss) {
            let hookable = n_extra == 0 && cs == current_cs && !is_exception(child_ip);
            return Some(if hookable { Interrupted::Hookable(stack_pointer) } else { Interrupted::Untouchable });
        }
    }
    None
}

/// True if words on a stack can be two selectors with the flags between them.
fn is_frame(cs: usize, flags: usize, ss: usize) -> bool {
    /// Bit 1 of RFLAGS is set, bits 3, 5, 15 and those from 22 on are clear (Intel SDM volume 1, 3.4.3).
    const ALWAYS_SET: usize = 1 << 1;
    const ALWAYS_CLEAR: usize = !((1 << 22) - 1) | 1 << 3 | 1 << 5 | 1 << 15;
    let is_selector = |word: usize| word <= 0xffff;
    cs > 3 && is_selector(cs) && is_selector(ss) && flags & (ALWAYS_SET | ALWAYS_CLEAR) == ALWAYS_SET
}

/// True if the prologue before `child_ip` may have a `cld`, as every interrupt handler's.
fn clears_direction_flag(child_ip: usize) -> bool {
    const CLD: u8 = 0xfc;
    let earliest = child_ip.saturating_sub(LONGEST_PROLOGUE).max(child_ip & !(PAGE - 1));
    // SAFETY: code of the running function or before it, in a mapped page.
    (earliest..child_ip).any(|place| unsafe { *(place as *const u8) } == CLD)
}

fn code_segment() -> usize {
    let selector: usize;
    // SAFETY: reads a register.
    unsafe {
        asm!("mov {:e}, cs", out(reg) selector, options(nostack, nomem, preserves_flags));
    }
    selector
}

/// True if `child_ip` lies in a handler of an exception, or of an unknown cause.
///
/// The handlers of interrupts are remembered, as the table is long.
fn is_exception(child_ip: usize) -> bool {
    const N_KNOWN: usize = 16;
    static KNOWN: [AtomicUsize; N_KNOWN] = [const { AtomicUsize::new(0) }; N_KNOWN];

    let known = KNOWN.get((child_ip >> 4) % N_KNOWN);
    if known.is_some_and(|known| known.load(Relaxed) == child_ip) {
        return false;
    }
    let is_exception = looks_like_exception(child_ip);
    if let Some(known) = known
        && !is_exception
    {
        known.store(child_ip, Relaxed);
    }
    is_exception
}

/// The same, by the interrupt descriptor table.
fn looks_like_exception(child_ip: usize) -> bool {
    #[repr(C, packed)]
    struct TableRegister {
        limit: u16,
        base: usize,
    }
    /// A gate in long mode (Intel SDM volume 3, 6.14.1).
    #[repr(C)]
    struct Gate {
        offset_low: u16,
        selector: u16,
        stack: u8,
        attributes: u8,
        offset_middle: u16,
        offset_high: u32,
        reserved: u32,
    }
    const PRESENT: u8 = 1 << 7;

    let mut table = TableRegister { limit: 0, base: 0 };
    // SAFETY: writes the ten bytes of `table`.
    unsafe {
        asm!("sidt [{}]", in(reg) &raw mut table, options(nostack, preserves_flags));
    }
    let gates = table.base as *const Gate;
    let n_gates = (usize::from(table.limit).wrapping_add(1)) / size_of::<Gate>();
    let mut nearest = LONGEST_PROLOGUE;
    let mut is_exception = true;
    for vector in 0..n_gates {
        // SAFETY: the processor reads the table too; all of it up to its limit is mapped.
        let gate = unsafe { &*gates.wrapping_add(vector) };
        let offset =
            u64::from(gate.offset_high) << 32 | u64::from(gate.offset_middle) << 16 | u64::from(gate.offset_low);
        let distance = child_ip.wrapping_sub(offset as usize);
        // A function that serves several vectors has the nature of the first.
        if gate.attributes & PRESENT != 0 && distance < nearest {
            nearest = distance;
            is_exception = vector < N_EXCEPTIONS;
        }
    }
    is_exception
}
