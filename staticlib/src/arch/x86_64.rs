//! x86-64: `mcount`, `__fentry__`, the return trampoline with its unwind information.
//!
//! # How a return is caught
//!
//! A hook runs in the prologue of a traced function. It moves the return address (`parent_ip`) from its stack slot
//! (`parent_loc`) to the return stack and puts the address of the trampoline T into the slot. When the function
//! returns, T runs in its stead, records the exit and goes on to `parent_ip`:
//!
//! ```text
//!   higher addresses
//!   | caller's frame           |
//!   +--------------------------+ <- CFA of the traced function = rsp when T starts
//!   | parent_ip, now T         |    parent_loc
//!   +--------------------------+
//!   | saved rbp                | <- rbp while the hook of mcount runs
//!   | locals, saved registers  |
//!   +--------------------------+
//!   | child_ip                 | <- rsp when a hook starts: pushed by `call mcount`
//! ```
//!
//! T leaves with `jmp r11`: the return predictor has already popped the caller's entry for the function's own `ret`,
//! a second `ret` would take one that belongs to an outer frame.
//!
//! # What the hooks may touch
//!
//! On entry all argument registers live (rdi, rsi, rdx, rcx, r8, r9, xmm0-7, the count of vector registers in al, the
//! static chain in r10); on return rax, rdx, xmm0-1 and st0-1 hold results (System V ABI for AMD64, 3.2.3). The hooks
//! keep everything except r11 and the flags, which no calling convention passes on; the feature `interruptsafe`
//! keeps r11 too. `-pg` switches off GCC's inter-procedural register allocation, so no caller relies on r11.
//!
//! # Order, for signals between any two instructions
//!
//! A record is reserved by a `cmpxchg` of the cursor (no `lock`: only this thread writes it), then written. A
//! return-stack entry is reserved by moving `sp`, then written, its `parent_loc` last but one, the slot itself last. A
//! pop reads the entry, clears `parent_loc`, then moves `sp`.

#[cfg(target_feature = "sse")]
use core::arch::x86_64::__cpuid;
use core::arch::{asm, global_asm};
#[cfg(target_feature = "sse")]
use core::mem::MaybeUninit;
use core::mem::{offset_of, size_of};

use crate::abi::{
    ADDRESS_SHIFT, Control, Record, ReturnEntry, SITE_FACTOR, SITE_SHIFT, ThreadBlock, action, enabled, kind, state,
};
use crate::control::CONTROL;
use crate::filter;
use crate::hooks;

/// What the trampoline pushes before it looks at its stack slot: rcx, rax, rdx, and with `interruptsafe` room for the
/// return address and r11.
const EXIT_SAVED: usize = if cfg!(feature = "interruptsafe") { 40 } else { 24 };
/// The same for T2, which always leaves by `ret`.
const PAIRED_EXIT_SAVED: usize = if cfg!(feature = "interruptsafe") { 40 } else { 32 };
/// What a hook pushes before it looks at its caller: rax, rcx, rdx, and with `interruptsafe` r11.
const ENTRY_SAVED: usize = if cfg!(feature = "interruptsafe") { 32 } else { 24 };
/// The size and alignment of the block with the trampolines, as their unwind information has it.
const TRAMPOLINE_BYTES: usize = 1024;
/// The largest alignment of a frame that [`slots`] looks for: a page.
const MAX_REALIGN_BYTES: usize = 4096;

// r11 = the thread's block, null if there is none yet. Keeps the flags.
#[cfg(not(feature = "threadhook"))]
macro_rules! load_block {
    () => {
        "mov r11, [rip + rftrace_thread_block@gottpoff]\nmov r11, fs:[r11]\n"
    };
}
#[cfg(feature = "threadhook")]
macro_rules! load_block {
    () => {
        "call rftrace_thread_area\nmov r11, [r11]\n"
    };
}

// The pieces of the hooks. In all of them r11 = the thread's block, rcx = one above its innermost return-stack entry; rax
// and rdx are free. They go to 9 for the slow path.

// rdx = parent_loc, rax = its distance to that of the entry below, minus 1; compared with the largest frame. Slow: the
// frame pointer does not point into the stack (a task's first function); r10 points at or a little above the frame, as in
// GCC's realigned functions (and nested ones).
macro_rules! compare_slots {
    (parent_loc = $parent_loc:literal, at_function_start = $fentry:literal) => {
        concat!(
            "lea rdx, ",
            $parent_loc,
            "\n",
            "cmp rdx, rsp\n",
            "jbe 9f\n",
            ".if ",
            $fentry,
            "\n",
            // GCC saves the static chain of a nested function around the call: `push r10; call __fentry__; pop r10`.
            "mov rax, [rsp + {entry_saved}]\n",
            "cmp word ptr [rax], 0x5a41\n",
            "je 9f\n",
            ".else\n",
            "mov rax, r10\n",
            "sub rax, rdx\n",
            "cmp rax, {max_realign_bytes} + 8\n",
            "jbe 9f\n",
            ".endif\n",
            "mov rax, rdx\n",
            "not rax\n",
            "add rax, [rcx - {entry_bytes} + {parent_loc}]\n",
            "cmp rax, {max_frame_bytes} - 1\n",
        )
    };
}

