//! The interrupt controller (Arm Generic Interrupt Controller, version 2): the timer's interrupts, and messages to the other core.

/// Of all cores.
const DISTRIBUTOR: usize = 0x0800_0000;
/// Of the core that looks.
pub const CORE_INTERFACE: usize = 0x0801_0000;

const DISTRIBUTOR_CONTROL: usize = DISTRIBUTOR;
/// The core's own interrupts, 0 to 31, a bit each.
const SET_ENABLED: usize = DISTRIBUTOR + 0x100;
const SEND: usize = DISTRIBUTOR + 0xf00;
const CONTROL: usize = CORE_INTERFACE;
const PRIORITY_MASK: usize = CORE_INTERFACE + 4;
/// Tells which interrupt has come, and that it is being handled.
pub const ACKNOWLEDGE: usize = 0xc;
/// It has been handled: the next may come.
pub const END_OF_INTERRUPT: usize = 0x10;

/// The message that stops a core.
pub const STOP: u32 = 1;
/// The virtual timer.
pub const TIMER: u32 = 27;

fn write(register: usize, value: u32) {
    // SAFETY: a register of the controller. The values that are written here interrupt cores, and stop the other one; nothing that Rust
    // relies on.
    unsafe { (register as *mut u32).write_volatile(value) }
}

/// Has this core take the interrupts that there are.
pub fn init() {
    write(DISTRIBUTOR_CONTROL, 1);
    write(SET_ENABLED, 1 << TIMER | 1 << STOP);
    write(PRIORITY_MASK, 0xff);
    write(CONTROL, 1);
}

/// Sends the message to another core.
pub fn send_stop(core: usize) {
    write(SEND, 1 << (16 + core) | STOP);
}
