//! The hook of entry branches and its trampoline T5, see [`hooks`](super): for code compiled without hooks. Such code
//! may rely on any register unchanged by a function it knows. They keep all but x16 and x17: a call may change these on
//! its way (veneers of the linker's).
//!
//! The fast paths use neither vectors nor more registers than the others, and put those aside below the CFA, with the flags. The slow paths go into
//! Rust by `rftrace_call_keeping`.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use crate::abi::{
    ADDRESS_SHIFT, Control, Record, ReturnEntry, SITE_FACTOR, SITE_SHIFT, ThreadBlock, action, kind, state,
};
use crate::arch::{self, MAX_FRAME_BYTES, aarch64_frames as frames, aarch64_machine::HAS_SCALABLE};
use crate::control_block::CONTROL;
use crate::entry;
use crate::filter;

/// Bytes put aside by the fast paths.
pub(super) const KEPT_BYTES: usize = 64;

// Puts x9 to x15 and the flags aside; x16 changes.
macro_rules! put_aside {
    () => {
        "stp x9, x10, [sp, #-64]!
        .cfi_def_cfa_offset 64
        stp x11, x12, [sp, #16]
        stp x13, x14, [sp, #32]
        mrs x16, nzcv
        stp x15, x16, [sp, #48]\n"
    };
}

// The reverse.
macro_rules! take_back {
    () => {
        "ldp x15, x16, [sp, #48]
        msr nzcv, x16
        ldp x13, x14, [sp, #32]
        ldp x11, x12, [sp, #16]
        ldp x9, x10, [sp], #64
        .cfi_def_cfa_offset 0\n"
    };
}

// As `load_stub`, for a stub with its words in front of `goes_on`.
macro_rules! load_kept_stub {
    () => {
        "ldp x11, x10, [x17, #-24]
        mrs x9, tpidr_el0
        add x10, x10, x9
        ldr x9, [x10]
        tbz x9, #{block_bit}, .Lrftrace_keeping_slow\n"
    };
}

// As `patched_entry`, directly in front of the `bl` before T5.
macro_rules! keeping_entry {
    () => {
        concat!(
            ".cfi_startproc
            .type .Lrftrace_keeping_entry_paired, @function
            .Lrftrace_keeping_entry_paired:
            br x17
            .globl rftrace_keeping_entry
            .type rftrace_keeping_entry, @function
            rftrace_keeping_entry:
            hint #34 // bti c\n",
            put_aside!(),
            "adrp x9, {switch} + {enabled}
            ldrb w9, [x9, :lo12:{switch} + {enabled}]
            tbz w9, #{on_bit}, .Lrftrace_keeping_not_on\n",
            load_kept_stub!(),
            "add x16, sp, #{kept_bytes}\n",
            compare_frames!(cfa = "x16", other = ".Lrftrace_keeping_other", full = ".Lrftrace_keeping_slow"),
            ".Lrftrace_keeping_nested:\n",
            reserve_record!(none = ".Lrftrace_keeping_slow"),
            write_record!(),
            "add x11, x11, #{kind_exit}\n",
            write_entry!(words = "x10", parent_ip = "x30"),
            ".Lrftrace_keeping_publish:
            add x13, sp, #{kept_bytes}
            stlr x13, [x12]\n",
            take_back!(),
        )
    };
}

// Two functions of the tracer, as in `exit_slowly`, with all registers kept.
macro_rules! exit_keeping {
    (find = $find:literal, done = $done:literal) => {
        concat!(
            "sub sp, sp, #208
            .cfi_def_cfa_offset 208
            stp x0, x1, [sp]
            stp x2, x3, [sp, #16]
            stp x4, x5, [sp, #32]
            stp x6, x7, [sp, #48]
            str x8, [sp, #64]
            stp q0, q1, [sp, #80]
            stp q2, q3, [sp, #112]
            stp q4, q5, [sp, #144]
            stp q6, q7, [sp, #176]
            add x0, sp, #208
            mov x5, sp
            adrp x16, ",
            $find,
            "
            add x16, x16, :lo12:",
            $find, // x30 is in the block, as the expression wants it
            "
            bl rftrace_call_keeping
            str x17, [sp, #72]
            .cfi_remember_state
            .cfi_offset x30, 72 - 208
            add x0, sp, #208
            mov x3, x29
            adrp x16, ",
            $done,
            "
            add x16, x16, :lo12:",
            $done,
            "
            bl rftrace_call_keeping
            ldr x17, [sp, #72]
            .cfi_register x30, x17
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

// T5 and T6. The word in front of T5 is `bl .Lrftrace_keeping_entry_paired`; its last byte is T5's, as in front of T.
macro_rules! keeping_trampolines {
    () => {
        concat!(
            ".type rftrace_keeping_return, @function
            rftrace_keeping_return:
            .cfi_startproc
            .cfi_personality 0x1b, rftrace_personality
            .cfi_def_cfa sp, 0\n",
            find_return_address!(),
            call_paired_end!(hook = "rftrace_keeping_entry"),
            "\n.Lrftrace_keeping_trampoline:\n",
            put_aside!(),
            exit_fast!(
                begin = "add x17, sp, #{kept_bytes}\n",
                cfa = "x17",
                to = "x16",
                leave = concat!("mov x30, x16\n.cfi_same_value x30\n", take_back!(), "ret\n")
            ),
            "9:\n",
            take_back!(),
            exit_keeping!(find = "{exit_find}", done = "{exit_done}"),
            "nop
            .Lrftrace_keeping_values_trampoline:\n",
            exit_keeping!(find = "{exit_find_with_values}", done = "{exit_done_with_values}"),
            ".cfi_endproc
            .size rftrace_keeping_return, . - rftrace_keeping_return\n"
        )
    };
}

// The rest of the hook.
global_asm!(
    ".p2align 4",
    ".type rftrace_keeping_rest, @function",
    "rftrace_keeping_rest:",
    ".cfi_startproc",
    ".cfi_def_cfa_offset {kept_bytes}",
    // The caller is not below ours. The same CFA: a tail call, if it returns to T5.
    ".Lrftrace_keeping_other:",
    "cbnz x13, .Lrftrace_keeping_slow",
    "adr x14, .Lrftrace_keeping_trampoline",
    "cmp x30, x14",
    "b.eq .Lrftrace_keeping_nested",
    "b .Lrftrace_keeping_slow",
    ".Lrftrace_keeping_filtered_other:",
    "cbnz x13, .Lrftrace_keeping_slow",
    "adr x14, .Lrftrace_keeping_trampoline",
    "cmp x30, x14",
    "b.eq .Lrftrace_keeping_filtered_nested",
    "b .Lrftrace_keeping_slow",
    ".Lrftrace_keeping_not_on:",
    "cbnz w9, 1f",
    ".Lrftrace_keeping_done:",
    ".cfi_remember_state",
    take_back!(),
    "br x17",
    ".cfi_restore_state",
    // Recording is filtered. w15 = the action for this function, from the table of functions. x16 = the control block.
    "1:",
    load_kept_stub!(),
    find_action!(),
    "cmp w15, #{record}",
    "b.lo .Lrftrace_keeping_done",
    "b.hi 2f",
    // It is recorded if it is nested, and if the state passed on by the function below permits it.
    "add x10, sp, #{kept_bytes}",
    compare_frames!(cfa = "x10", other = ".Lrftrace_keeping_filtered_other", full = ".Lrftrace_keeping_slow"),
    ".Lrftrace_keeping_filtered_nested:",
    check_state!(control = "x16", other = "w15", hidden = ".Lrftrace_keeping_done"),
    pass_on_state!(),
    reserve_record!(none = ".Lrftrace_keeping_slow"),
    write_record!(),
    "add x11, x11, x10",
    "ldr x10, [x17, #-16]",
    "mrs x13, tpidr_el0",
    "add x10, x10, x13",
    write_entry!(words = "x10", parent_ip = "x30"),
    "b .Lrftrace_keeping_publish",
    // Only its entry is recorded.
    "2:",
    "cmp w15, #{point}",
    "b.ne .Lrftrace_keeping_slow",
    "ldr x12, [x9, #{sp} - {cursor}]",
    check_state!(control = "x16", other = "w15", hidden = ".Lrftrace_keeping_done"),
    reserve_record!(none = ".Lrftrace_keeping_slow"),
    "orr x11, x11, #{kind_point}",
    "str x11, [x15, #{word}]",
    "mrs x16, cntvct_el0",
    "stlr x16, [x15]",
    "b .Lrftrace_keeping_done",
    // entry_slow_at_start(place of the saved x30, child_ip, sp, x29, x30, place of the saved x0), with all kept. An
    // untraced thread records nothing.
    ".Lrftrace_keeping_slow:",
    "cmp x9, #{untraced}",
    "b.eq .Lrftrace_keeping_done",
    take_back!(),
    "sub sp, sp, #{saved_bytes}",
    ".cfi_def_cfa_offset {saved_bytes}",
    "stp x29, x30, [sp]",
    ".cfi_offset x29, -{saved_bytes}",
    ".cfi_offset x30, 8 - {saved_bytes}",
    "str x17, [sp, #16]",
    save_arguments!(),
    "add x0, sp, #8 + {at_start}",
    "ldr x1, [x17, #-24]",
    "lsr x1, x1, #{address_shift}",
    "add x2, sp, #{saved_bytes}",
    "mov x3, x29",
    "mov x4, x30",
    "add x5, sp, #32",
    "adrp x16, {entry_slow_at_start}",
    "add x16, x16, :lo12:{entry_slow_at_start}",
    "bl rftrace_call_keeping",
    "ldr x8, [sp, #96]",
    "ldp x6, x7, [sp, #80]",
    "ldp x4, x5, [sp, #64]",
    "ldp x2, x3, [sp, #48]",
    "ldp x0, x1, [sp, #32]",
    "ldr x17, [sp, #16]",
    "ldp x29, x30, [sp]", // x30: T5, if the return is hooked
    ".cfi_restore x29",
    ".cfi_restore x30",
    "add sp, sp, #{saved_bytes}",
    ".cfi_def_cfa_offset 0",
    "br x17",
    ".cfi_endproc",
    ".size rftrace_keeping_rest, . - rftrace_keeping_rest",
    control = sym CONTROL,
    kept_bytes = const KEPT_BYTES,
    untraced = const arch::UNTRACED_ADDRESS,
    block_bit = const arch::BLOCK_BIT,
    max_frame_bytes = const MAX_FRAME_BYTES,
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    sites = const offset_of!(Control, filter.sites),
    sites_mask = const offset_of!(Control, filter.sites_mask),
    site_factor_low = const SITE_FACTOR & 0xffff,
    site_factor_high = const SITE_FACTOR >> 16,
    site_shift = const SITE_SHIFT,
    default_action = const offset_of!(Control, filter.default_action),
    record = const action::RECORD,
    point = const action::POINT,
    decisive = const offset_of!(Control, filter.decisive),
    wanted = const offset_of!(Control, filter.wanted),
    depth_limit = const offset_of!(Control, filter.depth_limit),
    depth_mask = const state::DEPTH_MASK,
    depth_one = const state::DEPTH_ONE,
    state_passed_on_low = const filter::PASSED_ON & !state::DEPTH_MASK,
    sequence_bits = const arch::SEQUENCE_BITS,
    record_bytes = const size_of::<Record>(),
    word = const offset_of!(Record, word),
    entry_bytes = const size_of::<ReturnEntry>(),
    frame = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    kind_exit = const kind::EXIT,
    kind_point = const kind::POINT,
    address_shift = const ADDRESS_SHIFT,
    saved_bytes = const frames::AT_START_BYTES,
    at_start = const frames::AT_START,
    entry_slow_at_start = sym entry::entry_slow_at_start,
);

// Calls the function x16 with its arguments in x0 to x5. The result comes back in x17. Keeps all registers changed by
// Rust code, and by foreign code it may call, beyond x0 to x8, x16, x17 and x30: x9 to x15, x18, the flags, the
// exceptions met by floating-point instructions, all vectors. Scalable vectors, if the processor has them, are kept
// whole, predicates too: code for q0 to q31 sets the rest to zero.
global_asm!(
    ".p2align 4",
    ".type rftrace_call_keeping, @function",
    "rftrace_call_keeping:",
    ".cfi_startproc",
    "sub sp, sp, #{bytes}",
    ".cfi_def_cfa_offset {bytes}",
    "stp x29, x30, [sp]",
    ".cfi_offset x29, -{bytes}",
    ".cfi_offset x30, 8 - {bytes}",
    "mov x29, sp",
    ".cfi_def_cfa_register x29",
    "stp x9, x10, [sp, #16]",
    "stp x11, x12, [sp, #32]",
    "stp x13, x14, [sp, #48]",
    "stp x15, x18, [sp, #64]",
    "mrs x9, nzcv",
    "mrs x10, fpsr",
    "stp x9, x10, [sp, #80]",
    "adrp x9, {has_scalable}",
    "ldrb w9, [x9, :lo12:{has_scalable}]",
    "cbnz w9, 2f",
    "stp q0, q1, [sp, #96]",
    "stp q2, q3, [sp, #128]",
    "stp q4, q5, [sp, #160]",
    "stp q6, q7, [sp, #192]",
    "stp q8, q9, [sp, #224]",
    "stp q10, q11, [sp, #256]",
    "stp q12, q13, [sp, #288]",
    "stp q14, q15, [sp, #320]",
    "stp q16, q17, [sp, #352]",
    "stp q18, q19, [sp, #384]",
    "stp q20, q21, [sp, #416]",
    "stp q22, q23, [sp, #448]",
    "stp q24, q25, [sp, #480]",
    "stp q26, q27, [sp, #512]",
    "stp q28, q29, [sp, #544]",
    "stp q30, q31, [sp, #576]",
    "blr x16",
    "ldp q0, q1, [sp, #96]",
    "ldp q2, q3, [sp, #128]",
    "ldp q4, q5, [sp, #160]",
    "ldp q6, q7, [sp, #192]",
    "ldp q8, q9, [sp, #224]",
    "ldp q10, q11, [sp, #256]",
    "ldp q12, q13, [sp, #288]",
    "ldp q14, q15, [sp, #320]",
    "ldp q16, q17, [sp, #352]",
    "ldp q18, q19, [sp, #384]",
    "ldp q20, q21, [sp, #416]",
    "ldp q22, q23, [sp, #448]",
    "ldp q24, q25, [sp, #480]",
    "ldp q26, q27, [sp, #512]",
    "ldp q28, q29, [sp, #544]",
    "ldp q30, q31, [sp, #576]",
    "b 3f",
    "2:",
    ".arch_extension sve",
    "addvl sp, sp, #-32",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "str z\\n, [sp, #\\n, mul vl]",
    ".endr",
    // The first-fault register is the 17th; sp stays a multiple of 16.
    "addpl sp, sp, #-24",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "str p\\n, [sp, #\\n, mul vl]",
    ".endr",
    "rdffr p0.b",
    "str p0, [sp, #16, mul vl]",
    "blr x16",
    "ldr p0, [sp, #16, mul vl]",
    "wrffr p0.b",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "ldr p\\n, [sp, #\\n, mul vl]",
    ".endr",
    "addpl sp, sp, #24",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "ldr z\\n, [sp, #\\n, mul vl]",
    ".endr",
    "mov sp, x29",
    ".arch_extension nosve",
    "3:",
    "mov x17, x0",
    "ldp x9, x10, [sp, #80]",
    "msr nzcv, x9",
    "msr fpsr, x10",
    "ldp x15, x18, [sp, #64]",
    "ldp x13, x14, [sp, #48]",
    "ldp x11, x12, [sp, #32]",
    "ldp x9, x10, [sp, #16]",
    ".cfi_def_cfa_register sp",
    "ldp x29, x30, [sp]",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "add sp, sp, #{bytes}",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size rftrace_call_keeping, . - rftrace_call_keeping",
    bytes = const 608,
    has_scalable = sym HAS_SCALABLE,
);
