//! The hooks called by compilers, and those jumped to by patched call sites.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use super::{ENTRY_SAVED, KEPT_ENTRY_SAVED, TRAMPOLINE_BYTES};
use crate::abi::{
    ADDRESS_SHIFT, Control, Record, ReturnEntry, SITE_FACTOR, SITE_SHIFT, Switch, ThreadBlock, UNHOOKED, action,
    enabled, kind, state,
};
use crate::arch::{self, MAX_FRAME_BYTES, MAX_REALIGN_BYTES};
use crate::control_block::{CONTROL, SWITCH};
use crate::entry;
use crate::filter;

// The pieces of the hooks. In all of them r11 = the thread's block, rcx = one above its innermost return-stack entry;
// rax and rdx are free. `hook` is the name of the one around them; its label `slow` is for the slow path. `path` tells
// two uses in one hook apart.

// rdx = parent_loc, rax = its distance to the parent_loc of the entry below, minus 1; compared with the largest frame.
// Slow: the frame pointer does not point into the stack (a task's first function); r10 points at or a little above the
// frame, as in GCC's realigned functions (and nested ones).
macro_rules! compare_slots {
    (hook = $hook:expr, parent_loc = $parent_loc:literal, at_function_start = $fentry:literal) => {
        concat!(
            "lea rdx, ",
            $parent_loc,
            "\n",
            "cmp rdx, rsp\n",
            concat!("jbe .L", $hook, "_slow\n"),
            ".if ",
            $fentry,
            " == 1\n",
            // GCC saves the static chain of a nested function around the call: `push r10; call __fentry__; pop r10`.
            "mov rax, [rsp + {entry_saved}]\n",
            "cmp word ptr [rax], 0x5a41\n",
            concat!("je .L", $hook, "_slow\n"),
            ".elseif ",
            $fentry,
            " == 0\n",
            "mov rax, r10\n",
            "sub rax, rdx\n",
            "cmp rax, {max_realign_bytes} + 8\n",
            concat!("jbe .L", $hook, "_slow\n"),
            ".endif\n",
            "mov rax, rdx\n",
            "not rax\n",
            "add rax, [rcx - {entry_bytes} + {parent_loc}]\n",
            "cmp rax, {max_frame_bytes} - 1\n",
        )
    };
}

// The slots' distance minus 1 is rax, parent_loc is rdx. For the same slot: compares its word with the trampolines.
macro_rules! compare_trampoline {
    (hook = $hook:expr) => {
        concat!(
            "inc rax\n",
            concat!("jnz .L", $hook, "_slow\n"),
            "mov rdx, [rdx]\n",
            "and rdx, -{trampoline_bytes}\n",
            "lea rax, [rip + .Lrftrace_trampolines]\n",
            "cmp rdx, rax\n",
        )
    };
}

// Goes to the slow path if the words above the slot look like the frame of an interrupt, see x86_64_interrupts.rs: a
// code segment's selector, flags, a stack segment's selector. rax is the distance of the caller's slot minus 1, rdx is
// parent_loc; a frame lies wholly below the caller's slot, or reaches over it if the caller has just returned and is at
// T's first instruction. Both stay.
#[cfg(all(target_os = "none", feature = "interruptsafe"))]
macro_rules! check_interrupt {
    (hook = $hook:expr, path = $path:literal) => {
        concat!(
            ".irp word, 1, 2, 3\n",
            "cmp rax, 8 * (\\word + 3) - 1\n",
            concat!("jb .L", $hook, "_", $path, "_uninterrupted\n"),
            "cmp qword ptr [rdx + 8 * \\word], 0xffff\n",
            concat!("ja .L", $hook, "_", $path, "_no_frame_\\word\n"),
            "test byte ptr [rdx + 8 * \\word + 8], 2\n",
            concat!("jz .L", $hook, "_", $path, "_no_frame_\\word\n"),
            "cmp qword ptr [rdx + 8 * \\word + 24], 0xffff\n",
            concat!("jbe .L", $hook, "_slow\n"),
            concat!(".L", $hook, "_", $path, "_no_frame_\\word:\n"),
            ".endr\n",
            concat!(".L", $hook, "_", $path, "_uninterrupted:\n"),
        )
    };
}
#[cfg(not(all(target_os = "none", feature = "interruptsafe")))]
macro_rules! check_interrupt {
    (hook = $hook:expr, path = $path:literal) => {
        ""
    };
}