// The slots' distance minus 1 is rax, parent_loc is rdx. The same slot: compares what it holds with the trampolines.
macro_rules! compare_trampoline {
    () => {
        concat!(
            "inc rax\n",
            "jnz 9f\n",
            "mov rdx, [rdx]\n",
            "and rdx, -{trampoline_bytes}\n",
            "lea rax, [rip + .Lrftrace_trampolines]\n",
            "cmp rdx, rax\n",
        )
    };
}

// Goes to the slow path if the words above the slot look like the frame of an interrupt, see x86_64_interrupts.rs: a code
// segment's selector, flags, a stack segment's selector. rax is the distance of the caller's slot minus 1, rdx is parent_loc; a
// frame lies wholly below the caller's slot, or reaches over it if that has just returned and is at T's first instruction. Both
// stay.
#[cfg(all(target_os = "none", feature = "interruptsafe"))]
macro_rules! check_interrupt {
    () => {
        concat!(
            ".irp word, 1, 2, 3\n",
            "cmp rax, 8 * (\\word + 3) - 1\n",
            "jb 22f\n",
            "cmp qword ptr [rdx + 8 * \\word], 0xffff\n",
            "ja 23f\n",
            "test byte ptr [rdx + 8 * \\word + 8], 2\n",
            "jz 23f\n",
            "cmp qword ptr [rdx + 8 * \\word + 24], 0xffff\n",
            "jbe 9f\n",
            "23:\n",
            ".endr\n",
            "22:\n",
        )
    };
}
#[cfg(not(all(target_os = "none", feature = "interruptsafe")))]
macro_rules! check_interrupt {
    () => {
        ""
    };
}

// Goes to 4 if the innermost open function passes on that calls in it are not recorded, or is too deep.
macro_rules! check_state {
    () => {
        concat!(
            "mov eax, [rcx - {entry_bytes} + {exit_word}]\n",
            "mov edx, eax\n",
            "and edx, [rip + {control} + {decisive}]\n",
            "cmp edx, [rip + {control} + {wanted}]\n",
            "jne 4b\n",
            "and eax, {depth_mask}\n",
            "cmp eax, [rip + {control} + {depth_limit}]\n",
            "jae 4b\n",
        )
    };
}

// rax = the next record of this thread, reserved. Begins with the label 3.
macro_rules! reserve_record {
    () => {
        concat!(
            "3:\n",
            "mov rax, [r11 + {cursor}]\n",
            "test rax, [r11 + {chunk_mask}]\n",
            "jz 9f\n",
            "lea rdx, [rax + {record_bytes}]\n",
            "cmpxchg [r11 + {cursor}], rdx\n",
            "jne 3b\n",
        )
    };
}

// Writes the time of the record r11, which makes it valid, and leaves it in rax.
macro_rules! stamp_record {
    () => {
        concat!("rdtsc\n", "shl rdx, 32\n", "or rax, rdx\n", "mov [r11 + {tsc}], rax\n")
    };
}

// The unwind information of a hook that a patched call site has jumped to, while nothing is pushed: child_ip is in r11, and
// rsp is the traced function's. Unwinders tell frames apart by their CFA, so it must not be rsp, which is that of the
// signal's frame when one strikes here, nor anything that the function's own may be. Any odd number is neither; then rsp has a
// rule of its own, DW_CFA_val_expression breg7 0.
macro_rules! nothing_pushed {
    () => {
        ".cfi_def_cfa rsp, 1\n.cfi_escape 0x16, 0x07, 0x02, 0x77, 0x00\n.cfi_register rip, r11\n"
    };
}

// What both kinds of recording do with a call that is nested in the function of the entry below rcx, or is a tail call:
// reserves a record and an entry, writes them and hooks the return. r11 = the thread's block, rcx = the place for the
// entry. Afterwards r11 has done its duty; rax, rcx and rdx are free.
//
// `filtered` passes the state of the function below on; `trampoline` is what the function returns to.
macro_rules! record_and_hook {
    (parent_loc = $parent_loc:literal, trampoline = $trampoline:literal, filtered = $filtered:literal) => {
        concat!(
            reserve_record!(),
            // Reserve the entry; its parent_loc is 0, so nobody takes it for a frame yet. Who counts the open functions counts
            // it: the bit that is left from its last use would say no.
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
            "mov [rcx + {parent_ip}], rax\n",
            "mov [rcx + {parent_loc}], rdx\n",
            "lea rax, [rip + ",
            $trampoline,
            "]\n",
            "mov [rdx], rax\n",
        )
    };
}

