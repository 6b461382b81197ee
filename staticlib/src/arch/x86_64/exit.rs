//! The return trampolines with their unwind information.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use super::{ENTRY_SAVED, EXIT_SAVED, PAIRED_EXIT_SAVED, TRAMPOLINE_BYTES};
#[cfg(not(target_os = "none"))]
use super::{KEPT_ENTRY_SAVED, KEPT_EXIT_SAVED};
#[cfg(not(target_os = "none"))]
use crate::abi::TRAMPOLINE_PLACES_AT;
use crate::abi::{Control, Record, ReturnEntry, Switch, ThreadBlock, enabled, kind, state};
use crate::arch;
use crate::control_block::{CONTROL, SWITCH};
use crate::exit;

// The code of a return trampoline. `leaves_by_ret`: its return address was pushed by a call, so it goes on with a
// `ret`: the return predictor has an entry for it. `keeps_r11`: with `interruptsafe` all do, and so leave by `ret`.
// `saved` is the size of its pushed registers.
macro_rules! exit_path {
    (hook = $hook:literal, leaves_by_ret = $paired:literal, keeps_r11 = $keeps_r11:literal, saved = $saved:literal) => {
        concat!(
            ".cfi_remember_state\n",
            ".if ",
            $paired,
            " | ",
            $keeps_r11,
            "\n",
            "push r11\n", // room for the return address
            ".cfi_adjust_cfa_offset 8\n",
            ".endif\n",
            ".if ",
            $keeps_r11,
            "\n",
            "push r11\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".endif\n",
            "push rcx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rax\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rdx\n",
            ".cfi_adjust_cfa_offset 8\n",
            // rax = parent_loc, r11 = the thread's block. None: the frame was entered on another thread.
            "lea rax, [rsp + ",
            $saved,
            " - 8]\n",
            load_block!(),
            "cmp r11, {untraced}\n",
            "jbe .L", $hook, "_slow\n",
            // rcx = one above our entry; ours must be the innermost one.
            "mov rcx, [r11 + {sp}]\n",
            "cmp [rcx - {entry_bytes} + {parent_loc}], rax\n",
            "jne .L", $hook, "_slow\n",
            "cmp byte ptr [rip + {switch} + {enabled}], {on}\n",
            "jne .L", $hook, "_not_plain\n",
            reserve_record!(hook = $hook, path = "exit"),
            "mov r11, rax\n",
            // Only the setter of the bit records the exit: a signal handler, on a stack near others, may take the
            // interrupted frames for left ones.
            "mov rax, [rcx - {entry_bytes} + {exit_word}]\n",
            "bts dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}\n",
            "jc .L", $hook, "_slow\n",
            "mov [r11 + {word}], rax\n",
            stamp_record!(),
            // Pop: read the return address, unpublish the entry, release it. The entry has moved if such a
            // handler came in between.
            ".L", $hook, "_pop:\n",
            load_block!(),
            "mov rdx, r11\n",
            "lea rax, [rsp + ",
            $saved,
            " - 8]\n",
            "mov r11, [rcx - {entry_bytes} + {parent_ip}]\n",
            "cmp [rcx - {entry_bytes} + {parent_loc}], rax\n",
            "jne .L", $hook, "_slow\n",
            ".cfi_remember_state\n",
            ".cfi_register rip, r11\n",
            "mov qword ptr [rcx - {entry_bytes} + {parent_loc}], 0\n",
            "sub rcx, {entry_bytes}\n",
            "mov [rdx + {sp}], rcx\n",
            ".L", $hook, "_leave:\n",
            ".if ",
            $paired,
            " | ",
            $keeps_r11,
            "\n",
            "mov [rsp + ",
            $saved,
            " - 8], r11\n",
            ".cfi_offset rip, -8\n",
            ".endif\n",
            "pop rdx\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rax\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rcx\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".if ",
            $keeps_r11,
            "\n",
            "pop r11\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".endif\n",
            ".if ",
            $paired,
            " | ",
            $keeps_r11,
            "\n",
            "ret\n",
            ".else\n",
            "jmp r11\n",
            ".endif\n",
            ".cfi_restore_state\n",
            // The assembler's own count goes on from the pops.
            ".cfi_def_cfa_offset ",
            $saved,
            "\n",
            // Recording is off: slow path. Or it is filtered: an entry only for its state is not recorded. Nor is a
            // call too short, if its own entry is the newest record: the record is taken back.
            ".L", $hook, "_not_plain:\n",
            "jb .L", $hook, "_slow\n",
            "test byte ptr [rcx - {entry_bytes} + {exit_word}], {hidden}\n",
            "jnz .L", $hook, "_pop\n",
            "cmp qword ptr [rip + {control} + {min_ticks}], 0\n",
            "je .L", $hook, "_exit_reserve\n",
            "rdtsc\n",
            "shl rdx, 32\n",
            "or rax, rdx\n",
            "mov rdx, [rcx - {entry_bytes} + {entered}]\n",
            "sub rax, rdx\n",
            "cmp rax, [rip + {control} + {min_ticks}]\n",
            "jae .L", $hook, "_exit_reserve\n",
            "mov rax, [r11 + {cursor}]\n",
            "test rax, rax\n",
            "jz .L", $hook, "_slow\n",
            "cmp [rax - {record_bytes} + {tsc}], rdx\n",
            "jne .L", $hook, "_exit_reserve\n",
            // A handler may give the chunk away before the store below, so `late` names the record first, and then it must still be the newest.
            // A handler that interrupts this finds `late` set, and records its exit.
            "cmp qword ptr [r11 + {late}], 0\n",
            "jne .L", $hook, "_exit_reserve\n",
            "mov [r11 + {late}], rax\n",
            "cmp [r11 + {cursor}], rax\n",
            "jne .L", $hook, "_not_newest\n",
            // The same address, and the kind ENTRY; the word before a chunk's first record is neither.
            "mov rdx, [rcx - {entry_bytes} + {exit_word}]\n",
            "xor dx, dx\n",
            "cmp [rax - {record_bytes} + {word}], rdx\n",
            "jne .L", $hook, "_not_newest\n",
            "bts dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}\n",
            "jc .L", $hook, "_not_newest\n",
            // First the record: behind the cursor signal handlers write. From then on the chunk waits for it.
            "mov qword ptr [rax - {record_bytes} + {tsc}], 0\n",
            "mov qword ptr [r11 + {late}], 0\n",
            "lea rdx, [rax - {record_bytes}]\n",
            "cmpxchg [r11 + {cursor}], rdx\n",
            "je .L", $hook, "_pop\n",
            // A handler has written behind it: the record becomes an empty one.
            "mov rax, [rcx - {entry_bytes} + {entered}]\n",
            "mov qword ptr [rdx + {word}], {nothing}\n",
            "mov [rdx + {tsc}], rax\n",
            "jmp .L", $hook, "_pop\n",
            // It is not taken back: it gets its time again if its chunk was given up meanwhile.
            ".L", $hook, "_not_newest:\n",
            "xor edx, edx\n",
            "xchg [r11 + {late}], rdx\n",
            "cmp rdx, rax\n",
            "je .L", $hook, "_is_recorded\n",
            "mov rdx, [rcx - {entry_bytes} + {entered}]\n",
            "mov [rax - {record_bytes} + {tsc}], rdx\n",
            ".L", $hook, "_is_recorded:\n",
            "test byte ptr [rcx - {entry_bytes} + {exit_word}], 1 << {left_bit}\n",
            "jz .L", $hook, "_exit_reserve\n",
            "jmp .L", $hook, "_slow\n",
            // r11 = exit_find(parent_loc), and then exit_done(parent_loc): the entry goes once the unwind information
            // can find the address.
            ".L", $hook, "_slow:\n",
            "lea rdx, [rsp + ",
            $saved,
            " - 8]\n",
            "lea rax, [rip + {exit_find}]\n",
            "call rftrace_call_saved\n",
            "push r11\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".cfi_offset rip, -",
            $saved,
            " - 8\n",
            "lea rdx, [rsp + ",
            $saved,
            "]\n",
            "lea rax, [rip + {exit_done}]\n",
            "call rftrace_call_saved\n",
            "pop r11\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".cfi_register rip, r11\n",
            "jmp .L", $hook, "_leave\n",
            ".cfi_restore_state\n",
            ".cfi_def_cfa rsp, 0\n",
        )
    };
}

