//! x86-64 without OS: the return address of hooked interrupt handlers.

use core::arch::global_asm;
use core::mem::{offset_of, size_of};

use crate::arch::interrupts::{Frame, RED_ZONE};
use crate::exit;

// The interrupt trampoline: `iretq` of a hooked handler comes here. All registers and flags are those of the interrupted
// code, and so is the stack with its red zone; but interrupts are off, see `keep_interrupts_off`.
global_asm!(
    ".p2align 4",
    ".type rftrace_interrupt_trampoline,@function",
    "rftrace_interrupt_trampoline:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "lea rsp, [rsp - {red_zone} - {frame_bytes}]",
    "pushfq",
    "push rax",
    "push rcx",
    "push rdx",
    "push r11",
    // The frame for the `iretq` to the interrupted code.
    "mov eax, cs",
    "mov [rsp + 40 + {cs}], rax",
    "mov rax, [rsp + 32]",
    "mov [rsp + 40 + {flags}], rax",
    "lea rdx, [rsp + 40 + {frame_bytes} + {red_zone}]",
    "mov [rsp + 40 + {stack_pointer}], rdx",
    "mov eax, ss",
    "mov [rsp + 40 + {ss}], rax",
    "lea rcx, [rsp + 40 + {flags}]",
    "lea rax, [rip + {interrupt_exit}]",
    "call rftrace_call_saved",
    "mov [rsp + 40 + {ip}], r11",
    "pop r11",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "lea rsp, [rsp + 8]",
    "iretq",
    ".cfi_endproc",
    ".size rftrace_interrupt_trampoline, . - rftrace_interrupt_trampoline",
    red_zone = const RED_ZONE,
    frame_bytes = const size_of::<Frame>(),
    ip = const offset_of!(Frame, ip),
    cs = const offset_of!(Frame, cs),
    flags = const offset_of!(Frame, flags),
    stack_pointer = const offset_of!(Frame, stack_pointer),
    ss = const offset_of!(Frame, ss),
    interrupt_exit = sym exit::interrupt_exit,
);
