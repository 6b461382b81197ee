//! The return trampoline with its unwind information.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use crate::abi::{Control, Record, ReturnEntry, Switch, ThreadBlock, enabled, kind};
use crate::arch::{self, riscv64_machine as machine};
use crate::control_block::{CONTROL, SWITCH};
use crate::exit;

// The return trampoline T.
//
// A traced function's `ret` lands here, with sp = CFA and ra = T. a0 to a7 and fa0 to fa7 may hold its result. Keeps them.
//
// Unwinding: a return address of T means nothing to an unwinder, so T's own unwind information gives the true one. It
// is a DWARF expression: it walks the return stacks of all threads to the entry with the CFA as its frame. It finds
// them by ra, always T when this information is asked: T lies in a block aligned to 1024, at the address ra masked; the
// list's address lies at its end, as a distance, since a CFI escape holds only constants. The unwind information covers
// T - 4 (a nop), because unwinders look up `return address - 1`.
//
// Sources: DWARF 5 sections 2.5 and 6.4.2, RISC-V ELF psABI (DWARF numbers); libgcc was tried. Its DW_OP_pick does not
// reach the undermost element, hence the first dup.
global_asm!(
    ".option push",
    ".option norelax",
    ".pushsection .text.rftrace_return_trampoline, \"ax\", @progbits",
    ".p2align 10",
    ".Lrftrace_block:",
    ".type rftrace_return_trampoline, @function",
    "rftrace_return_trampoline:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, rftrace_personality",
    ".cfi_def_cfa sp, 0",
    walk_return_stacks!(
        rule = "0x16, 0x01, 0xc2, 0x01",              // of ra: 194 bytes
        frame = "0x12",                               // dup: frames are named by their CFA
        block = "0x71, 0x00, 0x0b, 0x00, 0xfc, 0x1a", // breg1 0, const2s -1024, and
        list = "0xf8, 0x07",                          // 1016
        mask = "0xfc"
    ),
    "nop",
    ".Lrftrace_trampoline:",
    load_block!(), // to 9 if the frame was entered on another thread
    // t2 = one above our entry; ours must be the innermost one.
    "ld t2, {sp}(t1)",
    "ld t3, {frame} - {entry_bytes}(t2)",
    "bne t3, sp, 9f",
    // All but simple recording takes the slow path.
    load_switch!("t3"),
    "li t4, {on}",
    "bne t3, t4, 9f",
    reserve_record!(),
    // Only the setter of the bit records the exit: a signal handler, on a stack near others, may take the interrupted
    // frames for left ones. t4 = the word of the exit.
    "addi t3, t2, {exit_word} - {entry_bytes}",
    "li t5, {left}",
    "amoor.d t4, t5, (t3)",
    "and t5, t5, t4",
    "bnez t5, 9f",
    "sd t4, {word}(t0)",
    "rdtime t3",
    "fence rw, w",
    "sd t3, 0(t0)",
    // Pop: read the return address, unpublish the entry, release it. The entry has moved if such a handler came in between.
    "ld t3, {frame} - {entry_bytes}(t2)",
    "bne t3, sp, 9f",
    "ld t3, {parent_ip} - {entry_bytes}(t2)",
    ".cfi_remember_state",
    ".cfi_register ra, t3",
    "addi t2, t2, -{entry_bytes}",
    "sd zero, {frame}(t2)",
    "sd t2, {sp}(t1)",
    "mv ra, t3", // where it is T again (a tail call), ra has to say so
    "jr t3",
    ".cfi_restore_state",
    // t3 = exit_find(CFA), and then exit_done(CFA): the entry goes once the unwind information can find the address.
    // All possible results are kept.
    "9:",
    "addi sp, sp, -144",
    ".cfi_def_cfa_offset 144",
    "sd a0, 0(sp)",
    "sd a1, 8(sp)",
    "sd a2, 16(sp)",
    "sd a3, 24(sp)",
    "sd a4, 32(sp)",
    "sd a5, 40(sp)",
    "sd a6, 48(sp)",
    "sd a7, 56(sp)",
    "fsd fa0, 64(sp)",
    "fsd fa1, 72(sp)",
    "fsd fa2, 80(sp)",
    "fsd fa3, 88(sp)",
    "fsd fa4, 96(sp)",
    "fsd fa5, 104(sp)",
    "fsd fa6, 112(sp)",
    "fsd fa7, 120(sp)",
    "addi a0, sp, 144",
    "call {exit_find}", // ra is in the block, as the expression wants it
    "sd a0, 136(sp)",
    ".cfi_remember_state",
    ".cfi_offset ra, -8",
    "addi a0, sp, 144",
    "mv a3, s0",
    "call {exit_done}",
    "ld t3, 136(sp)",
    ".cfi_register ra, t3",
    "ld a0, 0(sp)",
    "ld a1, 8(sp)",
    "ld a2, 16(sp)",
    "ld a3, 24(sp)",
    "ld a4, 32(sp)",
    "ld a5, 40(sp)",
    "ld a6, 48(sp)",
    "ld a7, 56(sp)",
    "fld fa0, 64(sp)",
    "fld fa1, 72(sp)",
    "fld fa2, 80(sp)",
    "fld fa3, 88(sp)",
    "fld fa4, 96(sp)",
    "fld fa5, 104(sp)",
    "fld fa6, 112(sp)",
    "fld fa7, 120(sp)",
    "addi sp, sp, 144",
    ".cfi_def_cfa_offset 0",
    "mv ra, t3",
    "jr t3",
    ".cfi_restore_state",
    ".cfi_def_cfa_offset 0",
    // The landing pad: an exception or a forced unwind passes a hooked frame. The unwinder comes here (see the
    // personality) with the exception object in a0 and sp = CFA. The exit is recorded now, at its true time; then the
    // unwinding goes on as if the traced function's caller had called _Unwind_Resume.
    ".Lrftrace_landing_pad:",
    "lla ra, .Lrftrace_trampoline",
    "addi sp, sp, -16",
    ".cfi_def_cfa_offset 16",
    "sd a0, 0(sp)",
    "addi a0, sp, 16",
    "call {unwound_find}",
    "sd a0, 8(sp)",
    ".cfi_offset ra, -8",
    "addi a0, sp, 16",
    "call {unwound_done}",
    "ld a0, 0(sp)",
    "ld ra, 8(sp)",
    ".cfi_same_value ra",
    "addi sp, sp, 16",
    ".cfi_def_cfa_offset 0",
    "lga t3, _Unwind_Resume",
    "jr t3",
    ".cfi_endproc",
    ".size rftrace_return_trampoline, . - rftrace_return_trampoline",
    ".org .Lrftrace_block + {trampoline_bytes} - 8",
    ".quad {control} + {threads} - .Lrftrace_block",
    ".popsection",
    ".option pop",
    control = sym CONTROL,
    switch = sym SWITCH,
    enabled = const offset_of!(Switch, enabled),
    on = const enabled::ON,
    left = const kind::LEFT,
    threads = const offset_of!(Control, threads),
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    chunk_mask = const offset_of!(ThreadBlock, chunk_mask),
    entry_bytes = const size_of::<ReturnEntry>(),
    parent_ip = const offset_of!(ReturnEntry, parent_ip),
    frame = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    record_bytes = const size_of::<Record>(),
    word = const offset_of!(Record, word),
    trampoline_bytes = const machine::TRAMPOLINE_BYTES,
    untraced = const arch::UNTRACED_ADDRESS,
    exit_find = sym exit::exit_find,
    exit_done = sym exit::exit_done,
    unwound_find = sym exit::unwound_find,
    unwound_done = sym exit::unwound_done,
);

