//! `mode=serve`: answers what another program asks by the console, as a device or a service would.

use core::hint::black_box;

use crate::arch;
use crate::arch::clock;
use crate::serial;

/// Questions, a byte each. Others are not answered.
const ASK: u8 = b'?';
const END: u8 = b'q';

/// Answers until the end is asked for. Each answer is a line with the time stamp counter at some moment after the question.
#[inline(never)]
pub fn serve() {
    loop {
        match arch::serial::receive() {
            ASK => answer(),
            END => return,
            _ => {}
        }
    }
}

#[inline(never)]
fn answer() {
    let ticks = clock::ticks();
    check(ticks);
    serial::send_number(ticks);
}

/// Some work, to be seen in the trace.
#[inline(never)]
fn check(number: u64) {
    for digit in 0..4 {
        digit_sum(black_box(number >> (16 * digit)));
    }
}

#[inline(never)]
fn digit_sum(number: u64) -> u64 {
    black_box((0..16).map(|digit| number >> (4 * digit) & 0xf).sum())
}
