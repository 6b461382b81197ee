//! The hook called by compilers.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use super::ON_BIT;
use crate::abi::{
    ADDRESS_SHIFT, Control, Record, ReturnEntry, SITE_FACTOR, SITE_SHIFT, Switch, ThreadBlock, action, kind, state,
};
use crate::arch::{
    self, MAX_FRAME_BYTES, aarch64_frames as frames,
    aarch64_prologue::{DECISIVE, Key},
};
use crate::control_block::{CONTROL, SWITCH};
use crate::entry;
use crate::filter;

// Reserves a record and an entry, writes them, and hooks the return. x0 = parent_ip, x1 = the prologue's facts, x2 =
// the CFA, x9 = the cursor's place, x11 = child_ip << 16, x12 = the place for the entry, x17 = the thread's words;
// `exit`, a number or a register, is added to the word of the entry to make the exit's.
macro_rules! record_and_hook {
    (exit = $exit:literal) => {
        concat!(
            reserve_record!(none = "9f"),
            write_record!(),
            "add x11, x11, ",
            $exit,
            "\n",
            write_entry!(words = "x17", parent_ip = "x0"),
            "stlr x2, [x12]
            // T in the slot, signed as the function signs. The instructions are hints, so that they assemble everywhere.
            adr x17, .Lrftrace_trampoline
            tbz x1, #{signed_bit}, 6f
            mov x16, x2
            tbnz x1, #{signed_b_bit}, 5f
            hint #8 // pacia1716: sign x17 with key A, modifier x16
            b 6f
            5:
            hint #10 // pacib1716
            6:
            str x17, [x29, #8]
            ret\n"
        )
    };
}

// Called behind a function's prologue, as any other function. On entry: x0 = its return address without signature, x29 = its
// frame record, x30 = child_ip.
global_asm!(
    ".globl _mcount",
    ".globl mcount", // rustc calls it so on targets without OS
    ".type _mcount, @function",
    ".type mcount, @function",
    ".p2align 6",
    "_mcount:",
    "mcount:",
    ".cfi_startproc",
    "hint #34", // bti c: a PLT comes here by br
    load_switch!("3"),
    "cbnz w3, 2f",
    "ret",
    "2:",
    load_words!(),
    "tbz x9, #{block_bit}, 9f",
    // x1 = the cell for this call in the table of prologues. To 9 if it is another function's: x4 and x5 = the decisive
    // instructions; the cell has their fingerprint.
    "adrp x11, {cells}", // at the beginning of a page
    "ubfx x1, x30, #{cell_shift}, #{cell_bits}",
    "ldr x1, [x11, x1, lsl #3]",
    "sub x2, x30, w1, uxtb #2",
    "ldp x4, x5, [x2, #-16]",
    "ldr x2, .Lrftrace_fingerprint_factor",
    "madd x4, x4, x2, x5",
    "msub x4, x4, x2, x1",
    "lsr x4, x4, #{fingerprint_shift}",
    "cbnz x4, 9f",
    // x11 = child_ip << 16, x2 = the CFA.
    "lsl x11, x30, #{address_shift}",
    "ubfx x2, x1, #{offset_shift}, #{offset_bits}",
    "add x2, x29, x2, lsl #3",
    "tbz w3, #{on_bit}, 1f",
    compare_frames!(cfa = "x2", other = "8f", full = "7f"),
    "4:",
    record_and_hook!(exit = "#{kind_exit}"),
    // The caller is not below ours. The same CFA: a tail call, if its return address is T.
    "8:",
    "cbnz x13, 9f",
    "adr x14, .Lrftrace_trampoline",
    "cmp x0, x14",
    "b.eq 4b",
    "b 9f",
    // The return stack is full, and this is no call of a function further out: one more for the LOST record, if it is
    // the newest of this cycle.
    "7:",
    "ldr x13, [x12, #{frame} - {entry_bytes}]",
    "cmp x13, x2",
    "b.ls 9f",
    "ldr x14, [x9]",
    "sub x14, x14, #{record_bytes}",
    "ldr x15, [x9, #{lost_record} - {cursor}]",
    "cmp x14, x15",
    "b.ne 9f",
    "adrp x15, {control} + {cycle_start_tsc}",
    "ldr x15, [x15, :lo12:{control} + {cycle_start_tsc}]",
    "ldr x16, [x14]",
    "cmp x16, x15",
    "b.lo 9f",
    "add x14, x14, #{word}",
    "3:",
    "ldxr x15, [x14]",
    "add x15, x15, #{one_lost}",
    "stxr w10, x15, [x14]",
    "cbnz w10, 3b",
    "ret",
    // Recording is filtered. w6 = the action for this function, from the table of functions. x8 = the control block.
    "1:",
    "adrp x8, {control}",
    "add x8, x8, :lo12:{control}",
    "ldr x3, [x8, #{sites}]",
    "cbz x3, 2f",
    "mov w4, #{site_factor_low}",
    "movk w4, #{site_factor_high}, lsl #16",
    "mul x4, x30, x4",
    "lsr x4, x4, #{site_shift}",
    "ldr x7, [x8, #{sites_mask}]",
    "1:",
    "and x4, x4, x7",
    "ldr x6, [x3, x4, lsl #3]",
    "cbz x6, 2f",
    "add x4, x4, #1",
    "eor x6, x6, x11",
    "lsr x10, x6, #{address_shift}",
    "cbnz x10, 1b",
    "and w6, w6, #0xff",
    "b 3f",
    "2:",
    "ldrb w6, [x8, #{default_action}]",
    "3:",
    "cmp w6, #{record}",
    "b.lo 7f",
    "b.hi 2f",
    // It is recorded if it is nested, and if the state passed on by the function below permits it.
    compare_frames!(cfa = "x2", other = "8f", full = "9f"),
    "4:",
    check_state!(control = "x8", other = "w15", hidden = "7f"),
    "and x5, x13, #{state_passed_on_low}",
    "and x13, x13, #{depth_mask}",
    "orr x5, x5, x13",
    "add x5, x5, #{kind_exit} + {depth_one}",
    record_and_hook!(exit = "x5"),
    "8:",
    "cbnz x13, 9f",
    "adr x14, .Lrftrace_trampoline",
    "cmp x0, x14",
    "b.eq 4b",
    "b 9f",
    // Only its entry is recorded.
    "2:",
    "cmp w6, #{point}",
    "b.ne 9f",
    "ldr x12, [x9, #{sp} - {cursor}]",
    check_state!(control = "x8", other = "w15", hidden = "7f"),
    reserve_record!(none = "9f"),
    "orr x11, x11, #{kind_point}",
    "str x11, [x15, #{word}]",
    "mrs x16, cntvct_el0",
    "stlr x16, [x15]",
    "7:",
    "ret",
    // entry_slow(parent_loc, child_ip, sp, x29, parent_ip, 0: no register is saved). An untraced thread records
    // nothing.
    "9:",
    "cmp x9, #{untraced}",
    "b.eq 7b",
    "mov x4, x0",
    "add x0, x29, #8",
    "mov x1, x30",
    "mov x2, sp",
    "mov x3, x29",
    "mov x5, #0",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    "bl {entry_slow}",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    ".p2align 3",
    ".Lrftrace_fingerprint_factor:",
    ".quad {fingerprint_factor}",
    ".size _mcount, . - _mcount",
    ".size mcount, . - mcount",
    control = sym CONTROL,
    switch = sym SWITCH,
    enabled = const offset_of!(Switch, enabled),
    on_bit = const ON_BIT,
    cells = sym frames::CELLS,
    cell_shift = const frames::CELL_SHIFT,
    cell_bits = const frames::CELL_BITS,
    fingerprint_shift = const frames::FINGERPRINT_SHIFT,
    fingerprint_factor = const frames::FINGERPRINT_FACTOR,
    offset_bits = const frames::OFFSET_BITS,
    offset_shift = const frames::OFFSET_SHIFT,
    signed_bit = const frames::KEY_SHIFT,
    signed_b_bit = const frames::KEY_SHIFT + 1,
    sequence_bits = const arch::SEQUENCE_BITS,
    untraced = const arch::UNTRACED_ADDRESS,
    block_bit = const arch::BLOCK_BIT,
    max_frame_bytes = const MAX_FRAME_BYTES,
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    lost_record = const offset_of!(ThreadBlock, lost_record),
    cycle_start_tsc = const offset_of!(Control, cycle_start_tsc),
    one_lost = const 1u64 << ADDRESS_SHIFT,
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
    record_bytes = const size_of::<Record>(),
    word = const offset_of!(Record, word),
    entry_bytes = const size_of::<ReturnEntry>(),
    frame = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    kind_exit = const kind::EXIT,
    kind_point = const kind::POINT,
    address_shift = const ADDRESS_SHIFT,
    entry_slow = sym entry::entry_slow,
);

// Assumptions of the assembly: two registers hold the decisive instructions; the lowest byte of a cell names them; the
// meaning of a key's bits.
const _: () = assert!(frames::OFFSET_UNIT == 8 && DECISIVE * size_of::<u32>() == 2 * size_of::<u64>());
const _: () = assert!(frames::DECIDED_BITS == u8::BITS);
const _: () = assert!(Key::None as u8 == 0 && Key::A as u8 == 1 && Key::B as u8 == 3);