// Where the traced function's return address is: for mcount by the frame pointer, which the prologue has set up; for
// __fentry__, called by the function's first instruction, directly above its own return address.
//
// `patched`: the hook was not called, a patched call site has jumped here. child_ip comes in r11 and is pushed, and all
// is as after a call. The way back is a jump; if the return was hooked it leads over the call that belongs to T2.
macro_rules! entry_hook {
    (
        $name:literal,
        parent_loc = $parent_loc:literal,
        at_function_start = $fentry:literal,
        patched = $patched:literal,
        trampoline = $trampoline:literal
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
            ".endif",
            "cmp byte ptr [rip + {control} + {enabled}], {on}",
            "jae 2f",
            concat!(".if ", $patched),
            "jmp r11",
            ".else",
            "ret",
            ".endif",
            "2:",
            concat!(".if ", $patched),
            "push r11",
            ".cfi_def_cfa rsp, 8",
            ".cfi_restore rsp",
            ".cfi_offset rip, -8",
            ".endif",
            #[cfg(feature = "interruptsafe")]
            "push r11",
            #[cfg(feature = "interruptsafe")]
            ".cfi_adjust_cfa_offset 8",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            // r11 = the thread's block. None yet: slow path. The flags still tell whether recording is filtered.
            load_block!(),
            "ja 7f",
            "test r11, r11",
            "jz 9f",
            // rcx = the place for the return-stack entry. Slow: the stack is full.
            "mov rcx, [r11 + {sp}]",
            "cmp rcx, [r11 + {limit}]",
            "jae 6f",
            compare_slots!(parent_loc = $parent_loc, at_function_start = $fentry),
            "ja 8f",
            check_interrupt!(),
            record_and_hook!(parent_loc = $parent_loc, trampoline = $trampoline, filtered = "0"),
            concat!(".if ", $patched),
            "jmp .Lrftrace_pair",
            ".endif",
            "4:",
            ".cfi_remember_state",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            #[cfg(feature = "interruptsafe")]
            "pop r11",
            #[cfg(feature = "interruptsafe")]
            ".cfi_adjust_cfa_offset -8",
            concat!(".if ", $patched),
            "pop r11",
            nothing_pushed!(),
            "jmp r11",
            ".else",
            "ret",
            ".endif",
            ".cfi_restore_state",
            // The assembler's own count goes on from the pops.
            ".cfi_def_cfa_offset {entry_saved} + 8",
            // The return stack is full, and this is no call of a function further out: one more for the LOST record, if
            // that is the newest of this cycle.
            "6:",
            concat!("lea rdx, ", $parent_loc),
            "cmp [rcx - {entry_bytes} + {parent_loc}], rdx",
            "jbe 9f",
            "mov rax, [r11 + {cursor}]",
            "sub rax, {record_bytes}",
            "cmp [r11 + {lost_record}], rax",
            "jne 9f",
            "mov rdx, [rax + {tsc}]",
            "cmp rdx, [rip + {control} + {cycle_start_tsc}]",
            "jb 9f",
            "add qword ptr [rax + {word}], 1 << {address_shift}",
            "jmp 4b",
            // The same slot with T in it is a tail call: the entry goes on top, with T as its parent_ip, and both exits
            // are recorded when the frame returns.
            "8:",
            compare_trampoline!(),
            "je 3b",
            "jmp 9f",
            // Recording is filtered. rax = what to do with this function, by the table of functions.
            "7:",
            "test r11, r11",
            "jz 9f",
            "mov rcx, [rip + {control} + {sites}]",
            "test rcx, rcx",
            "jz 5f",
            "imul rdx, [rsp + {entry_saved}], {site_factor}",
            "shr rdx, {site_shift}",
            "2:",
            "and rdx, [rip + {control} + {sites_mask}]",
            "mov rax, [rcx + 8 * rdx]",
            "test rax, rax",
            "jz 5f",
            "inc rdx",
            "shr rax, {address_shift}",
            "cmp rax, [rsp + {entry_saved}]",
            "jne 2b",
            "dec rdx",
            "and rdx, [rip + {control} + {sites_mask}]",
            "movzx eax, byte ptr [rcx + 8 * rdx]",
            "jmp 6f",
            "5:",
            "movzx eax, byte ptr [rip + {control} + {default_action}]",
            "6:",
            "mov rcx, [r11 + {sp}]",
            "cmp eax, {record}",
            "jb 4b",
            "ja 5f",
            // It is recorded, if it is nested, and if what the function below it passes on permits that. Slow paths as above.
            "cmp rcx, [r11 + {limit}]",
            "jae 9f",
            compare_slots!(parent_loc = $parent_loc, at_function_start = $fentry),
            "ja 8f",
            check_interrupt!(),
            "2:",
            check_state!(),
            record_and_hook!(parent_loc = $parent_loc, trampoline = $trampoline, filtered = "1"),
            concat!(".if ", $patched),
            "jmp .Lrftrace_pair",
            ".else",
            "jmp 4b",
            ".endif",
            // The same slot: a tail call?
            "8:",
            compare_trampoline!(),
            "je 2b",
            "jmp 9f",
            // Only its entry is recorded.
            "5:",
            "cmp eax, {point}",
            "jne 9f",
            check_state!(),
            reserve_record!(),
            "mov r11, rax",
            "mov rax, [rsp + {entry_saved}]",
            "shl rax, {address_shift}",
            "or rax, {kind_point}",
            "mov [r11 + {word}], rax",
            stamp_record!(),
            "jmp 4b",
            // entry_slow(parent_loc, child_ip, rsp of the traced function, its rbp, its r10)
            "9:",
            concat!("lea rdx, ", $parent_loc),
            "mov rcx, [rsp + {entry_saved}]",
            concat!(".if ", $fentry),
            "cmp word ptr [rcx], 0x5a41",
            "jne 5f",
            "add rdx, 8",
            "5:",
            ".endif",
            "lea r11, [rsp + {entry_saved} + 8]",
            "lea rax, [rip + {entry_slow}]",
            "call rftrace_call_saved",
            "jmp 4b",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            control = sym CONTROL,
            enabled = const offset_of!(Control, enabled),
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
            max_frame_bytes = const hooks::MAX_FRAME_BYTES,
            max_realign_bytes = const MAX_REALIGN_BYTES,
            trampoline_bytes = const TRAMPOLINE_BYTES,
            parent_ip = const offset_of!(ReturnEntry, parent_ip),
            parent_loc = const offset_of!(ReturnEntry, parent_loc),
            exit_word = const offset_of!(ReturnEntry, exit_word),
            entered = const offset_of!(ReturnEntry, entered),
            record_bytes = const size_of::<Record>(),
            tsc = const offset_of!(Record, tsc),
            word = const offset_of!(Record, word),
            kind_exit = const kind::EXIT,
            kind_point = const kind::POINT,
            address_shift = const ADDRESS_SHIFT,
            entry_saved = const ENTRY_SAVED,
            entry_slow = sym hooks::entry_slow,
        );
    };
}