// The trampoline's personality routine (Itanium C++ ABI: Exception Handling, 1.6): in the cleanup phase every frame of
// T has one landing pad, with the exception object in a0; in the search phase it has nothing to say.
//
// a0 = version, a1 = actions, a2 = exception class, a3 = exception object, a4 = context. Returns a reason code. The unwinder's
// functions are weak references: a program without unwinder never comes here.
global_asm!(
    ".option push",
    ".option norelax",
    ".weak _Unwind_Resume",
    ".weak _Unwind_SetGR",
    ".weak _Unwind_SetIP",
    ".p2align 4",
    ".type rftrace_personality, @function",
    "rftrace_personality:",
    ".cfi_startproc",
    "andi a1, a1, {cleanup}",
    "bnez a1, 2f",
    "1:",
    "li a0, {continue_unwind}",
    "ret",
    "2:",
    "lga t0, _Unwind_SetGR",
    "beqz t0, 1b",
    "addi sp, sp, -16",
    ".cfi_def_cfa_offset 16",
    "sd ra, 8(sp)",
    ".cfi_offset ra, -8",
    "sd a4, 0(sp)",
    "mv a0, a4",
    "li a1, 10", // DWARF number of a0
    "mv a2, a3",
    "jalr t0",
    "ld a0, 0(sp)",
    "lla a1, .Lrftrace_landing_pad",
    "lga t0, _Unwind_SetIP",
    "jalr t0",
    "li a0, {install_context}",
    "ld ra, 8(sp)",
    ".cfi_restore ra",
    "addi sp, sp, 16",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size rftrace_personality, . - rftrace_personality",
    ".option pop",
    continue_unwind = const 8, // _URC_CONTINUE_UNWIND
    install_context = const 7, // _URC_INSTALL_CONTEXT
    cleanup = const 1 << 1,    // _UA_CLEANUP_PHASE
);
