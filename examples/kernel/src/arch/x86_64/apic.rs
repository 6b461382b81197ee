//! The local interrupt controller of each core: its timer, and messages to the other core (Intel SDM volume 3, chapter 11).

use super::port;

/// Where its registers are after reset. They are those of the core that looks.
const BASE: usize = 0xfee0_0000;
const END_OF_INTERRUPT: usize = 0x0b0;
const SPURIOUS: usize = 0x0f0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const TIMER: usize = 0x320;
const TIMER_INITIAL: usize = 0x380;
const TIMER_CURRENT: usize = 0x390;
const TIMER_DIVIDE: usize = 0x3e0;

const ENABLED: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
/// Divides by 1.
const DIVIDE_BY_1: u32 = 0b1011;

/// Messages: how they are delivered, with the level bit.
const INIT: u32 = 0x4500;
const START_UP: u32 = 0x4600;
const NMI: u32 = 0x4400;

#[inline(always)]
fn write(register: usize, value: u32) {
    // SAFETY: a register of the local APIC. The values that are written here interrupt cores, and stop or start the other one;
    // nothing that Rust relies on.
    unsafe { ((BASE + register) as *mut u32).write_volatile(value) }
}

#[inline(always)]
fn read(register: usize) -> u32 {
    // SAFETY: a register of the local APIC that may be read at any time.
    unsafe { ((BASE + register) as *const u32).read_volatile() }
}

/// Switches the core's controller on; no interrupt comes yet.
pub fn init(spurious_vector: u8) {
    write(TIMER, MASKED);
    write(SPURIOUS, ENABLED | u32::from(spurious_vector));
}

/// Switches the old interrupt controllers off.
pub fn disable_pics() {
    // SAFETY: masks all their lines.
    unsafe {
        port::write(0x21, 0xff);
        port::write(0xa1, 0xff);
    }
}

/// Has the timer interrupt this core again and again, every `n_ticks` of its clock.
pub fn start_timer(vector: u8, n_ticks: u32) {
    write(TIMER_DIVIDE, DIVIDE_BY_1);
    write(TIMER, PERIODIC | u32::from(vector));
    write(TIMER_INITIAL, n_ticks);
}

/// Stops the timer.
pub fn stop_timer() {
    write(TIMER, MASKED);
    write(TIMER_INITIAL, 0);
}

/// Starts to measure the timer's clock.
pub fn count_down() {
    write(TIMER_DIVIDE, DIVIDE_BY_1);
    write(TIMER, MASKED);
    write(TIMER_INITIAL, u32::MAX);
}

/// How often it has ticked since [`count_down`].
pub fn counted_down() -> u64 {
    u64::from(u32::MAX - read(TIMER_CURRENT))
}

/// An interrupt has been handled: the next may come.
#[inline(always)]
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

fn send(core: usize, message: u32) {
    // QEMU numbers the controllers as its cores.
    write(COMMAND_HIGH, (core as u32) << 24);
    write(COMMAND_LOW, message);
}

/// Resets another core, which then waits for [`send_start`].
pub fn send_init(core: usize) {
    send(core, INIT);
}

/// Has another core begin in real mode at `page`, a page below 1 MiB.
pub fn send_start(core: usize, page: usize) {
    send(core, START_UP | (page >> 12) as u32);
}

/// Interrupts another core whatever it is doing.
pub fn send_nmi(core: usize) {
    send(core, NMI);
}
