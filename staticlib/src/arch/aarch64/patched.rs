//! The hook of patched entries, see [`hooks`](super): a branch replaces the NOP at a function's beginning.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use crate::abi::{
    ADDRESS_SHIFT, Control, Record, ReturnEntry, SITE_FACTOR, SITE_SHIFT, ThreadBlock, action, kind, state,
};
use crate::arch::{self, MAX_FRAME_BYTES, aarch64_frames as frames};
use crate::control_block::CONTROL;
use crate::entry;
use crate::filter;

// x11 = child_ip << 16, x10 = the thread's words, x9 = the cursor's place; to the slow path if there is no block. x17 = the stub.
macro_rules! load_stub {
    () => {
        "ldp x11, x10, [x17, #8]
        mrs x9, tpidr_el0
        add x10, x10, x9
        ldr x9, [x10]
        tbz x9, #{block_bit}, .Lrftrace_entry_slow\n"
    };
}

// The hook to record every call, directly in front of the `bl` before T. It has come by a jump: x17 is the address to
// go on at, x30 the return address, sp the CFA. To the unwinder the function has not begun: the frame is its caller's.
macro_rules! patched_entry {
    () => {
        concat!(
            ".cfi_startproc
            .type .Lrftrace_entry_paired, @function
            .Lrftrace_entry_paired:
            br x17
            .globl rftrace_entry
            .type rftrace_entry, @function
            rftrace_entry:
            hint #34 // bti c
            adrp x9, {switch} + {enabled}
            ldrb w9, [x9, :lo12:{switch} + {enabled}]
            tbz w9, #{on_bit}, .Lrftrace_entry_not_on\n",
            load_stub!(),
            compare_frames!(cfa = "sp", other = ".Lrftrace_entry_other", full = ".Lrftrace_entry_slow"),
            ".Lrftrace_entry_nested:\n",
            reserve_record!(none = ".Lrftrace_entry_slow"),
            write_record!(),
            "add x11, x11, #{kind_exit}\n",
            write_entry!(words = "x10", parent_ip = "x30"),
            "mov x13, sp
            stlr x13, [x12]\n"
        )
    };
}

