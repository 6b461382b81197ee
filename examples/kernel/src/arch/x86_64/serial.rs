//! The console is the first serial port. The second one is for what is sent while the kernel runs, and QEMU's debug console for what is
//! sent at the end.

use core::hint::spin_loop;

use super::port;

/// COM1.
const CONSOLE: u16 = 0x3f8;
/// COM2.
const SECOND: u16 = 0x2f8;
/// QEMU's debug console: what is written here goes to the file that `-debugcon` names.
const DEBUG_CONSOLE: u16 = 0xe9;
/// Of a port, from its first address.
const INTERRUPTS: u16 = 1;
const LINE_CONTROL: u16 = 3;
const STATUS: u16 = 5;
/// In the line status: a byte has arrived.
const HAS_BYTE: u8 = 1 << 0;
/// In the line status: the next byte may be written.
const IS_EMPTY: u8 = 1 << 5;

/// Prepares the ports: 8 bits, no parity, no interrupts.
pub fn init() {
    for base in [CONSOLE, SECOND] {
        // SAFETY: a serial port does nothing but send and receive.
        unsafe {
            port::write(base + INTERRUPTS, 0);
            port::write(base + LINE_CONTROL, 0x03);
        }
    }
}

fn send_by(base: u16, bytes: &[u8]) {
    for &byte in bytes {
        // SAFETY: as above.
        unsafe {
            while port::read(base + STATUS) & IS_EMPTY == 0 {
                spin_loop();
            }
            port::write(base, byte);
        }
    }
}

/// Sends by the console.
pub fn send(bytes: &[u8]) {
    send_by(CONSOLE, bytes);
}

/// Waits for a byte of the console. Inlined: waiting is no call that a trace should have again and again.
#[inline(always)]
pub fn receive() -> u8 {
    // SAFETY: reading takes a byte that has arrived, and does nothing else.
    unsafe {
        while port::read(CONSOLE + STATUS) & HAS_BYTE == 0 {
            spin_loop();
        }
        port::read(CONSOLE)
    }
}

/// Sends a part of the trace while the kernel runs, all values of a byte as they are.
pub fn send_streamed(bytes: &[u8]) {
    send_by(SECOND, bytes);
}

/// Sends a part of the trace at the end.
pub fn send_image(bytes: &[u8]) {
    // SAFETY: the debug console does nothing but write to a file.
    unsafe { port::write_all(DEBUG_CONSOLE, bytes) };
}
