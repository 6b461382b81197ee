//! Atomic instructions of Armv8.1 (LSE), where the processors have them: words that all threads share are changed by one instruction there, and
//! where many threads want them at once exclusive pairs may fail for long.
//!
//! The compiler calls a function for each atomic change in Rust (`+outline-atomics`, which build.rs sets), as it does in programs, where libgcc or
//! compiler-builtins have it. These are the tracer's own, as it refers to nothing: no symbol of the object is global but those in `abi`, so who links it
//! finds none of these. They are those that the tracer's code wants; one that it comes to want is an undefined symbol, which a test finds.
//!
//! The hooks' fast paths are not concerned: their words have one writer, and they change them by exclusive pairs on all processors.
//!
//! A call has its operands in x0, or for a comparison in x0 (what is expected) and x1, the word's address in the next register, and gets the word as it
//! was in x0. As libgcc's they change nothing else but x15 to x17 and the flags.

use core::arch::global_asm;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// Whether all processors have these instructions.
static HAS_LSE: AtomicBool = AtomicBool::new(false);

/// Says that all processors have the atomic instructions of Armv8.1, before there are several threads. Where threads run already, each change is by either
/// kind, and both are atomic to each other.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rftrace_backend_use_lse() {
    HAS_LSE.store(true, Relaxed);
}

// A function by its name, what is done with LSE, and what without.
macro_rules! either {
    ($name:expr, lse = $lse:expr, exclusive = $exclusive:expr) => {
        concat!(
            ".type ",
            $name,
            ", @function\n",
            ".p2align 4\n",
            $name,
            ":
            .cfi_startproc
            adrp x16, {has_lse}
            ldrb w16, [x16, :lo12:{has_lse}]
            cbz w16, 2f\n",
            $lse,
            "
            ret
            2:\n",
            $exclusive,
            "
            ret
            .cfi_endproc
            .size ",
            $name,
            ", . - ",
            $name,
            "\n",
        )
    };
}

// Registers are `w` or `x` as the word is long, of one byte `w` with the suffix `b`; the order is `a`, `l`, both or none.

// The word becomes another one, if it is as expected.
macro_rules! compare_and_swap {
    ($name:literal, $r:literal, $a:literal, $l:literal) => {
        either!(
            concat!("__aarch64_cas", $name),
            lse = concat!("cas", $a, $l, " ", $r, "0, ", $r, "1, [x2]"),
            exclusive = concat!(
                "mov ",
                $r,
                "16, ",
                $r,
                "0
                3:
                ld",
                $a,
                "xr ",
                $r,
                "0, [x2]
                cmp ",
                $r,
                "0, ",
                $r,
                "16
                b.ne 4f
                st",
                $l,
                "xr w17, ",
                $r,
                "1, [x2]
                cbnz w17, 3b
                4:",
            )
        )
    };
}

// The word becomes another one.
macro_rules! swap {
    ($name:literal, $r:literal, $b:literal, $a:literal, $l:literal) => {
        either!(
            concat!("__aarch64_swp", $name),
            lse = concat!("swp", $a, $l, $b, " ", $r, "0, ", $r, "0, [x1]"),
            exclusive = concat!(
                "mov ",
                $r,
                "16, ",
                $r,
                "0
                3:
                ld",
                $a,
                "xr",
                $b,
                " ",
                $r,
                "0, [x1]
                st",
                $l,
                "xr",
                $b,
                " w17, ",
                $r,
                "16, [x1]
                cbnz w17, 3b",
            )
        )
    };
}

// The word is changed by an operand, with LSE by a load of the name, without by another instruction.
macro_rules! change {
    ($load:literal, $name:literal, $change:literal, $r:literal, $a:literal, $l:literal) => {
        either!(
            concat!("__aarch64_", $load, $name),
            lse = concat!($load, $a, $l, " ", $r, "0, ", $r, "0, [x1]"),
            exclusive = concat!(
                "mov ",
                $r,
                "16, ",
                $r,
                "0
                3:
                ld",
                $a,
                "xr ",
                $r,
                "0, [x1]\n",
                $change,
                " ",
                $r,
                "17, ",
                $r,
                "0, ",
                $r,
                "16
                st",
                $l,
                "xr w15, ",
                $r,
                "17, [x1]
                cbnz w15, 3b",
            )
        )
    };
}

#[rustfmt::skip]
global_asm!(
    ".arch_extension lse",
    // One name for all of them, for who looks which instructions have run.
    ".p2align 4",
    ".type rftrace_outlined_atomics, @function",
    "rftrace_outlined_atomics:",
    compare_and_swap!("4_relax", "w", "", ""),
    compare_and_swap!("4_acq_rel", "w", "a", "l"),
    compare_and_swap!("8_relax", "x", "", ""),
    compare_and_swap!("8_rel", "x", "", "l"),
    compare_and_swap!("8_acq_rel", "x", "a", "l"),
    swap!("1_relax", "w", "b", "", ""),
    swap!("4_relax", "w", "", "", ""),
    swap!("8_relax", "x", "", "", ""),
    change!("ldadd", "4_relax", "add", "w", "", ""),
    change!("ldadd", "4_acq_rel", "add", "w", "a", "l"),
    change!("ldadd", "8_relax", "add", "x", "", ""),
    change!("ldadd", "8_acq_rel", "add", "x", "a", "l"),
    change!("ldclr", "4_acq_rel", "bic", "w", "a", "l"),
    change!("ldclr", "8_relax", "bic", "x", "", ""),
    change!("ldset", "8_relax", "orr", "x", "", ""),
    ".size rftrace_outlined_atomics, . - rftrace_outlined_atomics",
    ".arch_extension nolse",
    has_lse = sym HAS_LSE,
);