entry_hook!(
    "mcount",
    parent_loc = "[rbp + 8]",
    at_function_start = "0",
    patched = "0",
    trampoline = ".Lrftrace_trampoline"
);
entry_hook!(
    "__fentry__",
    parent_loc = "[rsp + {entry_saved} + 8]",
    at_function_start = "1",
    patched = "0",
    trampoline = ".Lrftrace_trampoline"
);
entry_hook!(
    "rftrace_patched_mcount",
    parent_loc = "[rbp + 8]",
    at_function_start = "0",
    patched = "1",
    trampoline = ".Lrftrace_trampolines"
);
entry_hook!(
    "rftrace_patched_fentry",
    parent_loc = "[rsp + {entry_saved} + 8]",
    at_function_start = "1",
    patched = "1",
    trampoline = ".Lrftrace_trampolines"
);

// The code of a return trampoline. `leaves_by_ret`: its return address was pushed by a call, so it goes on with a `ret`,
// which the return predictor has an entry for. With `interruptsafe` both do, to keep r11. `saved` is what it pushes.
macro_rules! exit_path {
    (leaves_by_ret = $paired:literal, saved = $saved:literal) => {
        concat!(
            ".cfi_remember_state\n",
            ".if ",
            $paired,
            " | {keeps_r11}\n",
            "push r11\n", // room for the return address
            ".cfi_adjust_cfa_offset 8\n",
            ".endif\n",
            ".if {keeps_r11}\n",
            "push r11\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".endif\n",
            "push rcx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rax\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rdx\n",
            ".cfi_adjust_cfa_offset 8\n",
            // rax = parent_loc, r11 = the thread's block. No block: the frame was entered on another thread.
            "lea rax, [rsp + ",
            $saved,
            " - 8]\n",
            load_block!(),
            "test r11, r11\n",
            "jz 9f\n",
            // rcx = one above our entry, which must be the innermost one.
            "mov rcx, [r11 + {sp}]\n",
            "cmp [rcx - {entry_bytes} + {parent_loc}], rax\n",
            "jne 9f\n",
            "cmp byte ptr [rip + {control} + {enabled}], {on}\n",
            "jne 7f\n",
            reserve_record!(),
            "mov r11, rax\n",
            // The exit is recorded once, by who sets the bit: a signal handler, on a stack near others, may take the interrupted
            // frames for left ones.
            "mov rax, [rcx - {entry_bytes} + {exit_word}]\n",
            "bts dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}\n",
            "jc 9f\n",
            "mov [r11 + {word}], rax\n",
            stamp_record!(),
            // Pop: read the return address, unpublish the entry, release it. The entry has moved if such a
            // handler came in between.
            "5:\n",
            load_block!(),
            "mov rdx, r11\n",
            "lea rax, [rsp + ",
            $saved,
            " - 8]\n",
            "mov r11, [rcx - {entry_bytes} + {parent_ip}]\n",
            "cmp [rcx - {entry_bytes} + {parent_loc}], rax\n",
            "jne 9f\n",
            ".cfi_remember_state\n",
            ".cfi_register rip, r11\n",
            "mov qword ptr [rcx - {entry_bytes} + {parent_loc}], 0\n",
            "sub rcx, {entry_bytes}\n",
            "mov [rdx + {sp}], rcx\n",
            "4:\n",
            ".if ",
            $paired,
            " | {keeps_r11}\n",
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
            ".if {keeps_r11}\n",
            "pop r11\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".endif\n",
            ".if ",
            $paired,
            " | {keeps_r11}\n",
            "ret\n",
            ".else\n",
            "jmp r11\n",
            ".endif\n",
            ".cfi_restore_state\n",
            // The assembler's own count goes on from the pops.
            ".cfi_def_cfa_offset ",
            $saved,
            "\n",
            // Recording is off: slow path. Or it is filtered: an entry that only passes its state on is not recorded, nor is
            // a call that was too short and whose own entry is the newest record: that is taken back.
            "7:\n",
            "jb 9f\n",
            "test byte ptr [rcx - {entry_bytes} + {exit_word}], {hidden}\n",
            "jnz 5b\n",
            "cmp qword ptr [rip + {control} + {min_ticks}], 0\n",
            "je 3b\n",
            "rdtsc\n",
            "shl rdx, 32\n",
            "or rax, rdx\n",
            "mov rdx, [rcx - {entry_bytes} + {entered}]\n",
            "sub rax, rdx\n",
            "cmp rax, [rip + {control} + {min_ticks}]\n",
            "jae 3b\n",
            "mov rax, [r11 + {cursor}]\n",
            "test rax, rax\n",
            "jz 9f\n",
            "cmp [rax - {record_bytes} + {tsc}], rdx\n",
            "jne 3b\n",
            // The same address, and the kind ENTRY; what lies before a chunk's first record is neither.
            "mov rdx, [rcx - {entry_bytes} + {exit_word}]\n",
            "xor dx, dx\n",
            "cmp [rax - {record_bytes} + {word}], rdx\n",
            "jne 3b\n",
            "bts dword ptr [rcx - {entry_bytes} + {exit_word}], {left_bit}\n",
            "jc 9f\n",
            // First the record: behind the cursor signal handlers write.
            "mov qword ptr [rax - {record_bytes} + {tsc}], 0\n",
            "lea rdx, [rax - {record_bytes}]\n",
            "cmpxchg [r11 + {cursor}], rdx\n",
            "jmp 5b\n",
            // r11 = exit_find(parent_loc), and then exit_done(parent_loc): the entry goes when the address is where the unwind
            // information can tell of it.
            "9:\n",
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
            "jmp 4b\n",
            ".cfi_restore_state\n",
            ".cfi_def_cfa rsp, 0\n",
        )
    };
}