// Goes to `done` if the state passed on by the innermost open function hides the calls in it, or is too deep.
macro_rules! check_state {
    (hook = $hook:expr) => {
        concat!(
            "mov eax, [rcx - {entry_bytes} + {exit_word}]\n",
            "mov edx, eax\n",
            "and edx, [rip + {control} + {decisive}]\n",
            "cmp edx, [rip + {control} + {wanted}]\n",
            concat!("jne .L", $hook, "_done\n"),
            "and eax, {depth_mask}\n",
            "cmp eax, [rip + {control} + {depth_limit}]\n",
            concat!("jae .L", $hook, "_done\n"),
        )
    };
}

// The part of both kinds of recording for a call nested in the function of the entry below rcx, or for a tail call:
// reserves a record and an entry, writes them and hooks the return. r11 = the thread's block, rcx = the place for the
// entry. Afterwards r11 has done its duty; rax, rcx and rdx are free.
//
// `filtered` passes the state of the function below on; `trampoline` is the new return address. `sled`: the return
// stays as it is, and the entry says so.
macro_rules! record_and_hook {
    (
        hook = $hook:expr,
        path = $path:literal,
        parent_loc = $parent_loc:literal,
        trampoline = $trampoline:literal,
        sled = $sled:literal,
        filtered = $filtered:literal
    ) => {
        concat!(
            reserve_record!(hook = $hook, path = $path),
            // Reserve the entry; its parent_loc is 0, so nobody takes it for a frame yet. But it counts as an open
            // function, so its exit word is cleared: a bit left from its last use would exclude it.
            "mov dword ptr [rcx + {exit_word}], 0\n",
            "lea rdx, [rcx + {entry_bytes}]\n",
            "mov [r11 + {sp}], rdx\n",
            "mov r11, rax\n",
            "mov rax, [rsp + {entry_saved}]\n",
            "shl rax, {address_shift}\n",
            "mov [r11 + {word}], rax\n",
            stamp_record!(),
            "mov [rcx + {entered}], rax\n",
            // Write the entry, then hook the return.
            "mov rax, [r11 + {word}]\n",
            ".if ",
            $filtered,
            "\n",
            "mov edx, [rcx - {entry_bytes} + {exit_word}]\n",
            "and edx, {state_passed_on}\n",
            "lea rax, [rax + rdx + {kind_exit} + {depth_one}]\n",
            ".else\n",
            "or rax, {kind_exit}\n",
            ".endif\n",
            "mov [rcx + {exit_word}], rax\n",
            "lea rdx, ",
            $parent_loc,
            "\n",
            "mov rax, [rdx]\n",
            ".if ",
            $sled,
            "\n",
            "bts rax, {unhooked_bit}\n",
            "mov [rcx + {parent_ip}], rax\n",
            "mov [rcx + {parent_loc}], rdx\n",
            ".else\n",
            "mov [rcx + {parent_ip}], rax\n",
            "mov [rcx + {parent_loc}], rdx\n",
            "lea rax, [rip + ",
            $trampoline,
            "]\n",
            "mov [rdx], rax\n",
            ".endif\n",
        )
    };
}

// A called hook leaves by the call in front of T if a traced function called this one. Behind an untraced caller the predictor would
// keep an entry too many, and miss that caller's return. The caller is the traced one if the saved frame pointer names
// the frame of the entry below, and the return address lies within 16 KiB behind the call of that function's hook. rcx =
// the new entry.
macro_rules! leave_by_pair {
    (hook = $hook:literal, caller_frame = $caller_frame:literal) => {
        concat!(
            ".if {keeps_r11} == 0\n",
            "mov rdx, [rcx + {parent_ip}]\n",
            "shl rdx, {address_shift}\n",
            "sub rdx, [rcx - {entry_bytes} + {exit_word}]\n",
            "cmp rdx, 1 << (14 + {address_shift})\n",
            concat!("jae .L", $hook, "_done\n"),
            "mov rax, ",
            $caller_frame,
            "\n",
            "add rax, 8\n",
            "cmp rax, [rcx - {entry_bytes} + {parent_loc}]\n",
            "je .Lrftrace_plain_pair\n",
            ".endif\n",
        )
    };
}

