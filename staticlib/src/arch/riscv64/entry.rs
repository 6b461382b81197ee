//! The hook called by compilers.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use crate::abi::{ADDRESS_SHIFT, Control, Record, ReturnEntry, Switch, ThreadBlock, enabled, kind};
use crate::arch::{self, MAX_FRAME_BYTES, riscv64_frames as frames};
use crate::control_block::{CONTROL, SWITCH};
use crate::entry::entry_slow;

// t5 = the four bytes of a decisive instruction; a5 changes. a1 = the cell, ra = child_ip; `$shift` is the place in the
// cell of the instruction's distance, less one, since its unit is two bytes.
macro_rules! load_decisive {
    ($register:literal, $shift:literal) => {
        concat!(
            "srli ",
            $register,
            ", a1, ",
            $shift,
            " - 1
            andi ",
            $register,
            ", ",
            $register,
            ", {decisive_mask}
            sub ",
            $register,
            ", ra, ",
            $register,
            "
            lhu a5, -2(",
            $register,
            ")
            lhu ",
            $register,
            ", -4(",
            $register,
            ")
            slli a5, a5, 16
            or ",
            $register,
            ", ",
            $register,
            ", a5\n"
        )
    };
}

// Called behind a function's prologue, as any other function. On entry: a0 = its return address, ra = child_ip.
global_asm!(
    ".option push",
    ".option norelax",
    ".globl _mcount",
    ".globl mcount",
    ".type _mcount, @function",
    ".type mcount, @function",
    ".p2align 6",
    "_mcount:",
    "mcount:",
    ".cfi_startproc",
    load_switch!("t0"),
    "bnez t0, 2f",
    "ret",
    "2:",
    load_block!(),
    // All but simple recording takes the slow path.
    "li t2, {on}",
    "bne t0, t2, 9f",
    // a1 = the cell for this call in the table of prologues. To 9 if the function's is another one: the cell has the fingerprint of the
    // decisive instructions.
    "slli a2, ra, {cell_left}",
    "srli a2, a2, {cell_right}",
    "lla a1, {cells}",
    "add a1, a1, a2",
    "ld a1, 0(a1)",
    load_decisive!("a2", "{first_shift}"),
    load_decisive!("a3", "{second_shift}"),
    "slli a3, a3, 32",
    "or a2, a2, a3",
    "lla a3, .Lrftrace_fingerprint_factor",
    "ld a3, 0(a3)",
    "mul a2, a2, a3",
    "xor a2, a2, a1",
    "srli a2, a2, {fingerprint_shift}",
    "bnez a2, 9f",
    // a2 = the CFA, a3 = the slot. To 9 if the return address is not there.
    "mv a2, sp",
    "andi a3, a1, {has_pointer}",
    "beqz a3, 3f",
    "mv a2, s0",
    "3:",
    "andi a3, a1, {cfa_mask}",
    "add a2, a2, a3",
    "srli a3, a1, {return_shift} - {unit_shift}",
    "andi a3, a3, {return_mask}",
    "sub a3, a2, a3",
    "ld a4, 0(a3)",
    "bne a4, a0, 9f",
    // t2 = the place for the entry; t3 = the distance from our CFA to the frame of the entry below, minus 1. To 8 if
    // there is none or it is larger than a frame may be, to 7 if there is no room.
    "ld t2, {sp}(t1)",
    "ld t3, {limit}(t1)",
    "bgeu t2, t3, 7f",
    "ld t3, {frame} - {entry_bytes}(t2)",
    "sub t3, t3, a2",
    "addi t3, t3, -1",
    "srli t4, t3, {max_frame_shift}",
    "bnez t4, 8f",
    "4:",
    reserve_record!(),
    // The entry's frame is 0, so nobody takes it for one yet. But it counts as an open function, so its exit word is
    // cleared: a bit left from its last use would exclude it.
    "sd zero, {exit_word}(t2)",
    "addi t3, t2, {entry_bytes}",
    "sd t3, {sp}(t1)",
    "slli a4, ra, {address_shift}",
    "sd a4, {word}(t0)",
    "rdtime t3",
    "fence rw, w",
    "sd t3, 0(t0)",
    // The sequence number: the time, or one more than the last one, if larger.
    "ld t4, 8(t6)",
    "slli t3, t3, {sequence_bits}",
    "bltu t4, t3, 3f",
    "addi t3, t4, 1",
    "3:",
    "sd t3, 8(t6)",
    "addi a4, a4, {kind_exit}",
    "sd a4, {exit_word}(t2)",
    "sd t3, {sequence}(t2)",
    "sd a0, {parent_ip}(t2)",
    "fence rw, w",
    "sd a2, {frame}(t2)",
    "lla t3, .Lrftrace_trampoline",
    "sd t3, 0(a3)",
    "ret",
    // The caller is not below ours. The same CFA: a tail call, if its return address is T.
    "8:",
    "addi t3, t3, 1",
    "bnez t3, 9f",
    "lla t4, .Lrftrace_trampoline",
    "beq a0, t4, 4b",
    "j 9f",
    // The return stack is full, and this is no call of a function further out: one more for the LOST record, if it is
    // the newest of this cycle.
    "7:",
    "ld t3, {frame} - {entry_bytes}(t2)",
    "bgeu a2, t3, 9f",
    "ld t3, {cursor}(t1)",
    "addi t3, t3, -{record_bytes}",
    "ld t4, {lost_record}(t1)",
    "bne t3, t4, 9f",
    "lla t4, {control} + {cycle_start_tsc}",
    "ld t4, 0(t4)",
    "ld t5, 0(t3)",
    "bltu t5, t4, 9f",
    "addi t3, t3, {word}",
    "li t4, {one_lost}",
    "amoadd.d zero, t4, (t3)",
    "7:",
    "ret",
    // enter(child_ip, sp, s0, parent_ip). An untraced thread records nothing.
    "9:",
    "li t2, {untraced}",
    "beq t1, t2, 7b",
    "mv a3, a0",
    "mv a0, ra",
    "mv a1, sp",
    "mv a2, s0",
    "addi sp, sp, -16",
    ".cfi_def_cfa_offset 16",
    "sd ra, 8(sp)",
    ".cfi_offset ra, -8",
    "call {enter}",
    "ld ra, 8(sp)",
    ".cfi_restore ra",
    "addi sp, sp, 16",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".p2align 3",
    ".Lrftrace_fingerprint_factor:",
    ".quad {fingerprint_factor}",
    ".size _mcount, . - _mcount",
    ".size mcount, . - mcount",
    ".option pop",
    control = sym CONTROL,
    switch = sym SWITCH,
    enabled = const offset_of!(Switch, enabled),
    on = const enabled::ON,
    cells = sym frames::CELLS,
    cell_left = const u64::BITS - frames::CELL_SHIFT - frames::CELL_BITS,
    cell_right = const u64::BITS - frames::CELL_BITS - size_of::<u64>().trailing_zeros(),
    first_shift = const frames::DECISIVE_SHIFTS[0],
    second_shift = const frames::DECISIVE_SHIFTS[1],
    decisive_mask = const ((1 << frames::DECISIVE_BITS) - 1) << 1,
    fingerprint_shift = const frames::FINGERPRINT_SHIFT,
    fingerprint_factor = const frames::FINGERPRINT_FACTOR,
    has_pointer = const frames::HAS_POINTER,
    unit_shift = const frames::OFFSET_UNIT.trailing_zeros(),
    cfa_mask = const ((1 << frames::CFA_BITS) - 1) * frames::OFFSET_UNIT,
    return_shift = const frames::RETURN_SHIFT,
    return_mask = const ((1 << frames::RETURN_BITS) - 1) * frames::OFFSET_UNIT,
    sequence_bits = const arch::SEQUENCE_BITS,
    untraced = const arch::UNTRACED_ADDRESS,
    max_frame_shift = const MAX_FRAME_BYTES.trailing_zeros(),
    sp = const offset_of!(ThreadBlock, sp),
    limit = const offset_of!(ThreadBlock, limit),
    cursor = const offset_of!(ThreadBlock, cursor),
    chunk_mask = const offset_of!(ThreadBlock, chunk_mask),
    lost_record = const offset_of!(ThreadBlock, lost_record),
    cycle_start_tsc = const offset_of!(Control, cycle_start_tsc),
    one_lost = const 1u64 << ADDRESS_SHIFT,
    record_bytes = const size_of::<Record>(),
    word = const offset_of!(Record, word),
    entry_bytes = const size_of::<ReturnEntry>(),
    parent_ip = const offset_of!(ReturnEntry, parent_ip),
    frame = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    sequence = const offset_of!(ReturnEntry, sequence),
    kind_exit = const kind::EXIT,
    address_shift = const ADDRESS_SHIFT,
    enter = sym enter,
);

/// The slow path of the hook: finds the function's frame first.
extern "C" fn enter(child_ip: usize, stack_pointer: usize, frame_pointer: usize, parent_ip: usize) {
    let found = frames::find(child_ip, stack_pointer, frame_pointer, parent_ip);
    // No slot is at 0.
    let (slot, frame, caller) = found.map_or((0, 0, 0), |found| (found.slot, found.frame, found.caller));
    entry_slow(slot, child_ip, stack_pointer, frame, caller, 0);
}

// Assumptions of the assembly: the time is a record's first word, the largest frame is a power of two, and masks are immediates.
const _: () = assert!(offset_of!(Record, tsc) == 0);
const _: () = assert!(MAX_FRAME_BYTES.is_power_of_two());
const _: () = assert!(((1 << frames::CFA_BITS) - 1) * frames::OFFSET_UNIT < 2048 && frames::CFA_SHIFT == 3);
const _: () = assert!(frames::CELL_SHIFT == 1, "the lowest bit of an address behind a call is 0");
