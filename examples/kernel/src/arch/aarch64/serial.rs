//! The console is the serial port (PL011). The trace is sent by QEMU's semihosting console, as the machine has one port only.

use core::hint::spin_loop;

use super::semihosting;

const DATA: usize = 0x0900_0000;
const FLAGS: usize = DATA + 0x18;
const CONTROL: usize = DATA + 0x30;
/// In the flags: nothing has arrived.
const NOTHING_ARRIVED: u32 = 1 << 4;
/// In the flags: no further byte may be written.
const IS_FULL: u32 = 1 << 5;
/// In the control register: the port is on, sends and receives.
const ENABLED: u32 = 1 << 0 | 1 << 8 | 1 << 9;

/// Prepares the port. It interrupts nobody as long as its mask is 0.
pub fn init() {
    // SAFETY: a serial port does nothing but send and receive.
    unsafe { (CONTROL as *mut u32).write_volatile(ENABLED) }
}

#[inline(always)]
fn flags() -> u32 {
    // SAFETY: as above.
    unsafe { (FLAGS as *const u32).read_volatile() }
}

/// Sends by the console.
pub fn send(bytes: &[u8]) {
    for &byte in bytes {
        while flags() & IS_FULL != 0 {
            spin_loop();
        }
        // SAFETY: as above.
        unsafe { (DATA as *mut u32).write_volatile(byte.into()) }
    }
}

/// Waits for a byte of the console. Inlined: waiting is no call that a trace should have again and again.
#[inline(always)]
pub fn receive() -> u8 {
    while flags() & NOTHING_ARRIVED != 0 {
        spin_loop();
    }
    // SAFETY: reading takes a byte that has arrived, and does nothing else.
    unsafe { (DATA as *const u32).read_volatile() as u8 }
}

/// Sends a part of the trace while the kernel runs, all values of a byte as they are.
pub fn send_streamed(bytes: &[u8]) {
    semihosting::write(bytes);
}

/// Sends a part of the trace at the end.
pub fn send_image(bytes: &[u8]) {
    semihosting::write(bytes);
}
