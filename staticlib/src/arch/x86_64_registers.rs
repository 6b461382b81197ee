//! x86-64 Linux: the places of a call's values, and memory read by the system.
//!
//! System V ABI for AMD64, 3.2.3: integers and pointers in rdi, rsi, rdx, rcx, r8, r9, then on the stack; floating-point numbers in
//! xmm0-7; results in rax and xmm0.

use core::arch::asm;

/// The registers saved by a hook and `rftrace_call_saved`.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// The rbp of `rftrace_call_saved`.
    base: usize,
    /// The place of the return address of the function.
    slot: usize,
}

impl Registers {
    /// The registers of a function at its entry.
    pub(crate) fn of_call(base: usize, slot: usize) -> Option<Self> {
        (base != 0).then_some(Self { base, slot })
    }

    /// The registers of a returned function.
    pub(crate) fn of_return(base: usize) -> Option<Self> {
        Self::of_call(base, 0)
    }

    /// The word at a distance from the base.
    fn saved(self, distance: isize) -> u64 {
        // SAFETY: this hook has saved it, and waits.
        unsafe { *(self.base.wrapping_add_signed(distance) as *const u64) }
    }

    /// An argument, from 1 on, or its place on the stack.
    pub(crate) fn argument(self, number: usize) -> Result<u64, usize> {
        // rdi, rsi, r8 and r9 lie below rbp; the hook's own rdx and rcx above rbp and its return address.
        let distance = match number {
            1 => -8,
            2 => -16,
            3 => 16,
            4 => 24,
            5 => -24,
            6 => -32,
            _ => return Err(self.stack(number.wrapping_sub(6))),
        };
        Ok(self.saved(distance))
    }

    /// The place of a word of the stack, from 1 on above the return address.
    pub(crate) fn stack(self, number: usize) -> usize {
        self.slot.wrapping_add(number.wrapping_mul(8))
    }

    /// The low half of a vector register, xmm0 to xmm7.
    pub(crate) fn vector(self, number: usize) -> u64 {
        /// The registers above, and those of vectors.
        const BYTES: usize = 40 + 256;
        let first = self.base.wrapping_sub(BYTES) & !15;
        // SAFETY: as above; there are sixteen.
        unsafe { *((first.wrapping_add((number & 7).wrapping_mul(16))) as *const u64) }
    }

    /// The result, rax.
    pub(crate) fn result(self) -> u64 {
        self.saved(24)
    }

    /// The second word of a result, rdx.
    pub(crate) fn second_result(self) -> u64 {
        self.saved(16)
    }
}

/// The highest byte certain to be in a function's stack: in the slot of its return address.
pub(crate) fn last_byte(slot: usize) -> usize {
    slot
}

/// Copies memory of this process, perhaps not all there, as the system's `process_vm_readv` does for these ranges (an
/// address and a length each); the second one may be empty. Returns the system's result: a number of bytes, or an error
/// above all lengths.
///
/// # Safety
///
/// `local` can be written to.
pub(crate) unsafe fn copy_by_system(local: [usize; 2], remote: [[usize; 2]; 2]) -> usize {
    // Any of the process will do, and the first one may have ended.
    const GETTID: usize = 186;
    const PROCESS_VM_READV: usize = 310;

    let n_remote = if remote[1][1] > 0 { 2 } else { 1 };
    let mut result: usize;
    // SAFETY: the system writes to `local` alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") GETTID => result,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, nomem),
        );
        asm!(
            "syscall",
            inlateout("rax") PROCESS_VM_READV => result,
            in("rdi") result,
            in("rsi") &raw const local,
            in("rdx") 1,
            in("r10") &raw const remote,
            in("r8") n_remote,
            in("r9") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
