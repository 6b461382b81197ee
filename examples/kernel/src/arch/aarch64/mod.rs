//! QEMU's aarch64 machine `virt`, with the interrupt controller of version 2.

pub mod boot;
pub mod clock;
pub mod cores;
mod gic;
pub mod interrupts;
pub mod memory;
mod semihosting;
pub mod serial;
pub mod tls;

use core::arch::global_asm;

use crate::Exit;

global_asm!(include_str!("canary.s"), options(raw));

/// True with handlers that the interrupt itself enters, without a stub: compilers make none here.
pub const HAS_IRET_HANDLERS: bool = false;

/// Ends QEMU. Where it is run without `-semihosting`, the core halts.
pub fn exit(code: Exit) -> ! {
    // As on x86-64, where the device leaves no choice.
    let status = match code {
        Exit::Success => 33,
        Exit::Panic => 35,
        Exit::WrongResults => 37,
    };
    semihosting::exit(status);
    interrupts::halt()
}
