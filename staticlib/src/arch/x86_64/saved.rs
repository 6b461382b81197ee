//! The way from the hooks into Rust.

use core::arch::global_asm;

// The way into Rust. Called by a hook with the function in rax and its arguments in rdx, rcx and r11. Further arguments
// are the traced function's rbp and r10, and the place of all saved registers (its own rbp, see x86_64_registers.rs).
// Returns the result in r11. The hook has saved rax, rcx and rdx. Keeps every other register clobbered by Rust code:
// the remaining argument registers and, on targets with SSE, xmm0-15. Legacy SSE instructions leave the upper halves of
// ymm and zmm alone, and nothing in the tracer uses x87, MMX, AVX or changes MXCSR. The stack is aligned to 16 for the
// call; the CFA is kept in rbp, which is the caller's.
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
    "mov r9, rbp",
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