// The return trampolines T and T2.
//
// A traced function's `ret` lands here. Registers: rax, rdx, xmm0-1, st0-1 may hold its result; all others are the
// caller's or dead. Stack: rsp is the CFA, the slot that held T lies below it and is free now. Keeps all registers (but
// r11 without `interruptsafe`).
//
// T is for functions that have called their hook. T2 is for those with a patched call site, which came by a jump: their
// hook leaves by `.Lrftrace_pair`, whose call pushes T2 for the return predictor only (on the stack it is dropped at
// once, T2 is in the slot). The function's `ret` then goes to where the predictor expects it, and so does T2's own.
//
// Unwinding: a return address of T means nothing to an unwinder, so T's own unwind information says what the true one
// is. It is a DWARF expression that walks the return stacks of all threads for the entry whose parent_loc is
// `CFA - 8`. It needs T's own address to find them: both trampolines lie in a block that is aligned to 1024, and a program
// counter within it, masked, is the block; the list's address lies at its end, at 1016, as a distance, since a CFI escape
// holds only constants. The unwind information covers T - 1 (a nop) and T2 - 1 (the end of the call), because unwinders look up
// `return address - 1`.
//
// Sources: DWARF 5 sections 2.5 and 6.4.2; what libgcc, LLVM's and nongnu's libunwind and gdb accept was tried out.
global_asm!(
    ".p2align 10",
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
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    #[cfg(feature = "interruptsafe")]
    "pop r11",
    #[cfg(feature = "interruptsafe")]
    ".cfi_adjust_cfa_offset -8",
    "pop r11",
    nothing_pushed!(),
    "jmp r11",
    // Jumped to by a hook for a patched call site, which has pushed child_ip and saved registers.
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
    // DW_CFA_val_expression for the return address (column 16): 196 bytes follow. The stack, right end on top.
    ".cfi_escape 0x16, 0x10, 0xc4, 0x01",
    // The unwinder pushed the CFA.                                        CFA
    ".cfi_escape 0x12, 0x38, 0x1c", // dup, lit8, minus        CFA slot
    ".cfi_escape 0x80, 0x00", // breg16 0                .. pc
    ".cfi_escape 0x0b, 0x00, 0xfc, 0x1a", // const2s -1024, and      CFA slot T
    ".cfi_escape 0x30", // lit0                    CFA slot T pass
    // restart: load the head of the list of threads.
    ".cfi_escape 0x14, 0x12, 0x23, 0xf8, 0x07", // over, dup, plus 1016    .. T pass T T+1016
    ".cfi_escape 0x06, 0x22, 0x06", // deref, plus, deref      .. T pass block
    // block: all threads seen?
    ".cfi_escape 0x12, 0x28, 0x0e, 0x00", // dup, bra have
    ".cfi_escape 0x13, 0x12, 0x28, 0x05, 0x00", // drop, dup, bra fail     .. T pass
    ".cfi_escape 0x13, 0x31, 0x2f, 0xea, 0xff", // drop, lit1, skip restart: again, without the filter
    // fail: a return address of 0 ends the backtrace.
    ".cfi_escape 0x30, 0x2f, 0xa0, 0x00", // lit0, skip end
    // have: p = *block->psp, one above the thread's innermost entry.
    ".cfi_escape 0x12, 0x23, 0x08, 0x06, 0x06", // dup, plus 8, deref, deref  .. pass block p
    ".cfi_escape 0x15, 0x02, 0x28, 0x6b, 0x00", // pick 2, bra loop: second pass, linear search
    // First pass: skip threads whose range of slots does not include ours.
    ".cfi_escape 0x14, 0x23, 0x10, 0x06", // over, plus 16, deref    .. block p base
    ".cfi_escape 0x23, 0x08, 0x06", // plus 8, deref: slot of the outermost entry
    ".cfi_escape 0x15, 0x05, 0x2d, 0x28, 0x84, 0x00", // pick 5, lt, bra next
    ".cfi_escape 0x12, 0x09, 0xe8, 0x22, 0x06", // dup, const1s -24, plus, deref: slot of the innermost entry
    ".cfi_escape 0x15, 0x05, 0x2b, 0x28, 0x79, 0x00", // pick 5, gt, bra next
    // Binary search for the last entry whose slot is not below ours.
    ".cfi_escape 0x14, 0x23, 0x10, 0x06, 0x16", // over, plus 16, deref, swap .. block lo hi
    // bs: lo = base, hi = p at first
    ".cfi_escape 0x12, 0x15, 0x02, 0x1c, 0x12", // dup, pick 2, minus, dup .. lo hi n n
    ".cfi_escape 0x08, 0x20, 0x2b, 0x28, 0x05, 0x00", // const1u 32, gt, bra go       .. lo hi n
    ".cfi_escape 0x13, 0x13, 0x2f, 0x1e, 0x00", // drop, drop, skip found  .. lo
    // go: mid = lo + n / 64 * 32
    ".cfi_escape 0x08, 0x40, 0x1b, 0x08, 0x20, 0x1e", // const1u 64, div, const1u 32, mul
    ".cfi_escape 0x15, 0x02, 0x22", // pick 2, plus            .. lo hi mid
    ".cfi_escape 0x12, 0x23, 0x08, 0x06", // dup, plus 8, deref      .. lo hi mid mid.slot
    ".cfi_escape 0x15, 0x07, 0x2a, 0x28, 0x05, 0x00", // pick 7, ge, bra up
    ".cfi_escape 0x16, 0x13, 0x2f, 0xd8, 0xff", // swap, drop, skip bs: hi = mid
    ".cfi_escape 0x17, 0x16, 0x13, 0x2f, 0xd2, 0xff", // up: rot, swap, drop, skip bs: lo = mid
    // found:                                                              .. pass block p
    ".cfi_escape 0x12, 0x23, 0x08, 0x06", // dup, plus 8, deref
    ".cfi_escape 0x15, 0x05, 0x2e, 0x28, 0x3c, 0x00", // pick 5, ne, bra next
    ".cfi_escape 0x12, 0x06, 0x0b, 0x00, 0xfc, 0x1a", // dup, deref, const2s -1024, and
    ".cfi_escape 0x15, 0x04, 0x29, 0x28, 0x04, 0x00", // pick 4, eq, bra down: parent_ip is in T, a tail call
    ".cfi_escape 0x06, 0x2f, 0x31, 0x00", // deref, skip end
    ".cfi_escape 0x08, 0x20, 0x1c, 0x2f, 0xe0, 0xff", // down: const1u 32, minus, skip found
    // loop: linear search, from the innermost entry.
    ".cfi_escape 0x14, 0x23, 0x10, 0x06, 0x14", // over, plus 16, deref, over .. block p base p
    ".cfi_escape 0x2a, 0x28, 0x1d, 0x00", // ge, bra next
    ".cfi_escape 0x08, 0x20, 0x1c", // const1u 32, minus            .. block p
    ".cfi_escape 0x12, 0x23, 0x08, 0x06", // dup, plus 8, deref
    ".cfi_escape 0x15, 0x05, 0x2e, 0x28, 0xea, 0xff", // pick 5, ne, bra loop
    ".cfi_escape 0x12, 0x06, 0x0b, 0x00, 0xfc, 0x1a", // dup, deref, const2s -1024, and
    ".cfi_escape 0x15, 0x03, 0x29, 0x28, 0xde, 0xff", // pick 3, eq, bra loop: a tail call
    ".cfi_escape 0x06, 0x2f, 0x05, 0x00", // deref, skip end
    // next: the following block.
    ".cfi_escape 0x13, 0x06, 0x2f, 0x4e, 0xff", // drop, deref, skip block
    // end: the return address is on top.
    ".long rftrace_pair - .Lrftrace_trampolines", // of the call
    // T2, and the beginning of the block.
    ".Lrftrace_trampolines:",
    exit_path!(leaves_by_ret = "1", saved = "{paired_exit_saved}"),
    ".size rftrace_paired_return_trampoline, . - rftrace_paired_return_trampoline",
    // T. Its symbol begins one byte before, where unwinders and debuggers look.
    ".type rftrace_return_trampoline,@function",
    "rftrace_return_trampoline:",
    "nop",
    ".Lrftrace_trampoline:",
    exit_path!(leaves_by_ret = "0", saved = "{exit_saved}"),
    // The landing pad: an exception or a forced unwind passes the frame whose return was hooked. The unwinder comes
    // here (see the personality) with the exception object in rax and rsp = CFA. The exit is recorded now, at its true
    // time; then the unwinding goes on as if the traced function's caller had called _Unwind_Resume.
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
    ".org .Lrftrace_trampolines + {trampoline_bytes} - 8, 0xcc",
    ".quad {control} + {threads} - .Lrftrace_trampolines",
    control = sym CONTROL,
    enabled = const offset_of!(Control, enabled),
    on = const enabled::ON,
    min_ticks = const offset_of!(Control, filter.min_ticks),
    hidden = const state::HIDDEN,
    left_bit = const kind::LEFT.trailing_zeros(),
    threads = const offset_of!(Control, threads),
    sp = const offset_of!(ThreadBlock, sp),
    cursor = const offset_of!(ThreadBlock, cursor),
    chunk_mask = const offset_of!(ThreadBlock, chunk_mask),
    entry_bytes = const size_of::<ReturnEntry>(),
    parent_ip = const offset_of!(ReturnEntry, parent_ip),
    parent_loc = const offset_of!(ReturnEntry, parent_loc),
    exit_word = const offset_of!(ReturnEntry, exit_word),
    entered = const offset_of!(ReturnEntry, entered),
    record_bytes = const size_of::<Record>(),
    tsc = const offset_of!(Record, tsc),
    word = const offset_of!(Record, word),
    trampoline_bytes = const TRAMPOLINE_BYTES,
    keeps_r11 = const cfg!(feature = "interruptsafe") as u8,
    entry_saved = const ENTRY_SAVED,
    exit_saved = const EXIT_SAVED,
    paired_exit_saved = const PAIRED_EXIT_SAVED,
    exit_find = sym hooks::exit_find,
    exit_done = sym hooks::exit_done,
    #[cfg(not(target_os = "none"))]
    unwound_find = sym hooks::unwound_find,
    #[cfg(not(target_os = "none"))]
    unwound_done = sym hooks::unwound_done,
);

