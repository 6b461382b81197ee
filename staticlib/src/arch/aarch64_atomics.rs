//! Atomic instructions of Armv8.1 (LSE), if the processors have them: they change words shared by all threads in one
//! instruction. With many threads at one word exclusive pairs may fail for long.
//!
//! The compiler calls a function for each atomic change in Rust (`+outline-atomics`, set by build.rs), as it does in
//! programs, with libgcc's or compiler-builtins' functions. These are the tracer's own, as it refers to nothing: the
//! object's only global symbols are those in `abi`, so other code linked with it finds none of these. They are the ones
//! used by the tracer's code; if it comes to use another one, a test finds the undefined symbol.
//!
//! The hooks' fast paths are not concerned: their words have one writer, and they change them by exclusive pairs on all processors.
//!
//! A call has its operands in x0, or for a comparison in x0 (the expected word) and x1, the word's address in the next
//! register, and gets the word from before in x0. As libgcc's they change nothing else but x15 to x17 and the flags.

use core::arch::global_asm;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// True if all processors have these instructions.
static HAS_LSE: AtomicBool = AtomicBool::new(false);

/// Tells the tracer that all processors have the atomic instructions of Armv8.1, before there are several threads. If
/// threads run already, each change is by either kind, and both are atomic to each other.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rftrace_backend_use_lse() {
    HAS_LSE.store(true, Relaxed);
}

#[rustfmt::skip]
global_asm!(
    ".arch_extension lse",
    // A function: its code with LSE, `rftrace_or_exclusive`, its code without, `rftrace_ends`.
    ".macro rftrace_either name",
    ".type \\name, @function",
    ".p2align 4",
    "\\name:",
    ".cfi_startproc",
    "adrp x16, {has_lse}",
    "ldrb w16, [x16, :lo12:{has_lse}]",
    "cbz w16, 2f",
    ".endm",
    ".macro rftrace_or_exclusive",
    "ret",
    "2:",
    ".endm",
    ".macro rftrace_ends name",
    "ret",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    ".endm",
    // `r`: registers are `w` or `x` as the word is long, of one byte `w` with the suffix `b`. `a`, `l`: the order is `a`, `l`, both or none.
    // The word becomes another one, if it is as expected.
    ".macro rftrace_compare_and_swap name, r, a, l",
    "rftrace_either __aarch64_cas\\name",
    "cas\\a\\l \\r\\()0, \\r\\()1, [x2]",
    "rftrace_or_exclusive",
    "mov \\r\\()16, \\r\\()0",
    "3:",
    "ld\\a\\()xr \\r\\()0, [x2]",
    "cmp \\r\\()0, \\r\\()16",
    "b.ne 4f",
    "st\\l\\()xr w17, \\r\\()1, [x2]",
    "cbnz w17, 3b",
    "4:",
    "rftrace_ends __aarch64_cas\\name",
    ".endm",
    // The word becomes another one.
    ".macro rftrace_swap name, r, b, a, l",
    "rftrace_either __aarch64_swp\\name",
    "swp\\a\\l\\b \\r\\()0, \\r\\()0, [x1]",
    "rftrace_or_exclusive",
    "mov \\r\\()16, \\r\\()0",
    "3:",
    "ld\\a\\()xr\\b \\r\\()0, [x1]",
    "st\\l\\()xr\\b w17, \\r\\()16, [x1]",
    "cbnz w17, 3b",
    "rftrace_ends __aarch64_swp\\name",
    ".endm",
    // The word is changed by an operand, with LSE by a load of the name, without by another instruction.
    ".macro rftrace_change load, name, change, r, a, l",
    "rftrace_either __aarch64_\\load\\name",
    "\\load\\a\\l \\r\\()0, \\r\\()0, [x1]",
    "rftrace_or_exclusive",
    "mov \\r\\()16, \\r\\()0",
    "3:",
    "ld\\a\\()xr \\r\\()0, [x1]",
    "\\change \\r\\()17, \\r\\()0, \\r\\()16",
    "st\\l\\()xr w15, \\r\\()17, [x1]",
    "cbnz w15, 3b",
    "rftrace_ends __aarch64_\\load\\name",
    ".endm",
    // One name for all of them, to recognise their instructions among those executed.
    ".p2align 4",
    ".type rftrace_outlined_atomics, @function",
    "rftrace_outlined_atomics:",
    "rftrace_compare_and_swap 4_relax, w",
    "rftrace_compare_and_swap 4_acq_rel, w, a, l",
    "rftrace_compare_and_swap 8_relax, x",
    "rftrace_compare_and_swap 8_rel, x, , l",
    "rftrace_compare_and_swap 8_acq_rel, x, a, l",
    "rftrace_swap 1_relax, w, b",
    "rftrace_swap 4_relax, w",
    "rftrace_swap 8_relax, x",
    "rftrace_change ldadd, 4_relax, add, w",
    "rftrace_change ldadd, 4_acq_rel, add, w, a, l",
    "rftrace_change ldadd, 8_relax, add, x",
    "rftrace_change ldadd, 8_acq_rel, add, x, a, l",
    "rftrace_change ldclr, 4_acq_rel, bic, w, a, l",
    "rftrace_change ldclr, 8_relax, bic, x",
    "rftrace_change ldset, 8_relax, orr, x",
    ".size rftrace_outlined_atomics, . - rftrace_outlined_atomics",
    ".purgem rftrace_either",
    ".purgem rftrace_or_exclusive",
    ".purgem rftrace_ends",
    ".purgem rftrace_compare_and_swap",
    ".purgem rftrace_swap",
    ".purgem rftrace_change",
    ".arch_extension nolse",
    has_lse = sym HAS_LSE,
);