// The place of the traced function's return address: for mcount by the frame pointer, set up by the prologue; for
// __fentry__, called by the function's first instruction, directly above its own return address.
//
// `patched`: the hook was not called, a patched call site has jumped here. child_ip comes in r11 and is pushed, and all
// is as after a call. The way back is a jump; if the return was hooked it leads over the call of T2.
//
// `entered`: a stub has jumped here from the function's first byte, before any of its instructions. It has pushed the
// address to go on at in the function, then the function's address, the child_ip: above the saved registers are `above`
// bytes and the return address. The way back is a jump too; it reads the words below rsp at once, and signal handlers
// leave them alone (the red zone of the psABI).
//
// `sled`: the call written by a frontend into a sled at the function's beginning. As `__fentry__`, but the return is
// not hooked: sleds tell of it too. With `entered` it is for a function with branches at its ends.
macro_rules! entry_hook {
    (
        $name:literal,
        parent_loc = $parent_loc:literal,
        at_function_start = $fentry:literal,
        patched = $patched:literal,
        entered = $entered:literal,
        sled = $sled:literal,
        trampoline = $trampoline:literal,
        leaves = $leaves:expr,
        saved = $saved:expr,
        above = $above:literal,
        slow = $slow:path
    ) => {
        // Called from a function's prologue, or jumped to. Registers: every argument register lives. Stack: child_ip at rsp,
        // or in r11 if patched; no alignment is assumed. Keeps all registers (but r11 without `interruptsafe`, or if patched).
        global_asm!(
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            ".p2align 6",
            concat!($name, ":"),
            ".cfi_startproc",
            concat!(".if ", $patched),
            nothing_pushed!(),
            concat!(".elseif ", $entered),
            ".cfi_signal_frame",
            ".cfi_def_cfa rsp, 16",
            ".cfi_offset rip, -16",
            ".endif",
            "cmp byte ptr [rip + {switch} + {enabled}], {on}",
            concat!("jae .L", $name, "_recording"),
            concat!(".if ", $patched),
            "jmp r11",
            concat!(".elseif ", $entered),
            ".cfi_remember_state",
            leave_entered!(),
            ".cfi_restore_state",
            // The assembler's own count goes on from there.
            ".cfi_def_cfa_offset 16",
            ".else",
            "ret",
            ".endif",
            concat!(".L", $name, "_recording:"),
            concat!(".if ", $patched),
            "push r11",
            ".cfi_def_cfa rsp, 8",
            ".cfi_restore rsp",
            ".cfi_offset rip, -8",
            ".endif",
            ".if {keeps_r11}",
            "push r11",
            ".cfi_adjust_cfa_offset 8",
            ".endif",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            // r11 = the thread's block. None, or none yet: below. The flags still tell whether recording is filtered.
            load_block!(),
            concat!("ja .L", $name, "_filtered"),
            "cmp r11, {untraced}",
            concat!("jbe .L", $name, "_slow"),
            // rcx = the place for the return-stack entry. Slow: the stack is full.
            "mov rcx, [r11 + {sp}]",
            "cmp rcx, [r11 + {limit}]",
            concat!("jae .L", $name, "_full"),
            compare_slots!(hook = $name, parent_loc = $parent_loc, at_function_start = $fentry),
            concat!("ja .L", $name, "_same_slot"),
            check_interrupt!(hook = $name, path = "plain"),
            record_and_hook!(hook = $name, path = "plain", parent_loc = $parent_loc, trampoline = $trampoline, sled = $sled, filtered = "0"),
            $leaves,
            concat!(".L", $name, "_done:"),
            ".cfi_remember_state",
            pop_saved!(),
            concat!(".if ", $patched),
            "pop r11",
            nothing_pushed!(),
            "jmp r11",
            concat!(".elseif ", $entered),
            leave_entered!(),
            ".else",
            "ret",
            ".endif",
            ".cfi_restore_state",
            // The assembler's own count goes on from the pops.
            ".cfi_def_cfa_offset {entry_saved} + {above}",
            // The return stack is full, and this is no call of a function further out: one more for the LOST record, if
            // it is the newest of this cycle.
            concat!(".L", $name, "_full:"),
            concat!("lea rdx, ", $parent_loc),
            "cmp [rcx - {entry_bytes} + {parent_loc}], rdx",
            concat!("jbe .L", $name, "_slow"),
            "mov rax, [r11 + {cursor}]",
            "sub rax, {record_bytes}",
            "cmp [r11 + {lost_record}], rax",
            concat!("jne .L", $name, "_slow"),
            "mov rdx, [rax + {tsc}]",
            "cmp rdx, [rip + {control} + {cycle_start_tsc}]",
            concat!("jb .L", $name, "_slow"),
            "add qword ptr [rax + {word}], 1 << {address_shift}",
            concat!("jmp .L", $name, "_done"),
            // The same slot with T in it is a tail call: the entry goes on top, with T as its parent_ip, and both exits
            // are recorded when the frame returns.
            concat!(".L", $name, "_same_slot:"),
            // A sled's entry would have to note T in the slot.
            concat!(".if ", $sled),
            concat!("jmp .L", $name, "_slow"),
            ".else",
            compare_trampoline!(hook = $name),
            concat!("je .L", $name, "_plain_reserve"),
            concat!("jmp .L", $name, "_slow"),
            ".endif",
            // Recording is filtered. rax = the action for this function, from the table of functions.
            concat!(".L", $name, "_filtered:"),
            "cmp r11, {untraced}",
            concat!("jbe .L", $name, "_slow"),
            "mov rcx, [rip + {control} + {sites}]",
            "test rcx, rcx",
            concat!("jz .L", $name, "_default_action"),
            "imul rdx, [rsp + {entry_saved}], {site_factor}",
            "shr rdx, {site_shift}",
            concat!(".L", $name, "_next_site:"),
            "and rdx, [rip + {control} + {sites_mask}]",
            "mov rax, [rcx + 8 * rdx]",
            "test rax, rax",
            concat!("jz .L", $name, "_default_action"),
            "inc rdx",
            "shr rax, {address_shift}",
            "cmp rax, [rsp + {entry_saved}]",
            concat!("jne .L", $name, "_next_site"),
            "dec rdx",
            "and rdx, [rip + {control} + {sites_mask}]",
            "movzx eax, byte ptr [rcx + 8 * rdx]",
            concat!("jmp .L", $name, "_act"),
            concat!(".L", $name, "_default_action:"),
            "movzx eax, byte ptr [rip + {control} + {default_action}]",
            concat!(".L", $name, "_act:"),
            "mov rcx, [r11 + {sp}]",
            "cmp eax, {record}",
            concat!("jb .L", $name, "_done"),
            concat!("ja .L", $name, "_not_recorded"),
            // It is recorded if it is nested, and if the state passed on by the function below permits it. Slow paths
            // as above.
            "cmp rcx, [r11 + {limit}]",
            concat!("jae .L", $name, "_slow"),
            compare_slots!(hook = $name, parent_loc = $parent_loc, at_function_start = $fentry),
            concat!("ja .L", $name, "_filtered_same_slot"),
            check_interrupt!(hook = $name, path = "filtered"),
            concat!(".L", $name, "_filtered_nested:"),
            check_state!(hook = $name),
            record_and_hook!(hook = $name, path = "filtered", parent_loc = $parent_loc, trampoline = $trampoline, sled = $sled, filtered = "1"),
            $leaves,
            concat!("jmp .L", $name, "_done"),
            // The same slot: a tail call?
            concat!(".L", $name, "_filtered_same_slot:"),
            concat!(".if ", $sled),
            concat!("jmp .L", $name, "_slow"),
            ".else",
            compare_trampoline!(hook = $name),
            concat!("je .L", $name, "_filtered_nested"),
            concat!("jmp .L", $name, "_slow"),
            ".endif",
            // Only its entry is recorded.
            concat!(".L", $name, "_not_recorded:"),
            "cmp eax, {point}",
            concat!("jne .L", $name, "_slow"),
            check_state!(hook = $name),
            reserve_record!(hook = $name, path = "point"),
            "mov r11, rax",
            "mov rax, [rsp + {entry_saved}]",
            "shl rax, {address_shift}",
            "or rax, {kind_point}",
            "mov [r11 + {word}], rax",
            stamp_record!(),
            concat!("jmp .L", $name, "_done"),
            // An untraced thread records nothing.
            concat!(".L", $name, "_slow:"),
            "cmp r11, {untraced}",
            concat!("je .L", $name, "_done"),
            // entry_slow(parent_loc, child_ip, rsp of the traced function, its rbp, its r10)
            concat!("lea rdx, ", $parent_loc),
            "mov rcx, [rsp + {entry_saved}]",
            concat!(".if ", $fentry, " == 1"),
            "cmp word ptr [rcx], 0x5a41",
            concat!("jne .L", $name, "_slot_found"),
            "add rdx, 8",
            concat!(".L", $name, "_slot_found:"),
            ".endif",
            "lea r11, [rsp + {entry_saved} + {above}]",
            "lea rax, [rip + {entry_slow}]",
            "call rftrace_call_saved",
            concat!("jmp .L", $name, "_done"),
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            control = sym CONTROL,
            switch = sym SWITCH,
            enabled = const offset_of!(Switch, enabled),
            on = const enabled::ON,
            sp = const offset_of!(ThreadBlock, sp),
            limit = const offset_of!(ThreadBlock, limit),
            cursor = const offset_of!(ThreadBlock, cursor),
            chunk_mask = const offset_of!(ThreadBlock, chunk_mask),
            lost_record = const offset_of!(ThreadBlock, lost_record),
            cycle_start_tsc = const offset_of!(Control, cycle_start_tsc),
            sites = const offset_of!(Control, filter.sites),
            sites_mask = const offset_of!(Control, filter.sites_mask),
            site_factor = const SITE_FACTOR,
            site_shift = const SITE_SHIFT,
            default_action = const offset_of!(Control, filter.default_action),
            record = const action::RECORD,
            point = const action::POINT,
            decisive = const offset_of!(Control, filter.decisive),
            wanted = const offset_of!(Control, filter.wanted),
            depth_limit = const offset_of!(Control, filter.depth_limit),
            depth_mask = const state::DEPTH_MASK,
            depth_one = const state::DEPTH_ONE,
            state_passed_on = const filter::PASSED_ON,
            entry_bytes = const size_of::<ReturnEntry>(),
            max_frame_bytes = const MAX_FRAME_BYTES,
            max_realign_bytes = const MAX_REALIGN_BYTES,
            trampoline_bytes = const TRAMPOLINE_BYTES,
            parent_ip = const offset_of!(ReturnEntry, parent_ip),
            parent_loc = const offset_of!(ReturnEntry, frame),
            exit_word = const offset_of!(ReturnEntry, exit_word),
            entered = const offset_of!(ReturnEntry, sequence),
            record_bytes = const size_of::<Record>(),
            tsc = const offset_of!(Record, tsc),
            word = const offset_of!(Record, word),
            kind_exit = const kind::EXIT,
            kind_point = const kind::POINT,
            unhooked_bit = const UNHOOKED.trailing_zeros(),
            address_shift = const ADDRESS_SHIFT,
            keeps_r11 = const ($saved == KEPT_ENTRY_SAVED) as u8,
            entry_saved = const $saved,
            above = const $above,
            untraced = const arch::UNTRACED_ADDRESS,
            entry_slow = sym $slow,
        );
    };
}