// The trampoline's personality routine (Itanium C++ ABI: Exception Handling, 1.6): in the cleanup phase every frame of
// T has one landing pad, which gets the exception object in rax; in the search phase it has nothing to say.
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
    "jz 2f",
    "cmp qword ptr [rip + _Unwind_SetGR@GOTPCREL], 0",
    "je 2f",
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
    "2:",
    "ret",
    ".cfi_endproc",
    ".size rftrace_personality, . - rftrace_personality",
    continue_unwind = const 8, // _URC_CONTINUE_UNWIND
    install_context = const 7, // _URC_INSTALL_CONTEXT
    cleanup_phase = const 2,   // _UA_CLEANUP_PHASE
);

// The way into Rust. Called by a hook with the function in rax and its arguments in rdx, rcx and r11, to which the traced
// function's rbp and r10 are added; returns its result in r11. The hook has saved rax, rcx and rdx. Keeps every other
// register that Rust code may clobber: the remaining argument registers and, on targets with SSE, xmm0-15. Legacy SSE
// instructions leave the upper halves of ymm and zmm alone, and nothing in the tracer uses x87, MMX, AVX or changes
// MXCSR. The stack is aligned to 16 for the call; the CFA is kept in rbp, which is the caller's.
global_asm!(
    ".p2align 4",
    ".type rftrace_call_saved,@function",
    "rftrace_call_saved:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rdi",
    "push rsi",
    "push r8",
    "push r9",
    "push r10",
    "sub rsp, 256",
    "and rsp, -16",
    #[cfg(target_feature = "sse")]
    "movaps [rsp], xmm0",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 16], xmm1",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 32], xmm2",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 48], xmm3",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 64], xmm4",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 80], xmm5",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 96], xmm6",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 112], xmm7",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 128], xmm8",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 144], xmm9",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 160], xmm10",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 176], xmm11",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 192], xmm12",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 208], xmm13",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 224], xmm14",
    #[cfg(target_feature = "sse")]
    "movaps [rsp + 240], xmm15",
    "mov rdi, rdx",
    "mov rsi, rcx",
    "mov rdx, r11",
    "mov rcx, [rbp]",
    "mov r8, r10",
    "cld",
    "call rax",
    "mov r11, rax",
    #[cfg(target_feature = "sse")]
    "movaps xmm0, [rsp]",
    #[cfg(target_feature = "sse")]
    "movaps xmm1, [rsp + 16]",
    #[cfg(target_feature = "sse")]
    "movaps xmm2, [rsp + 32]",
    #[cfg(target_feature = "sse")]
    "movaps xmm3, [rsp + 48]",
    #[cfg(target_feature = "sse")]
    "movaps xmm4, [rsp + 64]",
    #[cfg(target_feature = "sse")]
    "movaps xmm5, [rsp + 80]",
    #[cfg(target_feature = "sse")]
    "movaps xmm6, [rsp + 96]",
    #[cfg(target_feature = "sse")]
    "movaps xmm7, [rsp + 112]",
    #[cfg(target_feature = "sse")]
    "movaps xmm8, [rsp + 128]",
    #[cfg(target_feature = "sse")]
    "movaps xmm9, [rsp + 144]",
    #[cfg(target_feature = "sse")]
    "movaps xmm10, [rsp + 160]",
    #[cfg(target_feature = "sse")]
    "movaps xmm11, [rsp + 176]",
    #[cfg(target_feature = "sse")]
    "movaps xmm12, [rsp + 192]",
    #[cfg(target_feature = "sse")]
    "movaps xmm13, [rsp + 208]",
    #[cfg(target_feature = "sse")]
    "movaps xmm14, [rsp + 224]",
    #[cfg(target_feature = "sse")]
    "movaps xmm15, [rsp + 240]",
    "lea rsp, [rbp - 40]",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rsi",
    "pop rdi",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    ".size rftrace_call_saved, . - rftrace_call_saved",
);

