//! Text on the console. `println!` writes to it.

use core::fmt::{self, Write};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::arch::{cores, interrupts, serial};

/// Held by the core that prints.
static BUSY: AtomicBool = AtomicBool::new(false);

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        serial::send(text.as_bytes());
        Ok(())
    }
}

/// Prints, while interrupts are off and no other core prints.
pub fn print(arguments: fmt::Arguments<'_>) {
    interrupts::without(|| {
        while BUSY.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            cores::relax();
        }
        // Writing to the console cannot fail.
        let _ = Console.write_fmt(arguments);
        BUSY.store(false, Release);
    });
}

/// Prints a number in a line.
#[inline(never)]
pub fn send_number(number: u64) {
    print(format_args!("{number}\n"));
}

/// Makes the console free, for a panic: the core that was printing does not run any more.
pub fn force_free() {
    BUSY.store(false, Release);
}

#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => {
        $crate::serial::print(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