entry_hook!(
    "mcount",
    parent_loc = "[rbp + 8]",
    at_function_start = "0",
    patched = "0",
    entered = "0",
    sled = "0",
    trampoline = ".Lrftrace_trampoline",
    leaves = leave_by_pair!(hook = "mcount", caller_frame = "[rbp]"),
    saved = ENTRY_SAVED,
    above = 8,
    slow = entry::entry_slow
);
entry_hook!(
    "__fentry__",
    parent_loc = "[rsp + {entry_saved} + 8]",
    at_function_start = "1",
    patched = "0",
    entered = "0",
    sled = "0",
    trampoline = ".Lrftrace_trampoline",
    leaves = leave_by_pair!(hook = "__fentry__", caller_frame = "rbp"),
    saved = ENTRY_SAVED,
    above = 8,
    slow = entry::entry_slow
);
entry_hook!(
    "rftrace_patched_mcount",
    parent_loc = "[rbp + 8]",
    at_function_start = "0",
    patched = "1",
    entered = "0",
    sled = "0",
    trampoline = ".Lrftrace_trampolines",
    leaves = "jmp .Lrftrace_pair",
    saved = ENTRY_SAVED,
    above = 8,
    slow = entry::entry_slow
);
entry_hook!(
    "rftrace_patched_fentry",
    parent_loc = "[rsp + {entry_saved} + 8]",
    at_function_start = "1",
    patched = "1",
    entered = "0",
    sled = "0",
    trampoline = ".Lrftrace_trampolines",
    leaves = "jmp .Lrftrace_pair",
    saved = ENTRY_SAVED,
    above = 8,
    slow = entry::entry_slow
);
#[cfg(not(target_os = "none"))]
entry_hook!(
    "rftrace_entry",
    parent_loc = "[rsp + {entry_saved} + 16]",
    at_function_start = "2",
    patched = "0",
    entered = "1",
    sled = "0",
    trampoline = ".Lrftrace_entry_trampoline",
    leaves = "jmp rftrace_entry_pair",
    saved = KEPT_ENTRY_SAVED,
    above = 16,
    slow = entry::entry_slow_at_start
);
#[cfg(not(target_os = "none"))]
entry_hook!(
    "rftrace_entry_with_ends",
    parent_loc = "[rsp + {entry_saved} + 16]",
    at_function_start = "2",
    patched = "0",
    entered = "1",
    sled = "1",
    trampoline = ".Lrftrace_entry_trampoline",
    leaves = "",
    saved = KEPT_ENTRY_SAVED,
    above = 16,
    slow = entry::entry_slow_at_sled
);
#[cfg(not(target_os = "none"))]
entry_hook!(
    "rftrace_sled_entry",
    parent_loc = "[rsp + {entry_saved} + 8]",
    at_function_start = "2",
    patched = "0",
    entered = "0",
    sled = "1",
    trampoline = ".Lrftrace_trampoline",
    leaves = "",
    saved = KEPT_ENTRY_SAVED,
    above = 8,
    slow = entry::entry_slow_at_sled
);

// The call at `rftrace_entry_pair` comes here, and goes on to the function: as rftrace_pair.
#[cfg(not(target_os = "none"))]
global_asm!(
    ".p2align 4",
    ".type rftrace_entry_paired,@function",
    "rftrace_entry_paired:",
    ".cfi_startproc",
    ".cfi_signal_frame",
    // Come here by the call: T3 on the stack, then the registers saved by the hook.
    ".cfi_def_cfa rsp, {entry_saved} + 24",
    ".cfi_offset rip, -16",
    // No T3 may stay there: it would make the dead slot of a left frame look like a living one.
    "mov [rsp], rcx",
    "lea rsp, [rsp + 8]",
    ".cfi_adjust_cfa_offset -8",
    pop_saved!(),
    leave_entered!(),
    ".cfi_endproc",
    ".size rftrace_entry_paired, . - rftrace_entry_paired",
    keeps_r11 = const 1,
    entry_saved = const KEPT_ENTRY_SAVED,
);
