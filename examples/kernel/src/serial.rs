//! The console: the first serial port. `println!` writes to it. The second one is for what is sent while the kernel runs.

use core::fmt::{self, Write};
use core::hint::spin_loop;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::interrupts;
use crate::port;

/// COM1.
const BASE: u16 = 0x3f8;
/// COM2.
const SECOND: u16 = 0x2f8;
const LINE_CONTROL: u16 = BASE + 3;
/// Of a port, from its first address.
const STATUS: u16 = 5;
const LINE_STATUS: u16 = BASE + STATUS;
/// In the line status: a byte has arrived.
const HAS_BYTE: u8 = 1 << 0;
/// In the line status: the next byte may be written.
const IS_EMPTY: u8 = 1 << 5;

/// Held by the core that prints.
static BUSY: AtomicBool = AtomicBool::new(false);

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        send_by(BASE, text.as_bytes());
        Ok(())
    }
}

fn send_by(base: u16, bytes: &[u8]) {
    for &byte in bytes {
        // SAFETY: a serial port does nothing but send.
        unsafe {
            while port::read(base + STATUS) & IS_EMPTY == 0 {
                spin_loop();
            }
            port::write(base, byte);
        }
    }
}

/// Sends by the second port, all values of a byte as they are.
pub fn send_by_second(bytes: &[u8]) {
    send_by(SECOND, bytes);
}

/// Prepares the ports: 8 bits, no parity, no interrupts.
pub fn init() {
    // SAFETY: as above.
    unsafe {
        port::write(BASE + 1, 0);
        port::write(LINE_CONTROL, 0x03);
        port::write(SECOND + 1, 0);
        port::write(SECOND + 3, 0x03);
    }
}

/// Prints, while interrupts are off and no other core prints.
pub fn print(arguments: fmt::Arguments<'_>) {
    interrupts::without(|| {
        while BUSY.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            spin_loop();
        }
        // Writing to this port cannot fail.
        let _ = Serial.write_fmt(arguments);
        BUSY.store(false, Release);
    });
}

/// Waits for a byte. Inlined: waiting is no call that a trace should have again and again.
#[inline(always)]
pub fn receive() -> u8 {
    // SAFETY: reading takes a byte that has arrived, and does nothing else.
    unsafe {
        while port::read(LINE_STATUS) & HAS_BYTE == 0 {
            spin_loop();
        }
        port::read(BASE)
    }
}

/// Prints a number in a line.
#[inline(never)]
pub fn send_number(number: u64) {
    print(format_args!("{number}\n"));
}

/// Makes the port free, for a panic: the core that was printing does not run any more.
pub fn force_free() {
    BUSY.store(false, Release);
}

#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => {
        $crate::serial::print(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