// `bl`, from a hook's end to its `br x17`, but for the last byte.
macro_rules! call_paired {
    (hook = $hook:literal) => {
        concat!(
            ".L",
            $hook,
            "_pair:
            .byte ((.L",
            $hook,
            "_paired - .L",
            $hook,
            "_pair) / 4) & 0xff
            .byte ((.L",
            $hook,
            "_paired - .L",
            $hook,
            "_pair) / 4 >> 8) & 0xff
            .byte ((.L",
            $hook,
            "_paired - .L",
            $hook,
            "_pair) / 4 >> 16) & 0xff
            .size ",
            $hook,
            ", . - ",
            $hook,
            "
            .cfi_endproc\n"
        )
    };
}

// And its last byte.
macro_rules! call_paired_end {
    (hook = $hook:literal) => {
        concat!(".byte 0x94 + (((.L", $hook, "_paired - .L", $hook, "_pair) / 4 >> 24) & 3)")
    };
}

// w15 = the action for the function of the word x11, from the table of functions; x16 = the control block; x10, x12 to
// x14 change.
macro_rules! find_action {
    () => {
        "adrp x16, {control}
        add x16, x16, :lo12:{control}
        ldr x12, [x16, #{sites}]
        cbz x12, 2f
        lsr x13, x11, #{address_shift}
        mov w14, #{site_factor_low}
        movk w14, #{site_factor_high}, lsl #16
        mul x13, x13, x14
        lsr x13, x13, #{site_shift}
        ldr x14, [x16, #{sites_mask}]
        1:
        and x13, x13, x14
        ldr x15, [x12, x13, lsl #3]
        cbz x15, 2f
        add x13, x13, #1
        eor x15, x15, x11
        lsr x10, x15, #{address_shift}
        cbnz x10, 1b
        and w15, w15, #0xff
        b 3f
        2:
        ldrb w15, [x16, #{default_action}]
        3:\n"
    };
}

// x10 = the addend for an entry's word: the part passed on by x13, the state of the entry below, a level deeper. x13
// changes.
macro_rules! pass_on_state {
    () => {
        "and x10, x13, #{state_passed_on_low}
        and x13, x13, #{depth_mask}
        orr x10, x10, x13
        add x10, x10, #{kind_exit} + {depth_one}\n"
    };
}

// Puts all possible arguments at their places for `values`.
macro_rules! save_arguments {
    () => {
        "stp x0, x1, [sp, #32]
        stp x2, x3, [sp, #48]
        stp x4, x5, [sp, #64]
        stp x6, x7, [sp, #80]
        str x8, [sp, #96]
        stp q0, q1, [sp, #112]
        stp q2, q3, [sp, #144]
        stp q4, q5, [sp, #176]
        stp q6, q7, [sp, #208]\n"
    };
}

// The rest of it.
global_asm!(
    ".p2align 4",
    ".type rftrace_entry_rest, @function",
    "rftrace_entry_rest:",
    ".cfi_startproc",
    // The caller is not below ours. The same CFA: a tail call, if it returns to T.
    ".Lrftrace_entry_other:",
    "cbnz x13, .Lrftrace_entry_slow",
    "adr x14, .Lrftrace_trampoline",
    "cmp x30, x14",
    "b.eq .Lrftrace_entry_nested",
    "b .Lrftrace_entry_slow",
    ".Lrftrace_entry_filtered_other:",
    "cbnz x13, .Lrftrace_entry_slow",
    "adr x14, .Lrftrace_trampoline",
    "cmp x30, x14",
    "b.eq .Lrftrace_entry_filtered_nested",
    "b .Lrftrace_entry_slow",
    ".Lrftrace_entry_not_on:",
    "cbnz w9, 1f",
    ".Lrftrace_entry_done:",
    "br x17",
    // Recording is filtered. w15 = the action for this function, from the table of functions. x16 = the control block.
    "1:",
    load_stub!(),
    find_action!(),
    "cmp w15, #{record}",
    "b.lo .Lrftrace_entry_done",
    "b.hi 2f",
    // It is recorded if it is nested, and if the state passed on by the function below permits it.
    compare_frames!(cfa = "sp", other = ".Lrftrace_entry_filtered_other", full = ".Lrftrace_entry_slow"),
    ".Lrftrace_entry_filtered_nested:",
    check_state!(control = "x16", other = "w15", hidden = ".Lrftrace_entry_done"),
    pass_on_state!(),
    reserve_record!(none = ".Lrftrace_entry_slow"),
    write_record!(),
    "add x11, x11, x10",
    "ldr x10, [x17, #16]",
    "mrs x13, tpidr_el0",
    "add x10, x10, x13",
    write_entry!(words = "x10", parent_ip = "x30"),
    "mov x13, sp",
    "stlr x13, [x12]",
    "b .Lrftrace_entry_pair",
    // Only its entry is recorded.
    "2:",
    "cmp w15, #{point}",
    "b.ne .Lrftrace_entry_slow",
    "ldr x12, [x9, #{sp} - {cursor}]",
    check_state!(control = "x16", other = "w15", hidden = ".Lrftrace_entry_done"),
    reserve_record!(none = ".Lrftrace_entry_slow"),
    "orr x11, x11, #{kind_point}",
    "str x11, [x15, #{word}]",
    "mrs x16, cntvct_el0",
    "stlr x16, [x15]",
    "br x17",
    // entry_slow(place of the saved x30, child_ip, sp, x29, x30, place of the saved x0), with all possible arguments
    // kept. An untraced thread records nothing.
    ".Lrftrace_entry_slow:",
    "cmp x9, #{untraced}",
    "b.eq .Lrftrace_entry_done",
    "sub sp, sp, #{saved_bytes}",
    ".cfi_def_cfa_offset {saved_bytes}",
    "stp x29, x30, [sp]",
    ".cfi_offset x29, -{saved_bytes}",
    ".cfi_offset x30, 8 - {saved_bytes}",
    "mov x29, sp",
    "stp x17, x18, [sp, #16]",
    save_arguments!(),
    "add x0, sp, #8 + {at_start}",
    "ldr x1, [x17, #8]",
    "lsr x1, x1, #{address_shift}",
    "add x2, sp, #{saved_bytes}",
    "ldr x3, [sp]",
    "mov x4, x30",
    "add x5, sp, #32",
    "bl {entry_slow}",
    "ldp q0, q1, [sp, #112]",
    "ldp q2, q3, [sp, #144]",
    "ldp q4, q5, [sp, #176]",
    "ldp q6, q7, [sp, #208]",
    "ldr x8, [sp, #96]",
    "ldp x6, x7, [sp, #80]",
    "ldp x4, x5, [sp, #64]",
    "ldp x2, x3, [sp, #48]",
    "ldp x0, x1, [sp, #32]",
    "ldp x17, x18, [sp, #16]",
    "ldp x29, x30, [sp]", // x30: T, if the return is hooked
    ".cfi_restore x29",
    ".cfi_restore x30",
    "add sp, sp, #{saved_bytes}",
    ".cfi_def_cfa_offset 0",
    "br x17",
    ".cfi_endproc",
    ".size rftrace_entry_rest, . - rftrace_entry_rest",
    control = sym CONTROL,
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
    entry_slow = sym entry::entry_slow,
);
