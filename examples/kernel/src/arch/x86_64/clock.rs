//! Frequencies of the processor's clocks, and the time of day.

use core::arch::x86_64::_rdtsc;
use core::hint::spin_loop;

use super::{apic, port};

/// The programmable interval timer (Intel 8254): its second channel has an output that can be read.
const PIT_HZ: u64 = 1_193_182;
const PIT_CHANNEL: u16 = 0x42;
const PIT_COMMAND: u16 = 0x43;
/// Bit 0: the channel's gate; bit 1: the speaker; bit 5: the channel's output.
const GATE: u16 = 0x61;
/// How long it is measured.
const PIT_TICKS: u16 = (PIT_HZ / 20) as u16;

/// How often clocks tick in a second.
#[derive(Clone, Copy)]
pub struct Rates {
    /// The time stamp counter, which the trace has its times from.
    pub counter_hz: u64,
    /// The timer of the local APIC.
    pub timer_hz: u64,
}

/// The time stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { _rdtsc() }
}

/// Compares the clocks with the interval timer.
pub fn measure() -> Rates {
    let [low, high] = PIT_TICKS.to_le_bytes();
    // SAFETY: the second channel and the speaker are used here only.
    unsafe {
        port::write(GATE, port::read(GATE) & !0b10 | 0b01);
        // Channel 2, both bytes, mode 0: the output rises when it has counted down.
        port::write(PIT_COMMAND, 0b1011_0000);
        port::write(PIT_CHANNEL, low);
        apic::count_down();
        port::write(PIT_CHANNEL, high);
    }
    let start = ticks();
    // SAFETY: as above.
    while unsafe { port::read(GATE) } & 1 << 5 == 0 {
        spin_loop();
    }
    let n_tsc = ticks() - start;
    let n_apic = apic::counted_down();
    let in_a_second = |n_ticks: u64| n_ticks * PIT_HZ / u64::from(PIT_TICKS);
    Rates { counter_hz: in_a_second(n_tsc), timer_hz: in_a_second(n_apic) }
}

/// Waits.
pub fn wait_micros(rates: Rates, micros: u64) {
    let end = ticks() + rates.counter_hz * micros / 1_000_000;
    while ticks() < end {
        spin_loop();
    }
}

/// The time of day in nanoseconds since 1970, by the battery-backed clock, which knows whole seconds.
pub fn wall_nanos() -> u64 {
    /// Seconds, minutes, hours, day, month, year; then the status registers.
    const REGISTERS: [u8; 6] = [0x00, 0x02, 0x04, 0x07, 0x08, 0x09];
    const STATUS_A: u8 = 0x0a;
    const STATUS_B: u8 = 0x0b;
    // SAFETY: these ports read the clock; nobody else uses them.
    let read = |register: u8| unsafe {
        port::write(0x70, register);
        port::read(0x71)
    };
    let read_all = || {
        while read(STATUS_A) & 1 << 7 != 0 {
            spin_loop();
        }
        REGISTERS.map(read)
    };
    // Twice the same: it was not read amid a change.
    let mut fields = read_all();
    loop {
        let again = read_all();
        if again == fields {
            break;
        }
        fields = again;
    }
    let is_binary = read(STATUS_B) & 1 << 2 != 0;
    let number = |field: u8| u64::from(if is_binary { field } else { (field >> 4) * 10 + (field & 0xf) });
    let [second, minute, hour, day, month, year] = fields.map(number);
    // Days since 1970 of a date from 2000 to 2099, counted in years that begin with March.
    let (year, month) = if month > 2 { (2000 + year, month - 3) } else { (1999 + year, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000_000
}