// The code of T4. `rftrace_call_saved` finds rax 24 above its frame, behind a return address, the base and rdx. The
// exit is recorded while unwinders still find the return address in the entry; then, as in T, the entry goes: if it is
// the innermost one, and the recorded one. Else the slow path finds it.
#[cfg(not(target_os = "none"))]
macro_rules! exit_with_values {
    () => {
        concat!(
            "push r11\n", // room for the return address
            ".cfi_adjust_cfa_offset 8\n",
            "push r11\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rcx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rax\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rdx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "lea rdx, [rsp + {kept_exit_saved} - 8]\n",
            "lea rax, [rip + {exit_find_with_values}]\n",
            "call rftrace_call_saved\n",
            "mov [rsp + {kept_exit_saved} - 8], r11\n",
            ".cfi_offset rip, -8\n",
            "mov rdx, r11\n",
            load_block!(),
            "cmp r11, {untraced}\n",
            "jbe .Lrftrace_values_slow\n",
            "mov rcx, [r11 + {sp}]\n",
            "lea rax, [rsp + {kept_exit_saved} - 8]\n",
            "cmp [rcx - {entry_bytes} + {parent_loc}], rax\n",
            "jne .Lrftrace_values_slow\n",
            "cmp [rcx - {entry_bytes} + {parent_ip}], rdx\n",
            "jne .Lrftrace_values_slow\n",
            "bt dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}\n",
            "jnc .Lrftrace_values_slow\n",
            "mov qword ptr [rcx - {entry_bytes} + {parent_loc}], 0\n",
            "sub rcx, {entry_bytes}\n",
            "mov [r11 + {sp}], rcx\n",
            ".Lrftrace_values_leave:\n",
            ".cfi_remember_state\n",
            "pop rdx\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rax\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rcx\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop r11\n",
            ".cfi_adjust_cfa_offset -8\n",
            "ret\n",
            ".cfi_restore_state\n",
            // The assembler's own count goes on from the pops.
            ".cfi_def_cfa_offset {kept_exit_saved}\n",
            ".Lrftrace_values_slow:\n",
            "lea rdx, [rsp + {kept_exit_saved} - 8]\n",
            "lea rax, [rip + {exit_done_with_values}]\n",
            "call rftrace_call_saved\n",
            "jmp .Lrftrace_values_leave\n",
        )
    };
}

