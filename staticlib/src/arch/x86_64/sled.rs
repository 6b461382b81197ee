//! The hook of sleds at which a function returns or jumps to another one: what a compiler leaves room for beside that at the function's
//! beginning (`rftrace_sled_entry`), so that no return has to be hooked.
//!
//! Not here: how sleds get their calls (the frontend).

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use super::KEPT_ENTRY_SAVED;
use crate::abi::{Control, Record, ReturnEntry, Switch, ThreadBlock, enabled, kind, state};
use crate::arch::{self, MAX_FRAME_BYTES};
use crate::control_block::{CONTROL, SWITCH};
use crate::exit;

// Called before a function's `ret`, or its jump to another function, when its frame is gone: its return address lies above the hook's own.
// Registers: results, or the arguments of the other function; callers that know the function may rely on any that it does not change.
// Keeps all but the flags. No alignment is assumed.
//
// As the trampolines: the entry must be the innermost one; its exit is recorded by who sets LEFT; it is unpublished, then released. The return
// address stays where it is.
//
// Not every function that comes here has an entry. It has none if the innermost one lies above it, not too far; or far away, but nothing was
// ever left, so that this is no other stack.
global_asm!(
    ".globl rftrace_sled_exit",
    ".type rftrace_sled_exit,@function",
    ".p2align 6",
    "rftrace_sled_exit:",
    ".cfi_startproc",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    load_block!(),
    "cmp r11, {untraced}",
    "jbe .Lrftrace_sled_exit_done",
    "lea rax, [rsp + {saved} + 8]",
    // rcx = one above our entry. With the sign bit its return is not hooked.
    "mov rcx, [r11 + {sp}]",
    "cmp [rcx - {entry_bytes} + {parent_loc}], rax",
    "jne .Lrftrace_sled_exit_other",
    "cmp qword ptr [rcx - {entry_bytes} + {parent_ip}], 0",
    "jns .Lrftrace_sled_exit_slow",
    "cmp byte ptr [rip + {switch} + {enabled}], {on}",
    "jne .Lrftrace_sled_exit_not_plain",
    reserve_record!(hook = "rftrace_sled_exit", path = "exit"),
    "mov r11, rax",
    "mov rax, [rcx - {entry_bytes} + {exit_word}]",
    "bts dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}",
    "jc .Lrftrace_sled_exit_slow",
    "mov [r11 + {word}], rax",
    stamp_record!(),
    ".Lrftrace_sled_exit_pop:",
    load_block!(),
    "lea rax, [rsp + {saved} + 8]",
    // It has moved if a handler on a stack near by took the interrupted frames for left ones.
    "cmp [rcx - {entry_bytes} + {parent_loc}], rax",
    "jne .Lrftrace_sled_exit_slow",
    "mov qword ptr [rcx - {entry_bytes} + {parent_loc}], 0",
    "sub rcx, {entry_bytes}",
    "mov [r11 + {sp}], rcx",
    ".Lrftrace_sled_exit_done:",
    ".cfi_remember_state",
    pop_saved!(),
    "ret",
    ".cfi_restore_state",
    ".cfi_def_cfa_offset {saved} + 8",
    // The innermost entry is another function's. 0: a hook that was interrupted has just reserved it.
    ".Lrftrace_sled_exit_other:",
    "mov rdx, [rcx - {entry_bytes} + {parent_loc}]",
    "test rdx, rdx",
    "jz .Lrftrace_sled_exit_slow",
    "sub rdx, rax",
    "jb .Lrftrace_sled_exit_slow",
    "cmp rdx, {max_frame_bytes}",
    "jbe .Lrftrace_sled_exit_done",
    "cmp byte ptr [rip + {control} + {any_left}], 0",
    "je .Lrftrace_sled_exit_done",
    "jmp .Lrftrace_sled_exit_slow",
    // Recording is off: slow path. Or it is filtered, as for the trampolines.
    ".Lrftrace_sled_exit_not_plain:",
    "jb .Lrftrace_sled_exit_slow",
    "test byte ptr [rcx - {entry_bytes} + {exit_word}], {hidden}",
    "jnz .Lrftrace_sled_exit_pop",
    "cmp qword ptr [rip + {control} + {min_ticks}], 0",
    "je .Lrftrace_sled_exit_exit_reserve",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov rdx, [rcx - {entry_bytes} + {entered}]",
    "sub rax, rdx",
    "cmp rax, [rip + {control} + {min_ticks}]",
    "jae .Lrftrace_sled_exit_exit_reserve",
    "mov rax, [r11 + {cursor}]",
    "test rax, rax",
    "jz .Lrftrace_sled_exit_slow",
    "cmp [rax - {record_bytes} + {tsc}], rdx",
    "jne .Lrftrace_sled_exit_exit_reserve",
    "mov rdx, [rcx - {entry_bytes} + {exit_word}]",
    "xor dx, dx",
    "cmp [rax - {record_bytes} + {word}], rdx",
    "jne .Lrftrace_sled_exit_exit_reserve",
    "bts dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}",
    "jc .Lrftrace_sled_exit_slow",
    "mov qword ptr [rax - {record_bytes} + {tsc}], 0",
    "lea rdx, [rax - {record_bytes}]",
    "cmpxchg [r11 + {cursor}], rdx",
    "jmp .Lrftrace_sled_exit_pop",
    // exit_at_sled(parent_loc, …, rbp)
    ".Lrftrace_sled_exit_slow:",
    "lea rdx, [rsp + {saved} + 8]",
    "lea rax, [rip + {exit_at_sled}]",
    "call rftrace_call_saved",
    "jmp .Lrftrace_sled_exit_done",
    ".cfi_endproc",
    ".size rftrace_sled_exit, . - rftrace_sled_exit",
    control = sym CONTROL,
    switch = sym SWITCH,
    enabled = const offset_of!(Switch, enabled),
    on = const enabled::ON,
    any_left = const offset_of!(Control, any_left),
    min_ticks = const offset_of!(Control, filter.min_ticks),
    hidden = const state::HIDDEN,
    left_bit = const kind::LEFT.trailing_zeros(),
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    chunk_mask = const offset_of!(ThreadBlock, chunk_mask),
    entry_bytes = const size_of::<ReturnEntry>(),
    max_frame_bytes = const MAX_FRAME_BYTES,
    parent_ip = const offset_of!(ReturnEntry, parent_ip),
    parent_loc = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    entered = const offset_of!(ReturnEntry, sequence),
    record_bytes = const size_of::<Record>(),
    tsc = const offset_of!(Record, tsc),
    word = const offset_of!(Record, word),
    keeps_r11 = const 1,
    saved = const KEPT_ENTRY_SAVED,
    untraced = const arch::UNTRACED_ADDRESS,
    exit_at_sled = sym exit::exit_at_sled,
);
