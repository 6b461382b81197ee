//! Pieces of assembly shared by hooks and trampolines.

// r11 = the thread's block; 0 if there is none yet, UNTRACED if there will be none. Keeps the flags.
#[cfg(not(any(feature = "threadhook", feature = "outside")))]
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

// The thread's word is nearly always the first one of its bucket; only for the others this calls x86_64_outside.rs. So
// usually no return address stays on the stack: the removal of the tracer would find it there.
#[cfg(feature = "outside")]
macro_rules! load_block {
    () => {
        concat!(
            "push rcx\n.cfi_adjust_cfa_offset 8\n",
            "push rdx\n.cfi_adjust_cfa_offset 8\n",
            "mov rdx, [rip + rftrace_outside + 16]\n",
            "mov edx, fs:[rdx]\n",
            "movzx r11d, dx\n",
            "lea rcx, [rip + rftrace_outside_threads]\n",
            "lea r11, [r11 * 8]\n",
            "lea r11, [rcx + r11 * 8]\n",
            "mov ecx, [r11]\n",
            "lea ecx, [rcx + rdx]\n",
            "jrcxz 77f\n",
            "call rftrace_thread_block\n",
            "jmp 78f\n",
            "77:\n",
            "mov r11d, [r11 + 4]\n",
            "lea rcx, [rip + rftrace_outside_blocks]\n",
            "mov r11, [rcx + r11 * 8]\n",
            "78:\n",
            "pop rdx\n.cfi_adjust_cfa_offset -8\n",
            "pop rcx\n.cfi_adjust_cfa_offset -8\n",
        )
    };
}

// rax = the next record of this thread, reserved. Begins with the label `reserve`.
macro_rules! reserve_record {
    (hook = $hook:expr, path = $path:literal) => {
        concat!(
            concat!(".L", $hook, "_", $path, "_reserve:\n"),
            "mov rax, [r11 + {cursor}]\n",
            "test rax, [r11 + {chunk_mask}]\n",
            concat!("jz .L", $hook, "_slow\n"),
            "lea rdx, [rax + {record_bytes}]\n",
            "cmpxchg [r11 + {cursor}], rdx\n",
            concat!("jne .L", $hook, "_", $path, "_reserve\n"),
        )
    };
}

// Writes the time of the record r11, to make it valid, and leaves it in rax.
macro_rules! stamp_record {
    () => {
        concat!("rdtsc\n", "shl rdx, 32\n", "or rax, rdx\n", "mov [r11 + {tsc}], rax\n")
    };
}

// Gets back the registers saved by a hook, ENTRY_SAVED bytes.
macro_rules! pop_saved {
    () => {
        concat!(
            "pop rdx\n.cfi_adjust_cfa_offset -8\n",
            "pop rcx\n.cfi_adjust_cfa_offset -8\n",
            "pop rax\n.cfi_adjust_cfa_offset -8\n",
            ".if {keeps_r11}\n",
            "pop r11\n.cfi_adjust_cfa_offset -8\n",
            ".endif\n",
        )
    };
}

// The unwind information of a hook after a jump from a patched call site, while nothing is pushed: child_ip is in r11,
// and rsp is the traced function's. Unwinders tell frames apart by their CFA, so it must not be rsp, the CFA of the
// frame of a signal that strikes here, nor any possible CFA of the function. Any odd number is neither; then rsp has a
// rule of its own, DW_CFA_val_expression breg7 0.
macro_rules! nothing_pushed {
    () => {
        ".cfi_def_cfa rsp, 1\n.cfi_escape 0x16, 0x07, 0x02, 0x77, 0x00\n.cfi_register rip, r11\n"
    };
}

// From `rftrace_entry` to the function: the words pushed by its stub go, its address and the one to go on at, at [rsp]
// and above. Then they are below rsp, the function's own; the rules are as above.
macro_rules! leave_entered {
    () => {
        concat!(
            "lea rsp, [rsp + 16]\n",
            ".cfi_def_cfa rsp, 1\n.cfi_escape 0x16, 0x07, 0x02, 0x77, 0x00\n",
            ".cfi_escape 0x10, 0x10, 0x02, 0x77, 0x70\n", // DW_CFA_expression: the return address is at breg7 - 16
            "jmp qword ptr [rsp - 8]\n",
        )
    };
}
