//! QEMU's x86-64 machine.

mod apic;
pub mod boot;
pub mod clock;
pub mod cores;
pub mod interrupts;
pub mod memory;
mod port;
pub mod serial;
pub mod tls;

use core::arch::global_asm;

use crate::Exit;

global_asm!(include_str!("canary.s"), options(raw));

/// True with handlers that the interrupt itself enters, without a stub.
pub const HAS_IRET_HANDLERS: bool = true;

/// Ends QEMU by its device isa-debug-exit, with the status `2 * code + 1`. Where there is no such device, the core halts.
pub fn exit(code: Exit) -> ! {
    let code = match code {
        Exit::Success => 16,
        Exit::Panic => 17,
        Exit::WrongResults => 18,
    };
    // SAFETY: the device does nothing but end QEMU.
    unsafe { port::write(0xf4, code) };
    interrupts::halt()
}
