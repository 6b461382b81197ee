//! aarch64 Linux: the places of a call's values, and memory read by the system.
//!
//! Procedure Call Standard for the Arm 64-bit Architecture, 6.8 and 6.9: integers and pointers in x0 to x7, then on the stack, from the CFA
//! on; floating-point numbers in v0 to v7; results in x0 and v0.
//!
//! `_mcount` is called behind the prologue, and gets the return address in x0: by then the arguments have moved. The
//! frontend asks for none of functions with a call of it.

use core::arch::asm;

/// The registers saved by a slow path: from here on x0 to x7, x8, a word of its own, and v0 to v7.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// The place of x0; 0 if nothing is known of registers.
    base: usize,
    /// The CFA.
    frame: usize,
}

/// The place of v0 behind x0.
const VECTORS: usize = 80;

impl Registers {
    /// The registers of a function at its entry.
    #[allow(clippy::unnecessary_wraps, reason = "other processors have hooks that save none")]
    pub(crate) fn of_call(base: usize, frame: usize) -> Option<Self> {
        Some(Self { base, frame })
    }

    /// The registers of a returned function.
    pub(crate) fn of_return(base: usize) -> Option<Self> {
        Self::of_call(base, 0)
    }

    /// The word at a distance from the base.
    fn saved(self, distance: usize) -> u64 {
        if self.base == 0 {
            return 0;
        }
        // SAFETY: the slow path has saved it, and waits.
        unsafe { *(self.base.wrapping_add(distance) as *const u64) }
    }

    /// An argument, from 1 on, or its place on the stack.
    pub(crate) fn argument(self, number: usize) -> Result<u64, usize> {
        match number {
            1..=8 => Ok(self.saved(number.wrapping_sub(1).wrapping_mul(8))),
            _ => Err(self.stack(number.wrapping_sub(8))),
        }
    }

    /// The place of a word of the stack, from 1 on from the CFA.
    pub(crate) fn stack(self, number: usize) -> usize {
        self.frame.wrapping_add(number.wrapping_sub(1).wrapping_mul(8))
    }

    /// The low half of a vector register, v0 to v7.
    pub(crate) fn vector(self, number: usize) -> u64 {
        self.saved(VECTORS.wrapping_add((number & 7).wrapping_mul(16)))
    }

    /// The result, x0.
    pub(crate) fn result(self) -> u64 {
        self.saved(0)
    }

    /// The second word of a result, x1.
    pub(crate) fn second_result(self) -> u64 {
        self.saved(8)
    }
}

/// The highest byte certain to be in a function's stack: below its CFA; the stack may end there.
pub(crate) fn last_byte(frame: usize) -> usize {
    frame.wrapping_sub(1)
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
    const GETTID: usize = 178;
    const PROCESS_VM_READV: usize = 270;

    let n_remote = if remote[1][1] > 0 { 2_usize } else { 1 };
    let mut result: usize;
    // SAFETY: the system writes to `local` alone, and changes no register but x0.
    unsafe {
        asm!("svc #0", in("x8") GETTID, lateout("x0") result, options(nostack, nomem));
        asm!(
            "svc #0",
            in("x8") PROCESS_VM_READV,
            inlateout("x0") result,
            in("x1") &raw const local,
            in("x2") 1_usize,
            in("x3") &raw const remote,
            in("x4") n_remote,
            in("x5") 0_usize,
            options(nostack),
        );
    }
    result
}
