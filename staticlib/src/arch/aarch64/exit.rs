//! The return trampoline with its unwind information.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use super::ON_BIT;
use crate::abi::{Control, Record, ReturnEntry, Switch, ThreadBlock, kind, state};
#[cfg(not(target_os = "none"))]
use crate::arch::MAX_FRAME_BYTES;
use crate::arch::{self, aarch64_machine as machine};
use crate::control_block::{CONTROL, SWITCH};
use crate::exit;

// Sets the bit of the entry x11 for a recorded exit; to `recorded` if it is set. x14 = the word before; x10, x13 and
// x16 change.
macro_rules! mark_left {
    (recorded = $recorded:literal) => {
        concat!(
            "add x13, x11, #{exit_word} - {entry_bytes}
        4:
        ldxr x14, [x13]
        tbnz x14, #{left_bit}, ",
            $recorded,
            "
        orr x16, x14, #{left}
        stxr w10, x16, [x13]
        cbnz w10, 4b\n"
        )
    };
}

// x10 = the place of the block's `late`, less the part that fits into an instruction's offset. x9 = the cursor's place.
macro_rules! load_late {
    () => {
        "add x10, x9, #({late} - {cursor}) / 4096, lsl #12\n"
    };
}

// A trampoline up to its slow path, which follows at 9. `cfa` is a register with the CFA; `begin` may compute it, in
// x17. `leave` goes on at the address in `to`, another register: x16 or x17.
macro_rules! exit_fast {
    (begin = $begin:expr, cfa = $cfa:literal, to = $to:literal, leave = $leave:expr) => {
        concat!(
            load_cursor!(),
            $begin,
            "tbz x9, #{block_bit}, 9f\n", // the frame was entered on another thread
            // x11 = one above our entry; ours must be the innermost one.
            "ldr x11, [x9, #{sp} - {cursor}]
            ldr x12, [x11, #{frame} - {entry_bytes}]\n",
            "cmp ",
            $cfa,
            ", x12\n",
            "b.ne 9f\n",
            load_switch!("12"),
            "tbz w12, #{on_bit}, 6f
            5:\n",
            reserve_record!(none = "9f"),
            // Only the setter of the bit records the exit: a signal handler, on a stack near others, may take the
            // interrupted frames for left ones.
            mark_left!(recorded = "9f"),
            "str x14, [x15, #{word}]
            mrs x16, cntvct_el0
            stlr x16, [x15]\n",
            // Pop: read the return address, unpublish the entry, release it. The entry has moved if such a handler came in between.
            "7:\nldp ",
            $to,
            ", x12, [x11, #-{entry_bytes}]!\n",
            "cmp ",
            $cfa,
            ", x12
            b.ne 9f
            .cfi_remember_state
            .cfi_register x30, ",
            $to,
            "
            str xzr, [x11, #{frame}]
            str x11, [x9, #{sp} - {cursor}]\n",
            $leave,
            ".cfi_restore_state\n",
            // Recording is off: slow path. Or it is filtered: an entry only for its state is not recorded. Nor is a
            // call too short, if its own entry is the newest record: the record is taken back.
            "6:
            cbz w12, 9f
            ldr x16, [x11, #{exit_word} - {entry_bytes}]
            tbnz x16, #{hidden_bit}, 7b
            adrp x12, {control} + {min_ticks}
            ldr x12, [x12, :lo12:{control} + {min_ticks}]
            cbz x12, 5b
            mrs x10, cntvct_el0
            ldr x15, [x11, #{sequence} - {entry_bytes}]
            lsr x15, x15, #{sequence_bits}
            sub x10, x10, x15
            cmp x10, x12
            b.hs 5b
            ldr x12, [x9]
            cbz x12, 9f
            ldr x13, [x12, #-{record_bytes}]
            cmp x13, x15
            b.ne 5b\n",
            // A handler may give the chunk away before the store below, so `late` names the record first, and then it
            // must still be the newest. A handler that interrupts this finds `late` set, and records its exit.
            load_late!(),
            "ldr x13, [x10, #({late} - {cursor}) % 4096]
            cbnz x13, 5b
            str x12, [x10, #({late} - {cursor}) % 4096]
            ldr x13, [x9]
            cmp x13, x12
            b.ne 2f\n",
            // The same address, and the kind ENTRY; the word before a chunk's first record is neither.
            "and x16, x16, #0xffffffffffff0000
            ldr x14, [x12, #{word} - {record_bytes}]
            cmp x14, x16
            b.ne 2f\n",
            mark_left!(recorded = "2f"),
            // First the record: behind the cursor signal handlers write. From then on the chunk waits for it.
            "sub x15, x12, #{record_bytes}
            str xzr, [x15]\n",
            load_late!(),
            "str xzr, [x10, #({late} - {cursor}) % 4096]
            3:
            ldxr x14, [x9]
            cmp x14, x12
            b.ne 1f
            stxr w10, x15, [x9]
            cbnz w10, 3b
            b 7b\n",
            // A handler has written behind it: the record becomes an empty one.
            "1:
            mov x13, #{nothing}
            str x13, [x15, #{word}]
            ldr x14, [x11, #{sequence} - {entry_bytes}]
            lsr x14, x14, #{sequence_bits}
            stlr x14, [x15]
            b 7b\n",
            // It is not taken back: it gets its time again if its chunk was given up meanwhile.
            "2:\n",
            load_late!(),
            "add x10, x10, #({late} - {cursor}) % 4096
            3:
            ldxr x13, [x10]
            stxr w14, xzr, [x10]
            cbnz w14, 3b
            cmp x13, x12
            b.eq 1f
            ldr x14, [x11, #{sequence} - {entry_bytes}]
            lsr x14, x14, #{sequence_bits}
            sub x15, x12, #{record_bytes}
            stlr x14, [x15]
            1:
            ldr x16, [x11, #{exit_word} - {entry_bytes}]
            tbz x16, #{left_bit}, 5b
            b 9f\n",
        )
    };
}

// Calls two functions of the tracer with the CFA. The first one finds the address to go on at, and gets the place of
// all possible results, from x0 on (see aarch64_registers.rs). The second one takes the entry away, once the unwind
// information can find the address. All possible results are kept.
macro_rules! exit_slowly {
    (find = $find:literal, done = $done:literal) => {
        concat!(
            "sub sp, sp, #208
            .cfi_def_cfa_offset 208
            stp x0, x1, [sp]
            stp x2, x3, [sp, #16]
            stp x4, x5, [sp, #32]
            stp x6, x7, [sp, #48]
            str x8, [sp, #64]
            .if {has_vectors}
            stp q0, q1, [sp, #80]
            stp q2, q3, [sp, #112]
            stp q4, q5, [sp, #144]
            stp q6, q7, [sp, #176]
            .endif
            add x0, sp, #208
            mov x5, sp
            bl ",
            $find, // x30 is in the block, as the expression wants it
            "
            str x0, [sp, #72]
            .cfi_remember_state
            .cfi_offset x30, 72 - 208
            add x0, sp, #208
            mov x3, x29
            bl ",
            $done,
            "
            ldr x17, [sp, #72]
            .cfi_register x30, x17
            .if {has_vectors}
            ldp q0, q1, [sp, #80]
            ldp q2, q3, [sp, #112]
            ldp q4, q5, [sp, #144]
            ldp q6, q7, [sp, #176]
            .endif
            ldp x0, x1, [sp]
            ldp x2, x3, [sp, #16]
            ldp x4, x5, [sp, #32]
            ldp x6, x7, [sp, #48]
            ldr x8, [sp, #64]
            add sp, sp, #208
            .cfi_def_cfa_offset 0
            mov x30, x17
            ret x17
            .cfi_restore_state
            .cfi_def_cfa_offset 0\n"
        )
    };
}

// The rule for x30 in a trampoline.
macro_rules! find_return_address {
    () => {
        walk_return_stacks!(
            rule = "0x16, 0x1e, 0xc8, 0x01", // of x30: 200 bytes
            frame = "0x12",                  // dup: frames are named by their CFA
            block = "0x8e, 0x00, 0x0e, 0x00, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x1a", // breg30 0, const8u, and
            list = "0xf8, 0x0f",             // 2040
            mask = "0xf8"
        )
    };
}

// The return trampoline T.
//
// A traced function's `ret` lands here, with sp = CFA and x30 = T. x0 to x8 and v0 to v7 may hold its result. Keeps them.
//
// Unwinding: a return address of T means nothing to an unwinder, so T's own unwind information gives the true one. It
// is a DWARF expression: it walks the return stacks of all threads to the entry with the CFA as its frame. It finds
// them by x30, always T when this information is asked: T lies in a block aligned to 2048, at the address x30 masked
// (the bits from 48 on may be a signature); the list's address lies at its end, as a distance, since a CFI escape holds
// only constants. The unwind information covers T - 4 (a nop), because unwinders look up `return address - 1`.
//
// Sources: DWARF 5 sections 2.5 and 6.4.2, DWARF for the Arm 64-bit architecture; libgcc was tried. Its DW_OP_pick does not
// reach the undermost element, hence the first dup.
global_asm!(
    ".p2align 11",
    ".Lrftrace_block:",
    #[cfg(not(target_os = "none"))]
    patched_entry!(),
    // The word in front of T. If patched entries have a hook it is the hook's last one, `bl .Lrftrace_entry_paired`,
    // and its last byte is T's: unwinders look up T - 1 there, but from a handler that has interrupted the `bl` they
    // find the hook's. Elsewhere it is T's as a whole.
    #[cfg(not(target_os = "none"))]
    call_paired!(hook = "rftrace_entry"),
    ".type rftrace_return_trampoline, @function",
    "rftrace_return_trampoline:",
    ".cfi_startproc",
    #[cfg(not(target_os = "none"))]
    ".cfi_personality 0x1b, rftrace_personality",
    ".cfi_def_cfa sp, 0",
    find_return_address!(),
    #[cfg(target_os = "none")]
    "nop",
    #[cfg(not(target_os = "none"))]
    call_paired_end!(hook = "rftrace_entry"),
    ".Lrftrace_trampoline:",
    // If the return address is T again (a tail call), x30 has to say so, and does: it is not changed.
    exit_fast!(begin = "", cfa = "sp", to = "x17", leave = "ret x17\n"),
    "9:",
    exit_slowly!(find = "{exit_find}", done = "{exit_done}"),
    // T4, for functions with a recorded result: their exit always takes the slow path. Unwinders look up T4 - 1.
    #[cfg(not(target_os = "none"))]
    "nop",
    #[cfg(not(target_os = "none"))]
    ".Lrftrace_values_trampoline:",
    #[cfg(not(target_os = "none"))]
    exit_slowly!(find = "{exit_find_with_values}", done = "{exit_done_with_values}"),
    // The landing pad: an exception or a forced unwind passes a hooked frame. The unwinder comes here (see the
    // personality) with the exception object in x0 and sp = CFA. The exit is recorded now, at its true time; then the
    // unwinding goes on as if the traced function's caller had called _Unwind_Resume.
    #[cfg(not(target_os = "none"))]
    "rftrace_landing_pad:",
    #[cfg(not(target_os = "none"))]
    "hint #36", // bti j
    #[cfg(not(target_os = "none"))]
    "adr x30, .Lrftrace_trampoline",
    #[cfg(not(target_os = "none"))]
    "str x0, [sp, #-16]!",
    #[cfg(not(target_os = "none"))]
    ".cfi_def_cfa_offset 16",
    #[cfg(not(target_os = "none"))]
    "add x0, sp, #16",
    #[cfg(not(target_os = "none"))]
    "bl {unwound_find}",
    #[cfg(not(target_os = "none"))]
    "str x0, [sp, #8]",
    #[cfg(not(target_os = "none"))]
    ".cfi_offset x30, -8",
    #[cfg(not(target_os = "none"))]
    "add x0, sp, #16",
    #[cfg(not(target_os = "none"))]
    "bl {unwound_done}",
    #[cfg(not(target_os = "none"))]
    "ldp x0, x30, [sp], #16",
    #[cfg(not(target_os = "none"))]
    ".cfi_same_value x30",
    #[cfg(not(target_os = "none"))]
    ".cfi_def_cfa_offset 0",
    #[cfg(not(target_os = "none"))]
    "adrp x16, :got:_Unwind_Resume",
    #[cfg(not(target_os = "none"))]
    "ldr x16, [x16, :got_lo12:_Unwind_Resume]",
    #[cfg(not(target_os = "none"))]
    "br x16",
    ".cfi_endproc",
    ".size rftrace_return_trampoline, . - rftrace_return_trampoline",
    // T5, for functions with entry branches, and T6, for those with a recorded result, with their hook: all keep all
    // registers. In the same block, so a return address in it is known as a tail call's, with either hook.
    #[cfg(not(target_os = "none"))]
    keeping_entry!(),
    #[cfg(not(target_os = "none"))]
    call_paired!(hook = "rftrace_keeping_entry"),
    #[cfg(not(target_os = "none"))]
    keeping_trampolines!(),
    ".org .Lrftrace_block + {trampoline_bytes} - 8",
    ".quad {control} + {threads} - .Lrftrace_block",
    control = sym CONTROL,
    switch = sym SWITCH,
    enabled = const offset_of!(Switch, enabled),
    on_bit = const ON_BIT,
    min_ticks = const offset_of!(Control, filter.min_ticks),
    hidden_bit = const state::HIDDEN.trailing_zeros(),
    #[cfg(not(target_os = "none"))]
    kind_exit = const kind::EXIT,
    left = const kind::LEFT,
    left_bit = const kind::LEFT.trailing_zeros(),
    threads = const offset_of!(Control, threads),
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    late = const offset_of!(ThreadBlock, late),
    nothing = const kind::NOTHING,
    #[cfg(not(target_os = "none"))]
    max_frame_bytes = const MAX_FRAME_BYTES,
    entry_bytes = const size_of::<ReturnEntry>(),
    frame = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    sequence = const offset_of!(ReturnEntry, sequence),
    sequence_bits = const arch::SEQUENCE_BITS,
    record_bytes = const size_of::<Record>(),
    word = const offset_of!(Record, word),
    trampoline_bytes = const machine::TRAMPOLINE_BYTES,
    block_bit = const arch::BLOCK_BIT,
    has_vectors = const cfg!(target_feature = "neon") as u8,
    #[cfg(not(target_os = "none"))]
    kept_bytes = const super::keeping::KEPT_BYTES,
    exit_find = sym exit::exit_find,
    exit_done = sym exit::exit_done,
    #[cfg(not(target_os = "none"))]
    exit_find_with_values = sym exit::exit_find_with_values,
    #[cfg(not(target_os = "none"))]
    exit_done_with_values = sym exit::exit_done_with_values,
    #[cfg(not(target_os = "none"))]
    unwound_find = sym exit::unwound_find,
    #[cfg(not(target_os = "none"))]
    unwound_done = sym exit::unwound_done,
);

// The trampoline's personality routine (Itanium C++ ABI: Exception Handling, 1.6): in the cleanup phase every frame of
// T has one landing pad, with the exception object in x0; in the search phase it has nothing to say.
//
// x0 = version, w1 = actions, x2 = exception class, x3 = exception object, x4 = context. Returns a reason code. The unwinder's
// functions are weak references: a program without unwinder never comes here.
#[cfg(not(target_os = "none"))]
global_asm!(
    ".weak _Unwind_Resume",
    ".weak _Unwind_SetGR",
    ".weak _Unwind_SetIP",
    ".p2align 4",
    ".type rftrace_personality, @function",
    "rftrace_personality:",
    ".cfi_startproc",
    "hint #34", // bti c
    "tbnz w1, #{cleanup_bit}, 2f",
    "1:",
    "mov w0, #{continue_unwind}",
    "ret",
    "2:",
    "adrp x16, :got:_Unwind_SetGR",
    "ldr x16, [x16, :got_lo12:_Unwind_SetGR]",
    "cbz x16, 1b",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    "mov x29, sp",
    "str x4, [sp, #16]",
    "mov x0, x4",
    "mov x1, #0", // DWARF number of x0
    "mov x2, x3",
    "blr x16",
    "ldr x0, [sp, #16]",
    "adr x1, rftrace_landing_pad",
    "adrp x16, :got:_Unwind_SetIP",
    "ldr x16, [x16, :got_lo12:_Unwind_SetIP]",
    "blr x16",
    "mov w0, #{install_context}",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    ".size rftrace_personality, . - rftrace_personality",
    continue_unwind = const 8, // _URC_CONTINUE_UNWIND
    install_context = const 7, // _URC_INSTALL_CONTEXT
    cleanup_bit = const 1,     // _UA_CLEANUP_PHASE
);