/// Where the return address of a function is, and where its caller's is if that keeps a frame pointer.
///
/// `parent_loc` is where the hook takes the return address to be, `child_ip` lies in the function's prologue. In
/// `frame_pointer` (rbp) mcount finds the function's own frame, `__fentry__` still the caller's.
///
/// In a function that realigns its stack GCC may set up the frame like this, so that the return address at `[rbp + 8]` is
/// a copy and `static_chain` (r10) tells where the true one is:
///
/// ```text
///   lea r10, [rsp + 8]; and rsp, -32; push [r10 - 8]; push rbp; mov rbp, rsp; push r10; …; call mcount
/// ```
pub(crate) fn slots(parent_loc: usize, child_ip: usize, frame_pointer: usize, static_chain: usize) -> (usize, usize) {
    if frame_pointer.wrapping_add(8) != parent_loc {
        return (parent_loc, frame_pointer.wrapping_add(8));
    }
    // SAFETY: directly below the slot of the running function, which is above its stack pointer.
    let caller_frame = unsafe { *(frame_pointer as *const usize) };
    let true_loc = static_chain.wrapping_sub(8);
    let distance = true_loc.wrapping_sub(parent_loc);
    let is_copy = distance != 0 && distance <= MAX_REALIGN_BYTES && realigns(child_ip);
    (if is_copy { true_loc } else { parent_loc }, caller_frame.wrapping_add(8))
}