// The rule for the return address of a trampoline.
macro_rules! true_return_address {
    () => {
        walk_return_stacks!(
            rule = "0x16, 0x10, 0xc4, 0x01",              // of column 16: 196 bytes
            frame = "0x12, 0x38, 0x1c",                   // dup, lit8, minus: a frame's name is its slot
            block = "0x80, 0x00, 0x0b, 0x00, 0xf8, 0x1a", // breg16 0, const2s -2048, and
            list = "0xf8, 0x0f",                          // 2040
            mask = "0xf8"
        )
    };
}

// The return trampolines T, T2, T3 and T4.
//
// A traced function's `ret` lands here. Registers: rax, rdx, xmm0-1, st0-1 may hold its result; all others are the
// caller's or dead. Stack: rsp is the CFA, the former slot of T lies below it and is free now. Keeps all registers (but
// r11 without `interruptsafe`; T3 always keeps it).
//
// T is for functions with a call of their hook. If the caller is traced too, the hook leaves by `.Lrftrace_plain_pair`:
// its call pushes T for the return predictor only. The function's `ret` then goes to the predicted address. Intel's
// processors show what a wrong prediction costs: 12 ns a call. The entries of the function's caller and of the hook's
// call stay in the predictor, so a function with traced calls still misses its own return.
//
// T2 is for those with a patched call site, which came by a jump: their
// hook leaves by `.Lrftrace_pair`. The call there pushes T2 for the return predictor only (on the stack it is dropped
// at once, T2 is in the slot). The function's `ret` then goes to the predicted address, and so does T2's own.
//
// T3 is for functions with an entry branch (`rftrace_entry`), paired as T2 is. Their callers were not compiled for
// hooks, and may have a value in r11 across a call of a function that does not touch it (GCC's -fipa-ra).
//
// T4 is for functions with a recorded result; a slow path records it. It keeps the same as T3, so it is for both kinds
// of functions.
//
// Unwinding: a return address of T means nothing to an unwinder, so T's own unwind information gives the true one. It
// is a DWARF expression: it walks the return stacks of all threads to the entry with the parent_loc `CFA - 8`. It needs
// T's own address to find them: all trampolines lie in a block aligned to 2048, and a program counter within it,
// masked, is the block; the list's address lies at its end, at 2040, as a distance, since a CFI escape holds only
// constants. The unwind information covers T - 1, T2 - 1 and T3 - 1 (the ends of calls), because unwinders look
// up `return address - 1`.
//
// Sources: DWARF 5 sections 2.5 and 6.4.2; the limits of libgcc, LLVM's and nongnu's libunwind and gdb were tried out.
global_asm!(
    ".p2align 11",
    ".type rftrace_pair,@function",
    "rftrace_pair:",
    ".cfi_startproc",
    // Come here by the call: as below, and T2 on the stack.
    ".cfi_def_cfa rsp, {entry_saved} + 16",
    ".cfi_offset rip, -8",
    // No T2 may stay there: it would make the dead slot of a left frame look like a living one.
    "mov [rsp], rcx",
    "lea rsp, [rsp + 8]",
    ".cfi_adjust_cfa_offset -8",
    pop_saved!(),
    "pop r11",
    nothing_pushed!(),
    "jmp r11",
    // A hook for a patched call site jumps here, with child_ip and saved registers pushed.
    ".org rftrace_pair + {trampoline_bytes} - 5, 0xcc",
    ".Lrftrace_pair:",
    ".cfi_def_cfa rsp, {entry_saved} + 8",
    ".cfi_restore rsp",
    ".cfi_offset rip, -8",
    ".byte 0xe8", // call rftrace_pair; unwinders that look for T2 - 1 find the last byte
    ".cfi_endproc",
    ".size rftrace_pair, . - rftrace_pair",
    ".type rftrace_paired_return_trampoline,@function",
    "rftrace_paired_return_trampoline:",
    ".cfi_startproc",
    #[cfg(not(target_os = "none"))]
    ".cfi_personality 0x1b, rftrace_personality",
    ".cfi_def_cfa rsp, 0",
    true_return_address!(),
    ".long rftrace_pair - .Lrftrace_trampolines", // of the call
    // T2, and the beginning of the block.
    ".Lrftrace_trampolines:",
    exit_path!(hook = "rftrace_paired_return_trampoline", leaves_by_ret = "1", keeps_r11 = "{keeps_r11}", saved = "{paired_exit_saved}"),
    ".size rftrace_paired_return_trampoline, . - rftrace_paired_return_trampoline",
    ".cfi_endproc",
    // A called hook whose caller is traced too jumps here.
    ".cfi_startproc",
    ".cfi_def_cfa rsp, {entry_saved} + 8",
    ".cfi_offset rip, -8",
    ".Lrftrace_plain_pair:",
    ".byte 0xe8", // call rftrace_pair
    ".cfi_endproc",
    // T. Its symbol begins at the end of the call: unwinders and debuggers look there.
    ".type rftrace_return_trampoline,@function",
    "rftrace_return_trampoline:",
    ".cfi_startproc",
    #[cfg(not(target_os = "none"))]
    ".cfi_personality 0x1b, rftrace_personality",
    ".cfi_def_cfa rsp, 0",
    true_return_address!(),
    ".long rftrace_pair - .Lrftrace_trampoline",
    ".Lrftrace_trampoline:",
    exit_path!(hook = "rftrace_return_trampoline", leaves_by_ret = "0", keeps_r11 = "{keeps_r11}", saved = "{exit_saved}"),
    // The landing pad: an exception or a forced unwind passes a hooked frame. The unwinder comes here (see the
    // personality) with the exception object in rax and rsp = CFA. The exit is recorded now, at its true time; then the
    // unwinding goes on as if the traced function's caller had called _Unwind_Resume.
    #[cfg(not(target_os = "none"))]
    "rftrace_landing_pad:",
    #[cfg(not(target_os = "none"))]
    "sub rsp, 8",
    #[cfg(not(target_os = "none"))]
    ".cfi_adjust_cfa_offset 8",
    #[cfg(not(target_os = "none"))]
    "push rax",
    #[cfg(not(target_os = "none"))]
    ".cfi_adjust_cfa_offset 8",
    #[cfg(not(target_os = "none"))]
    "lea rdi, [rsp + 8]",
    #[cfg(not(target_os = "none"))]
    "call {unwound_find}",
    #[cfg(not(target_os = "none"))]
    "mov [rsp + 8], rax",
    #[cfg(not(target_os = "none"))]
    ".cfi_offset rip, -8",
    #[cfg(not(target_os = "none"))]
    "lea rdi, [rsp + 8]",
    #[cfg(not(target_os = "none"))]
    "call {unwound_done}",
    #[cfg(not(target_os = "none"))]
    "pop rdi",
    #[cfg(not(target_os = "none"))]
    ".cfi_adjust_cfa_offset -8",
    #[cfg(not(target_os = "none"))]
    "jmp [rip + _Unwind_Resume@GOTPCREL]",
    ".cfi_endproc",
    ".size rftrace_return_trampoline, . - rftrace_return_trampoline",
    // `rftrace_entry` jumps here; this is its unwind information.
    #[cfg(not(target_os = "none"))]
    ".type rftrace_entry_pair,@function",
    #[cfg(not(target_os = "none"))]
    "rftrace_entry_pair:",
    #[cfg(not(target_os = "none"))]
    ".cfi_startproc",
    #[cfg(not(target_os = "none"))]
    ".cfi_signal_frame",
    #[cfg(not(target_os = "none"))]
    ".cfi_def_cfa rsp, {kept_entry_saved} + 16",
    #[cfg(not(target_os = "none"))]
    ".cfi_offset rip, -16",
    #[cfg(not(target_os = "none"))]
    ".byte 0xe8", // call rftrace_entry_paired
    #[cfg(not(target_os = "none"))]
    ".cfi_endproc",
    #[cfg(not(target_os = "none"))]
    ".size rftrace_entry_pair, . - rftrace_entry_pair",
    #[cfg(not(target_os = "none"))]
    ".type rftrace_entry_return_trampoline,@function",
    #[cfg(not(target_os = "none"))]
    "rftrace_entry_return_trampoline:",
    #[cfg(not(target_os = "none"))]
    ".cfi_startproc",
    #[cfg(not(target_os = "none"))]
    ".cfi_personality 0x1b, rftrace_personality",
    #[cfg(not(target_os = "none"))]
    ".cfi_def_cfa rsp, 0",
    #[cfg(not(target_os = "none"))]
    true_return_address!(),
    #[cfg(not(target_os = "none"))]
    ".long rftrace_entry_paired - .Lrftrace_entry_trampoline", // of the call
    #[cfg(not(target_os = "none"))]
    ".Lrftrace_entry_trampoline:",
    #[cfg(not(target_os = "none"))]
    exit_path!(
        hook = "rftrace_entry_return_trampoline",
        leaves_by_ret = "1",
        keeps_r11 = "1",
        saved = "{kept_exit_saved}"
    ),
    #[cfg(not(target_os = "none"))]
    ".cfi_endproc",
    #[cfg(not(target_os = "none"))]
    ".size rftrace_entry_return_trampoline, . - rftrace_entry_return_trampoline",
    // T4. Its symbol begins one byte before, as T's.
    #[cfg(not(target_os = "none"))]
    ".type rftrace_values_return_trampoline,@function",
    #[cfg(not(target_os = "none"))]
    "rftrace_values_return_trampoline:",
    #[cfg(not(target_os = "none"))]
    ".cfi_startproc",
    #[cfg(not(target_os = "none"))]
    ".cfi_personality 0x1b, rftrace_personality",
    #[cfg(not(target_os = "none"))]
    ".cfi_def_cfa rsp, 0",
    #[cfg(not(target_os = "none"))]
    true_return_address!(),
    #[cfg(not(target_os = "none"))]
    "nop",
    #[cfg(not(target_os = "none"))]
    ".Lrftrace_values_trampoline:",
    #[cfg(not(target_os = "none"))]
    exit_with_values!(),
    #[cfg(not(target_os = "none"))]
    ".cfi_endproc",
    #[cfg(not(target_os = "none"))]
    ".size rftrace_values_return_trampoline, . - rftrace_values_return_trampoline",
    // The places of the others, to give return addresses back from outside.
    #[cfg(not(target_os = "none"))]
    ".org .Lrftrace_trampolines + {places_at}, 0xcc",
    #[cfg(not(target_os = "none"))]
    ".irp place, .Lrftrace_trampoline, .Lrftrace_entry_trampoline, .Lrftrace_values_trampoline",
    #[cfg(not(target_os = "none"))]
    ".short \\place - .Lrftrace_trampolines",
    #[cfg(not(target_os = "none"))]
    ".endr",
    ".org .Lrftrace_trampolines + {trampoline_bytes} - 8, 0xcc",
    ".quad {control} + {threads} - .Lrftrace_trampolines",
    control = sym CONTROL,
    switch = sym SWITCH,
            enabled = const offset_of!(Switch, enabled),
    on = const enabled::ON,
    min_ticks = const offset_of!(Control, filter.min_ticks),
    hidden = const state::HIDDEN,
    left_bit = const kind::LEFT.trailing_zeros(),
    threads = const offset_of!(Control, threads),
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    chunk_mask = const offset_of!(ThreadBlock, chunk_mask),
    late = const offset_of!(ThreadBlock, late),
    nothing = const kind::NOTHING,
    entry_bytes = const size_of::<ReturnEntry>(),
    parent_ip = const offset_of!(ReturnEntry, parent_ip),
    parent_loc = const offset_of!(ReturnEntry, frame),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    entered = const offset_of!(ReturnEntry, sequence),
    record_bytes = const size_of::<Record>(),
    tsc = const offset_of!(Record, tsc),
    word = const offset_of!(Record, word),
    trampoline_bytes = const TRAMPOLINE_BYTES,
    #[cfg(not(target_os = "none"))]
    places_at = const TRAMPOLINE_PLACES_AT,
    keeps_r11 = const cfg!(feature = "interruptsafe") as u8,
    entry_saved = const ENTRY_SAVED,
    exit_saved = const EXIT_SAVED,
    paired_exit_saved = const PAIRED_EXIT_SAVED,
    #[cfg(not(target_os = "none"))]
    kept_entry_saved = const KEPT_ENTRY_SAVED,
    #[cfg(not(target_os = "none"))]
    kept_exit_saved = const KEPT_EXIT_SAVED,
    untraced = const arch::UNTRACED_ADDRESS,
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
// T has one landing pad, with the exception object in rax; in the search phase it has nothing to say.
//
// rdi = version, esi = actions, rdx = exception class, rcx = exception object, r8 = context. Returns a reason code.
// The unwinder's functions are weak references: a program without unwinder never comes here.
#[cfg(not(target_os = "none"))]
global_asm!(
    ".weak _Unwind_Resume",
    ".weak _Unwind_SetGR",
    ".weak _Unwind_SetIP",
    ".p2align 4",
    ".type rftrace_personality,@function",
    "rftrace_personality:",
    ".cfi_startproc",
    "mov eax, {continue_unwind}",
    "test esi, {cleanup_phase}",
    "jz .Lrftrace_personality_return",
    "cmp qword ptr [rip + _Unwind_SetGR@GOTPCREL], 0",
    "je .Lrftrace_personality_return",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rbx, r8",
    "mov rdi, r8",
    "xor esi, esi", // DWARF number of rax
    "mov rdx, rcx",
    "call [rip + _Unwind_SetGR@GOTPCREL]",
    "mov rdi, rbx",
    "lea rsi, [rip + rftrace_landing_pad]",
    "call [rip + _Unwind_SetIP@GOTPCREL]",
    "mov eax, {install_context}",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    ".Lrftrace_personality_return:",
    "ret",
    ".cfi_endproc",
    ".size rftrace_personality, . - rftrace_personality",
    continue_unwind = const 8, // _URC_CONTINUE_UNWIND
    install_context = const 7, // _URC_INSTALL_CONTEXT
    cleanup_phase = const 2,   // _UA_CLEANUP_PHASE
);
