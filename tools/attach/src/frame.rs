//! The frame to which a borrowed thread returns: a signal handler's. The handler's return gives the thread all its
//! registers and its signal mask back (`rt_sigreturn`). This process takes over before; if it is gone, the thread goes
//! on by the frame.
//!
//! The layout is the kernel's (`struct rt_sigframe`, `struct ucontext`, `struct sigcontext_64`).

use nix::libc::{self, user_regs_struct};

/// Bytes of a frame without the extended state: return address, context, information about the signal.
pub(crate) const FRAME_BYTES: u64 = 8 + 304 + 128;
/// The place of the registers in a frame, as `gregs` of the context.
const REGISTERS_AT: usize = 8 + 40;
/// The places of the instruction pointer and of the stack pointer in a frame.
pub(crate) const RIP_AT: u64 = REGISTERS_AT as u64 + 16 * 8;
pub(crate) const RSP_AT: u64 = REGISTERS_AT as u64 + 15 * 8;
const SIGNAL_MASK_AT: usize = REGISTERS_AT + 256;

/// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS`, `UC_STRICT_RESTORE_SS`.
const FLAGS: u64 = 1 | 2 | 4;
/// No valid flags of an alternate stack: the thread keeps its own one.
const KEEP_STACK: u64 = 0x7fff_ffff;

const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// The place in the extended state of the kernel's facts on it.
const SOFTWARE_AT: usize = 464;

/// A frame with the return address `restorer`, for a thread that goes on with these registers and signal mask. Its
/// extended state is at `extended_at`.
pub(crate) fn frame(restorer: u64, registers: &user_regs_struct, mask: u64, extended_at: u64) -> Vec<u8> {
    let r = registers;
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let words = [
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        segments,
        0,
        0,
        mask,
        0,
        extended_at,
    ];
    let mut bytes = vec![0; FRAME_BYTES as usize];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0, restorer);
    put(8, FLAGS);
    // Behind flags, link and address of the stack.
    put(8 + 24, KEEP_STACK);
    for (place, word) in words.into_iter().enumerate() {
        put(REGISTERS_AT + 8 * place, word);
    }
    put(SIGNAL_MASK_AT, mask);
    bytes
}

/// The extended state, as ptrace tells it, as a frame has it.
pub(crate) fn extended(state: &[u8]) -> Vec<u8> {
    let mut bytes = state.to_vec();
    let n_bytes = state.len() as u32;
    let Some(software) = bytes.get_mut(SOFTWARE_AT..SOFTWARE_AT + 48) else { return bytes };
    let features: [u8; 8] = software[..8].try_into().unwrap_or_default();
    software.fill(0);
    software[..4].copy_from_slice(&MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(n_bytes + 4).to_le_bytes());
    software[8..16].copy_from_slice(&features);
    software[16..20].copy_from_slice(&n_bytes.to_le_bytes());
    bytes.extend(MAGIC2.to_le_bytes());
    bytes
}

// The C library has the same layout.
const _: () = {
    use std::mem::offset_of;
    assert!(REGISTERS_AT == 8 + offset_of!(libc::ucontext_t, uc_mcontext));
    assert!(libc::REG_RIP == 16 && libc::REG_RSP == 15);
    assert!(SIGNAL_MASK_AT == 8 + offset_of!(libc::ucontext_t, uc_sigmask));
};
