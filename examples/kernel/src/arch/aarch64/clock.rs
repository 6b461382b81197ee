//! The processor's counter, its timer, and the time of day.

use core::arch::asm;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The real-time clock (PL031): its first register has the seconds since 1970.
const TIME_OF_DAY: *const u32 = 0x0901_0000 as *const u32;

/// How often clocks tick in a second.
#[derive(Clone, Copy)]
pub struct Rates {
    /// The virtual counter, which the trace has its times from.
    pub counter_hz: u64,
    /// The virtual timer, which compares with that.
    pub timer_hz: u64,
}

/// The virtual counter.
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Returns the rate that the firmware gives.
pub fn measure() -> Rates {
    let hz;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nostack, nomem, preserves_flags)) };
    Rates { counter_hz: hz, timer_hz: hz }
}

/// The time of day in nanoseconds since 1970, in whole seconds.
pub fn wall_nanos() -> u64 {
    // SAFETY: a register that may be read at any time.
    u64::from(unsafe { TIME_OF_DAY.read_volatile() }) * 1_000_000_000
}

/// Ticks between two interrupts of the timer.
static TIMER_PERIOD: AtomicU64 = AtomicU64::new(0);

/// Has the virtual timer of this core interrupt it again and again.
pub fn start_timer(period: u64) {
    TIMER_PERIOD.store(period, Relaxed);
    // SAFETY: the timer does nothing but interrupt, which has a handler.
    unsafe {
        asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", in(reg) ticks() + period, in(reg) 1u64, options(nostack, preserves_flags))
    }
}

/// The timer has interrupted: the next time is a period after this one, if that is not over already.
#[inline(always)]
pub fn restart_timer() {
    let period = TIMER_PERIOD.load(Relaxed);
    let last: u64;
    // SAFETY: as in `start_timer`.
    unsafe { asm!("mrs {}, cntv_cval_el0", out(reg) last, options(nostack, preserves_flags)) };
    let now = ticks();
    let next = if last + period > now { last + period } else { now + period };
    // SAFETY: as above. The old time does not interrupt any more before interrupts are let in again.
    unsafe { asm!("msr cntv_cval_el0, {}", "isb", in(reg) next, options(nostack, preserves_flags)) };
}

/// Stops it.
pub fn stop_timer() {
    // SAFETY: switches the timer off.
    unsafe { asm!("msr cntv_ctl_el0, xzr", options(nostack, preserves_flags)) };
}