/// Whether the prologue that ends at `child_ip` has GCC's beginning of a realigned frame: `lea r10, [rsp + 8]` and an `and`
/// of rsp with a constant.
fn realigns(child_ip: usize) -> bool {
    /// These bytes, the last one first; the `and` has two forms, which differ in one bit.
    const CODE: u64 = 0xe481_4808_2454_8d4c;
    const FORMS: u64 = 0x0002_0000_0000_0000;
    /// Bytes of the longest prologue. It is looked for in the same page, which is mapped.
    const LONGEST: usize = 64;
    const PAGE: usize = 4096;

    let earliest = child_ip.saturating_sub(LONGEST).max(child_ip & !(PAGE - 1));
    let latest = child_ip.saturating_sub(size_of::<u64>());
    (earliest..=latest).any(|place| {
        // SAFETY: code of the running function or before it, in a page that is mapped.
        let code = unsafe { (place as *const u64).read_unaligned() };
        code & !FORMS == CODE
    })
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; a kernel that forbids it to programs (CR4.TSD) cannot be
    // traced by them.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The address of the return trampoline T.
pub(crate) fn trampoline() -> usize {
    let address;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            "lea {address}, [rip + .Lrftrace_trampoline]",
            address = out(reg) address,
            options(nostack, nomem, preserves_flags),
        );
    }
    address
}

/// Whether an address is that of T or T2: what is left on a stack may also be a return address of their slow paths.
pub(crate) fn is_trampoline(address: usize) -> bool {
    let paired: usize;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            "lea {paired}, [rip + .Lrftrace_trampolines]",
            paired = out(reg) paired,
            options(nostack, nomem, preserves_flags),
        );
    }
    address == trampoline() || address == paired
}

/// Fills memory with zeros, without the `memset` that the compiler would call.
///
/// # Safety
///
/// The `bytes` bytes from `start` on are writable and nobody else uses them.
pub(crate) unsafe fn zero(start: *mut u8, bytes: usize) {
    // SAFETY: by this function's contract; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep stosb",
            inout("rdi") start => _,
            inout("rcx") bytes => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}

/// Runs `work`, which may be foreign code, and keeps all vector and x87 state.
///
/// `rftrace_call_saved` keeps what the tracer itself can clobber, xmm0-15. A C library may use wider registers, or clear
/// their upper halves (`vzeroupper`), in which the traced function's arguments may be.
#[cfg(target_feature = "sse")]
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    /// x87, SSE, AVX and the three parts of AVX-512 (Intel SDM volume 1, 13.1). Tile registers hold no arguments.
    const COMPONENTS: u32 = 0b1110_0111;
    /// Where the last of these components ends in the standard format.
    const AREA_BYTES: usize = 2688;
    /// CPUID leaf 1, ecx: the system has switched xsave on.
    const OSXSAVE: u32 = 1 << 27;

    #[repr(C, align(64))]
    struct Area([MaybeUninit<u8>; AREA_BYTES]);

    if __cpuid(1).ecx & OSXSAVE == 0 {
        // Nothing wider than xmm is there.
        return work();
    }
    let mut area = Area([MaybeUninit::uninit(); AREA_BYTES]);
    let area: *mut u8 = area.0.as_mut_ptr().cast();
    // SAFETY: the area is large enough and aligned; its header, bytes 512 to 575, must be zero before it is filled.
    unsafe {
        zero(area.wrapping_add(512), 64);
        asm!("xsave64 [{area}]", area = in(reg) area, in("eax") COMPONENTS, in("edx") 0, options(nostack));
    }
    work();
    // SAFETY: restores what was saved above; the compiler is told that all these registers change.
    unsafe {
        asm!(
            "xrstor64 [{area}]",
            area = in(reg) area,
            inout("eax") COMPONENTS => _,
            inout("edx") 0 => _,
            clobber_abi("C"),
            options(nostack),
        );
    }
}

/// Runs `work`. Kernel code has no vector state.
#[cfg(not(target_feature = "sse"))]
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    work();
}

/// Stops the program: it is in a state from which no return is possible.
pub(crate) fn abort() -> ! {
    // SAFETY: raises an invalid-opcode exception.
    unsafe { asm!("ud2", options(noreturn, nostack, nomem)) }
}
